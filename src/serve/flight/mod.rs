//! The flight recorder: it keeps the most recent part of a recording, and writes traces of it (dumps) when events
//! occur. In: the lines of the recording, from the writer thread; the events to wait for. Out: dumps. Not here: what a
//! line means.
//!
//! The writer thread puts lines into a ring of compressed segments (`ring`). A thread of its own (`keeper`) folds the
//! segments that leave the ring into what later dumps need of them (`state`), and writes dumps (`dump`), so that neither
//! makes the recorder wait.

mod ask;
mod dump;
mod ear;
mod keeper;
mod kept;
mod processes;
mod ring;
mod sockets;
mod state;
#[cfg(test)]
mod tests;
mod triggers;

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::output::series::Series;
use crate::pipeline::handoff::Destination;
use crate::pipeline::observer::DumpRequest;
use ring::Ring;

pub use ask::ask;
pub use ear::Ear;
pub use keeper::{LastDump, Say};
pub use triggers::{Events, GAP, Triggers};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Span(Duration),
    /// Compressed.
    Bytes(u64),
}

/// The default of `--keep`.
pub const KEEP: u64 = 5 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub last: Last,
    pub in_memory: bool,
    pub on: Events,
    /// The most bytes of all dumps together.
    pub keep: u64,
}

/// The destination of the recording's lines.
pub struct Flight {
    ring: Ring,
    keeper: JoinHandle<io::Result<()>>,
}

impl Flight {
    pub fn start(
        config: &Config,
        series: Series,
        say: Say,
        quiet: bool,
        last: LastDump,
    ) -> io::Result<Flight> {
        let folder = if config.in_memory { None } else { Some(series.segments()?) };
        let (jobs, keeper) = keeper::start(series, config.keep, say, quiet, last)?;
        Ok(Flight { ring: Ring::new(config.last, folder, jobs), keeper })
    }
}

impl Destination for Flight {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.ring.write(lines)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ring.look()
    }

    fn died(&mut self, before: u64, call: u64) {
        self.ring.died(before, call);
    }

    fn dump(&mut self, request: DumpRequest) {
        self.ring.dump(request);
    }

    /// Waits for the dump at the end.
    fn finish(self: Box<Self>) -> io::Result<()> {
        let Flight { ring, keeper } = *self;
        drop(ring);
        keeper.join().unwrap_or_else(|_| Err(io::Error::other("the flight recorder's thread panicked")))
    }
}
