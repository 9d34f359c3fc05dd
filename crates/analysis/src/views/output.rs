//! The parts of a report, and their output as text, JSON or CSV. Not here: any computation of figures.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::prose::{hanging, wrapped};
use crate::table::Table;
use crate::ui::clean_lines;

/// Limit on rows of a table in the HTML page.
pub const ON_A_PAGE: usize = 2000;

pub enum Part {
    /// A heading for the following parts, with an empty line before it.
    Title(String),
    /// An explanation; only in text output.
    Words(String),
    /// Preformatted lines; only in text output.
    Lines(Vec<String>),
    Table(Table),
    /// A table only for JSON and CSV.
    Data(Table),
}

/// The value of a key of the document.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Value(Value),
    Fact(&'a Value),
    Rows(Rows<'a>),
}

/// The rows of one or more tables.
struct Rows<'a>(Vec<&'a Table>);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().flat_map(|table| table.objects()))
    }
}

#[derive(Default)]
pub struct Report {
    /// Single figures for JSON; text output has them in titles.
    facts: Map<String, Value>,
    parts: Vec<Part>,
}

impl Report {
    pub fn title(&mut self, title: impl Into<String>) {
        self.parts.push(Part::Title(title.into()));
    }

    /// Inserts a title before all others.
    pub fn lead(&mut self, title: String) {
        self.parts.insert(0, Part::Title(title));
    }

    /// Removes the first title, which says that there was nothing, from a report without rows. Returns whether anything
    /// is left.
    pub fn take_claim_of_nothing(&mut self) -> bool {
        if let Some(at) = self.parts.iter().position(|part| matches!(part, Part::Title(_))) {
            self.parts.remove(at);
        }
        self.parts.iter().any(|part| matches!(part, Part::Title(_) | Part::Words(_) | Part::Lines(_)))
    }

    pub fn has_no_rows(&self) -> bool {
        let is_empty =
            |part: &Part| !matches!(part, Part::Table(table) | Part::Data(table) if !table.is_empty());
        self.parts.iter().all(is_empty)
    }

    pub fn words(&mut self, words: impl Into<String>) {
        self.parts.push(Part::Words(words.into()));
    }

    /// Adds an explanation where it applies.
    pub fn words_if(&mut self, applies: bool, words: impl Into<String>) {
        if applies {
            self.words(words);
        }
    }

    pub fn lines(&mut self, lines: Vec<String>) {
        self.parts.push(Part::Lines(lines));
    }

    pub fn table(&mut self, table: impl Into<Table>) {
        self.parts.push(Part::Table(table.into()));
    }

    /// Adds a table under a title, unless it has no rows. Returns whether it has some.
    pub fn section(&mut self, title: impl Into<String>, table: impl Into<Table>) -> bool {
        let table = table.into();
        let has_rows = !table.is_empty();
        if has_rows {
            self.title(title);
            self.table(table);
        }
        has_rows
    }

    pub fn data(&mut self, table: impl Into<Table>) {
        self.parts.push(Part::Data(table.into()));
    }

    pub fn fact(&mut self, key: &str, value: impl Into<Value>) {
        self.facts.insert(key.to_owned(), value.into());
    }

    pub fn facts<const N: usize>(&mut self, facts: [(&str, u64); N]) {
        facts.into_iter().for_each(|(key, value)| self.fact(key, value));
    }

