//! Signatures → what BPF captures. In: a function's plan. Out: its entry in the table with which one generic program
//! serves every function. Pure.

use crate::wire;
use gpurec_cuda::raw::{Count, Plan, Read, Source, What};

/// The plan as BPF reads it. None if only registers and return value are wanted.
pub fn capture(plan: &Plan) -> Option<wire::Capture> {
    if plan.stack_words == 0 && plan.entry.is_empty() && plan.exit.is_empty() {
        return None;
    }
    let mut capture = wire::Capture {
        words: plan.stack_words.min(wire::WORDS),
        entry_reads: plan.entry.len().min(wire::READS) as u8,
        exit_reads: plan.exit.len().min(wire::READS) as u8,
        also: plan.also,
        ..wire::Capture::default()
    };
    let slots = capture.entry.iter_mut().zip(&plan.entry).chain(capture.exit.iter_mut().zip(&plan.exit));
    slots.for_each(|(slot, wanted)| *slot = read(wanted));
    Some(capture)
}

/// Encodes simple captures in a hook's cookie, so that few hits have to look into the table.
pub fn cookie(probe: u32, plan: Option<&Plan>) -> u64 {
    let (wants, word, size) = match plan {
        None => (wire::WANTS_NOTHING, 0, 0),
        Some(plan) => wants(plan),
    };
    u64::from(probe) | u64::from(wants) << 32 | u64::from(word) << 40 | u64::from(size) << 48
}

fn wants(plan: &Plan) -> (u8, u8, u16) {
    if plan.also != 0 {
        return (wire::WANTS_CAPTURE, 0, 0);
    }
    match (plan.stack_words, plan.entry.as_slice(), plan.exit.as_slice()) {
        (0, [], []) => (wire::WANTS_NOTHING, 0, 0),
        // Most functions with an output pointer have one, in a register, to a number or a handle.
        (0, [], [Read { from: Source::Word(word), what: What::Bytes(size), .. }])
            if *word < 6 && *size <= wire::SMALL =>
        {
            (wire::WANTS_OUT, *word, *size)
        }
        // Launches.
        (words, [], []) if words <= wire::FEW_WORDS => (wire::WANTS_WORDS, words, 0),
        _ => (wire::WANTS_CAPTURE, 0, 0),
    }
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
