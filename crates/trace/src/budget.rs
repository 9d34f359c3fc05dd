//! The lines of `--budget`: what was given up, what was taken back. One for each function and
//! change; at the end one more for each that is still given up, with its last counts.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    GiveUp,
    TakeBack,
    /// The recording ends: the function stays at its level.
    End,
}

/// What is had of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Recorded,
    /// Their number.
    Counted,
    /// Nothing.
    Unhooked,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub action: Action,
    pub function: String,
    /// Functions of the same name share it, if they are called alike.
    pub probe: u32,
    /// From here on.
    pub level: Level,
    pub before: Level,
    /// Calls that were counted and not recorded since the function's last line.
    pub counted: u64,
    /// Why: the thread that paid most, how much of its time, and how often it called the
    /// function. Not at the end.
    #[serde(flatten)]
    pub why: Option<Why>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    pub pid: u32,
    pub tid: u32,
    /// With one decimal.
    pub percent: f64,
    pub hits_per_sec: u64,
}
