// One answer on the screen: its text, the strip of token latencies, and its figures.
import {advice} from "./api.js";
import {copyButton, make} from "./dom.js";
import {HeatStrip, milliseconds} from "./heat.js";
import {renderMarkdown} from "./markdown.js";

const WHY = {stop: "", length: "cut at max tokens", stopped: "stopped", error: "broken off"};

export class Answer {
  constructor() {
    this.text = "";
    this.tokens = 0;
    this.started = performance.now();
    this.body = make("div", {class: "prose"});
    this.heat = new HeatStrip();
    this.figures = make("p", {class: "figures"}, "waiting for the first token");
    this.actions = make("div", {class: "actions"});
    this.element = make("li", {class: "said assistant", "aria-label": "Answer", "data-state": "running"},
        this.body, this.heat.element, make("div", {class: "below"}, this.figures, this.actions));
    this.heat.element.hidden = true;
  }

  add({text, tokens, at}) {
    this.text += text;
    if (this.first === undefined) {
      this.first = at;
      this.tokens = 1;  // what came with the first token counts from the second on
      tokens -= 1;
    }
    const each = tokens > 0 ? (at - (this.last ?? this.first)) / tokens : 0;
    for (let i = 0; i < tokens; ++i) this.heat.add(i === 0 ? text : "", each);
    this.tokens += tokens;
    this.last = at;
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    renderMarkdown(this.body, this.text);
    this.heat.element.hidden = this.heat.tokens.length === 0;
    this.heat.draw();
    if (this.first !== undefined) this.figures.textContent = this.summary();
    this.ondraw?.();
  }

  summary() {
    const parts = [`first token ${milliseconds(this.first - this.started)}`];
    const rate = 1000 * (this.tokens - 1) / (this.last - this.first);
    if (this.tokens > 1 && Number.isFinite(rate)) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tok/s`);
    parts.push(`${this.tokens} token${this.tokens === 1 ? "" : "s"}`);
    if (this.usage) parts.push(`prompt ${this.usage.prompt_tokens}`);
    if (WHY[this.finish]) parts.push(WHY[this.finish]);
    return parts.join(" · ");
  }

  end(finish, usage) {
    this.finish = finish;
    this.usage = usage;
    if (usage) this.tokens = usage.completion_tokens;
    this.element.dataset.state = finish;
    if (this.first === undefined) this.figures.textContent = WHY[finish] || "no text";
    this.draw();
    if (this.text) this.actions.append(copyButton(() => this.text));
  }

  fail(error) {
    this.end("error");
    this.element.append(make("p", {class: "error", role: "alert"}, error.message, " ", make("span", {}, advice(error))));
  }
}
