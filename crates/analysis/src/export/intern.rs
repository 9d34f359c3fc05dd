//! InternTable text, as in Perfetto's incremental state: written once, then referenced by number. In: text. Out: its
//! number, and for new text the entry that defines the number. The table is bounded: text that does not fit is written
//! out each time.

use super::proto;
use gpurec_trace::hash::Map;

/// Limits on texts of one kind, and on their length.
const MOST: usize = 65_536;
const LONGEST: usize = 1024;

/// The fields of InternedData.
pub const CATEGORIES: u32 = 1;
pub const EVENTS: u32 = 2;
pub const ANNOTATIONS: u32 = 3;
pub const VALUES: u32 = 29;

#[derive(Default)]
pub struct InternTable<const FIELD: u32> {
    by_text: Map<Box<str>, u64>,
}

impl<const FIELD: u32> InternTable<FIELD> {
    /// Writes the number of a text as the first field, or the text as the second.
    pub fn put(&mut self, out: &mut Vec<u8>, (iid, field): (u32, u32), text: &str, entries: &mut Vec<u8>) {
        match self.number(text, entries) {
            Some(number) => proto::uint(out, iid, number),
            None => proto::bytes(out, field, text.as_bytes()),
        }
    }

    /// Returns the number of a text, and writes the entry of a new text to `entries`.
    fn number(&mut self, text: &str, entries: &mut Vec<u8>) -> Option<u64> {
        if let Some(number) = self.by_text.get(text) {
            return Some(*number);
        }
        if self.by_text.len() >= MOST || text.len() > LONGEST {
            return None;
        }
        let number = self.by_text.len() as u64 + 1;
        self.by_text.insert(text.into(), number);
        let entry = proto::open(entries, FIELD);
        proto::uint(entries, 1, number);
        proto::bytes(entries, 2, text.as_bytes());
        proto::close(entries, entry);
        Some(number)
    }
}
