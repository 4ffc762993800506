// Opens the page of runs in a browser: the live page of a training run, and reports. node page_test.mjs TESSERA
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { openBrowser } from "./browser.mjs";
import { writeRun } from "./run_files.mjs";

const tessera = process.argv[2];
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera page "));
const run = (...args) => execFileSync(tessera, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, condition, seconds = 60) {
  for (const end = Date.now() + 1000 * seconds; Date.now() < end; await sleep(50)) {
    const value = await condition();
    if (value) return value;
  }
  throw new Error(`not within ${seconds} s: ${what}`);
}

const { context, close } = await openBrowser();
const tests = [];
const test = (name, body) => tests.push({ name, body });
const problems = [];  // console errors, and requests to other hosts
let host = "";

async function open(url, options = {}) {
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.protocol !== "file:" && to.protocol !== "data:" && to.host !== host) problems.push(`request to ${request.url()}`);
  });
  await page.setViewportSize(options.size ?? { width: 1400, height: 900 });
  await page.emulateMedia({ colorScheme: options.colorScheme ?? "light" });
  await page.goto(url);
  await page.locator("[data-value=step]").waitFor();
  return page;
}

const report = (name, ...folders) => {
  const file = path.join(folder, `${name}.html`);
  run("report", ...folders, "--output", file);
  return `file://${file}`;
};
const openReport = (name, options, ...folders) => open(report(name, ...folders), options);
const metricsOf = (runFolder) => fs.readFileSync(path.join(runFolder, "metrics.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
const textOf = (page, selector) => page.locator(selector).first().textContent();
const numberIn = (text) => Number(text.replaceAll(",", "").match(/-?[\d.]+(e[-+]?\d+)?/)[0]);
const isClose = (shown, value) => Math.abs(shown - value) <= 6e-4 * Math.abs(value);

// Texts whose contrast with their background is below 4.5:1 (WCAG AA), as "text: ratio".
const lowContrast = (page) => page.evaluate(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (text === "" || !element.checkVisibility() || element.matches(":disabled, script, noscript, option")) continue;
    let behind = element;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(rgba(behind ? getComputedStyle(behind).backgroundColor : "white"))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
});

// ------------------------------------------------------------------------------------------------ a training run

const trained = path.join(folder, "runs", "trained");

function startTraining() {
  const words = "the model reads a weight from every small layer and token again before it writes".split(" ");
  const text = Array.from({ length: 400 }, (_, line) => Array.from({ length: 8 }, (_, i) => words[(line * 31 + i * i * 7) % words.length]).join(" ")).join("\n");
  fs.writeFileSync(path.join(folder, "text.txt"), text);
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify({ architectures: ["LlamaForCausalLM"], model_type: "llama", vocab_size: 320,
    hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, hidden_act: "silu",
    max_position_embeddings: 128, rms_norm_eps: 1e-5, rope_theta: 10000, tie_word_embeddings: true, initializer_range: 0.02 }));
  run("tokenizer", "train", "--input", path.join(folder, "text.txt"), "--vocab_size", "320", "--output", path.join(folder, "tokenizer"));
  run("init", "--config", path.join(folder, "config.json"), "--tokenizer", path.join(folder, "tokenizer"), "--output", path.join(folder, "start"));
  return spawn(tessera, ["train", "--model", path.join(folder, "start"), "--dataset", path.join(folder, "text.txt"), "--eval_dataset",
    path.join(folder, "text.txt"), "--output_dir", trained, "--packing", "--max_length", "64", "--max_steps", "100000", "--eval_strategy", "steps", "--eval_steps", "50",
    "--logging_steps", "20", "--save_strategy", "no", "--measure_peak", "false", "--num_threads", "1", "--report_to", "dashboard", "--metrics_port", "0"],
  { stdio: ["ignore", "ignore", "pipe"] });
}

