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
