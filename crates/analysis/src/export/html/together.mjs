// What several traces say about each other: the ranks of a job, and what changed between two recordings. In: the
// documents of `ranks --json` and `diff --json`. Out: elements. Every figure comes from those documents.
import { bytes, count, duration } from "./text.mjs";
import { tableOf } from "./table.mjs";
import { columns, element, facts } from "./dom.mjs";

// A table of objects. A column is a head, a function that finds the value, and one that shows it; without that, the
// value is text.
function tableOfObjects(title, what, objects, specs) {
  if (!objects?.length) return [];
  const cell = (object, [, value, show]) => {
    const found = value(object);
    if (found === null || found === undefined) return null;
    return show ? [found, show(found)] : String(found);
  };
  const rows = objects.map((object) => specs.map((spec) => cell(object, spec)));
  const heads = specs.map(([head, , show]) => ({ head, key: head, text: !show }));
  return [element("h3", {}, `${title}: ${count(objects.length)}`), tableOf({ columns: heads, rows, more: 0, what, key: what })];
}

const paragraphs = (texts) => (texts ?? []).map((text) => element("p", { class: "soft" }, text));
const who = (it) => it.rank ?? "?";
const signed = (ns) => (ns < 0 ? `−${duration(-ns)}` : duration(ns));
const ranksIn = (all) => (all ?? []).map((rank) => rank ?? "?").join(", ");

function hung(hang) {
  const came = (it) => it.is_missing && it.last?.seq === hang.seq;
  const did = hang.in_flight.some(came) ? "called something else as" : "did not call";
  const absent = `${hang.missing.length === 1 ? "rank" : "ranks"} ${ranksIn(hang.missing)}`;
  const unknown = hang.unknown.length ? ` The traces of ranks ${ranksIn(hang.unknown)} end before that.` : "";
  return `Hang: ${absent} ${did} ${hang.op} number ${hang.seq} of ${hang.comm}, in which others waited for ${duration(hang.stood_ns)}.${unknown}`;
}

function verdictOfJob(ranks) {
  const lines = [];
  const more = ranks.more_missing ? ` and ${count(ranks.more_missing)} more` : "";
  if (ranks.missing.length) lines.push(`No trace of ranks ${ranksIn(ranks.missing)}${more}.`);
  const cut = ranks.ranks.filter((it) => !it.complete);
  if (cut.length) lines.push(`The traces of ranks ${ranksIn(cut.map(who))} are not complete.`);
  ranks.hangs.forEach((hang) => lines.push(hung(hang)));
  const differ = ranks.mismatches.length + ranks.more_mismatches;
  if (differ) lines.push(`Collectives that were called with different arguments: ${count(differ)}.`);
  if (!lines.length) return [element("p", { class: "verdict good" }, "All traces are complete, nothing hangs, and no collective differs.")];
  return [element("ul", { class: "verdict bad" }, lines.map((line) => element("li", {}, line)))];
}

const CAUSES = { own_code: "own code, in no recorded call", off_cpu: "off the CPU", gpu_busy: "its GPU had other work" };

function causes(straggler) {
  return straggler.causes
    .map((cause) => {
      const site = cause.site && cause.kind === "call" ? ` at ${cause.site}` : "";
      const request = cause.request ? ` in ${cause.request}` : "";
      return `${CAUSES[cause.kind] ?? cause.name ?? ""}${request}${site}: ${duration(cause.excess_ns)} more than the others`;
    })
    .join("; ");
}

function stuck(hang) {
  return hang.in_flight.map((it) => ({ ...it, comm: hang.comm }));
}

function inCalls(it) {
  // The outermost call comes first.
  const thread = (one) => `${one.calls.join(" > ")}${one.request ? ` (${one.request})` : ""}${one.site ? ` at ${one.site}` : ""}, for ${duration(one.for_ns)}`;
  const open = it.threads.map(thread).join("; ");
  return [it.process, open].filter(Boolean).join(", while in ") || "no recorded call";
}

