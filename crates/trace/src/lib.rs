//! The trace: the contract between the recorder, which writes it, and the views, which read it.
//!
//! In: events with integer nanoseconds (`Line`), or the bytes of a file. Out: one JSON object per line, or the events
//! again. `docs/trace-format.md` is the schema. Not here: what an event means. This crate neither reorders nor drops
//! events.

mod args;
pub mod bounds;
pub mod brief;
mod budget;
pub mod bytes;
mod clock;
mod deaths;
mod device;
mod enums;
mod event;
pub mod fast;
mod gpu;
pub mod hash;
pub mod json;
mod lines;
mod nesting;
mod notes;
pub mod parse;
mod rare;
mod reader;
mod reason;
mod scan;
mod schema;
mod stack;
#[cfg(test)]
mod tests;
pub mod text;
pub mod time;
pub mod tree;
mod value;
mod writer;

pub use args::Args;
pub use brief::{Brief, CallBegin, CallEnd, GpuWork};
pub use budget::{Action, Budget, Level, Why};
pub use clock::{Clock, Ntp};
pub use device::{Device, DeviceProcess};
pub use enums::{EndKind, GpuKind, GpuSource, Kind, Op, Retval, word};
#[cfg(test)]
use event::Unknown;
pub use event::{
    Begin, Block, Body, Collective, End, Gpu, Instant, Ioctl, KernelBegin, KernelEnd, Launch, Line, Memory,
    SCHEMA, Transfer, Where,
};
pub use gpu::{GpuAccount, GpuOverhead, GpuReason};
pub use lines::fits;
pub use notes::Notes;
pub use rare::{
    Dump, EMULATED, EMULATED_COLD, Exec, Exit, ExitStatus, Finish, Fork, Found, Header, HookEntry, InFlight,
    Layer, Library, Lost, Process, RefusedHook, SINGLE_STEPPED, SINGLE_STEPPED_COLD, Stops, Suspend, Xid,
    signal_name,
};
pub use reader::{Original, ReadError, Reader, open};
pub use reason::{HookError, Incomplete, Reason, Reasons, Resumer, reasons};
pub use schema::{Datum, Key, Sink};
pub use stack::{CALL_STACKS, Frame, MOST_FRAMES, Stack, last_part};
pub use value::{Arg, List, Value};
pub use writer::{LineWriter, append_line};

/// Text from bytes that should be UTF-8, such as a name in another program's memory. Invalid bytes become U+FFFD, so
/// that every line of a trace is valid UTF-8.
pub fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// gpurec compresses only with zstd, so a file with another compression's extension would not match its content.
pub fn refused_packing(path: &std::path::Path) -> Option<String> {
    let extension = path.extension().and_then(std::ffi::OsStr::to_str)?;
    ["gz", "xz", "bz2"].contains(&extension.to_ascii_lowercase().as_str()).then(|| {
        let zst = path.with_extension("zst");
        format!("-o {}: gpurec does not write .{extension}: use {}", path.display(), zst.display())
    })
}
