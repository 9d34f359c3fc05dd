//! What the driver's ioctls mean.
//!
//! In: the numbers of a device and of an ioctl, the bytes that were read of its
//! payload, the driver's version. Out: the request, its fields and its result
//! by name, and what to read in the first place. Pure knowledge: no I/O, no
//! clock, nothing of the machine. The facts are layouts.txt, commands.txt,
//! classes.txt and statuses.txt, made by generate.py.
//!
//! ```text
//! majors(text of /proc/devices)      which devices BPF shall look at
//! Layouts::of(version).shapes()      what it shall read of each request
//! decoder.begin(&ioctl) -> Begun     request, detail; Begun::pending is kept till the end
//! decoder.end(&pending, …) -> Done   status, out
//! ```
//!
//! What BPF must keep to: of the `nvidia` family at most the ioctl's own size is
//! read (a shape is as wide as the widest layout of its number); nvidia-uvm has no
//! sizes, and its `nr` is the whole command word; a `Second` that is `inline` is a
//! later part of the payload itself, any other the target of a pointer in it.
//!
//! A value that was not read is left out, never made up: `unreadable: true` for
//! the payload, `params_unreadable` for what RM_ALLOC points to, `short` where
//! less was read than the fields need, `unexpected_size` if the ioctl's size is
//! none that the request ever had. Numbers without a name are shown as numbers
//! and `Begun::unknown` is set.
//!
//! Classes of objects are known from the allocations that were seen: 1,000,000
//! objects at a time; beyond that the oldest clients are forgotten, and counted
//! (`Decoder::forgotten`).

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

pub use decode::{Decoder, Pending};
pub use devices::{Device, Family, majors};
pub use layouts::Layouts;

use gpurec_trace::Arg;

/// An ioctl as it begins.
#[derive(Clone, Copy)]
pub struct Ioctl<'a> {
    pub device: Device,
    /// As given to the system call.
    pub cmd: u32,
    /// Number and size in it, or in NV_ESC_IOCTL_XFER_CMD's payload if it was `wrapped` in one.
    pub nr: u32,
    pub size: u32,
    pub wrapped: bool,
    /// The first bytes of the payload; `None` if they could not be read.
    pub payload: Option<&'a [u8]>,
    /// What the shape's `second` asks for.
    pub second: Option<&'a [u8]>,
}

pub struct Begun {
    /// NV_ESC_RM_CONTROL, UVM_REGISTER_GPU; "0x…" if it has no name.
    pub request: Cow<'static, str>,
    /// The request, the RM command or the class has no name, or could not be read.
    pub unknown: bool,
    pub detail: Vec<Arg<'static>>,
    /// For `Decoder::end`.
    pub pending: Pending,
}

pub struct Done {
    /// NV_OK, NV_ERR_…; "0x…" if it has no name; `None` if there is none or it was not read.
    pub status: Option<Cow<'static, str>>,
    /// What the kernel wrote: only after a success.
    pub out: Vec<Arg<'static>>,
}
