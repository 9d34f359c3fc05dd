//! Matches the entry and return of each call, thread by thread.
//!
//! In: items in time order. Out: begins, ends and process events to a sink. In each thread they nest, and every begin
//! has its end or is reported as in flight.
//!
//! A return names its call by the call's timestamp, which BPF kept across the call: so a pair is never a guess. Calls
//! that never return are closed when the thread shows that they are gone: an outer call returns (longjmp or an
//! exception passed over them), or a new call's frame is at or above theirs on the stack. A gap in the thread's
//! sequence numbers distinguishes a lost return from a skipped one. Calls that are nested more deeply than Linux
//! tracks them get no return, and that is a loss too. The thread's records from inside Linux nest in its calls by the
//! same rules, because BPF gives them stack pointers below every user stack. A call on another stack than the
//! thread's open ones has no return: it begins within them, and nothing begins within it. Pure: no I/O, no clock.

use std::collections::BTreeSet;

use super::decode::{Block, Captured, Item, Origin, What};
use crate::wire;
use gpurec_cuda::semantics::CallRef;
use gpurec_trace::Incomplete;
use gpurec_trace::bounds::MOST_OPEN;
use gpurec_trace::hash::Map;

/// A call as the sink knows it.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub pid: u32,
    pub tid: u32,
    pub probe: u32,
    /// When it began, CLOCK_MONOTONIC ns.
    pub ts: u64,
    pub depth: u32,
    /// The sink's ids of the begin, and of the enclosing call's begin.
    pub id: u64,
    pub parent: Option<u64>,
    pub origin: Origin,
    /// The key of the call's stack, if it has one of its own.
    pub stack: Option<u64>,
    sp: u64,
    /// The thread's number of gaps when the call began.
    gaps: u64,
}

impl Open {
    /// The call as `gpurec_cuda` knows it.
    pub fn reference(&self) -> CallRef {
        CallRef { pid: self.pid, tid: self.tid, id: self.id }
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
    /// A stack, or what stacks refer to: functions, mappings.
    fn stack(&mut self, _item: &Item) {}
    /// A block of PyTorch's allocator, with the id of the begin of the call around it, and the key of its own stack.
    fn block(&mut self, _item: &Item, _within: Option<u64>) {}
    /// An event that is recorded once; `within` is the innermost open call of its thread.
    fn instant(&mut self, item: &Item, within: Option<&Open>);
}

#[derive(Default)]
struct Thread {
    open: Vec<Open>,
    /// The sequence number of the last hit. It wraps after 2^32 hits, so only differences count.
    seq: u32,
    gaps: u64,
    /// Time of the thread's first record.
    since: u64,
    pid: u32,
}

/// The most open calls per thread. Calls deeper than `MAX_FRAMES` get no return anyway.
const DEEPEST: usize = 1024;

#[derive(Default)]
pub struct Pairing {
    threads: Map<u32, Thread>,
    /// Number of open calls of all threads.
    open: usize,
    /// Number of returns of calls that were already closed. 0 is expected.
    pub orphans: u64,
    /// Number of calls whose returns were not recorded.
    pub elsewhere: u64,
    /// By probe: the number of calls nested so deeply that Linux does not see their returns.
    pub too_deep: TooDeep,
    /// The threads that were unwound out of open calls, to their end.
    pub left: Left,
    pub killed: Option<Killed>,
}

/// Threads that pthread_cancel or pthread_exit ended inside a call: how many, and the outermost call of the first.
#[derive(Default)]
pub struct Left {
    pub threads: u64,
    pub first: Option<Open>,
}

impl Left {
    pub fn reason<'a>(&self, name: impl FnOnce(u32) -> &'a str) -> Option<Incomplete> {
        let call = self.first?;
        let function = name(call.probe).to_owned();
        Some(Incomplete::ThreadsLeft { threads: self.threads, pid: call.pid, tid: call.tid, function })
    }
}

