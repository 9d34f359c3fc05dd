//! `report threads`: what each thread did, sorted by time in CUDA, largest first.

use std::collections::BTreeMap;

use super::*;
use crate::failures::is_shutdown;
use gpurec_cuda::Api;
use gpurec_trace::bounds::BytesLeft;

pub const KIND: Kind = kind::<Threads>("threads", "what each thread did, and where its time went")
    .table("threads", 20)
    .figures(&[CALLS]);

/// Limits on distinct threads, and on functions of one thread.
const MOST: usize = 65_536;
const FUNCTIONS: usize = 256;
/// Limit on pairs of a thread and a function.
const PAIRS: usize = 1 << 20;

#[derive(Default)]
struct Threads {
    functions: Functions,
    calls: Calls<()>,
    threads: Sums<Thread, Activity, MOST>,
    /// Room left for functions of threads.
    left: BytesLeft<PAIRS>,
}

#[derive(Default)]
struct Activity {
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

impl View for Threads {
    fn line(&mut self, line: &Line, _: &Context) {
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
                if let Some(activity) = span.and_then(|span| self.activity(span.thread())) {
                    activity.driver_ns = activity.driver_ns.saturating_add(end.duration_ns.unwrap_or(0));
                }
            }
            Body::Transfer(transfer) if transfer.direction != "set" => {
                if let Some(activity) = self.activity((transfer.pid, transfer.tid)) {
                    activity.copied = activity.copied.saturating_add(transfer.size);
                }
            }
            Body::Process(process) => _ = self.calls.process(line.ts_ns, process),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        if self.threads.by_key.is_empty() {
            return nothing("No thread made a CUDA call in this trace.");
        }
        self.unfinished(context);
        self.report(context)
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        if figures.processes.is_empty() && figures.cost.is_none() {
            return None;
        }
        let mut report = Report::default();
        report.fact("duration_ns", figures.duration_ns);
        if let Some(cost) = &figures.cost {
            let threads = cost.threads.len() as u64 + cost.more_threads;
            report.title(format!("{} made calls, the most calls first", plural(threads, "thread")));
            let mut table = self.table(usize::MAX, Vec::new(), |_| None);
            for thread in &cost.threads {
                let rank = figures
                    .processes
                    .iter()
                    .find(|process| process.pid == thread.pid)
                    .and_then(|process| process.rank);
                table.sparse_row(&[
                    ("calls", Cell::Count(thread.calls)),
                    ("pid", Cell::Count(thread.pid.into())),
                    ("tid", Cell::Count(thread.tid.into())),
                    ("rank", rank.map(|rank| Cell::Count(rank.into())).into()),
                ]);
            }
            table.more(cost.more_threads);
            report.table(table);
        }
        report.title("Their processes");
        report.table(
            Listing::new("processes", "processes", &figures.processes)
                .count(number("PID", "pid"), |process| process.pid)
                .count(number("Calls", "calls"), |process| process.calls)
                .count(number("Rank", "rank"), |process| process.rank)
                .cell(long("Command", "command"), |process| process.command.join(" "))
                .more(figures.more_processes),
        );
        Some(report)
    }
}

