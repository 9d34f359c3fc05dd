//! What a dump must know of the time before its period: the state of a recording at one line. In: lines, in order. Out:
//! the lines with which a trace of what follows begins. Pure. What programs make it remember is bounded; calls,
//! allocations and stacks beyond a bound are counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::kept::Kept;
use super::processes::{Processes, ended};
use gpurec_trace::bounds::{MOST_LIVE, MOST_OPEN, entry};
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Budget, CALL_STACKS, Device, Level, Line, Memory, Op, Process, Where};

/// The most bytes of the lines of libraries, and of stacks.
const LIBRARIES: usize = 8 << 20;
const STACKS: usize = 64 << 20;
/// The most functions given up by `--budget`, devices, processes with memory, and names of functions and spaces.
const MOST: usize = 65_536;

/// A call that has not ended.
#[derive(Clone)]
pub struct OpenCall {
    pub by: Kept,
    /// Its own stack, or that of the call around it.
    stack: Option<u64>,
}

/// An allocation that has not been freed.
#[derive(Clone)]
pub struct Allocation {
    pub id: u64,
    pub ts_ns: u64,
    tid: u32,
    name: Arc<str>,
    on: Where,
    size: Option<u64>,
    runtime: bool,
    stack: Option<u64>,
}

/// The live allocations of a process: by space and address, which may be a handle.
#[derive(Clone, Default)]
struct Holding {
    live: Map<(Arc<str>, u64), Allocation>,
    /// Whether the last line of each space said how much is live.
    is_known: BTreeMap<Arc<str>, bool>,
}

#[derive(Clone, Default)]
pub struct State {
    header: Option<Kept>,
    processes: Processes,
    /// By path and build id; and the bytes of all together.
    libraries: Map<(String, Option<String>), Kept>,
    library_bytes: usize,
    devices: BTreeMap<u32, (u64, u64, Device)>,
    clock: Option<Kept>,
    /// The functions that are not recorded, with their last lines.
    given_up: BTreeMap<(String, u32), Kept>,
    pub calls: Map<u64, OpenCall>,
    /// The call that ended last, and its stack: its effects follow.
    last: Option<(u64, Option<u64>)>,
    memory: Map<u32, Holding>,
    live: usize,
    words: Map<Arc<str>, ()>,
    /// The stacks of each process, and the processes that have ended, whose stacks are dropped first when there is no
    /// room. They stay until then, because later lines may refer to them.
    stacks: Map<u32, Vec<u64>>,
    ended: VecDeque<u32>,
    by_number: Map<u64, Kept>,
    stack_bytes: usize,
    /// The time of the last line, and the event_id of the next.
    pub last_ns: u64,
    pub next_id: u64,
    /// Records lost so far, except stacks: memory may have been allocated or freed unseen.
    pub lost: u64,
    /// Calls and allocations that found no room.
    pub unfollowed: u64,
    /// Why a part of the lines is missing.
    pub damaged: Option<String>,
}

impl State {
    /// `text` is the line, without its line feed.
    pub fn add(&mut self, line: &Line, text: &[u8]) {
        self.next_id = line.event_id + 1;
        if !matches!(line.body, Body::Gpu(_)) {
            self.last_ns = self.last_ns.max(line.ts_ns);
        }
        self.add_call(line, text);
        if let Some(pid) = ended(&line.body) {
            self.gone(pid);
        }
        match &line.body {
            Body::Header(_) => self.header = Some(Kept::new(line, text)),
            Body::Process(Process::Library(library)) => {
                let key = (library.path.to_string(), library.build_id.clone());
                self.library(key, Kept::new(line, text));
            }
            Body::Process(process) => {
                self.processes.add(line, process, text);
                if let Process::Exit(exit) = process {
                    self.ended.extend(Some(exit.pid).filter(|pid| self.stacks.contains_key(pid)));
                }
            }
            Body::Memory(memory) => self.memory(line, memory),
            Body::Stack(stack) => self.stack(stack.pid, stack.stack, Kept::new(line, text)),
            Body::Device(device) => self.device(line, device),
            Body::Clock(_) => self.clock = Some(Kept::new(line, text)),
            Body::Budget(budget) => self.budget(budget, Kept::new(line, text)),
            Body::Lost(lost) => {
                let stacks = lost.by_probe.get(CALL_STACKS).copied().unwrap_or(0);
                self.lost = self.lost.saturating_add(lost.count.saturating_sub(stacks));
                if lost.count > stacks {
                    self.memory
                        .values_mut()
                        .flat_map(|of| of.is_known.values_mut())
                        .for_each(|is| *is = false);
                }
            }
            _ => {}
        }
    }

