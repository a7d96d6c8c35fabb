// SPDX-License-Identifier: AGPL-3.0-only
// Opens reports of --format html in a browser that is offline, and looks at each in light and dark, on a desk and on a
// phone: no violation that axe calls serious, no request, no message on the console, no sideways scroll of the page, and
// a filter that the keyboard alone can use. Usage: node check.js FOLDER FILE..., screenshots and PDFs go to FOLDER.
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const NOWHERE = "in no entry";
const [folder, ...names] = process.argv.slice(2);
const faults = [];

if (!names.length) {
  console.error("usage: node check.js FOLDER FILE...");
  process.exit(2);
}
await mkdir(folder, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
for (const name of names) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 360]) {
      await look(name, colorScheme, width);
    }
  }
  await withoutScript(name);
}
await browser.close();
faults.forEach((fault) => console.error(fault));
console.log(`${names.length} pages, ${faults.length} faults`);
process.exit(faults.length ? 1 : 0);

/** Open a page as a reader would, and check all of it. */
async function look(name, colorScheme, width) {
  const told = (fault) => faults.push(`${basename(name)}, ${colorScheme}, ${width} px: ${fault}`);
  // Its own policy keeps axe from being injected; all else is as a reader has it.
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 900 }, offline: true });
  const page = await context.newPage();
  const url = pathToFileURL(resolve(name)).href;
  page.on("request", (request) => request.url() === url || told(`asked for ${request.url()}`));
  page.on("console", (message) => told(`said on the console: ${message.text()}`));
  page.on("pageerror", (error) => told(`failed: ${error}`));
  await page.goto(url);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  if (wide > 0) told(`the page is ${wide} px too wide`);
  await filterByKeyboard(page, told);
  await page.screenshot({ path: `${folder}/${basename(name, ".html")}-${colorScheme}-${width}.png`, fullPage: true });
  const { violations } = await page.evaluate(`${AXE}; axe.run()`);
  for (const { id, impact, nodes } of violations) {
    const fault = `${impact} ${id}: ${nodes[0].html.slice(0, 120)} (${nodes.length} in all)`;
    if (["serious", "critical"].includes(impact)) told(fault);
    else console.log(`${basename(name)}: ${fault}`);
  }
  if (colorScheme === "dark" && width === 1280) {
    await page.pdf({ path: `${folder}/${basename(name, ".html")}.pdf`, format: "A4", printBackground: false });
  }
  await context.close();
}

/** Follow the skip link, go by Tab through everything, and use the filter, if there is one, with keys alone. */
async function filterByKeyboard(page, told) {
  const focused = () => page.evaluate(() => {
    const one = document.activeElement;
    return { tag: one.localName, kind: one.type ?? "", skip: one.className, ring: getComputedStyle(one).outlineStyle };
  });
  // What is left of the findings of the report that the keyboard is in, and what the filter says of them.
  const left = () => page.evaluate(() => {
    const report = document.activeElement.closest("article");
    const items = [...report.querySelectorAll(".findings > li")];
    const shown = items.filter((item) => item.checkVisibility()).length;
    return { shown, all: items.length, said: report.querySelector("output").textContent };
  });
  await page.keyboard.press("Tab");
  if ((await focused()).skip !== "skip") told("the first stop is not the skip link");
  const stops = await page.locator("a, input:visible, [tabindex='0']").count();
  let [boxes, fields] = [0, 0];
  for (let stop = 1; stop < stops; stop += 1) {
    await page.keyboard.press("Tab");
    const at = await focused();
    if (at.tag === "body") told(`stop ${stop} of ${stops} is nowhere`);
    if (at.ring === "none") told(`no ring around ${at.tag} at stop ${stop}`);
    if (at.kind === "checkbox") {
      boxes += 1;
      await page.keyboard.press("Space");
      const { shown, all } = await left();
      if (shown >= all) told("a box that is off hides nothing");
      await page.keyboard.press("Space");
    }
    if (at.kind === "search") {
      fields += 1;
      await page.keyboard.type(NOWHERE);
      const { shown, all, said } = await left();
      if (shown !== 0 || said !== `0 of ${all} shown`) told(`${shown} entries say ${NOWHERE}, it says: ${said}`);
      for (const _ of NOWHERE) await page.keyboard.press("Backspace");
      if ((await left()).shown !== all) told("entries stay hidden");
    }
  }
  const lists = await page.locator("ul.findings").count();
  if (fields !== lists || boxes < lists) told(`${lists} lists of findings, ${fields} fields and ${boxes} boxes by Tab`);
}

/** Without script the findings are a plain list, and there is no filter that does nothing. */
async function withoutScript(name) {
  const context = await browser.newContext({ javaScriptEnabled: false, offline: true });
  const page = await context.newPage();
  await page.goto(pathToFileURL(resolve(name)).href);
  if (await page.locator("input:visible").count()) faults.push(`${basename(name)}: a filter without script`);
  const [visible, all] = [page.locator(".findings > li:visible"), page.locator(".findings > li")];
  if ((await visible.count()) !== (await all.count())) faults.push(`${basename(name)}: hidden without script`);
  await context.close();
}
