//! Puts the keys of a line into the columns of a row.
//!
//! In: keys and values, as the schema of the trace or serde gives them. Out: cells of a batch. A key that has no column,
//! or whose value is of another kind than its column's, goes into the column `rest` as JSON, so that nothing is lost.

use gpurec_trace::{Datum, Key, Sink, json};
use serde_json::{Map, Value};

use super::batch::Batch;
use super::columns::Layout;

/// Adds a key to an object without its last brace: one that a newer gpurec added, or of a malformed line.
#[cold]
pub fn keep(rest: &mut Vec<u8>, key: &str, value: Datum) {
    rest.push(if rest.is_empty() { b'{' } else { b',' });
    json::string(rest, key);
    rest.push(b':');
    value.write_json(rest);
}

/// Adds what only the text of a line has, also in objects and lists inside it.
pub fn add_unknown(known: &mut Map<String, Value>, text: Map<String, Value>) {
    for (key, value) in text {
        match (known.get_mut(&key), value) {
            (None, value) => {
                known.insert(key, value);
            }
            (Some(Value::Object(known)), Value::Object(text)) => add_unknown(known, text),
            (Some(Value::Array(known)), Value::Array(text)) => {
                for pair in known.iter_mut().zip(text) {
                    if let (Value::Object(known), Value::Object(text)) = pair {
                        add_unknown(known, text);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The row of one line, or of the end of a call.
pub struct Row<'a, L> {
    batch: &'a mut Batch,
    row: usize,
    /// Keys without a column, as an object without its last brace.
    pub rest: &'a mut Vec<u8>,
    /// The line is the end of a call, whose row has the keys of its begin.
    is_end: bool,
    layout: std::marker::PhantomData<L>,
}

impl<'a, L: Layout> Row<'a, L> {
    /// `unknown` is the beginning of `rest`.
    #[inline(always)]
    pub fn new(
        batch: &'a mut Batch,
        row: usize,
        rest: &'a mut Vec<u8>,
        unknown: &[u8],
        is_end: bool,
    ) -> Self {
        rest.clear();
        if !unknown.is_empty() {
            rest.extend_from_slice(unknown);
        }
        Row { batch, row, rest, is_end, layout: std::marker::PhantomData }
    }

    #[inline(always)]
    pub fn set(&mut self, key: &str, value: Datum) {
        if L::follows(key) || matches!(value, Datum::Null) {
            return;
        }
        let stored = L::of(key).is_some_and(|column| self.cell(column, value));
        if !stored {
            keep(self.rest, key, value);
        }
    }

    #[inline(always)]
    fn cell(&mut self, column: usize, value: Datum) -> bool {
        let (row, batch) = (self.row, &mut *self.batch);
        match value {
            Datum::Number(n) => i64::try_from(n).is_ok_and(|n| batch.number(row, column, n)),
            Datum::Hex(bits) => batch.number(row, column, bits as i64),
            Datum::Signed(n) | Datum::SignedMicros(n) => batch.number(row, column, n),
            Datum::Micros(ns) => batch.number(row, column, i64::try_from(ns).unwrap_or(i64::MAX)),
            Datum::Text(text) | Datum::Json(text) => batch.text(row, column, text.as_bytes()),
            // Three columns in a row.
            Datum::Triple(numbers) => {
                (column..).zip(numbers).all(|(column, n)| batch.number(row, column, n.into()))
            }
            Datum::Bool(is) => batch.flag(row, column, is),
            Datum::Args(args) if args.is_empty() => true,
            Datum::Args(args) => match args.text() {
                Some(text) => batch.text(row, column, text.as_bytes()),
                None => {
                    let mut text = Vec::new();
                    args.write_json(&mut text);
                    batch.text(row, column, &text)
                }
            },
            Datum::Null => true,
        }
    }

    /// The keys of a line that serde wrote.
    pub fn object(&mut self, keys: &Map<String, Value>) {
        for (key, value) in keys {
            match value {
                Value::Null => {}
                Value::Bool(is) => self.set(key, Datum::Bool(*is)),
                Value::String(text) => self.set(key, Datum::Text(text)),
                Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                    (Some(n), _) => self.set(key, Datum::Number(n)),
                    (None, Some(n)) => self.set(key, Datum::Signed(n)),
                    (None, None) => self.set(key, Datum::Json(&number.to_string())),
                },
                Value::Array(_) | Value::Object(_) => self.set(key, Datum::Json(&value.to_string())),
            }
        }
    }

    /// Stores what is left over. The begin of the call may have left something in the same cell.
    #[inline(always)]
    pub fn finish(self) {
        if !self.rest.is_empty() {
            self.keep_rest();
        }
    }

    #[cold]
    fn keep_rest(self) {
        let Some(column) = L::of("rest") else { return };
        self.rest.push(b'}');
        if let Some(before) = self.batch.columns.get(column).and_then(|cells| cells.text(self.row))
            && let Some(before) = before.strip_suffix(b"}")
        {
            let mut both = before.to_vec();
            both.push(b',');
            both.extend_from_slice(self.rest.get(1..).unwrap_or_default());
            *self.rest = both;
        }
        self.batch.text(self.row, column, self.rest);
    }
}

impl<L: Layout> Sink for Row<'_, L> {
    #[inline(always)]
    fn put(&mut self, key: Key, value: Datum) {
        if !self.is_end {
            // `freed` is the size of a free.
            return self.set(if key.name == "freed" { "size" } else { key.name }, value);
        }
        match key.name {
            "pid" | "tid" => {}
            "args" => self.set("late_args", value),
            "unwound" | "lost" | "no_return" => self.set("ended", Datum::Text(key.name)),
            name => self.set(name, value),
        }
    }
}
