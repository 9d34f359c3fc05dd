//! Tables of the views. In: columns and rows of typed cells. Out: the same rows as aligned text, as JSON objects and as
//! CSV, so that no figure is formatted twice. Not here: any computation.
//!
//! Text has times in the unit of the column's head and sizes in a suitable unit. JSON and CSV have integers under the
//! column's key, which includes the unit (`_ns`, `bytes`).

mod objects;
mod page;

use std::iter;

use serde_json::{Value, json};

use super::shorten;
use super::units::{decimal, micros, millis, per_second, percent, rate, short_size};
pub use super::units::{megabytes, size};
use crate::paper::UNBOUNDED;
use crate::ui::{self, clean};
use gpurec_cuda as cuda;

/// Columns between cells.
const GAP: usize = 2;

/// Names are cut to this length before columns are dropped, and further only if that does not suffice.
const SHORTEST: usize = 28;
/// Minimum length of a name, in any terminal.
const NARROWEST: usize = 12;

/// No terminal is wider than this: the rest of a wider table needs a pager.
const WIDEST_TERMINAL: usize = 300;

/// Maximum width of a name in any terminal: names may have any length, and every row is padded to the widest.
const WIDEST: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
    /// Text that may be cut to fit: names of kernels, commands.
    Long,
    /// Only in JSON and CSV.
    Data,
}

/// The order in which number columns are dropped if a row does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Least,
    Some,
    Most,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    key: &'static str,
    kind: Kind,
    worth: Worth,
    least: usize,
}

impl Column {
    /// Drops this column before the others.
    pub const fn minor(self) -> Column {
        Column { worth: Worth::Least, ..self }
    }

    /// Sets a minimum width, so that the columns of a table that is redrawn do not move. A name is cut to this width
    /// before columns are dropped.
    pub const fn at_least(self, least: usize) -> Column {
        Column { least, ..self }
    }

    /// Drops this column only if even short names do not make room: it is the purpose of the table, or distinguishes
    /// its rows.
    pub const fn vital(self) -> Column {
        Column { worth: Worth::Most, ..self }
    }
}

pub const fn number(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Number, worth: Worth::Some, least: 0 }
}

pub const fn text(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Text, worth: Worth::Some, least: 0 }
}

pub const fn long(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Long, worth: Worth::Some, least: 0 }
}

pub const fn data(key: &'static str) -> Column {
    Column { head: "", key, kind: Kind::Data, worth: Worth::Some, least: 0 }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Missing,
    Count(u64),
    /// Nanoseconds, shown as microseconds.
    Micros(u64),
    /// Nanoseconds, shown as milliseconds.
    Millis(u64),
    /// Nanoseconds since the start of the recording, shown as seconds.
    At(u64),
    Bytes(u64),
    /// Bytes with three digits.
    Short(u64),
    /// A count, and the nanoseconds that it took, shown as a rate per second.
    PerSecond(u64, u64),
    /// Bytes per second.
    Rate(u64),
    /// A part and its whole, shown as a percentage.
    Share(u128, u128),
    Text(String),
    /// A kernel name.
    Kernel(String),
    Dims(Option<[u32; 3]>),
    /// A part and its whole, shown as a bar of this number of characters.
    Bar(u128, u128, usize),
}

impl<T: AsRef<str> + ?Sized> From<&T> for Cell {
    fn from(text: &T) -> Cell {
        Cell::Text(text.as_ref().to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Missing, Into::into)
    }
}

impl Cell {
    /// Empty for 0, so that a column of rare counts is easy to scan.
    pub fn some(count: u64) -> Cell {
        if count == 0 { Cell::Missing } else { Cell::Count(count) }
    }

    pub fn optional<T>(value: Option<T>, cell: impl Fn(T) -> Cell) -> Cell {
        value.map_or(Cell::Missing, cell)
    }

