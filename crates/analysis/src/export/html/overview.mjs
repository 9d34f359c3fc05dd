// The overview of a trace. In: its header, its summary and its report `waste`. Out: elements. Every figure is that of
// `summary --json`.
import { bytes, clean, count, duration } from "./text.mjs";
import { columns, element, facts, lines } from "./dom.mjs";
import { tableIn, textOf } from "./rows.mjs";

function figureAt(summary, path) {
  // What is in something that is not known is not known either.
  return path.split(".").reduce((value, key) => (value === null ? null : value?.[key]), summary);
}

// A figure, or why it is not known.
function figure(summary, [name, path, show]) {
  const value = figureAt(summary, path);
  if (value === undefined) return null;
  const figures = [path, ...path.split(".").map((_, at, all) => all.slice(0, at).join("."))];
  const reason = figures.map((key) => summary.unknown?.[key]).find(Boolean);
  if (value === null) return [name, "not known", element("small", { class: "soft" }, reason ?? "")];
  return [name, show(value)];
}

const FIGURES = [
  ["Recorded", "duration_ns", duration],
  ["CUDA API calls", "cuda_calls", count],
  ["Kernel launches", "kernel_launches", count],
  ["Graph launches", "graph_launches", count],
  ["Failed calls", "failures.calls", count],
  ["Memory allocations", "memory.allocations", count],
  ["Memory allocated", "memory.allocated_bytes", bytes],
  ["Never freed", "memory.leaks.bytes", bytes],
  ["Memory transfers", "transfers.count", count],
  ["Data transferred", "transfers.bytes", bytes],
  ["Time in waits", "sync.total_ns", duration],
  ["GPU busy", "gpu.busy_ns", duration],
  ["GPU idle", "gpu.idle_ns", duration],
  ["Events lost", "lost", count],
];

function verdict(summary) {
  const reasons = summary.incomplete_because ?? [];
  if (summary.complete) {
    return [element("p", { class: "verdict good" }, "Complete: no call and no record was lost.")];
  }
  const list = element("ul", {}, reasons.map((reason) => element("li", {}, reason)));
  return [element("p", { class: "verdict bad" }, "Not complete:"), list];
}

function findings(reports) {
  const { rows, at } = tableIn(reports, "waste", "findings");
  if (!rows.length) return [element("p", { class: "soft" }, "Nothing found that could be better.")];
  const item = (row) => {
    const cost = at(row, "cost_ns");
    const share = at(row, "cost_percent");
    const head = cost === null ? "no time, but a mistake" : `${duration(cost[0])} (${textOf(share)} % of the recording)`;
    const site = at(row, "call_site");
    return element(
      "li",
      {},
      element("strong", {}, `${head}, ${count(textOf(at(row, "times")))} times: `),
      textOf(at(row, "what")),
      site === null ? null : element("div", { class: "soft" }, `from: ${textOf(site)}`),
      element("div", {}, `try: ${textOf(at(row, "advice"))}`),
    );
  };
  return [element("ol", { class: "findings" }, rows.map(item))];
}

function recorded({ file, header }) {
  const command = header.command?.join(" ");
  const pairs = [
    ["Trace", file],
    ["Command", command],
    ["PIDs", header.pids?.join(", ")],
    ["Started", header.start],
    ["Host", header.host],
    ["User", header.user],
    ["Linux", header.kernel],
    ["NVIDIA driver", header.driver],
    ["Options", JSON.stringify(header.options ?? {})],
    ["gpurec", header.version],
  ];
  return columns(pairs.filter(([, value]) => value !== undefined && value !== null && value !== ""));
}

function processes(summary) {
  const rows = summary.processes ?? [];
  const ended = (it) => (it.signal ? `signal ${it.signal}` : it.status === null || it.status === undefined ? "" : it.status);
  const row = (it) =>
    element(
      "tr",
      {},
      [it.pid, it.rank ?? "", count(it.calls), bytes(it.peak_device_bytes ?? 0), ended(it)].map((text) => element("td", {}, text)),
      element("td", { class: "text" }, (it.command ?? []).join(" ")),
    );
  const heads = ["PID", "Rank", "Calls", "Peak on the device", "Exit status"].map((text) => element("th", { scope: "col" }, text));
  const head = element("tr", {}, heads, element("th", { scope: "col", class: "text" }, "Command"));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, rows.map(row)));
  const more = summary.more_processes ?? 0;
  return element(
    "div",
    {},
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "processes" }, table),
    more ? element("p", { class: "soft" }, `and ${count(more)} more processes`) : null,
  );
}

export function overviewOf(trace) {
  const { summary, reports, notes, text } = trace;
  const known = FIGURES.map((one) => figure(summary, one)).filter(Boolean);
  const all = [...new Set([...(summary.notes ?? []), ...notes])].map((note) => element("p", { class: "soft" }, note));
  return element(
    "section",
    { "aria-label": `overview of ${clean(trace.file)}` },
    element("h2", {}, "What was recorded"),
    recorded(trace),
    verdict(summary),
    all,
    element("h2", {}, "Key figures"),
    facts(known, "figures"),
    element("h2", {}, "What could be better"),
    findings(reports),
    element("h2", {}, "Processes"),
    processes(summary),
    element("details", {}, element("summary", {}, "The whole summary, as gpurec prints it"), lines(text)),
  );
}
