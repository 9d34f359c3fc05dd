//! Which call submitted which work. In: calls of recorded threads that submit work, as the hooks saw them; CUPTI's
//! records of such calls, which have its correlation number and lie within the hooked call; and records of work, which
//! have that number too. Out: each piece of work with the innermost recorded call that submitted it, and an account of
//! what is missing. Records come late and in any order. Pure: times are arguments.

use std::collections::VecDeque;
use std::sync::Arc;

use gpurec_trace::hash::Map;

use super::cupti::{Api, What, Work};
use super::numbers::{Asker, Numbers};

/// The most calls that are remembered; the oldest are forgotten. CUPTI delivers records about a second after the call.
const MOST_CALLS: usize = 1 << 19;
/// The most works that wait for the record of their call.
const MOST_WAITING: usize = 1 << 16;
/// The most threads of a process that are found by the times of their calls, where CUPTI has other thread ids.
const MOST_THREADS: usize = 1024;
/// The most processes for which gpurec remembers when they ended or executed another program, and the most such times
/// of one process. A forgotten time does no harm: gpurec reads a program's last records milliseconds after the
/// program's end.
const MOST_PROGRAMS: usize = 1 << 16;
const MOST_ENDS: usize = 32;
const MOST_UNNAMED: usize = 1 << 12;
/// The most works that wait for the end of their call.
const MOST_OPEN: usize = 1 << 12;
/// After this time without a record of its call, or without the end of its call, work is written without it.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Work has ended before its record comes. The clocks differ by much less than this, so a later end is not true.
const AHEAD_NS: u64 = 1_000_000_000;
/// Calls around another one: the most that are looked through.
const MOST_AROUND: usize = 64;

/// A program in a process: by exec, or as its number is used again, a process becomes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Program {
    pub pid: u32,
    run: u32,
}

/// The recorded call that submitted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    tid: u32,
    /// Its begin's id.
    pub id: u64,
    pub end: Option<u64>,
}

/// Work that is ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    pub pid: u32,
    pub work: Work,
    pub name: Option<Arc<str>>,
    pub by: Option<By>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    begin: u64,
    /// `u64::MAX` while it is open.
    end: u64,
    id: u64,
    tid: u32,
    is_launch: bool,
    /// Another launch began within it.
    is_outer: bool,
}

#[derive(Default)]
struct Thread {
    calls: VecDeque<Call>,
    /// The number of forgotten calls, and the position of the last search's result, counted with the forgotten calls.
    forgotten: usize,
    found: usize,
}

/// What made the call that CUPTI has a record of.
enum Caller {
    Call(Option<Call>),
    /// The same, of a thread whose other name is known from here on.
    New(Call),
    Several,
}

/// What is known of a correlation number.
#[derive(Clone, Copy, Default)]
struct Number {
    by: Option<By>,
    /// When the deeper of the known calls began.
    begin: u64,
    has_call: bool,
    is_launch: bool,
    /// Kernels of it that were delivered, or its graph.
    kernels: u32,
    is_complete: bool,
}

#[derive(Default)]
struct Process {
    waiting: Map<u32, Vec<Waiting>>,
    /// Those that submit work, and other names of them.
    threads: Vec<u32>,
    aliases: Map<u32, u32>,
    /// Records of calls that any of several threads may have made.
    unnamed: Vec<(Api, bool)>,
    account: Account,
}

struct Waiting {
    work: Work,
    name: Option<Arc<str>>,
}

/// When the programs of a process ended.
#[derive(Default)]
struct Ends {
    /// The number of the oldest times that were forgotten.
    forgotten: usize,
    times: VecDeque<u64>,
}

impl Ends {
    fn push(&mut self, at: u64) {
        if self.times.len() >= MOST_ENDS {
            self.times.pop_front();
            self.forgotten += 1;
        }
        self.times.push_back(at);
    }

    /// The number of programs before a time.
    fn before(&self, time: u64) -> usize {
        self.forgotten + self.times.partition_point(|end| *end <= time)
    }
}

