// The reports of a trace. In: the parts of each report as page.rs writes them. Out: elements.
import { element, lines } from "./dom.mjs";
import { tableOf } from "./table.mjs";

function part(it) {
  if (it.title !== undefined) return element("h3", {}, it.title);
  if (it.words !== undefined) return element("p", { class: "soft" }, it.words);
  if (it.lines !== undefined) return lines(it.lines);
  if (it.table) return it.table.rows.length ? tableOf(it.table) : null;
  if (!it.data.rows.length) return null;
  return element("details", {}, element("summary", {}, `all of: ${it.data.what}`), tableOf(it.data));
}

function reportOf(report) {
  const notes = report.notes.map((note) => element("p", { class: "soft" }, `note: ${note}`));
  const head = element("h2", {}, `${report.view}: ${report.what}`);
  return element("section", { "data-report": report.view, "aria-label": `report ${report.view}` }, head, report.parts.map(part), notes);
}

export function reportsOf(trace) {
  const place = element("div");
  const show = (view) => place.replaceChildren(reportOf(trace.reports.find((report) => report.view === view)));
  const options = trace.reports.map((report) => element("option", { value: report.view }, `${report.view}: ${report.what}`));
  const choice = element("select", { "aria-label": "report", id: "report", onchange: () => show(choice.value) }, options);
  show(trace.reports[0].view);
  return element("section", { "aria-label": "reports" }, element("div", { class: "bar" }, element("label", { for: "report" }, "Report"), choice), place);
}
