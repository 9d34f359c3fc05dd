//! Converts a JSON object to Perfetto's debug annotations. In: the text that details.rs wrote. Out: one annotation for
//! each key, with objects as dictionaries, and names and strings as interned numbers. Hex strings become pointers, as
//! they are in the trace.

use super::intern::{ANNOTATIONS, Interned, VALUES};
use super::proto;

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

/// Deeper than any JSON that the reader accepts.
const DEEPEST: usize = 200;

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
    pub fn object(&mut self, out: &mut Vec<u8>, field: u32, json: &str) {
        Scan { annotator: self, rest: json }.object(out, field, 0);
    }

    fn name(&mut self, out: &mut Vec<u8>, name: &str) {
        match self.names.number(name, &mut self.entries) {
            Some(number) => proto::uint(out, NAME_IID, number),
            None => proto::bytes(out, NAME, name.as_bytes()),
        }
    }

    fn text(&mut self, out: &mut Vec<u8>, text: &str) {
        if let Some(pointer) = pointer(text) {
            return proto::uint(out, POINTER, pointer);
        }
        match self.values.number(text, &mut self.entries) {
            Some(number) => proto::uint(out, STRING_IID, number),
            None => proto::bytes(out, STRING, text.as_bytes()),
        }
    }
}

/// The number in a hex string, if the string has gpurec's format.
fn pointer(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let plain = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !plain || (digits.starts_with('0') && digits != "0") {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// A scanner for JSON that this program wrote: it is well-formed and has no spaces.
struct Scan<'a, 'b> {
    annotator: &'a mut Annotator,
    rest: &'b str,
}

impl<'b> Scan<'_, 'b> {
    fn eat(&mut self, byte: char) -> bool {
        match self.rest.strip_prefix(byte) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take(&mut self, length: usize) -> &'b str {
        let (taken, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    fn object(&mut self, out: &mut Vec<u8>, field: u32, depth: usize) {
        if !self.eat('{') {
            return;
        }
        while self.rest.starts_with('"') {
            let annotation = proto::open(out, field);
            self.string(|annotator, name| annotator.name(out, name));
            self.eat(':');
            self.value(out, depth);
            proto::close(out, annotation);
            self.eat(',');
        }
        self.eat('}');
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) {
        self.eat('[');
        while !self.rest.is_empty() && !self.rest.starts_with(']') {
            let item = proto::open(out, ARRAY);
            self.value(out, depth);
            proto::close(out, item);
            self.eat(',');
        }
        self.eat(']');
    }

    fn value(&mut self, out: &mut Vec<u8>, depth: usize) {
        match self.rest.bytes().next() {
            Some(b'"') => self.string(|annotator, text| annotator.text(out, text)),
            Some(b'{') if depth < DEEPEST => self.object(out, DICT, depth + 1),
            Some(b'[') if depth < DEEPEST => self.array(out, depth + 1),
            Some(b'{' | b'[') => self.rest = "",
            _ => self.word(out),
        }
    }

    /// A number, true, false or null.
    fn word(&mut self, out: &mut Vec<u8>) {
        let length = self.rest.bytes().take_while(|b| !matches!(b, b',' | b'}' | b']')).count();
        match self.take(length) {
            "true" => proto::uint(out, BOOL, 1),
            "false" => proto::uint(out, BOOL, 0),
            word => {
                if let Ok(n) = word.parse() {
                    proto::uint(out, UINT, n);
                } else if let Ok(n) = word.parse() {
                    proto::int(out, INT, n);
                } else if let Ok(n) = word.parse() {
                    proto::double(out, DOUBLE, n);
                } else {
                    proto::bytes(out, STRING, word.as_bytes());
                }
            }
        }
    }

    /// The string that follows, without its escapes.
    fn string(&mut self, take: impl FnOnce(&mut Annotator, &str)) {
        let bytes = self.rest.as_bytes();
        let mut end = 1;
        let mut escaped = false;
        while let Some(byte) = bytes.get(end) {
            match byte {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    end += 2;
                }
                _ => end += 1,
            }
        }
        let quoted = self.take(end + 1);
        if escaped {
            let text: String = serde_json::from_str(quoted).unwrap_or_default();
            take(self.annotator, &text);
        } else {
            take(self.annotator, quoted.get(1..end).unwrap_or(""));
        }
    }
}
