//! What BPF should capture of a call, and what it captured: the interface between the table, the recorder and the
//! decoders of calls.

/// Where an argument is at a function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An integer register, 0 to 5.
    Register(u8),
    /// A word of the stack behind the return address. On AArch64 words 0 and 1 are the registers x6 and x7, and the
    /// actual stack follows.
    Stack(u8),
    /// A structure in two registers.
    Pair(u8, u8),
    /// A structure by value on the stack.
    Block { word: u8, bytes: u16 },
    /// A floating-point register, which cannot be read.
    Vector,
}

/// One piece of the target's memory to read. At most 4 at entry and 4 at exit
/// of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index of the parameter.
    pub param: u8,
    pub from: Source,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pointer is this word: 0 to 5 a register, from 6 a stack word + 6.
    Word(u8),
    /// The pointer is the 8 bytes at `offset` in the bytes of the earlier entry read number `read`.
    Inside { read: u8, offset: u16 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A structure or scalar, at most 256 bytes.
    Bytes(u16),
    /// An array: min(count, max) elements, at most 512 bytes in all.
    Counted { count: Count, each: u16, max: u16 },
    /// A string of at most N bytes, with its zero.
    Text(u16),
    /// Exit only: the pointer points to a `char *`.
    TextThrough(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Word(u8),
    /// A 32-bit number at `offset` in the bytes of the earlier entry read number `read`.
    Inside {
        read: u8,
        offset: u16,
    },
}

/// What BPF should capture of a function besides the six integer registers and the return value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// From 0 to 16.
    pub stack_words: u8,
    pub entry: Vec<Read>,
    pub exit: Vec<Read>,
    /// A status besides 0 with which the call wrote its outputs; 0: none.
    pub also: u8,
}

/// What was captured at entry. `reads[i]` belongs to `plan.entry[i]`.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub registers: [u64; 6],
    /// The words that could be read.
    pub stack: &'a [u64],
    pub reads: &'a [Piece<'a>],
}

/// What was captured at return. `reads[i]` belongs to `plan.exit[i]`.
#[derive(Clone, Copy, Debug)]
pub struct Exit<'a> {
    pub reads: &'a [Piece<'a>],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The pointer was null.
    Null,
    Unreadable,
    Bytes {
        bytes: &'a [u8],
        /// The text or array is longer than what was read.
        cut: bool,
    },
}
