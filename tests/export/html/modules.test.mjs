// Tests of the page's modules that need no browser: node --test tests/export/html
import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const from = (name) => import(`../../../crates/analysis/src/export/html/${name}.mjs`);
const { bytes, clean, cleanLines, count, duration, moment } = await from("text");
const { detailsOf, rowsOf, unpack } = await from("decode");
const model = await from("model");
const { around, levelFor, panned, ticksOf, zoomed } = await from("viewport");
const { asText, filtered, sorted, tableIn, textOf } = await from("rows");
const { boxesOf, treeOf } = await from("tree");

function leb128(numbers) {
  const out = [];
  for (let n of numbers) {
    while (n >= 128) {
      out.push((n % 128) + 128);
      n = Math.floor(n / 128);
    }
    out.push(n);
  }
  return Uint8Array.from(out);
}

// A row as rowsOf makes it: slices of begin, end, label and more.
function rowOf(track, depth, slices) {
  const column = (key, otherwise) => slices.map((slice) => slice[key] ?? otherwise);
  const level = {
    belowNs: 0,
    from: Float64Array.from(column("from")),
    to: Float64Array.from(column("to")),
    label: Uint32Array.from(column("label", 0)),
    events: Uint32Array.from(column("events", 1)),
    busy: Float64Array.from(slices.map((slice) => slice.busy ?? slice.to - slice.from)),
  };
  return { track, depth, levels: [level], stack: Uint32Array.from(column("stack", 0)), flow: Float64Array.from(column("flow", 0)) };
}

test("hostile text shows its control characters", () => {
  assert.equal(clean("a\u001b[31mb\u202ec\u0000\u200b"), "a\\u{1b}[31mb\\u{202e}c\\u{0}\\u{200b}");
  assert.equal(clean("<script>é漢"), "<script>é漢");
  assert.equal(cleanLines("a\nb\r"), "a\nb\\u{d}");
});

test("figures have units", () => {
  assert.deepEqual([0, 999, 1500, 2.5e6, 12e9].map(duration), ["0 ns", "999 ns", "1.50 µs", "2.50 ms", "12.0 s"]);
  assert.deepEqual([0, 1023, 1536, 5 * 2 ** 30].map(bytes), ["0 bytes", "1023 bytes", "1.50 KiB", "5.00 GiB"]);
  assert.equal(count(1234567), "1,234,567");
  assert.equal(moment(1.5e9, 1e8), "1.5 s");
  assert.equal(moment(1500000001, 1), "1.500000001 s");
});

test("the columns of a row are read back", async () => {
  const large = 2 ** 45;
  const numbers = [10, large, 2, 3, 0, 1, 1, 5, 2, 4, 0, 7, 0, 2, 0, 10, large + 5, 1, 6, large];
  const plan = [[6, 0, [[0, 2], [1024, 1]]]];
  const [row] = rowsOf(plan, leb128(numbers));
  const [fine, coarse] = row.levels;
  assert.deepEqual([...fine.from, ...fine.to], [10, 10 + large, 12, 13 + large]);
  assert.deepEqual([...fine.label, ...fine.events, ...fine.busy], [0, 1, 1, 5, 2, 2]);
  assert.deepEqual([...row.stack, ...row.flow, ...row.detailsAt], [4, 0, 7, 0, 0, 2, 2]);
  assert.deepEqual([coarse.belowNs, coarse.events[0], coarse.busy[0]], [1024, 6, large]);
  assert.deepEqual(detailsOf(row, 0, new TextEncoder().encode("{}")), {});
  assert.equal(detailsOf(row, 1, new TextEncoder().encode("{}")), null);
  assert.throws(() => rowsOf(plan, leb128(numbers).subarray(0, 9)), /cut/);
  const packed = gzipSync("a trace").toString("base64");
  assert.equal(new TextDecoder().decode(await unpack(packed)), "a trace");
});

