// The page: which runs, which charts, and what happens when data or settings change.
import { Chart, charts, cssValue, showRange, swatch } from "./charts.js";
import { el, formatBytes, formatCount, formatDuration, formatNumber, formatPercent, formatTime, isNumber } from "./dom.js";
import { LiveSource, StoredSource } from "./sources.js";
import {
  checkpointsPanel, evaluationsPanel, Header, memoryPanel, messagesPanel, ranksPanel, runColor, runDash, SettingsPanel,
} from "./panels.js";
import { lastAtMost, smooth, TIME_PARTS, timeShares } from "./runs.js";

const AXES = { step: "step", total_tokens: "tokens", elapsed_s: "hours" };

const page = {
  source: null,
  runs: [],        // all that are loaded
  shown: [],       // compared in the charts, in the order of this.source.names
  focus: null,     // whose details are shown
  smoothing: 0.6,
  axis: "step",
  isDirty: false,
};

// ---------------------------------------------------------------------------------------- charts

const colorIndex = (run) => page.source.names.indexOf(run.name);
const scaled = (xs) => (page.axis === "elapsed_s" ? xs.map((x) => (x === null ? null : x / 3600)) : xs);
const xLabel = () => AXES[page.axis];

// Raw and smoothed lines of one column for every run that is shown.
function curves(column, isSmoothed) {
  return page.shown.filter((run) => run.has(column)).flatMap((run) => {
    const color = runColor(colorIndex(run));
    const x = scaled(run.xs(page.axis));
    const y = run.column(column);
    if (y === null) return [];
    const raw = { label: run.name, color, x, y, dash: runDash(colorIndex(run)) };
    if (!isSmoothed || page.smoothing === 0) return [raw];
    // The legend tells the value of the step, the line its trend.
    return [{ ...raw, faint: true, width: 1, inLegend: true },
      { ...raw, y: smooth(run.steps.step, y, page.smoothing), inLegend: false, width: 2 }];
  });
}

// One sentence about a column of every run that is shown.
function describe(column, format) {
  return page.shown.filter((run) => run.has(column)).map((run) => {
    const { step } = run.steps;
    const values = run.column(column) ?? [];
    let [low, high, first, last] = [null, null, null, null];
    values.forEach((value, i) => {
      if (!isNumber(value)) return;
      if (low === null || value < values[low]) low = i;
      if (high === null || value > values[high]) high = i;
      first ??= i;
      last = i;
    });
    const name = page.shown.length > 1 ? `${run.name}: ` : "";
    if (last === null) return `${name}no values here`;
    return `${name}from ${format(values[first])} to ${format(values[last])}, lowest ${format(values[low])} at step ` +
      `${formatCount(step[low])}, highest ${format(values[high])} at step ${formatCount(step[high])}`;
  }).join("\n");
}

function columnChart(id, title, column, options = {}) {
  return new Chart({ id, title, ...options, content: () => ({
    series: curves(column, options.smoothed ?? false),
    summary: describe(column, options.format ?? formatNumber),
    xLabel: xLabel(),
  }) });
}

function lossContent() {
  const series = curves("loss", true);
  for (const run of page.shown) {
    for (const name of run.evaluationLosses) {
      const points = run.records.evaluations.filter((one) => isNumber(one[name]));
      const set = name === "eval_loss" ? "" : ` of ${name.slice("eval_".length, -"_loss".length)}`;
      series.push({ label: `${run.name}, evaluation${set}`, color: runColor(colorIndex(run)), points: true, dash: [5, 4], width: 1.25,
        x: scaled(points.map((one) => run.xOf(one.step, page.axis))), y: points.map((one) => one[name]) });
    }
  }
  return { series, summary: describe("loss", formatNumber), xLabel: xLabel() };
}

