//! `report gaps`: the time between launches, and what the host did in it.
//!
//! A gap is a time, between the first launch and the last, in which no thread of a process is in a launch call. The
//! view attributes a gap to the activity of the thread whose launch ends it, since that thread was late.

use std::collections::HashSet;

use super::gap_text::{self, Cause, Gap, OTHERS};
use super::*;
use gpurec_trace::{Instant, KernelEnd};

/// Limits on processes and threads, and on distinct functions in one gap.
const MOST: usize = 65_536;
const FUNCTIONS: usize = 32;

/// Limit on gaps kept.
const LISTED: usize = 1000;

pub const KIND: Kind =
    kind::<Gaps>("gaps", "time between launches: how long, and what the host did meanwhile")
        .table("longest", 10)
        .figures(&[LAUNCHES, shows("cuda_calls", "what the host did between launches", &[])]);

#[derive(Default)]
struct Gaps {
    listed: usize,
    functions: Functions,
    /// Each with the kernel that it launches.
    calls: Calls<Option<usize>>,
    processes: HashMap<u32, LaunchState>,
    /// Number of threads in launch calls, over all processes.
    inside: usize,
    windows: ByProcess<u32, Window>,
    sums: gap_text::Sums,
}

/// The launches of one process.
#[derive(Default)]
struct LaunchState {
    /// The threads that are in a launch call.
    inside: HashSet<u32>,
    /// When the last launch ended, what it launched, and the number of this gap.
    ended_ns: Option<u64>,
    after: Option<usize>,
    gap: u64,
}

/// What a thread did since the start of a gap.
#[derive(Default)]
struct Window {
    gap: u64,
    parts: Vec<Part>,
}

/// The part of one function's outermost calls; without a function, driver activity outside all calls.
#[derive(Default)]
struct Part {
    function: Option<usize>,
    all_ns: u64,
    driver_ns: u64,
    off_cpu_ns: u64,
    off_cpu_in_driver_ns: u64,
}

impl View for Gaps {
    fn configure(&mut self, config: &ReportConfig) {
        self.listed = config.top.unwrap_or(LISTED).clamp(1, LISTED);
    }

    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin, context.stacks.site_of(line.event_id)),
            Body::End(end) => self.end(line, end),
            Body::KernelBegin(begin) => {
                let function = self.functions.index(&begin.name);
                self.calls.begin(Call::span(line.event_id, line.ts_ns, begin, function, None), 0);
            }
            Body::KernelEnd(end) => self.driver_ended(line, end),
            Body::Instant(instant) => self.instant(line, instant),
            Body::Process(process) => {
                if let Some(pid) = self.calls.process(line.ts_ns, process) {
                    self.ended(pid);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        self.sums.report(&self.functions, &context.stacks)
    }

    fn of_figures(&mut self, _: &Figures, _: &Context) -> Option<Report> {
        None
    }
}

/// The part of `from..to` after `since`.
fn overlap(since_ns: u64, from_ns: u64, to_ns: u64) -> u64 {
    to_ns.saturating_sub(from_ns.max(since_ns))
}

/// Saturates, since a malformed trace may claim any duration.
fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

impl Gaps {
    fn is_launch(&self, function: usize) -> bool {
        self.functions.role(function).is_some_and(Role::launches)
    }

    fn begin(&mut self, line: &Line, begin: &Begin, site: Option<Site>) {
        let function = self.functions.index(&begin.name);
        let thread = (begin.pid, begin.tid);
        let kernel = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
        let kernel = kernel.map(|kernel| self.functions.index(kernel));
        let call = Call::new(line.event_id, line.ts_ns, begin, function, kernel);
        self.calls.begin(call, self.functions.bit(function));
        if self.calls.around(begin.parent).any(|outer| self.is_launch(outer.function)) {
            return;
        }
        if self.is_launch(function) {
            self.launch_begins(line, begin, kernel.unwrap_or(function), site);
        } else if let Some(launching) = self.processes.get_mut(&thread.0) {
            // The thread does something else, so a launch whose end was lost is over.
            self.inside -= usize::from(launching.inside.remove(&thread.1));
        }
    }

    fn launch_begins(&mut self, line: &Line, begin: &Begin, what: usize, site: Option<Site>) {
        let (ts_ns, thread) = (line.ts_ns, (begin.pid, begin.tid));
        let Some(launching) = entry(&mut self.processes, thread.0, MOST) else { return };
        self.sums.launch_calls += 1;
        let alone = launching.inside.is_empty();
        // Bounds the set of threads in launches by the limit on threads that make calls.
        if self.inside < MOST && launching.inside.insert(thread.1) {
            self.inside += 1;
        }
        let since = launching.ended_ns.filter(|since| alone && ts_ns > *since);
        let (gap, after) = (launching.gap, launching.after);
        if let Some(since_ns) = since {
            let causes = self.causes(begin, gap, since_ns, ts_ns);
            self.sums.add(
                Gap { since_ns, ns: ts_ns - since_ns, thread, after, before: what, causes, site },
                self.listed,
            );
        }
    }