test("details of begin and end are one object", () => {
  const text = new TextEncoder().encode('{"a":1},{"b":"</script>"}');
  const row = { detailsAt: Float64Array.of(0, text.length) };
  assert.deepEqual(detailsOf(row, 0, text), { a: 1, b: "</script>" });
});

test("lanes stand beneath their process and their thread", () => {
  const tracks = [
    { id: 10, parent: 1, name: "GPU 0 stream 7", thread: false },
    { id: 11, parent: 1, name: "main", thread: true },
    { id: 12, parent: 11, name: "thread 1 off the CPU", thread: false },
    { id: 13, parent: 1, name: "GPU 0 stream 7", thread: false },
  ];
  const counters = [{ process: 1, name: "live memory: device", points: [[0, 1, 1]] }];
  const data = { processes: [{ id: 1, name: "python" }, { id: 2, name: "without rows" }], tracks, counters };
  const slices = [{ from: 0, to: 1 }];
  const rows = [rowOf(0, 0, slices), rowOf(1, 1, slices), rowOf(1, 0, slices), rowOf(2, 0, slices), rowOf(3, 0, slices), rowOf(99, 0, slices)];
  const lanes = model.lanesOf(data, rows).map((lane) => `${lane.kind}:${lane.title}:${lane.row?.depth ?? ""}`);
  const expected = ["process:python:", "row:main:0", "row::1", "row:thread 1 off the CPU:0", "row:GPU 0 stream 7:0", "row::0"];
  assert.deepEqual(lanes, [...expected, "counter:live memory: device:", "process:more tracks:", "row::0"]);
});

test("figures of a span count what is in it", () => {
  const row = rowOf(0, 0, [{ from: 0, to: 10 }, { from: 20, to: 40, label: 1 }, { from: 50, to: 50, label: 2 }, { from: 60, to: 160, events: 10, busy: 50 }]);
  const all = model.figuresOf([row], 0, 1000);
  assert.equal(all.whole, true);
  assert.deepEqual(all.rows.map(({ label, events, ns }) => [label, events, ns]), [[0, 11, 60], [1, 1, 20], [2, 1, 0]]);
  const part = model.figuresOf([row], 30, 110);
  assert.equal(part.whole, false);
  assert.deepEqual(part.rows.map(({ label, events, ns }) => [label, events, ns]), [[0, 5, 25], [1, 1, 10], [2, 1, 0]]);
  assert.deepEqual(model.figuresOf([row], 11, 19).rows, []);
});

test("a search finds names in any case, in the order of time", () => {
  const labels = [["cudaMalloc", 3], ["cuMemAlloc_v2", 3], ["cudaFree", 3]];
  const wanted = model.labelsWith(labels, " ALLOC ");
  assert.deepEqual([...wanted], [0, 1]);
  assert.equal(model.labelsWith(labels, " "), null);
  const rows = [rowOf(0, 0, [{ from: 50, to: 60, label: 0 }]), rowOf(1, 0, [{ from: 1, to: 2, label: 1 }, { from: 3, to: 4, label: 2 }])];
  const { found, all } = model.matchesOf(rows, wanted, 10);
  assert.deepEqual([found.map((match) => match.from), all], [[1, 50], 2]);
});

test("a call knows what is inside it and what it started", () => {
  const outer = rowOf(0, 0, [{ from: 0, to: 100 }, { from: 200, to: 300 }]);
  const inner = rowOf(0, 1, [{ from: 10, to: 20, flow: 5 }, { from: 210, to: 220, flow: 6 }]);
  const stream = rowOf(1, 0, [{ from: 400, to: 500, flow: 5 }]);
  const inside = model.insideOf([outer, inner, stream], outer, 0);
  assert.deepEqual(inside, [{ row: inner, at: 0 }]);
  const flows = (wanted) => model.flowsOf([outer, inner, stream], new Set(wanted), (track) => track === 0);
  assert.deepEqual(flows([5]), { calls: [{ row: inner, at: 0 }], work: [{ row: stream, at: 0 }] });
  assert.deepEqual(flows([]), { calls: [], work: [] });
  const points = [[10, 1, 1], [20, 5, 9]];
  assert.deepEqual([5, 10, 19, 20, 99].map((ns) => model.valueAt(points, ns)), [null, 1, 1, 5, 5]);
});

