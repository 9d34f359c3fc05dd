//! Interned text, as in Perfetto's incremental state: written once, then referenced by number. In: text. Out: its
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

pub struct Interned {
    field: u32,
    by_text: Map<Box<str>, u64>,
}

impl Interned {
    pub fn new(field: u32) -> Interned {
        Interned { field, by_text: Map::default() }
    }

    pub fn clear(&mut self) {
        self.by_text.clear();
    }

    /// Returns the number of a text, and writes the entry of a new text to `entries`.
    pub fn number(&mut self, text: &str, entries: &mut Vec<u8>) -> Option<u64> {
        if let Some(number) = self.by_text.get(text) {
            return Some(*number);
        }
        if self.by_text.len() >= MOST || text.len() > LONGEST {
            return None;
        }
        let number = self.by_text.len() as u64 + 1;
        self.by_text.insert(text.into(), number);
        let entry = proto::open(entries, self.field);
        proto::uint(entries, 1, number);
        proto::bytes(entries, 2, text.as_bytes());
        proto::close(entries, entry);
        Some(number)
    }
}
