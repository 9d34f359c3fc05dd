// Text for people. In: texts of a trace, which may be hostile, and numbers. Out: text that shows every control character
// as an escape, and figures with their units. Not here: anything of a document.

// Control characters, and those that reorder, join or hide others.
const UNSAFE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]/g;

export function clean(text) {
  return String(text).replace(UNSAFE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// The same for a text of several lines; line feeds stay.
export function cleanLines(text) {
  return String(text).split("\n").map(clean).join("\n");
}

export function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function duration(ns) {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  const unit = units.find(([scale]) => ns >= scale);
  return unit ? `${digits(ns / unit[0])} ${unit[1]}` : `${Math.round(ns)} ns`;
}

export function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  while (n >= 1024 && at + 1 < units.length) {
    n /= 1024;
    at += 1;
  }
  return at === 0 ? `${n} bytes` : `${digits(n)} ${units[at]}`;
}

export function count(n) {
  return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

// A time of the recording, with as many decimals as a step of this length needs.
export function moment(ns, stepNs) {
  const decimals = Math.min(9, Math.max(0, Math.ceil(9 - Math.log10(Math.max(1, stepNs)))));
  return `${(ns / 1e9).toFixed(decimals)} s`;
}
