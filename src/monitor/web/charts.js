// Charts of uPlot with what the page adds: one zoom and one reading position for all, a legend with the values
// there, a summary in words and a table for those who do not see the picture, and the keyboard.
/* global uPlot */
import { el, formatNumber, formatShort, isNumber, tableOf } from "./dom.js";
import { firstFrom, lastAtMost } from "./runs.js";

const SYNC_KEY = "tessera";
const MAX_TABLE_ROWS = 25;

export const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Every chart of the page, and the range of x that they show; null = everything.
export const charts = { all: [], range: null, onRange: () => {} };

// Shows the range [from, to] of x in all charts, or everything.
export function showRange(range) {
  charts.range = range;
  for (const chart of charts.all) chart.applyRange();
  charts.onRange(range);
}

// `chart.series` entries: {label, color, width, dash, x: [...], y: [...], points (no line), faint, fill, format,
// inLegend}. Together they are uPlot's table over the union of all x.
function aligned(series) {
  if (series.length === 0) return [[], []];
  const sameX = series.every((one) => one.x === series[0].x);
  return sameX ? [series[0].x, ...series.map((one) => one.y)] : uPlot.join(series.map((one) => [one.x, one.y]));
}

export class Chart {
  // options: {id, title, note, height, log (offers a logarithmic axis), format, axisFormat, axisSteps, range,
  //           stacked, content: () => ({series, summary, xLabel})}
  constructor(options) {
    this.options = options;
    this.isLog = false;
    this.plot = null;
    this.series = [];
    this.title = el("h3", { id: `${options.id}-title` }, options.title);
    this.summary = el("p", { class: "summary", id: `${options.id}-summary` });
    this.legend = el("ul", { class: "legend" });
    this.canvas = el("div", { class: "plot", tabindex: 0, role: "group", "aria-roledescription": "chart",
      "aria-labelledby": `${options.id}-title`, "aria-describedby": `${options.id}-summary`,
      onkeydown: (event) => this.onKey(event) });
    this.table = el("div", { class: "chart-table", hidden: true });
    this.tableButton = el("button", { type: "button", class: "quiet", "aria-expanded": "false", "data-table": true,
      "aria-label": `${options.title}: table of values`, onclick: () => this.showTable(this.table.hidden) }, "Table");
    this.logButton = options.log
      ? el("button", { type: "button", class: "quiet", "aria-pressed": "false", "data-log": true,
        "aria-label": `${options.title}: logarithmic axis`, onclick: () => this.setLog(!this.isLog) }, "Log")
      : null;
    this.card = el("figure", { class: `card ${options.wide ? "wide" : ""}`, id: options.id },
      el("div", { class: "card-head" }, this.title, el("div", { class: "card-tools" }, this.logButton, this.tableButton)),
      this.summary, this.canvas, this.legend, this.table);
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    charts.all.push(this);
  }

  get width() {
    return Math.max(Math.floor(this.canvas.clientWidth), 120);
  }

  setLog(isLog) {
    this.isLog = isLog;
    this.logButton?.setAttribute("aria-pressed", String(isLog));
    this.rebuild();
  }

  showTable(isShown) {
    this.table.hidden = !isShown;
    this.tableButton.setAttribute("aria-expanded", String(isShown));
    if (isShown) this.fillTable();
  }

