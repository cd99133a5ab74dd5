// The strip under an answer: one cell per token, coloured by how long it took compared with the answer's median.
import {make} from "./dom.js";

const MAX_CELLS = 1200;  // beyond, a cell stands for several tokens

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

export const milliseconds = (ms) => ms === 0 ? "0 ms" : ms < 0.1 ? `${Math.round(1000 * ms)} µs` : ms >= 1000 ? `${(ms / 1000).toFixed(ms >= 10000 ? 0 : 2)} s` : ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(1)} ms`;

// 0 to 4: up to 1.25, 1.75, 2.5, 4 times the median, and beyond.
const level = (ms, typical) => [1.25, 1.75, 2.5, 4].filter((bound) => ms > bound * typical).length;

export class HeatStrip {
  constructor() {
    this.cells = make("div", {class: "cells"});
    this.readout = make("span", {class: "readout"});
    this.element = make("div", {class: "heat", role: "img", tabindex: "0", "aria-label": "Latency of each token",
        title: "One cell per token; the colour says how long it took, compared with the median. Arrow keys step through."}, this.cells, this.readout);
    this.tokens = [];  // {text, ms}, without the first: it took the prompt's time
    this.chosen = -1;
    this.element.addEventListener("pointermove", (event) => this.choose([...this.cells.children].indexOf(event.target)));
    this.element.addEventListener("pointerleave", () => this.choose(-1));
    this.element.addEventListener("blur", () => this.choose(-1));
    this.element.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!step) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.cells.children.length - 1, this.chosen + step)));
    });
  }

  add(text, ms) {
    this.tokens.push({text, ms});
    this.stale = true;
  }

  get merged() { return Math.ceil(this.tokens.length / MAX_CELLS); }

  // Once per frame at most: colours are relative to the median so far.
  draw() {
    if (!this.stale) return;
    this.stale = false;
    const each = this.merged, typical = median(this.tokens.map((t) => t.ms)), wanted = Math.ceil(this.tokens.length / each);
    while (this.cells.children.length > wanted) this.cells.lastChild.remove();
    while (this.cells.children.length < wanted) this.cells.append(document.createElement("i"));
    [...this.cells.children].forEach((cell, i) => {
      const slowest = Math.max(...this.tokens.slice(i * each, (i + 1) * each).map((t) => t.ms));
      const name = `h${level(slowest, typical)}`;
      if (cell.className !== name) cell.className = name;
    });
    const worst = this.tokens.reduce((most, t) => Math.max(most, t.ms), 0);
    this.element.setAttribute("aria-label", `Latency of ${this.tokens.length} tokens after the first: median ${milliseconds(typical)}, slowest ${milliseconds(worst)}`);
  }

  choose(index) {
    this.cells.children[this.chosen]?.removeAttribute("data-chosen");
    this.chosen = index;
    this.cells.children[index]?.setAttribute("data-chosen", "");
    if (index < 0) return void (this.readout.textContent = "");
    const some = this.tokens.slice(index * this.merged, (index + 1) * this.merged);
    const text = some.map((t) => t.text).join("").replace(/\n/g, "⏎");
    this.readout.textContent = `${index * this.merged + 2}: “${text}” ${milliseconds(Math.max(...some.map((t) => t.ms)))}`;
  }
}
