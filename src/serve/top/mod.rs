//! The view of `gpurec top`: what each process does, once a second.
//!
//! In: copies of the sums by process. Out: a view on the terminal (`terminal`), or text or JSON on standard output
//! (`plain`). A separate thread requests the copies and writes. Not here: what is counted (gpurec_analysis::usage), and
//! rates (gpurec_analysis::activity).

mod draw;
mod model;
mod plain;
mod terminal;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use super::state::{self, Asker, State, Teller};
use crate::process::cgroup::Owner;
use crate::process::terminal::Terminal;
use gpurec_analysis::activity::Activity;
use gpurec_analysis::usage::Snapshot;

/// The time between two samples, over which rates are computed.
const EVERY: Duration = Duration::from_secs(1);
/// The least time between an answer and the next request, so that rates cover about a second even after a late answer.
const LEAST: Duration = Duration::from_millis(900);
/// How often the thread checks for samples, keys and the end.
const LOOK: Duration = Duration::from_millis(50);
/// How long the end of the recording waits if the terminal accepts no output.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Print one measured second, then end.
    pub once: bool,
    pub json: bool,
}

/// The terminal, if the view is drawn on one. Call this before the guardian starts.
pub fn terminal(config: Option<&Config>) -> Result<Option<Arc<Terminal>>> {
    match config {
        Some(Config { once: false, json: false }) => {
            let terminal = Terminal::open().context("gpurec cannot use this terminal")?;
            Ok(terminal.map(Arc::new))
        }
        _ => Ok(None),
    }
}

/// What the view shows about the recording itself.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub host: String,
    /// Calls have stacks.
    pub has_stacks: bool,
}

/// The view, which runs until the user or the recording ends it.
pub struct View {
    is_over: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    terminal: Option<Arc<Terminal>>,
}

impl View {
    /// Returns the view, and the `Teller` that answers its requests on the thread that empties the rings.
    pub fn start(
        config: Config,
        place: Place,
        terminal: Option<Arc<Terminal>>,
    ) -> io::Result<(View, Teller)> {
        let (asker, teller) = state::channel(std::time::SystemTime::now());
        let (is_over, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ending, ended) = bounded::<()>(0);
        let samples = Samples { asker, stop: stop.clone(), asked: None, before: None, next: Instant::now() };
        let (over, on) = (Over(is_over.clone(), ending), terminal.clone());
        thread::Builder::new().name("gpurec-top".into()).spawn(move || {
            // Marks the view as over, also if this thread panics.
            let _over = over;
            match on {
                Some(terminal) => terminal::run(samples, &place, &terminal),
                None => plain::run(samples, &place, config),
            }
        })?;
        Ok((View { is_over, stop, ended, terminal }, teller))
    }

    /// The user has left the view, or its output is closed.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.ended.recv_timeout(PATIENCE);
        // If the thread hangs, or has panicked.
        if let Some(terminal) = &self.terminal {
            terminal.uncover();
        }
    }
}

struct Over(Arc<AtomicBool>, #[allow(dead_code)] Sender<()>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Copies of the sums, one a second.
struct Samples {
    asker: Asker,
    stop: Arc<AtomicBool>,
    asked: Option<Receiver<Arc<State>>>,
    before: Option<Arc<State>>,
    next: Instant,
}

/// A sample, with what happened since the previous one.
struct Sample {
    state: Arc<State>,
    activity: Activity,
    /// No sample came before it: the rates are those since the recording began.
    is_first: bool,
}

impl Samples {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The next sample, if it has arrived. `detail`: the process to copy details of.
    fn take(&mut self, detail: Option<u32>) -> Option<Sample> {
        if self.asked.is_none() && Instant::now() >= self.next {
            self.asked = self.asker.ask_for(None, detail);
            self.next += EVERY;
            // Missed times are skipped, not made up for.
            self.next = self.next.max(Instant::now());
        }
        match self.asked.as_ref()?.try_recv() {
            Ok(state) => {
                self.asked = None;
                self.next = self.next.max(Instant::now() + LEAST);
                let nothing = Snapshot::default();
                let before = self.before.as_ref().map_or(&nothing, |state| &state.usage);
                let activity = Activity::between(before, &state.usage, |cgroup| Owner::of(cgroup).container);
                let is_first = self.before.replace(state.clone()).is_none();
                Some(Sample { state, activity, is_first })
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.asked = None;
                None
            }
        }
    }
}
