// The span of time that is shown. In: a span, and what a hand asks for. Out: another span, the level of a row that serves
// it, and the marks of its axis. Not here: anything drawn.

const NARROWEST_NS = 100;

function clamp(fromNs, lengthNs, endNs) {
  const most = Math.max(endNs, NARROWEST_NS);
  const length = Math.min(Math.max(lengthNs, NARROWEST_NS), most);
  const from = Math.min(Math.max(fromNs, 0), most - length);
  return { from, to: from + length };
}

// `at` stays where it is.
export function zoomed(view, factor, at, endNs) {
  const length = Math.min(Math.max((view.to - view.from) * factor, NARROWEST_NS), Math.max(endNs, NARROWEST_NS));
  const share = (at - view.from) / (view.to - view.from);
  return clamp(at - share * length, length, endNs);
}

export function panned(view, byNs, endNs) {
  return clamp(view.from + byNs, view.to - view.from, endNs);
}

export function around(from, to, endNs) {
  const room = Math.max((to - from) * 0.5, NARROWEST_NS);
  return clamp(from - room, to - from + 2 * room, endNs);
}

// The coarsest level whose slices are still shorter than a pixel.
export function levelFor(row, nsPerPixel) {
  let chosen = row.levels[0];
  for (const level of row.levels) {
    if (level.belowNs <= nsPerPixel) chosen = level;
  }
  return chosen;
}

// The moments of the axis, a round number apart, `most` of them at most.
export function ticksOf(view, most) {
  const least = (view.to - view.from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least) ?? 10 * power;
  const ticks = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to && ticks.length <= most + 1; n += 1) ticks.push(n * step);
  return { step, ticks };
}