    fn text(&self) -> String {
        match self {
            Cell::Missing | Cell::Dims(None) => "-".to_owned(),
            Cell::Count(count) => count.to_string(),
            Cell::Micros(ns) => micros(*ns),
            Cell::Millis(ns) => millis(*ns),
            Cell::At(ns) => decimal(ns / 1000, 6),
            Cell::Bytes(bytes) => size(*bytes),
            Cell::Short(bytes) => short_size(*bytes),
            Cell::PerSecond(count, ns) => per_second(*count, *ns),
            Cell::Rate(bytes) => rate(*bytes),
            Cell::Share(part, whole) => percent(*part, *whole),
            Cell::Text(text) => clean(text),
            Cell::Kernel(name) => clean(cuda::kernel_text(name)),
            Cell::Dims(Some([x, y, z])) => format!("{x}x{y}x{z}"),
            Cell::Bar(part, whole, width) => bar(*part, *whole, *width),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Missing | Cell::Dims(None) => Value::Null,
            Cell::Count(n)
            | Cell::Micros(n)
            | Cell::Millis(n)
            | Cell::At(n)
            | Cell::Bytes(n)
            | Cell::Short(n)
            | Cell::Rate(n) => json!(n),
            Cell::PerSecond(count, ns) => json!(*count as f64 * 1e9 / (*ns).max(1) as f64),
            Cell::Share(..) | Cell::Bar(..) => json!(self.permille().unwrap_or(0) as f64 / 10.0),
            Cell::Text(text) | Cell::Kernel(text) => json!(text),
            Cell::Dims(Some(dims)) => json!(dims),
        }
    }

    fn csv(&self) -> String {
        match self {
            Cell::Missing | Cell::Dims(None) => String::new(),
            Cell::Text(text) | Cell::Kernel(text) => ui::csv(text).into_owned(),
            Cell::Dims(Some(_)) => self.text(),
            other => other.json().to_string(),
        }
    }

    fn permille(&self) -> Option<u64> {
        let (Cell::Share(part, whole) | Cell::Bar(part, whole, _)) = self else { return None };
        let permille = part.checked_mul(1000)?.checked_add(whole / 2)?.checked_div(*whole)?;
        u64::try_from(permille).ok()
    }
}