/// The first process whose death a hook can have caused: Linux kills a program that returns past a watched return, or
/// copies code with a breakpoint in it; an exception that passes through a watched function aborts it. Programs abort
/// for reasons of their own too, so that alone makes no trace incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    pub pid: u32,
    pub signal: i32,
    /// The outermost call that its thread was in.
    pub probe: Option<u32>,
}

impl Killed {
    fn of(pid: u32, status: i32, call: Option<&Open>) -> Option<Killed> {
        let signal = status & 0x7f;
        let is_suspect = match signal {
            libc::SIGTRAP | libc::SIGILL => true,
            libc::SIGABRT => call.is_some(),
            _ => false,
        };
        is_suspect.then(|| Killed { pid, signal, probe: call.map(|call| call.probe) })
    }

    pub fn reason(&self) -> Option<Incomplete> {
        let signal = gpurec_trace::signal_name(self.signal);
        (self.signal != libc::SIGABRT).then_some(Incomplete::Killed { pid: self.pid, signal })
    }

    pub fn hint<'a>(&self, name: impl FnOnce(u32) -> &'a str) -> Option<String> {
        let call = name(self.probe.filter(|_| self.signal == libc::SIGABRT)?);
        Some(format!(
            "process {} was aborted in {call}: if an exception passed through that function, the hook at its return is the cause: leave the function out with --skip, or with a narrower pattern of --lib",
            self.pid
        ))
    }
}

pub type TooDeep = Map<u32, u64>;

