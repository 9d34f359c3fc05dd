//! The flight recorder in a recording: requests for dumps, and where the lines go. In: the configuration. Out: a
//! destination for the lines, causes of dumps, the path of the last dump.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::Config;
use super::screen::Voice;
use crate::output::series::Series;
use crate::pipeline::observer::{Alarms, Cause};
use crate::probe::Probes;
use crate::process::identity::Identity;
use crate::process::signals::DumpSignal;
use crate::serve::flight::{self, Ear, Flight, GAP, LastDump, Triggers};
use crate::ui;
use gpurec_analysis::Usage;

/// The sources of requests for dumps while the recording runs: `gpurec dump`, and SIGUSR1.
pub struct Dumps {
    config: flight::Config,
    ear: Option<Ear>,
    signal: Option<DumpSignal>,
    last: LastDump,
}

impl Dumps {
    /// Call this before any thread starts.
    pub fn prepare(config: &Config) -> Result<Option<Dumps>> {
        let Some(flight) = config.flight else { return Ok(None) };
        // Without `--dump-on signal`, SIGUSR1 is blocked all the same: it would end gpurec without the last dump.
        let signal = DumpSignal::block().context("gpurec cannot block SIGUSR1")?;
        let signal = Some(signal).filter(|_| flight.on.signal);
        Ok(Some(Dumps { config: flight, ear: None, signal, last: LastDump::default() }))
    }

    /// Opens the socket for `gpurec dump`. Call this after the last fork: a child would keep the socket open.
    pub fn listen(&mut self, user: &Identity, quiet: bool) {
        match Ear::listen(user.uid) {
            Ok(ear) => self.ear = Some(ear),
            Err(_) if quiet => {}
            Err(error) => {
                ui::say(&format!("gpurec dump cannot reach this recording ({error}): use --dump-on signal"));
            }
        }
    }

    /// Refuses `--dump-on xid` where the driver's errors cannot be seen.
    pub fn check(&self, probes: &Probes) -> Result<()> {
        let why = probes.driver().and_then(|driver| driver.sees_no_xids());
        if let (true, Some(why)) = (self.config.on.xid, why) {
            bail!(Usage(format!("--dump-on xid cannot work here: {why}")));
        }
        Ok(())
    }

    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ear.iter().map(Ear::fd).chain(self.signal.iter().map(AsFd::as_fd))
    }

    /// The requests since the last call.
    pub fn asked(&mut self) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self.ear.iter_mut().filter_map(Ear::take).collect();
        if let Some(pid) = self.signal.as_mut().and_then(DumpSignal::take) {
            causes.push(Cause::new("signal", format!("process {pid} sent SIGUSR1")));
        }
        causes
    }

    /// Starts the thread that writes dumps. Its result is where the lines go.
    pub fn start(&self, series: Series, voice: Voice, quiet: bool) -> Result<(Flight, Box<dyn Alarms>)> {
        let say = move |text: String| {
            // If the screen's queue is full, the message is dropped.
            let _ = voice.say(ui::clean_lines(&format!("gpurec: {text}\n")), 0);
        };
        let flight = Flight::start(&self.config, series, Box::new(say), quiet, self.last.clone());
        let flight = flight.context("gpurec cannot start the flight recorder's thread")?;
        Ok((flight, Box::new(Triggers::new(self.config.on, GAP))))
    }

    pub fn last(&self) -> Option<PathBuf> {
        self.last.lock().unwrap_or_else(|poison| poison.into_inner()).clone()
    }
}
