//! The recording, from the first check to the summary: the one room that knows all the
//! others and the order in which they are used.
//! In: a plain configuration. Out: a trace, a summary on standard error, an exit status.
//! Not here: parsing the command line, what a call means, how a hook is made.

mod header;
pub mod live;
pub mod screen;
mod session;
mod status;
mod tracker;
pub mod watch;
mod who;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::probe::kernel::Choice;
use crate::probe::{Rung, Selection};

pub use session::{FAILED, run};

pub enum Target {
    Command(Vec<OsString>),
    Pids(Vec<u32>),
    All,
}

pub struct Config {
    pub target: Target,
    pub output: Option<PathBuf>,
    pub selection: Selection,
    /// What to record beneath the calls, in the kernel.
    pub kernel: Option<Choice>,
    pub duration: Option<Duration>,
    pub follow: bool,
    pub as_root: bool,
    pub summary_only: bool,
    /// Whoever fills a ring is paused until it is empty.
    pub lossless: bool,
    /// Percent of any thread's time that recording may cost it.
    pub budget: Option<f64>,
    pub live: bool,
    /// How often the running totals are printed.
    pub interval: Option<Duration>,
    /// Bytes for all rings together; None: by the number of CPUs.
    pub ring: Option<usize>,
    pub quiet: bool,
    pub verbose: bool,
    /// Tests only: no other rung than this.
    pub rung: Option<Rung>,
    /// More variables for the command (the demo's).
    pub environment: Vec<(OsString, OsString)>,
    /// The options as given, for the header.
    pub options: serde_json::Value,
    /// Descriptors that the command shall have (see `target::launch::inherited_fds`).
    pub keep_fds: Vec<RawFd>,
}