/// Counts of one process. See `GpuAccount` of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub launches: u64,
    pub failed: u64,
    pub api: u64,
    /// Kernels, and whole graphs.
    pub delivered: u64,
    pub graph_nodes: u64,
    pub whole_graphs: u64,
    /// Launches with a record of the call and one of its work.
    pub complete: u64,
    /// Records of work without a known call.
    pub unmatched: u64,
    /// Records of kernels without times, or with times that cannot be.
    pub untimed: u64,
    /// Kernels that had not ended when they were asked for.
    pub unfinished: u64,
}

#[derive(Default)]
pub struct Join {
    /// Calls of every process are remembered.
    pub everyone: bool,
    threads: Map<(u32, u32), Thread>,
    processes: Map<Program, Process>,
    /// Of processes that were watched.
    ends: Map<u32, Ends>,
    /// Programs that have ended, and when.
    ended: VecDeque<(u64, Program)>,
    numbers: Numbers<Program, Number>,
    /// The thread of each remembered call, the oldest first.
    calls: VecDeque<(u32, u32)>,
    waiting: usize,
    /// Works whose call has not returned: its thread lost the CPU, or the work was short.
    open: Vec<Joined>,
    /// When works began to wait, in order.
    since: VecDeque<(u64, Program, u32)>,
}

impl Join {
    /// Calls of this process are remembered from here on.
    pub fn watch(&mut self, pid: u32) {
        self.processes.entry(self.program(pid)).or_default();
    }

    /// The same for the program that the process was at a time, unless that has ended.
    pub fn watch_at(&mut self, pid: u32, time: u64) {
        if self.is_current(pid, time) {
            self.watch(pid);
        }
    }

    /// True if the process has not ended or executed another program since.
    fn is_current(&self, pid: u32, time: u64) -> bool {
        self.program_at(pid, time) == self.program(pid)
    }

    /// True from the begin of its watch until its account is closed.
    pub fn knows(&self, program: Program) -> bool {
        self.processes.contains_key(&program)
    }

    pub fn watches(&self, pid: u32) -> bool {
        !self.processes.is_empty() && self.processes.contains_key(&self.program(pid))
    }

    /// The present program of a process.
    fn program(&self, pid: u32) -> Program {
        self.program_at(pid, u64::MAX)
    }

    /// The program that a process was at a time.
    pub fn program_at(&self, pid: u32, time: u64) -> Program {
        Program { pid, run: self.ends.get(&pid).map_or(0, |ends| ends.before(time)) as u32 }
    }

    /// The process ended at a time, or became another program.
    pub fn ended(&mut self, pid: u32, at: u64) {
        if !self.watches(pid) {
            return;
        }
        let is_new = !self.ends.contains_key(&pid);
        if is_new && self.ends.len() >= MOST_PROGRAMS {
            self.forget_ends();
        }
        if !is_new || self.ends.len() < MOST_PROGRAMS {
            self.ended.push_back((at, self.program(pid)));
            self.ends.entry(pid).or_default().push(at);
        }
    }

    /// The process has ended by now, but its end was not among the records, or came before it was watched. `since`: it
    /// ran then.
    pub fn has_ended(&mut self, pid: u32, since: u64, now: u64) {
        if self.is_current(pid, since) {
            self.ended(pid, now);
        }
    }

    /// Drops the half of the processes that ended first, but keeps those that run another program now.
    fn forget_ends(&mut self) {
        let mut last: Vec<u64> = self.ends.values().filter_map(|ends| ends.times.back().copied()).collect();
        let middle = last.len() / 2;
        let (_, from, _) = last.select_nth_unstable(middle);
        let from = *from;
        let processes = &self.processes;
        self.ends.retain(|pid, ends| {
            let now = Program { pid: *pid, run: ends.before(u64::MAX) as u32 };
            ends.times.back().is_some_and(|at| *at >= from) || processes.contains_key(&now)
        });
    }

    /// Removes the programs that ended before a time, and returns their accounts. A program stays while records of it
    /// may still come: `is_open` says so, by the program and the time of its end.
    pub fn close(
        &mut self,
        before: u64,
        is_open: impl Fn(Program, u64) -> bool,
        each: &mut dyn FnMut(Joined),
    ) -> Vec<(Program, Account)> {
        let (mut closed, mut open) = (Vec::new(), Vec::new());
        while let Some((at, of)) = self.ended.front().copied().filter(|(at, _)| *at < before) {
            self.ended.pop_front();
            if is_open(of, at) || self.processes.get(&of).is_some_and(|process| !process.waiting.is_empty()) {
                open.push((at, of));
                continue;
            }
            self.give_up_unnamed(of, each);
            closed.extend(self.processes.remove(&of).map(|process| (of, process.account)));
        }
        open.into_iter().rev().for_each(|one| self.ended.push_front(one));
        closed
    }

