//! Checks that each end has its begin and that calls are nested.
//!
//! In: the lines of a trace, in order. Out: what is wrong about a line. Keeps the open calls of threads, and nothing of
//! threads that are in no call.

use super::event::Body;
use super::hash::Map;
use crate::bounds::MOST_OPEN;

/// How far outwards to search for the begin of an end. No program nests so deep.
const DEEPEST: usize = 4096;

#[derive(Default)]
pub struct Nesting {
    /// The thread of the previous line, which is nearly always that of this line, and its open calls, outermost first.
    thread: (u32, u32),
    open: Vec<u64>,
    others: Map<(u32, u32), Vec<u64>>,
    /// The number of open calls in all threads. A trace with more than `MOST_OPEN` has calls that never return; beyond
    /// that, an end without a begin is not reported.
    count: usize,
    full: bool,
    /// The last event_id, and whether an event_id was not above the previous one. Without such disorder, a binary
    /// search finds the begin.
    last: u64,
    disorder: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestingError {
    /// The end has no begin.
    NoBegin,
    /// The end of a call that contains calls without an end.
    Crossed,
}

impl Nesting {
    #[inline]
    pub fn add(&mut self, event_id: u64, body: &Body) -> Option<NestingError> {
        match body {
            Body::Begin(b) if b.no_return.is_some() => None,
            Body::Begin(b) => self.begin((b.pid, b.tid), event_id),
            Body::KernelBegin(b) => self.begin((b.pid, b.tid), event_id),
            Body::End(e) => self.end((e.pid, e.tid), e.begin),
            Body::KernelEnd(e) => self.end((e.pid, e.tid), e.begin),
            _ => None,
        }
    }

    pub fn begin(&mut self, thread: (u32, u32), event_id: u64) -> Option<NestingError> {
        self.switch(thread);
        self.disorder |= event_id < self.last;
        self.last = event_id;
        if self.count < MOST_OPEN {
            self.open.push(event_id);
            self.count += 1;
        } else {
            self.full = true;
        }
        None
    }

    pub fn end(&mut self, thread: (u32, u32), begin: u64) -> Option<NestingError> {
        self.switch(thread);
        if self.open.last() == Some(&begin) {
            self.open.pop();
            self.count -= 1;
            return None;
        }
        let beyond = self.open.len().saturating_sub(DEEPEST);
        let near = self.open.get(beyond..).unwrap_or_default();
        let found = match self.disorder {
            false => near.binary_search(&begin).ok(),
            true => near.iter().rposition(|id| *id == begin),
        };
        let Some(at) = found else {
            // At this depth the end is wrong, whether its begin is further out or missing.
            let odd = if beyond > 0 { NestingError::Crossed } else { NestingError::NoBegin };
            return (!self.full).then_some(odd);
        };
        self.open.remove(beyond + at);
        self.count -= 1;
        Some(NestingError::Crossed)
    }

    #[inline]
    fn switch(&mut self, thread: (u32, u32)) {
        if thread == self.thread {
            return;
        }
        let next = self.others.remove(&thread).unwrap_or_default();
        let mut before = std::mem::replace(&mut self.open, next);
        if !before.is_empty() {
            // Frees the memory of a stack that was deep earlier.
            if before.capacity() > 64 && before.len() < before.capacity() / 4 {
                before.shrink_to_fit();
            }
            self.others.insert(self.thread, before);
        }
        self.thread = thread;
    }
}
