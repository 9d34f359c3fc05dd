//! Signatures → what BPF captures. In: a function's plan. Out: the entry of the table by
//! which one generic program serves every function. Pure.

use super::wire;
use crate::cuda::raw::{Count, Plan, Read, Source, What};

/// The plan as BPF reads it. None if nothing is wanted beyond registers and return value.
pub fn capture(plan: &Plan) -> Option<wire::Capture> {
    if plan.stack_words == 0 && plan.entry.is_empty() && plan.exit.is_empty() {
        return None;
    }
    let mut capture = wire::Capture {
        words: plan.stack_words.min(wire::WORDS),
        entry_reads: plan.entry.len().min(wire::READS) as u8,
        exit_reads: plan.exit.len().min(wire::READS) as u8,
        ..wire::Capture::default()
    };
    for (slot, wanted) in capture.entry.iter_mut().zip(&plan.entry) {
        *slot = read(wanted);
    }
    for (slot, wanted) in capture.exit.iter_mut().zip(&plan.exit) {
        *slot = read(wanted);
    }
    capture.simple = is_simple(plan).into();
    Some(capture)
}

/// Most functions with an out-pointer: one, in a register, to a number or a handle.
fn is_simple(plan: &Plan) -> bool {
    let one = match plan.exit.as_slice() {
        [Read { from: Source::Word(word), what: What::Bytes(size), .. }] => *word < 6 && *size <= wire::SMALL,
        _ => false,
    };
    one && plan.stack_words == 0 && plan.entry.is_empty()
}

fn read(wanted: &Read) -> wire::Read {
    let (source, source_offset) = match wanted.from {
        Source::Word(word) => (word, 0),
        Source::Inside { read, offset } => (read | wire::INSIDE, offset),
    };
    let mut read = wire::Read { source, source_offset, ..wire::Read::default() };
    match wanted.what {
        What::Bytes(size) => (read.kind, read.size) = (wire::READ_BYTES, size),
        What::Text(size) => (read.kind, read.size) = (wire::READ_TEXT, size),
        What::TextThrough(size) => (read.kind, read.size) = (wire::READ_TEXT_THROUGH, size),
        What::Counted { count, each, max } => {
            (read.kind, read.size, read.each) = (wire::READ_COUNTED, each.saturating_mul(max), each);
            match count {
                Count::Word(word) => read.count = word,
                Count::Inside { read: piece, offset } => {
                    (read.count, read.count_offset) = (piece | wire::INSIDE, offset);
                }
            }
        }
    }
    read
}
