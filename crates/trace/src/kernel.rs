//! The events of `--kernel`: the activity of nvidia.ko and of Linux around it. Not here: what a request means. The
//! recorder fills that in and the reader returns it.
//!
//! The first three events are frequent and written by hand, as calls are; an Xid is rare.

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

/// An ioctl or a function of the driver began. Depth and parent continue from the calls in user space: the parent is
/// the enclosing call or event.
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
    /// The name of a kernel thread, which is never a traced process.
    pub thread: Option<Cow<'a, str>>,
}

/// The request of an ioctl.
#[derive(Clone, Debug, PartialEq)]
pub struct Ioctl<'a> {
    /// nvidiactl, nvidia0, nvidia-uvm…
    pub device: Cow<'a, str>,
    pub cmd: u64,
    pub request: Cow<'a, str>,
    /// Omitted from the file if empty.
    pub detail: Args<'a>,
    /// The request, RM command or class has no known name.
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
    /// NV_OK, NV_ERR_…: the driver's status, whatever the system call returned.
    pub status: Option<Cow<'a, str>>,
    /// The errno of a failed system call, by name.
    pub error: Option<Cow<'a, str>>,
    pub out: Option<Args<'a>>,
    pub ended: Ended,
}

/// An event without a begin and an end of its own: an interrupt (its ts is the end), time off the CPU (its ts is when
/// the thread ran again), a tracepoint.
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
