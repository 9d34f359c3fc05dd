//! `report ioctl`: requests to nvidia.ko, by request and RM command or class, and the CUDA calls that made them.

use super::*;
use crate::driver_figures::{KernelSpace, RequestFigures};

pub const KIND: Kind =
    kind::<Ioctls>("ioctl", "what was asked of the driver, by request and RM command (--kernel)")
        .table("requests", 30)
        .of_summary();

#[derive(Default)]
struct Ioctls {
    functions: Functions,
    /// Each with whether it is an ioctl.
    calls: Calls<bool>,
    callers: HashMap<Option<usize>, Caller>,
}

/// Requests made by calls of one function, counted at the nearest enclosing call.
#[derive(Default)]
struct Caller {
    calls: Total,
    ioctls: Total,
}

impl View for Ioctls {
    fn line(&mut self, line: &Line, _: &Context) {
        match &line.body {
            Body::Begin(begin) => {
                let function = self.functions.index(&begin.name);
                self.calls.begin(Call::new(line.event_id, line.ts_ns, begin, function, false), 0);
            }
            Body::End(end) => {
                if let Some(call) = self.calls.end(end.begin, end.duration_ns) {
                    let caller = self.callers.entry(Some(call.function)).or_default();
                    caller.calls.add(end.duration_ns.unwrap_or(0));
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
                    caller.ioctls.add(end.duration_ns.unwrap_or(0));
                }
            }
            Body::Process(process) => _ = self.calls.process(line.ts_ns, process),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        let Some(kernel) = &context.figures().kernel_space else {
            return nothing("This trace has no lines of the driver: record with --kernel to see its ioctls.");
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
    report.facts([
        ("ioctls", kernel.ioctls),
        ("ioctl_ns", kernel.ioctl_ns),
        ("failed_ioctls", kernel.failed_ioctls),
        ("unknown_ioctls", kernel.unknown_ioctls),
    ]);
    report.table(
        Listing::new("requests", "requests", &kernel.requests)
            .share(number("Time (%)", "time_percent"), |r| Some((r.total_ns, kernel.ioctl_ns)))
            .micros(number("Total (us)", "total_ns"), |r| r.total_ns)
            .count(number("Calls", "calls"), |r| r.calls)
            .micros(number("Avg (us)", "avg_ns"), |r| r.avg_ns)
            .micros(number("Max (us)", "max_ns"), |r| r.max_ns)
            .micros(number("Off CPU (us)", "off_cpu_ns"), |r| positive(r.off_cpu_ns))
            .count(number("Failed", "failed"), |r| positive(r.failed))
            .cell(text("Request", "request"), |r| name(r))
            .cell(long("Command or class", "detail"), |r| r.detail.as_deref())
            .cell(text("Status", "statuses"), |r| statuses(r))
            .more(kernel.more_requests),
    );
    if kernel.unknown_ioctls > 0 {
        report.words(format!(
            "{} without a name: gpurec does not know the request, RM command or class, and shows its number.",
            plural(kernel.unknown_ioctls, "ioctl")
        ));
    }
}

fn name(r: &RequestFigures) -> String {
    // A bare number does not say which device's request it is.
    if r.request.starts_with("0x") { format!("{} {}", r.ioctl, r.request) } else { r.request.clone() }
}

fn statuses(r: &RequestFigures) -> Option<String> {
    let all: Vec<String> = r.statuses.iter().map(|(status, count)| format!("{count} x {status}")).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn others(report: &mut Report, kernel: &KernelSpace) {
    report.section(
        "What else the driver was called for",
        Listing::new("driver_functions", "functions", &kernel.functions)
            .micros(number("Total (us)", "total_ns"), |f| f.total_ns)
            .count(number("Calls", "calls"), |f| f.calls)
            .micros(number("Avg (us)", "avg_ns"), |f| f.avg_ns)
            .micros(number("Max (us)", "max_ns"), |f| f.max_ns)
            .count(number("Failed", "failed"), |f| positive(f.failed))
            .cell(text("Function of the driver", "name"), |f| &f.name)
            .more(kernel.more_functions),
    );
}

impl Ioctls {
    fn callers(&self, report: &mut Report) {
        let name = |function: &Option<usize>| function.map(|function| self.functions.name(function));
        let mut all: Vec<_> = self.callers.iter().filter(|(_, caller)| caller.ioctls.count > 0).collect();
        all.sort_by_key(|(function, caller)| (std::cmp::Reverse(caller.ioctls.sum), name(function)));
        let has_rows = report.section(
            "The CUDA functions whose calls made them",
            Listing::new("callers", "functions", all)
                .micros(number("ioctls (us)", "ioctl_ns"), |(_, caller)| caller.ioctls.sum)
                .share(number("of its time (%)", "of_call_percent"), |(_, caller)| {
                    positive(caller.calls.sum).map(|all| (caller.ioctls.sum, all))
                })
                .count(number("ioctls", "ioctls"), |(_, caller)| caller.ioctls.count)
                .count(number("Calls", "calls"), |(_, caller)| positive(caller.calls.count))
                .cell(text("CUDA function", "name"), |(function, _)| {
                    name(function).unwrap_or("(no CUDA call)")
                }),
        );
        report.words_if(has_rows, "Each ioctl counts for the innermost CUDA call around it.");
    }
}
