//! A record's bytes → an item. In: one record as BPF wrote it. Out: the item, or None for bytes that are no valid
//! record (the caller counts them). Pure: no I/O, no state.

use super::blocks::Facts;
use crate::stacks::{self, MappedFile, PythonFrame};
use crate::wire::{self, Head};
use gpurec_cuda::raw::Piece;
use gpurec_trace::Op;
use gpurec_trace::bytes::u64_at;

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// CLOCK_MONOTONIC, ns.
    pub ts: u64,
    pub tid: u32,
    pub seq: u32,
    pub what: What,
}

impl Item {
    /// What was captured of memory.
    pub fn bytes(&self) -> &[u8] {
        match &self.what {
            What::Call { captured, .. } => &captured.payload,
            What::Return { pieces, .. } | What::Instant { pieces, .. } => pieces,
            _ => &[],
        }
    }
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
        /// The key of its stack, if it has one of its own.
        stack: Option<u64>,
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
        /// The thread was unwound out of the calls that it had open: pthread_cancel, pthread_exit.
        left_calls: bool,
    },
    /// A stack, before the first call that has it.
    Stack {
        pid: u32,
        key: u64,
        /// What distinguishes this process's rules from others'.
        seed: u64,
        frames: Frames,
    },
    /// From where the native frames of the thread's next stack are to be unwound further.
    Unwind(Box<Unwind>),
    /// A part of a Python function that stacks refer to.
    Code(Box<CodePart>),
    /// A process has mapped code.
    Mapped(Box<Mapped>),
    /// PyTorch's allocator handed out a block or took it back.
    Block(Block),
}

/// What a static probe of PyTorch's allocator said. A free has only the address.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub pid: u32,
    pub probe: u32,
    pub op: Op,
    pub sp: u64,
    /// The key of its stack, if it has one of its own.
    pub stack: Option<u64>,
    pub ptr: u64,
    pub facts: Facts,
}

/// The frames of a stack, innermost first.
#[derive(Clone, Debug, PartialEq)]
pub struct Frames {
    /// Return addresses.
    pub native: Vec<u64>,
    pub python: Vec<PythonFrame>,
    /// Outer frames are missing.
    pub cut: bool,
    /// BPF could not unwind the native frames: an `Unwind` comes before this.
    pub is_copied: bool,
}

/// A part of a thread's stack, and the registers there.
#[derive(Clone, Debug, PartialEq)]
pub struct Unwind {
    pub pid: u32,
    /// What distinguishes this process's rules from others'.
    pub seed: u64,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// rbx, r12, r13, r14 and r15, where they are known.
    pub others: Option<[u64; wire::REGISTERS]>,
    pub bytes: Box<[u8]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    pub pid: u32,
    /// From 0 for each program that the process executes.
    pub number: u32,
    pub what: stacks::Mapped,
}

/// A Python function as BPF read it; its table of lines comes in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct CodePart {
    pub pid: u32,
    pub code: u64,
    /// `PY_VERSION_HEX`.
    pub version: u32,
    pub first_line: i32,
    pub first_traceable: u32,
    pub name: Box<[u8]>,
    pub name_state: u32,
    pub file: Box<[u8]>,
    pub file_state: u32,
    /// Bytes of the whole table, and where this part of it begins.
    pub lines: u32,
    pub at: u32,
    pub part: Box<[u8]>,
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
    /// As `Payload` has it.
    payload: Box<[u8]>,
    words: usize,
}

impl Captured {
    #[cfg(test)]
    pub fn registers(args: [u64; 6]) -> Captured {
        Captured { args, ..Captured::default() }
    }

    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.payload().pieces()
    }

    pub fn payload(&self) -> Payload<'_> {
        Payload { bytes: &self.payload, words: self.words }
    }
}

/// Stack words, then pieces of memory, in a record's layout.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    pub bytes: &'a [u8],
    pub words: usize,
}

impl<'a> Payload<'a> {
    pub fn stack(self) -> impl Iterator<Item = u64> {
        let words = self.bytes.chunks_exact(8).take(self.words);
        words.filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
    }

