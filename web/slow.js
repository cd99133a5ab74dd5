// The slowest of the requests that ended lately, each with where its time went as a bar: GET /v1/requests?slowest=N.
import {ApiError, json} from "./api.js";
import {byId, make} from "./dom.js";
import {milliseconds} from "./heat.js";

const SHOWN = 8;
const EVERY = 5;  // samples

// Spans of the server's ledger by what a reader wants to tell apart; the class is a colour.
const KINDS = [
  ["queue", ["queue"]],
  ["prefill", ["prefill", "prefill_wait", "prefix_lookup"]],
  ["decode", ["decode", "decode_wait"]],
  ["preempted", ["preempted", "recompute"]],
  ["paused", ["paused"]],
  ["other", ["read", "parse", "tokenize", "other_choices", "format", "write"]],
];

const kindOf = (span) => KINDS.find(([, names]) => names.includes(span))?.[0] ?? "other";

export class SlowRequests {
  constructor() { this.samples = 0; }

  // Once per sample of the live stream; asks now and then.
  async refresh() {
    if (this.samples++ % EVERY !== 0) return;
    try {
      this.show((await json(`v1/requests?slowest=${SHOWN}`)).data);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;  // the stream itself says when the server is gone
    }
  }

  show(requests) {
    byId("slow-panel").hidden = requests.length === 0;
    const longest = Math.max(...requests.map((r) => r.total_ms), 1);
    const keys = make("ul", {class: "keys"}, KINDS.map(([kind]) => make("li", {}, make("i", {class: `swatch part-${kind}`}), kind)));
    byId("slow").replaceChildren(make("ol", {class: "slow"}, requests.map((r) => this.row(r, longest))), keys);
  }

  row(request, longest) {
    const spans = request.spans.filter((span) => span.ms >= 0.01);
    const bar = make("div", {class: "stack", role: "img", "aria-label": spans.map((s) => `${s.name} ${milliseconds(s.ms)}`).join(", ")},
        spans.map((span) => {
          const part = make("i", {class: `part-${kindOf(span.name)}`, title: `${span.name} ${milliseconds(span.ms)}`});
          part.style.flexGrow = String(span.ms);
          return part;
        }));
    bar.style.width = `${Math.max(1, 100 * request.total_ms / longest)}%`;
    const when = new Date(1000 * request.started_at).toLocaleTimeString("en-GB");
    return make("li", {}, make("p", {}, make("b", {}, milliseconds(request.total_ms)), ` ${request.prompt_tokens} in, ${request.generated} out · ${request.finish_reason} · ${when}`,
        make("span", {class: "id"}, request.request_id)), bar);
  }
}
