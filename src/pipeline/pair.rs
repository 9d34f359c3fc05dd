//! Entry and return of one call find each other here, thread by thread.
//!
//! In: items in time's order. Out: begins, ends and process events to a sink, so that in
//! each thread they nest and every begin has its end or is reported as in flight.
//!
//! A return names its call by the call's timestamp, which BPF kept across the call: so a
//! pair is never a guess. Calls that never return are closed when the thread shows that
//! they are gone: an outer call returns (longjmp or an exception passed over them), or a
//! new call's frame lies at or above theirs on the stack. A gap in the thread's sequence
//! numbers tells a lost return from a skipped one; of calls nested more deeply than the kernel
//! follows them no return comes, and that is a loss too. What the thread does in the kernel nests
//! in its calls by the same rules: BPF gives it stack pointers below every user stack. A call on another stack than
//! the thread's open ones has no return: it begins within them, and nothing begins within it.
//! Pure: no I/O, no clock.

use std::collections::HashMap;

use super::decode::{Captured, Item, Origin, What};
use crate::wire;
use gpurec_trace::bounds::MOST_OPEN;

/// A call as the sink knows it.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub pid: u32,
    pub tid: u32,
    pub probe: u32,
    /// When it began, CLOCK_MONOTONIC ns.
    pub ts: u64,
    pub depth: u32,
    /// The sink's own name for the begin, and for that of the enclosing call.
    pub id: u64,
    pub parent: Option<u64>,
    pub origin: Origin,
    sp: u64,
    /// The thread's count of gaps when it began.
    gaps: u64,
}

