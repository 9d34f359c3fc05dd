//! Tables of the views. In: columns and rows of typed cells. Out: the same rows as aligned text, as JSON objects
//! and as CSV, so that no figure is formatted twice. Nothing is computed here.
//!
//! Text is for a person: times in the unit of the column's head, sizes in the unit that suits them. JSON and CSV
//! have integers under the column's key, which says the unit (`_ns`, `bytes`).

use serde_json::{Map, Value, json};

use super::text::{clean, micros, percent};
use crate::say;

/// A long name is not cut below so many characters, however narrow the terminal; nor does it take more lines.
const SHORTEST: usize = 28;
const MOST_LINES: usize = 5;

/// However wide the terminal: a name may have any length, and what is padded to it has it in every row.
const WIDEST: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
    /// Text that is cut in its middle where it does not fit: names of kernels, commands.
    Long,
    /// Text that goes on in further lines where it does not fit: the last column.
    Wrapped,
    /// Only for programs: not in the text.
    Data,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    key: &'static str,
    kind: Kind,
}

pub const fn number(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Number }
}

pub const fn text(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Text }
}

pub const fn long(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Long }
}

pub const fn wrapped(head: &'static str, key: &'static str) -> Column {
    Column { head, key, kind: Kind::Wrapped }
}

pub const fn data(key: &'static str) -> Column {
    Column { head: "", key, kind: Kind::Data }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Missing,
    Count(u64),
    /// Nanoseconds, shown as microseconds.
    Micros(u64),
    /// Nanoseconds, shown as milliseconds.
    Millis(u64),
    /// Nanoseconds since the recording began, shown as seconds.
    At(u64),
    Bytes(u64),
    /// Bytes a second.
    Rate(u64),
    /// A part and its whole, in percent.
    Share(u128, u128),
    Text(String),
    /// The name of a kernel.
    Kernel(String),
    Dims(Option<[u32; 3]>),
    /// A part and its whole, as a bar of so many characters.
    Bar(u128, u128, usize),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl Cell {
    /// Nothing where it is nothing, so that a column of rare counts is read at a glance.
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
            Cell::Millis(ns) => micros(ns / 1000),
            Cell::At(ns) => format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000),
            Cell::Bytes(bytes) => size(*bytes),
            Cell::Rate(bytes) => {
                let hundredths = bytes.saturating_add(5_000_000) / 10_000_000;
                format!("{}.{:02}", hundredths / 100, hundredths % 100)
            }
            Cell::Share(part, whole) => percent(*part, *whole),
            Cell::Text(text) => clean(text),
            // Every kernel returns void.
            Cell::Kernel(name) => clean(name.strip_prefix("void ").unwrap_or(name)),
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
            | Cell::Rate(n) => json!(n),
            Cell::Share(..) | Cell::Bar(..) => json!(self.permille().unwrap_or(0) as f64 / 10.0),
            Cell::Text(text) | Cell::Kernel(text) => json!(text),
            Cell::Dims(Some(dims)) => json!(dims),
        }
    }

    fn csv(&self) -> String {
        match self {
            Cell::Missing | Cell::Dims(None) => String::new(),
            Cell::Text(text) | Cell::Kernel(text) => say::csv(text).into_owned(),
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

/// `64.00 MB`, of 2^20 bytes; below 1 kB the bytes themselves.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let hundredths = (u128::from(bytes) * 100 + (1 << (shift - 1))) >> shift;
            return format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
        }
    }
    format!("{bytes} B")
}

/// In eighths of a character; what is not nothing is seen.
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

#[derive(Clone, Debug)]
pub struct Table {
    /// In JSON.
    pub key: &'static str,
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
    /// How many rows there were beside these, and what they are.
    more: u64,
    what: &'static str,
    /// A distribution: without some of its rows it would be another.
    is_whole: bool,
}

impl Table {
    /// `what` is what a row is, in the plural: "functions".
    pub fn new(key: &'static str, what: &'static str, columns: &'static [Column]) -> Table {
        Table { key, columns, rows: Vec::new(), more: 0, what, is_whole: false }
    }

    /// Of a distribution every row is shown, whatever the limit.
    pub fn whole(mut self) -> Table {
        self.is_whole = true;
        self
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.key);
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows that were never here.
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