test("the live page follows a run, compares it and tells its end", async () => {
  writeRun(path.join(folder, "runs", "earlier"), { numSteps: 9000 });
  const training = startTraining();
  let log = "";
  training.stderr.on("data", (data) => (log += data));
  const ended = new Promise((resolve) => training.on("exit", resolve));
  try {
    const endpoint = path.join(trained, "endpoint.json");
    await until("endpoint.json", () => fs.existsSync(endpoint) && fs.existsSync(path.join(trained, "metrics.jsonl")));
    const { url } = JSON.parse(fs.readFileSync(endpoint, "utf8"));
    host = new URL(url).host;
    const page = await open(`${url}/`);
    const stepNow = async () => numberIn(await textOf(page, "[data-value=step]"));
    const before = await stepNow();
    await until("the step moves without reloading", async () => (await stepNow()) > before + 5);
    assert.equal(await textOf(page, "#run-state"), "running");
    await page.getByRole("checkbox", { name: "earlier" }).check();
    await until("the earlier run in the legend", async () => (await page.locator("#loss .legend li").allTextContents()).some((text) => text.startsWith("earlier")));
    await page.getByRole("checkbox", { name: "trained" }).uncheck();
    await page.locator("#loss .plot").focus();
    const finer = page.waitForResponse((response) => response.url().includes("/api/steps") && response.status() === 200);
    for (let i = 0; i < 3; ++i) await page.keyboard.press("+");
    await finer;
    const stepRead = async (key) => {
      await page.keyboard.press(key);
      return numberIn((await textOf(page, "#announcer")).match(/step .*/)[0]);
    };
    await until("every step of a range of 9,000", async () => {
      const first = await stepRead("Home");
      return (await stepRead("ArrowRight")) - first === 1;
    });
    await page.keyboard.press("0");
    await page.getByRole("button", { name: "show the details of trained" }).click();
    await until("an evaluation", async () => (await page.locator("#evaluations tbody tr").count()) > 0);

    training.kill("SIGINT");
    await until("the end of the run", async () => (await textOf(page, "#run-state")) === "stopped by a signal");
    await ended;
    const last = metricsOf(trained).at(-1);
    assert.equal(await stepNow(), last.step);
    assert.ok(isClose(numberIn(await textOf(page, "[data-value=loss]")), last.loss), `loss ${last.loss}`);
    await sleep(300);
    assert.equal(await page.locator("#announcer.alert").count(), 0, "the end is no lost connection");
    await page.close();
  } catch (error) {
    error.message += `\n${log.slice(-2000)}`;
    throw error;
  } finally {
    training.kill("SIGKILL");
    await ended;
    // What the browser notes when the server has ended with its run.
    const lost = problems.findIndex((text) => text.includes("api/events") || text.includes("ERR_CONNECTION_REFUSED") || text.includes("ERR_INCOMPLETE_CHUNKED"));
    if (lost >= 0) problems.splice(lost, 1);
  }
});

test("values on a report are those of metrics.jsonl", async () => {
  const page = await openReport("trained", {}, trained);
  const steps = metricsOf(trained);
  for (const [chart, column] of [["loss", "loss"], ["learning-rate", "learning_rate"], ["grad-norm", "grad_norm"], ["throughput", "tokens_per_second"]]) {
    await page.locator(`#${chart} [data-table]`).click();
    const rows = await page.locator(`#${chart} .chart-table tbody tr`).evaluateAll((list) => list.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.ok(rows.length >= 20, chart);
    for (const [step, value] of rows) {
      const expected = steps.find((line) => line.step === numberIn(step))[column];
      assert.ok(isClose(numberIn(value), expected), `${chart}, step ${step}: ${value} is not ${expected}`);
    }
  }
  const evaluations = fs.readFileSync(path.join(trained, "events.jsonl"), "utf8").split("\n").filter((line) => line.includes('"evaluation"')).map((line) => JSON.parse(line));
  const shown = await page.locator("#evaluations tbody tr").evaluateAll((list) => list.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent)));
  assert.equal(shown.length, Math.min(evaluations.length, 100));
  assert.ok(isClose(numberIn(shown[0][1]), evaluations.at(-1).eval_loss));
  const shares = (await textOf(page, "#shares .summary")).match(/\d+ %/g).map((text) => parseInt(text, 10));
  assert.ok(Math.abs(shares.reduce((a, b) => a + b) - 100) <= 5, `shares of the time of a step add up: ${shares}`);
  await page.close();
});

// ------------------------------------------------------------------------------------------------ reports

const compared = [
  writeRun(path.join(folder, "a", "base"), { numSteps: 600, ranks: 8, message: "rank 5 takes 1.12 times as long as the median rank" }),
  writeRun(path.join(folder, "a", "faster"), { numSteps: 500, ranks: 8, learningRate: 3e-4, isFinished: false }),
];