    /// Sets these facts to `null` and moves their values to `seen`.
    pub fn not_known<'a>(&mut self, keys: impl Iterator<Item = &'a &'static str>) {
        let mut seen = Map::new();
        for key in keys {
            if let Some(value) = self.facts.insert((*key).to_owned(), Value::Null) {
                seen.insert((*key).to_owned(), value);
            }
        }
        if !seen.is_empty() {
            self.facts.insert("seen".to_owned(), seen.into());
        }
    }

    /// Limits each table to this number of rows.
    pub fn limit(&mut self, rows: usize) {
        for part in &mut self.parts {
            if let Part::Table(table) = part {
                table.limit(rows);
            }
        }
    }

    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Title(title) => {
                    if !text.is_empty() {
                        text.push('\n');
                    }
                    text.push_str(&hanging("", "  ", title, width));
                }
                Part::Words(words) => text.push_str(&wrapped("  ", words, width)),
                Part::Lines(lines) => push_lines(&mut text, lines),
                Part::Table(table) if !table.is_empty() => push_lines(&mut text, &table.text(width)),
                Part::Table(_) | Part::Data(_) => {}
            }
        }
        // Names are already escaped; this catches any that the code missed, so that none controls the terminal.
        clean_lines(&text)
    }

    /// One JSON document, with the tables under their keys. Rows become JSON one by one as it is written, since a table
    /// of values takes ten times as much memory as its text.
    pub fn json<'a>(&'a self, view: &str, file: &str, notes: &[String]) -> impl Serialize + 'a {
        let mut document: BTreeMap<&str, Field> = BTreeMap::new();
        document.insert("view", Field::Value(view.into()));
        document.insert("file", Field::Value(file.into()));
        document.insert("notes", Field::Value(notes.into()));
        document.extend(self.facts.iter().map(|(key, value)| (key.as_str(), Field::Fact(value))));
        for part in &self.parts {
            if let Part::Table(table) | Part::Data(table) = part {
                // A table in several pieces becomes one list.
                match document.get_mut(table.key) {
                    Some(Field::Rows(Rows(tables))) => tables.push(table),
                    _ => _ = document.insert(table.key, Field::Rows(Rows(vec![table]))),
                }
            }
        }
        document
    }

    /// The parts in their order, for the HTML page.
    pub fn page(self, view: &str, what: &str, notes: &[String]) -> Value {
        let part = |part: &Part| match part {
            Part::Title(text) => json!({ "title": clean_lines(text) }),
            Part::Words(text) => json!({ "words": clean_lines(text) }),
            Part::Lines(lines) => json!({ "lines": clean_lines(&lines.join("\n")) }),
            Part::Table(table) => json!({ "table": table.page(ON_A_PAGE) }),
            Part::Data(table) => json!({ "data": table.page(ON_A_PAGE) }),
        };
        let parts: Vec<Value> = self.parts.iter().map(part).collect();
        json!({ "view": view, "what": what, "notes": notes, "facts": self.facts, "parts": parts })
    }

    /// One table with all its pieces: spreadsheets cannot read a file of two tables.
    pub fn csv(&self, key: &str, with_head: bool, file: Option<&str>) -> String {
        let tables = self.parts.iter().filter_map(|part| match part {
            Part::Table(table) | Part::Data(table) if table.key == key => Some(table),
            _ => None,
        });
        tables.enumerate().map(|(at, table)| table.csv(with_head && at == 0, file)).collect()
    }
}

fn push_lines(text: &mut String, lines: &[String]) {
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, Column, number};

    #[test]
    fn one_report_in_three_forms() {
        let mut report = Report::default();
        report.fact("calls", 3);
        report.title("Three calls");
        const X: &[Column] = &[number("", "x")];
        const N: &[Column] = &[number("N", "n")];
        let mut data = Table::new("series", "points", X);
        data.row(vec![Cell::Count(1)]);
        report.data(data);
        let mut table = Table::new("rows", "rows", N);
        table.row(vec![Cell::Count(1)]);
        table.row(vec![Cell::Count(2)]);
        report.table(table);
        report.words("a person reads this and a program does not");
        report.limit(1);
        assert_eq!(
            report.text(24),
            "Three calls\n  N\n  1\n  and 1 more rows\n  a person reads this\n  and a program does not\n"
        );
        assert_eq!(report.csv("series", true, None), "x\n1\n");
        assert_eq!(report.csv("rows", false, Some("f")), "f,1\n");
        let json = report.json("v", "f", &["odd".to_owned()]);
        let expected =
            r#"{"calls":3,"file":"f","notes":["odd"],"rows":[{"n":1}],"series":[{"x":1}],"view":"v"}"#;
        assert_eq!(serde_json::to_string(&json).unwrap(), expected);
    }
}
