//! `report errors`: the failed calls, the first failure, and the calls before it.

use std::collections::VecDeque;

use super::calls::Functions;
use super::output::Report;
use super::{ReportConfig, Told, View};
use crate::Summary;
use crate::by_process::ByProcess;
use crate::figures::{ErrorWindow, FailureCause, FailureKind, Figures};
use crate::table::{Cell, Column, Table, data, long, number, text};
use crate::text::{clean, plural, seconds};
use gpurec_trace::bounds::short;
use gpurec_trace::{Begin, Body, End, InFlight, Line, Process};

const KINDS: &[Column] = &[
    number("Count", "count"),
    number("First at (s)", "first_ns"),
    number("Last at (s)", "last_ns").minor(),
    number("Code", "code"),
    text("Error", "error"),
    text("Call", "function"),
    number("Asked for", "asked_bytes").vital(),
    data("api"),
    data("cause"),
    data("cause_error"),
];

const WINDOWS: &[Column] = &[
    number("", "ts_ns"),
    number("", "pid"),
    number("", "tid"),
    text("", "function"),
    text("", "error"),
    text("", "cause"),
    text("", "cause_error"),
    number("", "begin"),
    number("", "asynchronous"),
    text("", "last_sync"),
    number("", "last_sync_ns"),
    number("", "launches"),
];

const SUSPECTS: &[Column] = &[data("window_begin"), number("Launches", "launches"), long("Kernel", "kernel")];

const CALLS: &[Column] = &[
    number("At (s)", "ts_ns"),
    number("Event", "event"),
    number("Took (us)", "duration_ns"),
    text("Call", "function"),
    text("Result", "result"),
];

const OPEN: &[Column] = &[
    text("Call", "function"),
    number("So far (ms)", "duration_ns"),
    number("PID", "pid"),
    number("TID", "tid"),
    number("Event", "event"),
    text("End", "end"),
];

const XIDS: &[Column] = &[
    number("At (s)", "ts_ns"),
    number("Xid", "xid"),
    number("PID", "pid"),
    text("Device", "device"),
    long("Message", "message"),
];

/// Number of calls shown before the first failure, and limit on threads whose calls are kept for it.
const BEFORE: usize = 8;
const MOST: usize = 65_536;
const LONGEST_ERROR: usize = 256;

/// Explanations of errors whose names do not say what to do.
const HINTS: [(i64, &str); 7] = [
    (2, "out of memory: `gpurec report memory` says who held it"),
    (209, "no kernel image for this GPU: the binary was not built for its architecture"),
    (214, "an uncorrectable ECC error: the GPU, not the program"),
    (700, "a kernel used an address that is not its own: run under compute-sanitizer"),
    (702, "a kernel ran longer than the watchdog lets it"),
    (716, "a kernel used a misaligned address: run under compute-sanitizer"),
    (719, "a kernel crashed: run under compute-sanitizer"),
];

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Errors::default())
}

#[derive(Default)]
struct Errors {
    summary: Summary,
    functions: Functions,
    /// The last calls of each thread; kept only until the first failure.
    before: ByProcess<u32, VecDeque<Past>>,
    /// The first failure and the previous calls of its thread.
    first: Option<VecDeque<Past>>,
}

struct Past {
    event: u64,
    ts_ns: u64,
    function: usize,
    duration_ns: Option<u64>,
    error: Option<Box<str>>,
}

impl View for Errors {
    fn line(&mut self, line: &Line) {
        self.summary.add(line);
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(end),
            Body::Process(Process::Exit(exit)) => self.ended(exit.pid),
            Body::Process(Process::Exec(exec)) => self.ended(exec.pid),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        let figures = self.summary.of_file(&told.notes);
        let mut report = Report::default();
        let failures = &figures.failures;
        report.fact("failed_calls", failures.calls);
        report.fact("handled", failures.handled);
        report.fact("shutdown", failures.shutdown);
        xids(&mut report, &figures);
        let title = match failures.calls {
            0 => "No CUDA call failed.".to_owned(),
            n => format!("{}, by error, the first one first", plural(n, "failed call")),
        };
        kinds(&mut report, "errors", title, &failures.by_error);
        hints(&mut report, &failures.by_error);
        if failures.calls > 0 {
            self.calls_before(&mut report);
        }
        windows(&mut report, &figures);
        beside(&mut report, &figures);
        ioctls(&mut report, &figures);
        unfinished(&mut report, &figures);
        report
    }
}

impl Errors {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        if self.first.is_some() {
            return;
        }
        let thread = (begin.pid, begin.tid);
        let function = self.functions.index(&begin.name);
        let Some(calls) = self.before.entry(thread.0, thread.1, MOST) else { return };
        if calls.len() > BEFORE {
            calls.pop_front();
        }
        let (event, ts_ns) = (line.event_id, line.ts_ns);
        calls.push_back(Past { event, ts_ns, function, duration_ns: None, error: None });
    }

    fn end(&mut self, end: &End) {
        if self.first.is_none() {
            let calls = self.before.get_mut(end.pid, &end.tid);
            let call = calls.and_then(|calls| calls.iter_mut().find(|call| call.event == end.begin));
            if let Some(call) = call {
                call.duration_ns = end.duration_ns;
                call.error = end.error.as_deref().map(|error| short(error, LONGEST_ERROR).into());
            }
        }
        if let (None, Some((pid, tid))) = (&self.first, self.summary.failures.first()) {
            let calls = std::mem::take(&mut self.before).remove(pid, &tid);
            self.first = Some(calls.unwrap_or_default());
        }
    }

    fn ended(&mut self, pid: u32) {
        self.before.ended(pid);
    }

    fn calls_before(&self, report: &mut Report) {
        let Some(first) = self.first.as_ref().filter(|calls| !calls.is_empty()) else { return };
        report.title("The last calls of its thread up to the first failure");
        let mut table = Table::new("before_first", "calls", CALLS);
        for call in first {
            let result = match (&call.error, call.duration_ns) {
                (Some(error), _) => error.as_ref(),
                (None, Some(_)) => "ok",
                (None, None) => "not yet returned",
            };
            table.row(vec![
                Cell::At(call.ts_ns),
                Cell::Count(call.event),
                Cell::optional(call.duration_ns, Cell::Micros),
                self.functions.name(call.function).into(),
                result.into(),
            ]);
        }
        report.table(table);
    }
}

