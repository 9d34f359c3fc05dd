//! `report errors`: the failed calls, the first failure, and the calls before it.

use std::collections::VecDeque;

use super::*;
use crate::figures::{ErrorWindow, FailureKind};
use crate::text::seconds;
use gpurec_trace::InFlight;
use gpurec_trace::bounds::short;

pub const KIND: Kind = kind::<Errors>("errors", "failed calls, the first failure, and what came before it")
    .table("errors", 20)
    .of_summary()
    .figures(&[shows("failures.calls", "how many calls failed", &["failed_calls"])]);

/// Number of calls shown before the first failure, and limit on threads whose calls are kept for it.
const BEFORE: usize = 8;
const MOST: usize = 65_536;
const LONGEST_ERROR: usize = 256;

/// Explanations of errors whose names do not say what to do.
const HINTS: [(i64, &str); 7] = [
    (2, "out of memory: `gpurec report memory` shows which processes held it"),
    (209, "no kernel image for this GPU: the binary was not built for its architecture"),
    (214, "an uncorrectable ECC error: a fault of the GPU, not of the program"),
    (700, "a kernel used an invalid address: run under compute-sanitizer"),
    (702, "a kernel ran longer than the watchdog allows"),
    (716, "a kernel used a misaligned address: run under compute-sanitizer"),
    (719, "a kernel crashed: run under compute-sanitizer"),
];

#[derive(Default)]
struct Errors {
    functions: Functions,
    /// The last calls of each thread; kept only until the first failure.
    before: ByProcess<u32, VecDeque<PastCall>>,
    /// The first failure and the previous calls of its thread.
    first: Option<VecDeque<PastCall>>,
}

struct PastCall {
    event: u64,
    ts_ns: u64,
    function: usize,
    duration_ns: Option<u64>,
    error: Option<Box<str>>,
    site: Option<Site>,
}

impl View for Errors {
    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin, context.stacks.site_of(line.event_id)),
            Body::End(end) => self.end(end, &context.summary),
            Body::Process(Process::Exit(exit)) => _ = self.before.ended(exit.pid),
            Body::Process(Process::Exec(exec)) => _ = self.before.ended(exec.pid),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        let figures = context.figures();
        let mut report = Report::default();
        let failures = &figures.failures;
        report.facts([
            ("failed_calls", failures.calls),
            ("handled", failures.handled),
            ("shutdown", failures.shutdown),
        ]);
        xids(&mut report, figures);
        let title = match failures.calls {
            0 => "No CUDA call failed.".to_owned(),
            n => format!("{}, by error, the first one first", plural(n, "failed call")),
        };
        kinds(&mut report, "errors", title, &failures.by_error);
        hints(&mut report, &failures.by_error);
        if failures.calls > 0 {
            self.calls_before(&mut report, context);
        }
        windows(&mut report, figures);
        beside(&mut report, figures);
        ioctls(&mut report, figures);
        unfinished(&mut report, figures);
        report
    }
}

impl Errors {
    fn begin(&mut self, line: &Line, begin: &Begin, site: Option<Site>) {
        if self.first.is_some() {
            return;
        }
        let thread = (begin.pid, begin.tid);
        let function = self.functions.index(&begin.name);
        let Some(calls) = self.before.entry(thread.0, thread.1, MOST) else { return };
        if calls.len() > BEFORE {
            calls.pop_front();
        }
        if calls.capacity() == 0 {
            // A trace may have very many threads of one call each.
            calls.reserve_exact(1);
        }
        let (event, ts_ns) = (line.event_id, line.ts_ns);
        calls.push_back(PastCall { event, ts_ns, function, duration_ns: None, error: None, site });
    }

    fn end(&mut self, end: &End, summary: &Summary) {
        if self.first.is_none() {
            let calls = self.before.get_mut(end.pid, &end.tid);
            let call = calls.and_then(|calls| calls.iter_mut().find(|call| call.event == end.begin));
            if let Some(call) = call {
                call.duration_ns = end.duration_ns;
                call.error = end.error.as_deref().map(|error| short(error, LONGEST_ERROR).into());
            }
        }
        if let (None, Some((pid, tid))) = (&self.first, summary.failures.first()) {
            let calls = std::mem::take(&mut self.before).remove(pid, &tid);
            self.first = Some(calls.unwrap_or_default());
        }
    }

