// The shapes of charts. In: points, and sums over pieces of time. Out: columns of equal width, and their SVG paths in a
// box that is 1000 wide and 100 high. Not here: elements, texts and colours.

export const WIDE = 1000;
export const HIGH = 100;

// The highest value in each column of time: a counter keeps its value until its next point.
export function peaksOf(points, endNs, columns) {
  const peaks = new Float64Array(columns);
  const column = (ns) => Math.min(columns - 1, Math.max(0, Math.floor((ns / endNs) * columns)));
  points.forEach(([ns, , highest], at) => {
    const own = column(ns);
    peaks[own] = Math.max(peaks[own], highest);
    const next = at + 1 < points.length ? column(points[at + 1][0]) : columns - 1;
    const value = points[at][1];
    for (let later = own + 1; later <= next; later += 1) peaks[later] = Math.max(peaks[later], value);
  });
  return peaks;
}

// Joins pieces of equal time to at most `most` columns, which reach to the end of the recording.
export function sumsOf(pieces, eachNs, endNs, most) {
  const all = Math.max(pieces.length, Math.ceil(endNs / eachNs), 1);
  const times = Math.max(1, Math.ceil(all / most));
  const sums = new Float64Array(Math.ceil(all / times));
  pieces.forEach((value, at) => {
    sums[Math.floor(at / times)] += value;
  });
  return { sums, eachNs: eachNs * times };
}

function rounded(n) {
  return Math.round(n * 100) / 100;
}

// The path of columns that stand on others. `below` has the heights that they stand on; this adds theirs to it.
export function pathOf(values, below, most) {
  const wide = WIDE / values.length;
  const height = (value) => HIGH - (value / most) * HIGH;
  let path = "";
  for (let at = 0; at < values.length; at += 1) {
    const from = below[at];
    below[at] += values[at];
    if (!(values[at] > 0)) continue;
    let to = at + 1;
    // Neighbours of equal height become one box.
    while (to < values.length && values[to] === values[at] && below[to] === from) {
      below[to] += values[to];
      to += 1;
    }
    path += `M${rounded(at * wide)} ${rounded(height(from))}V${rounded(height(below[at]))}H${rounded(to * wide)}V${rounded(height(from))}Z`;
    at = to - 1;
  }
  return path;
}

// The height of the highest column, of several on top of each other.
export function mostOf(all) {
  const sums = all[0].map((_, at) => all.reduce((sum, values) => sum + values[at], 0));
  return sums.reduce((most, sum) => Math.max(most, sum), 0);
}
