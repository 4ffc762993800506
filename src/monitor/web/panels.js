// The parts of the page that are no charts. Each fills its element with what the run tells now.
import { cssValue, swatch } from "./charts.js";
import { el, formatBytes, formatCount, formatDuration, formatNumber, formatPercent, formatTime, isNumber, median, tableOf } from "./dom.js";
import { memoryByKind } from "./runs.js";

const STATES = {
  running: "running",
  finished: "finished",
  stopped: "stopped by a signal",
  stalled: "no news",
  unfinished: "not finished",
};

export class Header {
  constructor(root) {
    this.name = el("h1", { id: "run-name" });
    this.state = el("span", { id: "run-state", class: "state" });
    this.where = el("p", { id: "run-facts", class: "facts" });
    this.progress = el("progress", { id: "run-progress", max: 1, value: 0, "aria-label": "progress of the run" });
    this.values = el("dl", { id: "run-values", class: "values" });
    root.replaceChildren(el("div", { class: "title-row" }, this.name, this.state), this.where, this.progress, this.values);
  }

  show(run, now, isLive) {
    const state = run.state(now, isLive);
    this.name.textContent = run.title;
    this.state.textContent = STATES[state];
    this.state.dataset.state = state;
    document.title = `${run.title} · ${STATES[state]} · Tessera`;
    const { start } = run;
    const ranks = start.world_size > 1 ? `${start.world_size} ranks on ${start.num_nodes ?? 1} ${start.num_nodes > 1 ? "nodes" : "node"}` : null;
    this.where.textContent = [
      start.num_parameters ? `${formatCount(start.num_parameters)} parameters` : null,
      ranks, start.host,
      start.time ? `started ${formatTime(start.time)}` : null,
      run.records.num_starts > 1 ? `start ${run.records.num_starts}` : null,
      start.version ? `tessera ${start.version}` : null,
    ].filter(Boolean).join(" · ");
    this.progress.value = run.maxSteps > 0 ? Math.min(run.lastStep / run.maxSteps, 1) : 0;

    const evaluation = run.lastEvaluation;
    const values = [
      ["step", `${formatCount(run.lastStep)} of ${formatCount(run.maxSteps)}`, "step"],
      ["epoch", formatNumber(run.last("epoch"), 3), "epoch"],
      ["loss", formatNumber(run.last("loss")), "loss"],
      ["evaluation loss", evaluation ? formatNumber(evaluation[run.evaluationLoss]) : null, "eval_loss"],
      ["tokens/s", formatCount(run.recent("tokens_per_second")), "tokens_per_second"],
      ["MFU", isNumber(run.recent("mfu")) ? formatPercent(run.recent("mfu")) : null, "mfu"],
      ["elapsed", formatDuration(run.elapsedSeconds(now)), "elapsed"],
      [state === "running" ? "time left" : null, formatDuration(run.etaSeconds()), "eta"],
    ].filter(([name, value]) => name !== null && value !== null);
    this.values.replaceChildren(...values.map(([name, value, id]) =>
      el("div", {}, el("dt", {}, name), el("dd", { "data-value": id }, value))));
  }
}

function panel(id, title, ...children) {
  return el("section", { class: "card", id, "aria-labelledby": `${id}-title` }, el("h3", { id: `${id}-title` }, title), ...children);
}

export function memoryPanel(run) {
  const kinds = memoryByKind(run.records);
  if (kinds === null) return null;
  const limit = run.start.free_bytes;
  const measured = run.records.memory?.measured?.node_bytes;
  const planned = kinds.reduce((sum, [, bytes]) => sum + bytes, 0);
  const whole = Math.max(limit ?? 0, planned, measured ?? 0);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const rows = kinds.map(([kind, bytes], i) => {
    const color = `var(--part-${i % 7})`;
    const part = el("span", { title: `${kind}: ${formatBytes(bytes)}` });
    part.style.width = `${(100 * bytes) / whole}%`;
    part.style.background = color;
    bar.append(part);
    return [el("span", {}, swatch({ color }), kind), formatBytes(bytes), formatPercent(bytes / planned)];
  });
  const ofSteps = kinds.reduce((sum, [kind, bytes]) => sum + (kind === "while saving" ? 0 : bytes), 0);
  rows.push(["all, planned", formatBytes(planned), formatPercent(1)]);
  rows.push(["planned for steps", formatBytes(ofSteps), formatPercent(ofSteps / planned)]);
  if (isNumber(measured)) rows.push(["measured after the first step", formatBytes(measured), formatPercent(measured / planned)]);
  if (isNumber(limit)) rows.push(["limit: free when the run started", formatBytes(limit), ""]);
  const text = `Planned ${formatBytes(planned)} for each node` +
    (isNumber(limit) ? `, ${formatPercent(planned / limit)} of the ${formatBytes(limit)} that were free` : "");
  return panel("memory", "Memory of a node", el("p", { class: "summary" }, text), bar,
    tableOf("Memory of a node by kind", ["kind", "bytes", "share"], rows, [1, 2]));
}

