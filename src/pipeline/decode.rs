//! A record's bytes → an item. In: one record as BPF wrote it. Out: the item, or None for bytes that are no valid
//! record (the caller counts them). Pure: no I/O, no state.

use crate::wire::{self, Head};
use gpurec_cuda::raw::Piece;

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// CLOCK_MONOTONIC, ns.
    pub ts: u64,
    pub tid: u32,
    pub seq: u32,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Call {
        pid: u32,
        probe: u32,
        chained: bool,
        sp: u64,
        captured: Captured,
        origin: Origin,
    },
    Return {
        probe: u32,
        begin: u64,
        value: u64,
        pieces: Box<[u8]>,
        origin: Origin,
    },
    /// An event inside Linux, recorded once, when it was over. `pid` 0: it belongs to no thread.
    Instant {
        pid: u32,
        probe: u32,
        cpu: u32,
        duration: u64,
        args: [u64; 6],
        pieces: Box<[u8]>,
    },
    Fork {
        pid: u32,
        child: u32,
    },
    Exec {
        pid: u32,
        old_tid: u32,
        command: Box<[u8]>,
        cut: bool,
    },
    Exit {
        pid: u32,
        status: i32,
        process: bool,
    },
}

/// Where a call was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Inside Linux, beneath the program. The thread's sequence numbers do not count it.
    pub kernel: bool,
    /// In a Linux kernel thread, not in a thread of the target.
    pub kernel_thread: bool,
    /// An ioctl that came wrapped in another.
    pub wrapped: bool,
    /// On another stack than the thread's open call: its return is not recorded (bpf/stack.h).
    pub elsewhere: bool,
}

impl Origin {
    fn of(flags: u16) -> Origin {
        let has = |flag| flags & flag != 0;
        Origin {
            kernel: has(wire::KERNEL),
            kernel_thread: has(wire::KERNEL_THREAD),
            wrapped: has(wire::WRAPPED),
            elsewhere: has(wire::NO_RETURN),
        }
    }
}

/// What was captured at a call's entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captured {
    pub args: [u64; 6],
    /// Stack words, then pieces of memory, in the record's layout.
    payload: Box<[u8]>,
    words: usize,
}

impl Captured {
    #[cfg(test)]
    pub fn registers(args: [u64; 6]) -> Captured {
        Captured { args, ..Captured::default() }
    }

    pub fn stack(&self) -> impl Iterator<Item = u64> {
        self.payload
            .chunks_exact(8)
            .take(self.words)
            .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
    }

    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        pieces(self.payload.get(self.words * 8..).unwrap_or(&[]))
    }
}

/// The planned pieces behind a record. The first invalid piece ends the list.
pub fn pieces(bytes: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    all_pieces(bytes).filter(|(late, _)| *late == 0).map(|(_, piece)| piece)
}

/// Pieces behind a return that could not be read at the call's entry, each with its index among the entry's pieces.
pub fn late_pieces(bytes: &[u8]) -> impl Iterator<Item = (usize, Piece<'_>)> {
    all_pieces(bytes).filter_map(|(late, piece)| Some((late.checked_sub(1)? as usize, piece)))
}

fn all_pieces(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Piece<'_>)> {
    std::iter::from_fn(move || {
        let piece: wire::Piece = wire::read(bytes)?;
        let data = bytes.get(size_of::<wire::Piece>()..)?;
        let length = usize::from(piece.length);
        let value = data.get(..length)?;
        bytes = data.get(length.next_multiple_of(8)..).unwrap_or(&[]);
        let read = match piece.state {
            wire::PIECE_READ => Piece::Bytes { bytes: value, cut: false },
            wire::PIECE_CUT => Piece::Bytes { bytes: value, cut: true },
            wire::PIECE_NULL => Piece::Null,
            _ => Piece::Unreadable,
        };
        Some((piece.late, read))
    })
}

/// True for a call or return without the memory that should have been read with it.
pub fn is_cut(bytes: &[u8]) -> bool {
    wire::read::<Head>(bytes)
        .is_some_and(|head| matches!(head.kind, wire::CALL | wire::RETURN) && head.flags & wire::CUT != 0)
}

pub fn decode(bytes: &[u8]) -> Option<Item> {
    let head: Head = wire::read(bytes)?;
    let what = match head.kind {
        wire::CALL => {
            let r: wire::Call = wire::read(bytes)?;
            let chained = head.flags & wire::CHAINED != 0;
            let payload = behind(bytes, size_of::<wire::Call>(), r.payload.into())?;
            let captured = Captured { args: r.args, payload, words: r.words.into() };
            let origin = Origin::of(head.flags);
            What::Call { pid: r.pid, probe: head.probe, chained, sp: r.sp, captured, origin }
        }
        wire::RETURN => {
            let r: wire::Return = wire::read(bytes)?;
            // BPF builds both kinds in the same buffer, with the call's size in front.
            let pieces = behind(bytes, size_of::<wire::Call>(), r.payload as usize)?;
            let origin = Origin::of(head.flags);
            What::Return { probe: head.probe, begin: r.begin, value: r.value, pieces, origin }
        }
        wire::INSTANT => {
            let r: wire::Instant = wire::read(bytes)?;
            let pieces = behind(bytes, size_of::<wire::Instant>(), r.payload as usize)?;
            let (pid, probe, cpu) = (r.pid, head.probe, r.cpu);
            What::Instant { pid, probe, cpu, duration: r.duration, args: r.args, pieces }
        }
        wire::FORK => {
            let r: wire::Fork = wire::read(bytes)?;
            What::Fork { pid: r.pid, child: r.child }
        }
        wire::EXEC => {
            let r: wire::Exec = wire::read(bytes)?;
            let command = r.command.get(..r.length as usize)?.into();
            What::Exec { pid: r.pid, old_tid: head.probe, command, cut: head.flags & wire::CUT != 0 }
        }
        wire::EXIT => {
            let r: wire::Exit = wire::read(bytes)?;
            let process = head.flags & wire::PROCESS_ENDED != 0;
            What::Exit { pid: r.pid, status: r.status, process }
        }
        _ => return None,
    };
    Some(Item { ts: head.ts, tid: head.tid, seq: head.seq, what })
}

fn behind(bytes: &[u8], start: usize, length: usize) -> Option<Box<[u8]>> {
    if length == 0 {
        return Some(Box::default());
    }
    Some(bytes.get(start..start.checked_add(length)?)?.into())
}
