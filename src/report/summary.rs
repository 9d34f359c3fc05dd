//! Events to figures, one by one. What is kept grows with the functions,
//! processes and libraries seen and with the calls now open, not with the
//! length of the recording.

mod processes;

use std::collections::BTreeMap;

use super::budget::{Budget, BudgetFigures};
use super::deaths::{Deaths, Life};
use super::driver::{Driver, Within};
use super::errors::Errors;
use super::figures::{
    Cost, FailureKind, Figures, Finding, FirstFailure, ProcessSeen, SyncFunction, ThreadCost,
};
use super::habits::{Habits, Returned};
use super::kernels::{Kernels, Shape};
use super::memory::Memories;
use super::tally::{self, Role, Tally};
use super::transfers::Transfers;
use crate::cuda::Api;
use crate::room::{LONGEST_NAME, Left, MOST_LIVE, MOST_OPEN, Names, Sentences, short};
use crate::trace::hash::Map;
use crate::trace::{Begin, Body, End, Ended, Finish, Header, InFlight, Line, Notes, Retval};

/// How many processes and threads are kept apart; a trace has more only if
/// something forks without end.
const MOST: usize = 65_536;

/// Bytes of the names of functions, of what is listed of libraries, of commands, and of the probes that lost something.
const FUNCTION_NAMES: usize = 16 << 20;
const LIBRARIES: usize = 8 << 20;
const COMMANDS: usize = 32 << 20;
const LOST: usize = 8 << 20;
/// What an entry takes besides its text.
const EACH: usize = 64;

/// How many failures are told apart, by function and code, and how long an error's name is.
const FAILURES: usize = 4096;
const LONGEST_ERROR: usize = 256;

/// How many processes the figures list, and how many threads with their cost.
const LISTED_PROCESSES: usize = 100;
const LISTED_THREADS: usize = 10;

/// A call that has begun and not returned.
pub(super) struct Open {
    pub(super) function: usize,
    pid: u32,
    tid: u32,
    pub(super) ts_ns: u64,
    pub(super) parent: Option<u64>,
    /// Recorded calls inside.
    nested: u64,
    /// The roles of the calls nested in it, by `Role::bit`.
    inside: u8,
    kernel: Option<usize>,
    shape: Shape,
    /// The context it is about to make its thread's.
    context: Option<u64>,
    life: Life,
    /// What the kernel did in it, if it did anything.
    pub(super) within: Option<Box<Within>>,
}

#[derive(Default)]
pub struct Summary {
    pub(super) functions: Vec<Tally>,
    by_name: Names<MOST, FUNCTION_NAMES>,
    /// Those that have no names of their own.
    others: Vec<usize>,
    pub(super) open: Map<u64, Open>,
    /// Calls that began while as many were open as there is room for, and have not ended.
    unfollowed: u64,
    more_open: u64,
    deaths: Deaths,
    pub(super) driver: Driver,
    pub(super) calls_by_thread: Map<(u32, u32), u64>,
    pub(super) processes: BTreeMap<u32, ProcessSeen>,
    /// The threads recorded beyond `MOST`, in one.
    other_threads: u64,
    /// By path and build id.
    by_library: Map<(Box<str>, Option<String>), usize>,
    /// For what is listed of libraries, and for commands.
    libraries_left: Left<LIBRARIES>,
    commands_left: Left<COMMANDS>,
    lost_left: Left<LOST>,
    because: Sentences,
    failures: Map<(usize, Option<i64>), usize>,
    pub(super) ns_per_call: Option<u64>,
    last_ns: u64,
    ended: bool,
    /// What the recorder knows better: a thread's end has no line of its own.
    told_in_flight: Option<Vec<InFlight>>,
    /// The figures in the `end` line, for a trace that has no events.
    stored: Option<serde_json::Value>,
    pub(super) memories: Memories,
    pub(super) transfers: Transfers,
    pub(super) kernels: Kernels,
    errors: Errors,
    habits: Habits,
    budget: Budget,
    /// The call that ended last and how long it took: what follows from a
    /// call is told right after its end.
    last_call: Option<(u64, u64)>,
    pub(super) figures: Figures,
}

impl Summary {
    pub fn new() -> Summary {
        Summary::default()
    }

