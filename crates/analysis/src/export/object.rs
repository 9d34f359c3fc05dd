//! Appends a JSON object to a buffer, key by key. In: keys of this program, which need no escapes, and values. Out:
//! compact JSON, written in one pass; a value of `None` has no key.

use serde::Serialize;

use gpurec_trace::{Args, json};

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

    pub fn number(&mut self, key: &str, n: u64) {
        json::number(self.key(key), n);
    }

    pub fn maybe(&mut self, key: &str, n: Option<u64>) {
        if let Some(n) = n {
            self.number(key, n);
        }
    }

    pub fn text(&mut self, key: &str, text: &str) {
        json::string(self.key(key), text);
    }

    pub fn maybe_text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(key, text);
        }
    }

    pub fn hex(&mut self, key: &str, n: u64) {
        json::hex(self.key(key), n);
    }

    /// Writes the key only if the value is true.
    pub fn flag(&mut self, key: &str, set: bool) {
        if set {
            self.key(key).extend_from_slice(b"true");
        }
    }

    pub fn triple(&mut self, key: &str, numbers: Option<[u32; 3]>) {
        let Some(numbers) = numbers else { return };
        let out = self.key(key);
        for (i, n) in numbers.iter().enumerate() {
            out.push(if i == 0 { b'[' } else { b',' });
            json::number(out, u64::from(*n));
        }
        out.push(b']');
    }

    pub fn args(&mut self, key: &str, args: &Args) {
        if !args.is_empty() {
            args.write_json(self.key(key));
        }
    }

    /// Writes any other value through serde; for rare keys.
    pub fn other(&mut self, key: &str, value: &impl Serialize) {
        let text = serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec());
        self.key(key).extend_from_slice(&text);
    }
}
