//! `report sync`: which threads wait for the GPU, for what, and how long. A wait counts once, at the innermost level
//! seen, as in the summary. A copy that blocks its caller has its own table, since it is not a synchronisation call.

use std::collections::HashSet;

use super::calls::{Functions, Thread, handle, left_out, unfinished};
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::by_process::ByProcess;
use crate::histogram::Histogram;
use crate::table::{Cell, Column, Table, data, long, number, text};
use crate::tally::Role;
use crate::text::{duration, of_them_unfinished, plural};
use gpurec_cuda::traits::Mark;
use gpurec_trace::bounds::Sums;
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{Begin, Body, End, Line, Process, Transfer};

const WAITS: &[Column] = &[
    number("Waited (ms)", "total_ns"),
    number("(%)", "total_percent"),
    number("Waits", "waits").vital(),
    number("Unfinished", "unfinished"),
    number("Avg (us)", "avg_ns"),
    data("med_ns"),
    number("Max (us)", "max_ns"),
    data("max_begin"),
    data("pid"),
    number("Thread", "tid"),
    long("Call", "call"),
    data("innermost"),
    long("Waits for", "target"),
    data("stream"),
    long("Submitted last", "last_submitted"),
];

const COPIES: &[Column] = &[
    number("Waited (ms)", "total_ns"),
    number("Waits", "waits"),
    number("Avg (us)", "avg_ns"),
    number("Max (us)", "max_ns"),
    number("Bytes", "bytes"),
    number("Thread", "tid"),
    data("pid"),
    text("Direction", "direction"),
    text("Call", "function"),
];

/// Limit on distinct kinds of waits, streams and events; the rest share one row.
const MOST: usize = 65_536;
/// Longest name of a direction, in bytes.
const LONGEST: usize = 64;

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Syncs::default())
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    /// All work of the context.
    All,
    Stream(u64),
    /// An event, with the stream on which it was recorded, if known.
    Event(u64, Option<u64>),
}

impl Target {
    fn stream(self) -> Option<u64> {
        match self {
            Target::All | Target::Event(_, None) => None,
            Target::Stream(stream) | Target::Event(_, Some(stream)) => Some(stream),
        }
    }

    fn named(self) -> String {
        match self {
            Target::All => "all streams".to_owned(),
            Target::Stream(0) => "the default stream".to_owned(),
            Target::Stream(1) => "the legacy stream".to_owned(),
            Target::Stream(2) => "the thread's stream".to_owned(),
            Target::Stream(stream) => format!("stream {stream:#x}"),
            Target::Event(event, _) => format!("event {event:#x}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    thread: Thread,
    function: usize,
    outermost: usize,
    target: Target,
    /// The function or kernel submitted last to the target.
    last: Option<usize>,
}

#[derive(Default)]
struct Waited {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    max_begin: u64,
    all: Histogram,
    bytes: u64,
    /// Waits that have not ended.
    unfinished: u64,
}

impl Waited {
    fn add(&mut self, ns: u64, begin: u64) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.all.add(ns);
        if ns >= self.max_ns {
            (self.max_ns, self.max_begin) = (ns, begin);
        }
    }
}

#[derive(Default)]
struct Syncs {
    functions: Functions,
    open: Calls<Option<Target>>,
    waits: Sums<Key, Waited, MOST>,
    copies: Sums<(Thread, usize, Box<str>), Waited, MOST>,
    /// The last work of each process: by stream, and under None over all its streams.
    last: ByProcess<Option<u64>, usize>,
    recorded: ByProcess<u64, u64>,
    calls: u64,
    total_ns: u64,
    unfinished: u64,
}

impl View for Syncs {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(end),
            Body::Transfer(transfer) => self.transfer(transfer),
            Body::Process(process) => self.process(line.ts_ns, process),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        self.unfinished(told);
        if self.waits.by_key.is_empty() && self.copies.by_key.is_empty() {
            return nothing("No call waited for the GPU in this trace.");
        }
        self.report()
    }

    fn of_figures(&mut self, figures: &Figures, _: &Told) -> Option<Report> {
        let sync = &figures.sync;
        let mut report = Report::default();
        report.fact("waits", sync.calls);
        report.fact("waited_ns", sync.total_ns);
        report.fact("unfinished", sync.unfinished);
        report.title(format!(
            "Waited for the GPU: {} in {}{}",
            duration(sync.total_ns),
            plural(sync.calls, "call"),
            of_them_unfinished(sync.unfinished)
        ));
        let mut table = Table::new("waiters", "functions", WAITS);
        for one in &sync.by_function {
            let known = figures.functions.iter().find(|f| f.name == one.name);
            table.sparse_row(&[
                ("total_ns", Cell::Millis(one.total_ns)),
                ("total_percent", Cell::Share(one.total_ns.into(), sync.total_ns.into())),
                ("waits", Cell::Count(one.calls)),
                ("unfinished", Cell::some(one.unfinished)),
                ("avg_ns", Cell::optional(one.total_ns.checked_div(one.calls), Cell::Micros)),
                ("med_ns", Cell::optional(known, |f| Cell::Micros(f.med_ns))),
                ("max_ns", Cell::optional(known, |f| Cell::Micros(f.max_ns))),
                ("call", one.name.as_str().into()),
                ("innermost", one.name.as_str().into()),
            ]);
        }
        report.table(table);
        report.words("By function: a wait inside another, as cuStreamSynchronize in cudaStreamSynchronize, is in the rows of both.");
        Some(report)
    }
}

impl Syncs {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let role = self.functions.role(function);
        let of = (role == Some(Role::Sync)).then(|| self.target(begin));
        self.submitted(begin, function);
        let call = Call::new(line.event_id, line.ts_ns, begin, function, of);
        self.open.begin(call, role.map_or(0, Role::bit));
    }

