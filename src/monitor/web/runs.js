// A run as the page holds it, and what follows from its records. JSON as of RunRecords and StepTable in
// src/monitor/records.
import { isNumber, median } from "./dom.js";

// TensorBoard's smoothing: an exponential moving average, divided by the sum of its weights so that the first
// values are not drawn towards zero. Thinned steps are unevenly far apart: a value's weight decays with the
// distance in steps, relative to the mean one.
export function smooth(steps, values, weight) {
  if (weight === 0 || steps.length < 2) return values;
  const meanGap = (steps[steps.length - 1] - steps[0]) / (steps.length - 1) || 1;
  let sum = 0;
  let sumOfWeights = 0;
  let last = steps[0];
  return values.map((value, i) => {
    if (!isNumber(value)) return null;
    const keep = Math.pow(weight, Math.max(steps[i] - last, 0) / meanGap);
    last = steps[i];
    if (sumOfWeights === 0) [sum, sumOfWeights] = [value, 1];
    else [sum, sumOfWeights] = [sum * keep + value * (1 - keep), sumOfWeights * keep + (1 - keep)];
    return sum / sumOfWeights;
  });
}

// Index of the last entry that is at most `value`, -1 if there is none. `sorted` ascends.
export function lastAtMost(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Index of the first entry that is at least `value`; the last one if there is none.
export function firstFrom(sorted, value) {
  const before = lastAtMost(sorted, value);
  return sorted[before] === value ? before : Math.min(before + 1, sorted.length - 1);
}

export const TIME_PARTS = [
  ["time_products_s", "matrix products"],
  ["time_attention_s", "attention"],
  ["time_elementwise_s", "element-wise"],
  ["time_optimizer_s", "optimizer"],
  ["time_rows_s", "choosing rows"],
  ["time_wait_s", "waiting for ranks and network"],
  ["time_other_s", "other"],
  ["time_disk_s", "waiting for the disk"],
];

// As many of the newest steps as a live page keeps before it asks for thinned ones again.
export const MAX_LIVE_STEPS = 24000;

export class Run {
  constructor(json) {
    this.replace(json);
  }

  // Takes over records read afresh.
  replace(json) {
    this.records = json;
    this.name = json.name;
    this.all = json.steps;  // thinned, of the whole run
    this.zoomed = null;     // more of a range, while the page is zoomed in
  }

  // What the user calls it.
  get title() {
    return this.start.arguments?.run_name || this.name;
  }
  get steps() {
    return this.zoomed ?? this.all;
  }
  get start() {
    return this.records.start ?? {};
  }
  get finish() {
    return this.records.finish;
  }
  get isThinned() {
    return this.all.num_steps > this.all.step.length;
  }

  column(name) {
    return this.steps.columns[name] ?? null;
  }
  has(name) {
    return this.all.columns[name]?.some(isNumber) ?? false;
  }

  // Positions of the steps on the x axis: "step", "total_tokens" or "elapsed_s".
  xs(axis) {
    return axis === "step" ? this.steps.step : this.column(axis) ?? this.steps.step;
  }
  // That of one step, which need not be among those kept.
  xOf(step, axis) {
    if (axis === "step") return step;
    const row = Math.max(lastAtMost(this.all.step, step), 0);
    return this.all.columns[axis]?.[row] ?? null;
  }

  // The newest value of a column, over all steps.
  last(name) {
    const values = this.all.columns[name] ?? [];
    for (let i = values.length - 1; i >= 0; --i) if (isNumber(values[i])) return values[i];
    return NaN;
  }
  recent(name, count = 50) {
    return median((this.all.columns[name] ?? []).slice(-count));
  }

  get lastStep() {
    return this.all.step.length > 0 ? this.all.step[this.all.step.length - 1] : 0;
  }
  get maxSteps() {
    return this.start.max_steps || this.lastStep;
  }
  // The losses of its evaluation sets: eval_loss, or eval_NAME_loss of each.
  get evaluationLosses() {
    return [...new Set(this.records.evaluations.flatMap((one) => Object.keys(one)))]
      .filter((name) => name.startsWith("eval_") && name.endsWith("_loss"));
  }
  // Of several sets, the one by which models are compared, or the first.
  get evaluationLoss() {
    const names = this.evaluationLosses;
    const watched = this.start.arguments?.metric_for_best_model;
    return names.includes(watched) ? watched : names[0] ?? "eval_loss";
  }
  get lastEvaluation() {
    const name = this.evaluationLoss;
    return this.records.evaluations.filter((one) => isNumber(one[name])).pop() ?? null;
  }
  get bestEvaluation() {
    const name = this.evaluationLoss;
    return this.records.evaluations.reduce((best, evaluation) =>
      isNumber(evaluation[name]) && !(best?.[name] <= evaluation[name]) ? evaluation : best, null);
  }

  // "running", "finished", "stopped" by a signal, or without news: "stalled" while it is watched, otherwise
  // "unfinished".
  state(now, isLive) {
    if (this.finish) return this.finish.stop_signal ? "stopped" : "finished";
    const silence = now - (this.records.updated || 0);
    if (silence < Math.max(60, 10 * (this.recent("step_time_s") || 0))) return "running";
    return isLive ? "stalled" : "unfinished";
  }

  etaSeconds() {
    if (this.finish) return NaN;
    const told = this.last("eta_s");
    return isNumber(told) ? told : this.recent("step_time_s") * Math.max(this.maxSteps - this.lastStep, 0);
  }
  elapsedSeconds(now) {
    if (isNumber(this.finish?.runtime_s)) return this.finish.runtime_s;
    return this.start.time ? Math.max((this.records.updated || now) - this.start.time, 0) : this.last("elapsed_s");
  }

  // A line of metrics.jsonl of a run that is being watched.
  addStep(line) {
    const { step, columns } = this.all;
    while (step.length > 0 && step[step.length - 1] >= line.step) {
      step.pop();
      for (const values of Object.values(columns)) values.pop();
    }
    const derived = {
      elapsed_s: (this.last("elapsed_s") || 0) + (line.step_time_s || 0),
      total_tokens: (this.last("total_tokens") || 0) + (line.num_tokens || 0),
    };
    for (const [name, value] of Object.entries({ ...line, ...derived })) {
      if (name === "step" || (typeof value !== "number" && typeof value !== "boolean" && value !== null)) continue;
      columns[name] ??= new Array(step.length).fill(null);
    }
    for (const [name, values] of Object.entries(columns)) {
      const value = name in derived ? derived[name] : line[name];
      values.push(value === undefined || value === null ? null : Number(value));
    }
    step.push(line.step);
    ++this.all.num_steps;
    if (line.rank_compute_s) {
      this.records.ranks ??= { first_step: [line.step], compute_s: [line.rank_compute_s] };
      this.records.ranks.last_s = line.rank_compute_s;
    }
  }

  // A line of events.jsonl.
  addEvent(event) {
    const { records } = this;
    if (event.event === "evaluation") records.evaluations.push(event);
    else if (event.event === "checkpoint") records.checkpoints.push(event);
    else if (event.event === "memory") records.memory = event;
    else if (event.event === "finish") records.finish = event;
    else if (event.event === "warning") records.messages.push({ ...event, level: "warning" });
    else if (event.event === "checkpoint_failed" || event.event === "error") records.messages.push({ ...event, level: "error" });
  }
}

// Shares of the time of a step by part, as means over at most `max` spans of steps: {x, parts: [[share]]}.
export function timeShares(run, axis, max = 100) {
  const xs = run.xs(axis);
  const parts = TIME_PARTS.map(([name]) => run.column(name));
  const spans = Math.min(max, xs.length);
  const shares = { x: [], parts: TIME_PARTS.map(() => []) };
  for (let span = 0; span < spans; ++span) {
    const from = Math.floor((xs.length * span) / spans);
    const to = Math.floor((xs.length * (span + 1)) / spans);
    const sums = parts.map((values) => {
      let sum = 0;
      for (let i = from; i < to; ++i) sum += values?.[i] ?? 0;
      return sum;
    });
    const total = sums.reduce((a, b) => a + b, 0);
    if (!(total > 0)) continue;
    shares.x.push(xs[to - 1]);
    sums.forEach((sum, part) => shares.parts[part].push(sum / total));
  }
  return shares;
}

// Bytes of a node by kind while a step runs, and what only saving adds; null without a memory plan.
export function memoryByKind(records) {
  const items = records.memory?.predicted?.items ?? records.start?.memory;
  if (!Array.isArray(items)) return null;
  const ranks = records.memory?.local_world_size ?? (records.start.world_size ?? 1) / (records.start.num_nodes ?? 1);
  const kinds = new Map();
  for (const item of items) {
    const bytes = item.bytes * (item.scope === "rank" ? ranks : 1);
    const name = item.use === "saving" ? "while saving" : item.kind;
    kinds.set(name, (kinds.get(name) ?? 0) + bytes);
  }
  return [...kinds];
}
