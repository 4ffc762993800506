// Writes run folders for tests of the page: what a run with these steps would have left.
import fs from "node:fs";
import path from "node:path";

// Steps 1 to numSteps with a falling loss and a spike of 50 at `spike`; `message` is the text of a warning.
export function writeRun(folder, { numSteps, spike = 0, message = "", learningRate = 1e-4, ranks = 1, isFinished = true, more = {} }) {
  fs.mkdirSync(folder, { recursive: true });
  const events = [
    { event: "start", time: 1.7e9, step: 0, host: "node-0", num_nodes: Math.max(ranks / 4, 1), world_size: ranks, max_steps: numSteps,
      num_parameters: 8030261248, free_bytes: 256e9, memory: [
        { kind: "weights", name: "complete", scope: "node", use: "step", bytes: 16e9 },
        { kind: "gradients", name: "accumulators", scope: "node", use: "step", bytes: 32e9 },
        { kind: "optimizer", name: "exp_avg, exp_avg_sq", scope: "node", use: "step", bytes: 64e9 },
        { kind: "activations", name: "kept for backward", scope: "node", use: "step", bytes: 12e9 },
        { kind: "buffers", name: "checkpoint snapshot", scope: "node", use: "saving", bytes: 8e9 }],
      arguments: { learning_rate: learningRate, output_dir: folder, seed: 42, packing: true, max_length: 4096, warmup_ratio: 0.05, ...more } },
  ];
  if (message) events.push({ event: "warning", time: 1.7e9, step: 1, message });
  const lines = [];
  for (let step = 1; step <= numSteps; ++step) {
    const done = step / numSteps;
    const noise = ((step * 7919) % 101) / 101 - 0.5;  // the same in every run of this script
    const seconds = 2.1 + 0.1 * noise + (step % 200 === 0 ? 1.5 : 0);
    const loss = step === spike ? 50 : 1.6 + 6 * Math.exp(-9 * done) + 0.5 * Math.exp(-2 * done) * Math.log10(1e5 * learningRate) + 0.12 * noise;
    const line = { step, epoch: 2 * done, loss, grad_norm: 1.2 + 0.4 * noise + 4 * Math.exp(-20 * done),
      learning_rate: learningRate * Math.min(1, 20 * done) * (0.5 + 0.5 * Math.cos(Math.PI * done)), num_tokens: 32768, num_target_tokens: 32760,
      tokens_per_second: 32768 / seconds, step_time_s: seconds, tflops: 84 / seconds, time_rows_s: 0.01 * seconds, time_products_s: 0.56 * seconds,
      time_attention_s: 0.13 * seconds, time_elementwise_s: 0.07 * seconds, time_wait_s: (0.14 + 0.03 * noise) * seconds,
      time_optimizer_s: 0.06 * seconds, time_other_s: (0.03 - 0.03 * noise) * seconds, mfu: 1.1 / seconds, peak_tflops: 80 };
    if (ranks > 1) {
      line.rank_compute_s = Array.from({ length: ranks }, (_, rank) => 1.6 * (1 + 0.01 * ((rank * 37 + step * 13) % 7) + (rank === 5 && done > 0.6 ? 0.12 : 0)));
      Object.assign(line, { network_sent_bytes: 32e9, network_received_bytes: 32e9 + 1e8 * (step % 3), network_time_s: 1.1, network_hidden: 0.86 });
    }
    lines.push(JSON.stringify(line));
    if (step % Math.ceil(numSteps / 8) === 0) {
      events.push({ event: "evaluation", time: 1.7e9 + 2.1 * step, step, eval_loss: 1.7 + 5 * Math.exp(-8 * done), eval_runtime: 31.2 });
      events.push({ event: "checkpoint", time: 1.7e9 + 2.1 * step, step, folder: `${folder}/checkpoint-${step}`, bytes: 96e9, write_s: 44 + noise, stall_s: 0.3 });
    }
  }
  if (isFinished) events.push({ event: "finish", time: 1.7e9 + 2.2 * numSteps, step: numSteps, stop_signal: 0, runtime_s: 2.2 * numSteps });
  fs.writeFileSync(path.join(folder, "metrics.jsonl"), lines.map((line) => `${line}\n`).join(""));
  fs.writeFileSync(path.join(folder, "events.jsonl"), events.map((event) => `${JSON.stringify(event)}\n`).join(""));
  fs.utimesSync(path.join(folder, "metrics.jsonl"), 1.7e9 + 2.2 * numSteps, 1.7e9 + 2.2 * numSteps);
  return folder;
}
