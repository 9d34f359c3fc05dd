//! What a recording serves while it runs. In: its lines and figures. Out: dumps of the flight recorder; metrics; the
//! view of `gpurec top`; the report to systemd that a recording has begun.

pub mod flight;
pub mod metrics;
pub mod ready;
pub mod state;
pub mod top;
