// The timeline and its hands: mouse, touch and keys. In: the page's data and rows. Out: elements; it draws when something
// has changed, once a frame.
import { count, duration, moment } from "./text.mjs";
import { firstAfter, labelsWith, lanesOf, matchesOf } from "./model.mjs";
import { around, panned, zoomed } from "./viewport.mjs";
import { AXIS, LANE, coloursOf, gutterOf, paint } from "./paint.mjs";
import { eventPanel, spanPanel } from "./panel.mjs";
import { element } from "./dom.mjs";

const MATCHES = 100000;
const WHOLE = "The whole recording";
const KEYS =
  "Keys: left and right move, + and - zoom, up and down scroll, 0 shows all, . and , go to the next and previous event of the row, n and p to the next and previous match, s selects what is shown, Escape clears.";

class Timeline {
  constructor(page) {
    this.page = page;
    this.lanes = lanesOf(page.data, page.rows);
    this.endNs = Math.max(page.data.end_ns, 100);
    this.view = { from: 0, to: this.endNs };
    this.labels = page.data.labels.map(([name]) => name);
    this.wanted = null;
    this.matches = { found: [], all: 0 };
    this.match = -1;
    this.selection = null;
    this.chosen = null;
    this.build();
  }

  build() {
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": "timeline", "aria-describedby": "keys" });
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.tall = element("div", { class: "tall" });
    this.box = element("div", { class: "lanes" }, this.canvas, this.tall);
    this.side = element("div", { class: "side", role: "region", "aria-label": "details", tabindex: 0 });
    this.said = element("span", { role: "status", class: "soft" });
    this.search = element("input", { type: "search", placeholder: "search by name", "aria-label": "search the timeline by name", oninput: () => this.find() });
    const button = (text, name, act) => element("button", { type: "button", "aria-label": name, title: name, onclick: act }, text);
    const bar = element(
      "div",
      { class: "bar" },
      button("+", "zoom in", () => this.zoom(0.5)),
      button("−", "zoom out", () => this.zoom(2)),
      button("←", "move left", () => this.pan(-0.25)),
      button("→", "move right", () => this.pan(0.25)),
      button("all", "show all", () => this.show({ from: 0, to: this.endNs })),
      button("select", "select what is shown", () => this.select({ ...this.view })),
      this.search,
      button("‹", "previous match", () => this.next(-1)),
      button("›", "next match", () => this.next(1)),
      this.said,
    );
    const legend = element("ul", { class: "legend" }, this.page.data.sorts.map((name, sort) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = `var(--sort-${sort})`;
      return element("li", {}, swatch, name);
    }));
    const help = element("p", { class: "soft", id: "keys" }, `Drag to move, Shift and drag to select, Control and the wheel to zoom, click for details. ${KEYS}`);
    this.element = element("section", { "aria-label": "timeline" }, this.about(), bar, element("div", { class: "time" }, this.box, this.side), legend, help);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.box.addEventListener("scroll", () => this.draw());
    this.hands();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.side.replaceChildren(...spanPanel(this.page, this.spanRows(), this.view, WHOLE));
  }

  // What the file does not have.
  about() {
    const { events, left_out: leftOut, below_ns: belowNs, details_from_ns: detailsNs } = this.page.data.kept;
    const said = [`${count(events)} events.`];
    if (belowNs > 0) said.push(`Neighbours that together are shorter than ${duration(belowNs)} are kept as one, so that the file stays small.`);
    if (detailsNs > 0) said.push(`Arguments are kept of events of ${duration(detailsNs)} or more.`);
    if (leftOut > 0) said.push(`${count(leftOut)} events of further tracks are not in this file.`);
    return element("p", { class: "soft", id: "kept" }, said.join(" "));
  }

  spanRows() {
    return this.lanes.filter((lane) => lane.kind === "row").map((lane) => lane.row);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    if (!this.width || !this.height) return;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.tall.style.height = `${Math.max(0, AXIS + this.lanes.length * LANE - this.height)}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.colours = coloursOf(this.page.data.labels, this.page.data.sorts);
    this.draw();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.drawNow();
    });
  }

  drawNow() {
    if (!this.colours) return;
    const gutter = gutterOf(this.width);
    const it = { ...this, gutter, colours: this.colours };
    paint(it, this.lanes, { scrollTop: this.box.scrollTop, height: this.height, selection: this.selection, chosen: this.chosen });
  }

  show(view) {
    this.view = view;
    this.canvas.setAttribute("aria-label", `timeline from ${moment(view.from, view.to - view.from)} to ${moment(view.to, view.to - view.from)}`);
    this.draw();
  }

  zoom(factor, at = (this.view.from + this.view.to) / 2) {
    this.show(zoomed(this.view, factor, at, this.endNs));
  }

  pan(share) {
    this.show(panned(this.view, (this.view.to - this.view.from) * share, this.endNs));
  }

  timeAt(x) {
    const gutter = gutterOf(this.width);
    return this.view.from + (Math.max(x - gutter, 0) / (this.width - gutter)) * (this.view.to - this.view.from);
  }

  // The event at a place of the canvas: of the finest level, within two pixels.
  eventAt(x, y) {
    const lane = this.lanes[Math.floor((y - AXIS + this.box.scrollTop) / LANE)];
    if (y < AXIS || lane?.kind !== "row") return null;
    const level = lane.row.levels[0];
    const ns = this.timeAt(x);
    const near = (2 * (this.view.to - this.view.from)) / this.width;
    let best = null;
    for (let at = firstAfter(level, ns - near); at < level.from.length && level.from[at] <= ns + near; at += 1) {
      const away = Math.max(level.from[at] - ns, ns - level.to[at], 0);
      if (best === null || away < best.away) best = { row: lane.row, at, away };
      if (level.from[at] > ns) break;
    }
    return best;
  }

  hands() {
    let from = null;
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      from = { ...place(event), view: this.view, selects: event.shiftKey, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const to = place(event);
      if (!from) {
        const found = this.eventAt(to.x, to.y);
        this.canvas.title = found ? this.textOf(found) : "";
        return;
      }
      if (Math.abs(to.x - from.x) > 3) from.moved = true;
      if (!from.moved) return;
      const ends = [this.timeAt(from.x), this.timeAt(to.x)].sort((a, b) => a - b);
      if (from.selects) this.mark({ from: ends[0], to: ends[1] });
      else this.show(panned(from.view, ((from.x - to.x) / (this.width - gutterOf(this.width))) * (from.view.to - from.view.from), this.endNs));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (from && !from.moved) {
        const found = this.eventAt(from.x, from.y);
        if (found) this.choose(found, false);
      } else if (from?.selects) this.select(this.selection);
      from = null;
      this.canvas.focus({ preventScroll: true });
      event.preventDefault();
    });
    this.canvas.addEventListener("pointercancel", () => {
      from = null;
    });
  }

  wheel(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    if (event.ctrlKey || event.metaKey || event.altKey) this.zoom(1.002 ** event.deltaY, this.timeAt(x));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.width);
    else return;
    event.preventDefault();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15),
      ArrowUp: () => this.box.scrollBy(0, -LANE * 2),
      ArrowDown: () => this.box.scrollBy(0, LANE * 2),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.show({ from: 0, to: this.endNs }),
      ".": () => this.step(1),
      ",": () => this.step(-1),
      n: () => this.next(1),
      p: () => this.next(-1),
      s: () => this.select({ ...this.view }),
      Escape: () => this.clear(),
    };
    if (!acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
  }

  textOf({ row, at }) {
    const level = row.levels[0];
    const several = level.events[at] > 1 ? `${level.events[at]} events, the longest ` : "";
    return `${several}${this.labels[level.label[at]]}, ${duration(level.to[at] - level.from[at])}, at ${moment(level.from[at], 1000)}`;
  }

  choose(found, goes) {
    this.chosen = { row: found.row, at: found.at };
    const level = found.row.levels[0];
    const [from, to] = [level.from[found.at], level.to[found.at]];
    if (goes && (from < this.view.from || to > this.view.to || to - from < (this.view.to - this.view.from) / 200)) {
      this.show(around(from, to, this.endNs));
    }
    if (goes) {
      const top = this.lanes.findIndex((lane) => lane.row === found.row) * LANE;
      const { scrollTop } = this.box;
      if (top < scrollTop || top > scrollTop + this.height - 2 * LANE - AXIS) this.box.scrollTop = Math.max(0, top - this.height / 2);
    }
    this.said.textContent = this.textOf(found);
    this.side.replaceChildren(...eventPanel(this.page, this.chosen, (other) => this.choose(other, true)).flat());
    this.side.scrollTop = 0;
    this.draw();
  }

  // The next event of the row; without one, the first that is shown.
  step(by) {
    if (!this.chosen) {
      const row = this.spanRows().find((one) => one.levels[0].from.length > 0);
      if (row) this.choose({ row, at: Math.min(firstAfter(row.levels[0], this.view.from), row.levels[0].from.length - 1) }, true);
      return;
    }
    const at = this.chosen.at + by;
    if (at >= 0 && at < this.chosen.row.levels[0].from.length) this.choose({ row: this.chosen.row, at }, true);
  }

  mark(span) {
    this.selection = span;
    this.draw();
  }

  select(span) {
    if (!span) return;
    this.mark(span);
    this.chosen = null;
    this.side.replaceChildren(...spanPanel(this.page, this.spanRows(), span));
    this.said.textContent = `selected ${duration(span.to - span.from)}`;
  }

  clear() {
    this.selection = null;
    this.chosen = null;
    this.said.textContent = "";
    this.side.replaceChildren(...spanPanel(this.page, this.spanRows(), { from: 0, to: this.endNs }, WHOLE));
    this.draw();
  }

  find() {
    this.wanted = labelsWith(this.page.data.labels, this.search.value);
    this.matches = this.wanted ? matchesOf(this.spanRows(), this.wanted, MATCHES) : { found: [], all: 0 };
    this.match = -1;
    this.said.textContent = this.wanted ? `${count(this.matches.all)} matches` : "";
    this.draw();
  }

  next(by) {
    const { found } = this.matches;
    if (!found.length) return;
    this.match = (this.match + by + found.length) % found.length;
    this.choose(found[this.match], true);
    this.said.textContent = `match ${count(this.match + 1)} of ${count(this.matches.all)}: ${this.textOf(found[this.match])}`;
  }
}

export function timelineOf(page) {
  return new Timeline(page);
}
