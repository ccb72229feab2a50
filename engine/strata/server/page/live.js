// The live view: asks once a second while somebody looks, and shows what comes.
import { Experts } from "./experts.js";
import { count, percent, seconds } from "./format.js";
import { History, MINUTE } from "./history.js";

const POLL_MS = 1000;
const SPEED_SECONDS = 3;
const WAITS = {
  max_num_seqs: "The first in the queue waits for a slot: as many run as may.",
  kv_blocks: "The first in the queue waits for room in the KV cache.",
  prefill_budget: "The first in the queue comes with the next step.",
};
const element = (id) => document.getElementById(id);
const generated = (status) => status.traffic.generation_tokens;

export class Live {
  history = new History();
  experts = new Experts(this.history);
  asking = false;

  // onStatus: with every status that came.
  constructor(api, onStatus) {
    this.api = api;
    this.onStatus = onStatus;
    document.addEventListener("visibilitychange", () => this.resume());
    const toggle = element("live-toggle");
    toggle.addEventListener("click", () => {
      const open = document.body.classList.toggle("live-open");
      toggle.setAttribute("aria-expanded", open);
    });
  }

  // Asks now, and goes on.
  resume() {
    clearTimeout(this.timer);
    if (!document.hidden && !this.asking) this.poll();
  }

  async poll() {
    this.asking = true;
    let again = true;
    try {
      const status = await this.api.status();
      this.history.add(performance.now() / 1000, status);
      this.show(status);
      this.onStatus(status);
    } catch (error) {
      again = error.status !== 401; // until there is a key
      this.history.samples = [];
      setState("unknown", again ? "no answer" : "no key");
      showTrouble(error.message);
    }
    this.asking = false;
    if (again && !document.hidden) this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  show(status) {
    const { state, loading, model } = status;
    const done = loading?.bytes_total ? ` ${percent(loading.bytes_done / loading.bytes_total)}` : "";
    setState(state, state === "loading" ? `loading: ${loading?.phase ?? "start"}${done}` : state);
    showTrouble(status.error);
    const facts = [model?.dtype, model?.device, model && `${count(model.max_model_len)} tokens of context`];
    setText("served", [status.models[0], ...facts].filter(Boolean).join(" · "));
    setText("version", `Strata ${status.version}`);
    this.showSpeed();
    this.showQueue(status.requests);
    showCache(status.kv_cache);
    this.experts.show(status);
  }

  showSpeed() {
    const rate = this.history.rate(SPEED_SECONDS, generated);
    setText("speed", rate === null ? "–" : count(rate));
    const firsts = this.history.since(MINUTE, (status) => status.traffic.first_tokens)?.added;
    const time = this.history.since(MINUTE, (status) => status.traffic.first_token_seconds)?.added;
    setText("ttft", firsts ? seconds(time / firsts) : "–");
    const rates = this.history.rates(generated);
    const most = Math.max(1, ...rates.map(({ rate: speed }) => speed));
    const points = rates.map(({ ago, rate: speed }) => `${120 * (1 - ago / MINUTE)},${31 - (30 * speed) / most}`);
    const [area, line] = element("speeds").children;
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", points.length ? [`${points[0].split(",")[0]},32`, ...points, "120,32"].join(" ") : "");
  }

  showQueue(requests) {
    setText("running", requests ? count(requests.running) : "–");
    setText("waiting", requests ? count(requests.waiting) : "–");
    const reason = WAITS[requests?.waiting_for] ?? "";
    setText("reason", reason);
    element("reason").hidden = !reason;
  }
}

function showCache(cache) {
  const blocks = cache ? cache.used_blocks + cache.cached_blocks + cache.free_blocks : 0;
  for (const part of ["used", "cached"]) {
    element(`kv-${part}`).style.width = blocks ? `${(100 * cache[`${part}_blocks`]) / blocks}%` : "0";
  }
  const tokens = (number) => count(number * cache.block_size);
  setText(
    "kv",
    cache
      ? `${tokens(cache.used_blocks)} tokens used, ${tokens(cache.cached_blocks)} kept for prompts that begin alike, ` +
          `of ${tokens(blocks)}`
      : "–",
  );
}

function setState(state, text) {
  element("state").dataset.state = state;
  setText("state", text);
}

function showTrouble(message) {
  setText("trouble", message ?? "");
  element("trouble").hidden = !message;
}

// A live region speaks whenever its text is set, changed or not.
function setText(id, text) {
  const shown = element(id);
  if (shown.textContent !== text) shown.textContent = text;
}