    fn target(&self, begin: &Begin) -> Target {
        if let Some(event) = handle(&begin.args, &["hEvent", "event"]) {
            return Target::Event(event, self.recorded.get(begin.pid, &event).copied());
        }
        match handle(&begin.args, &["hStream", "stream"]) {
            Some(stream) => Target::Stream(stream),
            None => Target::All,
        }
    }

    /// Remembers what a call submits to a stream: kernels by name, copies and sets by their call, and recorded events.
    fn submitted(&mut self, begin: &Begin, function: usize) {
        let Some(facts) = self.functions.get(function) else { return };
        let is_async = facts.traits.is(Mark::Async);
        let is_record = facts.traits.is(Mark::Record);
        if !is_async && !is_record {
            return;
        }
        let of_launch = begin.launch.as_ref().and_then(|launch| launch.stream);
        let Some(stream) = of_launch.or_else(|| handle(&begin.args, &["hStream", "stream"])) else { return };
        if is_record {
            if let Some(event) = handle(&begin.args, &["hEvent", "event"])
                && let Some(recorded) = self.recorded.entry(begin.pid, event, MOST)
            {
                *recorded = stream;
            }
            return;
        }
        let kernel = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
        let what = kernel.map_or(function, |kernel| self.functions.index(kernel));
        for key in [Some(stream), None] {
            if let Some(last) = self.last.entry(begin.pid, key, MOST) {
                *last = what;
            }
        }
    }

    fn end(&mut self, end: &End) {
        let Some(call) = self.open.end(end.begin, end.duration_ns) else { return };
        let outermost = self.open.around(call.parent).last().map_or(call.function, |outer| outer.function);
        self.waited(&call, outermost, end.duration_ns.unwrap_or(0));
    }

    fn waited(&mut self, call: &Call<Option<Target>>, outermost: usize, ns: u64) -> Option<&mut Waited> {
        let target = call.of.filter(|_| !call.has_inside(Role::Sync.bit()))?;
        self.calls += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        let last = self.last.get(call.pid, &target.stream()).copied();
        let key = Key { thread: call.thread(), function: call.function, outermost, target, last };
        let waited = self.waits.of(key);
        waited.add(ns, call.id);
        Some(waited)
    }

    /// Counts waits that have not ended, with their time so far.
    fn unfinished(&mut self, told: &Told) {
        let calls = std::mem::take(&mut self.open);
        for (call, ns) in unfinished(&calls, told) {
            let outermost = calls.around(call.parent).last().map_or(call.function, |outer| outer.function);
            if let Some(waited) = self.waited(call, outermost, ns) {
                waited.unfinished += 1;
                self.unfinished += 1;
            }
        }
        self.open = calls;
    }

    fn transfer(&mut self, transfer: &Transfer) {
        let Some(ns) = transfer.duration_ns else { return };
        let function = self.functions.index(&transfer.name);
        let direction =
            if transfer.direction.len() < LONGEST { transfer.direction.as_ref() } else { "others" };
        let key = ((transfer.pid, transfer.tid), function, Box::from(direction));
        let waited = self.copies.of(key);
        waited.add(ns, transfer.begin);
        waited.bytes = waited.bytes.saturating_add(transfer.size);
    }

