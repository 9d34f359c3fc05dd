// The flame graph: boxes of frames, as wide as what was called in them weighs. In: stacks and weights. Out: elements. A
// click shows a box alone; a text marks boxes.
import { bytes, count, duration } from "./text.mjs";
import { WEIGHTS, boxesOf, treeOf } from "./tree.mjs";
import { element } from "./dom.mjs";

const HEIGHT = 20;
// Narrower boxes, as shares of the picture, are left out.
const LEAST = 0.001;

function weightText(weight, value) {
  if (weight.name === "bytes") return bytes(value);
  return weight.name === "calls" ? `${count(value)} calls` : duration(value);
}

export function flameOf(page) {
  const { stacks } = page.data;
  const used = WEIGHTS.filter(({ at }) => stacks.rows.some((row) => row[at] > 0));
  const picture = element("div", { class: "flame", role: "group", "aria-label": "flame graph" });
  const said = element("p", { role: "status", class: "soft" });
  const state = { weight: used[0], root: null, node: null, text: "" };
  const draw = () => {
    const boxes = boxesOf(state.node, LEAST);
    const wanted = state.text.toLowerCase();
    const deepest = boxes.reduce((most, box) => Math.max(most, box.depth), 0);
    const whole = state.root.value;
    const buttons = boxes.map((box) => {
      const { text, place, value } = box.node;
      const about = `${text}${place ? `, ${place}` : ""}: ${weightText(state.weight, value)}, ${((100 * value) / whole).toFixed(1)} %`;
      const made = element("button", { type: "button", title: about, "aria-label": about }, box.width > 0.01 ? text : "");
      if (!place) made.classList.add("function");
      if (wanted && text.toLowerCase().includes(wanted)) made.classList.add("match");
      made.style.left = `${100 * box.from}%`;
      made.style.width = `${100 * box.width}%`;
      made.style.top = `${HEIGHT * box.depth}px`;
      made.addEventListener("click", () => {
        state.node = box.node === state.node ? state.root : box.node;
        draw();
      });
      return made;
    });
    picture.replaceChildren(...buttons);
    picture.style.height = `${HEIGHT * (deepest + 1) + 2}px`;
    const left = stacks.left_out > 0 ? ` ${count(stacks.left_out)} lighter rows are not in this file.` : "";
    said.textContent = `${state.node.text}: ${weightText(state.weight, state.node.value)}.${left}`;
  };
  const weigh = (name) => {
    state.weight = used.find((weight) => weight.name === name);
    state.root = treeOf(stacks, state.weight.at);
    state.node = state.root;
    draw();
  };
  const choice = element(
    "select",
    { id: "weight", onchange: () => weigh(choice.value) },
    used.map(({ name }) => element("option", { value: name }, name)),
  );
  const search = element("input", { type: "search", placeholder: "mark frames", "aria-label": "mark frames that contain a text", oninput: () => {
    state.text = search.value.trim();
    draw();
  } });
  weigh(used[0].name);
  const all = element("button", { type: "button", onclick: () => weigh(state.weight.name) }, "all");
  return element("section", { "aria-label": "flame graph" }, element("div", { class: "bar" }, element("label", { for: "weight" }, "Weight"), choice, search, all), said, picture);
}
