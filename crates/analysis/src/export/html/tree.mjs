// The flame graph's tree. In: rows of a stack, a function and weights. Out: a tree of frames from the outermost to the
// innermost, and the boxes of a part of it. Not here: anything drawn.

export const WEIGHTS = [
  { name: "host time", at: 2 },
  { name: "GPU time", at: 3 },
  { name: "bytes", at: 4 },
  { name: "calls", at: 5 },
];

function child(node, key, text, place) {
  let found = node.children.get(key);
  if (!found) {
    found = { text, place, value: 0, children: new Map() };
    node.children.set(key, found);
  }
  return found;
}

export function treeOf({ frames, stacks, rows }, weight) {
  const root = { text: "all", place: "", value: 0, children: new Map() };
  for (const row of rows) {
    const value = row[weight];
    if (!value) continue;
    const stack = row[0] === null ? null : stacks[row[0]];
    root.value += value;
    let node = root;
    if (!stack || stack.cut) {
      node = child(node, "cut", "[frames missing]", "");
      node.value += value;
    }
    for (const frame of stack ? [...stack.frames].reverse() : []) {
      const [text, place] = frames[frame] ?? ["?", ""];
      node = child(node, frame, text, place);
      node.value += value;
    }
    node = child(node, `f ${row[1]}`, row[1], "");
    node.value += value;
  }
  return root;
}

// The boxes of a node and what is in it: depth, begin and width as shares of the node. Narrow ones are left out.
export function boxesOf(node, least) {
  const boxes = [];
  const add = (it, depth, from) => {
    const width = node.value > 0 ? it.value / node.value : 0;
    if (width < least) return;
    boxes.push({ node: it, depth, from, width });
    let at = from;
    for (const inner of [...it.children.values()].sort((a, b) => b.value - a.value)) {
      add(inner, depth + 1, at);
      at += inner.value / node.value;
    }
  };
  add(node, 0, 0);
  return boxes;
}