    /// Indented by two, the names cut where they would not fit into `width`.
    pub fn text(&self, width: usize) -> Vec<String> {
        let shown: Vec<usize> = (0..self.columns.len()).filter(|at| self.is_shown(*at)).collect();
        let mut widths: Vec<usize> =
            shown.iter().map(|at| self.columns.get(*at).map_or(0, |c| c.head.chars().count())).collect();
        let mut lines: Vec<Vec<String>> =
            vec![shown.iter().map(|at| self.columns.get(*at).map_or("", |c| c.head).to_owned()).collect()];
        for row in &self.rows {
            lines.push(shown.iter().map(|at| row.get(*at).map(Cell::text).unwrap_or_default()).collect());
        }
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count().min(WIDEST));
            }
        }
        self.squeeze(&shown, &mut widths, width);
        let mut texts = Vec::new();
        for line in &lines {
            self.line(&mut texts, &shown, &widths, line);
        }
        if self.more > 0 {
            texts.push(format!("  and {} more {}", self.more, self.what));
        }
        texts
    }

    /// A column that is empty in every row says nothing.
    fn is_shown(&self, at: usize) -> bool {
        let column = self.columns.get(at);
        column.is_some_and(|column| column.kind != Kind::Data)
            && self.rows.iter().any(|row| row.get(at).is_some_and(|cell| *cell != Cell::Missing))
    }

    /// Takes from the long columns, from the widest first, what the line is too wide.
    fn squeeze(&self, shown: &[usize], widths: &mut [usize], width: usize) {
        loop {
            let line: usize = 2 + widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            let over = line.saturating_sub(width);
            let is_long = |at: &usize| {
                self.columns.get(*at).is_some_and(|c| c.kind == Kind::Long || c.kind == Kind::Wrapped)
            };
            let long = shown.iter().zip(widths.iter_mut()).filter(|(at, _)| is_long(at)).map(|(_, w)| w);
            let Some(widest) = long.max_by_key(|width| **width) else { return };
            if over == 0 || *widest <= SHORTEST {
                return;
            }
            *widest -= 1;
        }
    }

    fn line(&self, texts: &mut Vec<String>, shown: &[usize], widths: &[usize], cells: &[String]) {
        let mut line = String::from("  ");
        let mut further = Vec::new();
        for (index, (at, width)) in shown.iter().zip(widths).enumerate() {
            if index > 0 {
                line.push_str("  ");
            }
            let Some(column) = self.columns.get(*at) else { continue };
            let whole = cells.get(index).map(String::as_str).unwrap_or_default();
            let cell = middle_cut(whole, *width);
            match column.kind {
                Kind::Number => line.push_str(&format!("{cell:>width$}")),
                Kind::Text | Kind::Long | Kind::Data => line.push_str(&format!("{cell:<width$}")),
                Kind::Wrapped => {
                    let before = " ".repeat(line.chars().count());
                    let mut pieces = pieces(&middle_cut(whole, width * MOST_LINES), *width).into_iter();
                    line.extend(pieces.next());
                    further = pieces.map(|piece| format!("{before}{piece}")).collect();
                }
            }
        }
        line.truncate(line.trim_end().len());
        texts.push(line);
        texts.append(&mut further);
    }

    pub fn json(&self) -> Vec<Value> {
        let object = |row: &Vec<Cell>| {
            let pairs =
                self.columns.iter().zip(row).map(|(column, cell)| (column.key.to_owned(), cell.json()));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    /// The keys, then a line for each row, each after `first`.
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
            line(file.map(|file| say::csv(file).into_owned()), row.iter().map(Cell::csv).collect());
        }
        text
    }
}

fn pieces(text: &str, width: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(width.max(1)).map(|piece| piece.iter().collect()).collect()
}

/// The two ends of a name say more than its beginning.
pub fn middle_cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(3);
    let end = kept / 2;
    let begin: String = text.chars().take(kept - end).collect();
    let end: String = text.chars().skip(length - end).collect();
    format!("{begin}...{end}")
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
    fn long_names_keep_both_ends() {
        assert_eq!(middle_cut("abcdefghijkl", 9), "abc...jkl");
        assert_eq!(middle_cut("abc", 9), "abc");
        const NAMES: &[Column] = &[number("N", "n"), long("Name", "name")];
        let mut table = Table::new("rows", "kernels", NAMES);
        table.row(vec![Cell::Count(1), Cell::Text("x".repeat(200))]);
        assert!(table.text(60).iter().all(|line| line.chars().count() <= 60));
        assert!(table.text(10).iter().any(|line| line.chars().count() == 2 + 1 + 2 + SHORTEST));
    }

    #[test]
    fn a_name_may_have_any_length() {
        const ALL: &[Column] =
            &[text("A", "a"), number("B", "b"), long("C", "c"), text("D", "d"), wrapped("E", "e")];
        let mut table = Table::new("rows", "kernels", ALL);
        for length in [70_000, 1] {
            table.row(vec![Cell::Text(format!("{}é", "x".repeat(length))); ALL.len()]);
        }
        for width in [10, 100, 100_000, usize::MAX] {
            let text = table.text(width);
            assert!(text.iter().all(|line| line.chars().count() <= 5 * (WIDEST + 2)), "{width}");
            assert!(text[1].ends_with('é') || text[1].ends_with('x'), "{}", text[1]);
            assert!(text[1].contains("x...x") && text.last().unwrap().contains("  xé"), "{width}");
        }
        assert_eq!(table.json()[0]["a"].as_str().unwrap().chars().count(), 70_001);
    }

    #[test]
    fn names_that_matter_are_wrapped() {
        const NAMES: &[Column] = &[number("N", "n"), wrapped("Name", "name")];
        let mut table = Table::new("rows", "kernels", NAMES);
        table.row(vec![Cell::Count(1), Cell::Text("x".repeat(40))]);
        table.row(vec![Cell::Count(2), "short".into()]);
        let whole = format!("  1  {}", "x".repeat(28));
        assert_eq!(table.text(30), ["  N  Name", &whole, "     xxxxxxxxxxxx", "  2  short"]);
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
