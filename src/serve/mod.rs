//! What a recording serves while it runs. In: its lines and figures. Out: dumps of the flight recorder; metrics; a word to
//! systemd.

pub mod flight;
pub mod metrics;
pub mod ready;