export function ranksOfJob(page) {
  const { ranks } = page.data;
  const { skew } = ranks;
  const hosts = new Set(ranks.ranks.map((it) => it.host));
  const known = [
    ["Ranks", count(ranks.ranks.length)],
    ["Hosts", count(hosts.size)],
    ["Collectives matched", count(ranks.collectives.reduce((sum, it) => sum + it.count, 0))],
    ["Ranks arrive apart by, median", skew.p50_ns === null ? "not known" : duration(skew.p50_ns)],
    ["99 % within", skew.p99_ns === null ? "not known" : duration(skew.p99_ns)],
    ["At most", skew.max_ns === null ? "not known" : duration(skew.max_ns)],
  ];
  const tables = [
    tableOfObjects("Stragglers: ranks that came last", "stragglers", ranks.stragglers, [
      ["Rank", who, String],
      ["Cost to the others", (it) => it.cost_ns, duration],
      ["Came last at", (it) => it.collectives, count],
      ["What it did longer than the others", causes],
    ]),
    tableOfObjects("Hangs: where each rank is", "ranks in hangs", ranks.hangs.flatMap(stuck), [
      ["Rank", who, String],
      ["Is missing", (it) => (it.is_missing ? "yes" : "no")],
      ["Communicator", (it) => it.comm],
      ["Is in", inCalls],
      ["Last call", (it) => (it.last ? `${it.last.op} number ${it.last.seq}` : null)],
    ]),
    tableOfObjects("Collectives with different arguments", "mismatches", ranks.mismatches, [
      ["Communicator", (it) => it.comm],
      ["Number", (it) => it.seq, count],
      ["From, to", (it) => (it.peers ? it.peers.join(", ") : null)],
      ["Differs in", (it) => it.field],
      ["Values by rank", (it) => Object.entries(it.values).map(([rank, value]) => `${rank}: ${value ?? "none"}`).join(", ")],
    ]),
    tableOfObjects("Collectives by communicator and operation", "collectives", ranks.collectives, [
      ["Operation", (it) => it.op],
      ["Communicator", (it) => it.comm],
      ["Count", (it) => it.count, count],
      ["Waiting for the last", (it) => it.wait_ns, duration],
      ["After the last came", (it) => it.transfer_ns, duration],
      ["Ranks", (it) => it.ranks, count],
    ]),
    tableOfObjects("Kernels that are slower on one rank", "slow kernels", ranks.slow_kernels, [
      ["Rank", who, String],
      ["Kernel", (it) => it.kernel],
      ["Runs", (it) => it.count, count],
      ["Average", (it) => it.avg_ns, duration],
      ["Of the others", (it) => it.others_avg_ns, duration],
    ]),
    tableOfObjects("Calls that one rank makes more or less often", "differences", ranks.differences, [
      ["Rank", who, String],
      ["Function", (it) => it.function],
      ["Calls", (it) => it.calls, count],
      ["Of the others", (it) => it.others, count],
      ["Time", (it) => it.time_ns, duration],
    ]),
    tableOfObjects("Clocks of the hosts", "clocks", ranks.clocks, [
      ["Host", (it) => it.host],
      ["Ahead by", (it) => (it.source === "none" ? null : it.offset_ns), signed],
      ["Within ±", (it) => it.error_ns, duration],
      ["From", (it) => it.source],
      ["Remarks", (it) => it.notes.join("; ") || null],
    ]),
    tableOfObjects("Ranks", "ranks", ranks.ranks, [
      ["Rank", who, String],
      ["Host", (it) => it.host],
      ["PID", (it) => it.pid, String],
      ["Complete", (it) => (it.complete ? "yes" : `no: ${it.reasons.join("; ") || "it has no end line"}`)],
      ["Trace", (it) => it.file],
      ["Driver errors", (it) => it.xids.join("; ") || null],
    ]),
  ];
  const job = ranks.job ? columns([["Job", ranks.job]]) : null;
  return element("section", { "aria-label": "ranks" }, element("h2", {}, "The ranks of the job"), job, verdictOfJob(ranks), facts(known, "figures"), tables.flat(), paragraphs(ranks.notes));
}

const UNITS = { ns: duration, bytes };

function figureOf(value, unit) {
  return value === null ? "not known" : (UNITS[unit] ?? ((it) => (Number.isInteger(it) ? count(it) : String(it))))(value);
}

function changeOf(before, after, show) {
  const sign = after > before ? "+" : after < before ? "−" : "";
  return `${sign}${show(Math.abs(after - before))}`;
}

function changes(title, what, all, key, show) {
  return tableOfObjects(title, what, all, [
    ["Name", (it) => it.name],
    ["Before", (it) => it[key].before, show],
    ["After", (it) => it[key].after, show],
    ["Change", (it) => it[key].after - it[key].before, (by) => changeOf(0, by, show)],
    ["Follows", (it) => it.follows],
  ]);
}

export function diffOf(page) {
  const { diff } = page.data;
  const of = (what) => diff.changes.filter((change) => change.what === what);
  const totals = diff.totals.map((total) => ({ ...total, change: total.before === null || total.after === null ? null : total.after - total.before }));
  const unit = (total) => (value) => figureOf(value, total.unit);
  const rows = totals.map((total) => [
    total.name,
    [total.before, figureOf(total.before, total.unit)],
    [total.after, figureOf(total.after, total.unit)],
    total.change === null ? (total.unknown ?? "not known") : [total.change, changeOf(total.before, total.after, unit(total))],
  ]);
  const heads = [["Figure", true], ["Before", false], ["After", false], ["Change", false]].map(([head, text]) => ({ head, key: head, text }));
  const sites = (title, what, all) =>
    tableOfObjects(title, what, all, [
      ["Role", (it) => it.role],
      ["Call site", (it) => it.call_site],
      ["Calls", (it) => it.calls, count],
      ["Time", (it) => it.time_ns, duration],
      ["Bytes", (it) => it.bytes, bytes],
    ]);
  const files = page.data.traces.map((trace) => trace.file);
  const none = diff.changes.length ? [] : [element("p", { class: "verdict good" }, "No function and no kernel changed.")];
  return element(
    "section",
    { "aria-label": "comparison" },
    element("h2", {}, "What changed"),
    columns([["Before", files[0]], ["After", files[1]]]),
    paragraphs(diff.notes),
    tableOf({ columns: heads, rows, more: 0, what: "figures", key: "totals" }),
    none,
    changes("More or fewer errors", "changed errors", of("errors"), "errors", count),
    changes("Called more or less often", "changed counts", of("counts"), "calls", count),
    changes("Slower or faster", "changed times", of("times"), "time_ns", duration),
    sites("Call sites that appeared", "call sites that appeared", diff.call_sites?.appeared),
    sites("Call sites that are gone", "call sites that are gone", diff.call_sites?.gone),
  );
}