impl Threads {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let thread = (begin.pid, begin.tid);
        let call = Call::new(line.event_id, line.ts_ns, begin, function, ());
        self.calls.begin(call, self.functions.bit(function));
        let activity = self.threads.of(thread);
        if activity.calls == 0 {
            activity.first_ns = line.ts_ns;
        }
        activity.calls += 1;
        activity.last_ns = line.ts_ns;
    }

    /// Returns the entry of a thread that has made a call, or the shared entry of the threads beyond `MOST`.
    fn activity(&mut self, thread: Thread) -> Option<&mut Activity> {
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
            self.functions.traits(outer.function).is_some_and(|traits| traits.api != Api::Other)
        };
        let failed = end.error.as_deref().is_some_and(|error| !is_shutdown(error))
            && !self.calls.around(parent).any(is_cuda);
        let Some(activity) = self.activity(thread) else { return };
        activity.last_ns = line.ts_ns;
        activity.failed += u64::from(failed);
        let Some(call) = call else { return };
        self.took(&call, outermost, end.duration_ns.unwrap_or(0));
        let launches = role.is_some_and(|role| role.launches() && !call.has_inside(role.bit()));
        if let Some(activity) = self.activity(thread).filter(|_| launches && tree::succeeded(end)) {
            activity.launches += 1;
        }
    }

    /// Adds the duration of a call, or its time so far if it has not returned.
    fn took(&mut self, call: &Call<()>, outermost: bool, ns: u64) {
        let role = self.functions.role(call.function);
        let mut left = self.left;
        let Some(activity) = self.activity(call.thread()) else { return };
        if outermost {
            activity.cuda_ns = activity.cuda_ns.saturating_add(ns);
            if let Some(total) = activity.by_function.get_mut(&call.function) {
                *total = total.saturating_add(ns);
            } else if activity.by_function.len() < FUNCTIONS && left.take(1) {
                activity.by_function.insert(call.function, ns);
            }
        }
        if role == Some(Role::Sync) && !call.has_inside(Role::Sync.bit()) {
            activity.sync_ns = activity.sync_ns.saturating_add(ns);
        }
        self.left = left;
    }

    fn unfinished(&mut self, context: &Context) {
        let calls = std::mem::take(&mut self.calls);
        for (call, ns) in unfinished(&calls, context).into_iter().filter(|(call, _)| !call.is_span) {
            self.took(call, calls.around(call.parent).next().is_none(), ns);
            if let Some(activity) = self.activity(call.thread()) {
                activity.last_ns = activity.last_ns.max(call.ts_ns.saturating_add(ns));
                activity.unfinished += 1;
            }
        }
        self.calls = calls;
    }

    fn report(&self, context: &Context) -> Report {
        let mut report = Report::default();
        let mut by_pid: BTreeMap<u32, u64> = BTreeMap::new();
        for (pid, _) in self.threads.by_key.keys() {
            *by_pid.entry(*pid).or_default() += 1;
        }
        let processes = plural(by_pid.len() as u64, "process");
        let others = &self.threads.others;
        let has_others = others.calls > 0;
        report.title(format!(
            "{}{} of {processes} made CUDA calls, the most time in them first",
            if has_others { "More than " } else { "" },
            plural(self.threads.by_key.len() as u64, "thread")
        ));
        report.fact("duration_ns", context.duration_ns());
        let rows = largest(&self.threads, |activity| (activity.cuda_ns, activity.calls), has_others);
        report.table(self.table(context.rows, rows, |pid| context.facts_of(pid).rank));
        report.words_if(
            has_others,
            format!(
                "Only the first {MOST} threads have rows of their own. The last row has {} of other threads, {} in CUDA; the figures below leave those threads out.",
                plural(others.calls, "call"),
                duration(others.cuda_ns)
            ),
        );
        if let Some(note) = left_out(&self.calls) {
            report.words(note);
        }
        report.words("(%) is of the time from the thread's first call to its last. Sync is part of In CUDA.");
        report.title("Their processes");
        let rows = by_pid.iter().map(|(pid, threads)| (*pid, *threads, context.facts_of(*pid)));
        report.table(
            Listing::at_most(context.rows, "processes", "processes", rows)
                .count(number("PID", "pid"), |(pid, _, _)| *pid)
                .count(number("Threads", "threads"), |(_, threads, _)| *threads)
                .count(number("Rank", "rank"), |(_, _, facts)| facts.rank)
                .at(number("Ended (s)", "ended_ns"), |(_, _, facts)| facts.ended_ns)
                .cell(long("Command", "command"), |(_, _, facts)| match facts.command.as_str() {
                    "" => "(not known)".to_owned(),
                    command => command.to_owned(),
                }),
        );
        report
    }

    /// The table of threads. The row without a thread is that of all threads beyond the limit.
    fn table(
        &self,
        most: usize,
        rows: Vec<(Option<&Thread>, &Activity)>,
        rank: impl Fn(u32) -> Option<u32>,
    ) -> Table {
        Listing::at_most(most, "threads", "threads", rows)
            .millis(number("In CUDA (ms)", "cuda_ns"), |(_, activity)| activity.cuda_ns)
            .share(number("(%)", "cuda_percent"), |(thread, activity)| {
                thread.map(|_| (activity.cuda_ns, activity.last_ns.saturating_sub(activity.first_ns)))
            })
            .millis(number("Sync (ms)", "sync_ns"), |(_, activity)| positive(activity.sync_ns))
            .millis(number("Driver (ms)", "driver_ns"), |(_, activity)| positive(activity.driver_ns))
            .count(number("Calls", "calls"), |(_, activity)| activity.calls)
            .count(number("Launches", "launches"), |(_, activity)| positive(activity.launches))
            .bytes(number("Copied", "copied_bytes"), |(_, activity)| positive(activity.copied))
            .count(number("Failed", "failed").vital(), |(_, activity)| positive(activity.failed))
            .count(number("Unfinished", "unfinished"), |(_, activity)| positive(activity.unfinished))
            .at(number("First (s)", "first_ns").minor(), |(_, activity)| activity.first_ns)
            .at(number("Last (s)", "last_ns").minor(), |(_, activity)| activity.last_ns)
            .count(number("PID", "pid"), |(thread, _)| thread.map(|thread| thread.0))
            .count(number("TID", "tid").vital(), |(thread, _)| thread.map(|thread| thread.1))
            .count(data("rank"), |(thread, _)| thread.and_then(|thread| rank(thread.0)))
            .cell(text("Most time in", "most_time_in"), |(_, activity)| {
                activity.most().map(|(function, _)| self.functions.name(function))
            })
            .micros(data("most_time_ns"), |(_, activity)| activity.most().map(|(_, ns)| ns))
            .into()
    }
}

impl Activity {
    /// The function with the most time.
    fn most(&self) -> Option<(usize, u64)> {
        let functions = self.by_function.iter().map(|(function, ns)| (*function, *ns));
        functions.max_by_key(|(function, ns)| (*ns, std::cmp::Reverse(*function)))
    }
}