test("zooming keeps the place and stays in the recording", () => {
  const view = { from: 1000, to: 2000 };
  assert.deepEqual(zoomed(view, 0.5, 1500, 1e6), { from: 1250, to: 1750 });
  assert.deepEqual(zoomed(view, 1e9, 1500, 1e6), { from: 0, to: 1e6 });
  const close = zoomed(view, 1e-9, 1500, 1e6);
  assert.equal(close.to - close.from, 100);
  assert.deepEqual(panned(view, -5000, 1e6), { from: 0, to: 1000 });
  assert.deepEqual(panned(view, 1e9, 1e6), { from: 999000, to: 1e6 });
  const near = around(500, 600, 1e6);
  assert.ok(near.from <= 500 && near.to >= 600);
});

test("the level is the coarsest that shows no difference", () => {
  const row = { levels: [{ belowNs: 0 }, { belowNs: 1024 }, { belowNs: 65536 }] };
  assert.deepEqual([1, 1024, 70000].map((ns) => levelFor(row, ns).belowNs), [0, 1024, 65536]);
  const { step, ticks } = ticksOf({ from: 130, to: 920 }, 8);
  assert.deepEqual([step, ticks[0], ticks.at(-1)], [100, 200, 900]);
});

test("tables are sorted by value, and what is missing comes last", () => {
  const rows = [["b", [9, "9.0"]], ["a", [10, "10.0"]], ["c", null]];
  assert.deepEqual(sorted(rows, 1, true).map((row) => row[0]), ["a", "b", "c"]);
  assert.deepEqual(sorted(rows, 1, false).map((row) => row[0]), ["b", "a", "c"]);
  assert.deepEqual(sorted(rows, 0, false).map((row) => row[0]), ["a", "b", "c"]);
  assert.deepEqual(filtered(rows, "10").map((row) => row[0]), ["a"]);
  assert.equal(filtered(rows, "").length, 3);
  assert.equal(textOf([1, "1.0"]), "1.0");
  assert.equal(asText(["n", "v"], [["=1+1\tx", [-5, "-5"]]]), "n\tv\n'=1+1 x\t-5");
});

test("a chart has the highest value of each column, and every byte", async () => {
  const { mostOf, pathOf, peaksOf, sumsOf } = await from("chart");
  const points = [[10, 5, 5], [50, 1, 9], [90, 7, 7]];
  assert.deepEqual([...peaksOf(points, 100, 10)], [0, 5, 5, 5, 5, 9, 1, 1, 1, 7]);
  assert.deepEqual([...peaksOf([], 100, 2)], [0, 0]);
  const { sums, eachNs } = sumsOf([1, 2, 3, 4, 5], 10, 100, 5);
  assert.deepEqual([[...sums], eachNs], [[3, 7, 5, 0, 0], 20]);
  const below = new Float64Array(4);
  assert.equal(pathOf([2, 2, 0, 1], below, 4), "M0 100V50H500V100ZM750 100V75H1000V100Z");
  assert.equal(pathOf([0, 0, 0, 3], below, 4), "M750 75V0H1000V75Z");
  assert.deepEqual([...below], [2, 2, 0, 4]);
  assert.equal(mostOf([[1, 2], [3, 1]]), 4);
});

test("a table is found by its report and key", () => {
  const table = { key: "causes", columns: [{ key: "what" }, { key: "ns" }], rows: [["x", [5, "5"]]] };
  const reports = [{ view: "idle", parts: [{ title: "t" }, { table }] }];
  const { rows, at } = tableIn(reports, "idle", "causes");
  assert.deepEqual([rows.length, at(rows[0], "ns")], [1, [5, "5"]]);
  assert.deepEqual(tableIn(reports, "idle", "none").rows, []);
});