fn kinds(report: &mut Report, key: &'static str, title: String, kinds: &[FailureKind]) {
    report.title(title);
    let mut table = Table::new(key, "kinds", KINDS);
    let of = |cause: &Option<FailureCause>, part: fn(&FailureCause) -> &str| {
        Cell::optional(cause.as_ref(), |cause| part(cause).into())
    };
    for kind in kinds {
        table.row(vec![
            Cell::Count(kind.count),
            Cell::At(kind.first_ns),
            Cell::At(kind.last_ns),
            Cell::optional(kind.code.and_then(|code| u64::try_from(code).ok()), Cell::Count),
            kind.error.as_str().into(),
            kind.function.as_str().into(),
            Cell::optional(kind.asked_bytes, Cell::Bytes),
            kind.api.as_str().into(),
            of(&kind.cause, |cause| &cause.function),
            of(&kind.cause, |cause| &cause.error),
        ]);
    }
    report.table(table);
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
            "{} came after the driver was shut down: as a rule libraries that clean up at the exit of the process, and harmless",
            plural(failures.shutdown, "call")
        ));
    }
}

/// For each context the first failure, and what was launched since the context was last known to be healthy.
fn windows(report: &mut Report, figures: &Figures) {
    let mut data = Table::new("windows", "windows", WINDOWS);
    for window in &figures.error_windows {
        data.row(vec![
            Cell::At(window.ts_ns),
            Cell::Count(window.pid.into()),
            Cell::Count(window.tid.into()),
            window.function.as_str().into(),
            window.error.as_str().into(),
            Cell::optional(window.cause.as_ref(), |cause| cause.function.as_str().into()),
            Cell::optional(window.cause.as_ref(), |cause| cause.error.as_str().into()),
            Cell::Count(window.begin),
            Cell::Count(u64::from(window.asynchronous)),
            Cell::optional(window.last_sync.as_ref(), |sync| sync.function.as_str().into()),
            Cell::optional(window.last_sync.as_ref(), |sync| Cell::At(sync.ts_ns)),
            Cell::Count(window.launches),
        ]);
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
        let mut table = Table::new("suspects", "kernels", SUSPECTS);
        for kernel in window.kernels.iter().filter(|_| window.asynchronous) {
            let name = Cell::Kernel(kernel.kernel.clone());
            table.row(vec![Cell::Count(window.begin), Cell::Count(kernel.launches), name]);
        }
        if !table.is_empty() {
            report.table(table);
        }
    }
    report.data(data);
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
    let Some(kernel) = figures.kernel_space.as_ref().filter(|kernel| kernel.xid_count > 0) else { return };
    report.title(format!("The driver reported {} (Xid)", plural(kernel.xid_count, "error")));
    let mut table = Table::new("xids", "Xids", XIDS);
    for xid in &kernel.xids {
        table.row(vec![
            Cell::At(xid.ts_ns),
            Cell::Count(xid.xid.into()),
            Cell::some(xid.pid.into()),
            xid.device.as_str().into(),
            xid.message.trim().into(),
        ]);
    }
    table.more(kernel.xid_count.saturating_sub(kernel.xids.len() as u64));
    report.table(table);
}

/// A call that hangs has no error yet, so the report lists unfinished calls.
fn unfinished(report: &mut Report, figures: &Figures) {
    report.fact("in_flight", figures.in_flight.len());
    if figures.in_flight.is_empty() {
        return;
    }
    let calls = plural(figures.in_flight.len() as u64, "call");
    report.title(format!("{calls} unfinished: with the time so far, the longest first"));
    let mut table = Table::new("unfinished", "calls", OPEN);
    let mut all: Vec<&InFlight> = figures.in_flight.iter().collect();
    all.sort_by_key(|call| (std::cmp::Reverse(call.duration_ns), call.begin));
    for call in all {
        table.row(vec![
            call.name.as_str().into(),
            Cell::Millis(call.duration_ns),
            Cell::Count(call.pid.into()),
            Cell::Count(call.tid.into()),
            Cell::Count(call.begin),
            if call.died { "its process ended in it".into() } else { Cell::Missing },
        ]);
    }
    report.table(table);
}

fn ioctls(report: &mut Report, figures: &Figures) {
    if let Some(kernel) = figures.kernel_space.as_ref().filter(|kernel| kernel.failed_ioctls > 0) {
        report.fact("failed_ioctls", kernel.failed_ioctls);
        report.title(format!(
            "{} failed, too: see `gpurec report ioctl`",
            plural(kernel.failed_ioctls, "ioctl")
        ));
        report.words(
            "A driver probes for what the GPU can do: such failures are often no error of the program's.",
        );
    }
}
