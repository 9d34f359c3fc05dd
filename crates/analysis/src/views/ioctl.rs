//! `report ioctl`: requests to nvidia.ko, by request and RM command or class, and the CUDA calls that made them.

use std::collections::HashMap;

use super::calls::Functions;
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Summary;
use crate::driver_figures::{KernelSpace, RequestSeen};
use crate::table::{Cell, Column, Table, long, number, text};
use crate::text::{duration, plural};
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{Body, Line};

const REQUESTS: &[Column] = &[
    number("Time (%)", "time_percent"),
    number("Total (us)", "total_ns"),
    number("Calls", "calls"),
    number("Avg (us)", "avg_ns"),
    number("Max (us)", "max_ns"),
    number("Off CPU (us)", "off_cpu_ns"),
    number("Failed", "failed"),
    text("Request", "request"),
    long("Command or class", "detail"),
    text("Status", "statuses"),
];

const OTHERS: &[Column] = &[
    number("Total (us)", "total_ns"),
    number("Calls", "calls"),
    number("Avg (us)", "avg_ns"),
    number("Max (us)", "max_ns"),
    number("Failed", "failed"),
    text("Function of the driver", "name"),
];

const CALLERS: &[Column] = &[
    number("ioctls (us)", "ioctl_ns"),
    number("of its time (%)", "of_call_percent"),
    number("ioctls", "ioctls"),
    number("Calls", "calls"),
    text("CUDA function", "name"),
];

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Ioctls::default())
}

#[derive(Default)]
struct Ioctls {
    summary: Summary,
    functions: Functions,
    /// Each with whether it is an ioctl.
    calls: Calls<bool>,
    callers: HashMap<Option<usize>, Caller>,
}

/// Requests made by calls of one function, counted at the nearest enclosing call.
#[derive(Default)]
struct Caller {
    calls: u64,
    total_ns: u64,
    ioctls: u64,
    ioctl_ns: u64,
}

impl View for Ioctls {
    fn line(&mut self, line: &Line) {
        self.summary.add(line);
        match &line.body {
            Body::Begin(begin) => {
                let function = self.functions.index(&begin.name);
                self.calls.begin(Call::new(line.event_id, line.ts_ns, begin, function, false), 0);
            }
            Body::End(end) => {
                if let Some(call) = self.calls.end(end.begin, end.duration_ns) {
                    let caller = self.callers.entry(Some(call.function)).or_default();
                    caller.calls += 1;
                    caller.total_ns = caller.total_ns.saturating_add(end.duration_ns.unwrap_or(0));
                }
            }
            Body::KernelBegin(begin) => {
                let function = self.functions.index(&begin.name);
                let is_ioctl = begin.ioctl.is_some();
                self.calls.begin(Call::span(line.event_id, line.ts_ns, begin, function, is_ioctl), 0);
            }
            Body::KernelEnd(end) => {
                if let Some(span) = self.calls.end(end.begin, end.duration_ns).filter(|span| span.of) {
                    let call = self.calls.around(span.parent).find(|call| !call.is_span);
                    let caller = self.callers.entry(call.map(|call| call.function)).or_default();
                    caller.ioctls += 1;
                    caller.ioctl_ns = caller.ioctl_ns.saturating_add(end.duration_ns.unwrap_or(0));
                }
            }
            Body::Process(process) => _ = self.calls.process(line.ts_ns, process),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        let figures = self.summary.of_file(&told.notes);
        let Some(kernel) = &figures.kernel_space else {
            return nothing("This trace has nothing of the driver: record with --kernel to see its ioctls.");
        };
        if kernel.requests.is_empty() && kernel.functions.is_empty() {
            return nothing("The driver was not called while this was recorded.");
        }
        let mut report = Report::default();
        requests(&mut report, kernel);
        self.callers(&mut report);
        others(&mut report, kernel);
        report
    }
}

fn requests(report: &mut Report, kernel: &KernelSpace) {
    let failed = match kernel.failed_ioctls {
        0 => String::new(),
        n => format!(", {n} failed"),
    };
    report.title(format!(
        "{} in {}{failed}, by request",
        plural(kernel.ioctls, "ioctl"),
        duration(kernel.ioctl_ns)
    ));
    for (key, count) in [
        ("ioctls", kernel.ioctls),
        ("ioctl_ns", kernel.ioctl_ns),
        ("failed_ioctls", kernel.failed_ioctls),
        ("unknown_ioctls", kernel.unknown_ioctls),
    ] {
        report.fact(key, count);
    }
    let mut table = Table::new("requests", "requests", REQUESTS);
    for r in &kernel.requests {
        table.row(vec![
            Cell::Share(r.total_ns.into(), kernel.ioctl_ns.into()),
            Cell::Micros(r.total_ns),
            Cell::Count(r.calls),
            Cell::Micros(r.avg_ns),
            Cell::Micros(r.max_ns),
            Cell::optional(Some(r.off_cpu_ns).filter(|ns| *ns > 0), Cell::Micros),
            Cell::some(r.failed),
            name(r),
            Cell::optional(r.detail.as_deref(), Cell::from),
            statuses(r),
        ]);
    }
    table.more(kernel.more_requests);
    report.table(table);
    if kernel.unknown_ioctls > 0 {
        report.words(format!(
            "{} without a name: its request, RM command or class is not known here and shown as a number.",
            plural(kernel.unknown_ioctls, "ioctl")
        ));
    }
}

fn name(r: &RequestSeen) -> Cell {
    // A bare number does not say which device's request it is.
    if r.request.starts_with("0x") {
        return Cell::Text(format!("{} {}", r.ioctl, r.request));
    }
    r.request.as_str().into()
}

fn statuses(r: &RequestSeen) -> Cell {
    let all: Vec<String> = r.statuses.iter().map(|(status, count)| format!("{count} x {status}")).collect();
    if all.is_empty() { Cell::Missing } else { Cell::Text(all.join(", ")) }
}

fn others(report: &mut Report, kernel: &KernelSpace) {
    if kernel.functions.is_empty() {
        return;
    }
    report.title("What else the driver was called for");
    let mut table = Table::new("driver_functions", "functions", OTHERS);
    for f in &kernel.functions {
        table.row(vec![
            Cell::Micros(f.total_ns),
            Cell::Count(f.calls),
            Cell::Micros(f.avg_ns),
            Cell::Micros(f.max_ns),
            Cell::some(f.failed),
            f.name.as_str().into(),
        ]);
    }
    table.more(kernel.more_functions);
    report.table(table);
}

impl Ioctls {
    fn callers(&self, report: &mut Report) {
        let mut all: Vec<_> = self.callers.iter().filter(|(_, caller)| caller.ioctls > 0).collect();
        all.sort_by_key(|(function, caller)| {
            let name = function.map(|function| self.functions.name(function));
            (std::cmp::Reverse(caller.ioctl_ns), name)
        });
        if all.is_empty() {
            return;
        }
        report.title("The CUDA functions whose calls made them");
        let mut table = Table::new("callers", "functions", CALLERS);
        for (function, caller) in all {
            table.row(vec![
                Cell::Micros(caller.ioctl_ns),
                match caller.total_ns {
                    0 => Cell::Missing,
                    total => Cell::Share(caller.ioctl_ns.into(), total.into()),
                },
                Cell::Count(caller.ioctls),
                Cell::some(caller.calls),
                function.map_or("(no CUDA call)".into(), |function| self.functions.name(function).into()),
            ]);
        }
        report.table(table);
        report.words("Each ioctl counts for the innermost CUDA call around it.");
    }
}