    pub fn pieces(self) -> impl Iterator<Item = Piece<'a>> {
        pieces(self.bytes.get(self.words * 8..).unwrap_or(&[]))
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
            let mut stack = None;
            if head.flags & wire::HAS_STACK != 0 {
                let key = bytes.get(size_of::<wire::Call>() + usize::from(r.payload)..)?;
                stack = Some(u64::from_ne_bytes(*key.first_chunk()?)).filter(|key| *key != 0);
            }
            What::Call { pid: r.pid, probe: head.probe, chained, sp: r.sp, captured, origin, stack }
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
            let left_calls = head.flags & wire::LEFT_CALLS != 0;
            What::Exit { pid: r.pid, status: r.status, process, left_calls }
        }
        wire::STACK => stack(bytes)?,
        wire::UNWIND => {
            let r: wire::Unwind = wire::read(bytes)?;
            let start = size_of::<wire::Unwind>();
            let mut others = [0; wire::REGISTERS];
            for (at, register) in others.iter_mut().enumerate() {
                *register = u64_at(bytes, start + 8 * at)?;
            }
            let others = (r.has_registers != 0).then_some(others);
            let bytes = behind(bytes, start + 8 * wire::REGISTERS, r.size as usize)?;
            let wire::Unwind { pid, seed, ip, sp, bp, .. } = r;
            What::Unwind(Box::new(Unwind { pid, seed, ip, sp, bp, others, bytes }))
        }
        wire::CODE => What::Code(Box::new(code(bytes)?)),
        wire::BLOCK => What::Block(block(bytes)?),
        wire::MAPPED => What::Mapped(Box::new(mapped(bytes)?)),
        _ => return None,
    };
    Some(Item { ts: head.ts, tid: head.tid, seq: head.seq, what })
}

fn stack(bytes: &[u8]) -> Option<What> {
    let r: wire::Stack = wire::read(bytes)?;
    let size = size_of::<wire::Frame>();
    let (natives, pythons) = (usize::from(r.natives), usize::from(r.pythons));
    let all = bytes.get(size_of::<wire::Stack>()..)?.get(..size * (natives + pythons))?;
    let mut all = all.chunks_exact(size).filter_map(wire::read::<wire::Frame>);
    let native = all.by_ref().take(natives).map(|frame| frame.code).collect();
    let python = all.map(|frame| PythonFrame {
        code: frame.code,
        position: frame.position,
        owner: frame.owner as u8,
        is_entry: frame.owner & wire::ENTRY != 0,
    });
    let has = |flag| r.head.flags & flag != 0;
    let frames =
        Frames { native, python: python.collect(), cut: has(wire::CUT), is_copied: has(wire::COPIED) };
    Some(What::Stack { pid: r.pid, key: r.key, seed: r.seed, frames })
}

fn mapped(bytes: &[u8]) -> Option<Mapped> {
    let r: wire::Mapped = wire::read(bytes)?;
    let wire::FileKey { inode, device, generation, changed, size } = r.file;
    // As Linux encodes it.
    let device = (device >> 20, device & 0xf_ffff);
    let file = MappedFile { inode, device, generation, changed, size };
    let what = stacks::Mapped { start: r.start, end: r.end, offset: r.offset, file };
    Some(Mapped { pid: r.pid, number: r.number, what })
}

fn code(bytes: &[u8]) -> Option<CodePart> {
    let r: wire::Code = wire::read(bytes)?;
    let start = size_of::<wire::Code>();
    let (name, file) = (usize::from(r.name), usize::from(r.file));
    let after_name = start + name.next_multiple_of(8);
    let after_file = after_name + file.next_multiple_of(8);
    Some(CodePart {
        pid: r.pid,
        code: r.code,
        version: r.version,
        first_line: r.first_line,
        first_traceable: r.first_traceable,
        name: behind(bytes, start, name)?,
        name_state: r.name_state,
        file: behind(bytes, after_name, file)?,
        file_state: r.file_state,
        lines: r.lines,
        at: r.at,
        part: behind(bytes, after_file, r.part as usize)?,
    })
}

fn block(bytes: &[u8]) -> Option<Block> {
    let r: wire::Block = wire::read(bytes)?;
    let op = match r.operation {
        wire::ALLOC => Op::Alloc,
        wire::FREE => Op::Free,
        _ => return None,
    };
    let argument = |at: usize| r.arguments.get(at).copied().filter(|_| r.known >> at & 1 == 1);
    let facts = Facts {
        // No device has a negative ordinal.
        device: argument(1).and_then(|device| u32::try_from(device).ok()),
        size: argument(2),
        stream: argument(3),
    };
    let stack = Some(r.stack).filter(|key| *key != 0);
    Some(Block { pid: r.pid, probe: r.head.probe, op, sp: r.sp, stack, ptr: argument(0)?, facts })
}

fn behind(bytes: &[u8], start: usize, length: usize) -> Option<Box<[u8]>> {
    if length == 0 {
        return Some(Box::default());
    }
    Some(bytes.get(start..start.checked_add(length)?)?.into())
}
