// Pictures of the page for the documentation: node pictures.mjs TESSERA FOLDER
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { openBrowser } from "./browser.mjs";
import { writeRun } from "./run_files.mjs";

const [, , tessera, pictures] = process.argv;
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-pictures-"));
const runs = [
  writeRun(path.join(folder, "llama-8b"), { numSteps: 1200, ranks: 8, message: "rank 5 takes 1.12 times as long as the median rank" }),
  writeRun(path.join(folder, "llama-8b-lr-3e-4"), { numSteps: 900, ranks: 8, learningRate: 3e-4 }),
];
const file = path.join(folder, "report.html");
execFileSync(tessera, ["report", ...runs, "--output", file]);
fs.mkdirSync(pictures, { recursive: true });

const { context, close } = await openBrowser();
const page = await context.newPage();
// One part of the page as a picture, in a window of this size.
async function picture(name, size, colorScheme, selector) {
  await page.setViewportSize(size);
  await page.emulateMedia({ colorScheme });
  await page.goto(`file://${file}`);
  await page.locator("#loss canvas").waitFor();
  if (selector) await page.locator(selector).first().evaluate((element) => window.scrollTo(0, element.getBoundingClientRect().top - 110));
  await page.waitForTimeout(300);
  await page.screenshot({ path: path.join(pictures, `${name}.png`) });
}
await picture("page-light", { width: 1120, height: 760 }, "light");
await picture("page-dark", { width: 1120, height: 760 }, "dark", "#shares");
await picture("page-phone", { width: 400, height: 760 }, "light");
await close();
fs.rmSync(folder, { recursive: true, force: true });
