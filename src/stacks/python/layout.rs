//! Where CPython keeps what a stack needs, on x86-64. In: a version, or the `_Py_DebugOffsets` of an interpreter. Out: a
//! `Layout`, or why there is none. Not here: finding the interpreter, reading its memory.
//!
//! Versions before 3.13 have a table, checked against their headers; later ones describe themselves.

use gpurec_trace::bytes::u64_at;
use serde::{Deserialize, Serialize};

/// The interpreter has no such field.
pub const NONE: u32 = u32::MAX;

/// How a frame holds the instruction that it executes.
pub mod instruction {
    /// 3.9: `f_lasti`, an int, in bytes; -1 before the first.
    pub const BYTES: u32 = 0;
    /// 3.10: `f_lasti`, an int, in units of two bytes; -1 before the first.
    pub const UNITS: u32 = 1;
    /// 3.11, 3.12: `prev_instr`, a pointer into `code_adaptive`, to the last unit executed, which may be a cache entry.
    pub const PREVIOUS: u32 = 2;
    /// From 3.13: `instr_ptr`, a pointer into `code_adaptive`, to the instruction that executes.
    ///
    /// The line belongs to `pointer - code_adaptive` bytes for both kinds of pointer (`_PyInterpreterFrame_LASTI`).
    pub const CURRENT: u32 = 3;
}

/// Offsets that BPF follows; bpf/gpurec.h has the same struct. `NONE` where the version has no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// `PY_VERSION_HEX`; of a table, the first release that it is for.
    pub version: u32,
    /// In `_PyRuntime`.
    pub interpreters_head: u32,
    /// In `PyInterpreterState`.
    pub interpreter_next: u32,
    pub threads_head: u32,
    /// In `PyThreadState`. `thread_id` is eight bytes: gettid() in the process' PID namespace, or pthread_self().
    pub thread_next: u32,
    pub thread_id: u32,
    /// 1: `thread_id` is pthread_self(), the thread's fs base; else 0.
    pub id_is_pthread: u32,
    /// The innermost frame, or the `_PyCFrame` that points to it.
    pub thread_frame: u32,
    /// In `_PyCFrame`.
    pub cframe_frame: u32,
    /// In a frame.
    pub frame_code: u32,
    pub frame_previous: u32,
    pub frame_instruction: u32,
    /// One of `instruction`.
    pub instruction_kind: u32,
    /// One byte.
    pub frame_owner: u32,
    /// One byte, not 0 where the interpreter was entered. Before 3.11 every frame is an entry; from 3.12 on a frame that
    /// is no Python function lies there.
    pub frame_entry: u32,
    /// A frame with this owner or a higher one runs no Python code and is no part of a traceback.
    pub owner_limit: u32,
    /// The bits of `frame_code` that are no part of the address.
    pub code_mask: u32,
    /// In `PyThreadState`, a pointer to the frame where the chain ends.
    pub thread_base_frame: u32,
    /// In a code object: pointers to str, str, an int, and a pointer to bytes.
    pub code_filename: u32,
    pub code_name: u32,
    pub code_firstlineno: u32,
    pub code_linetable: u32,
    /// Where the instructions are, in the code object.
    pub code_adaptive: u32,
    /// An int, in units of two bytes: a frame not owned by a generator (`GENERATOR`) whose instruction lies before
    /// `code_adaptive + 2 * this` is incomplete, and no part of a traceback.
    pub first_traceable: u32,
    /// In a str: four bytes with `UNICODE_KIND` and `UNICODE_ASCII`.
    pub unicode_state: u32,
    /// Eight bytes: the number of characters.
    pub unicode_length: u32,
    /// The characters of a compact ASCII str, and of another compact one.
    pub ascii_data: u32,
    pub unicode_data: u32,
    /// In a bytes: eight bytes, and the bytes.
    pub bytes_size: u32,
    pub bytes_data: u32,
}

/// `frame.owner` of a generator's or coroutine's frame.
pub const GENERATOR: u8 = 1;
/// In the state of a str, the same in all versions: `state >> 2 & 7` is the number of bytes a character.
pub const UNICODE_KIND: u32 = 0x1c;
pub const UNICODE_ASCII: u32 = 0x40;

/// Why an interpreter's Python frames cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(
        "Python {0}.{1} is not known to this gpurec, which records the Python frames of 3.9 to 3.15: use one of these"
    )]
    Unknown(u8, u8),
    #[error(
        "this is a pre-release of Python {0}.{1}, whose structures differ from the release's: use the release"
    )]
    PreRelease(u8, u8),
    #[error("this Python {0}.{1} is free-threaded, whose frames gpurec does not read: use the default build")]
    FreeThreaded(u8, u8),
    #[error("the debug offsets of this interpreter are damaged: build or install it again")]
    Damaged,
}

