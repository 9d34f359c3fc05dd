// A table that can be sorted, filtered and copied. In: columns and rows as page.rs writes them. Out: its elements.
import { count } from "./text.mjs";
import { asText, filtered, sorted, textOf } from "./rows.mjs";
import { copy, element } from "./dom.mjs";

// A browser is slow with more rows; the filter finds the others.
const SHOWN = 500;

export function tableOf({ columns, rows, more, what, key }) {
  const used = columns.map((_, at) => at).filter((at) => rows.some((row) => row[at] !== null));
  const heads = used.map((at) => columns[at].head || columns[at].key);
  const own = rows.map((row) => used.map((at) => row[at]));
  const state = { column: null, descending: false, text: "" };
  const body = element("tbody");
  const said = element("span", { role: "status", class: "soft" });
  const current = () => {
    const kept = filtered(own, state.text);
    return state.column === null ? kept : sorted(kept, state.column, state.descending);
  };
  const isText = (at) => columns[used[at]].text;
  const show = () => {
    const all = current();
    const cells = (row) => row.map((cell, at) => element("td", isText(at) ? { class: "text" } : {}, textOf(cell)));
    body.replaceChildren(...all.slice(0, SHOWN).map((row) => element("tr", {}, cells(row))));
    const left = all.length > SHOWN ? `, the first ${SHOWN} are shown` : "";
    const missing = more > 0 ? `; ${count(more)} more are not in this file` : "";
    said.textContent = `${count(all.length)} of ${count(own.length)} ${what}${left}${missing}`;
  };
  const head = heads.map((name, at) => {
    const cell = element("th", { scope: "col", class: isText(at) ? "text" : null });
    const sort = () => {
      state.descending = state.column === at ? !state.descending : !isText(at);
      state.column = at;
      cell.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
      show();
    };
    cell.append(element("button", { type: "button", onclick: sort }, name));
    return cell;
  });
  const filter = element("input", {
    type: "search",
    placeholder: "filter",
    "aria-label": `filter ${what}`,
    oninput: () => {
      state.text = filter.value;
      show();
    },
  });
  const copied = element("span", { role: "status" });
  const button = element("button", { type: "button", onclick: () => copy(asText(heads, current()), copied) }, "copy");
  show();
  const table = element("table", {}, element("thead", {}, element("tr", {}, head)), body);
  const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `table: ${what}` }, table);
  return element("div", { "data-table": key }, element("div", { class: "bar" }, filter, button, copied, said), scroll);
}
