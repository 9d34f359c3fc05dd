//! Writes values as Perfetto's debug annotations. In: the keys and values of details.rs. Out: one annotation for each
//! key, with objects as dictionaries, and names and strings as interned numbers. Hex strings become pointers, as they
//! are in the trace.

use super::intern::{ANNOTATIONS, InternTable, VALUES};
use super::proto;
use gpurec_trace::{Datum, Value};

/// Fields of DebugAnnotation.
const NAME_IID: u32 = 1;
const BOOL: u32 = 2;
const UINT: u32 = 3;
const INT: u32 = 4;
const DOUBLE: u32 = 5;
const STRING: u32 = 6;
const POINTER: u32 = 7;
const NAME: u32 = 10;
const DICT: u32 = 11;
const ARRAY: u32 = 12;
const STRING_IID: u32 = 17;

#[derive(Default)]
pub struct Annotator {
    names: InternTable<ANNOTATIONS>,
    values: InternTable<VALUES>,
    /// Entries for new text.
    pub entries: Vec<u8>,
}

impl Annotator {
    /// Writes a key and its value as a field `field` of the open message in `out`.
    pub fn put(&mut self, out: &mut Vec<u8>, field: u32, name: &str, value: Datum) {
        let annotation = self.open(out, field, name);
        match value {
            Datum::Number(n) => proto::uint(out, UINT, n),
            Datum::Signed(n) => self.value(out, &Value::Signed(n)),
            Datum::Hex(pointer) => proto::uint(out, POINTER, pointer),
            Datum::Micros(ns) => proto::double(out, DOUBLE, ns as f64 / 1e3),
            Datum::SignedMicros(ns) => proto::double(out, DOUBLE, ns as f64 / 1e3),
            Datum::Null => {}
            Datum::Text(text) => self.value(out, &Value::of_text(text)),
            Datum::Triple(numbers) => {
                numbers.iter().for_each(|n| self.item(out, &Value::Number((*n).into())))
            }
            Datum::Bool(is) => proto::uint(out, BOOL, is.into()),
            Datum::Args(args) => args.each(|name, value| self.annotation(out, DICT, name, value)),
            Datum::Json(text) => {
                if let Ok(value) = serde_json::from_str(text) {
                    self.value(out, &value);
                }
            }
        }
        proto::close(out, annotation);
    }

    fn open(&mut self, out: &mut Vec<u8>, field: u32, name: &str) -> proto::MessageStart {
        let annotation = proto::open(out, field);
        self.names.put(out, (NAME_IID, NAME), name, &mut self.entries);
        annotation
    }

    pub fn annotation(&mut self, out: &mut Vec<u8>, field: u32, name: &str, value: &Value) {
        let annotation = self.open(out, field, name);
        self.value(out, value);
        proto::close(out, annotation);
    }

    fn item(&mut self, out: &mut Vec<u8>, value: &Value) {
        let item = proto::open(out, ARRAY);
        self.value(out, value);
        proto::close(out, item);
    }

    fn value(&mut self, out: &mut Vec<u8>, value: &Value) {
        match value {
            Value::Null => proto::bytes(out, STRING, b"null"),
            Value::Bool(is) => proto::uint(out, BOOL, (*is).into()),
            Value::Number(n) => proto::uint(out, UINT, *n),
            // As a JSON number has no sign unless it is negative.
            Value::Signed(n) => match u64::try_from(*n) {
                Ok(n) => proto::uint(out, UINT, n),
                Err(_) => proto::int(out, INT, *n),
            },
            Value::Float(n) => proto::double(out, DOUBLE, *n),
            Value::Hex(pointer) => proto::uint(out, POINTER, *pointer),
            Value::Text(text) => self.values.put(out, (STRING_IID, STRING), text, &mut self.entries),
            Value::Array(items) => items.iter().for_each(|item| self.item(out, item)),
            Value::Object(items) => {
                items.iter().for_each(|item| self.annotation(out, DICT, &item.name, &item.value));
            }
        }
    }
}
