//! `report sync`: which threads wait for the GPU, for what, and how long. A wait counts once, at the innermost level
//! seen, as in the summary. A copy that blocks its caller has its own table, since it is not a synchronisation call.

use std::collections::HashSet;

use super::*;
use crate::text::of_them_unfinished;
use gpurec_cuda::traits::Mark;

pub const KIND: Kind = kind::<Syncs>("sync", "which calls wait for the GPU, for what, and how long")
    .table("waiters", 20)
    .figures(&[shows("sync.total_ns", "how long calls waited for the GPU", &["waits", "waited_ns"])]);

/// Limit on distinct kinds of waits, streams and events; the rest share one row.
const MOST: usize = 65_536;
/// Longest name of a direction, in bytes.
const LONGEST: usize = 64;

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

    fn text(self) -> String {
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
    site: Option<Site>,
}

/// The waits of one kind.
#[derive(Default)]
struct Waits {
    time: Durations,
    longest_begin: u64,
    bytes: u64,
    /// Waits that have not ended.
    unfinished: u64,
}

impl Waits {
    fn add(&mut self, ns: u64, begin: u64) {
        if ns >= self.time.max {
            self.longest_begin = begin;
        }
        self.time.add(ns);
    }

    fn size(&self) -> (u64, u64) {
        (self.time.total(), self.time.count)
    }

    fn average(&self) -> Option<u64> {
        self.time.total().checked_div(self.time.count)
    }
}

#[derive(Default)]
struct Syncs {
    functions: Functions,
    open: Calls<Option<Target>>,
    waits: Sums<Key, Waits, MOST>,
    copies: Sums<(Thread, usize, Box<str>, Option<Site>), Waits, MOST>,
    /// The last work of each process: by stream, and under None over all its streams.
    last: ByProcess<Option<u64>, usize>,
    recorded: ByProcess<u64, u64>,
    calls: u64,
    total_ns: u64,
    unfinished: u64,
}

impl View for Syncs {
    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(end, context.stacks.site_of(end.begin)),
            Body::Transfer(transfer) => self.transfer(transfer, context.stacks.site_of(transfer.begin)),
            Body::Process(process) => self.process(line.ts_ns, process),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        self.unfinished(context);
        if self.waits.by_key.is_empty() && self.copies.by_key.is_empty() {
            return nothing("No call waited for the GPU in this trace.");
        }
        self.report(context)
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let sync = &figures.sync;
        let mut report = Report::default();
        report.facts(facts(sync.calls, sync.total_ns, sync.unfinished));
        report.title(format!(
            "Waited for the GPU: {} in {}{}",
            duration(sync.total_ns),
            plural(sync.calls, "call"),
            of_them_unfinished(sync.unfinished)
        ));
        let mut table = self.waiters(("functions", usize::MAX), Vec::new(), &Stacks::default());
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
        let Some(traits) = self.functions.traits(function) else { return };
        let (is_async, is_record) = (traits.is(Mark::Async), traits.is(Mark::Record));
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

    fn end(&mut self, end: &End, site: Option<Site>) {
        let Some(call) = self.open.end(end.begin, end.duration_ns) else { return };
        let outermost = self.open.around(call.parent).last().map_or(call.function, |outer| outer.function);
        self.waited(&call, outermost, end.duration_ns.unwrap_or(0), site);
    }

    fn waited(
        &mut self,
        call: &Call<Option<Target>>,
        outermost: usize,
        ns: u64,
        site: Option<Site>,
    ) -> Option<&mut Waits> {
        let target = call.of.filter(|_| !call.has_inside(Role::Sync.bit()))?;
        self.calls += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        let last = self.last.get(call.pid, &target.stream()).copied();
        let key = Key { thread: call.thread(), function: call.function, outermost, target, last, site };
        let waited = self.waits.of(key);
        waited.add(ns, call.id);
        Some(waited)
    }

    /// Counts waits that have not ended, with their time so far.
    fn unfinished(&mut self, context: &Context) {
        let calls = std::mem::take(&mut self.open);
        for (call, ns) in unfinished(&calls, context) {
            let outermost = calls.around(call.parent).last().map_or(call.function, |outer| outer.function);
            let site = context.stacks.site_of(call.id);
            if let Some(waited) = self.waited(call, outermost, ns, site) {
                waited.unfinished += 1;
                self.unfinished += 1;
            }
        }
        self.open = calls;
    }

