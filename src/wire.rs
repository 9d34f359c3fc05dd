//! The records' layout in Rust: the types that the skeleton generator makes from bpf/gpurec.h, under shorter names. No
//! type is copied by hand.

use std::mem::size_of;

mod skeleton {
    #![allow(dead_code, unused_imports, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/process.skel.rs"));
}

pub use skeleton::types::{
    gpurec_argument as Argument, gpurec_block as Block, gpurec_call as Call, gpurec_capture as Capture,
    gpurec_code as Code, gpurec_config as Config, gpurec_driver as Driver, gpurec_exec as Exec,
    gpurec_exit as Exit, gpurec_file as FileKey, gpurec_fork as Fork, gpurec_frame as Frame,
    gpurec_head as Head, gpurec_hook as Hook, gpurec_instant as Instant, gpurec_ioctl_key as IoctlKey,
    gpurec_ioctl_shape as IoctlShape, gpurec_lost as Lost, gpurec_lost_total as LostTotal,
    gpurec_mapped as Mapped, gpurec_new_file as NewFile, gpurec_piece as Piece,
    gpurec_positions as Positions, gpurec_pulse as Pulse, gpurec_python as Python,
    gpurec_python_at as PythonAt, gpurec_read as Read, gpurec_return as Return, gpurec_rule as Rule,
    gpurec_seen as Seen, gpurec_site as Site, gpurec_spender as Spender, gpurec_spent as Spent,
    gpurec_stack as Stack, gpurec_stack_spent as StackSpent, gpurec_state as State, gpurec_unwind as Unwind,
};

/// Names of the header's constants, with the type in which records hold them.
macro_rules! constants {
    ($($of:ident as $type:ty { $($name:ident = $value:ident),* })*) => {
        $($(pub const $name: $type = skeleton::types::$of::$value.0 as $type;)*)*
    };
}

