//! `--budget PCT`: keeps gpurec's own cost below a share of any traced thread's time. In: the number of hits of each
//! thread at each function. Out: functions given up and taken back, and a trace line for each.
//!
//! `rank` orders the functions by what they tell, `policy` decides; both are pure. `governor` reads the counters,
//! changes the hooks (probe::overhead_control) and reports. Not here: how a function is unhooked; what a line or the
//! summary looks like.

mod governor;
mod policy;
#[cfg(test)]
mod policy_tests;
mod rank;

pub use governor::Governor;
