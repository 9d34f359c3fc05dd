// The rows of a table. In: rows of cells as page.rs writes them. Out: their texts, in another order, filtered, and as text
// to paste into a spreadsheet. Not here: the elements of the table.

export function textOf(cell) {
  if (cell === null || cell === undefined) return "";
  return Array.isArray(cell) ? String(cell[1]) : String(cell);
}

// The rows of a report's table, and a function that finds a cell of a row by the key of its column.
export function tableIn(reports, view, key) {
  const parts = reports.find((report) => report.view === view)?.parts ?? [];
  const table = parts.map((part) => part.table ?? part.data).find((one) => one?.key === key);
  const at = (row, column) => row[table.columns.findIndex((one) => one.key === column)];
  return { rows: table?.rows ?? [], at };
}

function valueOf(cell) {
  return Array.isArray(cell) ? cell[0] : cell;
}

// What is missing comes last, whatever the order.
export function sorted(rows, column, descending) {
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    const [x, y] = [valueOf(a[column]), valueOf(b[column])];
    const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
    if (noX || noY) return noX - noY;
    if (typeof x === "number" && typeof y === "number") return sign * (x - y);
    return sign * (String(x) < String(y) ? -1 : String(x) > String(y) ? 1 : 0);
  };
  return [...rows].sort(compare);
}

export function filtered(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (row) => {
    const all = row.map(textOf).join("\t").toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return words.length ? rows.filter(has) : rows;
}

// A spreadsheet takes a text that begins with one of these for a formula.
function pasted(cell) {
  const text = textOf(cell).replace(/[\t\r\n]+/g, " ");
  return typeof valueOf(cell) === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text;
}

export function asText(heads, rows) {
  return [heads, ...rows.map((row) => row.map(pasted))].map((row) => row.join("\t")).join("\n");
}