    fn process(&mut self, ts_ns: u64, process: &Process) {
        if let Some(pid) = self.open.process(ts_ns, process) {
            self.last.ended(pid);
            self.recorded.ended(pid);
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::default();
        report.fact("waits", self.calls);
        report.fact("waited_ns", self.total_ns);
        report.fact("unfinished", self.unfinished);
        let threads: HashSet<Thread> = self.waits.by_key.keys().map(|key| key.thread).collect();
        report.title(format!(
            "Waited for the GPU: {} in {} of {}{}{}",
            duration(self.total_ns),
            plural(self.calls, "call"),
            if self.waits.others.count > 0 { "at least " } else { "" },
            plural(threads.len() as u64, "thread"),
            of_them_unfinished(self.unfinished)
        ));
        let mut all: Vec<(&Key, &Waited)> = self.waits.by_key.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.total_ns, y.count, *a).cmp(&(x.total_ns, x.count, *b)));
        let mut table = Table::new("waiters", "sorts of waits", WAITS);
        for (key, waited) in all {
            table.row(self.row(Some(key), waited));
        }
        let others = &self.waits.others;
        if others.count > 0 {
            table.row(self.row(None, others));
        }
        report.table(table);
        if others.count > 0 {
            report.words(format!(
                "Only the first {MOST} kinds of waits have rows of their own. The row `others` has {} of other kinds, {}.",
                plural(others.count, "wait"),
                duration(others.total_ns)
            ));
        }
        if let Some(said) = left_out(&self.open) {
            report.words(said);
        }
        if !self.waits.by_key.is_empty() {
            report.words(
                "A wait inside another, as cuStreamSynchronize in cudaStreamSynchronize, counts once, with the inner one's time. Submitted last: what the process gave last to what is waited for; the wait is for that and all before it.",
            );
        }
        if self.unfinished > 0 {
            report.words("Unfinished waits had not ended when the recording, or their process, did: they count with their time so far.");
        }
        self.copies(&mut report);
        report
    }

    /// Builds a row. Without a key it is the row of all waits beyond the limit.
    fn row(&self, key: Option<&Key>, waited: &Waited) -> Vec<Cell> {
        let name =
            |function: fn(&Key) -> usize| key.map_or("others", |key| self.functions.name(function(key)));
        let stream = key.and_then(|key| key.target.stream());
        let last = key.and_then(|key| key.last);
        vec![
            Cell::Millis(waited.total_ns),
            Cell::Share(waited.total_ns.into(), self.total_ns.into()),
            Cell::Count(waited.count),
            Cell::some(waited.unfinished),
            Cell::optional(waited.total_ns.checked_div(waited.count), Cell::Micros),
            Cell::Micros(waited.all.median().min(waited.max_ns)),
            Cell::Micros(waited.max_ns),
            Cell::Count(waited.max_begin),
            Cell::optional(key, |key| Cell::Count(key.thread.0.into())),
            Cell::optional(key, |key| Cell::Count(key.thread.1.into())),
            name(|key| key.outermost).into(),
            name(|key| key.function).into(),
            Cell::optional(key, |key| Cell::Text(key.target.named())),
            Cell::optional(stream, |stream| Cell::Text(format!("{stream:#x}"))),
            Cell::optional(last, |last| Cell::Kernel(self.functions.name(last).to_owned())),
        ]
    }

    fn copies(&self, report: &mut Report) {
        if self.copies.by_key.is_empty() {
            return;
        }
        report.title("Copies that their call waited for, beside these");
        let mut table = Table::new("copies", "sorts of copies", COPIES);
        let mut all: Vec<_> = self.copies.by_key.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.total_ns, y.count, *a).cmp(&(x.total_ns, x.count, *b)));
        let named = all.into_iter().map(|(key, waited)| (Some(key), waited));
        let others = Some((None, &self.copies.others)).filter(|(_, others)| others.count > 0);
        for (key, waited) in named.chain(others) {
            table.row(vec![
                Cell::Millis(waited.total_ns),
                Cell::Count(waited.count),
                Cell::optional(waited.total_ns.checked_div(waited.count), Cell::Micros),
                Cell::Micros(waited.max_ns),
                Cell::Bytes(waited.bytes),
                Cell::optional(key, |(thread, _, _)| Cell::Count(thread.1.into())),
                Cell::optional(key, |(thread, _, _)| Cell::Count(thread.0.into())),
                Cell::optional(key, |(_, _, direction)| direction.as_ref().into()),
                key.map_or("others", |(_, function, _)| self.functions.name(*function)).into(),
            ]);
        }
        report.table(table);
        let others = &self.copies.others;
        if others.count > 0 {
            report.words(format!(
                "Only the first {MOST} kinds of copies have rows of their own. The row `others` has {} of other kinds, {}.",
                others.count,
                duration(others.total_ns)
            ));
        }
    }
}