function sharesContent() {
  const run = page.focus;
  const { x, parts } = timeShares(run, page.axis);
  const sums = x.map(() => 0);
  const stacked = parts.map((shares, part) => {
    const y = shares.map((share, i) => (sums[i] += share));
    const color = cssValue(`--part-${part}`);
    return { label: TIME_PARTS[part][1], color: cssValue("--card"), fill: color, swatch: color, width: 0.5, x: scaled(x), y, values: shares };
  });
  const means = parts.map((shares) => shares.reduce((a, b) => a + b, 0) / Math.max(shares.length, 1));
  const summary = x.length === 0 ? "" : `${page.shown.length > 1 ? `${run.name}: ` : ""}` + TIME_PARTS.map(([, name], i) => [name, means[i]])
    .filter(([, mean]) => mean >= 0.005).sort((a, b) => b[1] - a[1]).map(([name, mean]) => `${name} ${formatPercent(mean, 0)}`).join(", ");
  // The sum of all parts is drawn first, so that each lower one covers what is not its own.
  return { series: stacked.reverse(), summary, xLabel: xLabel() };
}

function networkContent() {
  const run = page.focus;
  const series = [["network_sent_bytes", "sent", 0], ["network_received_bytes", "received", 1]].filter(([column]) => run.has(column))
    .map(([column, label, color]) => ({ label, color: runColor(color), x: scaled(run.xs(page.axis)), y: run.column(column) }));
  const hidden = run.recent("network_hidden");
  return { series, xLabel: xLabel(), summary: series.length === 0 ? ""
    : `${formatBytes(run.recent("network_sent_bytes"))} sent and ${formatBytes(run.recent("network_received_bytes"))} received in a step; ` +
      `transfers take ${formatDuration(run.recent("network_time_s"))}, ${formatPercent(hidden)} of it while computing` };
}

const oneOrLess = (_, low, high) => [Math.min(low, 0), Math.max(high * 1.1, 0.01)];
const fromZero = (_, low, high) => [Math.min(low, 0), high > 0 ? high * 1.08 : 1];

function makeCharts() {
  return {
    progress: [
      new Chart({ id: "loss", title: "Loss", wide: true, height: 320, log: true, content: lossContent }),
      columnChart("learning-rate", "Learning rate", "learning_rate", { range: fromZero }),
      columnChart("grad-norm", "Gradient norm before clipping", "grad_norm", { smoothed: true, log: true }),
    ],
    speed: [
      columnChart("throughput", "Tokens per second", "tokens_per_second", { smoothed: true, range: fromZero, format: formatCount }),
      columnChart("mfu", "Model FLOPs utilization", "mfu", { smoothed: true, range: oneOrLess, format: formatPercent,
        axisFormat: (value) => formatPercent(value, 0) }),
      new Chart({ id: "shares", title: "Where the time of a step goes", stacked: true, height: 240, range: () => [0, 1], format: formatPercent,
        axisFormat: (value) => formatPercent(value, 0), content: sharesContent }),
      columnChart("step-time", "Time of a step", "step_time_s", { smoothed: true, log: true, range: fromZero, format: formatDuration,
        axisFormat: formatDuration }),
      new Chart({ id: "network", title: "Network in a step", range: fromZero, format: formatBytes, axisFormat: formatBytes,
        axisSteps: Array.from({ length: 50 }, (_, i) => 2 ** i), content: networkContent }),
    ],
  };
}

// ---------------------------------------------------------------------------------------- toolbar

function makeToolbar(root) {
  const slider = el("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: page.smoothing,
    oninput: () => {
      page.smoothing = Number(slider.value);
      output.textContent = page.smoothing.toFixed(2);
      requestUpdate();
    } });
  const output = el("output", { for: "smoothing", id: "smoothing-value" }, page.smoothing.toFixed(2));
  const axis = el("select", { id: "axis", onchange: () => {
    page.axis = axis.value;
    showRange(null);
    requestUpdate();
  } }, Object.entries(AXES).map(([value, label]) => el("option", { value }, label)));
  const reset = el("button", { type: "button", id: "reset-zoom", disabled: true, onclick: () => showRange(null) }, "Reset zoom");
  const theme = el("button", { type: "button", id: "theme", onclick: toggleTheme }, "Dark theme");
  const help = el("button", { type: "button", id: "help", "aria-haspopup": "dialog", onclick: () => dialog.showModal() }, "Keys");
  const dialog = keysDialog();
  page.runList = el("fieldset", { class: "runs", id: "runs" });
  root.replaceChildren(page.runList,
    el("div", { class: "row" },
      el("label", { class: "field" }, "Smoothing", slider, output),
      el("label", { class: "field" }, "Horizontal axis", axis), reset, theme, help), dialog);
  page.resetButton = reset;
}