impl Open {
    pub fn with_id(self, id: u64) -> Open {
        Open { id, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Returned(u64),
    /// Left by longjmp or an exception: it will never return.
    Unwound,
    /// Its return was lost.
    Lost,
}

pub trait Sink {
    /// Returns the id by which the end will refer to this begin.
    fn begin(&mut self, call: &Open, captured: &Captured) -> u64;
    /// `pieces` is the memory read at the return.
    fn end(&mut self, ts: u64, call: &Open, outcome: Outcome, pieces: &[u8]);
    /// The call's thread ended, or was replaced by exec, before it returned.
    fn died(&mut self, ts: u64, call: &Open);
    fn process(&mut self, item: &Item);
    /// Something told once; `within` is the innermost open call of its thread.
    fn instant(&mut self, item: &Item, within: Option<&Open>);
}

#[derive(Default)]
struct Thread {
    open: Vec<Open>,
    /// Of its last hit. It goes round after 2^32 of them: only differences count.
    seq: u32,
    gaps: u64,
    /// When it was first heard of.
    since: u64,
    pid: u32,
}

/// Calls of one thread that are followed. Of those that lie deeper than `MAX_FRAMES` no return comes anyway.
const DEEPEST: usize = 1024;

#[derive(Default)]
pub struct Pairing {
    threads: HashMap<u32, Thread, BuildHasher>,
    /// Calls that are open, of all threads.
    open: usize,
    /// Returns of calls that were already closed: none is expected.
    pub orphans: u64,
    /// Calls whose returns were not watched.
    pub elsewhere: u64,
    /// By probe, calls nested so deeply that the kernel does not see their returns.
    pub too_deep: TooDeep,
}

pub type TooDeep = HashMap<u32, u64, BuildHasher>;

impl Pairing {
    pub fn feed(&mut self, item: &Item, sink: &mut impl Sink) {
        match &item.what {
            What::Call { .. } => self.call(item, sink),
            What::Return { begin, value, pieces, origin, .. } => {
                self.returned(item, *begin, *value, pieces, *origin, sink);
            }
            What::Instant { .. } => {
                let thread = self.threads.get(&item.tid).filter(|_| item.tid != 0);
                sink.instant(item, thread.and_then(|thread| thread.open.last()));
            }
            What::Exec { .. } | What::Exit { .. } => {
                self.thread_gone(item.tid, item.ts, sink);
                if let What::Exec { old_tid, .. } = item.what {
                    self.thread_gone(old_tid, item.ts, sink);
                }
                if let What::Exit { pid, process: true, .. } = item.what {
                    self.process_gone(pid, item.ts, sink);
                }
                sink.process(item);
            }
            What::Fork { .. } => sink.process(item),
        }
    }

    /// The calls that have not returned, oldest first.
    pub fn in_flight(&self) -> Vec<Open> {
        let mut all: Vec<Open> = self.threads.values().flat_map(|t| t.open.iter().copied()).collect();
        all.sort_by_key(|call| call.ts);
        all
    }

    /// In no order.
    pub fn open_calls(&self) -> impl Iterator<Item = &Open> {
        self.threads.values().flat_map(|thread| &thread.open)
    }

    fn call(&mut self, item: &Item, sink: &mut impl Sink) {
        let What::Call { pid, probe, chained, sp, ref captured, origin } = item.what else { return };
        self.end_of_another(item, Some(pid), origin, sink);
        let thread = self.threads.entry(item.tid).or_insert_with(|| Thread::new(item.ts, pid));
        thread.count(item.seq, origin);
        // The kernel's own rule for which uretprobes are still alive.
        while !origin.elsewhere
            && thread.open.last().is_some_and(|top| if chained { top.sp < sp } else { top.sp <= sp })
        {
            self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
        }
        let mut call = Open {
            pid,
            tid: item.tid,
            probe,
            ts: item.ts,
            depth: thread.open.len() as u32,
            id: 0,
            parent: thread.open.last().map(|outer| outer.id),
            origin,
            sp,
            gaps: thread.gaps,
        };
        call.id = sink.begin(&call, captured);
        if origin.elsewhere {
            self.elsewhere += 1;
            return;
        }
        thread.open.push(call);
        self.open += 1;
        // There is no room to wait for its return: a loss, like a call too deep for the kernel.
        if thread.open.len() > DEEPEST || self.open > MOST_OPEN {
            self.open -= 1;
            thread.open.pop();
            *self.too_deep.entry(call.probe).or_default() += 1;
            sink.end(item.ts, &call, Outcome::Lost, &[]);
        }
    }

    fn returned(
        &mut self,
        item: &Item,
        begin: u64,
        value: u64,
        pieces: &[u8],
        origin: Origin,
        sink: &mut impl Sink,
    ) {
        self.end_of_another(item, None, origin, sink);
        let Some(thread) = self.threads.get_mut(&item.tid) else { return };
        thread.count(item.seq, origin);
        if begin < thread.since {
            // A child that was forked inside a call returns from it too: that call is its
            // parent's, and older than the child. What the child had open inside it is gone.
            while !thread.open.is_empty() {
                self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
            }
            return;
        }
        if !thread.open.iter().any(|call| call.ts == begin) {
            self.orphans += 1;
            return;
        }
        while thread.open.last().is_some_and(|top| top.ts != begin) {
            self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
        }
        if let Some(call) = thread.open.pop() {
            self.open -= 1;
            sink.end(item.ts, &call, Outcome::Returned(value), pieces);
        }
    }

    /// If the hit cannot be of the thread known by this number, the end of that one was lost.
    fn end_of_another(&mut self, item: &Item, pid: Option<u32>, origin: Origin, sink: &mut impl Sink) {
        let Some(thread) = self.threads.get(&item.tid) else { return };
        let went_back = !origin.kernel && (item.seq.wrapping_sub(thread.seq) as i32) <= 0;
        if went_back || pid.is_some_and(|pid| pid != thread.pid) {
            self.thread_gone(item.tid, item.ts, sink);
        }
    }

    fn process_gone(&mut self, pid: u32, ts: u64, sink: &mut impl Sink) {
        let tids: Vec<u32> = self.threads.iter().filter(|(_, t)| t.pid == pid).map(|(tid, _)| *tid).collect();
        for tid in tids {
            self.thread_gone(tid, ts, sink);
        }
    }

    fn thread_gone(&mut self, tid: u32, ts: u64, sink: &mut impl Sink) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        self.open -= thread.open.len();
        for call in thread.open.iter().rev() {
            sink.died(ts, call);
        }
    }
}

impl Thread {
    fn new(since: u64, pid: u32) -> Thread {
        Thread { since, pid, ..Thread::default() }
    }

    fn count(&mut self, seq: u32, origin: Origin) {
        if origin.kernel {
            return;
        }
        if seq != self.seq.wrapping_add(1) {
            self.gaps += 1;
        }
        self.seq = seq;
    }

    /// How many it closed.
    fn close_top(&mut self, ts: u64, too_deep: &mut TooDeep, sink: &mut impl Sink) -> usize {
        let Some(call) = self.open.pop() else { return 0 };
        let deep = call.depth >= wire::MAX_FRAMES && !call.origin.kernel;
        if deep {
            *too_deep.entry(call.probe).or_default() += 1;
        }
        // Nothing in the kernel is left but by its return.
        let unwound = self.gaps == call.gaps && !call.origin.kernel && !deep;
        let outcome = if unwound { Outcome::Unwound } else { Outcome::Lost };
        sink.end(ts, &call, outcome, &[]);
        1
    }
}

/// Thread ids are small and not chosen by an attacker who gains from collisions: a
/// multiplication spreads them, and costs a fraction of SipHash.
#[derive(Default, Clone)]
pub struct BuildHasher;

pub struct TidHasher(u64);

impl std::hash::BuildHasher for BuildHasher {
    type Hasher = TidHasher;
    fn build_hasher(&self) -> TidHasher {
        TidHasher(0)
    }
}

impl std::hash::Hasher for TidHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
