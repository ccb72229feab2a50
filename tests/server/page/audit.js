// What a person with a keyboard, a screen reader or weak eyes would stumble over. Runs in the page.
const all = (selector) => [...document.querySelectorAll(selector)];
const shown = (element) => element.checkVisibility();
const CONTROLS = "a, button, input, select, textarea, summary, [tabindex]";

function name(element) {
  const labelled = element.getAttribute("aria-labelledby");
  return (
    element.getAttribute("aria-label") ??
    (labelled ? document.getElementById(labelled).textContent : null) ??
    (element.labels?.length ? element.labels[0] : element).innerText
  ).trim().split("\n")[0].trim();
}

const describe = (element) => `${element.tagName} ${name(element)}`;

// Code in an answer can have the focus, to scroll; what it says is its name.
function unnamed() {
  return all(CONTROLS).filter((element) => shown(element) && !name(element)).map((element) => element.outerHTML);
}

// References to ids that are not there, and ids that are there twice.
function broken() {
  const ids = all("[id]").map((element) => element.id);
  const references = ["for", "aria-labelledby", "aria-describedby", "aria-controls"];
  return [
    ...ids.filter((id, index) => ids.indexOf(id) !== index),
    ...references.flatMap((attribute) =>
      all(`[${attribute}]`).map((element) => element.getAttribute(attribute)).filter((id) => !ids.includes(id)),
    ),
  ];
}

function headings() {
  const levels = all("h1, h2, h3").filter((heading) => !heading.closest("dialog")).map((heading) => +heading.tagName[1]);
  const skipped = levels.filter((level, index) => index && level > levels[index - 1] + 1);
  return [["H1", levels.filter((level) => level === 1).length], ["skipped", skipped.length]];
}

// A colour of any notation as red, green, blue, alpha.
const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
const pen = canvas.getContext("2d", { willReadFrequently: true });
function rgba(color) {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = color;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
}

function luminance(color) {
  const [red, green, blue] = rgba(color).map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function backgroundOf(element) {
  for (let at = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (rgba(color)[3] === 1) return color;
  }
  return "white";
}

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function words() {
  return all("body *").filter(
    (element) =>
      shown(element) &&
      !element.closest(".unseen, .skip, noscript") &&
      [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()),
  );
}

const texts = () => words().length;

// Text, and what stands in empty fields, below WCAG's 4.5.
function faint() {
  const drawn = words().map((element) => [element, getComputedStyle(element).color]);
  const hints = all("[placeholder]").filter(shown).map((field) => [field, getComputedStyle(field, "::placeholder").color]);
  return [...drawn, ...hints]
    .map(([element, color]) => [element, contrast(color, backgroundOf(element))])
    .filter(([, ratio]) => ratio < 4.5)
    .map(([element, ratio]) => `${describe(element)} ${ratio.toFixed(2)}`);
}

// Borders of what is typed into, below WCAG's 3.
function edges() {
  return all("input, select, textarea")
    .filter(shown)
    .filter((field) => contrast(getComputedStyle(field).borderTopColor, backgroundOf(field.parentElement)) < 3)
    .map(describe);
}

// Controls that a finger misses: below 24 pixels.
function small() {
  return all("button, input, select, textarea, summary")
    .filter((element) => shown(element) && !element.closest(".unseen"))
    .filter((element) => Math.min(element.offsetWidth, element.offsetHeight) < 24)
    .map(describe);
}

function focused() {
  const element = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  return [describe(element), outlineStyle !== "none" && parseFloat(outlineWidth) >= 2];
}
