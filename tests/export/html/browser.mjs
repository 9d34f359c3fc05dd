// Opens pages of `gpurec export --format html` in Chromium and examines them.
//
//     npm install --prefix DIR puppeteer-core@24 axe-core     (once)
//     NODE_MODULES=DIR node browser.mjs [--shots DIR] [--frames] PAGE...
//     NODE_MODULES=DIR node browser.mjs --picture PNG PAGE                     (only a picture of its timeline)
//
// In: pages, and Debian's chromium (CHROMIUM names another). Out: for each page what was found, or what is wrong and
// status 1: every view opens; the page logs nothing, asks for nothing and runs nothing of a trace; tables show the values
// of the data; it can be used by keys alone; axe-core finds nothing serious; 1280 and 390 pixels are wide enough. With
// --frames, on a machine that does nothing else, it also zooms, and the time for a frame must have a p95 of 16 ms at most.
// --shots keeps pictures.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";

const { bytes, clean } = await import("../../../crates/analysis/src/export/html/text.mjs");
const { tableIn, textOf } = await import("../../../crates/analysis/src/export/html/rows.mjs");

const words = process.argv.slice(2);
const option = (name) => words.includes(name) && words.splice(words.indexOf(name), 1).length > 0;
const frames = option("--frames");
const value = (name) => (words.includes(name) ? words.splice(words.indexOf(name), 2)[1] : null);
const shots = value("--shots");
const picture = value("--picture");

const require = createRequire(`${resolve(process.env.NODE_MODULES ?? ".")}/`);
const puppeteer = require("puppeteer-core");
const axe = require.resolve("axe-core/axe.min.js");

const root = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [...root, "--disable-gpu", "--disable-dev-shm-usage"],
  protocolTimeout: 600000,
});

