//! Values that are one of a few, with their names in the trace or in a table.

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

/// The value that a word of a table stands for, by the names that serde has for it.
pub fn word<'a, T: Deserialize<'a>>(word: &'a str) -> Option<T> {
    T::deserialize(StrDeserializer::<Error>::new(word)).ok()
}

/// The `type` of a line of `--kernel`.
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
        [Kind::Kernel, Kind::Scheduler].into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Alloc,
    Free,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::Alloc => "alloc",
            Op::Free => "free",
        }
    }

    pub(super) fn of(name: &str) -> Option<Op> {
        [Op::Alloc, Op::Free].into_iter().find(|op| op.name() == name)
    }
}

/// What ran on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuKind {
    #[default]
    Kernel,
    Copy,
    Set,
    /// A whole graph, where its nodes are not recorded one by one.
    Graph,
}

impl GpuKind {
    const ALL: [GpuKind; 4] = [GpuKind::Kernel, GpuKind::Copy, GpuKind::Set, GpuKind::Graph];

    pub fn name(self) -> &'static str {
        match self {
            GpuKind::Kernel => "kernel",
            GpuKind::Copy => "copy",
            GpuKind::Set => "set",
            GpuKind::Graph => "graph",
        }
    }

    pub(super) fn of(name: &str) -> Option<GpuKind> {
        GpuKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Where a record of GPU work came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuSource {
    /// The library that `--gpu` loads into the process.
    #[default]
    Lane,
    /// Another client of CUPTI in the process, which was handed the same record.
    Tap,
}

impl GpuSource {
    const ALL: [GpuSource; 2] = [GpuSource::Lane, GpuSource::Tap];

    pub fn name(self) -> &'static str {
        match self {
            GpuSource::Lane => "lane",
            GpuSource::Tap => "tap",
        }
    }

    pub(super) fn of(name: &str) -> Option<GpuSource> {
        GpuSource::ALL.into_iter().find(|source| source.name() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retval {
    /// A status or a count.
    Number(i64),
    /// A pointer or a handle, or a register of unknown type.
    Pointer(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndKind {
    #[default]
    Returned,
    /// Ended by longjmp or an exception: it has no return value.
    Unwound,
    /// Its end was not recorded: return value and duration are unknown.
    Lost,
    /// Its return was not watched. No line contains this: it follows from `Begin::no_return`.
    NotWatched,
}