    /// Counts records of calls whose thread stays unknown.
    fn give_up_unnamed(&mut self, of: Program, each: &mut dyn FnMut(Joined)) {
        let process = self.processes.get_mut(&of);
        let calls = process.map(|process| std::mem::take(&mut process.unnamed)).unwrap_or_default();
        calls.iter().for_each(|(api, is_launch)| self.joined(of, api, *is_launch, None, each));
    }

    /// A call that submits work began. Ids and times of a thread only grow.
    pub fn begin(&mut self, pid: u32, tid: u32, at: u64, id: u64, is_launch: bool) {
        if self.everyone && !self.watches(pid) {
            self.watch(pid);
        }
        if !self.watches(pid) {
            return;
        }
        let program = self.program(pid);
        let thread = self.threads.entry((pid, tid)).or_default();
        if thread.calls.is_empty()
            && let Some(process) = self.processes.get_mut(&program)
            && process.threads.len() < MOST_THREADS
            && !process.threads.contains(&tid)
        {
            process.threads.push(tid);
        }
        if is_launch {
            let open = thread.calls.iter_mut().rev().take(MOST_AROUND).filter(|call| call.end == u64::MAX);
            open.filter(|call| call.is_launch).for_each(|call| call.is_outer = true);
        }
        thread.calls.push_back(Call { begin: at, end: u64::MAX, id, tid, is_launch, is_outer: false });
        self.calls.push_back((pid, tid));
        if self.calls.len() > MOST_CALLS {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.calls.pop_front() else { return };
        if let Some(thread) = self.threads.get_mut(&oldest) {
            thread.calls.pop_front();
            thread.forgotten += 1;
            if thread.calls.is_empty() {
                self.threads.remove(&oldest);
            }
        }
    }

    pub fn end(&mut self, pid: u32, tid: u32, at: u64, id: u64, is_good: bool) {
        if !self.watches(pid) {
            return;
        }
        let program = self.program(pid);
        let Some(thread) = self.threads.get_mut(&(pid, tid)) else { return };
        // Almost always the last or the one before.
        let Some(call) = thread.calls.iter_mut().rev().take(MOST_AROUND).find(|call| call.id == id) else {
            return;
        };
        call.end = at;
        if call.is_launch
            && !call.is_outer
            && let Some(process) = self.processes.get_mut(&program)
        {
            *(if is_good { &mut process.account.launches } else { &mut process.account.failed }) += 1;
        }
    }

    /// CUPTI's record of a call.
    pub fn api(&mut self, of: Program, api: &Api, is_launch: bool, each: &mut dyn FnMut(Joined)) {
        let call = match self.call_of(of, api, is_launch) {
            Caller::Call(call) => call,
            Caller::Several => {
                if let Some(process) = self.processes.get_mut(&of).filter(|p| p.unnamed.len() < MOST_UNNAMED)
                {
                    return process.unnamed.push((api.clone(), is_launch));
                }
                None
            }
            Caller::New(call) => {
                let process = self.processes.get_mut(&of);
                let unnamed = process.map(|process| std::mem::take(&mut process.unnamed)).unwrap_or_default();
                // Once for each name, and only those of this one find their call now.
                unnamed.iter().for_each(|(api, is_launch)| self.api(of, api, *is_launch, each));
                Some(call)
            }
        };
        self.joined(of, api, is_launch, call, each);
    }

    fn joined(
        &mut self,
        of: Program,
        api: &Api,
        is_launch: bool,
        call: Option<Call>,
        each: &mut dyn FnMut(Joined),
    ) {
        let Some(process) = self.processes.get_mut(&of) else { return };
        let number = self.numbers.of(of, api.correlation, Asker::Call);
        if is_launch && !number.is_launch {
            number.is_launch = true;
            process.account.api += 1;
        }
        number.has_call = true;
        // The runtime's call and the driver's within it have one number: the inner one counts.
        if let Some(call) = call.filter(|call| call.begin >= number.begin) {
            number.begin = call.begin;
            number.by = Some(By { tid: call.tid, id: call.id, end: call.ended() });
        }
        let by = number.by;
        process.account.complete += u64::from(number.becomes_complete());
        if process.waiting.is_empty() {
            return;
        }
        let waiting = process.waiting.remove(&api.correlation).unwrap_or_default();
        self.waiting -= waiting.len();
        for Waiting { work, name } in waiting {
            self.hand_out(Joined { pid: of.pid, work, name, by }, each);
        }
    }

    /// The recorded call that CUPTI has a record of. A client may let CUPTI name threads as the C library does: then
    /// the one thread that made such a call at that time is it, now and later.
    fn call_of(&mut self, of: Program, api: &Api, is_launch: bool) -> Caller {
        let Some(process) = self.processes.get_mut(&of) else { return Caller::Call(None) };
        let known = process.aliases.get(&api.tid).copied().unwrap_or(api.tid);
        if let Some(thread) = self.threads.get_mut(&(of.pid, known)) {
            thread.found = thread.forgotten + thread.begun_by(api.start);
            return Caller::Call(thread.call_of(api, is_launch));
        }
        let threads = &self.threads;
        let around = |tid: u32| {
            let call = threads.get(&(of.pid, tid))?.call_of(api, is_launch)?;
            (call.begin > api.start || call.end >= api.end).then_some((tid, call))
        };
        // A thread has one other name.
        let unnamed =
            process.threads.iter().filter(|tid| !process.aliases.values().any(|named| named == *tid));
        let mut found = unnamed.filter_map(|tid| around(*tid));
        let Some((tid, call)) = found.next() else { return Caller::Call(None) };
        if found.next().is_some() {
            return Caller::Several;
        }
        if process.aliases.len() >= MOST_THREADS {
            return Caller::Call(Some(call));
        }
        process.aliases.insert(api.tid, tid);
        Caller::New(call)
    }

    /// A record of work, which came at `now`.
    pub fn work(
        &mut self,
        now: u64,
        of: Program,
        work: Work,
        name: Option<Arc<str>>,
        each: &mut dyn FnMut(Joined),
    ) {
        let Some(process) = self.processes.get_mut(&of) else { return };
        let correlation = work.correlation;
        let number = self.numbers.of(of, correlation, Asker::Work);
        if !process.account.count(now, &work, number) {
            return;
        }
        if number.has_call {
            let by = number.by;
            return self.hand_out(Joined { pid: of.pid, work, name, by }, each);
        }
        if self.waiting >= MOST_WAITING {
            process.account.unmatched += 1;
            return each(Joined { pid: of.pid, work, name, by: None });
        }
        process.waiting.entry(correlation).or_default().push(Waiting { work, name });
        self.waiting += 1;
        self.since.push_back((now, of, correlation));
    }

    /// Hands out work with the end of its call, or lets it wait for that.
    fn hand_out(&mut self, mut joined: Joined, each: &mut dyn FnMut(Joined)) {
        if joined.sees_end(&self.threads) || self.open.len() >= MOST_OPEN {
            each(joined);
        } else {
            self.open.push(joined);
        }
    }

    /// Hands out what waited for the end of its call, and gives up what has waited too long, or everything.
    pub fn expire(&mut self, now: u64, everything: bool, each: &mut dyn FnMut(Joined)) {
        let is_due = |joined: &mut Joined| {
            joined.sees_end(&self.threads) || everything || now.saturating_sub(joined.work.end) >= PATIENCE_NS
        };
        self.open.extract_if(.., is_due).for_each(&mut *each);
        let unnamed = self.processes.iter().filter(|(_, process)| everything && !process.unnamed.is_empty());
        for of in unnamed.map(|(of, _)| *of).collect::<Vec<_>>() {
            self.give_up_unnamed(of, each);
        }
        while let Some((since, of, correlation)) = self.since.front().copied() {
            if !everything && now.saturating_sub(since) < PATIENCE_NS {
                return;
            }
            self.since.pop_front();
            let Some(process) = self.processes.get_mut(&of) else { continue };
            let waiting = process.waiting.remove(&correlation).unwrap_or_default();
            self.waiting -= waiting.len();
            process.account.unmatched += waiting.len() as u64;
            waiting
                .into_iter()
                .for_each(|one| each(Joined { pid: of.pid, work: one.work, name: one.name, by: None }));
        }
    }

    pub fn programs(&self) -> impl Iterator<Item = Program> + '_ {
        self.processes.keys().copied()
    }

