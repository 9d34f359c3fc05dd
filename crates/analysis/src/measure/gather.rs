//! Reads a trace once for all requested metrics. In: the lines. Out: the summary's figures and the samples by name, for
//! the whole and for each part (`after 10s`) that an expression names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::Result;

use super::calls::{Calls, Of, Want};
use super::language::Term;
use super::metric::Metric;
use super::part::{Coverage, Edge, Window};
use super::sample::Sample;
use super::value::Value;
use crate::only::{Only, call_of};
use crate::stacks::{CallRole, Place, Sum};
use crate::{Summary, read};
use gpurec_trace::bounds::entry;
use gpurec_trace::{Body, Header, Line, Memory, Process};

/// Limit on processes whose memory is watched.
const MOST: usize = 65_536;

/// What the terms of all expressions need.
#[derive(Clone, Default)]
pub struct Asks {
    windows: Vec<Window>,
    wants: Vec<Want>,
}

impl Asks {
    /// `limit` is the value that the term is compared with, if known beforehand.
    pub fn add(&mut self, term: &Term, limit: Option<Value>) {
        if term.window != Window::default() && !self.windows.contains(&term.window) {
            self.windows.push(term.window);
        }
        for metric in std::iter::once(&term.metric).chain(&term.per) {
            let (of, name) = match metric {
                Metric::Function { name, .. } => (Of::Function, name.as_str()),
                Metric::Kernel { name, .. } => (Of::Kernel, name.as_str()),
                Metric::Gpu { name, .. } => (Of::Gpu, name.as_str()),
                Metric::Queue { .. } => (Of::Queue, ""),
                _ => continue,
            };
            if metric.percentile().is_some() {
                let limits = limit.filter(|_| term.per.is_none()).into_iter().collect();
                self.wants.push(Want { of, pattern: name.to_owned(), limits });
            }
        }
    }
}

pub struct Measurements {
    pub whole: Coverage,
    parts: Vec<(Window, Coverage)>,
    pub header: Option<Box<Header>>,
    /// The recording was made with --summary-only: it has figures and no events.
    pub without_events: bool,
    pub sentences: Vec<String>,
    /// The trace has no selected process, thread or rank.
    pub is_absent: bool,
    pub sites: Sites,
}

/// What the calls of each role and call site took. None: the recording has no stacks, or only the heaviest.
pub type Sites = Option<BTreeMap<(CallRole, Place), Sum>>;

impl Measurements {
    pub fn seen(&self, window: &Window) -> &Coverage {
        self.parts.iter().find(|(known, _)| known == window).map_or(&self.whole, |(_, seen)| seen)
    }
}

#[derive(Default)]
struct Scope {
    window: Window,
    /// The first line of the window, and the first line after it.
    first: Option<u64>,
    end: Option<u64>,
    opened_ns: u64,
    closed_ns: u64,
    summary: Summary,
    calls: Calls,
    peak: u64,
}

impl Scope {
    fn new(window: Window, wants: &[Want]) -> Scope {
        Scope { window, calls: Calls::new(wants.to_vec()), ..Scope::default() }
    }

    fn is_whole(&self) -> bool {
        self.window == Window::default()
    }

    fn add(&mut self, line: &Line, launches: u64, peak: u64) {
        if self.first.is_none()
            && (self.window.from == Edge::Open || self.window.from.reached(line.ts_ns, launches))
        {
            self.first = Some(line.event_id);
            self.opened_ns = line.ts_ns;
        }
        if self.first.is_some() && self.end.is_none() {
            if self.window.to.reached(line.ts_ns, launches) {
                self.end = Some(line.event_id);
            } else {
                self.peak = self.peak.max(peak);
                // A line of GPU work has a time before that of other lines.
                self.closed_ns = self.closed_ns.max(line.ts_ns);
            }
        }
        if self.is_whole() || self.takes(line) {
            self.summary.add(line);
            self.calls.add(line);
        }
    }

    /// event_ids grow with time, so they show on which side of an edge a call began.
    fn takes(&self, line: &Line) -> bool {
        let within =
            |id: u64| self.first.is_some_and(|first| id >= first) && self.end.is_none_or(|end| id < end);
        match &line.body {
            Body::Xid(_) => within(line.event_id),
            // A process that started before the window is in it, and one that exits after the window still is.
            Body::Process(_) => self.end.is_none(),
            // The `end` line has the figures of the whole.
            Body::Finish(_) | Body::Unknown(_) => false,
            _ => call_of(line).is_none_or(|(began, _, _)| within(began)),
        }
    }
}

/// Memory of the devices' own spaces that each process holds.
#[derive(Default)]
struct Holdings {
    held: HashMap<u32, [u64; 2]>,
    /// The same, ordered by sum: every line needs the maximum.
    sums: BTreeSet<(u64, u32)>,
}

impl Holdings {
    fn add(&mut self, line: &Line) {
        match &line.body {
            Body::Memory(memory) => self.memory(memory),
            Body::Process(Process::Exit(exit)) => self.ended(exit.pid),
            Body::Process(Process::Exec(exec)) => self.ended(exec.pid),
            _ => {}
        }
    }

