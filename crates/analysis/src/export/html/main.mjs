// Starts the page: reads its blocks and shows its views. In: the blocks of the document. Out: tabs. A view is made when it
// is shown for the first time.
import { rowsOf, unpack } from "./decode.mjs";
import { element } from "./dom.mjs";
import { overviewOf } from "./overview.mjs";
import { reportsOf } from "./reports.mjs";
import { timelineOf } from "./timeline.mjs";
import { flameOf } from "./flame.mjs";
import { chartsOf } from "./charts.mjs";
import { diffOf, ranksOfJob } from "./together.mjs";

async function blockOf(id) {
  const block = document.getElementById(id);
  const bytes = await unpack(block.textContent);
  block.remove();
  return bytes;
}

// The process of a track: its parent, or that of the thread which is its parent.
function processOf(data) {
  const byId = new Map(data.tracks.map((track) => [track.id, track]));
  return (number) => {
    let track = data.tracks[number];
    while (track && byId.has(track.parent)) track = byId.get(track.parent);
    return track?.parent;
  };
}

async function read() {
  const [data, slices, details] = await Promise.all(["data", "slices", "details"].map(blockOf));
  const page = { data: JSON.parse(new TextDecoder().decode(data)), details };
  page.rows = rowsOf(page.data.rows, slices);
  page.processOf = processOf(page.data);
  return page;
}

// With several traces, a choice of one.
function eachTrace(page, make) {
  const { traces } = page.data;
  if (traces.length === 1) return make(traces[0]);
  const place = element("div");
  const show = (at) => place.replaceChildren(make(traces[at]));
  const options = traces.map((trace, at) => element("option", { value: at }, trace.file));
  const choice = element("select", { "aria-label": "trace", onchange: () => show(Number(choice.value)) }, options);
  show(0);
  return element("div", {}, element("div", { class: "bar" }, choice), place);
}

function viewsOf(page) {
  const views = [
    ["Overview", () => eachTrace(page, overviewOf)],
    ["Timeline", () => timelineOf(page).element],
    ["Charts", () => chartsOf(page)],
    ["Reports", () => eachTrace(page, reportsOf)],
  ];
  if (page.data.stacks.rows.length) views.push(["Flame graph", () => flameOf(page)]);
  // The comparison of several traces comes right after the overview.
  if (page.data.diff) views.splice(1, 0, ["Changes", () => diffOf(page)]);
  if (page.data.ranks) views.splice(1, 0, ["Ranks", () => ranksOfJob(page)]);
  return views;
}

function build(page) {
  const place = document.getElementById("views");
  const list = document.getElementById("tabs");
  const tabs = viewsOf(page).map(([name, make], at) => {
    const tab = element("button", { role: "tab", type: "button", id: `tab-${at}`, "aria-controls": `view-${at}` }, name);
    const panel = element("div", { role: "tabpanel", id: `view-${at}`, "aria-labelledby": `tab-${at}` });
    return { tab, panel, make, made: false };
  });
  const show = (chosen) => {
    for (const it of tabs) {
      const is = it === chosen;
      it.tab.setAttribute("aria-selected", is);
      it.tab.tabIndex = is ? 0 : -1;
      it.panel.hidden = !is;
    }
    if (!chosen.made) {
      chosen.made = true;
      chosen.panel.append(chosen.make());
    }
  };
  tabs.forEach((it, at) => {
    it.tab.addEventListener("click", () => show(it));
    it.tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = tabs[(at + by + tabs.length) % tabs.length];
      show(next);
      next.tab.focus();
      event.preventDefault();
    });
  });
  list.replaceChildren(...tabs.map((it) => it.tab));
  place.replaceChildren(...tabs.map((it) => it.panel));
  const files = page.data.traces.map((trace) => trace.file);
  document.getElementById("subject").replaceChildren(document.createTextNode(element("i", {}, files.join(", ")).textContent));
  show(tabs[0]);
}

read().then(build, (error) => {
  const state = document.getElementById("state");
  const old = "DecompressionStream" in globalThis ? "" : " This browser is too old: Chromium 85, Firefox 113, Safari 16.4 or later can read it.";
  state.textContent = `The trace cannot be shown: ${error.message}.${old}`;
});