    pub fn add(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::Header(header) => self.header(header),
            Body::Process(process) => self.process(line, process),
            Body::Lost(lost) => {
                self.figures.lost = self.figures.lost.saturating_add(lost.count);
                for (probe, count) in &lost.by_probe {
                    self.lost(probe, *count);
                }
            }
            Body::Budget(budget) => self.budget.add(line.ts_ns, budget),
            Body::Suspend(suspend) => self.slept(line.ts_ns, suspend),
            Body::Finish(finish) => self.finished(finish),
            Body::Memory(memory) => self.memories.add(line.ts_ns, memory, self.took(memory.begin)),
            Body::Transfer(transfer) => self.transfers.add(transfer, self.took(transfer.begin)),
            Body::KernelBegin(begin) => self.kernel_begin(line, begin),
            Body::KernelEnd(end) => self.kernel_end(end),
            Body::Instant(instant) => self.instant(line, instant),
            Body::Xid(xid) => self.xid(line, xid),
            Body::Unknown(_) => {}
        }
        self.last_ns = self.last_ns.max(line.ts_ns);
    }

    /// The recorder's own reason why the recording is not complete. Losses
    /// that were added as events say so themselves.
    pub fn incomplete(&mut self, reason: &str) {
        self.because.add(reason);
    }

    fn lost(&mut self, probe: &str, count: u64) {
        let by_probe = &mut self.figures.lost_by_probe;
        let known = by_probe.contains_key(probe) || self.lost_left.take(EACH + probe.len());
        let sum = by_probe.entry(if known { probe } else { "(others)" }.to_owned()).or_default();
        *sum = sum.saturating_add(count);
    }

    /// The recorder's own list of calls that did not return.
    pub fn in_flight_is(&mut self, in_flight: &[InFlight]) {
        self.told_in_flight = Some(in_flight.to_vec());
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.function(&begin.name);
        let (api, role, marks) = match self.functions.get(function) {
            Some(tally) => (tally.api, tally.role, tally.marks),
            None => return,
        };
        match api {
            Api::Other => self.figures.other_calls += 1,
            Api::Driver | Api::Runtime => self.figures.cuda_calls += 1,
        }
        if let Some(role) = role {
            self.tell_callers(begin.parent, role);
        }
        self.count_thread(begin.pid, begin.tid);
        let launch = begin.launch.as_ref();
        // What is put into a graph is not launched yet.
        let launch = launch.filter(|_| role == Some(Role::KernelLaunch));
        let kernel = launch.and_then(|launch| self.kernels.index(launch));
        let context = if marks.switches { Errors::context_of(begin) } else { None };
        if self.open.len() >= MOST_OPEN {
            self.unfollowed += 1;
            self.more_open += 1;
            return;
        }
        self.open.insert(
            line.event_id,
            Open {
                function,
                pid: begin.pid,
                tid: begin.tid,
                ts_ns: line.ts_ns,
                parent: begin.parent,
                nested: 0,
                inside: 0,
                kernel,
                shape: launch.map_or((None, None), |launch| (launch.grid, launch.block)),
                context,
                life: self.deaths.born(),
                within: None,
            },
        );
    }

    fn end(&mut self, line: &Line, end: &End) {
        let mut open = self.open.remove(&end.begin);
        let function = match &open {
            Some(open) => open.function,
            None => {
                match self.unfollowed.checked_sub(1) {
                    Some(left) => self.unfollowed = left,
                    None => self.figures.unmatched_ends += 1,
                }
                self.function(&end.name)
            }
        };
        if end.ended == Ended::Unwound {
            self.figures.unwound_calls += 1;
        }
        if end.error.is_some() {
            self.failure(line, end, function);
            let (kernels, functions) = (&self.kernels, &self.functions);
            let function = |function: usize| functions.get(function).map(|tally| tally.name.to_string());
            let names = |kernel: usize| kernels.name(kernel).to_owned();
            self.errors.failed(end, line.ts_ns, names, |known| function(known).unwrap_or_default());
        }
        let Some(tally) = self.functions.get_mut(function) else {
            return;
        };
        if let Some(ns) = end.duration_ns {
            tally.add(ns);
            tally.nested += open.as_ref().map_or(0, |open| open.nested);
            self.last_call = Some((end.begin, ns));
            if let Some(within) = open.as_ref().and_then(|open| open.within.as_ref()) {
                tally.add_within(within.kernel_ns, within.off_cpu_ns);
            }
        }
        let (role, switches) = (tally.role, tally.marks.switches);
        if let Some(open) = &open
            && let Some(caller) = open.parent.and_then(|parent| self.open.get_mut(&parent))
        {
            caller.nested += open.nested + 1;
        }
        if let (Some(open), Some(ns)) = (&mut open, end.duration_ns) {
            self.maybe_slow(end, open, ns);
        }
        // A launch whose end was lost showed no sign of failure: it counts.
        let succeeded = end.error.is_none() && end.ended != Ended::Unwound;
        let inside = open.as_ref().map_or(0, |open| open.inside);
        match role {
            Some(role) if inside & role.bit() != 0 => {}
            Some(Role::KernelLaunch) if succeeded => self.launched(end, open.as_ref()),
            Some(Role::GraphLaunch) if succeeded => {
                self.figures.graph_launches += 1;
                self.habits.launched(end.pid);
                self.errors.launched(end.pid, end.tid, None);
            }
            Some(Role::Sync) => {
                let sync = &mut self.figures.sync;
                sync.calls += 1;
                sync.total_ns = sync.total_ns.saturating_add(end.duration_ns.unwrap_or(0));
            }
            _ => {}
        }
        if end.error.is_none() && end.ended == Ended::Returned {
            if role == Some(Role::Sync) {
                self.errors.synchronised(end, function, line.ts_ns);
            }
            if switches {
                self.errors.switched(end, open.as_ref().and_then(|open| open.context));
            }
        }
        if end.ended == Ended::Returned && open.is_some_and(|open| open.parent.is_none()) {
            self.outermost(end, function);
        }
    }

    /// A launch has succeeded, at the innermost level that shows it.
    fn launched(&mut self, end: &End, open: Option<&Open>) {
        self.figures.kernel_launches += 1;
        self.habits.launched(end.pid);
        let Some(open) = open else {
            self.kernels.launched(None, (None, None));
            return;
        };
        // The level above may have been able to read more.
        let outer = open.parent.and_then(|parent| self.open.get(&parent));
        let outer = outer.filter(|outer| outer.kernel.is_some() && open.kernel.is_none());
        let (kernel, shape) = outer.map_or((open.kernel, open.shape), |outer| (outer.kernel, outer.shape));
        self.kernels.launched(kernel, shape);
        self.kernels.at(end.pid, end.tid, open.ts_ns);
        self.errors.launched(end.pid, end.tid, kernel);
    }

    fn outermost(&mut self, end: &End, function: usize) {
        let Some(tally) = self.functions.get(function) else { return };
        let ns = end.duration_ns.unwrap_or(0);
        let error = end.error.as_deref();
        self.habits.add(&Returned { pid: end.pid, tid: end.tid, function, tally, error, ns });
    }

    fn took(&self, begin: u64) -> u64 {
        self.last_call.filter(|(last, _)| *last == begin).map_or(0, |(_, ns)| ns)
    }

    /// Leaves word with every enclosing call. One that knows has told its own.
    fn tell_callers(&mut self, mut caller: Option<u64>, role: Role) {
        while let Some(open) = caller.and_then(|id| self.open.get_mut(&id)) {
            if open.inside & role.bit() != 0 {
                return;
            }
            open.inside |= role.bit();
            caller = open.parent;
        }
    }

    fn function(&mut self, name: &str) -> usize {
        if let Some(known) = self.by_name.get(name) {
            return known;
        }
        let index = self.functions.len();
        let tally = match self.by_name.add(name, index) {
            Some(kept) => Tally::new(kept),
            None => {
                // Those beyond have no names of their own, but a launch is a launch.
                let mut tally = Tally::new(name.into());
                tally.name = tally::others(tally.role).into();
                let mut others = self.others.iter().copied();
                let is_like = |at: &usize| self.functions.get(*at).is_some_and(|known| known.is_like(&tally));
                if let Some(known) = others.find(is_like) {
                    return known;
                }
                self.others.push(index);
                tally
            }
        };
        self.functions.push(tally);
        index
    }

    fn count_thread(&mut self, pid: u32, tid: u32) {
        if let Some(calls) = self.calls_by_thread.get_mut(&(pid, tid)) {
            *calls += 1;
        } else if self.calls_by_thread.len() < MOST {
            self.calls_by_thread.insert((pid, tid), 1);
        } else {
            self.other_threads += 1;
        }
    }

    fn failure(&mut self, line: &Line, end: &End, function: usize) {
        let failures = &mut self.figures.failures;
        failures.calls += 1;
        failures.first.get_or_insert(FirstFailure { ts_ns: line.ts_ns, pid: end.pid, tid: end.tid });
        let code = match end.retval {
            Some(Retval::Number(code)) => Some(code),
            _ => None,
        };
        let kinds = &mut failures.by_error;
        // The last of them is for all others.
        let full = kinds.len() >= FAILURES && !self.failures.contains_key(&(function, code));
        let key = if full { (usize::MAX, None) } else { (function, code) };
        let index = *self.failures.entry(key).or_insert(kinds.len());
        if let Some(kind) = kinds.get_mut(index) {
            kind.count += 1;
            return;
        }
        if full {
            let (api, error) = ("other".to_owned(), "(others)".to_owned());
            let function = tally::others(None).to_owned();
            kinds.push(FailureKind { api, error, code: None, function, count: 1 });
            return;
        }
        kinds.push(FailureKind {
            api: match crate::cuda::api(&end.name) {
                Api::Driver => "driver",
                Api::Runtime => "runtime",
                Api::Other => "other",
            }
            .to_string(),
            error: short(end.error.as_deref().unwrap_or_default(), LONGEST_ERROR),
            code,
            function: short(&end.name, LONGEST_NAME),
            count: 1,
        });
    }

    fn header(&mut self, header: &Header) {
        self.ns_per_call = header.ns_per_call;
        self.driver.header(header);
        self.budget.header(header);
        for (layer, hooks) in &header.hooks {
            if !hooks.refused.is_empty() {
                self.figures.refused.insert(layer.clone(), hooks.refused.clone());
            }
        }
    }

    fn finished(&mut self, finish: &Finish) {
        self.ended = true;
        self.figures.lost = self.figures.lost.max(finish.lost);
        for reason in &finish.incomplete_because {
            self.incomplete(reason);
        }
        if !finish.complete && finish.incomplete_because.is_empty() && finish.lost == 0 {
            self.incomplete("the recorder says so, without a reason");
        }
        self.in_flight_is(&finish.in_flight);
        self.takes_the_recorders_own(&finish.summary);
        self.stored = Some(finish.summary.clone());
    }

    /// The figures of a recording that ends at `at_ns`, which becomes the ts
    /// of its `end` line.
    pub fn finish(&self, at_ns: u64) -> Figures {
        let mut figures = self.figures.clone();
        figures.duration_ns = at_ns;
        figures.incomplete_because = self.because.all();
        figures.incomplete_because.extend(self.not_followed());
        if figures.lost > 0 {
            let reason = match figures.lost {
                1 => "1 event was lost".to_string(),
                n => format!("{n} events were lost"),
            };
            if !figures.incomplete_because.contains(&reason) {
                figures.incomplete_because.push(reason);
            }
        }
        figures.budget = self.budget.finish(at_ns);
        if let Some(reason) = figures.budget.as_ref().map(BudgetFigures::reason)
            && !figures.incomplete_because.contains(&reason)
        {
            figures.incomplete_because.push(reason);
        }
        figures.complete = figures.incomplete_because.is_empty();
        let with_kernel = self.driver.seen;
        let others = self.other_functions();
        let is_other = |at: usize| self.others.binary_search(&at).is_ok();
        let named =
            self.functions.iter().enumerate().filter(|(at, _)| !is_other(*at)).map(|(_, tally)| tally);
        let all = named.chain(&others);
        figures.functions = all.filter_map(|tally| tally.figures(with_kernel, self.ns_per_call)).collect();
        figures.kernel_space = self.driver.finish(|function| self.function_name(function));
        figures.functions.sort_by(|a, b| (b.total_ns, &a.name).cmp(&(a.total_ns, &b.name)));
        figures.sync.by_function = self.sync_functions(&figures);
        figures.in_flight = self.told_in_flight.clone().unwrap_or_else(|| self.in_flight(at_ns));
        figures.memory = self.memories.finish(at_ns);
        figures.transfers = self.transfers.finish();
        (figures.kernels, figures.more_kernels) = self.kernels.finish();
        figures.error_windows = self.errors.finish();
        figures.findings = self.findings();
        self.list_processes(&mut figures);
        figures.cost = self.cost();
        figures
    }

    /// What these figures leave out for want of room.
    fn not_followed(&self) -> Vec<String> {
        let mut said = Vec::new();
        let open = self.more_open + self.driver.more_open;
        if open > 0 {
            said.push(format!(
                "{open} calls that began while {MOST_OPEN} others were open were not followed to their ends"
            ));
        }
        if self.memories.unfollowed > 0 {
            said.push(format!(
                "{} allocations beyond {MOST_LIVE} live ones, or in too many processes, were not followed: what was never freed may be more or less",
                self.memories.unfollowed
            ));
        }
        said
    }

    /// The functions that are not told apart, one of each name.
    fn other_functions(&self) -> Vec<Tally> {
        let mut named: Vec<Tally> = Vec::new();
        for tally in self.others.iter().filter_map(|at| self.functions.get(*at)) {
            let at = named.iter().position(|known| known.name == tally.name).unwrap_or_else(|| {
                named.push(Tally::new(tally.name.clone()));
                named.len() - 1
            });
            if let Some(sum) = named.get_mut(at) {
                sum.merge(tally);
            }
        }
        named
    }

    fn findings(&self) -> Vec<Finding> {
        let mut all = self.memories.findings();
        all.extend(self.kernels.findings());
        all.extend(self.transfers.findings());
        // They conclude from calls that were not made.
        if !self.budget.left_out() {
            all.extend(self.habits.findings(&self.functions));
        }
        all
    }

    /// The figures of a file that has been read to its end.
    pub(super) fn of_file(&self, notes: &Notes) -> Figures {
        let mut figures = self.finish(self.last_ns);
        // A recording with --summary-only has its figures and no events.
        if self.functions.is_empty()
            && self.driver.is_empty()
            && let Some(stored) = &self.stored
            && let Ok(stored) = Figures::from_json(stored)
        {
            figures = stored;
        }
        figures.complete &= self.ended && notes.is_whole();
        figures.notes = notes.sentences();
        figures
    }

    fn sync_functions(&self, figures: &Figures) -> Vec<SyncFunction> {
        let is_sync = |name: &str| {
            let index = self.by_name.get(name);
            index.and_then(|i| self.functions.get(i)?.role) == Some(Role::Sync) || name == tally::OTHER_SYNC
        };
        let sync = figures.functions.iter().filter(|f| is_sync(&f.name));
        sync.map(|f| SyncFunction { name: f.name.clone(), calls: f.calls, total_ns: f.total_ns }).collect()
    }

    fn function_name(&self, function: usize) -> String {
        self.functions.get(function).map(|tally| tally.name.to_string()).unwrap_or_default()
    }

    fn in_flight(&self, at_ns: u64) -> Vec<InFlight> {
        let mut calls: Vec<InFlight> = self
            .open
            .iter()
            .map(|(begin, open)| {
                let died_ns = self.deaths.of(open.pid, open.life).died_ns();
                InFlight {
                    pid: open.pid,
                    tid: open.tid,
                    name: self.function_name(open.function),
                    begin: *begin,
                    duration_ns: died_ns.unwrap_or(at_ns).saturating_sub(open.ts_ns),
                    died: died_ns.is_some(),
                }
            })
            .collect();
        self.driver.in_flight(at_ns, &mut calls);
        calls.sort_by_key(|call| call.begin);
        calls
    }

    fn cost(&self) -> Option<Cost> {
        let ns_per_call = self.ns_per_call?;
        let mut threads: Vec<ThreadCost> = self
            .calls_by_thread
            .iter()
            .map(|((pid, tid), calls)| ThreadCost {
                pid: *pid,
                tid: *tid,
                calls: *calls,
                cost_ns: calls.saturating_mul(ns_per_call),
            })
            .collect();
        threads.sort_by(|a, b| b.calls.cmp(&a.calls).then(a.tid.cmp(&b.tid)));
        let more_threads = threads.len().saturating_sub(LISTED_THREADS) as u64;
        threads.truncate(LISTED_THREADS);
        let calls = self.calls_by_thread.values().sum::<u64>() + self.other_threads;
        (calls > 0).then(|| Cost {
            ns_per_call,
            calls,
            total_ns: calls.saturating_mul(ns_per_call),
            threads,
            more_threads,
        })
    }
}