    /// Splits the time of a thread from `since_ns` to now into parts that add up to all of it.
    fn causes(&mut self, begin: &Begin, gap: u64, since_ns: u64, now_ns: u64) -> Vec<(Cause, u64)> {
        let mut window =
            self.windows.remove(begin.pid, &begin.tid).filter(|window| window.gap == gap).unwrap_or_default();
        // An unfinished call may enclose the launch: one in a library hooked with --lib.
        if let Some(outer) = self.calls.around(begin.parent).last() {
            add(&mut window.part(Some(outer.function)).all_ns, overlap(since_ns, outer.ts_ns, now_ns));
        }
        let mut causes = Vec::new();
        let mut own_ns = now_ns.saturating_sub(since_ns);
        for part in &window.parts {
            let driver_ns = part.driver_ns.saturating_sub(part.off_cpu_in_driver_ns);
            let call_ns = part.all_ns.saturating_sub(driver_ns.saturating_add(part.off_cpu_ns));
            let function = part.function;
            causes.push((Cause::Driver(function), driver_ns));
            causes.push((Cause::OffCpu(function), part.off_cpu_ns));
            causes.extend(function.map(|function| (Cause::Call(function), call_ns)));
            own_ns = own_ns.saturating_sub(part.all_ns);
        }
        causes.push((Cause::Own, own_ns));
        causes.retain(|(_, ns)| *ns > 0);
        causes.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        causes
    }

    fn end(&mut self, line: &Line, end: &End) {
        let Some(call) = self.calls.end(end.begin, end.duration_ns) else { return };
        let in_launch = self.calls.around(call.parent).any(|outer| self.is_launch(outer.function));
        if self.is_launch(call.function) && !in_launch {
            self.launch_ends(line.ts_ns, call.thread(), call.of.unwrap_or(call.function));
        } else if self.calls.around(call.parent).next().is_none()
            && let Some((since, window)) = self.window(call.thread())
        {
            add(&mut window.part(Some(call.function)).all_ns, overlap(since, call.ts_ns, line.ts_ns));
        }
    }

    fn launch_ends(&mut self, ts_ns: u64, thread: Thread, what: usize) {
        let Some(launching) = self.processes.get_mut(&thread.0) else { return };
        self.inside -= usize::from(launching.inside.remove(&thread.1));
        launching.ended_ns = Some(ts_ns);
        launching.after = Some(what);
        launching.gap += 1;
    }

    /// What a thread did since the previous launch, and when that launch ended.
    fn window(&mut self, thread: Thread) -> Option<(u64, &mut Window)> {
        let launching = self.processes.get(&thread.0)?;
        let since = launching.ended_ns?;
        let window = self.windows.entry(thread.0, thread.1, MOST)?;
        if window.gap != launching.gap {
            *window = Window { gap: launching.gap, ..Window::default() };
        }
        Some((since, window))
    }

    fn driver_ended(&mut self, line: &Line, end: &KernelEnd) {
        let Some(span) = self.calls.end(end.begin, end.duration_ns) else { return };
        let around = || self.calls.around(span.parent);
        let inside = around().any(|outer| outer.is_span || self.is_launch(outer.function));
        let function = around().last().map(|outer| outer.function);
        if inside {
            return;
        }
        if let Some((since, window)) = self.window(span.thread()) {
            let ns = overlap(since, span.ts_ns, line.ts_ns);
            let part = window.part(function);
            add(&mut part.driver_ns, ns);
            add(&mut part.all_ns, if function.is_none() { ns } else { 0 });
        }
    }

    fn instant(&mut self, line: &Line, instant: &Instant) {
        if instant.name != "off_cpu" {
            return;
        }
        let (thread, ns) = ((instant.pid, instant.tid), instant.duration_ns.unwrap_or(0));
        let around = || self.calls.around(instant.parent);
        let Some(outermost) = around().last() else { return };
        if around().any(|outer| self.is_launch(outer.function)) {
            return;
        }
        let in_driver = around().any(|outer| outer.is_span);
        let function = (!outermost.is_span).then_some(outermost.function);
        if let Some((since, window)) = self.window(thread) {
            let ns = overlap(since, line.ts_ns.saturating_sub(ns), line.ts_ns);
            let part = window.part(function);
            add(&mut part.off_cpu_ns, ns);
            add(&mut part.off_cpu_in_driver_ns, if in_driver { ns } else { 0 });
        }
    }

    fn ended(&mut self, pid: u32) {
        self.inside -= self.processes.remove(&pid).map_or(0, |launching| launching.inside.len());
        self.windows.ended(pid);
    }
}

impl Window {
    fn part(&mut self, function: Option<usize>) -> &mut Part {
        let known = self.parts.iter().position(|part| part.function == function);
        let at = known.unwrap_or_else(|| {
            // Functions beyond the limit share one part.
            let function = if self.parts.len() < FUNCTIONS { function } else { Some(OTHERS) };
            if self.parts.len() <= FUNCTIONS {
                self.parts.push(Part { function, ..Part::default() });
            }
            self.parts.len() - 1
        });
        // The index is valid: `at` was found, or is the last index.
        &mut self.parts[at]
    }
}
