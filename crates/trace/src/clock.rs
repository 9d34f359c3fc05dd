//! The line about the clocks of the machine, by which readers align the traces of several machines. In: fields, by serde.
//! Out: the same, with the keys of the trace. Not here: reading a clock, and what exports show (rare.rs).

use serde::{Deserialize, Serialize};

/// Both clocks at one moment, and what is known of their quality.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// CLOCK_MONOTONIC of the machine, on which the times of the trace are.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// The two are apart by this at most: half the time that the best reading took.
    pub error_ns: u64,
    /// CLOCK_MONOTONIC is one clock within one boot. None: it could not be read.
    pub boot_id: Option<String>,
    /// None: Linux does not say.
    pub ntp: Option<Ntp>,
    /// A PTP hardware clock of the machine, such as /dev/ptp0; the first of several.
    pub ptp: Option<String>,
}

/// The state of CLOCK_REALTIME, as Linux has it from the program that disciplines it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ntp {
    /// What is still to be corrected.
    pub offset_ns: i64,
    pub max_error_ns: u64,
    pub synchronized: bool,
}