    fn calls_before(&self, report: &mut Report, context: &Context) {
        let stacks = &context.stacks;
        let result = |call: &PastCall| match (&call.error, call.duration_ns) {
            (Some(error), _) => error.to_string(),
            (None, Some(_)) => "ok".to_owned(),
            (None, None) => "not yet returned".to_owned(),
        };
        report.section(
            "The last calls of its thread up to the first failure",
            Listing::new("before_first", "calls", self.first.iter().flatten())
                .at(number("At (s)", "ts_ns"), |call| call.ts_ns)
                .count(number("Event", "event"), |call| call.event)
                .micros(number("Took (us)", "duration_ns"), |call| call.duration_ns)
                .cell(text("Call", "function"), |call| self.functions.name(call.function))
                .cell(text("Result", "result"), |call| result(call))
                .cell(long("Call site", "call_site"), |call| call.site.map(|site| stacks.text(site))),
        );
    }
}

fn kinds(report: &mut Report, key: &'static str, title: String, kinds: &[FailureKind]) {
    report.title(title);
    report.table(
        Listing::new(key, "kinds", kinds)
            .count(number("Count", "count"), |kind| kind.count)
            .at(number("First at (s)", "first_ns"), |kind| kind.first_ns)
            .at(number("Last at (s)", "last_ns").minor(), |kind| kind.last_ns)
            .count(number("Code", "code"), |kind| kind.code.and_then(|code| u64::try_from(code).ok()))
            .cell(text("Error", "error"), |kind| &kind.error)
            .cell(text("Call", "function"), |kind| &kind.function)
            .bytes(number("Asked for", "asked_bytes").vital(), |kind| kind.asked_bytes)
            .cell(long("First from", "call_site"), |kind| kind.site.as_ref())
            .cell(data("api"), |kind| &kind.api)
            .cell(data("cause"), |kind| kind.cause.as_ref().map(|cause| &cause.function))
            .cell(data("cause_error"), |kind| kind.cause.as_ref().map(|cause| &cause.error)),
    );
}

fn hints(report: &mut Report, kinds: &[FailureKind]) {
    for (code, hint) in HINTS {
        if kinds.iter().any(|kind| kind.code == Some(code) && kind.api != "other") {
            report.words(format!("{code}: {hint}."));
        }
    }
}

/// Lists failed calls that are no failure of the program: handled ones and those during shutdown.
fn beside(report: &mut Report, figures: &Figures) {
    let failures = &figures.failures;
    if failures.handled > 0 {
        let handled = plural(failures.handled, "call");
        let title = format!("{handled} failed inside a call that succeeded, which handled the failure");
        kinds(report, "handled", title, &failures.handled_by_error);
    }
    if failures.shutdown > 0 {
        report.title(format!(
            "{} came after the driver was shut down: usually from libraries that clean up when the process exits, and harmless",
            plural(failures.shutdown, "call")
        ));
    }
}