async function opened(file, said, { width, scheme }) {
  const page = await browser.newPage();
  page.setDefaultTimeout(300000);
  const url = pathToFileURL(resolve(file)).href;
  page.on("console", (message) => said.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => said.push(`dialog: ${dialog.message()}`) && dialog.dismiss());
  page.on("request", (request) => {
    if (request.url() !== url && !request.url().startsWith("data:,")) said.push(`request: ${request.url()}`);
  });
  await page.setViewport({ width, height: 800 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  const before = Date.now();
  await page.goto(url);
  await page.waitForSelector('[role="tab"]');
  return { page, ms: Date.now() - before };
}

const tabsOf = (page) => page.$$eval('[role="tab"]', (tabs) => tabs.map((tab) => tab.textContent));

async function show(page, name) {
  await page.evaluate((wanted) => {
    [...document.querySelectorAll('[role="tab"]')].find((tab) => tab.textContent === wanted).click();
  }, name);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

// What axe-core says about the view that is shown. It is evaluated by the debugger, which no policy of the page forbids.
async function seriousOf(page) {
  const client = await page.createCDPSession();
  await page.setBypassCSP(true);
  const source = readFileSync(axe, "utf8");
  await client.send("Runtime.evaluate", { expression: `if (!window.axe) { ${source} }` });
  const found = await page.evaluate(async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations
      .filter((it) => it.impact === "serious" || it.impact === "critical")
      .map((it) => `${it.id}: ${it.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  });
  await client.detach();
  return found;
}

const isTooWide = (page) => page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);

// The texts that the tables of a report have to show: the first rows, without empty columns.
function wanted(report) {
  const tables = report.parts.map((part) => part.table ?? part.data).filter((table) => table?.rows.length);
  return tables.map(({ columns, rows }) => {
    const used = columns.map((_, at) => at).filter((at) => rows.some((row) => row[at] !== null));
    return rows.slice(0, 500).map((row) => used.map((at) => clean(textOf(row[at]))));
  });
}

const SHOWN_TABLES = "#views > :not([hidden]) [data-table]";

function dataOf(file) {
  const [, block] = readFileSync(file, "utf8").match(/id="data">([^<]*)</);
  return JSON.parse(gunzipSync(Buffer.from(block, "base64")).toString());
}

// The charts name what the reports have: the largest causes and call sites, every direction with its bytes.
async function charts(page, file) {
  const data = dataOf(file);
  const shown = await page.$eval("#views > :not([hidden])", (view) => view.textContent);
  const rowsOf = (view, key) => data.traces.flatMap((trace) => tableIn(trace.reports, view, key).rows.slice(0, 5).map((row) => [trace, row]));
  for (const [view, key, column] of [["idle", "causes", "what"], ["memory", "held_at_peak", "call_site"]]) {
    for (const [trace, row] of rowsOf(view, key)) {
      const text = textOf(tableIn(trace.reports, view, key).at(row, column)) || "no call site";
      assert.ok(shown.includes(clean(text)), `${file}: the charts do not name ${text}`);
    }
  }
  const totals = data.traces.flatMap((trace) => tableIn(trace.reports, "copies", "directions").rows.map((row) => tableIn(trace.reports, "copies", "directions").at(row, "bytes")[0]));
  const drawn = data.copies.directions.map((one) => one.bytes.reduce((sum, piece) => sum + piece, 0));
  const sum = (all) => all.reduce((one, other) => one + other, 0);
  assert.equal(sum(drawn), sum(totals), `${file}: bytes of the chart of copies`);
  for (const one of drawn) assert.ok(shown.includes(bytes(one)), `${file}: the charts do not have ${bytes(one)}`);
}

// What several traces say about each other: every list of the document is a table with as many rows.
async function together(page, file, name) {
  const { ranks, diff } = dataOf(file);
  const rows = await page.$$eval(SHOWN_TABLES, (all) =>
    Object.fromEntries(all.map((one) => [one.dataset.table, one.querySelectorAll("tbody tr").length])),
  );
  const of = (what) => diff.changes.filter((change) => change.what === what);
  const lists =
    name === "Ranks"
      ? { stragglers: ranks.stragglers, mismatches: ranks.mismatches, collectives: ranks.collectives, clocks: ranks.clocks, ranks: ranks.ranks, "slow kernels": ranks.slow_kernels, differences: ranks.differences }
      : { totals: diff.totals, "changed errors": of("errors"), "changed counts": of("counts"), "changed times": of("times") };
  for (const [table, list] of Object.entries(lists)) assert.equal(rows[table] ?? 0, Math.min(list.length, 500), `${file}: ${name}: ${table}`);
}

// Every report: its tables have the values of the data, which the tests of export/tests/html.rs compare with `report
// --json`; sorting loses no row, and the filter keeps what it should.
async function reports(page, file) {
  const data = dataOf(file);
  const views = await page.$$eval("#report option", (options) => options.map((it) => it.value));
  let tables = 0;
  for (const view of views) {
    await page.select("#report", view);
    await page.waitForSelector(`[data-report="${view}"]`);
    const shown = await page.$$eval(SHOWN_TABLES, (all) =>
      all.map((one) => [...one.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))),
    );
    assert.deepEqual(shown, wanted(data.traces[0].reports.find((report) => report.view === view)), `${file}: ${view}`);
    tables += await page.$$eval(SHOWN_TABLES, (all) => {
      for (const one of all) {
        const head = one.querySelector("th button");
        const before = one.querySelectorAll("tbody tr").length;
        head.click();
        head.click();
        if (one.querySelectorAll("tbody tr").length !== before) throw new Error("sorting loses rows");
        const input = one.querySelector("input");
        input.value = "no such text \u0001";
        input.dispatchEvent(new Event("input"));
        if (one.querySelectorAll("tbody tr").length !== 0) throw new Error("the filter keeps what it should not");
        input.value = "";
        input.dispatchEvent(new Event("input"));
        if (one.querySelectorAll("tbody tr").length !== before) throw new Error("the filter loses rows");
      }
      return all.length;
    });
  }
  assert.ok(views.length >= 16, `${file}: reports`);
  return tables;
}

// By keys alone: a call is chosen, its arguments are shown, a span is selected.
async function keys(page) {
  await page.focus("canvas");
  for (const key of ["+", "+", "ArrowRight", "-", "0", ".", ".", ","]) await page.keyboard.press(key);
  const chosen = await page.$eval(".side", (side) => side.textContent);
  await page.keyboard.press("s");
  const selected = await page.$eval(".side", (side) => side.textContent);
  await page.keyboard.press("Escape");
  return { chosen, selected };
}

// The script's time for each frame while zooming in and out, in milliseconds.
async function framesOf(page) {
  const times = await page.evaluate(async () => {
    const own = window.requestAnimationFrame.bind(window);
    const times = [];
    window.requestAnimationFrame = (act) => own((now) => {
      const before = performance.now();
      act(now);
      // Pixels that are read are drawn: without this, drawing would be counted in no frame.
      document.querySelector("canvas").getContext("2d").getImageData(0, 0, 1, 1);
      times.push(performance.now() - before);
    });
    const [canvas] = document.getElementsByTagName("canvas");
    for (let n = 0; n < 240; n += 1) {
      const deltaY = n % 120 < 60 ? -60 : 60;
      const { left, top } = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, ctrlKey: true, bubbles: true, cancelable: true, clientX: left + 500, clientY: top + 60 }));
      await new Promise((done) => own(done));
    }
    window.requestAnimationFrame = own;
    return times.sort((a, b) => a - b);
  });
  return { p50: times[Math.floor(times.length * 0.5)], p95: times[Math.floor(times.length * 0.95)], frames: times.length };
}

async function examine(file) {
  const said = [];
  const { page, ms } = await opened(file, said, { width: 1280, scheme: "light" });
  const names = await tabsOf(page);
  let tables = 0;
  const serious = [];
  const wide = [];
  for (const name of names) {
    await show(page, name);
    if (shots) await page.screenshot({ path: `${shots}/${file.split("/").pop()}-${name}.png` });
    if (await isTooWide(page)) wide.push(name);
    if (name === "Reports") tables = await reports(page, file);
    if (name === "Charts") await charts(page, file);
    if (name === "Ranks" || name === "Changes") await together(page, file, name);
    if (name === "Timeline") {
      const { chosen, selected } = await keys(page);
      assert.match(chosen, /began.*took/s, `${file}: no event can be chosen by keys: ${chosen}`);
      assert.match(selected, /^Selected:/, `${file}: no span can be selected by keys`);
      if (frames) {
        const before = said.length;
        const { p50, p95, frames: all } = await framesOf(page);
        // The browser remarks that pixels are read.
        said.length = before;
        console.log(`${file}: ${all} frames of zooming, p50 ${p50.toFixed(1)} ms, p95 ${p95.toFixed(1)} ms`);
        assert.ok(p95 <= 16, `${file}: p95 of a frame is ${p95} ms`);
      }
    }
    serious.push(...(await seriousOf(page)));
  }
  const pwned = await page.evaluate(() => window.pwned ?? null);
  await page.close();
  const small = await opened(file, said, { width: 390, scheme: "dark" });
  for (const name of names) {
    await show(small.page, name);
    if (shots) await small.page.screenshot({ path: `${shots}/${file.split("/").pop()}-${name}-390.png` });
    if (await isTooWide(small.page)) wide.push(`${name} at 390`);
    if (name !== "Timeline") serious.push(...(await seriousOf(small.page)).map((it) => `dark: ${it}`));
  }
  await small.page.close();
  assert.deepEqual(said, [], `${file}: the page is not silent`);
  assert.equal(pwned, null, `${file}: a text of the trace ran`);
  assert.deepEqual(wide, [], `${file}: wider than the window`);
  assert.deepEqual(serious, [], `${file}: axe-core`);
  console.log(`${file}: ${names.join(", ")}; ${tables} tables; shown after ${ms} ms; silent, and axe-core finds nothing serious`);
}

// The timeline with a call selected, as a reader sees it first.
async function draw(file, png) {
  const said = [];
  const { page } = await opened(file, said, { width: 1280, scheme: "light" });
  await page.setViewport({ width: 1280, height: 760 });
  await show(page, "Timeline");
  await page.type('input[type="search"]', "cuLaunchKernel");
  await page.evaluate(() => document.querySelector('button[aria-label="next match"]').click());
  await page.evaluate(() => {
    const search = document.querySelector('input[type="search"]');
    search.value = "";
    search.dispatchEvent(new Event("input"));
  });
  await page.focus("canvas");
  for (let n = 0; n < 7; n += 1) await page.keyboard.press("-");
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  await page.screenshot({ path: png });
  assert.deepEqual(said, [], `${file}: the page is not silent`);
}

let failed = false;
if (picture) await draw(words.pop(), picture);
for (const file of words) {
  try {
    await examine(file);
  } catch (error) {
    failed = true;
    console.error(error.message);
  }
}
await browser.close();
process.exitCode = failed ? 1 : 0;