test("two runs are compared", async () => {
  const page = await openReport("compared", {}, ...compared);
  const legend = () => page.locator("#loss .legend li").allTextContents();
  assert.equal((await legend()).filter((text) => /^(base|faster)/.test(text)).length, 4, "a curve and evaluations of each");
  assert.match(await textOf(page, "#settings .summary"), /2 differ/);
  assert.deepEqual(await page.locator("#settings tr.different th").allTextContents(), ["learning_rate", "output_dir"]);
  await page.getByLabel("only what differs").check();
  assert.equal(await page.locator("#settings tbody tr").count(), 2);
  await page.getByRole("button", { name: "show the details of faster" }).click();
  await until("the other run's name", async () => (await textOf(page, "#run-name")) === "faster");
  assert.equal(await textOf(page, "#run-state"), "not finished");
  await page.getByRole("checkbox", { name: "base" }).uncheck();
  await until("one run", async () => !(await legend()).some((text) => text.startsWith("base")));
  assert.match(await textOf(page, "#ranks .summary"), /Rank 5 computes longest/);
  assert.match(await textOf(page, "#memory .summary"), /Planned 122.9 GiB.*51.6 % of the 238.4 GiB/);
  await page.close();
});

test("dragging zooms all charts, double-click resets, hover values agree", async () => {
  const page = await openReport("zoom", {}, compared[0]);
  const reset = page.locator("#reset-zoom");
  const plot = await page.locator("#loss .u-over").boundingBox();
  const at = (share) => [plot.x + share * plot.width, plot.y + plot.height / 2];
  await page.mouse.move(...at(0.5));
  const positions = await page.locator(".legend .at").evaluateAll((list) => list.filter((item) => item.checkVisibility()).map((item) => item.textContent));
  assert.match(positions[0], /^step 30\d$/);
  const others = positions.slice(1).filter((text) => text !== positions[0] && !/^step (29|30)\d/.test(text));
  assert.deepEqual(others, [], "all charts read the same step");
  await page.mouse.move(...at(0.25));
  await page.mouse.down();
  await page.mouse.move(...at(0.5), { steps: 4 });
  await page.mouse.up();
  await until("zoomed in", async () => reset.isEnabled());
  await page.locator("#grad-norm [data-table]").click();
  const steps = (await page.locator("#grad-norm .chart-table tbody th").allTextContents()).map(numberIn);
  assert.ok(steps[0] >= 145 && steps.at(-1) <= 305, `another chart shows ${steps[0]} to ${steps.at(-1)}`);
  await page.mouse.dblclick(...at(0.6));
  await until("reset", async () => reset.isDisabled());
  await page.selectOption("#axis", "total_tokens");
  await until("tokens as the axis", async () => (await page.locator("#grad-norm .chart-table thead th").first().textContent()) === "tokens");
  await page.close();
});

test("everything can be done by keyboard", async () => {
  const page = await openReport("keyboard", {}, ...compared);
  const active = (read) => page.evaluate(read);
  await page.keyboard.press("Tab");
  assert.equal(await active(() => document.activeElement.className), "skip");
  const seen = new Set();
  for (let i = 0; i < 60; ++i) {
    await page.keyboard.press("Tab");
    const [name, outline] = await active(() => {
      const element = document.activeElement;
      return [element.id || element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.tagName, getComputedStyle(element).outlineStyle];
    });
    seen.add(name);
    if (name !== "BODY" && !(await active(() => document.activeElement.matches("input[type=checkbox], input[type=range]"))))
      assert.notEqual(outline, "none", `focus on ${name} is visible`);
  }
  for (const name of ["smoothing", "axis", "theme", "help", "loss-title", "Loss: logarithmic axis", "Loss: table of values"])
    assert.ok(seen.has(name), `Tab reaches ${name}, among ${[...seen].join(", ")}`);

  await page.keyboard.press("s");
  const before = await textOf(page, "#smoothing-value");
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await textOf(page, "#smoothing-value"), before);
  await page.keyboard.press("l");
  assert.equal(await page.locator("#loss [data-log]").getAttribute("aria-pressed"), "true");
  await page.keyboard.press("t");
  assert.ok(await page.locator("#loss .chart-table table").isVisible());
  await page.keyboard.press("t");
  await page.keyboard.press("?");
  assert.ok(await page.getByRole("heading", { name: "Keys" }).isVisible());
  await page.keyboard.press("Escape");
  await page.locator("#loss .plot").focus();
  await page.keyboard.press("Home");
  assert.match(await textOf(page, "#announcer"), /^base.*step 1$/);
  await page.keyboard.press("ArrowRight");
  assert.match(await textOf(page, "#announcer"), /step 2$/);
  await page.keyboard.press("+");
  assert.ok(await page.locator("#reset-zoom").isEnabled());
  await page.keyboard.press("0");
  assert.ok(await page.locator("#reset-zoom").isDisabled());
  await page.keyboard.press("/");
  await page.keyboard.type("warmup");
  assert.deepEqual(await page.locator("#settings tbody th").allTextContents(), ["warmup_ratio"]);
  await page.close();
});