/// For each context the first failure, and what was launched since the context was last known to be healthy.
fn windows(report: &mut Report, figures: &Figures) {
    report.data(
        Listing::new("windows", "windows", &figures.error_windows)
            .at(data("ts_ns"), |window| window.ts_ns)
            .count(data("pid"), |window| window.pid)
            .count(data("tid"), |window| window.tid)
            .cell(data("function"), |window| &window.function)
            .cell(data("error"), |window| &window.error)
            .cell(data("cause"), |window| window.cause.as_ref().map(|cause| &cause.function))
            .cell(data("cause_error"), |window| window.cause.as_ref().map(|cause| &cause.error))
            .count(data("begin"), |window| window.begin)
            .count(data("asynchronous"), |window| u32::from(window.asynchronous))
            .cell(data("last_sync"), |window| window.last_sync.as_ref().map(|sync| &sync.function))
            .at(data("last_sync_ns"), |window| window.last_sync.as_ref().map(|sync| sync.ts_ns))
            .count(data("launches"), |window| window.launches),
    );
    for window in &figures.error_windows {
        report.title(window_title(window));
        let since = match &window.last_sync {
            Some(sync) => format!(
                "{}, the last synchronisation that succeeded, at {} s",
                clean(&sync.function),
                seconds(sync.ts_ns)
            ),
            None => "the beginning: no synchronisation had succeeded before it".to_owned(),
        };
        let launches = plural(window.launches, "launch");
        let hint = match (window.asynchronous, window.launches) {
            (true, 1..) => ". The error comes from the device: its cause is most likely one of them",
            (true, 0) => ". The error comes from the device: its cause lies before",
            (false, _) => ". The error is of the call itself, and not of an earlier kernel",
        };
        if let Some(cause) = &window.cause {
            report.words(format!("Inside it {} returned {}.", clean(&cause.function), clean(&cause.error)));
        }
        report.words(match (window.launches, &window.last_sync) {
            (0, None) => format!("No launch before it{hint}."),
            (0, Some(_)) => format!("No launch since {since}{hint}."),
            _ => format!("{launches} since {since}{hint}."),
        });
        if window.asynchronous && !window.kernels.is_empty() {
            report.table(
                Listing::new("suspects", "kernels", &window.kernels)
                    .count(data("window_begin"), |_| window.begin)
                    .count(number("Launches", "launches"), |kernel| kernel.launches)
                    .cell(long("Kernel", "kernel"), |kernel| Cell::Kernel(kernel.kernel.clone())),
            );
        }
    }
}

fn window_title(window: &ErrorWindow) -> String {
    let context = window.context.as_ref().map(|c| format!(" in context {}", clean(c))).unwrap_or_default();
    format!(
        "First failure of pid {}{context}: {} returned {} at {} s (thread {}, event {})",
        window.pid,
        clean(&window.function),
        clean(&window.error),
        seconds(window.ts_ns),
        window.tid,
        window.begin
    )
}

fn xids(report: &mut Report, figures: &Figures) {
    let Some((count, xids)) = figures.xids().filter(|(count, _)| *count > 0) else { return };
    report.title(format!("The driver reported {} (Xid)", plural(count, "error")));
    report.table(
        Listing::new("xids", "Xids", xids)
            .at(number("At (s)", "ts_ns"), |xid| xid.ts_ns)
            .count(number("Xid", "xid"), |xid| xid.xid)
            .count(number("PID", "pid"), |xid| positive(xid.pid.into()))
            .cell(text("Device", "device"), |xid| &xid.device)
            .cell(long("Message", "message"), |xid| xid.message.trim())
            .more(count.saturating_sub(xids.len() as u64)),
    );
}

/// A call that hangs has no error yet, so the report lists unfinished calls.
fn unfinished(report: &mut Report, figures: &Figures) {
    report.fact("in_flight", figures.in_flight.len());
    let calls = plural(figures.in_flight.len() as u64, "call");
    let mut all: Vec<&InFlight> = figures.in_flight.iter().collect();
    all.sort_by_key(|call| (std::cmp::Reverse(call.duration_ns), call.begin));
    report.section(
        format!("{calls} unfinished: with the time so far, the longest first"),
        Listing::new("unfinished", "calls", all)
            .cell(text("Call", "function"), |call| &call.name)
            .millis(number("So far (ms)", "duration_ns"), |call| call.duration_ns)
            .count(number("PID", "pid"), |call| call.pid)
            .count(number("TID", "tid"), |call| call.tid)
            .count(number("Event", "event"), |call| call.begin)
            .cell(text("End", "end"), |call| call.died.then_some("its process ended in it")),
    );
}

fn ioctls(report: &mut Report, figures: &Figures) {
    if let Some(kernel) = figures.kernel_space.as_ref().filter(|kernel| kernel.failed_ioctls > 0) {
        report.fact("failed_ioctls", kernel.failed_ioctls);
        report.title(format!(
            "{} failed, too: see `gpurec report ioctl`",
            plural(kernel.failed_ioctls, "ioctl")
        ));
        report.words(
            "libcuda probes what the GPU can do, so such failures are often not errors of the program.",
        );
    }
}
