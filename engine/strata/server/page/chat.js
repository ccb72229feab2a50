// The conversation: what was said, what is sent, and how an answer is stopped.
import { Turn } from "./answer.js";

const element = (id) => document.getElementById(id);

export class Chat {
  turns = []; // those that have an answer, whole or not
  running = null; // what aborts the answer that is being made

  constructor(api) {
    this.api = api;
    this.log = element("log");
    this.prompt = element("prompt");
    element("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      element("composer").requestSubmit(); // which looks at the settings' limits
    });
    element("settings").addEventListener("invalid", () => (element("settings").open = true), true);
    element("stop").addEventListener("click", () => this.stop());
    element("new").addEventListener("click", () => this.reset());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !element("key-dialog").open) this.stop();
    });
  }

  showModels(names) {
    const select = element("model");
    if (names.join() === Array.from(select.options, (option) => option.value).join()) return;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }

  async send() {
    const question = this.prompt.value.trim();
    if (!question || this.running) return;
    const running = (this.running = new AbortController());
    element("welcome").hidden = true;
    this.prompt.value = "";
    this.prompt.focus();
    this.showRunning();
    const turn = new Turn(this.log, question, element("model").value || "Model");
    this.log.scrollTop = this.log.scrollHeight;
    let problem = "";
    let stopped = false;
    try {
      for await (const chunk of this.api.chat(this.body(question), running.signal)) turn.add(chunk);
    } catch (error) {
      stopped = running.signal.aborted;
      problem = stopped ? "" : error.message;
    }
    if (this.running !== running) return; // another conversation has begun
    this.running = null;
    this.showRunning();
    if (turn.text) this.turns.push(turn);
    else if ((problem || stopped) && !this.prompt.value) this.prompt.value = question; // to be sent again
    element("announcement").textContent = turn.end({ problem, stopped });
  }

  stop() {
    this.running?.abort();
    this.prompt.focus();
  }

  reset() {
    this.running?.abort();
    this.running = null;
    this.turns = [];
    this.log.replaceChildren(element("welcome"));
    element("welcome").hidden = false;
    element("announcement").textContent = "";
    this.showRunning();
    this.prompt.focus();
  }

  // What is left empty, the server decides.
  body(question) {
    const system = element("system").value.trim();
    const number = (id) => (element(id).value === "" ? undefined : element(id).valueAsNumber);
    return {
      model: element("model").value || undefined,
      messages: [
        ...(system ? [{ role: "system", content: system }] : []),
        ...this.turns.flatMap((turn) => [
          { role: "user", content: turn.question },
          { role: "assistant", content: turn.text },
        ]),
        { role: "user", content: question },
      ],
      temperature: number("temperature"),
      top_p: number("top-p"),
      max_tokens: number("max-tokens"),
      stream_options: { include_usage: true },
    };
  }

  showRunning() {
    element("send").hidden = this.running !== null;
    element("stop").hidden = this.running === null;
    if (this.running) element("announcement").textContent = "The model answers.";
  }
}
