//! `report threads`: what each thread did, sorted by time in CUDA, largest first.

use std::collections::{BTreeMap, HashMap};

use super::calls::{Functions, Thread, left_out, unfinished};
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::failures::is_shutdown;
use crate::table::{Cell, Column, Table, data, long, number, text};
use crate::tally::Role;
use crate::text::{duration, plural};
use gpurec_cuda::Api;
use gpurec_trace::bounds::{Left, Sums, entry};
use gpurec_trace::hash::Map;
use gpurec_trace::tree::{self, Call, Calls};
use gpurec_trace::{Begin, Body, End, Line, Process};

const THREADS: &[Column] = &[
    number("In CUDA (ms)", "cuda_ns"),
    number("(%)", "cuda_percent"),
    number("Sync (ms)", "sync_ns"),
    number("Driver (ms)", "driver_ns"),
    number("Calls", "calls"),
    number("Launches", "launches"),
    number("Copied", "copied_bytes"),
    number("Failed", "failed").vital(),
    number("Unfinished", "unfinished"),
    number("First (s)", "first_ns").minor(),
    number("Last (s)", "last_ns").minor(),
    number("PID", "pid"),
    number("TID", "tid").vital(),
    data("rank"),
    text("Most time in", "most_time_in"),
    data("most_time_ns"),
];

const PROCESSES: &[Column] = &[
    number("PID", "pid"),
    number("Threads", "threads"),
    number("Rank", "rank"),
    number("Ended (s)", "ended_ns"),
    long("Command", "command"),
];

/// Columns for a recording without events.
const PROCESSES_OF_FIGURES: &[Column] =
    &[number("PID", "pid"), number("Calls", "calls"), number("Rank", "rank"), long("Command", "command")];

/// Limits on distinct threads, and on functions of one thread.
const MOST: usize = 65_536;
const FUNCTIONS: usize = 256;
/// Limits on pairs of a thread and a function, and on bytes of commands.
const PAIRS: usize = 1 << 20;
const COMMANDS: usize = 32 << 20;

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Threads::default())
}

#[derive(Default)]
struct Threads {
    functions: Functions,
    calls: Calls<()>,
    threads: Sums<Thread, Seen, MOST>,
    processes: Map<u32, Started>,
    /// Room left for functions of threads, and for commands.
    left: Left<PAIRS>,
    commands: Left<COMMANDS>,
}

#[derive(Default)]
struct Seen {
    calls: u64,
    launches: u64,
    failed: u64,
    /// Calls that have not returned.
    unfinished: u64,
    copied: u64,
    /// Time of calls at the outermost level.
    cuda_ns: u64,
    sync_ns: u64,
    driver_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// Time of outermost calls, by function.
    by_function: HashMap<usize, u64>,
}

#[derive(Clone, Default)]
struct Started {
    command: String,
    rank: Option<u32>,
    ended_ns: Option<u64>,
}

impl View for Threads {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::KernelBegin(begin) => {
                let function = self.functions.index(&begin.name);
                self.calls.begin(Call::span(line.event_id, line.ts_ns, begin, function, ()), 0);
            }
            Body::KernelEnd(end) => {
                let span = self.calls.end(end.begin, end.duration_ns);
                // The enclosing driver span already counts the time of a nested one.
                let span = span.filter(|span| self.calls.around(span.parent).all(|outer| !outer.is_span));
                if let Some(seen) = span.and_then(|span| self.seen(span.thread())) {
                    seen.driver_ns = seen.driver_ns.saturating_add(end.duration_ns.unwrap_or(0));
                }
            }
            Body::Transfer(transfer) if transfer.direction != "set" => {
                if let Some(seen) = self.seen((transfer.pid, transfer.tid)) {
                    seen.copied = seen.copied.saturating_add(transfer.size);
                }
            }
            Body::Process(process) => self.process(line, process),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        if self.threads.by_key.is_empty() {
            return nothing("No thread made a CUDA call in this trace.");
        }
        self.unfinished(told);
        self.report(told.duration_ns())
    }

    fn of_figures(&mut self, figures: &Figures, _: &Told) -> Option<Report> {
        if figures.processes.is_empty() && figures.cost.is_none() {
            return None;
        }
        let mut report = Report::default();
        report.fact("duration_ns", figures.duration_ns);
        if let Some(cost) = &figures.cost {
            let threads = cost.threads.len() as u64 + cost.more_threads;
            report.title(format!("{} made calls, the most calls first", plural(threads, "thread")));
            let mut table = Table::new("threads", "threads", THREADS);
            for thread in &cost.threads {
                let rank =
                    figures.processes.iter().find(|seen| seen.pid == thread.pid).and_then(|seen| seen.rank);
                table.sparse_row(&[
                    ("calls", Cell::Count(thread.calls)),
                    ("pid", Cell::Count(thread.pid.into())),
                    ("tid", Cell::Count(thread.tid.into())),
                    ("rank", Cell::optional(rank, |rank| Cell::Count(rank.into()))),
                ]);
            }
            table.more(cost.more_threads);
            report.table(table);
        }
        report.title("Their processes");
        let mut table = Table::new("processes", "processes", PROCESSES_OF_FIGURES);
        for seen in &figures.processes {
            table.row(vec![
                Cell::Count(seen.pid.into()),
                Cell::Count(seen.calls),
                Cell::optional(seen.rank, |rank| Cell::Count(rank.into())),
                Cell::Text(seen.command.join(" ")),
            ]);
        }
        table.more(figures.more_processes);
        report.table(table);
        Some(report)
    }
}

