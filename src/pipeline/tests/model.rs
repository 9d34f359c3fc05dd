//! A model of the threads of a program, and the items that BPF makes of them.
//!
//! In: random choices. Out: items in time order, and the fate of every call. The rules are those of bpf/cuda.bpf.c
//! and of Linux's uretprobes.

use std::collections::HashMap;

use super::super::decode::{Captured, Item, Origin, What};
use super::Random;

/// The events that may happen. Numbers named `lost_...` are percentages.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    pub lost_calls: u64,
    pub lost_returns: u64,
    pub lost_exits: u64,
    pub longjmp: bool,
    pub tail_calls: bool,
    pub forks: bool,
    /// Threads and their processes end, and their numbers are reused.
    pub ends: bool,
    pub execs: bool,
    /// True for the pair of programs that keep their own frames, false for session programs.
    pub frames: bool,
    /// The number of hits of a thread before its first record.
    pub hits_before: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Running,
    Returned {
        at: u64,
        value: u64,
    },
    ReturnLost,
    Unwound,
    /// Its thread ended or was replaced by exec.
    Died {
        reported: bool,
    },
}

pub struct Truth {
    pub pid: u32,
    pub tid: u32,
    pub probe: u32,
    pub args: [u64; 6],
    pub sp: u64,
    pub chained: bool,
    pub fate: Fate,
    /// The thread's number of losses when the call began.
    pub losses: u32,
    /// The innermost running call around it that was recorded in this thread.
    pub parent: Option<u64>,
    /// The number of such calls around it.
    pub depth: u32,
    /// Distinguishes the thread from others with the same tid.
    pub thread: u32,
}

#[derive(Clone, Copy)]
struct Frame {
    sp: u64,
    probe: u32,
    tail: bool,
    /// Time of the call; None if its record was lost.
    begin: Option<u64>,
    /// The thread was forked inside this call, which belongs to the parent.
    inherited: bool,
}

struct Thread {
    pid: u32,
    tid: u32,
    name: u32,
    seq: u32,
    stack: Vec<Frame>,
    /// The frames that cuda.bpf.c keeps: (sp, ts).
    frames: Option<Vec<(u64, u64)>>,
}

pub struct Model {
    pub random: Random,
    weather: Weather,
    clock: u64,
    threads: Vec<Thread>,
    free_tids: Vec<u32>,
    next_tid: u32,
    names: u32,
    pub calls: HashMap<u64, Truth>,
    /// Number of losses by the thread's name.
    pub losses: HashMap<u32, u32>,
    pub items: Vec<Item>,
}

const BASE: u64 = 0x7fff_0000_0000;

/// The memory that is read at a return with this value: none, or bytes that identify the value.
pub fn pieces_of(value: u64) -> Box<[u8]> {
    if value & 1 == 0 { Box::default() } else { value.to_ne_bytes().into() }
}

impl Model {
    pub fn new(seed: u64, weather: Weather) -> Model {
        let mut model = Model {
            random: Random::new(seed),
            weather,
            clock: 1_000_000,
            threads: Vec::new(),
            free_tids: Vec::new(),
            next_tid: 100,
            names: 0,
            calls: HashMap::new(),
            losses: HashMap::new(),
            items: Vec::new(),
        };
        for _ in 0..1 + model.random.below(4) {
            model.spawn(None);
        }
        model
    }

    pub fn losses_of(&self, thread: u32) -> u32 {
        self.losses.get(&thread).copied().unwrap_or(0)
    }

    /// Makes one event happen in one thread.
    pub fn step(&mut self) {
        if self.threads.is_empty() {
            return self.spawn(None);
        }
        let at = self.random.below(self.threads.len() as u64) as usize;
        let deep = self.threads[at].stack.len() as u64;
        match self.random.below(100) {
            0..45 if deep < 24 => self.call(at),
            90..94 if self.weather.longjmp && deep > 0 => self.longjmp(at),
            94..96 if self.weather.forks && self.threads.len() < 8 => self.fork(at),
            96..98 if self.weather.ends => self.end(at),
            98 if self.weather.execs => self.exec(at),
            99 if self.threads.len() < 8 => {
                let pid = self.threads[at].pid;
                let same = self.random.percent(50);
                self.spawn(same.then_some(pid));
            }
            _ if deep > 0 => self.give_back(at),
            _ => self.call(at),
        }
    }

