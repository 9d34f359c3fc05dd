//! Copies of the sums, for the threads that serve them. In: requests, at any time. Out: a copy for each, made by the
//! thread that empties the rings when it has read them. That thread never waits here.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::pipeline::sink::Lines;
use crate::pipeline::worker::Watch;
use gpurec_analysis::usage::Snapshot;

/// The most requests that can wait. Each serving thread has one at a time.
const WAITING: usize = 8;

/// A copy of the sums.
pub struct State {
    pub usage: Snapshot,
    pub start: SystemTime,
    pub now: SystemTime,
    /// Exports of `--otlp` that were dropped; none without it.
    pub dropped: Option<u64>,
}

/// The place for an answer.
struct Request {
    to: Sender<Arc<State>>,
    /// A byte is written to it after the answer.
    wake: Option<UnixStream>,
    /// The process to copy details of.
    detail: Option<u32>,
}

#[derive(Clone)]
pub struct Asker {
    requests: Sender<Request>,
    /// The thread that empties the rings: it may be in a pause.
    worker: Arc<OnceLock<Thread>>,
}

/// Answers requests, on the thread that empties the rings.
pub struct Teller {
    requests: Receiver<Request>,
    worker: Arc<OnceLock<Thread>>,
    start: SystemTime,
    /// Gets the last copy, at the end of the recording.
    pub last: Option<Sender<Arc<State>>>,
    pub dropped: Option<Arc<AtomicU64>>,
}

pub fn channel(start: SystemTime) -> (Asker, Teller) {
    let (to, requests) = bounded(WAITING);
    let worker = Arc::<OnceLock<Thread>>::default();
    let asker = Asker { requests: to, worker: worker.clone() };
    (asker, Teller { requests, worker, start, last: None, dropped: None })
}

impl Asker {
    /// Requests a copy, which comes later. None: the recording is over.
    pub fn ask(&self, wake: Option<&UnixStream>) -> Option<Receiver<Arc<State>>> {
        self.ask_for(wake, None)
    }

    /// The same, with details of one process.
    pub fn ask_for(&self, wake: Option<&UnixStream>, detail: Option<u32>) -> Option<Receiver<Arc<State>>> {
        let (to, answer) = bounded(1);
        let wake = wake.and_then(|wake| wake.try_clone().ok());
        self.requests.try_send(Request { to, wake, detail }).ok()?;
        self.worker.get().map(Thread::unpark);
        Some(answer)
    }
}

impl Teller {
    fn state(&self, lines: &mut Lines, at_ns: u64, detail: Option<u32>) -> Option<Arc<State>> {
        let usage = lines.snapshot(at_ns, detail)?;
        let dropped = self.dropped.as_ref().map(|dropped| dropped.load(Ordering::Relaxed));
        Some(Arc::new(State { usage, start: self.start, now: SystemTime::now(), dropped }))
    }

    /// Answers the waiting requests. One copy serves consecutive requests for the same details.
    fn answer(&self, lines: &mut Lines, at_ns: u64) {
        let mut made: Option<(Option<u32>, Arc<State>)> = None;
        for Request { to, wake, detail } in self.requests.try_iter() {
            if made.as_ref().is_none_or(|(of, _)| *of != detail) {
                made = self.state(lines, at_ns, detail).map(|state| (detail, state));
            }
            if let Some((_, state)) = &made {
                let _ = to.try_send(state.clone());
                // This does not block. If the socket has no room, the bytes in it wake the thread.
                let _ = wake.map(|mut wake| wake.write(&[1]));
            }
        }
    }
}

impl Watch for Teller {
    fn is_due(&self) -> bool {
        self.worker.get_or_init(thread::current);
        !self.requests.is_empty()
    }

    fn show(&mut self, lines: &mut Lines, at_ns: u64, _lost: u64) {
        self.answer(lines, at_ns);
    }

    fn end(&mut self, lines: &mut Lines, at_ns: u64, _lost: u64) {
        self.answer(lines, at_ns);
        if let (Some(last), Some(state)) = (self.last.take(), self.state(lines, at_ns, None)) {
            let _ = last.try_send(state);
        }
    }
}