const MAX_RANKS = 48;

// A row per rank, slowest first: how much longer than the median rank it computed, over the run and now.
export function ranksPanel(run) {
  const { ranks } = run.records;
  if (!ranks || ranks.last_s.length < 2) return null;
  const perNode = Math.max(Math.round(ranks.last_s.length / (run.start.num_nodes || 1)), 1);
  const medians = ranks.compute_s.map(median);
  const lags = ranks.last_s.map((last, rank) => {
    const spans = ranks.compute_s.map((span, i) => span[rank] / medians[i] - 1);
    return { rank, last, spans, mean: spans.reduce((a, b) => a + b, 0) / spans.length };
  });
  const slowest = lags.reduce((worst, one) => (one.mean > worst.mean ? one : worst));
  const shown = [...lags].sort((a, b) => b.mean - a.mean).slice(0, MAX_RANKS);
  if (lags.length <= MAX_RANKS) shown.sort((a, b) => a.rank - b.rank);
  const heat = (spans) => {
    const strip = el("span", { class: "heat", "aria-hidden": "true" });
    strip.append(...spans.map((lag, i) => {
      const cell = el("span", { title: `from step ${ranks.first_step[i]}: ${formatPercent(lag)}` });
      cell.style.setProperty("--heat", `${Math.min(Math.max(lag * 4, 0), 1) * 100}%`);
      return cell;
    }));
    return strip;
  };
  const lastMedian = median(ranks.last_s);
  const text = `Rank ${slowest.rank} computes longest, ${formatPercent(Math.max(slowest.mean, 0))} more than the median rank` +
    (lags.length > MAX_RANKS ? `; shown are the ${MAX_RANKS} slowest of ${lags.length}` : "");
  return panel("ranks", "Ranks", el("p", { class: "summary" }, text),
    tableOf("Ranks and how far each lags behind the median", ["rank", "node", "last step", "lag now", "mean lag", "over the run"],
      shown.map((one) => [String(one.rank), String(Math.floor(one.rank / perNode)), formatDuration(one.last),
        formatPercent(one.last / lastMedian - 1), formatPercent(one.mean), heat(one.spans)]), [0, 1, 2, 3, 4]));
}

export function checkpointsPanel(run) {
  const { checkpoints } = run.records;
  if (checkpoints.length === 0) return null;
  const last = checkpoints[checkpoints.length - 1];
  const stall = checkpoints.reduce((sum, one) => sum + (one.stall_s ?? 0), 0);
  const text = `The last is of step ${formatCount(last.step)}. All of them held up training for ${formatDuration(stall)}`;
  const rows = checkpoints.slice(-100).reverse().map((one) => [formatCount(one.step), formatBytes(one.bytes), formatDuration(one.write_s),
    formatDuration(one.stall_s), formatBytes(one.bytes / one.write_s) + "/s", one.time ? formatTime(one.time) : "–"]);
  return panel("checkpoints", "Checkpoints", el("p", { class: "summary" }, text),
    tableOf("Checkpoints", ["step", "size", "written in", "training stalled", "speed", "at"], rows, [0, 1, 2, 3, 4]));
}

