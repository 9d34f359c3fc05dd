// Elements. In: names, properties and texts. Out: elements whose texts are text nodes only, with every control character
// shown as an escape. Nothing else of the page sets a text.
import { clean, cleanLines } from "./text.mjs";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, clean(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    made.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return made;
}

export function svg(name, properties, children = []) {
  // Takes the namespace from the document's own svg element: its name looks like an address, and the page has none.
  const made = document.createElementNS(document.getElementById("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, clean(value));
  made.append(...children);
  return made;
}

export function lines(text) {
  const made = element("pre", { tabindex: 0 });
  made.textContent = cleanLines(text);
  return made;
}

export function facts(pairs, name = "facts") {
  const list = element("dl", { class: name });
  for (const [key, ...value] of pairs) list.append(element("div", {}, element("dt", {}, key), element("dd", {}, value)));
  return list;
}

// Pairs in two columns.
export function columns(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [key, value] of pairs) list.append(element("dt", {}, key), element("dd", {}, value));
  return list;
}

// Puts a text where the user can paste it from. Where a browser forbids that, the text is shown, selected.
export async function copy(text, beside) {
  try {
    await navigator.clipboard.writeText(text);
    beside.textContent = "copied";
  } catch {
    const area = element("textarea", { rows: 6, cols: 60, "aria-label": "text to copy" });
    area.value = text;
    beside.replaceChildren(area);
    area.select();
  }
}