impl Pairing {
    pub fn feed(&mut self, item: &Item, sink: &mut impl Sink) {
        match &item.what {
            What::Call { .. } => self.call(item, sink),
            What::Return { begin, value, pieces, origin, .. } => {
                self.returned(item, *begin, *value, pieces, *origin, sink);
            }
            What::Stack { .. } | What::Code(_) | What::Unwind(_) | What::Mapped(_) => sink.stack(item),
            What::Block(block) => self.block(item, block, sink),
            What::Instant { .. } => {
                let thread = self.threads.get(&item.tid).filter(|_| item.tid != 0);
                sink.instant(item, thread.and_then(|thread| thread.open.last()));
            }
            What::Exec { .. } | What::Exit { .. } => {
                if let What::Exit { pid, status, left_calls, .. } = item.what {
                    if left_calls {
                        self.left_calls(item.tid);
                    }
                    let thread = self.threads.get(&item.tid);
                    let call = thread.and_then(|thread| thread.open.iter().find(|call| !call.origin.kernel));
                    self.killed = self.killed.or_else(|| Killed::of(pid, status, call));
                }
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

    /// The open calls, in no order.
    pub fn open_calls(&self) -> impl Iterator<Item = &Open> {
        self.threads.values().flat_map(|thread| &thread.open)
    }

    fn call(&mut self, item: &Item, sink: &mut impl Sink) {
        let What::Call { pid, probe, chained, sp, ref captured, origin, stack } = item.what else { return };
        // The thread is looked up once, because this runs for every call.
        let thread = match self.threads.get_mut(&item.tid) {
            Some(thread) if !thread.is_another(item.seq, Some(pid), origin) => thread,
            _ => {
                self.thread_gone(item.tid, item.ts, sink);
                self.threads.entry(item.tid).or_insert(Thread::new(item.ts, pid))
            }
        };
        thread.count(item.seq, origin);
        // Linux uses the same rule for which uretprobes are still alive.
        while !origin.elsewhere
            && thread.open.last().is_some_and(|top| if chained { top.sp < sp } else { top.sp <= sp })
        {
            self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
        }
        let (depth, parent) = (thread.open.len() as u32, thread.open.last().map(|outer| outer.id));
        let gaps = thread.gaps;
        // Added to the list before the sink sees it, because copying it there later would cost time for every call.
        let call =
            Open { pid, tid: item.tid, probe, ts: item.ts, depth, id: 0, parent, origin, stack, sp, gaps };
        thread.open.push(call);
        let Some(call) = thread.open.last_mut() else { return };
        call.id = sink.begin(call, captured);
        if origin.elsewhere {
            self.elsewhere += 1;
            thread.open.pop();
            return;
        }
        self.open += 1;
        // There is no room to wait for its return: this is a loss, like a call too deep for Linux.
        if thread.open.len() > DEEPEST || self.open > MOST_OPEN {
            self.open -= 1;
            *self.too_deep.entry(probe).or_default() += 1;
            thread.open.pop().iter().for_each(|call| sink.end(item.ts, call, Outcome::Lost, &[]));
        }
    }

    /// It ends no call, as a call would: on another stack than the open calls it says nothing about them.
    fn block(&mut self, item: &Item, block: &Block, sink: &mut impl Sink) {
        self.end_of_another(item, Some(block.pid), Origin::default(), sink);
        let thread = self.threads.entry(item.tid).or_insert_with(|| Thread::new(item.ts, block.pid));
        thread.count(item.seq, Origin::default());
        let within = thread.open.iter().rev().find(|call| call.sp > block.sp);
        sink.block(item, within.map(|call| call.id));
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
        let Some(thread) = self.threads.get_mut(&item.tid) else { return };
        if thread.is_another(item.seq, None, origin) {
            self.thread_gone(item.tid, item.ts, sink);
            return;
        }
        thread.count(item.seq, origin);
        if begin < thread.since {
            // A child that was forked inside a call returns from it too. That call belongs to its parent and is older
            // than the child. Calls that the child had open inside it are gone.
            while !thread.open.is_empty() {
                self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
            }
            return;
        }
        if !thread.open.iter().rev().any(|call| call.ts == begin) {
            self.orphans += 1;
            return;
        }
        while thread.open.last().is_some_and(|top| top.ts != begin) {
            self.open -= thread.close_top(item.ts, &mut self.too_deep, sink);
        }
        if let Some(call) = thread.open.last() {
            self.open -= 1;
            sink.end(item.ts, call, Outcome::Returned(value), pieces);
            thread.open.pop();
        }
    }

    /// If the hit cannot belong to the known thread with this tid, the record of that thread's end was lost.
    fn end_of_another(&mut self, item: &Item, pid: Option<u32>, origin: Origin, sink: &mut impl Sink) {
        if self.threads.get(&item.tid).is_some_and(|thread| thread.is_another(item.seq, pid, origin)) {
            self.thread_gone(item.tid, item.ts, sink);
        }
    }

    fn left_calls(&mut self, tid: u32) {
        let Some(outermost) = self.threads.get(&tid).and_then(|thread| thread.open.first()) else { return };
        self.left.threads += 1;
        self.left.first.get_or_insert(*outermost);
    }

    fn process_gone(&mut self, pid: u32, ts: u64, sink: &mut impl Sink) {
        let threads = self.threads.iter().filter(|(_, thread)| thread.pid == pid);
        for tid in threads.map(|(tid, _)| *tid).collect::<BTreeSet<_>>() {
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

    /// True if a hit of a thread with this tid cannot be this thread's.
    fn is_another(&self, seq: u32, pid: Option<u32>, origin: Origin) -> bool {
        let went_back = !origin.kernel && (seq.wrapping_sub(self.seq) as i32) <= 0;
        went_back || pid.is_some_and(|pid| pid != self.pid)
    }

    fn count(&mut self, seq: u32, origin: Origin) {
        if !origin.kernel {
            self.gaps += u64::from(seq != self.seq.wrapping_add(1));
            self.seq = seq;
        }
    }

    /// Returns the number of calls closed.
    fn close_top(&mut self, ts: u64, too_deep: &mut TooDeep, sink: &mut impl Sink) -> usize {
        let Some(call) = self.open.pop() else { return 0 };
        let deep = call.depth >= wire::MAX_FRAMES && !call.origin.kernel;
        if deep {
            *too_deep.entry(call.probe).or_default() += 1;
        }
        // Code inside Linux ends only by returning.
        let unwound = self.gaps == call.gaps && !call.origin.kernel && !deep;
        let outcome = if unwound { Outcome::Unwound } else { Outcome::Lost };
        sink.end(ts, &call, outcome, &[]);
        1
    }
}