    fn now(&mut self) -> u64 {
        self.clock += 1 + self.random.below(1000);
        self.clock
    }

    fn spawn(&mut self, pid: Option<u32>) {
        let reuse = !self.free_tids.is_empty() && self.random.percent(50);
        let tid = if reuse { self.free_tids.remove(0) } else { self.next_tid };
        self.next_tid += u32::from(!reuse);
        self.names += 1;
        let seq = self.weather.hits_before;
        let pid = pid.unwrap_or(tid);
        self.threads.push(Thread { pid, tid, name: self.names, seq, stack: Vec::new(), frames: None });
    }

    fn call(&mut self, at: usize) {
        let ts = self.now();
        let tail = self.weather.tail_calls && self.random.percent(25) && !self.threads[at].stack.is_empty();
        let lost = self.random.percent(self.weather.lost_calls);
        let below = 8 * (1 + self.random.below(6));
        let args = std::array::from_fn(|_| self.random.next());
        let probe = 1 + self.random.below(50) as u32;
        let thread = &mut self.threads[at];
        let top = thread.stack.last().copied();
        let sp = match top {
            Some(frame) if tail => frame.sp,
            Some(frame) => frame.sp - below,
            None => BASE - below,
        };
        // Session programs leave the return address of a lost call alone. It is the one of the calls from which it
        // was tail-called.
        let mut same_slot = thread.stack.iter().filter(|frame| frame.sp == sp);
        let chained = tail && same_slot.any(|frame| frame.begin.is_some() || self.weather.frames);
        thread.seq = thread.seq.wrapping_add(1);
        if lost {
            *self.losses.entry(thread.name).or_default() += 1;
        } else {
            let own = |frame: &&Frame| !frame.inherited && frame.begin.is_some();
            let truth = Truth {
                pid: thread.pid,
                tid: thread.tid,
                probe,
                args,
                sp,
                chained,
                fate: Fate::Running,
                losses: self.losses.get(&thread.name).copied().unwrap_or(0),
                parent: thread.stack.iter().rev().find(own).and_then(|frame| frame.begin),
                depth: thread.stack.iter().filter(own).count() as u32,
                thread: thread.name,
            };
            self.calls.insert(ts, truth);
            let what = What::Call {
                pid: thread.pid,
                probe,
                chained,
                sp,
                captured: Captured::registers(args),
                origin: Origin::default(),
                stack: None,
            };
            self.items.push(Item { ts, tid: thread.tid, seq: thread.seq, what });
        }
        let begin = (!lost).then_some(ts);
        thread.stack.push(Frame { sp, probe, tail, begin, inherited: false });
        if self.weather.frames {
            thread.keep_frame(sp, chained, begin);
        }
    }

    /// Makes the innermost function return, and with it those from which it was tail-called.
    fn give_back(&mut self, at: usize) {
        let value = self.random.next();
        let mut slot = Vec::new();
        while let Some(frame) = self.threads[at].stack.pop() {
            self.returned(at, frame, value);
            slot.push(frame);
            if !frame.tail {
                break;
            }
        }
        for begin in slot.iter().filter(|frame| !frame.inherited).filter_map(|frame| frame.begin) {
            assert_ne!(self.calls[&begin].fate, Fate::Running, "a recorded call's return was missed");
        }
    }