export function evaluationsPanel(run) {
  const { evaluations } = run.records;
  if (evaluations.length === 0) return null;
  const best = run.bestEvaluation;
  const loss = run.evaluationLoss;
  const set = loss === "eval_loss" ? "" : ` of ${loss.slice("eval_".length, -"_loss".length)}`;
  const perplexity = best?.[loss.replace(/loss$/, "perplexity")] ?? Math.exp(best?.[loss]);
  const text = best ? `Best${set}: ${formatNumber(best[loss])} at step ${formatCount(best.step)}, perplexity ${formatNumber(perplexity)}` : "";
  const known = ["eval_loss", "eval_loss_per_token", "eval_perplexity", "eval_runtime", "eval_samples_per_second"];
  const names = [...new Set(evaluations.flatMap((one) => Object.keys(one)))]
    .filter((name) => name.startsWith("eval_") && evaluations.some((one) => isNumber(one[name])));
  names.sort((a, b) => (known.indexOf(a) + 1 || 9) - (known.indexOf(b) + 1 || 9));
  const rows = evaluations.slice(-100).reverse().map((one) => Object.assign(
    [formatCount(one.step), ...names.map((name) => formatNumber(one[name]))], { className: one === best ? "best" : null }));
  return panel("evaluations", "Evaluations", el("p", { class: "summary" }, text),
    tableOf("Evaluations", ["step", ...names.map((name) => name.replace("eval_", "").replaceAll("_", " "))], rows,
      [0, ...names.map((_, i) => i + 1)]));
}

export function messagesPanel(run) {
  const { messages } = run.records;
  const list = messages.length === 0
    ? el("p", { class: "summary" }, "No warnings and no errors.")
    : tableOf("Warnings and errors", ["step", "kind", "message"], messages.slice(-200).reverse().map((one) => Object.assign(
      [isNumber(one.step) ? formatCount(one.step) : "–", one.level, String(one.message ?? "")], { className: one.level })), [0]);
  const element = panel("messages", "Warnings and errors", list);
  element.classList.add("wide");
  return element;
}

const settingText = (value) => (typeof value === "string" ? value : value === undefined ? "–" : JSON.stringify(value));

// The settings of all compared runs, with search; those that differ can be shown alone.
export class SettingsPanel {
  constructor() {
    this.search = el("input", { type: "search", id: "settings-search", placeholder: "Search settings", "aria-label": "Search settings",
      oninput: () => this.fill() });
    this.onlyDifferent = el("input", { type: "checkbox", id: "settings-different", onchange: () => this.fill() });
    this.differentLabel = el("label", { class: "check" }, this.onlyDifferent, "only what differs");
    this.count = el("p", { class: "summary", role: "status" });
    this.body = el("div");
    this.element = panel("settings", "Configuration", this.count, el("div", { class: "row" }, this.search, this.differentLabel), this.body);
    this.element.classList.add("wide");
  }

  show(runs) {
    this.runs = runs.filter((run) => run.start.arguments);
    this.element.hidden = this.runs.length === 0;
    this.differentLabel.hidden = this.runs.length < 2;
    this.fill();
  }

  fill() {
    if (this.element.hidden) return;
    const wanted = this.search.value.trim().toLowerCase();
    const names = [...new Set(this.runs.flatMap((run) => Object.keys(run.start.arguments)))].sort();
    let numDifferent = 0;
    const [same, different] = [[], []];
    for (const name of names) {
      const texts = this.runs.map((run) => settingText(run.start.arguments[name]));
      const differs = texts.some((text) => text !== texts[0]);
      numDifferent += differs;
      if (!`${name} ${texts.join(" ")}`.toLowerCase().includes(wanted)) continue;
      if (this.runs.length > 1 && this.onlyDifferent.checked && !differs) continue;
      (differs ? different : same).push(Object.assign([name, ...texts], { className: differs ? "different" : null }));
    }
    const rows = [...different, ...same];
    this.count.textContent = `${rows.length} of ${names.length} settings` +
      (this.runs.length > 1 ? `; ${numDifferent} differ between the runs; they are marked and come first` : "");
    this.body.replaceChildren(tableOf("Configuration", ["setting", ...this.runs.map((run) => run.name)], rows));
  }
}

export const runColor = (index) => cssValue(`--run-${index % 8}`);
export const runDash = (index) => (index < 8 ? undefined : [7, 4]);
