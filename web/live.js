// The Live view: GET /v1/live, once a second, as tiles, charts and bars.
import {ApiError, advice, call, events} from "./api.js";
import {Burst} from "./burst.js";
import {LineChart, amount, short} from "./charts.js";
import {byId, make} from "./dom.js";
import {milliseconds} from "./heat.js";
import {SlowRequests} from "./slow.js";

const KEEP = 180;  // seconds
const RETRY_MS = [1000, 2000, 5000, 10000];
const PARTS = ["plan", "build", "launch", "execute", "gap", "commit"];
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

class Tiles {
  constructor(names) {
    this.tiles = Object.fromEntries(names.map(([key, title]) => [key, {value: make("dd"), more: make("dd", {class: "more"}), title}]));
    byId("tiles").replaceChildren(...Object.values(this.tiles).map((t) => make("div", {class: "tile"}, make("dt", {}, t.title), t.value, t.more)));
  }
  set(key, value, more = "") {
    this.tiles[key].value.textContent = value;
    this.tiles[key].more.textContent = more;
  }
}

const spread = (q) => q ? `p95 ${milliseconds(q.p95)} · p99 ${milliseconds(q.p99)}` : "none in the last minute";

class Live {
  constructor() {
    this.tiles = new Tiles([["running", "Running"], ["waiting", "Waiting"], ["out", "Tokens out"], ["in", "Prompt tokens in"],
                            ["first", "First token, median"], ["inter", "Between tokens, median"], ["kv", "KV cache"],
                            ["hits", "Prefix hits"], ["bandwidth", "Memory bandwidth"], ["compute", "Compute"]]);
    const ms = (value) => milliseconds(value);
    this.charts = [
      [new LineChart({title: "Tokens a second", series: [{label: "out", colour: "--out"}, {label: "in", colour: "--in"}]}), ["out", "in"]],
      [new LineChart({title: "Requests", stepped: true, series: [{label: "running", colour: "--out"}, {label: "waiting", colour: "--wait"}]}), ["running", "waiting"]],
      [new LineChart({title: "First token", series: [{label: "median", colour: "--in"}], format: ms}), ["first_token"]],
      [new LineChart({title: "Between tokens", series: [{label: "median", colour: "--in"}], format: ms}), ["inter_token"]],
    ];
    byId("charts").replaceChildren(...this.charts.map(([chart]) => chart.element));
    this.points = [];
    this.burst = new Burst();
    this.slow = new SlowRequests();
    this.wanted = false;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  visible(yes) {
    this.wanted = yes;
    this.follow();
  }

  follow() {
    const wanted = this.wanted && !document.hidden;
    if (!wanted) return void this.stream?.abort();
    if (!this.stream) this.listen();
  }

  async listen() {
    const stream = this.stream = new AbortController();
    for (let failures = 0; !stream.signal.aborted; ++failures) {
      try {
        const response = await call("v1/live", {signal: stream.signal});
        for await (const {event, data} of events(response)) {
          failures = 0;
          if (event === "hello") this.hello(JSON.parse(data));
          else this.sample(JSON.parse(data));
        }
        this.say("lost", "The server ended the stream.");
      } catch (error) {
        if (error.name === "AbortError") break;
        if (!(error instanceof ApiError)) throw error;
        this.say("lost", `${error.message} ${advice(error)}`);
        if (error.status === 401) break;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
    }
    if (this.stream === stream) this.stream = null;
    if (stream.signal.aborted) this.follow();
  }

  say(cause, text) {
    const verdict = byId("verdict");
    verdict.dataset.cause = cause;
    if (verdict.textContent !== text) verdict.textContent = text;
  }

  hello(info) {
    this.info = info;
    this.points = info.points;
  }

  sample(s) {
    this.points.push({t: s.t, in: s.in, out: s.out, running: s.running, waiting: s.waiting,
                      first_token: s.first_token?.p50 ?? null, inter_token: s.inter_token?.p50 ?? null});
    if (this.points.length > KEEP) this.points.shift();
    const times = this.points.map((p) => p.t);
    for (const [chart, keys] of this.charts)
      chart.set([times, ...keys.map((key) => this.points.map((p) => p[key] || (key.endsWith("_token") ? null : 0)))]);
    this.say(s.verdict.cause, s.verdict.text);
    this.showTiles(s);
    this.showBatch(s.batch);
    if (s.step) this.showStep(s.step);
    this.burst.refresh();
    this.slow.refresh();
    byId("live").dataset.samples = String(Number(byId("live").dataset.samples ?? 0) + 1);
  }

  showTiles(s) {
    const lanes = (key) => s.lanes.filter((lane) => lane[key] > 0).map((lane) => `${lane.name} ${lane[key]}`).join(" · ");
    this.tiles.set("running", String(s.running), lanes("running") || `of ${this.info.seats} seats`);
    this.tiles.set("waiting", String(s.waiting), lanes("waiting") || (s.rejected > 0 ? `${short(s.rejected)}/s refused` : s.queue ? `wait p95 ${milliseconds(s.queue.p95)}` : ""));
    this.tiles.set("out", `${short(s.out)}/s`, s.step ? `${short(s.step.sequences)} sequences a step` : "");
    this.tiles.set("in", `${short(s.in)}/s`, `${short(s.steps)} steps/s`);
    this.tiles.set("first", s.first_token ? milliseconds(s.first_token.p50) : "–", spread(s.first_token));
    this.tiles.set("inter", s.inter_token ? milliseconds(s.inter_token.p50) : "–", spread(s.inter_token));
    const tiers = s.kv.tiers.map((tier) => `${tier.name} ${percent(tier.total ? tier.used / tier.total : 0)}`).join(" · ");
    this.tiles.set("kv", percent(s.kv.total ? s.kv.used / s.kv.total : 0), tiers || `${s.kv.used.toLocaleString("en")} of ${s.kv.total.toLocaleString("en")} blocks`);
    this.tiles.set("hits", s.kv.prefix_hits === null ? "–" : percent(s.kv.prefix_hits), s.kv.prefix_hits === null ? "no prefix seen" : "of prompt tokens, last minute");
    const peak = (share, rate, unit) => [share === null ? amount(rate, unit) : percent(share), share === null ? "while computing" : `of measured peak: ${amount(rate, unit)}`];
    this.tiles.set("bandwidth", ...(s.step ? peak(s.bandwidth, s.bytes_s, "B/s") : ["–", "no steps"]));
    this.tiles.set("compute", ...(s.step ? peak(s.compute, s.flops_s, "op/s") : ["–", "no steps"]));
  }

  showBatch(buckets) {
    const last = Math.max(5, buckets.findLastIndex((b) => b.steps > 0));
    const shown = buckets.slice(0, last + 1), most = Math.max(1, ...shown.map((b) => b.steps)), all = shown.reduce((sum, b) => sum + b.steps, 0);
    const label = (b, i) => b.upto === null ? "more" : i > 0 && b.upto > shown[i - 1].upto + 1 ? `≤${b.upto}` : String(b.upto);
    byId("batch").replaceChildren(...shown.map((b, i) => {
      const bar = make("i");
      bar.style.height = `${100 * b.steps / most}%`;
      return make("div", {class: "column", title: `${b.steps} steps`}, make("span", {class: "share"}, b.steps ? percent(b.steps / all) : ""), make("div", {class: "well"}, bar), make("span", {}, label(b, i)));
    }));
    byId("batch").setAttribute("aria-label", `Steps by sequences: ${shown.filter((b) => b.steps).map((b, i) => `${b.upto ?? "more"}: ${b.steps}`).join(", ") || "none"}`);
  }

  showStep(step) {
    // On a CPU the launch is the execution: there is nobody else to launch for.
    const parts = PARTS.filter((key) => key !== "launch" || this.info.threads === 0).map((key) => [key, step[`${key}_ms`]]), all = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
    const bar = make("div", {class: "stack", role: "img", "aria-label": parts.map(([name, ms]) => `${name} ${milliseconds(ms)}`).join(", ")},
        parts.map(([name, ms]) => {
          const part = make("i", {class: `part-${name}`, title: `${name} ${milliseconds(ms)}`});
          part.style.flexGrow = String(ms / all);
          return part;
        }));
    byId("step").replaceChildren(bar, make("ul", {class: "keys"}, parts.map(([name, ms]) =>
        make("li", {}, make("i", {class: `swatch part-${name}`}), name, " ", make("b", {}, milliseconds(ms))))),
        make("p", {class: "hint"}, `${short(step.tokens)} tokens of ${short(step.sequences)} sequences a step. Plan, build and commit of one step run while the device executes another; gap is when it stood still.`));
  }
}

export const startLive = () => new Live();
