//! The lines of `--budget`: which functions it gave up, which it took back. Call stacks are given up and taken back
//! like a function. There is one line for each function and change, and at the end one for each function that is still given up, with its last counts.

use serde::{Deserialize, Serialize};

use super::rare::details;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    GiveUp,
    TakeBack,
    /// The recording ended: the function stays at its level.
    End,
}

/// How much of a function's calls is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Recorded,
    /// Only the number of calls is known. In older traces.
    Counted,
    /// Nothing. Of call stacks: calls have none.
    Unhooked,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub action: Action,
    /// Or `CALL_STACKS`.
    pub function: String,
    /// Functions of the same name that are called alike share a probe. Call stacks have 0.
    pub probe: u32,
    /// The level from here on.
    pub level: Level,
    pub before: Level,
    /// In older traces the calls counted but not recorded since the function's last line.
    pub counted: u64,
    /// The reason: the thread that paid most, the share of its time, and how often it called the function. Absent at
    /// the end.
    #[serde(flatten)]
    pub why: Option<Why>,
}

details! { it: Budget => action, function, level, before, counted,
percent = it.why.map(|why| why.percent), hits_per_sec = it.why.map(|why| why.hits_per_sec),
pid = it.why.map(|why| why.pid), tid = it.why.map(|why| why.tid) }

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    pub pid: u32,
    pub tid: u32,
    /// Has one decimal.
    pub percent: f64,
    pub hits_per_sec: u64,
}