    fn add_call(&mut self, line: &Line, text: &[u8]) {
        let (own, parent) = match &line.body {
            Body::Begin(begin) if begin.no_return.is_some() => return,
            Body::Begin(begin) => (begin.stack, begin.parent),
            Body::KernelBegin(begin) => (None, begin.parent),
            Body::End(end) => {
                let stack = self.calls.remove(&end.begin).and_then(|call| call.stack);
                self.last = Some((end.begin, stack));
                return;
            }
            Body::KernelEnd(end) => {
                self.calls.remove(&end.begin);
                return;
            }
            _ => return,
        };
        if self.calls.len() >= MOST_OPEN {
            return self.unfollowed += 1;
        }
        let stack = own.or_else(|| self.stack_of(parent?));
        self.calls.insert(line.event_id, OpenCall { by: Kept::new(line, text), stack });
    }

    /// The thread of an open call has ended, so that it does not return.
    pub fn died(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    fn stack_of(&self, call: u64) -> Option<u64> {
        match self.last {
            Some((last, stack)) if last == call => stack,
            _ => self.calls.get(&call)?.stack,
        }
    }

    fn memory(&mut self, line: &Line, memory: &Memory) {
        let (space, name) = (self.word(&memory.space), self.word(&memory.name));
        let stack = memory.stack.or_else(|| self.stack_of(memory.begin?));
        let Some(holding) = entry(&mut self.memory, memory.pid, MOST) else { return self.unfollowed += 1 };
        if holding.is_known.len() < MOST || holding.is_known.contains_key(&space) {
            holding.is_known.insert(space.clone(), memory.total_allocated.is_some());
        }
        let at = (space, memory.ptr);
        if memory.op == Op::Free {
            self.live -= usize::from(holding.live.remove(&at).is_some());
            return;
        }
        let allocation = Allocation {
            id: line.event_id,
            ts_ns: line.ts_ns,
            tid: memory.tid,
            name,
            on: memory.on,
            size: memory.size,
            runtime: memory.runtime,
            stack,
        };
        if let Some(before) = holding.live.get_mut(&at) {
            *before = allocation;
        } else if self.live < MOST_LIVE {
            self.live += 1;
            holding.live.insert(at, allocation);
        } else {
            self.unfollowed += 1;
        }
    }

    /// The process has ended, or runs another program.
    fn gone(&mut self, pid: u32) {
        let held = self.memory.remove(&pid).map_or(0, |holding| holding.live.len());
        self.live -= held;
    }

    /// Drops the stacks of the process that ended first. False: no process with stacks has ended.
    fn forget_stacks(&mut self) -> bool {
        let Some(pid) = self.ended.pop_front() else { return false };
        for number in self.stacks.remove(&pid).unwrap_or_default() {
            let gone = self.by_number.remove(&number).map_or(0, |line| line.bytes());
            self.stack_bytes -= gone;
        }
        true
    }

    fn word(&mut self, word: &str) -> Arc<str> {
        if let Some((known, ())) = self.words.get_key_value(word) {
            return known.clone();
        }
        let new: Arc<str> = word.into();
        if self.words.len() < MOST {
            self.words.insert(new.clone(), ());
        }
        new
    }

    fn stack(&mut self, pid: u32, number: u64, line: Kept) {
        while self.stack_bytes + line.bytes() > STACKS {
            if !self.forget_stacks() {
                self.unfollowed += 1;
                return;
            }
        }
        self.stack_bytes += line.bytes();
        if let Some(before) = self.by_number.insert(number, line) {
            self.stack_bytes -= before.bytes();
        } else {
            self.stacks.entry(pid).or_default().push(number);
        }
    }

    /// The line of a stack.
    pub fn stack_line(&self, number: u64) -> Option<&Kept> {
        self.by_number.get(&number)
    }

    fn library(&mut self, key: (String, Option<String>), line: Kept) {
        self.library_bytes += line.bytes();
        if let Some(before) = self.libraries.insert(key, line) {
            self.library_bytes -= before.bytes();
        }
        while self.library_bytes > LIBRARIES {
            let oldest = self.libraries.iter().min_by_key(|(_, line)| line.id).map(|(key, _)| key.clone());
            let Some(gone) = oldest.and_then(|key| self.libraries.remove(&key)) else { return };
            self.library_bytes -= gone.bytes();
        }
    }

    /// A device's name is only in its first line.
    fn device(&mut self, line: &Line, device: &Device) {
        let before = self.devices.remove(&device.device);
        let name = device.gpu_name.clone().or_else(|| before?.2.gpu_name);
        if self.devices.len() < MOST {
            let device = Device { gpu_name: name, ..device.clone() };
            self.devices.insert(device.device, (line.event_id, line.ts_ns, device));
        }
    }

    fn budget(&mut self, budget: &Budget, line: Kept) {
        let key = (budget.function.clone(), budget.probe);
        if budget.level == Level::Recorded {
            self.given_up.remove(&key);
        } else if self.given_up.len() < MOST || self.given_up.contains_key(&key) {
            self.given_up.insert(key, line);
        }
    }

    /// Passes the lines with which a trace of what follows begins, in their order, with their original event_ids. A
    /// call, unlike an allocation, may refer to a stack that `stack_line` does not have.
    pub fn carry<E>(&self, mut take: impl FnMut(Line) -> Result<(), E>) -> Result<(), E> {
        let mut all: BTreeMap<u64, Carried> = BTreeMap::new();
        all.extend(self.header.iter().map(|line| (line.id, Carried::Line(line.clone()))));
        all.extend(self.clock.iter().map(|line| (line.id, Carried::Line(line.clone()))));
        all.extend(self.processes.lines().into_iter().map(|(id, line)| (id, Carried::Line(line))));
        all.extend(self.given_up.values().map(|line| (line.id, Carried::Line(line.clone()))));
        all.extend(self.libraries.values().map(|line| (line.id, Carried::Library(line))));
        all.extend(self.devices.values().map(|it| (it.0, Carried::Device(it.1, &it.2))));
        all.extend(self.calls.values().map(|call| (call.by.id, Carried::Call(&call.by))));
        for (pid, holding) in &self.memory {
            let of_process = holding.live.iter();
            all.extend(of_process.map(|((space, ptr), it)| (it.id, Carried::Memory(*pid, space, *ptr, it))));
        }
        let mut totals: Map<(u32, &str), u64> = Map::default();
        for (id, carried) in &all {
            let (ts_ns, body) = match carried {
                Carried::Line(line) => match line.line() {
                    Some(line) => (line.ts_ns, line.body),
                    None => continue,
                },
                Carried::Library(line) => match line.line() {
                    Some(line) => (line.ts_ns, self.of_live(line.body)),
                    None => continue,
                },
                Carried::Call(line) => match line.line() {
                    Some(line) => (line.ts_ns, carried_call(line.body)),
                    None => continue,
                },
                Carried::Device(ts_ns, device) => (*ts_ns, Body::Device(Box::new((*device).clone()))),
                Carried::Memory(pid, space, ptr, it) => {
                    let total = totals.entry((*pid, space)).or_default();
                    *total = total.saturating_add(it.size.unwrap_or(0));
                    (it.ts_ns, Body::Memory(self.allocation((*pid, space, *ptr), it, *total)))
                }
            };
            take(Line { event_id: *id, ts_ns, body })?;
        }
        Ok(())
    }

    /// A library's process may have ended; the library is still hooked.
    fn of_live<'a>(&self, mut body: Body<'a>) -> Body<'a> {
        if let Body::Process(Process::Library(library)) = &mut body
            && !self.processes.runs(library.pid)
        {
            (library.pid, library.tid) = (0, 0);
        }
        body
    }

    fn allocation<'a>(
        &self,
        (pid, space, ptr): (u32, &'a str, u64),
        it: &'a Allocation,
        total: u64,
    ) -> Memory<'a> {
        let is_known =
            self.memory.get(&pid).and_then(|holding| holding.is_known.get(space)).is_some_and(|is| *is);
        Memory {
            pid,
            tid: it.tid,
            begin: None,
            on: it.on,
            name: (&*it.name).into(),
            op: Op::Alloc,
            space: space.into(),
            ptr,
            size: it.size,
            total_allocated: is_known.then_some(total),
            earlier: false,
            missed: false,
            runtime: it.runtime,
            carried: true,
            stack: it.stack.filter(|stack| self.by_number.contains_key(stack)),
        }
    }
}

enum Carried<'a> {
    Line(Kept),
    Library(&'a Kept),
    Call(&'a Kept),
    Device(u64, &'a Device),
    Memory(u32, &'a str, u64, &'a Allocation),
}

fn carried_call(mut body: Body) -> Body {
    match &mut body {
        Body::Begin(begin) => begin.carried = true,
        Body::KernelBegin(begin) => begin.carried = true,
        _ => {}
    }
    body
}
