//! Converts a JSON object to Perfetto's debug annotations. In: the text that details.rs wrote. Out: one annotation for
//! each key, with objects as dictionaries, and names and strings as interned numbers. Hex strings become pointers, as
//! they are in the trace.

use super::intern::{ANNOTATIONS, Interned, VALUES};
use super::proto;
use gpurec_trace::{Arg, Value};

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

pub struct Annotator {
    names: Interned,
    values: Interned,
    /// Entries for new text.
    pub entries: Vec<u8>,
}

impl Annotator {
    pub fn new() -> Annotator {
        Annotator { names: Interned::new(ANNOTATIONS), values: Interned::new(VALUES), entries: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.entries.clear();
    }

    /// Writes each key of the object as a field `field` of the open message in `out`.
    pub fn object(&mut self, out: &mut Vec<u8>, field: u32, json: &[u8]) {
        if let Ok(Value::Object(items)) = serde_json::from_slice(json) {
            self.annotations(out, field, &items);
        }
    }

    fn annotations(&mut self, out: &mut Vec<u8>, field: u32, items: &[Arg]) {
        for item in items {
            let annotation = proto::open(out, field);
            self.name(out, &item.name);
            self.value(out, &item.value);
            proto::close(out, annotation);
        }
    }

    fn value(&mut self, out: &mut Vec<u8>, value: &Value) {
        match value {
            Value::Null => proto::bytes(out, STRING, b"null"),
            Value::Bool(is) => proto::uint(out, BOOL, (*is).into()),
            Value::Number(n) => proto::uint(out, UINT, *n),
            Value::Signed(n) => proto::int(out, INT, *n),
            Value::Float(n) => proto::double(out, DOUBLE, *n),
            Value::Hex(pointer) => proto::uint(out, POINTER, *pointer),
            Value::Text(text) => match self.values.number(text, &mut self.entries) {
                Some(number) => proto::uint(out, STRING_IID, number),
                None => proto::bytes(out, STRING, text.as_bytes()),
            },
            Value::Array(items) => {
                for item in items.iter() {
                    let opened = proto::open(out, ARRAY);
                    self.value(out, item);
                    proto::close(out, opened);
                }
            }
            Value::Object(items) => self.annotations(out, DICT, items),
        }
    }

    fn name(&mut self, out: &mut Vec<u8>, name: &str) {
        match self.names.number(name, &mut self.entries) {
            Some(number) => proto::uint(out, NAME_IID, number),
            None => proto::bytes(out, NAME, name.as_bytes()),
        }
    }
}
