// Experts beyond VRAM: what each tier of memory has, what moves between them, and how often each layer hits.
import { bytes, count, percent } from "./format.js";
import { MINUTE } from "./history.js";

const TIERS = [
  ["VRAM", "num_vram"],
  ["Pinned RAM", "num_host"],
  ["Disk", "num_disk"],
];
const COUNTED = ["needed", "in_vram", "fetched", "on_cpu"];
const RATE_SECONDS = 3;
const element = (id) => document.getElementById(id);

export class Experts {
  constructor(history) {
    this.history = history;
    element("heat-window").addEventListener("change", () => this.showLayers());
  }

  show(status) {
    const { experts, state } = status;
    element("tiers").hidden = !experts;
    element("no-tiers").hidden = Boolean(experts);
    if (!experts) {
      const known = state === "ready" || state === "stopping";
      const where = status.model ? ` (${status.model.device})` : "";
      const plain = `No tiers: all weights of this model lie in one place${where}, and nothing moves while it answers.`;
      element("no-tiers").textContent = known ? plain : "–";
      return;
    }
    this.showTiers(experts);
    this.showMoved(experts);
    this.showLayers();
  }

  showTiers(experts) {
    const most = Math.max(1, ...TIERS.map(([, key]) => experts[key]));
    fill(element("tier-rows"), TIERS, (row, [name, key]) => {
      const number = experts[key];
      if (!row.children.length) {
        row.append(cell("th"), cell("td"), cell("td"));
        row.append(cell("td"));
        row.lastElementChild.append(document.createElement("i"));
        row.lastElementChild.setAttribute("aria-hidden", "true");
        row.firstElementChild.scope = "row";
      }
      setTexts(row, [name, count(number), number ? bytes(number * experts.expert_bytes) : "–"]);
      row.lastElementChild.firstElementChild.style.width = `${(100 * number) / most}%`;
    });
  }

  showMoved(experts) {
    const rate = (counter) => this.history.rate(RATE_SECONDS, (status) => counter(status.experts.bytes));
    const ways = [["over PCIe", rate((moved) => moved.fetched + moved.prefetched + moved.prefill)]];
    if (experts.cpu) ways.push(["read by the CPU", rate((moved) => moved.cpu)]);
    if (experts.bytes.disk !== null) ways.push(["from disk", rate((moved) => moved.disk ?? 0)]);
    const told = ways.map(([name, moved]) => `${name} ${moved === null ? "–" : `${bytes(moved)}/s`}`);
    element("moved").textContent = `Moving: ${told.join(", ")}.`;
  }

  // Of the last minute, or of all time; a layer that needed none has no ratio.
  layers() {
    const last = this.history.samples.at(-1)?.status.experts?.layers ?? [];
    if (element("heat-window").value === "start") return last;
    const added = (index, key) =>
      this.history.since(MINUTE, (status) => status.experts.layers[index][key])?.added ?? 0;
    return last.map(({ layer }, index) => ({
      layer,
      ...Object.fromEntries(COUNTED.map((key) => [key, added(index, key)])),
    }));
  }

  showLayers() {
    const layers = this.layers();
    fill(element("heat"), layers, (item, { layer, needed, in_vram: hits }) => {
      if (!item.children.length) item.append(cell("span"), cell("span"));
      const share = needed ? hits / needed : null;
      item.firstElementChild.className = "unseen";
      item.dataset.layer = layer;
      setTexts(item, [`Layer ${layer}: `, share === null ? "–" : percent(share)]);
      item.classList.toggle("idle", share === null);
      item.style.setProperty("--share", `${100 * (share ?? 0)}%`);
      item.title = `Layer ${layer}: ${count(hits)} of ${count(needed)} needed experts were in VRAM`;
    });
    if (!element("layers").open) return;
    fill(element("layer-rows"), layers, (row, figures) => {
      if (!row.children.length) {
        row.append(cell("th"), ...COUNTED.map(() => cell("td")));
        row.firstElementChild.scope = "row";
      }
      setTexts(row, [figures.layer, ...COUNTED.map((key) => count(figures[key]))]);
    });
  }
}

// As many children as there are values, each shown by `show`; they stay the same elements.
function fill(parent, values, show) {
  const tag = parent.localName === "ol" ? "li" : "tr";
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  while (parent.children.length < values.length) parent.append(document.createElement(tag));
  values.forEach((value, index) => show(parent.children[index], value));
}

function setTexts(row, texts) {
  texts.forEach((text, index) => (row.children[index].textContent = text));
}

function cell(tag) {
  return document.createElement(tag);
}
