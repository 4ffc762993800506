// Pictures of a report for the documentation: node pictures.mjs REPORT FOLDER
import fs from "node:fs";
import path from "node:path";

import { openBrowser } from "./browser.mjs";

const [, , report, pictures] = process.argv;
const file = path.resolve(report);
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