const KEYS = [
  ["0", "reset the zoom of all charts"],
  ["L", "logarithmic axes on or off"],
  ["T", "tables of values instead of reading the curves"],
  ["D", "light or dark"],
  ["S", "to the smoothing slider"],
  ["/", "search the configuration"],
  ["?", "this list"],
  ["← → Home End", "in a chart: read the values at one step after the other"],
  ["+ −", "in a chart: zoom in or out around that step"],
];

function keysDialog() {
  const close = el("button", { type: "button", onclick: () => box.close() }, "Close");
  const box = el("dialog", { "aria-labelledby": "keys-title" }, el("h2", { id: "keys-title" }, "Keys"),
    el("p", {}, "Drag across a chart to zoom in; double-click resets."),
    el("dl", { class: "keys" }, KEYS.map(([key, what]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)))), close);
  return box;
}

function fillRunList() {
  const list = page.source.names.map((name) => {
    const box = el("input", { type: "checkbox", value: name, onchange: () => chooseRun(name, box.checked) });
    box.checked = page.shown.some((run) => run.name === name);
    const color = runColor(page.source.names.indexOf(name));
    const focus = el("button", { type: "button", class: "quiet focus", "aria-pressed": String(page.focus?.name === name),
      "aria-label": `show the details of ${name}`, onclick: () => focusRun(name) }, "details");
    return el("span", { class: "run" }, el("label", { class: "check" }, box, swatch({ color }), el("span", {}, name)), focus);
  });
  page.runList.hidden = page.source.names.length < 2;
  page.runList.replaceChildren(el("legend", {}, "Runs"), ...list);
}

async function loaded(name) {
  let run = page.runs.find((one) => one.name === name);
  if (!run) {
    run = await page.source.load(name);
    page.runs.push(run);
  }
  return run;
}

async function chooseRun(name, isShown) {
  try {
    const run = await loaded(name);
    page.shown = page.source.names.map((one) => page.runs.find((other) => other.name === one))
      .filter((one) => one && (one === run ? isShown : page.shown.includes(one)));
    if (page.shown.length === 0) page.shown = [run];
    if (!page.shown.includes(page.focus)) page.focus = page.shown[0];
  } catch (error) {
    say(error.message);
  }
  fillRunList();
  requestUpdate();
}

async function focusRun(name) {
  await chooseRun(name, true);
  page.focus = page.runs.find((run) => run.name === name) ?? page.focus;
  fillRunList();
  requestUpdate();
}

const say = (text) => {
  const announcer = document.getElementById("announcer");
  announcer.textContent = text;
  announcer.classList.toggle("alert", text !== "");
};

// ---------------------------------------------------------------------------------------- theme and keys

const store = {
  get(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;  // a file opened in some browsers has no storage
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {
      // The choice holds until the page is closed.
    }
  },
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light theme" : "Dark theme";
  for (const chart of charts.all) chart.rebuild();
  requestUpdate();
}

function toggleTheme() {
  const isDark = document.documentElement.dataset.theme === "dark";
  store.set("tessera-theme", isDark ? "light" : "dark");
  setTheme(isDark ? "light" : "dark");
}

function onKey(event) {
  const isTyping = event.target.matches("input:not([type=range],[type=checkbox]), select, textarea") || document.querySelector("dialog[open]");
  if (isTyping || event.altKey || event.ctrlKey || event.metaKey) return;
  const toggleAll = (isOn, set) => charts.all.forEach((chart) => set(chart, !isOn));
  const actions = {
    0: () => showRange(null),
    l: () => toggleAll(charts.all.some((chart) => chart.isLog), (chart, isOn) => chart.options.log && chart.setLog(isOn)),
    t: () => toggleAll(charts.all.some((chart) => !chart.table.hidden), (chart, isOn) => chart.showTable(isOn)),
    d: toggleTheme,
    s: () => document.getElementById("smoothing").focus(),
    "/": () => document.getElementById("settings-search").focus(),
    "?": () => document.querySelector("dialog").showModal(),
  };
  const action = actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action();
}