impl Threads {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let thread = (begin.pid, begin.tid);
        let call = Call::new(line.event_id, line.ts_ns, begin, function, ());
        self.calls.begin(call, self.functions.bit(function));
        let seen = self.threads.of(thread);
        if seen.calls == 0 {
            seen.first_ns = line.ts_ns;
        }
        seen.calls += 1;
        seen.last_ns = line.ts_ns;
    }

    /// Returns the entry of a thread that has made a call, or the shared entry of the threads beyond `MOST`.
    fn seen(&mut self, thread: Thread) -> Option<&mut Seen> {
        let others = Some(&mut self.threads.others).filter(|others| others.calls > 0);
        self.threads.by_key.get_mut(&thread).or(others)
    }

    fn end(&mut self, line: &Line, end: &End) {
        let thread = (end.pid, end.tid);
        let call = self.calls.end(end.begin, end.duration_ns);
        let parent = call.as_ref().and_then(|call| call.parent);
        let outermost = self.calls.around(parent).next().is_none();
        let role = call.as_ref().and_then(|call| self.functions.role(call.function));
        // As in the summary: a call that fails inside another CUDA call is that caller's to handle, so it does not
        // count.
        let is_cuda = |outer: &Call<()>| {
            self.functions.get(outer.function).is_some_and(|function| function.traits.api != Api::Other)
        };
        let failed = end.error.as_deref().is_some_and(|error| !is_shutdown(error))
            && !self.calls.around(parent).any(is_cuda);
        let Some(seen) = self.seen(thread) else { return };
        seen.last_ns = line.ts_ns;
        seen.failed += u64::from(failed);
        let Some(call) = call else { return };
        self.took(&call, outermost, end.duration_ns.unwrap_or(0));
        let launches = role.is_some_and(|role| role.launches() && !call.has_inside(role.bit()));
        if let Some(seen) = self.seen(thread).filter(|_| launches && tree::succeeded(end)) {
            seen.launches += 1;
        }
    }

    /// Adds the duration of a call, or its time so far if it has not returned.
    fn took(&mut self, call: &Call<()>, outermost: bool, ns: u64) {
        let role = self.functions.role(call.function);
        let mut left = self.left;
        let Some(seen) = self.seen(call.thread()) else { return };
        if outermost {
            seen.cuda_ns = seen.cuda_ns.saturating_add(ns);
            if let Some(total) = seen.by_function.get_mut(&call.function) {
                *total = total.saturating_add(ns);
            } else if seen.by_function.len() < FUNCTIONS && left.take(1) {
                seen.by_function.insert(call.function, ns);
            }
        }
        if role == Some(Role::Sync) && !call.has_inside(Role::Sync.bit()) {
            seen.sync_ns = seen.sync_ns.saturating_add(ns);
        }
        self.left = left;
    }

    fn unfinished(&mut self, told: &Told) {
        let calls = std::mem::take(&mut self.calls);
        for (call, ns) in unfinished(&calls, told).into_iter().filter(|(call, _)| !call.is_span) {
            self.took(call, calls.around(call.parent).next().is_none(), ns);
            if let Some(seen) = self.seen(call.thread()) {
                seen.last_ns = seen.last_ns.max(call.ts_ns.saturating_add(ns));
                seen.unfinished += 1;
            }
        }
        self.calls = calls;
    }

    fn process(&mut self, line: &Line, process: &Process) {
        self.calls.process(line.ts_ns, process);
        let (pid, started) = match process {
            Process::Exec(exec) => {
                (exec.pid, Started { command: exec.command.join(" "), rank: exec.rank, ended_ns: None })
            }
            Process::Found(_) => {
                let Some((pid, command, rank)) = process.named() else { return };
                (pid, Started { command: command.join(" "), rank, ended_ns: None })
            }
            Process::Fork(fork) => (fork.child, self.processes.get(&fork.pid).cloned().unwrap_or_default()),
            Process::Exit(exit) => {
                if let Some(started) = self.processes.get_mut(&exit.pid) {
                    started.ended_ns = Some(line.ts_ns);
                }
                return;
            }
            Process::Library(_) => return,
        };
        let mut started = started;
        if !self.commands.take(started.command.len()) {
            started.command = String::new();
        }
        if let Some(known) = entry(&mut self.processes, pid, MOST) {
            *known = started;
        }
    }

    fn report(&self, whole_ns: u64) -> Report {
        let mut all: Vec<(&Thread, &Seen)> = self.threads.by_key.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.cuda_ns, y.calls, *a).cmp(&(x.cuda_ns, x.calls, *b)));
        let mut report = Report::default();
        let mut by_pid: BTreeMap<u32, u64> = BTreeMap::new();
        for (pid, _) in self.threads.by_key.keys() {
            *by_pid.entry(*pid).or_default() += 1;
        }
        let processes = plural(by_pid.len() as u64, "process");
        let others = self.threads.others.calls > 0;
        report.title(format!(
            "{}{} of {processes} made CUDA calls, the most time in them first",
            if others { "More than " } else { "" },
            plural(all.len() as u64, "thread")
        ));
        report.fact("duration_ns", whole_ns);
        let mut table = Table::new("threads", "threads", THREADS);
        for (thread, seen) in all {
            let rank = self.processes.get(&thread.0).and_then(|started| started.rank);
            table.row(self.row(Some(*thread), seen, rank));
        }
        if others {
            table.row(self.row(None, &self.threads.others, None));
        }
        report.table(table);
        if others {
            report.words(format!(
                "Only the first {MOST} threads have rows of their own. The last row has {} of other threads, {} in CUDA; the figures below leave those threads out.",
                plural(self.threads.others.calls, "call"),
                duration(self.threads.others.cuda_ns)
            ));
        }
        if let Some(said) = left_out(&self.calls) {
            report.words(said);
        }
        report.words("(%) is of the time from the thread's first call to its last. Sync is part of In CUDA.");
        report.title("Their processes");
        let mut table = Table::new("processes", "processes", PROCESSES);
        for (pid, threads) in &by_pid {
            let started = self.processes.get(pid).cloned().unwrap_or_default();
            let command = if !self.processes.contains_key(pid) && self.processes.len() >= MOST {
                "?"
            } else if started.command.is_empty() {
                "(not known)"
            } else {
                &started.command
            };
            table.row(vec![
                Cell::Count((*pid).into()),
                Cell::Count(*threads),
                Cell::optional(started.rank, |rank| Cell::Count(rank.into())),
                Cell::optional(started.ended_ns, Cell::At),
                command.into(),
            ]);
        }
        report.table(table);
        report
    }

    /// Builds a row. Without a thread it is the row of all threads beyond the limit.
    fn row(&self, thread: Option<Thread>, seen: &Seen, rank: Option<u32>) -> Vec<Cell> {
        let most = seen.by_function.iter().max_by_key(|(function, ns)| (**ns, std::cmp::Reverse(**function)));
        let ms = |ns: u64| if ns > 0 { Cell::Millis(ns) } else { Cell::Missing };
        let span_ns = seen.last_ns.saturating_sub(seen.first_ns);
        vec![
            Cell::Millis(seen.cuda_ns),
            Cell::optional(thread, |_| Cell::Share(seen.cuda_ns.into(), span_ns.into())),
            ms(seen.sync_ns),
            ms(seen.driver_ns),
            Cell::Count(seen.calls),
            Cell::some(seen.launches),
            if seen.copied > 0 { Cell::Bytes(seen.copied) } else { Cell::Missing },
            Cell::some(seen.failed),
            Cell::some(seen.unfinished),
            Cell::At(seen.first_ns),
            Cell::At(seen.last_ns),
            Cell::optional(thread, |(pid, _)| Cell::Count(pid.into())),
            Cell::optional(thread, |(_, tid)| Cell::Count(tid.into())),
            Cell::optional(rank, |rank| Cell::Count(rank.into())),
            Cell::optional(most, |(function, _)| self.functions.name(*function).into()),
            Cell::optional(most, |(_, ns)| Cell::Micros(*ns)),
        ]
    }
}
