// Charts: memory over time with the call sites at its peak, copies by direction over time, idle time by cause. In: the
// page's data. Out: elements. The tables beside the charts show figures of the reports.
import { bytes, count, duration, moment } from "./text.mjs";
import { HIGH, WIDE, mostOf, pathOf, peaksOf, sumsOf } from "./chart.mjs";
import { tableIn, textOf } from "./rows.mjs";
import { element, svg } from "./dom.mjs";

const COLUMNS = 400;
const COPIES = 200;
// The report has the other rows.
const TOP = 10;

// A picture, with a text above it and the axis of time beneath it.
function picture(about, paths, top, endNs) {
  const drawn = paths.map(({ path, sort }) => svg("path", { d: path, class: `fill-${sort}` }));
  const box = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": about }, drawn);
  const ends = element("div", { class: "ends" }, element("span", {}, moment(0, endNs)), element("span", {}, moment(endNs, endNs / 100)));
  return element("div", { class: "chart" }, element("div", { class: "top" }, top), box, ends);
}

function memoryOf(data, counter) {
  const peaks = peaksOf(counter.points, data.end_ns, COLUMNS);
  const most = peaks.reduce((high, value) => Math.max(high, value), 0);
  if (!most) return null;
  const owner = data.processes.find((process) => process.id === counter.process)?.name ?? "";
  const about = `${counter.name} of ${owner}: at most ${bytes(most)}`;
  const at = counter.points.find((point) => point[2] === most)?.[0] ?? 0;
  const path = pathOf(peaks, new Float64Array(peaks.length), most);
  return { most, element: [element("h3", {}, about), picture(about, [{ path, sort: 3 }], `peak at ${moment(at, data.end_ns / 1000)}`, data.end_ns)] };
}

// A table with a bar in each row, as wide as the row's weight.
function bars(what, heads, rows) {
  const most = rows.reduce((high, row) => Math.max(high, row.weight), 0);
  const body = rows.slice(0, TOP).map(({ weight, cells }) => {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${most > 0 ? (100 * weight) / most : 0}%`;
    const [first, ...rest] = cells;
    return element("tr", {}, element("td", { class: "text" }, first, fill), rest.map((cell) => element("td", {}, cell)));
  });
  const head = element("tr", {}, heads.map((text, at) => element("th", { scope: "col", class: at ? null : "text" }, text)));
  const left = rows.length > TOP ? element("p", { class: "soft" }, `and ${count(rows.length - TOP)} more, in the report`) : null;
  const table = element("table", { class: "bars" }, element("thead", {}, head), element("tbody", {}, body));
  return element("div", {}, element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": what }, table), left);
}

function sitesAtPeak(trace) {
  const { rows, at } = tableIn(trace.reports, "memory", "held_at_peak");
  if (!rows.length) return [];
  const all = rows.map((row) => ({
    weight: at(row, "bytes")[0],
    cells: [textOf(at(row, "call_site")) || "no call site", textOf(at(row, "space")), count(textOf(at(row, "allocations"))), bytes(at(row, "bytes")[0])],
  }));
  all.sort((a, b) => b.weight - a.weight);
  const title = element("h3", {}, `Held at the peak, by call site: ${trace.file}`);
  return [title, bars("call sites at the memory peak", ["Call site", "Space", "Allocations", "Bytes"], all)];
}

function memoryCharts(data) {
  const known = data.counters.map((counter) => memoryOf(data, counter)).filter(Boolean).sort((a, b) => b.most - a.most);
  const more = known.length > TOP ? [element("p", { class: "soft" }, `and ${count(known.length - TOP)} more, in the timeline`)] : [];
  const none = known.length ? [] : [element("p", { class: "soft" }, "No memory was allocated in this recording.")];
  return [element("h2", {}, "Live memory over time"), none, known.slice(0, TOP).map((one) => one.element), more, data.traces.map(sitesAtPeak)];
}

function copyChart(data) {
  const { each_ns: eachNs, directions } = data.copies;
  const title = element("h2", {}, "Copies and sets by direction over time");
  if (!directions.length) return [title, element("p", { class: "soft" }, "Nothing was copied or set in this recording.")];
  // All directions have the same columns, also those without bytes in the last piece of time.
  const endNs = Math.max(data.end_ns, ...directions.map((one) => one.bytes.length * eachNs));
  const all = directions.map((one) => ({ name: one.name, ...sumsOf(one.bytes, eachNs, endNs, COPIES) }));
  const most = mostOf(all.map((one) => one.sums));
  const below = new Float64Array(all[0].sums.length);
  const paths = all.map((one, at) => ({ path: pathOf(one.sums, below, most), sort: at % data.sorts.length }));
  const each = duration(all[0].eachNs);
  const about = `bytes by direction over time: at most ${bytes(most)} in ${each}`;
  const total = (one) => one.sums.reduce((sum, value) => sum + value, 0);
  const legend = all.map((one, at) => {
    const swatch = element("span", { class: `swatch fill-${at % data.sorts.length}` });
    return element("li", {}, swatch, `${one.name}: ${bytes(total(one))}`);
  });
  const until = all[0].sums.length * all[0].eachNs;
  return [title, picture(about, paths, `at most ${bytes(most)} in ${each}`, until), element("ul", { class: "legend" }, legend)];
}

function idleChart(trace) {
  const { rows, at } = tableIn(trace.reports, "idle", "causes");
  const title = element("h2", {}, `What the host did while the GPU was idle: ${trace.file}`);
  if (!rows.length) return [title, element("p", { class: "soft" }, "No idle time of a GPU. A recording without --gpu does not show it; in one with --gpu, the GPU was never idle.")];
  const all = rows.map((row) => ({
    weight: at(row, "total_ns")[0],
    cells: [textOf(at(row, "what")), `${textOf(at(row, "total_percent"))} %`, count(textOf(at(row, "times"))), duration(at(row, "total_ns")[0])],
  }));
  return [title, bars("idle time by cause", ["Cause", "Share", "Times", "Idle"], all)];
}

export function chartsOf(page) {
  const { data } = page;
  return element("section", { "aria-label": "charts" }, memoryCharts(data).flat(3), copyChart(data).flat(), data.traces.map(idleChart).flat());
}
