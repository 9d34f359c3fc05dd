//! The records' layout in Rust: the types that the skeleton generator makes from bpf/gpurec.h, under shorter names. No
//! type is copied by hand.

use std::mem::size_of;

mod skeleton {
    #![allow(dead_code, unused_imports, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/process.skel.rs"));
}

pub use skeleton::types::gpurec_call as Call;
pub use skeleton::types::gpurec_capture as Capture;
pub use skeleton::types::gpurec_config as Config;
pub use skeleton::types::gpurec_driver as Driver;
pub use skeleton::types::gpurec_exec as Exec;
pub use skeleton::types::gpurec_exit as Exit;
pub use skeleton::types::gpurec_file as FileKey;
pub use skeleton::types::gpurec_fork as Fork;
pub use skeleton::types::gpurec_head as Head;
pub use skeleton::types::gpurec_hook as Hook;
pub use skeleton::types::gpurec_instant as Instant;
pub use skeleton::types::gpurec_ioctl_key as IoctlKey;
pub use skeleton::types::gpurec_ioctl_shape as IoctlShape;
pub use skeleton::types::gpurec_lost as Lost;
pub use skeleton::types::gpurec_lost_total as LostTotal;
pub use skeleton::types::gpurec_new_file as NewFile;
pub use skeleton::types::gpurec_piece as Piece;
pub use skeleton::types::gpurec_positions as Positions;
pub use skeleton::types::gpurec_pulse as Pulse;
pub use skeleton::types::gpurec_read as Read;
pub use skeleton::types::gpurec_return as Return;
pub use skeleton::types::gpurec_spender as Spender;
pub use skeleton::types::gpurec_spent as Spent;
pub use skeleton::types::gpurec_state as State;

use skeleton::types::{
    gpurec_family, gpurec_flag, gpurec_kind, gpurec_limit, gpurec_phase, gpurec_piece_state,
    gpurec_read_kind, gpurec_role, gpurec_scope, gpurec_source, gpurec_told_by_function, gpurec_wants,
};

pub const CALL: u16 = gpurec_kind::GPUREC_CALL.0 as u16;
pub const RETURN: u16 = gpurec_kind::GPUREC_RETURN.0 as u16;
pub const FORK: u16 = gpurec_kind::GPUREC_FORK.0 as u16;
pub const EXEC: u16 = gpurec_kind::GPUREC_EXEC.0 as u16;
pub const EXIT: u16 = gpurec_kind::GPUREC_EXIT.0 as u16;
pub const INSTANT: u16 = gpurec_kind::GPUREC_INSTANT.0 as u16;

pub const CHAINED: u16 = gpurec_flag::GPUREC_CHAINED.0 as u16;
pub const PROCESS_ENDED: u16 = gpurec_flag::GPUREC_PROCESS_ENDED.0 as u16;
pub const CUT: u16 = gpurec_flag::GPUREC_CUT.0 as u16;
pub const STOPPED: u16 = gpurec_flag::GPUREC_STOPPED.0 as u16;
pub const PROGRAM: u16 = gpurec_flag::GPUREC_PROGRAM.0 as u16;
pub const WATCHED: u16 = gpurec_flag::GPUREC_WATCHED.0 as u16;

pub const NO_HOOKS: u16 = gpurec_flag::GPUREC_NO_HOOKS.0 as u16;
pub const NO_RETURN: u16 = gpurec_flag::GPUREC_NO_RETURN.0 as u16;
pub const KERNEL: u16 = gpurec_flag::GPUREC_KERNEL.0 as u16;
pub const KERNEL_THREAD: u16 = gpurec_flag::GPUREC_KERNEL_THREAD.0 as u16;
pub const WRAPPED: u16 = gpurec_flag::GPUREC_WRAPPED.0 as u16;

pub const PIECE_READ: u16 = gpurec_piece_state::GPUREC_PIECE_READ.0 as u16;
pub const PIECE_NULL: u16 = gpurec_piece_state::GPUREC_PIECE_NULL.0 as u16;
pub const PIECE_CUT: u16 = gpurec_piece_state::GPUREC_PIECE_CUT.0 as u16;

pub const READ_BYTES: u8 = gpurec_read_kind::GPUREC_READ_BYTES.0 as u8;
pub const READ_COUNTED: u8 = gpurec_read_kind::GPUREC_READ_COUNTED.0 as u8;
pub const READ_TEXT: u8 = gpurec_read_kind::GPUREC_READ_TEXT.0 as u8;
pub const READ_TEXT_THROUGH: u8 = gpurec_read_kind::GPUREC_READ_TEXT_THROUGH.0 as u8;
pub const INSIDE: u8 = gpurec_source::GPUREC_INSIDE.0 as u8;
pub const SMALL: u16 = gpurec_limit::GPUREC_SMALL.0 as u16;
pub const READS: usize = gpurec_limit::GPUREC_READS.0 as usize;
pub const STOP_COUNT: u32 = gpurec_limit::GPUREC_STOP_COUNT.0;
pub const FEW_WORDS: u8 = gpurec_limit::GPUREC_FEW_WORDS.0 as u8;
pub const WORDS: u8 = gpurec_limit::GPUREC_WORDS.0 as u8;

