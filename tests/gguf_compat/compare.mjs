// Compares llama.cpp, running the GGUF files in a folder, with Tessera, running the model that they come from: the ids of
// texts, the logits after them, and the likeliest tokens that follow. Uses the package's binding to llama.cpp directly.
// Usage: node compare.mjs RUN_TEXTS FOLDER TOKENIZER_FOLDER
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

import { getBinsDir } from "@node-llama-cpp/linux-x64";

const NUM_NEW_TOKENS = 12;
// Norm of the logits' differences over the norm of the logits. llama.cpp multiplies F16 and BF16 matrices with activations
// rounded to these types, and Q8_0 ones with activations rounded to 8 bits.
const TOLERANCE = { f32: 1e-4, bf16: 0.05, f16: 0.01, q8_0: 0.4 };
// The same with experts, where rounded activations may choose another one whose probability is nearly equal.
const TOLERANCE_WITH_EXPERTS = { f32: 1e-4, bf16: 0.4, f16: 0.4, q8_0: 0.6 };
// How much is run: the binding sorts all logits at each step. Of the other texts only the ids are compared.
const isLarge = (logits) => logits.length > 10000;
const numTextsRun = (logits) => (isLarge(logits) ? 3 : 16);

const [runTexts, folder, tokenizerFolder] = process.argv.slice(2);

function texts() {
  const list = ["Hello world", " leading space", "The quick brown fox jumps over 13 lazy dogs.", "a\n\nb\t c  d",
    "naïve Größe 漢字 🙂", "We'LL see: I'D say they'Re x_y-z (\"quoted\")!!"];
  const { added_tokens } = JSON.parse(fs.readFileSync(path.join(tokenizerFolder, "tokenizer.json"), "utf8"));
  for (const { content } of added_tokens.slice(0, 3)) list.push(`before${content}after`);
  const vectors = path.join(tokenizerFolder, "vectors.json");
  if (fs.existsSync(vectors)) list.push(...JSON.parse(fs.readFileSync(vectors, "utf8")).map(({ text }) => text));
  return list.filter((text) => text !== "");
}

function runTessera(list) {
  const run = spawnSync(runTexts, [path.join(folder, "model"), String(NUM_NEW_TOKENS)], {
    input: list.map((text) => JSON.stringify(text) + "\n").join(""),
    encoding: "utf8",
    maxBuffer: 1 << 30,
  });
  if (run.status !== 0) throw new Error(`${runTexts} failed: ${run.stderr ?? run.error}`);
  return run.stdout.trim().split("\n").map((line) => JSON.parse(line));
}

async function loadLlama() {
  const bins = path.join(getBinsDir().binsDir, "linux-x64");
  const llama = createRequire(import.meta.url)(path.join(bins, "llama-addon.node"));
  llama.markLoaded();
  llama.setLogger((level, message) => { if (level <= 2) process.stderr.write(message); });
  llama.setLoggerLogLevel(2);
  llama.loadBackends(bins);
  await llama.init();
  return llama;
}

class Model {
  static async open(llama, file) {
    const self = new Model();
    self.model = new llama.AddonModel(file, { addonExports: llama, useMmap: true });
    if (!(await self.model.init())) throw new Error(`llama.cpp cannot load ${file}`);
    self.context = new llama.AddonContext(self.model,
      { contextSize: 512, batchSize: 512, sequences: 1, threads: 1, flashAttention: false, kvCacheKeyType: 0, kvCacheValueType: 0 });
    if (!(await self.context.init())) throw new Error(`llama.cpp cannot run ${file}`);
    self.sampler = new llama.AddonSampler(self.model);
    self.sampler.applyConfig({ temperature: 0 });
    return self;
  }

  encode(text) {
    const ids = [...this.model.tokenize(text, true)];
    return this.model.shouldPrependBosToken() ? [this.model.tokenBos(), ...ids] : ids;
  }

  // The logits after `ids`, which begin at `position`.
  async feed(ids, position) {
    if (position === 0) this.context.disposeSequence(0);
    this.context.initBatch(ids.length);
    const [last] = this.context.addToBatch(0, position, Uint32Array.from(ids), Uint32Array.of(ids.length - 1));
    await this.context.decodeBatch();
    const [, , , pairs] = await this.context.sampleToken(last, this.sampler, false, false, true);
    const logits = [];
    for (let i = 0; i < pairs.length; i += 2) logits[pairs[i]] = pairs[i + 1];
    return logits;
  }
}

const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
const indexOfMax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

// Follows Tessera's continuation; stops where the two likeliest tokens are closer than the tolerance, of the largest logit.
async function compareGreedy(model, expected, logits, tolerance) {
  let position = expected.ids.length;
  for (const [i, id] of expected.greedy.entries()) {
    const best = indexOfMax(logits);
    if (best !== id) return logits[best] - logits[id] > tolerance * Math.abs(logits[best]) ? `token ${i}: ${best}, not ${id}` : "";
    logits = await model.feed([id], position++);
  }
  return "";
}

let failures = 0;
function report(type, text, problem) {
  if (++failures <= 10) console.error(`${type}: ${JSON.stringify(text.slice(0, 80))}: ${problem}`);
}

const list = texts();
const config = JSON.parse(fs.readFileSync(path.join(folder, "model", "config.json"), "utf8"));
const tolerances = config.num_local_experts ? TOLERANCE_WITH_EXPERTS : TOLERANCE;
const expected = runTessera(list);
const llama = await loadLlama();
for (const [type, tolerance] of Object.entries(tolerances)) {
  const model = await Model.open(llama, path.join(folder, `${type}.gguf`));
  let worst = 0;
  for (const [i, text] of list.entries()) {
    const ids = model.encode(text);
    if (String(ids) !== String(expected[i].ids)) {
      report(type, text, `ids ${ids}, expected ${expected[i].ids}`);
      continue;
    }
    if (!expected[i].logits || i >= numTextsRun(expected[i].logits)) continue;
    const logits = await model.feed(ids, 0);
    const difference = norm(logits.map((value, id) => value - expected[i].logits[id])) / norm(expected[i].logits);
    worst = Math.max(worst, difference);
    if (!(difference <= tolerance) || logits.length !== expected[i].logits.length)
      report(type, text, `${logits.length} logits differ by ${difference.toExponential(2)}`);
    if (isLarge(logits)) continue;
    const problem = await compareGreedy(model, expected[i], logits, tolerance);
    if (problem) report(type, text, problem);
  }
  console.log(`${type}: ${list.length} texts, logits within ${worst.toExponential(2)}`);
}
process.exit(failures === 0 ? 0 : 1);
