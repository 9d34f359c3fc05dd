//! `report gaps`: the time between launches, and what the host did in it.
//!
//! A gap is a time, between the first launch and the last, in which no thread of a process is in a launch call. The
//! view attributes a gap to the activity of the thread whose launch ends it, since that thread was late.

use std::collections::{HashMap, HashSet};

use super::calls::{Frame, Functions, Stacks, Thread};
use super::gap_text::{self, Cause, Gap, OTHERS};
use super::output::Report;
use super::{ReportConfig, Told, View};
use crate::Figures;
use crate::by_process::ByProcess;
use crate::tally::Role;
use gpurec_trace::{Begin, Body, End, Instant, Line, Process};

/// Limits on processes and threads, and on distinct functions in one gap.
const MOST: usize = 65_536;
const FUNCTIONS: usize = 32;

/// Limit on gaps kept.
const LISTED: usize = 1000;

pub fn make(config: &ReportConfig) -> Box<dyn View> {
    let listed = config.top.unwrap_or(LISTED).clamp(1, LISTED);
    Box::new(Gaps { listed, ..Gaps::default() })
}

#[derive(Default)]
struct Gaps {
    listed: usize,
    functions: Functions,
    stacks: Stacks<Option<usize>>,
    processes: HashMap<u32, Launching>,
    /// Number of threads in launch calls, over all processes.
    inside: usize,
    windows: ByProcess<u32, Window>,
    sums: gap_text::Sums,
}

/// The launches of one process.
#[derive(Default)]
struct Launching {
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
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::KernelBegin(begin) => {
                let function = self.functions.index(&begin.name);
                let frame = frame(line, function, true, None);
                self.stacks.push((begin.pid, begin.tid), begin.depth, None, frame);
            }
            Body::KernelEnd(end) => self.driver_ended(line, (end.pid, end.tid), end.begin),
            Body::Instant(instant) => self.instant(line, instant),
            Body::Process(Process::Exit(exit)) => self.over(exit.pid),
            Body::Process(Process::Exec(exec)) => self.over(exec.pid),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Told) -> Report {
        self.sums.report(&self.functions)
    }

    fn of_figures(&mut self, _: &Figures, _: &Told) -> Option<Report> {
        None
    }
}

fn frame(line: &Line, function: usize, driver: bool, of: Option<usize>) -> Frame<Option<usize>> {
    Frame { id: line.event_id, ts_ns: line.ts_ns, function, driver, inside: 0, of }
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
        matches!(self.functions.role(function), Some(Role::KernelLaunch | Role::GraphLaunch))
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let thread = (begin.pid, begin.tid);
        let kernel = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
        let kernel = kernel.map(|kernel| self.functions.index(kernel));
        let role = self.functions.role(function);
        self.stacks.push(thread, begin.depth, role, frame(line, function, false, kernel));
        if self.launch_around(thread).is_some() {
            return;
        }
        if self.is_launch(function) {
            self.launch_begins(line.ts_ns, thread, kernel.unwrap_or(function));
        } else if let Some(launching) = self.processes.get_mut(&thread.0) {
            // The thread does something else, so a launch whose end was lost is over.
            self.inside -= usize::from(launching.inside.remove(&thread.1));
        }
    }

    /// The launch around the innermost call of a thread, excluding that call itself.
    fn launch_around(&self, thread: Thread) -> Option<usize> {
        let (_, around) = self.stacks.of(thread).split_last()?;
        around.iter().map(|frame| frame.function).find(|function| self.is_launch(*function))
    }

    fn launch_begins(&mut self, ts_ns: u64, thread: Thread, what: usize) {
        if self.processes.len() >= MOST && !self.processes.contains_key(&thread.0) {
            return;
        }
        self.sums.launch_calls += 1;
        let launching = self.processes.entry(thread.0).or_default();
        let alone = launching.inside.is_empty();
        // Bounds the set of threads in launches by the limit on threads that make calls.
        if self.inside < MOST && launching.inside.insert(thread.1) {
            self.inside += 1;
        }
        let since = launching.ended_ns.filter(|since| alone && ts_ns > *since);
        let (gap, after) = (launching.gap, launching.after);
        if let Some(since_ns) = since {
            let causes = self.causes(thread, gap, since_ns, ts_ns);
            self.sums.add(
                Gap { since_ns, ns: ts_ns - since_ns, thread, after, before: what, causes },
                self.listed,
            );
        }
    }

    /// Splits the time of a thread from `since_ns` to now into parts that add up to all of it.
    fn causes(&mut self, thread: Thread, gap: u64, since_ns: u64, now_ns: u64) -> Vec<(Cause, u64)> {
        let mut window =
            self.windows.remove(thread.0, &thread.1).filter(|window| window.gap == gap).unwrap_or_default();
        // An unfinished call may enclose the launch: one in a library hooked with --lib.
        if let Some(outer) = self.stacks.of(thread).first().filter(|outer| !self.is_launch(outer.function)) {
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
        let thread = (end.pid, end.tid);
        let Some(frame) = self.stacks.pop(thread, end.begin) else { return };
        let in_launch = self.stacks.of(thread).iter().any(|outer| self.is_launch(outer.function));
        if self.is_launch(frame.function) && !in_launch {
            self.launch_ends(line.ts_ns, thread, frame.of.unwrap_or(frame.function));
        } else if self.stacks.of(thread).is_empty()
            && let Some((since, window)) = self.window(thread)
        {
            add(&mut window.part(Some(frame.function)).all_ns, overlap(since, frame.ts_ns, line.ts_ns));
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

    fn driver_ended(&mut self, line: &Line, thread: Thread, begin: u64) {
        let Some(frame) = self.stacks.pop(thread, begin) else { return };
        let around = self.stacks.of(thread);
        let inside = around.iter().any(|outer| outer.driver || self.is_launch(outer.function));
        let function = around.first().map(|outer| outer.function);
        if inside {
            return;
        }
        if let Some((since, window)) = self.window(thread) {
            let ns = overlap(since, frame.ts_ns, line.ts_ns);
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
        let around = self.stacks.of(thread);
        if around.is_empty() || around.iter().any(|outer| self.is_launch(outer.function)) {
            return;
        }
        let in_driver = around.iter().any(|outer| outer.driver);
        let function = around.first().filter(|outer| !outer.driver).map(|outer| outer.function);
        if let Some((since, window)) = self.window(thread) {
            let ns = overlap(since, line.ts_ns.saturating_sub(ns), line.ts_ns);
            let part = window.part(function);
            add(&mut part.off_cpu_ns, ns);
            add(&mut part.off_cpu_in_driver_ns, if in_driver { ns } else { 0 });
        }
    }

    fn over(&mut self, pid: u32) {
        self.stacks.ended(pid);
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