pub const WANTS_CAPTURE: u8 = gpurec_wants::GPUREC_WANTS_CAPTURE.0 as u8;
pub const WANTS_NOTHING: u8 = gpurec_wants::GPUREC_WANTS_NOTHING.0 as u8;
pub const WANTS_OUT: u8 = gpurec_wants::GPUREC_WANTS_OUT.0 as u8;
pub const WANTS_WORDS: u8 = gpurec_wants::GPUREC_WANTS_WORDS.0 as u8;

pub const TARGETS: u8 = gpurec_scope::GPUREC_TARGETS.0 as u8;
pub const DRIVER: u8 = gpurec_scope::GPUREC_DRIVER.0 as u8;
pub const EVERYBODY: u8 = gpurec_scope::GPUREC_EVERYBODY.0 as u8;
pub const ROLE_FUNCTION: u8 = gpurec_role::GPUREC_FUNCTION.0 as u8;
pub const ROLE_IOCTL: u8 = gpurec_role::GPUREC_IOCTL.0 as u8;
pub const ROLE_IOCTL_INODE: u8 = gpurec_role::GPUREC_IOCTL_INODE.0 as u8;
pub const ROLE_XID: u8 = gpurec_role::GPUREC_XID.0 as u8;
pub const ROLE_TOP_HALF: u8 = gpurec_role::GPUREC_TOP_HALF.0 as u8;
pub const BY_FUNCTION: u32 = gpurec_family::GPUREC_BY_FUNCTION.0;
pub const SPECIAL_BY_FUNCTION: u32 = gpurec_family::GPUREC_SPECIAL_BY_FUNCTION.0;
pub const OPEN_BY_FUNCTION: u32 = gpurec_told_by_function::GPUREC_OPEN_BY_FUNCTION.0;
pub const CLOSE_BY_FUNCTION: u32 = gpurec_told_by_function::GPUREC_CLOSE_BY_FUNCTION.0;
pub const MMAP_BY_FUNCTION: u32 = gpurec_told_by_function::GPUREC_MMAP_BY_FUNCTION.0;
pub const HOOK_PIECE: u16 = gpurec_limit::GPUREC_HOOK_PIECE.0 as u16;

pub const RECORDING: u32 = gpurec_phase::GPUREC_RECORDING.0;
pub const RETURNS_ONLY: u32 = gpurec_phase::GPUREC_RETURNS_ONLY.0;
pub const SILENT: u32 = gpurec_phase::GPUREC_SILENT.0;

pub const MAX_PROBES: u32 = gpurec_limit::GPUREC_MAX_PROBES.0;
pub const RING_HEADER: usize = gpurec_limit::GPUREC_RING_HEADER.0 as usize;
pub const RING_DATA: usize = gpurec_limit::GPUREC_RING_DATA.0 as usize;
pub const RING_SLACK: usize = gpurec_limit::GPUREC_RING_SLACK.0 as usize;
pub const MAX_FRAMES: u32 = gpurec_limit::GPUREC_MAX_FRAMES.0;
pub const MAX_CPUS: u32 = gpurec_limit::GPUREC_MAX_CPUS.0;

/// A plain struct of integers that a ring or a map carries.
///
/// # Safety
/// Only for `repr(C)` structs in which every bit pattern is a value and no byte is padding.
pub unsafe trait Wire: Copy {}

// SAFETY: bpf/gpurec.h has only integers and arrays of them, explicitly padded.
unsafe impl Wire for Head {}
// SAFETY: as above.
unsafe impl Wire for Call {}
// SAFETY: as above.
unsafe impl Wire for Return {}
// SAFETY: as above.
unsafe impl Wire for Fork {}
// SAFETY: as above.
unsafe impl Wire for Exit {}
// SAFETY: as above.
unsafe impl Wire for Exec {}
// SAFETY: as above.
unsafe impl Wire for NewFile {}
// SAFETY: as above.
unsafe impl Wire for FileKey {}
// SAFETY: as above.
unsafe impl Wire for Lost {}
// SAFETY: as above.
unsafe impl Wire for LostTotal {}
// SAFETY: as above.
unsafe impl Wire for Pulse {}
// SAFETY: as above.
unsafe impl Wire for Config {}

// SAFETY: as above.
unsafe impl Wire for Instant {}
// SAFETY: as above.
unsafe impl Wire for Hook {}
// SAFETY: as above.
unsafe impl Wire for Driver {}
// SAFETY: as above.
unsafe impl Wire for IoctlKey {}
// SAFETY: as above.
unsafe impl Wire for IoctlShape {}
// SAFETY: as above.
unsafe impl Wire for Spender {}
// SAFETY: as above.
unsafe impl Wire for Spent {}
// SAFETY: as above.
unsafe impl Wire for State {}
// SAFETY: as above.
unsafe impl Wire for Capture {}
// SAFETY: as above.
unsafe impl Wire for Piece {}

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
