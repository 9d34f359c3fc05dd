//! Appends a JSON object to a buffer, key by key. In: keys of this program, which need no escapes, and values. Out:
//! compact JSON, written in one pass.

use gpurec_trace::Datum;

pub struct Object<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Object<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Object<'a> {
        out.push(b'{');
        let start = out.len();
        Object { out, start }
    }

    /// Returns true if the object has no key.
    pub fn end(self) -> bool {
        self.out.push(b'}');
        self.out.len() == self.start + 1
    }

    pub fn key(&mut self, key: &str) -> &mut Vec<u8> {
        self.out.extend_from_slice(if self.out.len() == self.start { b"\"" } else { b",\"" });
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub fn put(&mut self, key: &str, value: Datum) {
        value.write_json(self.key(key));
    }
}
