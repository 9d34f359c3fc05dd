//! One recording, from the first check to the summary. Only this module knows all the others and the order in which
//! they run. In: a plain configuration. Out: a trace, a summary on standard error, an exit status. Not here: parsing
//! the command line, what a call means, how a hook is made.

mod devices;
mod dumps;
mod guarded;
mod header;
mod lane;
pub mod live;
mod patterns;
mod place;
pub mod screen;
mod session;
mod status;
mod target;
mod tracker;
pub mod watch;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::files::select::{Selection, Stacks};
use crate::gpu::lane as gpu;
use crate::host::Backend;
use crate::probe::kernel::Choice;
use crate::probe::{ANY_USER, Settings};
use crate::process::identity::invoking_user;
use crate::serve::{flight, metrics, top};

pub use session::run;

pub enum Target {
    Command(Vec<OsString>),
    Pids(Vec<u32>),
    All,
}

pub struct Config {
    pub target: Target,
    pub output: Option<PathBuf>,
    pub selection: Selection,
    /// What to record beneath the calls, in Linux and nvidia.ko.
    pub kernel: Option<Choice>,
    pub duration: Option<Duration>,
    pub follow: bool,
    pub as_root: bool,
    pub summary_only: bool,
    /// A process that fills a ring is paused until the ring is empty.
    pub lossless: bool,
    /// Which calls have a stack.
    pub stacks: Option<Stacks>,
    /// What is recorded of the GPU's work.
    pub gpu: Option<gpu::Choice>,
    /// Only in the demo: the folder of the stand-in for NVML.
    pub nvml: Option<PathBuf>,
    /// Tests only: stacks without native frames beyond the caller have this unset.
    pub native_frames: bool,
    /// Tests only: the most threads that turn records into lines. None: by the number of CPUs.
    pub threads: Option<usize>,
    /// The most that recording may cost any thread, in percent of its time.
    pub budget: Option<f64>,
    pub live: bool,
    /// Only the most recent part is kept.
    pub flight: Option<flight::Config>,
    /// How often the running totals are printed, and whether as JSON.
    pub interval: Option<Duration>,
    pub json: bool,
    /// The view of `gpurec top`.
    pub top: Option<top::Config>,
    pub metrics: metrics::Config,
    /// Bytes for all rings together. None: gpurec chooses by the number of CPUs.
    pub ring: Option<usize>,
    pub quiet: bool,
    pub verbose: bool,
    /// Tests only: the only backend to use.
    pub backend: Option<Backend>,
    /// The options as given, for the header.
    pub options: serde_json::Value,
    /// Descriptors that the command inherits (see `process::launch::inherited_fds`).
    pub keep_fds: Vec<RawFd>,
}

impl Config {
    /// Settings with one ring per CPU. One busy thread fills one CPU's ring, so each ring must hold a burst. Many
    /// CPUs are rarely all busy, so the total is bounded.
    pub fn settings(&self) -> Result<Settings> {
        const MIB: usize = 1 << 20;
        // Discards libbpf's own output: gpurec reports errors itself.
        libbpf_rs::set_print(None);
        let cpus = libbpf_rs::num_possible_cpus()?;
        let usual = (cpus * 16 * MIB).clamp(128 * MIB, 512 * MIB);
        // Large rings bridge a slow disk. Lines that stay in memory wait for no disk.
        let in_memory = self.flight.is_some_and(|flight| flight.in_memory);
        let total = self.ring.unwrap_or(if in_memory { usual / 2 } else { usual });
        let share = (total / cpus).max(64 << 10);
        // The largest power of two that fits.
        let ring = 1 << share.ilog2();
        Ok(Settings {
            everyone: matches!(self.target, Target::All),
            follow: self.follow,
            ring: ring.min(1 << 30),
            budget: self.budget.is_some(),
            lossless: self.lossless,
            stacks: self.stacks.clone(),
            native_frames: self.native_frames,
            // --lossless pauses only the invoking user's own processes, unless the user is root.
            pause_user: match invoking_user().uid {
                0 => ANY_USER,
                user => user,
            },
            no_sessions: self.backend.is_some_and(|backend| !backend.has_sessions()),
        })
    }
}