    pub fn account(&self, of: Program) -> Account {
        self.processes.get(&of).map(|process| process.account).unwrap_or_default()
    }
}

impl Joined {
    /// True if the end of its call is known, or there is no call.
    fn sees_end(&mut self, threads: &Map<(u32, u32), Thread>) -> bool {
        let Some(by) = &mut self.by else { return true };
        if by.end.is_none()
            && let Some(thread) = threads.get(&(self.pid, by.tid))
            && let Ok(at) = thread.calls.binary_search_by_key(&by.id, |call| call.id)
        {
            by.end = thread.calls[at].ended();
        }
        by.end.is_some()
    }
}

impl Call {
    fn ended(&self) -> Option<u64> {
        (self.end != u64::MAX).then_some(self.end)
    }
}

impl Thread {
    /// The recorded call that one of CUPTI's records of calls is about. For a call of the runtime CUPTI has one record,
    /// but gpurec usually records two calls: the runtime's and, within it, the driver's. This returns the inner one,
    /// because a runtime that is linked into cuDNN or cuBLAS has no hooks, and then gpurec records the driver's call
    /// alone.
    fn call_of(&self, api: &Api, is_launch: bool) -> Option<Call> {
        let mut within =
            self.calls.range(..self.begun_by(api.end)).rev().take_while(|call| call.begin > api.start);
        let ended = |call: &&Call| call.end <= api.end && call.is_launch == is_launch;
        within.by_ref().take(MOST_AROUND).find(ended).copied().or_else(|| self.around(api.start))
    }