test("a phone needs no horizontal scrolling", async () => {
  const page = await openReport("phone", { size: { width: 400, height: 800 } }, ...compared);
  await page.keyboard.press("t");
  await sleep(100);
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 400);
  await page.close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`${colorScheme} colours reach AA contrast`, async () => {
    const page = await openReport(colorScheme, { colorScheme }, ...compared);
    const isDark = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).every((value) => value < 60));
    assert.equal(await isDark(), colorScheme === "dark");
    await page.keyboard.press("t");
    assert.deepEqual(await lowContrast(page), []);
    await page.keyboard.press("d");
    assert.equal(await isDark(), colorScheme !== "dark");
    await page.evaluate(() => localStorage.clear());
    await page.close();
  });
}

test("text in data stays text", async () => {
  const evil = `</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1"> "onerror=hacked() '><b>bold</b>`;
  const name = `<img src=x onerror="window.hacked=1">`;
  const folders = [writeRun(path.join(folder, "evil", name), { numSteps: 30, message: evil, more: { run_name: evil, note: evil, [evil]: 1 } }), compared[0]];
  const page = await openReport("evil", {}, ...folders);
  await page.keyboard.press("t");
  assert.equal(await textOf(page, "#run-name"), evil);
  assert.ok((await textOf(page, "#messages")).includes(evil));
  assert.ok((await textOf(page, "#settings")).includes(evil));
  assert.ok((await textOf(page, "#loss .legend")).includes(name));
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.evaluate(() => document.querySelectorAll("img, b").length), 0);
  assert.equal(await page.evaluate(() => document.querySelectorAll("script").length), 2);
  await page.close();
});

test("100,000 steps are smooth and keep their spike", async () => {
  const big = writeRun(path.join(folder, "big"), { numSteps: 100_000, spike: 54_321 });
  const url = report("big", big);
  const begin = Date.now();
  const page = await open(url);
  const loaded = Date.now() - begin;
  assert.ok(loaded < 10_000, `loaded in ${loaded} ms`);
  assert.match(await textOf(page, "#loss .summary"), /highest 50 at step 54,321/);
  // Something is drawn in the top tenth of the plot, where only the spike reaches, and nowhere else.
  const columns = await page.evaluate(() => {
    const canvas = document.querySelector("#loss canvas");
    const over = document.querySelector("#loss .u-over");
    const scale = canvas.width / canvas.clientWidth;
    const [x, y, width, height] = [over.offsetLeft, over.offsetTop, over.clientWidth, over.clientHeight].map((value) => Math.round(value * scale));
    const { data } = canvas.getContext("2d").getImageData(x, y, width, Math.round(height * 0.25));
    const marked = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 20 && data[i + 2] - data[i] > 25) marked.add(((i / 4) % width) / width);
    return [...marked];
  });
  assert.ok(columns.length >= 1 && columns.every((share) => Math.abs(share - 0.54321) < 0.01), `the spike is drawn at ${columns}`);
  const times = await page.evaluate(async () => {
    const slider = document.getElementById("smoothing");
    const list = [];
    for (let i = 0; i < 8; ++i) {
      const start = performance.now();
      slider.value = 0.1 * i;
      slider.dispatchEvent(new Event("input"));
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      list.push(performance.now() - start);
    }
    return list.sort((a, b) => a - b);
  });
  console.log(`  loaded in ${loaded} ms, smoothed in ${times.map(Math.round)} ms`);
  assert.ok(times[2] < 500, `smoothing takes ${times.map(Math.round)} ms`);
  await page.close();
});

let numFailed = 0;
try {
  for (const { name, body } of tests) {
    const begin = Date.now();
    problems.length = 0;
    try {
      await body();
      assert.deepEqual(problems, [], "console errors, or requests to other hosts");
      console.log(`ok    ${name} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
    } catch (error) {
      ++numFailed;
      console.log(`FAILED ${name}\n${error.stack}\n${problems.join("\n")}`);
    }
    for (const page of context.pages().slice(1)) await page.close();
  }
} finally {
  await close();
  fs.rmSync(folder, { recursive: true, force: true });
}
console.log(`${tests.length - numFailed} of ${tests.length} passed`);
process.exitCode = numFailed === 0 ? 0 : 1;
