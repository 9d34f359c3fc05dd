//! The recorder's own lines, kept as they were written, to be written again. In: lines with their texts. Out: the
//! lines.

use std::sync::Arc;

use gpurec_trace::{Line, fast, parse};

/// Bytes that a line takes in addition to its text.
const EACH: usize = 64;

/// A line as it was written.
#[derive(Clone)]
pub struct Kept {
    pub id: u64,
    text: Arc<[u8]>,
}

impl Kept {
    pub fn new(line: &Line, text: &[u8]) -> Kept {
        Kept { id: line.event_id, text: text.into() }
    }

    pub fn line(&self) -> Option<Line<'_>> {
        read(&self.text)
    }

    pub fn bytes(&self) -> usize {
        EACH + self.text.len()
    }
}

/// Parses one of the recorder's own lines.
pub fn read(text: &[u8]) -> Option<Line<'_>> {
    fast::line(text).or_else(|| parse::any_order(text).ok().map(|parsed| parsed.line))
}