constants! {
    gpurec_kind as u16 {
        CALL = GPUREC_CALL, RETURN = GPUREC_RETURN, FORK = GPUREC_FORK, EXEC = GPUREC_EXEC,
        EXIT = GPUREC_EXIT, INSTANT = GPUREC_INSTANT, STACK = GPUREC_STACK, CODE = GPUREC_CODE,
        UNWIND = GPUREC_UNWIND, BLOCK = GPUREC_BLOCK, MAPPED = GPUREC_MAPPED
    }
    gpurec_flag as u16 {
        CHAINED = GPUREC_CHAINED, PROCESS_ENDED = GPUREC_PROCESS_ENDED, CUT = GPUREC_CUT,
        STOPPED = GPUREC_STOPPED, PROGRAM = GPUREC_PROGRAM, WATCHED = GPUREC_WATCHED,
        NO_HOOKS = GPUREC_NO_HOOKS, NO_RETURN = GPUREC_NO_RETURN, KERNEL = GPUREC_KERNEL,
        KERNEL_THREAD = GPUREC_KERNEL_THREAD, WRAPPED = GPUREC_WRAPPED, HAS_STACK = GPUREC_HAS_STACK, COPIED = GPUREC_COPIED,
        LEFT_CALLS = GPUREC_LEFT_CALLS, CHANGEABLE = GPUREC_CHANGEABLE
    }
    gpurec_piece_state as u16 {
        PIECE_READ = GPUREC_PIECE_READ, PIECE_NULL = GPUREC_PIECE_NULL, PIECE_CUT = GPUREC_PIECE_CUT
    }
    gpurec_read_kind as u8 {
        READ_BYTES = GPUREC_READ_BYTES, READ_COUNTED = GPUREC_READ_COUNTED, READ_TEXT = GPUREC_READ_TEXT,
        READ_TEXT_THROUGH = GPUREC_READ_TEXT_THROUGH
    }
    gpurec_source as u8 { INSIDE = GPUREC_INSIDE }
    gpurec_limit as u16 { SMALL = GPUREC_SMALL, HOOK_PIECE = GPUREC_HOOK_PIECE }
    gpurec_limit as usize {
        READS = GPUREC_READS, RING_HEADER = GPUREC_RING_HEADER, RING_DATA = GPUREC_RING_DATA,
        RING_SLACK = GPUREC_RING_SLACK, REGISTERS = GPUREC_REGISTERS
    }
    gpurec_limit as u32 {
        STOP_COUNT = GPUREC_STOP_COUNT, MAX_PROBES = GPUREC_MAX_PROBES, MAX_FRAMES = GPUREC_MAX_FRAMES,
        MAX_CPUS = GPUREC_MAX_CPUS, PYTHONS = GPUREC_PYTHONS, SITES = GPUREC_SITES
    }
    gpurec_limit as u8 { FEW_WORDS = GPUREC_FEW_WORDS, WORDS = GPUREC_WORDS }
    gpurec_wants as u8 {
        WANTS_CAPTURE = GPUREC_WANTS_CAPTURE, WANTS_NOTHING = GPUREC_WANTS_NOTHING,
        WANTS_OUT = GPUREC_WANTS_OUT, WANTS_WORDS = GPUREC_WANTS_WORDS
    }
    gpurec_scope as u8 { TARGETS = GPUREC_TARGETS, DRIVER = GPUREC_DRIVER, EVERYBODY = GPUREC_EVERYBODY }
    gpurec_role as u8 {
        ROLE_FUNCTION = GPUREC_FUNCTION, ROLE_IOCTL = GPUREC_IOCTL, ROLE_IOCTL_INODE = GPUREC_IOCTL_INODE,
        ROLE_XID = GPUREC_XID, ROLE_TOP_HALF = GPUREC_TOP_HALF
    }
    gpurec_family as u32 {
        BY_FUNCTION = GPUREC_BY_FUNCTION, SPECIAL_BY_FUNCTION = GPUREC_SPECIAL_BY_FUNCTION
    }
    gpurec_reported_by_function as u32 {
        OPEN_BY_FUNCTION = GPUREC_OPEN_BY_FUNCTION, CLOSE_BY_FUNCTION = GPUREC_CLOSE_BY_FUNCTION,
        MMAP_BY_FUNCTION = GPUREC_MMAP_BY_FUNCTION
    }
    gpurec_rule_kind as i32 {
        RULE_STOP = GPUREC_RULE_STOP, RULE_END = GPUREC_RULE_END, RULE_SP = GPUREC_RULE_SP,
        RULE_BP = GPUREC_RULE_BP, RULE_AT_BP = GPUREC_RULE_AT_BP
    }
    gpurec_argument_kind as u8 {
        ARGUMENT_CONSTANT = GPUREC_ARGUMENT_CONSTANT, ARGUMENT_REGISTER = GPUREC_ARGUMENT_REGISTER,
        ARGUMENT_MEMORY = GPUREC_ARGUMENT_MEMORY
    }
    gpurec_operation as u16 { ALLOC = GPUREC_ALLOC, FREE = GPUREC_FREE }
    gpurec_phase as u32 {
        RECORDING = GPUREC_RECORDING, RETURNS_ONLY = GPUREC_RETURNS_ONLY, SILENT = GPUREC_SILENT
    }
}

/// The bit of a cookie whose outermost calls have a stack: see GPUREC_WANTS_STACK.
pub const WANTS_STACK: u64 = 0x8000 << 48;
/// An argument's register that is none: see GPUREC_NO_REGISTER.
pub const NO_REGISTER: u16 = 0xffff;
/// `owner` of a frame: see GPUREC_ENTRY.
pub const ENTRY: u32 = 0x100;

/// A plain struct of integers that a ring or a map carries.
///
/// # Safety
/// Only for `repr(C)` structs in which every bit pattern is a value and no byte is padding.
pub unsafe trait Wire: Copy {}

macro_rules! wire {
    ($($type:ty),*) => {
        // SAFETY: bpf/gpurec.h has only integers and arrays of them, explicitly padded.
        $(unsafe impl Wire for $type {})*
    };
}

wire!(
    Head, Call, Return, Fork, Exit, Exec, NewFile, FileKey, Lost, LostTotal, Pulse, Config, Instant, Hook,
    Driver, IoctlKey, IoctlShape, Spender, Spent, State, Capture, Piece, Stack, Frame, Code, Python,
    PythonAt, Seen, Unwind, Rule, StackSpent, Block, Site, Argument, Mapped
);

/// The value at the start of `bytes`, if they are enough.
pub fn read<T: Wire>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough, and every bit pattern is a T.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a value.
pub fn bytes<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: T has no padding, so every byte is initialised.
    unsafe { std::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}
