//! `--budget PCT`: keeps gpurec's own cost below a share of any traced thread's time.
//! In: how often each thread hit each function. Out: functions given up and taken back, a
//! line of the trace for each.
//!
//! `rank` says what is given up before what, `policy` decides, both by facts alone; `governor`
//! reads the counters, has the levers moved (probe::levers) and tells.
//! Not here: how a function is counted or unhooked; what a line or the summary looks like.

mod governor;
mod policy;
#[cfg(test)]
mod policy_tests;
mod rank;

pub use governor::Governor;