    /// The innermost call that was open at a time.
    fn around(&self, time: u64) -> Option<Call> {
        let before = self.calls.range(..self.begun_by(time)).rev().take(MOST_AROUND);
        before.copied().find(|call| call.end >= time)
    }

    /// The number of calls that began up to a time. Most records come in the order of their calls, so the search starts
    /// at the last result and doubles its steps. That stays in the cache, which a binary search of half a million calls
    /// does not.
    fn begun_by(&self, time: u64) -> usize {
        let is_before = |at: usize| self.calls.get(at).is_some_and(|call| call.begin <= time);
        let from = self.found.saturating_sub(self.forgotten).min(self.calls.len());
        let (mut low, mut high, mut step) = (from, from, 1);
        while high < self.calls.len() && is_before(high) {
            low = high + 1;
            high = self.calls.len().min(high + step);
            step *= 2;
        }
        while low > 0 && !is_before(low - 1) {
            high = low - 1;
            low = low.saturating_sub(step);
            step *= 2;
        }
        while low < high {
            let middle = low.midpoint(high);
            if is_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

impl Account {
    /// Counts a record of work, which came at `now`. False: without its times there is nothing to write.
    fn count(&mut self, now: u64, work: &Work, number: &mut Number) -> bool {
        let is_kernel = matches!(work.what, What::Kernel { .. });
        let is_graph = matches!(work.what, What::Graph { .. });
        let counted = u64::from(is_kernel || is_graph);
        let is_untimed = work.start == 0 || work.end > now.saturating_add(AHEAD_NS);
        if is_untimed || work.end < work.start {
            *(if is_untimed { &mut self.untimed } else { &mut self.unfinished }) += counted;
            return false;
        }
        self.delivered += counted;
        self.whole_graphs += u64::from(is_graph);
        if counted > 0 {
            let is_first = number.kernels == 0;
            number.kernels = number.kernels.saturating_add(1);
            self.graph_nodes += u64::from(is_kernel && work.node.is_some() && !is_first);
            self.complete += u64::from(number.becomes_complete());
        }
        true
    }
}

impl Number {
    /// True once: when there is a launch, and the first of its kernels.
    fn becomes_complete(&mut self) -> bool {
        let now = self.is_launch && self.kernels > 0 && !self.is_complete;
        self.is_complete |= now;
        now
    }
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