  // Draws what the data are now; keeps the plot if only values have changed.
  update() {
    const { series, summary, xLabel } = this.options.content();
    const shape = (list) => list.map((one) => [one.label, one.color, one.dash, one.points].join()).join(";");
    const isSame = this.plot !== null && shape(series) === shape(this.series) && xLabel === this.xLabel;
    this.series = series;
    this.xLabel = xLabel;
    this.summary.textContent = summary;
    this.card.hidden = !series.some((one) => one.y.some(isNumber));
    if (this.card.hidden) return;
    if (isSame) {
      this.plot.setData(aligned(series, this.isLog), false);
      this.applyRange();
      this.fillLegend();
    } else {
      this.rebuild();
    }
    if (!this.table.hidden) this.fillTable();
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.card.hidden || this.series.length === 0) return;
    const { options } = this;
    const line = cssValue("--grid");
    const axis = { stroke: cssValue("--muted"), font: "12px system-ui, sans-serif", grid: { stroke: line, width: 1 },
      ticks: { stroke: line, width: 1, size: 4 } };
    const format = options.axisFormat ?? formatShort;
    this.plot = new uPlot({
      width: this.width,
      height: options.height ?? 220,
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: this.isLog ? 3 : 1, range: this.isLog ? undefined : options.range } },
      axes: [
        { ...axis, values: (_, splits) => splits.map((value) => (this.xLabel === "hours" ? formatNumber(value, 3) : formatShort(value))), space: 56, size: 28 },
        { ...axis, values: (_, splits) => splits.map((value) => (value === null ? "" : format(value))), size: axisSize, space: 36,
          incrs: options.axisSteps },
      ],
      cursor: {
        sync: { key: SYNC_KEY, scales: ["x", null], setSeries: false },
        drag: { x: true, y: false, setScale: false },
        focus: { prox: -1 },
        points: { size: 7, show: !options.stacked },
        dataIdx: (plot, index, at) => nearestValue(plot.data[index], at),
        bind: { dblclick: () => () => showRange(null) },
      },
      series: [{}, ...this.series.map((one) => ({
        stroke: one.color, width: one.width ?? 1.75, dash: one.dash, alpha: one.faint ? 0.3 : 1, fill: one.fill,
        points: one.points ? { show: true, size: 8, width: 2, fill: cssValue("--card") } : { show: one.y.length === 1 },
      }))],
      hooks: {
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          showRange([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
        }],
        setCursor: [() => this.fillLegend()],
      },
    }, aligned(this.series, this.isLog), this.canvas);
    this.applyRange();
    this.fillLegend();
  }

  applyRange() {
    if (this.plot === null) return;
    const xs = this.plot.data[0];
    if (xs.length === 0) return;
    const [min, max] = charts.range ?? [xs[0], xs[xs.length - 1]];
    this.plot.setScale("x", { min, max: max > min ? max : min + 1 });
  }

  resize() {
    if (this.plot && this.plot.width !== this.width) this.plot.setSize({ width: this.width, height: this.plot.height });
  }

  // The values at the reading position, or the newest ones.
  fillLegend() {
    const at = this.plot?.cursor.idx ?? null;
    const format = this.options.format ?? formatNumber;
    const items = this.series.flatMap((one, i) => {
      if (one.inLegend === false) return [];
      const values = this.plot?.data[i + 1] ?? [];
      const index = at === null ? lastValue(values) : this.plot.cursor.idxs?.[i + 1] ?? nearestValue(values, at);
      const value = index === null || index === undefined ? null : (one.values?.[index] ?? values[index]);
      return [el("li", {}, swatch(one), el("span", {}, one.label), el("output", {}, format(value)))];
    });
    const x = at === null ? "" : `${this.xLabel} ${formatNumber(this.plot.data[0][at], 6)}`;
    this.legend.replaceChildren(...items, el("li", { class: "at" }, x));
  }

  fillTable() {
    const shown = this.series.filter((one) => one.inLegend !== false);
    const format = this.options.format ?? formatNumber;
    const [min, max] = charts.range ?? [-Infinity, Infinity];
    // Rows at positions that are spread evenly over what is visible.
    const xs = [...new Set(shown.flatMap((one) => one.x))].filter((x) => x >= min && x <= max).sort((a, b) => a - b);
    const count = Math.min(xs.length, MAX_TABLE_ROWS);
    const picked = Array.from({ length: count }, (_, i) => xs[Math.round((i * (xs.length - 1)) / Math.max(count - 1, 1))]);
    this.table.replaceChildren(tableOf(`${this.options.title}, ${count} of ${xs.length} positions`,
      [this.xLabel, ...shown.map((one) => one.label)],
      picked.map((x, i) => [formatNumber(x, 7), ...shown.map((one) => {
        // The newest value since the row before: none after the end of a run, or between evaluations.
        const row = lastAtMost(one.x, x);
        return row >= 0 && (i === 0 || one.x[row] > picked[i - 1]) ? format((one.values ?? one.y)[row]) : "";
      })]), [0, ...shown.map((_, i) => i + 1)]));
  }

  onKey(event) {
    if (this.plot === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const { plot } = this;
    const { min, max } = plot.scales.x;
    const xs = plot.data[0];
    const at = plot.cursor.idx ?? lastAtMost(xs, max);
    const centre = plot.cursor.idx === null || plot.cursor.idx === undefined ? (min + max) / 2 : xs[plot.cursor.idx];
    const page = Math.max(1, Math.round((lastAtMost(xs, max) - lastAtMost(xs, min)) / 20));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -page, PageDown: page };
    if (event.key in moves) this.readAt(Math.min(Math.max(at + moves[event.key], 0), xs.length - 1));
    else if (event.key === "Home") this.readAt(firstFrom(xs, min));
    else if (event.key === "End") this.readAt(Math.max(lastAtMost(xs, max), 0));
    else if (event.key === "+" || event.key === "=") this.zoomAround(centre, 0.5);
    else if (event.key === "-") this.zoomAround(centre, 2);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Moves the reading position of all charts, and says the values.
  readAt(index) {
    const { plot } = this;
    const x = plot.data[0][index];
    const { min, max } = plot.scales.x;
    if (x < min || x > max) showRange([x - (max - min) / 2, x + (max - min) / 2]);
    plot.setCursor({ left: Math.max(plot.valToPos(x, "x"), 0), top: plot.bbox.height / devicePixelRatio / 2 }, true, true);
    document.getElementById("announcer").textContent = [...this.legend.children].map((item) => item.textContent).join(", ");
  }

  zoomAround(centre, factor) {
    const xs = this.plot.data[0];
    const { min, max } = this.plot.scales.x;
    const from = Math.max(centre - (centre - min) * factor, xs[0]);
    const to = Math.min(centre + (max - centre) * factor, xs[xs.length - 1]);
    showRange(to - from >= xs[xs.length - 1] - xs[0] ? null : [from, to]);
  }
}

export function swatch(one) {
  const mark = el("span", { class: `swatch ${one.points ? "dot" : ""}`, "aria-hidden": "true" });
  mark.style.setProperty("--swatch", one.swatch ?? one.color);
  return mark;
}

// Index of the value nearest to `at` that is there; null if there is none.
function nearestValue(values, at) {
  for (let distance = 0; distance < values.length; ++distance) {
    if (isNumber(values[at - distance])) return at - distance;
    if (isNumber(values[at + distance])) return at + distance;
  }
  return null;
}

// Pixels for the labels of a vertical axis.
const axisSize = (_, labels) => 18 + 7 * Math.max(4, ...(labels ?? []).map((label) => label.length));

function lastValue(values) {
  for (let i = values.length - 1; i >= 0; --i) if (isNumber(values[i])) return i;
  return null;
}
