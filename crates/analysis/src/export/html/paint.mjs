// Draws the timeline. In: lanes, the span that is shown, and colours. Out: pixels of a canvas. Each row draws the level
// that fits, and what falls on one pixel once, so a frame costs what the canvas is wide, not what the trace is long.
import { bytes, clean, moment, shorten } from "./text.mjs";
import { firstAfter, pointAt } from "./model.mjs";
import { levelFor, ticksOf } from "./viewport.mjs";

export const LANE = 18;
export const AXIS = 22;
// Text that is narrower cannot be read.
const LEAST_TEXT = 40;

export function gutterOf(width) {
  return width < 600 ? 84 : 190;
}

export function coloursOf(labels, sorts) {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  const bySort = sorts.map((_, sort) => get(`--sort-${sort}`));
  return {
    ofLabel: labels.map(([, sort]) => bySort[sort]),
    bySort,
    back: get("--back"),
    front: get("--front"),
    soft: get("--soft"),
    line: get("--line"),
    panel: get("--panel"),
    accent: get("--accent"),
    match: get("--match"),
  };
}

function drawRow(it, row, top) {
  const { context, view, gutter, width, colours, labels, wanted } = it;
  const perPixel = (view.to - view.from) / (width - gutter);
  const level = levelFor(row, perPixel);
  const { from, to, label } = level;
  const scale = 1 / perPixel;
  const last = from.length;
  let free = gutter - 1;
  let colour = null;
  for (let at = firstAfter(level, view.from); at < last && from[at] <= view.to; at += 1) {
    const right = Math.min(gutter + (to[at] - view.from) * scale, width);
    const isWanted = wanted !== null && wanted.has(label[at]);
    if (right <= free && !isWanted) continue;
    const left = Math.max(gutter + (from[at] - view.from) * scale, free, gutter);
    const wide = Math.max(right - left, 1);
    const own = isWanted ? colours.match : wanted === null ? colours.ofLabel[label[at]] : colours.line;
    if (own !== colour) {
      context.fillStyle = own;
      colour = own;
    }
    context.fillRect(left, top + 2, wide, LANE - 4);
    free = Math.max(free, Math.floor(left + wide));
    if (wide > LEAST_TEXT) {
      const several = level.events[at] > 1 ? `${level.events[at]} × ` : "";
      context.fillStyle = own === colours.line ? colours.soft : colours.back;
      context.fillText(shorten(several + labels[label[at]], Math.floor((wide - 6) / 6)), left + 3, top + LANE / 2);
      colour = null;
    }
  }
}

function drawCounter(it, counter, top) {
  const { context, view, gutter, width, colours } = it;
  const { points } = counter;
  const most = (counter.most ??= points.reduce((high, point) => Math.max(high, point[2]), 1));
  const x = (ns) => gutter + ((ns - view.from) / (view.to - view.from)) * (width - gutter);
  context.fillStyle = colours.bySort[3];
  let left = null;
  let highest = 0;
  for (let at = Math.max(0, pointAt(points, view.from)); at < points.length && points[at][0] <= view.to; at += 1) {
    // Points that end on one pixel are drawn once, as high as the highest of them.
    left ??= Math.max(x(points[at][0]), gutter);
    highest = Math.max(highest, points[at][2]);
    const right = Math.min(x(points[at + 1]?.[0] ?? it.endNs), width);
    if (right < left + 1 && at + 1 < points.length) continue;
    const high = (highest / most) * (LANE - 4);
    context.fillRect(left, top + LANE - 2 - high, Math.max(right - left, 1), high);
    left = null;
    highest = 0;
  }
}

function drawGutter(it, lane, top) {
  const { context, gutter, width, colours } = it;
  context.fillStyle = colours.panel;
  context.fillRect(0, top, lane.kind === "process" ? width : gutter - 1, LANE);
  const isHead = lane.kind === "process";
  const most = lane.kind === "counter" ? `${lane.title}, up to ${bytes(lane.counter.most ?? 0)}` : lane.title;
  context.fillStyle = isHead ? colours.front : colours.soft;
  const room = isHead ? width : gutter;
  context.fillText(shorten(clean(most), Math.floor((room - 8) / 6)), 4, top + LANE / 2);
}

function drawAxis(it) {
  const { context, view, gutter, width, colours } = it;
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, AXIS);
  const { step, ticks } = ticksOf(view, Math.max(2, Math.floor((width - gutter) / 110)));
  for (const tick of ticks) {
    const x = Math.round(gutter + ((tick - view.from) / (view.to - view.from)) * (width - gutter));
    context.fillStyle = colours.line;
    context.fillRect(x, AXIS - 6, 1, 6);
    context.fillStyle = colours.soft;
    context.fillText(moment(tick, step), x + 3, AXIS / 2);
  }
}

function drawSpan(it, span, height, colour) {
  const { context, view, gutter, width } = it;
  const x = (ns) => gutter + ((ns - view.from) / (view.to - view.from)) * (width - gutter);
  const left = Math.max(x(span.from), gutter);
  const right = Math.min(x(span.to), width);
  if (right < left) return;
  context.globalAlpha = 0.18;
  context.fillStyle = colour;
  context.fillRect(left, AXIS, Math.max(right - left, 1), height);
  context.globalAlpha = 1;
}

function drawChosen(it, chosen, top) {
  const { context, view, gutter, width, colours } = it;
  const level = chosen.row.levels[0];
  const x = (ns) => gutter + ((ns - view.from) / (view.to - view.from)) * (width - gutter);
  const left = Math.max(x(level.from[chosen.at]), gutter);
  const right = Math.min(x(level.to[chosen.at]), width);
  if (right < gutter || left > width) return;
  context.strokeStyle = colours.front;
  context.lineWidth = 2;
  context.strokeRect(left - 1, top + 1, Math.max(right - left, 2) + 2, LANE - 2);
}

// Draws all lanes between two heights of the whole picture.
export function paint(it, lanes, { scrollTop, height, selection, chosen }) {
  const { context, width, colours } = it;
  context.fillStyle = colours.back;
  context.fillRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const first = Math.max(0, Math.floor(scrollTop / LANE));
  const last = Math.min(lanes.length, Math.ceil((scrollTop + height) / LANE));
  for (let at = first; at < last; at += 1) {
    const top = AXIS + at * LANE - scrollTop;
    const lane = lanes[at];
    if (lane.kind === "row") drawRow(it, lane.row, top);
    else if (lane.kind === "counter") drawCounter(it, lane.counter, top);
    drawGutter(it, lane, top);
    if (chosen && lane.row === chosen.row) drawChosen(it, chosen, top);
  }
  if (selection) drawSpan(it, selection, height, colours.accent);
  drawAxis(it);
}
