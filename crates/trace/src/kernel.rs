//! The events of `--kernel`: what nvidia.ko and the kernel around it did. Nothing here says what
//! a request means: the recorder fills it in, the reader gives it back.
//!
//! The first three are frequent and written by hand, as calls are; an Xid is rare.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::args::Args;
use super::event::{Ended, Retval};

/// The `type` of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ioctl, a function of the driver, a tracepoint.
    Kernel,
    /// Scheduling and submission, interrupts, time off the CPU.
    Scheduler,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel",
            Kind::Scheduler => "scheduler",
        }
    }

    pub(super) fn of(name: &str) -> Option<Kind> {
        match name {
            "kernel" => Some(Kind::Kernel),
            "scheduler" => Some(Kind::Scheduler),
            _ => None,
        }
    }
}

/// An ioctl or a function of the driver began. Depth and parent go on from the calls in user
/// space: the parent is whatever encloses it.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelBegin<'a> {
    pub kind: Kind,
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    pub depth: u32,
    pub parent: Option<u64>,
    pub ioctl: Option<Ioctl<'a>>,
    pub args: Option<Args<'a>>,
    /// The name of a kernel thread, which no traced process is.
    pub thread: Option<Cow<'a, str>>,
}

/// What an ioctl asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Ioctl<'a> {
    /// nvidiactl, nvidia0, nvidia-uvm…
    pub device: Cow<'a, str>,
    pub cmd: u64,
    pub request: Cow<'a, str>,
    /// Left out of the file if empty.
    pub detail: Args<'a>,
    /// Its request, RM command or class has no name.
    pub unknown: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct KernelEnd<'a> {
    pub kind: Kind,
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of its `KernelBegin`.
    pub begin: u64,
    pub duration_ns: Option<u64>,
    pub retval: Option<Retval>,
    /// NV_OK, NV_ERR_…: what the driver says of it, whatever the system call returned.
    pub status: Option<Cow<'a, str>>,
    /// The errno of a system call that failed, by name.
    pub error: Option<Cow<'a, str>>,
    pub out: Option<Args<'a>>,
    pub ended: Ended,
}

/// Something without a begin and an end of its own: an interrupt (its ts is the end), time off the
/// CPU (when the thread ran again), a tracepoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Instant<'a> {
    pub kind: Kind,
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    pub depth: u32,
    pub parent: Option<u64>,
    pub cpu: Option<u32>,
    pub duration_ns: Option<u64>,
    pub args: Option<Args<'a>>,
}

/// The driver reported an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid<'a> {
    pub pid: u32,
    pub tid: u32,
    pub xid: u32,
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    #[serde(borrow)]
    pub device: Cow<'a, str>,
}
