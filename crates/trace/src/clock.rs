//! The line about the clocks of the machine. Readers use it to align the traces of several machines. In: fields, by
//! serde. Out: the same, with the keys of the trace. Not here: reading a clock, and what exports show (rare.rs).

use serde::{Deserialize, Serialize};

/// Both clocks at one moment, and how good they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// CLOCK_MONOTONIC of the machine, which the times of the trace use.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// The two readings are at most this far apart: half the time that the best reading took.
    pub error_ns: u64,
    /// Only within one boot are two times of CLOCK_MONOTONIC comparable. None: Linux does not show it.
    pub boot_id: Option<String>,
    /// None: Linux does not say.
    pub ntp: Option<Ntp>,
    /// The first PTP hardware clock of the machine, such as /dev/ptp0.
    pub ptp: Option<String>,
}

/// The state of CLOCK_REALTIME, as the program that disciplines it has reported it to Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ntp {
    /// The correction that Linux still has to apply.
    pub offset_ns: i64,
    pub max_error_ns: u64,
    pub synchronized: bool,
}