const V3_9: Layout = Layout {
    version: 0x0309_00f0,
    interpreters_head: 32,
    interpreter_next: 0,
    threads_head: 8,
    thread_next: 8,
    thread_id: 176,
    id_is_pthread: 1,
    thread_frame: 24,
    cframe_frame: NONE,
    frame_code: 32,
    frame_previous: 24,
    frame_instruction: 104,
    instruction_kind: instruction::BYTES,
    frame_owner: NONE,
    frame_entry: NONE,
    owner_limit: NONE,
    code_mask: 0,
    thread_base_frame: NONE,
    code_filename: 104,
    code_name: 112,
    code_firstlineno: 40,
    code_linetable: 120,
    code_adaptive: NONE,
    first_traceable: NONE,
    unicode_state: 32,
    unicode_length: 16,
    ascii_data: 48,
    unicode_data: 72,
    bytes_size: 16,
    bytes_data: 32,
};

const V3_10: Layout =
    Layout { version: 0x030a_00f0, frame_instruction: 96, instruction_kind: instruction::UNITS, ..V3_9 };

const V3_11: Layout = Layout {
    version: 0x030b_00f0,
    interpreters_head: 40,
    threads_head: 16,
    thread_id: 160,
    id_is_pthread: 0,
    thread_frame: 56,
    cframe_frame: 8,
    frame_code: 32,
    frame_previous: 48,
    frame_instruction: 56,
    instruction_kind: instruction::PREVIOUS,
    frame_owner: 69,
    frame_entry: 68,
    owner_limit: 3,
    code_filename: 112,
    code_name: 120,
    code_firstlineno: 72,
    code_linetable: 136,
    code_adaptive: 184,
    first_traceable: 168,
    ..V3_9
};

const V3_12: Layout = Layout {
    version: 0x030c_00f0,
    threads_head: 72,
    thread_id: 144,
    cframe_frame: 0,
    frame_code: 0,
    frame_previous: 8,
    frame_owner: 70,
    frame_entry: NONE,
    code_firstlineno: 68,
    code_name: 120,
    code_adaptive: 192,
    first_traceable: 176,
    ascii_data: 40,
    unicode_data: 56,
    ..V3_11
};

/// What begins the debug offsets.
pub const COOKIE: &[u8; 8] = b"xdebugpy";
/// The most bytes of `_PyRuntime` that `Layout::described` reads.
pub const DESCRIPTION: usize = 888;

/// Where each offset lies in `_Py_DebugOffsets`.
struct Places {
    minor: u8,
    size: usize,
    interpreters_head: usize,
    interpreter_next: usize,
    threads_head: usize,
    thread_next: usize,
    thread_frame: usize,
    thread_base_frame: Option<usize>,
    native_thread_id: usize,
    frame_previous: usize,
    frame_executable: usize,
    frame_instruction: usize,
    frame_owner: usize,
    code_filename: usize,
    code_name: usize,
    code_linetable: usize,
    code_firstlineno: usize,
    code_adaptive: usize,
    object_size: usize,
    bytes_size: usize,
    bytes_data: usize,
    unicode_state: usize,
    unicode_length: usize,
    ascii_size: usize,
    /// The low bits of a frame's code that are tags: a fact of the version that it does not describe.
    code_mask: u32,
}

const PLACES: [Places; 3] = [
    Places {
        minor: 13,
        size: 584,
        interpreters_head: 40,
        interpreter_next: 64,
        threads_head: 72,
        thread_next: 168,
        thread_frame: 184,
        thread_base_frame: None,
        native_thread_id: 200,
        frame_previous: 232,
        frame_executable: 240,
        frame_instruction: 248,
        frame_owner: 264,
        code_filename: 280,
        code_name: 288,
        code_linetable: 304,
        code_firstlineno: 312,
        code_adaptive: 344,
        object_size: 352,
        bytes_size: 520,
        bytes_data: 528,
        unicode_state: 544,
        unicode_length: 552,
        ascii_size: 560,
        code_mask: 0,
    },
    Places {
        minor: 14,
        size: 760,
        interpreters_head: 40,
        interpreter_next: 64,
        threads_head: 72,
        thread_next: 192,
        thread_frame: 208,
        thread_base_frame: None,
        native_thread_id: 224,
        frame_previous: 256,
        frame_executable: 264,
        frame_instruction: 272,
        frame_owner: 288,
        code_filename: 320,
        code_name: 328,
        code_linetable: 344,
        code_firstlineno: 352,
        code_adaptive: 384,
        object_size: 400,
        bytes_size: 600,
        bytes_data: 608,
        unicode_state: 624,
        unicode_length: 632,
        ascii_size: 640,
        code_mask: 3,
    },
    Places {
        minor: 15,
        size: 888,
        interpreters_head: 40,
        interpreter_next: 64,
        threads_head: 72,
        thread_next: 192,
        thread_frame: 208,
        thread_base_frame: Some(216),
        native_thread_id: 248,
        frame_previous: 320,
        frame_executable: 328,
        frame_instruction: 336,
        frame_owner: 352,
        code_filename: 384,
        code_name: 392,
        code_linetable: 408,
        code_firstlineno: 416,
        code_adaptive: 448,
        object_size: 464,
        bytes_size: 696,
        bytes_data: 704,
        unicode_state: 720,
        unicode_length: 728,
        ascii_size: 736,
        code_mask: 3,
    },
];

