//! What the injected library and the recorder share: the layout of the ring between them, and which calls submit work.
//! In: nothing. Out: constants and the header. Both compile this file: the library alone, and src/gpu/ as a module.
//!
//! The recorder makes the memory and gives it a size that cannot be changed. The library is the writer and may be
//! several threads; the recorder is the only reader. A writer reserves room by moving `head`, fills it, and writes the
//! word in front last. The reader sets what it has read to zero and then moves `tail`: a word that is not zero belongs
//! to a finished record.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

pub const MAGIC: u64 = u64::from_le_bytes(*b"gpurec\x01\x16");
pub const ABI: u32 = 2;
/// Where records begin.
pub const DATA: usize = 4096;
/// Bytes of records: a power of two. CUPTI completes a buffer with thousands of records at once, and the recorder reads
/// every few milliseconds.
pub const SIZE: usize = 16 << 20;
/// Bytes kept of a kernel's name.
pub const LONGEST_NAME: usize = 8 << 10;
/// Bytes of the longest record, with the word in front.
pub const LONGEST: usize = LONGEST_NAME + 32;

/// What a record is: the upper half of the word in front of it. The lower half is its length with that word, a multiple
/// of 8.
pub mod record {
    /// A hash of the kernel's name, or 0, and the first bytes of CUPTI's record.
    pub const ACTIVITY: u32 = 1;
    /// A hash, the length of the name, and the name: before the first activity that has it.
    pub const NAME: u32 = 2;
    /// No record: the rest up to the end of the ring.
    pub const SKIP: u32 = 3;
}

pub mod state {
    pub const STARTING: u32 = 0;
    pub const ON: u32 = 1;
    pub const OFF: u32 = 2;
}

/// What failed, if the library is off.
pub mod step {
    /// No libcupti was found that could be loaded.
    pub const FIND: u32 = 1;
    /// It lacks a function that gpurec needs.
    pub const FUNCTIONS: u32 = 2;
    pub const SUBSCRIBE: u32 = 3;
    pub const CLOCK: u32 = 4;
    pub const CALLBACKS: u32 = 5;
    pub const ENABLE: u32 = 6;
}

/// Classes of records, for the counts of those that found no room.
pub mod class {
    pub const KERNEL: usize = 0;
    pub const COPY: usize = 1;
    pub const SET: usize = 2;
    pub const GRAPH: usize = 3;
    pub const API: usize = 4;
    pub const OVERHEAD: usize = 5;
    pub const COUNT: usize = 6;
}

/// The first page. Its parts are on cache lines of their own.
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub abi: u32,
    /// Not 0: graphs are recorded as a whole.
    pub graphs: u32,
    pub size: u64,
    /// Not 0: a thread that finds no room in the ring waits until there is some.
    pub lossless: u32,
    pad: [u32; 9],
    /// Written by the library.
    pub head: AtomicU64,
    pad_head: [u64; 7],
    /// Written by the recorder.
    pub tail: AtomicU64,
    /// The recorder reads no more.
    pub stop: AtomicU32,
    pad_tail: [u32; 13],
    pub state: AtomicU32,
    pub step: AtomicU32,
    /// CUPTI's result where a step failed.
    pub result: AtomicI32,
    /// CUPTI's number of its version.
    pub version: AtomicU32,
    /// When it began to record, CLOCK_MONOTONIC.
    pub since: AtomicU64,
    /// Not 0: everything that CUPTI had was asked for, at the process's exit.
    pub flushed: AtomicU32,
    /// Buffers whose records were not read, because too many buffers were in use.
    pub discarded: AtomicU32,
    /// Records that CUPTI dropped.
    pub dropped: AtomicU64,
    /// Records that found no room here.
    pub no_room: [AtomicU64; class::COUNT],
}

/// Functions of the driver that submit work, by CUPTI's numbers: first and last of each range.
pub const DRIVER: [(u16, u16); 18] = [
    (43, 82),
    (115, 117),
    (216, 227),
    (232, 234),
    (248, 254),
    (276, 293),
    (305, 307),
    (318, 321),
    (397, 416),
    (418, 433),
    (442, 442),
    (477, 478),
    (480, 480),
    (514, 515),
    (652, 653),
    (776, 779),
    (796, 799),
    (819, 819),
];

/// Functions of the runtime.
pub const RUNTIME: [(u16, u16); 15] = [
    (13, 13),
    (31, 52),
    (142, 145),
    (160, 163),
    (211, 211),
    (213, 236),
    (243, 246),
    (249, 250),
    (269, 270),
    (272, 272),
    (311, 312),
    (430, 431),
    (482, 485),
    (505, 506),
    (509, 512),
];

/// Those that launch a kernel or a graph.
pub const DRIVER_LAUNCHES: [u16; 13] = [115, 116, 117, 307, 442, 477, 478, 480, 514, 515, 652, 653, 819];
pub const RUNTIME_LAUNCHES: [u16; 13] = [13, 211, 213, 214, 269, 270, 272, 311, 312, 430, 431, 505, 506];

pub fn submits(ranges: &[(u16, u16)], function: u32) -> bool {
    ranges.iter().any(|(first, last)| (u32::from(*first)..=u32::from(*last)).contains(&function))
}
