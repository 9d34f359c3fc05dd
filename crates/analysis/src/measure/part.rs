//! A part of a recording, such as `after 10s`, and what was counted in it.

use super::calls::Calls;
use crate::Figures;

/// A part of a recording. A call belongs to the time at which it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub from: Edge,
    pub to: Edge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edge {
    #[default]
    Open,
    /// Nanoseconds since the start of the recording.
    Time(u64),
    /// A number of successful launches: it is the same in every run, which a time is not.
    Launches(u64),
}

impl Edge {
    pub fn reached(self, ts_ns: u64, launches: u64) -> bool {
        match self {
            Edge::Open => false,
            Edge::Time(at) => ts_ns >= at,
            Edge::Launches(at) => launches >= at,
        }
    }
}

/// The source of totals.
pub struct Coverage {
    pub figures: Figures,
    pub duration_ns: u64,
    pub peak_bytes: u64,
    pub calls: Calls,
    /// The window began before the recording ended.
    pub opened: bool,
}
