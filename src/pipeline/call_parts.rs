//! Takes a call's captured bytes apart without an allocation. In: the bytes. Out: the words of its stack and the
//! pieces of memory, for the tables of arguments.

use super::decode::{self, Captured, Payload};
use crate::wire;
use gpurec_cuda::raw::{Entry, Exit, Piece};

pub(super) struct CallParts<'a> {
    stack: [u64; wire::WORDS as usize],
    words: usize,
    pieces: [Piece<'a>; wire::READS],
    count: usize,
}

/// Passes what was captured at the entry to `each`.
pub(super) fn with_entry<R>(payload: Payload, registers: [u64; 6], each: impl FnOnce(&Entry) -> R) -> R {
    // Most calls have nothing behind pointers.
    if payload.bytes.len() == payload.words * 8 {
        let mut stack = [0; wire::WORDS as usize];
        let mut words = 0;
        for (slot, word) in stack.iter_mut().zip(payload.stack()) {
            *slot = word;
            words += 1;
        }
        let stack = stack.get(..words).unwrap_or_default();
        return each(&Entry { registers, stack, reads: &[] });
    }
    each(&CallParts::entry(payload).as_entry(registers))
}

/// Passes what was captured at the return to `each`.
pub(super) fn with_exit<R>(pieces: &[u8], each: impl FnOnce(&Exit) -> R) -> R {
    if pieces.is_empty() {
        return each(&Exit { reads: &[] });
    }
    each(&Exit { reads: CallParts::of(decode::pieces(pieces)).pieces() })
}

impl<'a> CallParts<'a> {
    const NONE: CallParts<'static> = CallParts {
        stack: [0; wire::WORDS as usize],
        words: 0,
        pieces: [Piece::Null; wire::READS],
        count: 0,
    };

    pub(super) fn entry(payload: Payload<'a>) -> CallParts<'a> {
        let mut taken = CallParts::of(payload.pieces());
        for (slot, word) in taken.stack.iter_mut().zip(payload.stack()) {
            *slot = word;
            taken.words += 1;
        }
        taken
    }

    /// What was captured at the entry, completed by the pieces that could be read only at the return.
    pub(super) fn late(captured: &'a Captured, pieces: &'a [u8]) -> CallParts<'a> {
        let mut taken = CallParts::entry(captured.payload());
        for (index, piece) in decode::late_pieces(pieces) {
            if let Some(slot) = taken.pieces.get_mut(index) {
                *slot = piece;
            }
        }
        taken
    }

    fn of(pieces: impl Iterator<Item = Piece<'a>>) -> CallParts<'a> {
        let mut taken = CallParts::NONE;
        for (slot, piece) in taken.pieces.iter_mut().zip(pieces) {
            *slot = piece;
            taken.count += 1;
        }
        taken
    }

    pub(super) fn as_entry(&self, registers: [u64; 6]) -> Entry<'_> {
        let stack = self.stack.get(..self.words).unwrap_or_default();
        Entry { registers, stack, reads: self.pieces() }
    }

    pub(super) fn pieces(&self) -> &[Piece<'a>] {
        self.pieces.get(..self.count).unwrap_or_default()
    }
}