test("a flame graph has a frame once for each place", () => {
  const stacks = {
    frames: [["inner", "a.py:1"], ["outer", "a.py:9"]],
    stacks: [{ frames: [0, 1], cut: false }, { frames: [1], cut: true }],
    rows: [[0, "cudaMalloc", 30, 0, 0, 1], [0, "cudaFree", 10, 0, 0, 1], [1, "cudaFree", 5, 0, 0, 1], [null, "x", 55, 0, 0, 1]],
  };
  const root = treeOf(stacks, 2);
  assert.equal(root.value, 100);
  const boxes = boxesOf(root, 0.001).map(({ node, depth, width }) => `${depth} ${node.text} ${Math.round(width * 100)}`);
  assert.ok(boxes.includes("1 outer 40") && boxes.includes("3 cudaMalloc 30") && boxes.includes("1 [frames missing] 60"));
  assert.ok(!boxesOf(root, 0.06).some(({ node }) => node.value === 5));
});

// As slices.rs joins short neighbours.
function coarser({ from, to, label, events, busy }, belowNs) {
  const made = { from: [], to: [], label: [], events: [], busy: [] };
  for (let at = 0; at < from.length; at += 1) {
    const last = made.from.length - 1;
    if (last >= 0 && to[at] - made.from[last] < belowNs) {
      made.to[last] = to[at];
      made.events[last] += events[at];
      made.busy[last] += busy[at];
    } else {
      for (const [key, column] of Object.entries({ from, to, label, events, busy })) made[key].push(column[at]);
    }
  }
  return { belowNs, ...Object.fromEntries(Object.entries(made).map(([key, column]) => [key, Float64Array.from(column)])) };
}

// The time is the processor's, so that a busy machine does not fail the test.
test("a frame of a million slices costs what the canvas is wide", async () => {
  const { LANE, paint } = await from("paint");
  const [width, height, each] = [1280, 800, 250000];
  const endNs = each * 5000;
  const rows = [0, 1, 2, 3].map((track) => {
    const slices = Array.from({ length: each }, (_, n) => ({ from: n * 5000, to: n * 5000 + 700 + ((n * 7919) % 4000), label: n % 7 }));
    const row = rowOf(track, 0, slices);
    for (let belowNs = 256; belowNs < endNs / 512; belowNs *= 4) {
      const next = coarser(row.levels.at(-1), belowNs);
      if (next.from.length <= row.levels.at(-1).from.length / 2) row.levels.push(next);
    }
    return row;
  });
  const lanes = rows.map((row) => ({ kind: "row", row, title: "main" }));
  const labels = Array.from({ length: 7 }, (_, n) => `call ${n}`);
  let drawn = 0;
  const context = { fillRect: () => (drawn += 1), fillText: () => (drawn += 1), strokeRect: () => (drawn += 1) };
  const colours = { ofLabel: labels.map((_, n) => `${n}`), bySort: [] };
  const times = [];
  let most = 0;
  let view = { from: 0, to: endNs };
  for (let frame = 0; frame < 240; frame += 1) {
    view = zoomed(view, frame % 120 < 60 ? 0.85 : 1 / 0.85, endNs * 0.37, endNs);
    drawn = 0;
    const before = process.cpuUsage();
    paint({ context, view, gutter: 190, width, endNs, labels, wanted: null, colours }, lanes, { scrollTop: 0, height, selection: null, chosen: null });
    const { user, system } = process.cpuUsage(before);
    times.push((user + system) / 1000);
    most = Math.max(most, drawn);
  }
  times.sort((a, b) => a - b);
  const p95 = times[Math.floor(times.length * 0.95)];
  console.log(`a million slices: at most ${most} pieces drawn, script p50 ${times[120].toFixed(2)} ms, p95 ${p95.toFixed(2)} ms a frame`);
  assert.ok(most < rows.length * width + 100 && LANE > 0, `${most} pieces`);
  assert.ok(p95 < 16, `${p95} ms`);
});