    fn transfer(&mut self, transfer: &Transfer, site: Option<Site>) {
        let Some(ns) = transfer.duration_ns else { return };
        let function = self.functions.index(&transfer.name);
        let direction =
            if transfer.direction.len() < LONGEST { transfer.direction.as_ref() } else { "others" };
        let key = ((transfer.pid, transfer.tid), function, Box::from(direction), site);
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

    fn report(&self, context: &Context) -> Report {
        let stacks = &context.stacks;
        let mut report = Report::default();
        report.facts(facts(self.calls, self.total_ns, self.unfinished));
        let threads: HashSet<Thread> = self.waits.by_key.keys().map(|key| key.thread).collect();
        report.title(format!(
            "Waited for the GPU: {} in {} of {}{}{}",
            duration(self.total_ns),
            plural(self.calls, "call"),
            if self.waits.others.time.count > 0 { "at least " } else { "" },
            plural(threads.len() as u64, "thread"),
            of_them_unfinished(self.unfinished)
        ));
        let others = &self.waits.others;
        let has_others = others.time.count > 0;
        let rows = largest(&self.waits, Waits::size, has_others);
        report.table(self.waiters(("sorts of waits", context.rows), rows, stacks));
        note_others(&mut report, "waits", plural(others.time.count, "wait"), others);
        if let Some(note) = left_out(&self.open) {
            report.words(note);
        }
        report.words_if(
            !self.waits.by_key.is_empty(),
            "A wait inside another, as cuStreamSynchronize in cudaStreamSynchronize, counts once, with the inner one's time. Submitted last: the last work that the process submitted to what the call waits for; the call waits for that and all work before it.",
        );
        report.words_if(
            self.unfinished > 0,
            "Unfinished waits had not ended when the recording, or their process, did: they count with their time so far.",
        );
        self.copies(&mut report, context.rows, stacks);
        report
    }

    /// The table of waits. The row without a key is that of all waits beyond the limit.
    fn waiters(
        &self,
        (what, most): (&'static str, usize),
        rows: Vec<(Option<&Key>, &Waits)>,
        stacks: &Stacks,
    ) -> Table {
        let name = |function: Option<usize>| function.map_or("others", |number| self.functions.name(number));
        let kernel = |number: usize| Cell::Kernel(self.functions.name(number).to_owned());
        Listing::at_most(most, "waiters", what, rows)
            .millis(number("Waited (ms)", "total_ns"), |(_, waits)| waits.time.total())
            .share(number("(%)", "total_percent"), |(_, waits)| Some((waits.time.total(), self.total_ns)))
            .count(number("Waits", "waits").vital(), |(_, waits)| waits.time.count)
            .count(number("Unfinished", "unfinished"), |(_, waits)| positive(waits.unfinished))
            .micros(number("Avg (us)", "avg_ns"), |(_, waits)| waits.average())
            .micros(data("med_ns"), |(_, waits)| waits.time.all.median().min(waits.time.max))
            .micros(number("Max (us)", "max_ns"), |(_, waits)| waits.time.max)
            .count(data("max_begin"), |(_, waits)| waits.longest_begin)
            .count(data("pid"), |(key, _)| key.map(|key| key.thread.0))
            .count(number("Thread", "tid"), |(key, _)| key.map(|key| key.thread.1))
            .cell(long("Call", "call"), |(key, _)| name(key.map(|key| key.outermost)))
            .cell(data("innermost"), |(key, _)| name(key.map(|key| key.function)))
            .cell(long("Waits for", "target"), |(key, _)| key.map(|key| key.target.text()))
            .cell(data("stream"), |(key, _)| {
                key.and_then(|key| key.target.stream()).map(|stream| format!("{stream:#x}"))
            })
            .cell(long("Submitted last", "last_submitted"), |(key, _)| {
                key.and_then(|key| key.last).map(kernel)
            })
            .cell(long("Call site", "call_site"), |(key, _)| Some(stacks.text(key.as_ref()?.site?)))
            .into()
    }

    fn copies(&self, report: &mut Report, most: usize, stacks: &Stacks) {
        let others = &self.copies.others;
        let has_others = others.time.count > 0;
        report.section(
            "Copies that their call waited for, beside these",
            Listing::at_most(
                most,
                "copies",
                "sorts of copies",
                largest(&self.copies, Waits::size, has_others),
            )
            .millis(number("Waited (ms)", "total_ns"), |(_, waits)| waits.time.total())
            .count(number("Waits", "waits"), |(_, waits)| waits.time.count)
            .micros(number("Avg (us)", "avg_ns"), |(_, waits)| waits.average())
            .micros(number("Max (us)", "max_ns"), |(_, waits)| waits.time.max)
            .bytes(number("Bytes", "bytes"), |(_, waits)| waits.bytes)
            .count(number("Thread", "tid"), |(key, _)| key.map(|(thread, ..)| thread.1))
            .count(data("pid"), |(key, _)| key.map(|(thread, ..)| thread.0))
            .cell(text("Direction", "direction"), |(key, _)| key.map(|(_, _, direction, _)| direction))
            .cell(text("Call", "function"), |(key, _)| {
                key.map_or("others", |(_, function, ..)| self.functions.name(*function))
            })
            .cell(long("Call site", "call_site"), |(key, _)| Some(stacks.text(key.as_ref()?.3?))),
        );
        note_others(report, "copies", others.time.count.to_string(), others);
    }
}

fn note_others(report: &mut Report, kind: &str, count: String, others: &Waits) {
    let time = duration(others.time.total());
    report.words_if(
        others.time.count > 0,
        format!("Only the first {MOST} kinds of {kind} have rows of their own. The row `others` has {count} of other kinds, {time}."),
    );
}

fn facts(waits: u64, waited_ns: u64, unfinished: u64) -> [(&'static str, u64); 3] {
    [("waits", waits), ("waited_ns", waited_ns), ("unfinished", unfinished)]
}