    fn memory(&mut self, memory: &Memory) {
        let at = match memory.space.as_ref() {
            "device" => 0,
            "virtual" => 1,
            _ => return,
        };
        let Some(held) = entry(&mut self.held, memory.pid, MOST) else { return };
        let before = sum(held);
        if let Some(held) = held.get_mut(at) {
            *held = memory.after(*held);
        }
        let now = sum(held);
        self.sums.remove(&(before, memory.pid));
        self.sums.insert((now, memory.pid));
    }

    fn ended(&mut self, pid: u32) {
        if let Some(held) = self.held.remove(&pid) {
            self.sums.remove(&(sum(&held), pid));
        }
    }

    /// The largest amount that one process holds now.
    fn most(&self) -> u64 {
        self.sums.last().map_or(0, |(sum, _)| *sum)
    }
}

fn sum(held: &[u64; 2]) -> u64 {
    held.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// Reads a trace once.
pub fn gather(file: &Path, asks: &Asks, only: &Only) -> Result<Measurements> {
    let mut whole = Scope::new(Window::default(), &asks.wants);
    let mut parts: Vec<Scope> = asks.windows.iter().map(|window| Scope::new(*window, &asks.wants)).collect();
    let mut holdings = Holdings::default();
    let (mut header, mut most, mut last_ns) = (None, 0, 0);
    let notes = read::each(file, only, |line| {
        if matches!(&line.body, Body::Memory(_) | Body::Process(_)) {
            holdings.add(line);
            most = holdings.most();
        }
        if let (Body::Header(found), None) = (&line.body, &header) {
            header = Some(found.clone());
        }
        last_ns = line.ts_ns.max(last_ns);
        let launches = whole.calls.launches;
        whole.add(line, launches, most);
        for part in &mut parts {
            part.add(line, launches, most);
        }
    })?;
    let sites = whole.summary.stacks.by_site();
    let seen = |mut scope: Scope| {
        let figures = scope.summary.of_file(&notes);
        scope.calls.unfinished(&figures.in_flight);
        let duration_ns = if scope.is_whole() {
            figures.duration_ns
        } else {
            scope.closed_ns - scope.opened_ns.min(scope.closed_ns)
        };
        Coverage {
            duration_ns,
            peak_bytes: scope.peak,
            calls: scope.calls,
            opened: scope.first.is_some(),
            figures,
        }
    };
    let mut whole = seen(whole);
    let without_events = whole.calls.functions.list.is_empty() && !whole.figures.functions.is_empty();
    if without_events {
        from_figures(&mut whole);
    }
    let parts = parts.into_iter().map(|scope| (scope.window, seen(scope))).map(|(window, mut part)| {
        part.figures.complete = whole.figures.complete;
        part.figures.unknown = whole.figures.unknown.clone();
        (window, part)
    });
    Ok(Measurements {
        parts: parts.collect(),
        header,
        without_events,
        sentences: notes.sentences(),
        is_absent: notes.is_absent,
        sites,
        whole,
    })
}

/// The samples of a recording that has only figures: without bytes and percentiles.
fn from_figures(seen: &mut Coverage) {
    let figures = &seen.figures;
    for f in &figures.functions {
        seen.calls.functions.push(Sample {
            name: f.name.as_str().into(),
            calls: f.calls,
            timed: f.calls,
            total_ns: f.total_ns.into(),
            min_ns: f.min_ns,
            max_ns: f.max_ns,
            med_ns: Some(f.med_ns),
            errors: f.errors,
            ..Sample::default()
        });
    }
    for kernel in &figures.kernels {
        let name = if kernel.name.starts_with("0x") { super::calls::NAMELESS } else { &kernel.name };
        let sample = Sample { name: name.into(), calls: kernel.launches, ..Sample::default() };
        match seen.calls.kernels.list.iter_mut().find(|known| *known.name == *name) {
            Some(known) => known.merge(&sample),
            None => seen.calls.kernels.push(sample),
        }
    }
    let gpu = figures.gpu.clone().unwrap_or_default();
    for kernel in &gpu.kernels {
        seen.calls.gpu.push(Sample {
            name: kernel.name.as_str().into(),
            calls: kernel.instances,
            timed: kernel.instances,
            total_ns: kernel.total_ns.into(),
            min_ns: kernel.min_ns,
            max_ns: kernel.max_ns,
            med_ns: Some(kernel.med_ns),
            ..Sample::default()
        });
    }
    if let Some(queue) = &gpu.queue {
        seen.calls.queue = Sample {
            calls: queue.count,
            timed: queue.count,
            total_ns: u128::from(queue.avg_ns) * u128::from(queue.count),
            max_ns: queue.max_ns,
            med_ns: Some(queue.p50_ns),
            ..Sample::default()
        };
    }
    seen.peak_bytes = figures.processes.iter().map(|p| p.peak_device_bytes).max().unwrap_or(0);
}