/// In eighths of a character; a non-zero share is always visible.
pub fn bar(part: u128, whole: u128, width: usize) -> String {
    let most = width.saturating_mul(8) as u128;
    let eighths =
        part.saturating_mul(most).saturating_add(whole / 2).checked_div(whole).unwrap_or(0).min(most);
    let eighths = if part > 0 && whole > 0 { eighths.max(1) } else { 0 };
    let (full, rest) = ((eighths / 8) as usize, (eighths % 8) as usize);
    let mut bar = "█".repeat(full);
    bar.extend(["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(rest).copied());
    bar
}

/// A column, and how its cells are made.
pub type Maker<'a, T> = (Column, &'a dyn Fn(&T) -> Cell);

#[derive(Clone, Debug)]
pub struct Table {
    /// The key in JSON.
    pub key: &'static str,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// Number of additional rows that are not here, and the plural noun for rows.
    more: u64,
    what: &'static str,
    /// The table is a distribution, which omitted rows would distort.
    is_whole: bool,
    /// Columns in front of each cell.
    gap: usize,
}

impl Table {
    /// `what` is the plural noun for rows: "functions".
    pub fn new(key: &'static str, what: &'static str, columns: &[Column]) -> Table {
        Table { key, columns: columns.to_vec(), rows: Vec::new(), more: 0, what, is_whole: false, gap: GAP }
    }

    /// A table with a row for each item. Each column has the way to make its cell.
    pub fn of<'a, T: 'a>(
        what: &'static str,
        items: impl IntoIterator<Item = &'a T>,
        columns: &[Maker<T>],
    ) -> Table {
        let mut table =
            Table::new(what, what, &columns.iter().map(|(column, _)| *column).collect::<Vec<_>>());
        for item in items {
            table.row(columns.iter().map(|(_, cell)| cell(item)).collect());
        }
        table
    }

    /// Marks a distribution: every row is shown, whatever the limit.
    pub fn whole(mut self) -> Table {
        self.is_whole = true;
        self
    }

    /// One column between cells.
    pub fn dense(mut self) -> Table {
        self.gap = 1;
        self
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.key);
        self.rows.push(cells);
    }

    /// A row with these cells, by the key of their column, and no others.
    pub fn sparse_row(&mut self, cells: &[(&str, Cell)]) {
        debug_assert!(cells.iter().all(|(key, _)| self.columns.iter().any(|column| column.key == *key)));
        let cell = |column: &Column| cells.iter().find(|(key, _)| *key == column.key);
        self.row(
            self.columns.iter().map(|c| cell(c).map_or(Cell::Missing, |(_, cell)| cell.clone())).collect(),
        );
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds to the number of rows that were never in the table.
    pub fn more(&mut self, count: u64) {
        self.more = self.more.saturating_add(count);
    }

    pub fn limit(&mut self, rows: usize) {
        if self.is_whole {
            return;
        }
        self.more((self.rows.len() - rows.min(self.rows.len())) as u64);
        self.rows.truncate(rows);
    }

    /// Indented by the gap between cells. If a row does not fit into `width`, it cuts names, and then drops number
    /// columns.
    pub fn text(&self, width: usize) -> Vec<String> {
        let mut columns: Vec<FilledColumn> =
            (0..self.columns.len()).filter_map(|at| self.filled(at)).collect();
        let gap = self.gap;
        let (whole, least) = (line_of(&columns, gap), least_of(&columns, gap));
        let left_out = if width < UNBOUNDED { squeeze(&mut columns, gap, width) } else { Vec::new() };
        for column in &mut columns {
            let most = if width < UNBOUNDED { column.width } else { UNBOUNDED };
            let cells: Vec<&str> = column.cells.iter().map(String::as_str).collect();
            column.cells = shorten::all(&cells, most);
        }
        let mut texts: Vec<String> = (0..=self.rows.len()).map(|row| line(&columns, gap, row)).collect();
        if self.more > 0 {
            texts.push(format!("  and {} more {}", self.more, self.what));
        }
        if !left_out.is_empty() {
            texts.push(hint(whole, least, &left_out.join(", ")));
        }
        texts
    }

    /// Returns None for a column that is empty in every row.
    fn filled(&self, at: usize) -> Option<FilledColumn> {
        let column = *self.columns.get(at).filter(|column| column.kind != Kind::Data)?;
        let cells = || self.rows.iter().map(|row| row.get(at).unwrap_or(&Cell::Missing));
        if cells().all(|cell| *cell == Cell::Missing) {
            return None;
        }
        let cells: Vec<String> = iter::once(column.head.to_owned()).chain(cells().map(Cell::text)).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let width = width.max(column.least).min(WIDEST);
        Some(FilledColumn { at, column, cells, width })
    }

    /// A line of keys, then a line for each row; each line begins with `first`.
    pub fn csv(&self, with_head: bool, file: Option<&str>) -> String {
        let mut text = String::new();
        let mut line = |first: Option<String>, cells: Vec<String>| {
            let all: Vec<String> = first.into_iter().chain(cells).collect();
            text.push_str(&all.join(","));
            text.push('\n');
        };
        if with_head {
            let first = file.map(|_| "file".to_owned());
            line(first, self.columns.iter().map(|column| column.key.to_owned()).collect());
        }
        for row in &self.rows {
            line(file.map(|file| ui::csv(file).into_owned()), row.iter().map(Cell::csv).collect());
        }
        text
    }
}

/// A column of the text output.
struct FilledColumn {
    /// Index of the column in the table.
    at: usize,
    column: Column,
    /// The head comes first.
    cells: Vec<String>,
    width: usize,
}

/// The width of a line with these columns.
fn line_of(columns: &[FilledColumn], gap: usize) -> usize {
    columns.iter().map(|column| column.width + gap).sum()
}

/// The width at which no column is dropped, though names are cut.
fn least_of(columns: &[FilledColumn], gap: usize) -> usize {
    let least = |filled: &FilledColumn| match filled.column.kind {
        Kind::Long => filled.width.min(shortest(&filled.column)),
        _ => filled.width,
    };
    columns.iter().map(|filled| least(filled) + gap).sum()
}

/// How to see the dropped columns: by a width that a terminal may have, with whole names if possible, or by a pager,
/// because output to a pipe has every column.
fn hint(whole: usize, least: usize, left_out: &str) -> String {
    if whole <= WIDEST_TERMINAL {
        format!("  --width {whole} shows {left_out} too")
    } else if least <= WIDEST_TERMINAL {
        format!("  --width {least} shows {left_out} too, `| less -S` whole names as well")
    } else {
        format!("  `| less -S` shows {left_out} too")
    }
}

fn line(columns: &[FilledColumn], gap: usize, row: usize) -> String {
    let mut line = String::new();
    for FilledColumn { column, cells, width, .. } in columns {
        let cell = cells.get(row).map_or("", String::as_str);
        line.push_str(&" ".repeat(gap));
        match column.kind {
            Kind::Number => line.push_str(&format!("{cell:>width$}")),
            _ => line.push_str(&format!("{cell:<width$}")),
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// Makes a line fit. It shortens the long columns, the widest first; then drops number columns, the least valuable
/// first and among those the rightmost first; then shortens long columns further; finally drops the most valuable
/// numbers. Returns the heads of the dropped columns.
fn squeeze(columns: &mut Vec<FilledColumn>, gap: usize, width: usize) -> Vec<&'static str> {
    let mut left_out: Vec<(usize, &'static str)> = Vec::new();
    while line_of(columns, gap) > width {
        if cut_a_name(columns, shortest) {
            continue;
        }
        let least = least_number(columns);
        let is_vital = |at: usize| columns.get(at).is_some_and(|filled| filled.column.worth == Worth::Most);
        if least.is_none_or(is_vital) && cut_a_name(columns, |_| NARROWEST) {
            continue;
        }
        let Some(at) = least else { break };
        let filled = columns.remove(at);
        left_out.push((filled.at, filled.column.head));
    }
    left_out.sort_unstable();
    left_out.into_iter().map(|(_, head)| head).collect()
}

/// The width to which a name is cut before columns are dropped.
fn shortest(column: &Column) -> usize {
    if column.least > 0 { column.least } else { SHORTEST }
}

/// Shortens a name column by one character, if one is longer than `shortest`.
fn cut_a_name(columns: &mut [FilledColumn], shortest: fn(&Column) -> usize) -> bool {
    let is_longer = |f: &&mut FilledColumn| f.column.kind == Kind::Long && f.width > shortest(&f.column);
    let long = columns.iter_mut().filter(is_longer);
    let widest = long.max_by_key(|column| column.width);
    widest.map(|column| column.width -= 1).is_some()
}

/// The number column, or minor text, to drop next. It spares the first number, by which the rows are sorted.
fn least_number(columns: &[FilledColumn]) -> Option<usize> {
    let may_go = |column: &Column| column.kind == Kind::Number || column.worth == Worth::Least;
    let numbers = columns.iter().enumerate().filter(|(_, filled)| may_go(&filled.column));
    numbers.skip(1).min_by_key(|(at, filled)| (filled.column.worth, std::cmp::Reverse(*at))).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        number("Calls", "calls"),
        number("Failed", "failed"),
        number("Total (us)", "total_ns"),
        long("Name", "name"),
        data("id"),
    ];

    fn table() -> Table {
        let mut table = Table::new("rows", "functions", COLUMNS);
        for (calls, ns, name) in [(1, 1_234_567, "a,\"b\""), (100, 10, "void f(int)")] {
            table.row(vec![
                Cell::Count(calls),
                Cell::some(0),
                Cell::Micros(ns),
                Cell::Kernel(name.into()),
                Cell::Count(7),
            ]);
        }
        table
    }

    #[test]
    fn text_is_aligned_and_leaves_out_what_is_empty() {
        let mut table = table();
        table.limit(1);
        assert_eq!(
            table.text(100),
            ["  Calls  Total (us)  Name", "      1    1234.567  a,\"b\"", "  and 1 more functions"]
        );
    }

    #[test]
    fn programs_get_integers_and_whole_names() {
        let table = table();
        assert_eq!(
            table.csv(true, None),
            "calls,failed,total_ns,name,id\n1,,1234567,\"a,\"\"b\"\"\",7\n100,,10,void f(int),7\n"
        );
        assert!(table.csv(true, Some("x,y")).starts_with("file,calls,failed,total_ns,name,id\n\"x,y\",1,"));
        let first = json!({"calls": 1, "failed": null, "total_ns": 1234567, "name": "a,\"b\"", "id": 7});
        assert_eq!(table.json()[0], first);
    }

    #[test]
    fn long_names_are_cut_to_the_terminal_and_nothing_else() {
        const NAMES: &[Column] = &[number("N", "n"), long("Name", "name")];
        let mut table = Table::new("rows", "kernels", NAMES);
        table.row(vec![Cell::Count(1), Cell::Text("x".repeat(200))]);
        assert!(table.text(60).iter().all(|line| line.chars().count() <= 60));
        assert!(table.text(10).iter().any(|line| line.chars().count() == 2 + 1 + 2 + NARROWEST));
        assert!(table.text(UNBOUNDED)[1].ends_with(&"x".repeat(200)));
    }

    #[test]
    fn a_name_may_have_any_length() {
        const ALL: &[Column] =
            &[text("A", "a"), number("B", "b"), long("C", "c"), text("D", "d"), long("E", "e")];
        let mut table = Table::new("rows", "kernels", ALL);
        for length in [70_000, 1] {
            table.row(vec![Cell::Text(format!("{}é", "x".repeat(length))); ALL.len()]);
        }
        for width in [10, 100, 100_000] {
            let text = table.text(width);
            assert!(text[..3].iter().all(|line| line.chars().count() <= 5 * (WIDEST + 2)), "{width}");
            assert!(text[1].contains("x...x") && text[2].contains("  xé"), "{width}");
        }
        // In a pipe names are whole, and other columns are not as wide.
        let text = table.text(UNBOUNDED);
        assert!(text[1].chars().count() == 5 * 70_003 && text[2].chars().count() < 5 * (WIDEST + 2));
        assert_eq!(table.json()[0]["a"].as_str().unwrap().chars().count(), 70_001);
    }

    #[test]
    fn numbers_that_do_not_fit_are_left_out_and_named() {
        const NAMES: &[Column] =
            &[long("Name", "name"), number("N", "n"), number("Least", "l"), number("Most", "m")];
        let mut table = Table::new("rows", "kernels", NAMES);
        table.row(vec!["x".into(), Cell::Count(1), Cell::Micros(1), Cell::Micros(u64::MAX)]);
        assert_eq!(table.text(20), ["  Name  N  Least", "  x     1  0.001", "  --width 39 shows Most too"]);
        assert_eq!(table.text(39)[1], "  x     1  0.001  18446744073709551.615");
    }

    #[test]
    fn the_hint_names_no_width_that_no_terminal_has() {
        const NAMES: &[Column] = &[number("N", "n"), number("Most", "m"), long("Name", "name")];
        let mut table = Table::new("rows", "kernels", NAMES);
        table.row(vec![Cell::Count(1), Cell::Micros(u64::MAX), "x".repeat(1000).as_str().into()]);
        let last = |table: &Table, width| table.text(width).pop().unwrap();
        assert_eq!(last(&table, 40), "  --width 56 shows Most too, `| less -S` whole names as well");
        assert!(table.text(56)[0].contains("Most") && !table.text(55)[0].contains("Most"));
        const TEXTS: &[Column] = &[number("N", "n"), number("Most", "m"), text("Text", "text")];
        let mut table = Table::new("rows", "kernels", TEXTS);
        table.row(vec![Cell::Count(1), Cell::Micros(u64::MAX), "x".repeat(400).as_str().into()]);
        assert_eq!(last(&table, 40), "  `| less -S` shows Most too");
        assert!(table.text(UNBOUNDED)[0].contains("Most"));
    }

    /// The columns that distinguish rows stay, if need be next to shorter names.
    #[test]
    fn vital_numbers_outlast_the_others() {
        const NAMES: &[Column] = &[
            number("Total", "t"),
            number("Least", "l").minor(),
            number("Calls", "c"),
            number("Event", "e").vital(),
            long("Name", "name"),
        ];
        let mut table = Table::new("rows", "calls", NAMES);
        let mut cells = vec![Cell::Count(10_000); 4];
        cells.push(Cell::Text("x".repeat(30)));
        table.row(cells);
        let heads = |width| table.text(width).swap_remove(0);
        assert_eq!(heads(58), "  Total  Least  Calls  Event  Name");
        assert_eq!(heads(57), "  Total  Calls  Event  Name");
        assert_eq!(heads(50), "  Total  Event  Name");
        assert_eq!(table.text(50).last().unwrap(), "  --width 60 shows Least, Calls too");
        assert!(heads(28) == "  Total  Event  Name" && table.text(28)[1].ends_with("  xxxxx...xxxx"));
        assert_eq!(heads(27), "  Total  Name");
    }

    #[test]
    fn sizes_and_bars() {
        assert_eq!(
            [size(0), size(1023), size(1024), size(524_288_000)],
            ["0 B", "1023 B", "1.00 kB", "500.00 MB"]
        );
        assert_eq!(size(u64::MAX), "16777216.00 TB");
        assert_eq!(
            [bar(0, 10, 4), bar(1, 1_000_000, 4), bar(10, 10, 4), bar(5, 10, 3)],
            ["", "▏", "████", "█▌"]
        );
        assert_eq!(bar(1, 0, 4), "");
    }
}
