// An answer as elements. What a model wrote becomes text nodes only: HTML in it is shown, never parsed.

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const INLINE = /(`[^`\n]+`)|(\*\*[^\s*][^*\n]*\*\*)|^#{1,6} (.+)$/gm;

// Brings `container` to show `text`. While an answer grows, only its last block changes.
export function showText(container, text) {
  const blocks = split(text);
  blocks.forEach((block, index) => {
    const before = container.children[index];
    if (before?.block?.code === block.code && before.block.text === block.text) return;
    const element = block.code ? codeElement(block.text) : proseElement(block.text);
    element.block = block;
    if (before) before.replaceWith(element);
    else container.append(element);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}

// Prose and fenced code in turn. A fence that is still open holds all that follows.
function split(text) {
  const blocks = [];
  let lines = [];
  let fence = "";
  const close = (code) => {
    const joined = lines.join("\n");
    if (code || joined.trim()) blocks.push({ code, text: code ? joined : joined.trim() });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const [, mark, info] = FENCE.exec(line) ?? [];
    if (!fence && mark && !info.includes("`")) {
      close(false);
      fence = mark;
    } else if (fence && mark?.startsWith(fence) && !info.trim()) {
      close(true);
      fence = "";
    } else {
      lines.push(line);
    }
  }
  close(fence !== "");
  return blocks;
}

function codeElement(text) {
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // long lines scroll, by the keyboard too
  const code = document.createElement("code");
  code.textContent = text;
  pre.append(code);
  return pre;
}

function proseElement(text) {
  const prose = document.createElement("div");
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, strong, heading] = match;
    const element = document.createElement(code ? "code" : "strong");
    element.textContent = code?.slice(1, -1) ?? strong?.slice(2, -2) ?? heading;
    prose.append(text.slice(end, match.index), element);
    end = match.index + whole.length;
  }
  prose.append(text.slice(end));
  return prose;
}