    fn returned(&mut self, at: usize, frame: Frame, value: u64) {
        let ts = self.now();
        let thread = &mut self.threads[at];
        let recorded = match (self.weather.frames, &mut thread.frames) {
            (false, _) => frame.begin,
            (true, None) => None,
            (true, Some(frames)) => find_frame(frames, frame.sp),
        };
        let Some(begin) = recorded else { return };
        thread.seq = thread.seq.wrapping_add(1);
        let lost = self.random.percent(self.weather.lost_returns);
        if lost {
            *self.losses.entry(thread.name).or_default() += 1;
        } else {
            let what = What::Return {
                probe: frame.probe,
                begin,
                value,
                pieces: pieces_of(value),
                origin: Origin::default(),
            };
            self.items.push(Item { ts, tid: thread.tid, seq: thread.seq, what });
        }
        // Programs that keep their own frames may confuse calls that return at once: those of one stack slot, where
        // one of them was lost.
        if let Some(call) = self.calls.get_mut(&begin).filter(|call| call.thread == thread.name) {
            assert_eq!((call.sp, call.fate), (frame.sp, Fate::Running), "one call is taken for another");
            call.fate = if lost { Fate::ReturnLost } else { Fate::Returned { at: ts, value } };
        }
    }

    fn set_fate(&mut self, frame: Frame, fate: Fate) {
        if let Some(call) = frame.begin.filter(|_| !frame.inherited).and_then(|ts| self.calls.get_mut(&ts)) {
            call.fate = fate;
        }
    }

    /// Jumps past some calls into a function that still has its frame. A function that has tail-called another has
    /// none.
    fn longjmp(&mut self, at: usize) {
        let mut count = 1 + self.random.below(4);
        while let Some(frame) = self.threads[at].stack.pop() {
            self.set_fate(frame, Fate::Unwound);
            count = count.saturating_sub(1);
            if count == 0 && !frame.tail {
                break;
            }
        }
    }

    fn fork(&mut self, at: usize) {
        let ts = self.now();
        let (tid, pid, seq) = (self.next_tid, self.threads[at].pid, self.weather.hits_before);
        self.next_tid += 1;
        self.names += 1;
        let inherit = |frame: &Frame| Frame { inherited: true, ..*frame };
        let stack = self.threads[at].stack.iter().map(inherit).collect();
        self.threads.push(Thread { pid: tid, tid, name: self.names, seq, stack, frames: None });
        let what = What::Fork { pid, child: tid };
        self.items.push(Item { ts, tid: self.threads[at].tid, seq: 0, what });
    }

    fn end(&mut self, at: usize) {
        let ts = self.now();
        let mut thread = self.threads.remove(at);
        let reported = !self.random.percent(self.weather.lost_exits);
        for frame in std::mem::take(&mut thread.stack) {
            self.set_fate(frame, Fate::Died { reported });
        }
        if reported {
            let process = !self.threads.iter().any(|other| other.pid == thread.pid);
            self.items.push(super::exit_item(ts, thread.pid, thread.tid, process));
        }
        self.free_tids.push(thread.tid);
    }

    /// exec by a process of one thread: the tid stays, open calls are gone, and the count of hits continues.
    fn exec(&mut self, at: usize) {
        let ts = self.now();
        let (pid, tid) = (self.threads[at].pid, self.threads[at].tid);
        if pid != tid || self.threads.iter().filter(|other| other.pid == pid).count() > 1 {
            return;
        }
        for frame in std::mem::take(&mut self.threads[at].stack) {
            self.set_fate(frame, Fate::Died { reported: true });
        }
        self.names += 1;
        self.threads[at].name = self.names;
        self.threads[at].frames = None;
        let what = What::Exec { pid, old_tid: 0, command: b"a\0".as_slice().into(), cut: false };
        self.items.push(Item { ts, tid, seq: 0, what });
    }
}

impl Thread {
    /// What cuda_entry does with frames.
    fn keep_frame(&mut self, sp: u64, chained: bool, begin: Option<u64>) {
        if begin.is_some() {
            self.frames.get_or_insert_default();
        }
        let Some(frames) = &mut self.frames else { return };
        while frames.last().is_some_and(|(at, _)| if chained { *at < sp } else { *at <= sp }) {
            frames.pop();
        }
        frames.extend(begin.map(|ts| (sp, ts)));
    }
}

/// What cuda_return does with frames.
fn find_frame(frames: &mut Vec<(u64, u64)>, sp: u64) -> Option<u64> {
    while let Some((at, ts)) = frames.last().copied() {
        if at > sp {
            return None;
        }
        frames.pop();
        if at == sp {
            return Some(ts);
        }
    }
    None
}