// ---------------------------------------------------------------------------------------- drawing

function requestUpdate() {
  if (page.isDirty) return;
  page.isDirty = true;
  requestAnimationFrame(() => {
    page.isDirty = false;
    update();
  });
}

// News of a run that is watched may come many times a second.
function requestNews() {
  page.newsTimer ??= setTimeout(() => {
    page.newsTimer = null;
    requestUpdate();
  }, 250);
}

function update() {
  page.header.show(page.focus, page.source.now(), page.source.isLive(page.focus));
  for (const chart of charts.all) chart.update();
  for (const section of page.sections) section.hidden = ![...section.querySelectorAll(".card")].some((card) => !card.hidden);
  updatePanels();
}

// Panels change with events, not with every step.
function updatePanels() {
  const key = [page.focus.name, page.shown.map((run) => run.name).join(), page.focus.version ?? 0].join("|");
  if (key === page.panelKey) return;
  page.panelKey = key;
  const of = page.shown.length > 1 ? page.focus.name : "";
  for (const note of document.querySelectorAll(".of-run")) note.textContent = of;
  const run = page.focus;
  page.machine.replaceChildren(...[memoryPanel(run), ranksPanel(run)].filter(Boolean));
  page.results.replaceChildren(...[evaluationsPanel(run), checkpointsPanel(run), messagesPanel(run)].filter(Boolean));
  page.machine.closest("section").hidden = page.machine.children.length === 0;
  page.settings.show(page.shown);
}

function makeSections(main) {
  const of = () => el("span", { class: "of-run" });
  const section = (title, grid, note = null) => el("section", { class: "group" }, el("h2", {}, title, " ", note), grid);
  const grid = (...children) => el("div", { class: "grid" }, ...children);
  const { progress, speed } = makeCharts();
  page.machine = grid();
  page.results = grid();
  page.settings = new SettingsPanel();
  const curvesOf = [section("Learning", grid(progress.map((chart) => chart.card))), section("Speed", grid(speed.map((chart) => chart.card)))];
  page.sections = curvesOf;
  main.replaceChildren(...curvesOf, section("Machine", page.machine, of()), section("Results and messages", page.results, of()),
    section("Configuration", grid(page.settings.element)));
}

// The range of x as steps of a run.
function stepsOf(run, range) {
  if (page.axis === "step") return range;
  const unit = page.axis === "elapsed_s" ? 3600 : 1;
  const xs = run.all.columns[page.axis] ?? [];
  const step = (x) => run.all.step[Math.max(lastAtMost(xs, x * unit), 0)] ?? 0;
  return [step(range[0]), step(range[1]) + 1];
}

async function main() {
  document.documentElement.dataset.theme = store.get("tessera-theme") ??
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (store.get("tessera-theme") === null) setTheme(event.matches ? "dark" : "light");
  });
  const data = document.getElementById("data");
  page.source = data ? new StoredSource(JSON.parse(data.textContent)) : new LiveSource({ onChange: requestNews, onProblem: say });
  await page.source.open();
  page.header = new Header(document.getElementById("header"));
  page.runs = page.source.runs;
  page.shown = [...page.runs];
  page.focus = page.runs[0];
  makeToolbar(document.getElementById("toolbar"));
  makeSections(document.getElementById("main"));
  setTheme(document.documentElement.dataset.theme);
  document.getElementById("footer").textContent = page.source.note(formatTime);
  fillRunList();
  charts.onRange = (range) => {
    page.resetButton.disabled = range === null;
    for (const run of page.shown) page.source.zoom(run, range && stepsOf(run, range));
    requestUpdate();
  };
  document.addEventListener("keydown", onKey);
  update();
  page.source.watch();
}

main().catch((error) => say(error.message));
