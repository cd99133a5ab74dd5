// Line charts over the last minutes, by uPlot; colours are the style sheet's, so that light and dark follow it.
import {make} from "./dom.js";

const HEIGHT = 132;
const charts = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const short = (value) => {
  if (!Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return (value / size).toPrecision(3) + unit;
  }
  return value === 0 || value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(value < 1 ? 2 : 3);
};

// With a unit: "43.6 GB/s".
export function amount(value, unit) {
  const text = short(value), scale = /[kMGT]$/.exec(text)?.[0] ?? "";
  return `${scale ? text.slice(0, -1) : text} ${scale}${unit}`;
}

export class LineChart {
  // series: [{label, colour: "--out"}]; format: of values; max: of the scale where it is known.
  constructor({title, series, format = short, max = null, stepped = false}) {
    Object.assign(this, {title, series, format, max, stepped});
    this.values = series.map((s) => make("b", {}, "–"));
    this.box = make("div", {class: "plot", role: "img"});
    this.element = make("figure", {class: "panel chart"},
        make("figcaption", {}, make("h2", {}, title),
            ...series.map((s, i) => make("span", {class: "key"}, make("i", {class: `swatch ${s.colour.slice(2)}`}), s.label, " ", this.values[i]))),
        this.box);
    this.data = [[], ...series.map(() => [])];
    charts.add(this);
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  build() {
    this.plot?.destroy();
    const grid = {stroke: colour("--line"), width: 1}, text = colour("--soft");
    const axis = {stroke: text, font: "11px system-ui, sans-serif", grid, ticks: {show: false}};
    this.plot = new uPlot({
      width: Math.max(120, this.box.clientWidth), height: HEIGHT,
      padding: [8, 10, 0, 0],
      legend: {show: false},
      cursor: {y: false, points: {size: 6}, drag: {x: false, y: false}},
      hooks: {setCursor: [(plot) => this.show(plot.cursor.idx)]},
      scales: {x: {time: true}, y: {range: (_, low, high) => [0, this.max ?? Math.max(1e-9, (high || 1) * 1.15)]}},
      axes: [
        {...axis, space: 70, size: 24, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB"))},
        {...axis, size: 52, space: 34, values: (_, ticks) => ticks.map(this.format)},
      ],
      series: [{}, ...this.series.map((s) => ({
        stroke: colour(s.colour), width: 1.5, points: {show: false}, fill: `${colour(s.colour)}1c`,
        paths: this.stepped ? uPlot.paths.stepped({align: -1}) : undefined,
      }))],
    }, this.data, this.box);
  }

  resize() {
    if (this.box.clientWidth === 0) return;
    if (!this.plot) this.build();
    else this.plot.setSize({width: this.box.clientWidth, height: HEIGHT});
  }

  set(data) {
    this.data = data;
    this.plot?.setData(data);
    this.show(null);
  }

  // The values at a place in time, or the newest ones.
  show(index) {
    const at = index ?? this.data[0].length - 1;
    this.series.forEach((_, i) => {
      const value = this.data[i + 1][at];
      this.values[i].textContent = value === null || value === undefined ? "–" : this.format(value);
    });
    if (index === null) this.box.setAttribute("aria-label", `${this.title}: ${this.series.map((s, i) => `${s.label} ${this.values[i].textContent}`).join(", ")}`);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) if (chart.plot) chart.build();
});