/// Offsets in `_PyRuntime` and the interpreter's state, which are large, and in all other objects.
const FARTHEST_STATE: u64 = 16 << 20;
const FARTHEST: u64 = 4096;

/// Release levels in `PY_VERSION_HEX` from which structures no longer change: candidate and final.
const CANDIDATE: u32 = 0xc;

/// Major and minor of a `PY_VERSION_HEX`.
pub fn release(version: u32) -> (u8, u8) {
    ((version >> 24) as u8, (version >> 16) as u8)
}

fn released(version: u32) -> Result<(u8, u8), Unfit> {
    let (major, minor) = release(version);
    match version >> 4 & 0xf {
        CANDIDATE.. => Ok((major, minor)),
        _ => Err(Unfit::PreRelease(major, minor)),
    }
}

impl Layout {
    /// Of a version before 3.13.
    pub fn of(version: u32) -> Result<Layout, Unfit> {
        let table = match release(version) {
            (3, 9) => V3_9,
            (3, 10) => V3_10,
            (3, 11) => V3_11,
            (3, 12) => V3_12,
            (major, minor) => return Err(Unfit::Unknown(major, minor)),
        };
        released(version)?;
        Ok(Layout { version, ..table })
    }

    /// Of an interpreter that describes itself: `head` is the beginning of its `_PyRuntime`. None if it does not.
    pub fn described(head: &[u8]) -> Option<Result<Layout, Unfit>> {
        if head.get(..COOKIE.len())? != COOKIE {
            return None;
        }
        let (version, free_threaded) = (u64_at(head, 8)?, u64_at(head, 16)?);
        Some(Self::of_description(head, version, free_threaded != 0))
    }

    fn of_description(head: &[u8], version: u64, free_threaded: bool) -> Result<Layout, Unfit> {
        let version = u32::try_from(version).map_err(|_| Unfit::Damaged)?;
        let (major, minor) = release(version);
        let places = PLACES.iter().find(|places| (3, places.minor) == (major, minor));
        let places = places.ok_or(Unfit::Unknown(major, minor))?;
        released(version)?;
        if free_threaded {
            return Err(Unfit::FreeThreaded(major, minor));
        }
        let head = head.get(..places.size).ok_or(Unfit::Damaged)?;
        places.read(head, version)
    }
}

impl Places {
    fn read(&self, head: &[u8], version: u32) -> Result<Layout, Unfit> {
        let below = |place, most| match u64_at(head, place) {
            Some(offset) if offset < most => Ok(offset as u32),
            _ => Err(Unfit::Damaged),
        };
        let state = |place| below(place, FARTHEST_STATE);
        let offset = |place| below(place, FARTHEST);
        let code_adaptive = offset(self.code_adaptive)?;
        let ascii_data = offset(self.ascii_size)?;
        // Other sizes than these are builds that trace references, whose objects are larger.
        if offset(self.object_size)? != 16 || code_adaptive < 16 {
            return Err(Unfit::Damaged);
        }
        Ok(Layout {
            version,
            interpreters_head: state(self.interpreters_head)?,
            interpreter_next: state(self.interpreter_next)?,
            threads_head: state(self.threads_head)?,
            thread_next: offset(self.thread_next)?,
            thread_id: offset(self.native_thread_id)?,
            id_is_pthread: 0,
            thread_frame: offset(self.thread_frame)?,
            cframe_frame: NONE,
            frame_code: offset(self.frame_executable)?,
            frame_previous: offset(self.frame_previous)?,
            frame_instruction: offset(self.frame_instruction)?,
            instruction_kind: instruction::CURRENT,
            frame_owner: offset(self.frame_owner)?,
            frame_entry: NONE,
            owner_limit: 3,
            code_mask: self.code_mask,
            thread_base_frame: self.thread_base_frame.map_or(Ok(NONE), offset)?,
            code_filename: offset(self.code_filename)?,
            code_name: offset(self.code_name)?,
            code_firstlineno: offset(self.code_firstlineno)?,
            code_linetable: offset(self.code_linetable)?,
            code_adaptive,
            // Not described. In default builds of all versions only a pointer lies between the two.
            first_traceable: code_adaptive - 16,
            unicode_state: offset(self.unicode_state)?,
            unicode_length: offset(self.unicode_length)?,
            ascii_data,
            // A compact str that is not ASCII has two more words: its length in UTF-8, and a pointer to that.
            unicode_data: ascii_data + 16,
            bytes_size: offset(self.bytes_size)?,
            bytes_data: offset(self.bytes_data)?,
        })
    }
}
