// What stands beside the timeline: the chosen event, or the figures of the selected span. In: an event or a span. Out:
// elements.
import { bytes, count, duration, moment } from "./text.mjs";
import { detailsOf } from "./decode.mjs";
import { figuresOf, flowsOf, insideOf, valueAt } from "./model.mjs";
import { columns, element } from "./dom.mjs";

// More rows of a list are counted only.
const LISTED = 30;

function shown(value) {
  return value !== null && typeof value === "object" ? JSON.stringify(value) : String(value);
}

// A button that goes to an event.
function link(page, { row, at }, choose) {
  const level = row.levels[0];
  const [name] = page.data.labels[level.label[at]];
  const text = `${name}, ${duration(level.to[at] - level.from[at])}`;
  return element("li", {}, element("button", { type: "button", onclick: () => choose({ row, at }) }, text));
}

function list(page, title, all, choose) {
  if (!all.length) return [];
  const left = all.length > LISTED ? [element("li", {}, `and ${count(all.length - LISTED)} more`)] : [];
  const items = all.slice(0, LISTED).map((one) => link(page, one, choose));
  return [element("h3", {}, `${title}: ${count(all.length)}`), element("ul", {}, items, left)];
}

function stack(page, number) {
  if (number === 0) return [];
  const { frames, cut } = page.data.stacks.stacks[number - 1] ?? { frames: [] };
  const items = frames.map((frame) => {
    const [text, place] = page.data.stacks.frames[frame] ?? ["?", ""];
    return element("li", {}, text, element("div", { class: "soft" }, place));
  });
  const more = cut ? [element("li", {}, "deeper frames are missing")] : [];
  return [element("h3", {}, "Call stack, innermost first"), element("ol", {}, items, more)];
}

// The memory of the event's process after it.
function memory(page, row, ns) {
  const process = page.processOf(row.track);
  return page.data.counters
    .filter((counter) => counter.process === process)
    .map((counter) => [`${counter.name} after it`, valueAt(counter.points, ns)])
    .filter(([, value]) => value !== null)
    .map(([name, value]) => [name, bytes(value)]);
}

export function eventPanel(page, { row, at }, choose) {
  const level = row.levels[0];
  const events = level.events[at];
  const [name, sort] = page.data.labels[level.label[at]];
  const length = level.to[at] - level.from[at];
  const pairs = [["began", moment(level.from[at], 1)], ["took", duration(length)], ["drawn as", page.data.sorts[sort]]];
  if (events > 1) {
    const text = `${count(events)} events that are too short to be kept apart in this file; the longest is this one. They took ${duration(level.busy[at])} together.`;
    return [element("h3", {}, name), columns(pairs), element("p", {}, text)];
  }
  const details = detailsOf(row, at, page.details);
  const args = Object.entries(details ?? {}).filter(([key]) => key !== "stack");
  const inside = insideOf(page.rows, row, at);
  const own = [{ row, at }, ...inside].map((one) => one.row.flow[one.at]).filter((flow) => flow > 0);
  const isCall = page.data.tracks[row.track]?.thread;
  const flows = flowsOf(page.rows, new Set(own), (track) => page.data.tracks[track]?.thread);
  return [
    element("h3", {}, name),
    columns([...pairs, ...memory(page, row, level.to[at])]),
    details
      ? columns(args.map(([key, value]) => [key, shown(value)]))
      : element("p", { class: "soft" }, "What the trace says about it is not in this file, which keeps that of longer events only."),
    ...list(page, "Work on the GPU that it started", isCall ? flows.work : [], choose),
    ...list(page, "Submitted by", isCall ? [] : flows.calls, choose),
    ...list(page, "Inside it", inside, choose),
    ...stack(page, row.stack[at]),
  ];
}

export function spanPanel(page, rows, span, title = "Selected") {
  const { rows: figures, whole } = figuresOf(rows, span.from, span.to);
  const bySort = new Map();
  for (const figure of figures) {
    const sort = page.data.labels[figure.label][1];
    const known = bySort.get(sort) ?? { events: 0, ns: 0 };
    bySort.set(sort, { events: known.events + figure.events, ns: known.ns + figure.ns });
  }
  const head = (texts) => element("thead", {}, element("tr", {}, texts.map((text, at) => element("th", { scope: "col", class: at ? null : "text" }, text))));
  const row = (name, { events, ns }) =>
    element("tr", {}, element("td", { class: "text" }, name), element("td", {}, count(events)), element("td", {}, duration(ns)));
  const sorts = [...bySort].sort((a, b) => b[1].ns - a[1].ns).map(([sort, sum]) => row(page.data.sorts[sort], sum));
  const names = figures.slice(0, LISTED).map((figure) => row(page.data.labels[figure.label][0], figure));
  const left = figures.length > LISTED ? [element("p", { class: "soft" }, `and ${count(figures.length - LISTED)} more`)] : [];
  return [
    element("h3", {}, `${title}: ${duration(span.to - span.from)}`),
    columns([["from", moment(span.from, 1)], ["to", moment(span.to, 1)]]),
    whole ? [] : element("p", { class: "soft" }, "Short events are kept together in this file: those at the edges count in proportion."),
    element("table", {}, head(["Drawn as", "Events", "Time"]), element("tbody", {}, sorts)),
    element("h3", {}, "By name; calls inside others count too"),
    element("table", {}, head(["Name", "Events", "Time"]), element("tbody", {}, names)),
    ...left,
  ].flat();
}
