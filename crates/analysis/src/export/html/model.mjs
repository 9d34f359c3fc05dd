// Questions to the rows of the timeline. In: rows, tracks and a span of time. Out: the lanes in their order, the figures
// of a span, what a text matches, what is inside a call and what it started on the GPU. Not here: anything drawn.

export const MARKS = 0xffffffff;

// The first slice of a level that ends after a time: rows are in order and do not overlap.
export function firstAfter(level, ns) {
  let low = 0;
  let high = level.to.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (level.to[middle] <= ns && level.from[middle] < ns) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The lanes from top to bottom: a title for each process and each track, and beneath it its rows and counters.
export function lanesOf(data, rows) {
  const byTrack = new Map();
  for (const row of rows) {
    if (!byTrack.has(row.track)) byTrack.set(row.track, []);
    byTrack.get(row.track).push(row);
  }
  const beneath = new Map();
  data.tracks.forEach((track, number) => {
    if (!beneath.has(track.parent)) beneath.set(track.parent, []);
    beneath.get(track.parent).push({ ...track, number });
  });
  const lanes = [];
  const named = new Set();
  const addTrack = (track) => {
    const own = (byTrack.get(track.number) ?? []).sort((a, b) => a.depth - b.depth);
    byTrack.delete(track.number);
    // A stream with work that overlaps has several tracks of one name.
    const key = `${track.parent} ${track.name}`;
    own.forEach((row, at) => {
      lanes.push({ kind: "row", row, title: at === 0 && !named.has(key) ? track.name : "" });
      named.add(key);
    });
    for (const child of beneath.get(track.id) ?? []) addTrack(child);
  };
  // The recording itself, which has no threads, comes last.
  const threads = (process) => (beneath.get(process.id) ?? []).some((track) => track.thread);
  for (const process of [...data.processes].sort((a, b) => threads(b) - threads(a))) {
    const before = lanes.length;
    lanes.push({ kind: "process", title: process.name });
    const order = (track) => (track.thread ? 0 : 1);
    const own = [...(beneath.get(process.id) ?? [])].sort((a, b) => order(a) - order(b));
    own.forEach(addTrack);
    for (const counter of data.counters.filter((it) => it.process === process.id && it.points.length)) {
      lanes.push({ kind: "counter", counter, title: counter.name });
    }
    if (lanes.length === before + 1) lanes.pop();
  }
  const rest = [...byTrack.values()].flat();
  if (rest.length) lanes.push({ kind: "process", title: "more tracks" });
  rest.forEach((row) => lanes.push({ kind: "row", row, title: "" }));
  return lanes;
}

// For each label the events in a span, and their time in it. `whole` is false if a slice of several events is in it in
// part: then how many of them are in the span is not known, and they count in proportion.
export function figuresOf(rows, fromNs, toNs) {
  const byLabel = new Map();
  let whole = true;
  for (const row of rows) {
    const level = row.levels[0];
    for (let at = firstAfter(level, fromNs); at < level.from.length && level.from[at] <= toNs; at += 1) {
      const length = level.to[at] - level.from[at];
      const inside = Math.min(level.to[at], toNs) - Math.max(level.from[at], fromNs);
      if (inside < 0 || (inside === 0 && length > 0)) continue;
      const events = level.events[at];
      const share = length > 0 ? inside / length : 1;
      let known = byLabel.get(level.label[at]);
      if (!known) {
        known = { label: level.label[at], events: 0, ns: 0, longest: 0 };
        byLabel.set(level.label[at], known);
      }
      known.events += events > 1 ? Math.round(events * share) : 1;
      known.ns += level.busy[at] * share;
      known.longest = Math.max(known.longest, length);
      if (events > 1) {
        known.joined = true;
        if (share < 1) whole = false;
      }
    }
  }
  return { rows: [...byLabel.values()].sort((a, b) => b.ns - a.ns || b.events - a.events), whole };
}

// The labels that contain a text, in any case.
export function labelsWith(labels, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const found = new Set();
  labels.forEach(([name], number) => {
    if (name.toLowerCase().includes(wanted)) found.add(number);
  });
  return found;
}

// The slices with these labels in the order of time, `most` of them at most.
export function matchesOf(rows, wanted, most) {
  const found = [];
  let all = 0;
  for (const row of rows) {
    const level = row.levels[0];
    for (let at = 0; at < level.label.length; at += 1) {
      if (!wanted.has(level.label[at])) continue;
      all += 1;
      if (found.length < most) found.push({ row, at, from: level.from[at] });
    }
  }
  found.sort((a, b) => a.from - b.from);
  return { found, all };
}

// The slices inside one: deeper ones of its track while it lasts.
export function insideOf(rows, row, at) {
  const { from, to } = row.levels[0];
  const inside = [];
  for (const other of rows) {
    if (other.track !== row.track || other.depth <= row.depth) continue;
    const level = other.levels[0];
    for (let i = firstAfter(level, from[at]); i < level.from.length && level.from[i] <= to[at]; i += 1) {
      if (level.from[i] >= from[at] && level.to[i] <= to[at]) inside.push({ row: other, at: i });
    }
  }
  return inside;
}

// The slices of some flows: calls, and the work on the GPU that they started. It searches all slices, which costs less
// than an index of all flows.
export function flowsOf(rows, wanted, isThread) {
  const found = { calls: [], work: [] };
  if (!wanted.size) return found;
  for (const row of rows) {
    const part = isThread(row.track) ? found.calls : found.work;
    for (let at = 0; at < row.flow.length; at += 1) {
      if (row.flow[at] !== 0 && wanted.has(row.flow[at])) part.push({ row, at });
    }
  }
  return found;
}

// The number of a counter's last point up to a time; -1 before the first.
export function pointAt(points, ns) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (points[middle][0] <= ns) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// The value of a counter at a time; none before its first point.
export function valueAt(points, ns) {
  const at = pointAt(points, ns);
  return at >= 0 ? points[at][1] : null;
}
