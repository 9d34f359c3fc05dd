//! The meaning of the driver's ioctls.
//!
//! In: the numbers of a device and of an ioctl, the bytes read of its payload, the driver's version. Out: the request,
//! its fields and its result by name, and what to read in the first place. Not here: I/O, a clock, facts about the
//! machine. The data are in layouts.txt, which scripts/tables makes, and in commands.txt,
//! classes.txt, statuses.txt and hooks.txt.
//!
//! ```text
//! majors(text of /proc/devices)      which devices BPF should look at
//! Layouts::of(version).shapes()      what it should read of each request
//! decoder.begin(&ioctl) -> Begun     request, detail; keep Begun::pending until the end
//! decoder.end(&pending, …) -> Done   status, out
//! ```
//!
//! BPF must follow these rules. In the `nvidia` family it reads at most the ioctl's own size (a shape is as wide as the
//! widest layout of its number). nvidia-uvm has no sizes, and its `nr` is the whole command word. An `inline` `SecondPiece`
//! is a later part of the payload itself; any other `SecondPiece` is the target of a pointer in the payload.
//!
//! A value that was not read is left out, never invented: `unreadable: true` for the payload, `params_unreadable` for
//! the target of RM_ALLOC's pointer, `short` if less was read than the fields need, `unexpected_size` if the request
//! never had the ioctl's size. Numbers without a name are shown as numbers, with `IoctlBegin::unknown` set.
//!
//! The decoder knows the classes of objects from the allocations that it has seen: 1,000,000 objects at a time. Beyond
//! that it forgets the oldest clients and counts their objects (`Decoder::forgotten`).

mod decode;
mod devices;
mod fields;
mod handles;
pub mod hooks;
mod layouts;
mod names;
#[cfg(test)]
mod tests;
mod version;

use std::borrow::Cow;

pub use decode::{Decoder, PendingIoctl};
pub use devices::{Device, Family, majors};
pub use layouts::Layouts;

use gpurec_trace::Arg;

/// The beginning of an ioctl.
#[derive(Clone, Copy)]
pub struct Ioctl<'a> {
    pub device: Device,
    /// As passed to the system call.
    pub cmd: u32,
    /// Number and size in `cmd`, or in NV_ESC_IOCTL_XFER_CMD's payload if that escape `wrapped` the request.
    pub nr: u32,
    pub size: u32,
    pub wrapped: bool,
    /// The first bytes of the payload; `None` if they could not be read.
    pub payload: Option<&'a [u8]>,
    /// The piece that the shape's `second` describes.
    pub second: Option<&'a [u8]>,
}

pub struct IoctlBegin {
    /// NV_ESC_RM_CONTROL, UVM_REGISTER_GPU; "0x…" if it has no name.
    pub request: Cow<'static, str>,
    /// The request, the RM command or the class has no known name, or could not be read.
    pub unknown: bool,
    pub detail: Vec<Arg<'static>>,
    /// For `Decoder::end`.
    pub pending: PendingIoctl,
}

pub struct IoctlEnd {
    /// NV_OK, NV_ERR_…; "0x…" if it has no name; `None` if the request has no status or it was not read.
    pub status: Option<Cow<'static, str>>,
    /// What the driver wrote; empty unless the request succeeded.
    pub out: Vec<Arg<'static>>,
}
