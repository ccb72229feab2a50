// One question and its answer, as they stand in the conversation.
import { count, seconds } from "./format.js";
import { showText } from "./text.js";

export class Turn {
  text = "";
  reasoning = "";

  constructor(log, question, modelName) {
    this.question = question;
    const asked = article("question", "You");
    asked.append(make("div", "text", question));
    this.element = article("answer", modelName);
    this.element.setAttribute("aria-busy", "true"); // read aloud when it is complete
    this.thoughts = make("details", "reasoning");
    this.thoughts.hidden = true;
    this.thoughts.append(make("summary", "", "Reasoning"), make("div", "text"));
    this.shown = make("div", "text");
    this.element.append(this.thoughts, this.shown);
    log.append(asked, this.element);
    this.started = performance.now();
  }

  // Takes in a chunk; drawn with the next frame, however many come before it.
  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.warnings) this.warnings = chunk.warnings;
    const [choice] = chunk.choices;
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const { content, reasoning_content: thought } = choice.delta;
    if (!content && !thought) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.text += content ?? "";
    this.reasoning += thought ?? "";
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const log = this.element.parentElement;
    const follow = log && log.scrollHeight - log.scrollTop - log.clientHeight < 80; // unless somebody reads above
    if (this.reasoning) {
      this.thoughts.hidden = false;
      this.thoughts.lastElementChild.textContent = this.reasoning.trim();
    }
    showText(this.shown, this.text);
    if (follow) log.scrollTop = log.scrollHeight;
  }

  // Ends the answer with a line below it, which it returns: what went wrong, that it was stopped, or what it took.
  end({ problem = "", stopped = false } = {}) {
    cancelAnimationFrame(this.frame);
    for (const warning of this.warnings ?? []) this.element.append(make("p", "note", `Warning: ${warning}`));
    const said = problem || (stopped ? "Stopped." : this.facts());
    this.element.append(make("p", problem ? "problem" : "note", said));
    this.element.setAttribute("aria-busy", "false");
    this.draw();
    return said;
  }

  facts() {
    const facts = [];
    if (this.reason === "length") facts.push("cut off: max tokens, or the model's context, is reached");
    if (this.reason === "timeout") facts.push("cut off: its time was over");
    const tokens = this.usage?.completion_tokens;
    if (tokens) facts.push(`${count(tokens)} tokens`);
    if (this.first) facts.push(`first after ${seconds((this.first - this.started) / 1000)}`);
    if (tokens > 1 && this.last > this.first) {
      facts.push(`${count(((tokens - 1) * 1000) / (this.last - this.first))} tok/s`);
    }
    return facts.join(" · ") || "The answer is empty.";
  }
}

function article(kind, speaker) {
  const element = make("article", kind);
  element.append(make("h3", "", speaker));
  return element;
}

function make(tag, kind, text = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.textContent = text;
  return element;
}
