// Where the time of the last minute's requests went, of all and of the slowest twentieth, as a bar and a table each:
// GET /v1/requests/attribution.
import {ApiError, json} from "./api.js";
import {byId, make} from "./dom.js";
import {milliseconds} from "./heat.js";

const EVERY = 5;  // samples
const WINDOW_S = 60;
// The server's names, in the order in which a request meets them, each with its words and its colour.
const PARTS = [
  ["door", "door", "other"], ["queue", "queue", "queue"], ["prefill", "prefill", "prefill"], ["decode", "decode", "decode"],
  ["cpu_scheduling", "waiting for a core", "launch"], ["preemption", "preemption", "preempted"], ["write", "write", "paused"],
];

export class Burst {
  constructor() { this.samples = 0; }

  // Once per sample of the live stream; asks now and then.
  async refresh() {
    if (this.samples++ % EVERY !== 0) return;
    try {
      this.show(await json(`v1/requests/attribution?window_s=${WINDOW_S}`));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;  // the stream itself says when the server is gone
    }
  }

  show(all) {
    byId("burst-panel").hidden = all.requests === 0;
    if (all.requests === 0) return;
    const rows = [["all", all], ["slowest 5 %", all.slowest]];
    byId("burst").replaceChildren(...rows.map(([name, of]) => this.bar(name, of)), this.table(rows));
  }

  bar(name, of) {
    const parts = PARTS.map(([key, words, colour]) => ({words, colour, ...of.parts.find((p) => p.name === key)})).filter((p) => p.share >= 0.001);
    const label = parts.map((p) => `${p.words} ${(100 * p.share).toFixed(1)} %`).join(", ");
    return make("div", {class: "burst"}, make("p", {}, make("b", {}, milliseconds(of.mean_ms)), ` mean of ${of.requests}, ${name}`),
        make("div", {class: "stack", role: "img", "aria-label": label}, parts.map((p) => {
          const part = make("i", {class: `part-${p.colour}`, title: `${p.words} ${milliseconds(p.mean_ms)}`});
          part.style.flexGrow = String(p.share);
          return part;
        })));
  }

  table(rows) {
    const cell = (of, key) => {
      const part = of.parts.find((p) => p.name === key);
      return make("td", {}, `${milliseconds(part.mean_ms)} · ${(100 * part.share).toFixed(1)} %`);
    };
    return make("table", {class: "shares"}, make("thead", {}, make("tr", {}, make("th", {}, ""), rows.map(([name]) => make("th", {}, name)))),
        make("tbody", {}, PARTS.map(([key, words, colour]) =>
            make("tr", {}, make("th", {}, make("i", {class: `swatch part-${colour}`}), words), rows.map(([, of]) => cell(of, key))))));
  }
}
