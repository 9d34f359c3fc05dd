//! Turns lines into lanes: what each thread did in each bucket of time. Memory grows with the number of threads and the
//! width of the picture, not with the length of the trace.
//!
//! The self time of a call, without the calls inside it, goes to its category, so that each moment of a thread counts
//! once. Driver spans, time off the CPU and interrupts are layers below and count separately.

use std::collections::{HashMap, HashSet};

use crate::gpu::StreamKey;
use crate::stacks::{Site, Stacks};
use crate::views::scale::{Scale, halve};
use crate::views::{Functions, calls::Thread};
use gpurec_cuda::Category;
use gpurec_trace::bounds::short;
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{Body, Gpu, GpuKind, Instant, Line, Process};

/// Limits on threads with a picture, and on threads whose time in calls is counted.
const MOST: usize = 64;
const MOST_COUNTED: usize = 65_536;

/// Limit on the call sites of a thread.
const SITES: usize = 64;

/// Longest command kept, in bytes; a row is narrower.
const LONGEST_COMMAND: usize = 1024;

/// Buckets per column: the picture is as wide as it may be, or slightly narrower.
const PER_COLUMN: usize = 32;

/// What draws the calls of some categories.
pub struct Sort {
    pub letter: char,
    pub name: &'static str,
    /// The escape sequence of its colour.
    pub colour: &'static str,
}

const fn sort(letter: char, name: &'static str, colour: &'static str) -> Sort {
    Sort { letter, name, colour }
}

pub const SORTS: [Sort; 6] = [
    sort('L', "launch", "\x1b[32m"),
    sort('S', "sync", "\x1b[31m"),
    sort('C', "copy or set", "\x1b[34m"),
    sort('M', "memory", "\x1b[33m"),
    sort('I', "init or module", "\x1b[35m"),
    sort('O', "other", "\x1b[36m"),
];

/// The place of a category in `SORTS`.
pub fn sort_of(category: Category) -> usize {
    match category {
        Category::Launch => 0,
        Category::Sync => 1,
        Category::Memcpy | Category::Memset => 2,
        Category::Alloc
        | Category::Free
        | Category::Managed
        | Category::Pool
        | Category::VirtualMemory
        | Category::Ipc => 3,
        Category::Init | Category::Context | Category::Module | Category::Register => 4,
        _ => 5,
    }
}

/// One bucket of one thread.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    pub by_sort: [u64; SORTS.len()],
    pub calls: u64,
    /// Time in layers below the calls.
    pub below: [u64; LAYERS],
    pub interrupts: u64,
}

/// Layers below the calls.
pub const DRIVER: usize = 0;
pub const OFF_CPU: usize = 1;
const LAYERS: usize = 2;

/// The layers of a stream's lane.
pub const KERNELS: usize = 0;
pub const COPIES: usize = 1;

impl Cell {
    pub fn calls_ns(&self) -> u64 {
        self.by_sort.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    pub fn below(&self, layer: usize) -> u64 {
        self.below.get(layer).copied().unwrap_or(0)
    }

    pub fn join(mut self, other: Cell) -> Cell {
        let pairs = self.by_sort.iter_mut().zip(other.by_sort).chain(self.below.iter_mut().zip(other.below));
        pairs.for_each(|(sum, ns)| add(sum, ns));
        add(&mut self.calls, other.calls);
        add(&mut self.interrupts, other.interrupts);
        self
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[derive(Default)]
pub struct Lane {
    /// False: the lane only counts calls.
    pub drawn: bool,
    pub cells: Vec<Cell>,
    /// For buckets that spans in the driver or off the CPU cover whole: the change in the number of such spans from the
    /// bucket before. Spans may overlap, and a long span must not cost time in proportion to its length.
    covered: Vec<[i64; LAYERS]>,
    pub calls: u64,
    pub calls_ns: u64,
    /// Time in calls by call site; the first few sites.
    pub sites: Vec<(Site, u64)>,
    /// The time up to which calls are attributed.
    attributed_ns: u64,
    /// The innermost open call or span.
    current: Option<u64>,
}

#[derive(Default)]
pub struct Lanes {
    to_ns: u64,
    tids: Vec<u32>,
    /// Threads to draw; without a choice, the first ones seen.
    chosen: Option<HashSet<Thread>>,
    drawn: usize,
    most: usize,
    pub scale: Option<Scale>,
    functions: Functions,
    calls: Calls<()>,
    pub lanes: HashMap<Thread, Lane>,
    /// Interrupts in threads that make no calls.
    pub elsewhere: Lane,
    /// GPU work, which counts as calls of its stream; the first streams seen.
    pub streams: HashMap<StreamKey, Lane>,
    pub commands: HashMap<u32, String>,
    /// Calls of threads beyond `MOST_COUNTED`.
    pub uncounted: u64,
    pub xids: Vec<(u64, u32)>,
    pub last_ns: u64,
    pub stacks: Stacks,
}

impl Lanes {
    pub fn new(from_ns: Option<u64>, to_ns: Option<u64>, tids: &[u32], columns: usize) -> Lanes {
        Lanes {
            to_ns: to_ns.unwrap_or(u64::MAX),
            tids: tids.to_vec(),
            most: columns.max(1).saturating_mul(PER_COLUMN),
            scale: from_ns.map(|from| Scale::new(from, columns.max(1) * PER_COLUMN)),
            elsewhere: Lane { drawn: true, ..Lane::default() },
            ..Lanes::default()
        }
    }

    /// Draws only these threads.
    pub fn choose(&mut self, threads: HashSet<Thread>) {
        self.chosen = Some(threads);
    }

    /// Threads with time in CUDA, sorted by that time, largest first.
    pub fn busiest(&self) -> Vec<(&Thread, &Lane)> {
        let mut all: Vec<_> = self.lanes.iter().filter(|(_, lane)| lane.is_seen()).collect();
        all.sort_by(|(a, x), (b, y)| (y.calls_ns, y.calls, *a).cmp(&(x.calls_ns, x.calls, *b)));
        all
    }

    /// Returns the threads to draw if one of the `shown` busiest is not drawn.
    pub fn better(&self, shown: usize) -> Option<HashSet<Thread>> {
        let all = self.busiest();
        let missing = all.iter().take(shown.min(MOST)).any(|(_, lane)| !lane.drawn);
        missing.then(|| all.iter().take(MOST).map(|(thread, _)| **thread).collect())
    }

    pub fn line(&mut self, line: &Line) {
        if let Body::Header(_) = line.body {
            return;
        }
        self.stacks.line(line);
        let ts_ns = line.ts_ns.min(self.to_ns);
        self.last_ns = self.last_ns.max(ts_ns);
        self.reach(ts_ns);
        match &line.body {
            Body::Begin(begin) => {
                let function = self.functions.index(&begin.name);
                self.enter(Call::new(line.event_id, line.ts_ns, begin, function, ()));
            }
            Body::End(end) => self.leave((end.pid, end.tid), end.begin, line.ts_ns),
            Body::KernelBegin(begin) => {
                let function = self.functions.index(&begin.name);
                self.enter(Call::span(line.event_id, line.ts_ns, begin, function, ()));
            }
            Body::KernelEnd(end) => self.driver_ended((end.pid, end.tid), end.begin, line.ts_ns),
            Body::Instant(instant) => self.instant(line.ts_ns, instant),
            Body::Process(process) => self.process(line.ts_ns, process),
            Body::Gpu(gpu) if self.tids.is_empty() => self.work(line.ts_ns, gpu),
            Body::Xid(xid) if self.xids.len() < MOST => self.xids.push((line.ts_ns, xid.xid)),
            _ => {}
        }
    }

    /// Extends calls that have not returned to the end of the picture.
    pub fn finish(&mut self) {
        let threads: Vec<Thread> = self.lanes.keys().copied().collect();
        for thread in threads {
            self.attribute(thread, self.last_ns);
        }
        let Some(scale) = self.scale else { return };
        for lane in self.lanes.values_mut().chain(self.streams.values_mut()) {
            lane.settle(&scale);
        }
    }

    /// Work on the GPU, which may have begun long before this line.
    fn work(&mut self, ts_ns: u64, gpu: &Gpu) {
        let to_ns = ts_ns.saturating_add(gpu.duration_ns).min(self.to_ns);
        self.last_ns = self.last_ns.max(to_ns);
        self.reach(to_ns);
        let Some(scale) = self.scale.filter(|scale| to_ns > scale.start_ns && ts_ns <= self.to_ns) else {
            return;
        };
        let key = StreamKey::of(gpu);
        if self.streams.len() >= MOST && !self.streams.contains_key(&key) {
            return;
        }
        let lane = self.streams.entry(key).or_insert_with(|| Lane { drawn: true, ..Lane::default() });
        lane.calls += 1;
        add(&mut lane.calls_ns, to_ns.saturating_sub(ts_ns.max(scale.start_ns)));
        let layer = if matches!(gpu.kind, GpuKind::Copy | GpuKind::Set) { COPIES } else { KERNELS };
        lane.cover(&scale, ts_ns, to_ns, layer);
    }

    /// Streams with GPU work, the busiest first.
    pub fn busiest_streams(&self) -> Vec<(&StreamKey, &Lane)> {
        let mut all: Vec<_> = self.streams.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.calls_ns, y.calls, *a).cmp(&(x.calls_ns, x.calls, *b)));
        all
    }

    fn reach(&mut self, ts_ns: u64) {
        let scale = self.scale.get_or_insert(Scale::new(ts_ns, self.most));
        let before = *scale;
        let times = scale.reach(ts_ns);
        if times > 0 {
            let drawn = self.lanes.values_mut().filter(|lane| lane.drawn);
            for lane in drawn.chain(self.streams.values_mut()).chain([&mut self.elsewhere]) {
                lane.settle(&before);
                halve(&mut lane.cells, times, Cell::join);
            }
        }
    }

    fn enter(&mut self, call: Call<()>) {
        let (thread, id, ts_ns, is_call) = (call.thread(), call.id, call.ts_ns, !call.is_span);
        if !self.tids.is_empty() && !self.tids.contains(&thread.1) {
            return;
        }
        if !self.lanes.contains_key(&thread) {
            if self.lanes.len() >= MOST_COUNTED {
                self.uncounted = self.uncounted.saturating_add(1);
                return;
            }
            let drawn = match &self.chosen {
                Some(chosen) => chosen.contains(&thread),
                None => self.drawn < MOST,
            };
            self.drawn += usize::from(drawn);
            self.lanes.insert(thread, Lane { drawn, attributed_ns: ts_ns, ..Lane::default() });
        }
        self.attribute(thread, ts_ns);
        self.calls.begin(call, 0);
        self.is_in(thread, Some(id));
        if !is_call {
            return;
        }
        let Some(scale) = self.scale.filter(|scale| ts_ns >= scale.start_ns && ts_ns <= self.to_ns) else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&thread) {
            lane.calls += 1;
            if lane.drawn {
                lane.cell(scale.bucket(ts_ns)).calls += 1;
            }
        }
    }

    fn leave(&mut self, thread: Thread, begin: u64, ts_ns: u64) {
        self.attribute(thread, ts_ns);
        if let Some(call) = self.calls.end(begin, None) {
            self.is_in(thread, call.parent);
        }
    }

    /// The innermost call or span of a thread is another one.
    fn is_in(&mut self, thread: Thread, current: Option<u64>) {
        if let Some(lane) = self.lanes.get_mut(&thread) {
            lane.current = current;
        }
    }

    /// Attributes the time since the last update of a thread to its current call.
    fn attribute(&mut self, thread: Thread, ts_ns: u64) {
        let (to_ns, Some(scale)) = (self.to_ns, self.scale) else { return };
        let Some(lane) = self.lanes.get_mut(&thread) else { return };
        let from_ns = lane.attributed_ns.max(scale.start_ns);
        lane.attributed_ns = ts_ns.max(lane.attributed_ns);
        let call = self.calls.around(lane.current).find(|call| !call.is_span);
        // After the end of its process a thread is in no call.
        let died_ns = call.and_then(|call| self.calls.died_ns(call));
        let ts_ns = died_ns.map_or(ts_ns, |died_ns| died_ns.min(ts_ns));
        lane.current = lane.current.filter(|_| died_ns.is_none());
        let Some(traits) = call.and_then(|call| self.functions.traits(call.function)) else { return };
        if ts_ns < from_ns && died_ns.is_some() {
            return;
        }
        // A call shorter than the clock's resolution gets 1 ns, so that it stays visible.
        let until_ns = ts_ns.max(from_ns.saturating_add(1)).min(to_ns);
        let sort = sort_of(traits.category);
        if until_ns > from_ns {
            lane.calls_ns = lane.calls_ns.saturating_add(until_ns - from_ns);
            lane.at_site(call.and_then(|call| self.stacks.site_of(call.id)), until_ns - from_ns);
        }
        lane.spread(&scale, from_ns, until_ns, |cell, ns| {
            if let Some(sum) = cell.by_sort.get_mut(sort) {
                add(sum, ns);
            }
        });
    }

    fn driver_ended(&mut self, thread: Thread, begin: u64, ts_ns: u64) {
        let Some(span) = self.calls.end(begin, None) else { return };
        self.is_in(thread, span.parent);
        // A nested driver span is drawn as part of the outer one.
        if self.calls.around(span.parent).any(|outer| outer.is_span) {
            return;
        }
        let (Some(scale), Some(lane)) = (self.scale, self.lanes.get_mut(&thread)) else { return };
        lane.cover(&scale, span.ts_ns, ts_ns.min(self.to_ns), DRIVER);
    }

    fn instant(&mut self, ts_ns: u64, instant: &Instant) {
        let Some(scale) = self.scale.filter(|scale| ts_ns >= scale.start_ns && ts_ns <= self.to_ns) else {
            return;
        };
        let ns = instant.duration_ns.unwrap_or(0);
        let lane = self.lanes.get_mut(&(instant.pid, instant.tid));
        if instant.name == "off_cpu" {
            if let Some(lane) = lane {
                lane.cover(&scale, ts_ns.saturating_sub(ns), ts_ns, OFF_CPU);
            }
        } else if !instant.name.contains(':') {
            let lane = lane.unwrap_or(&mut self.elsewhere);
            if lane.drawn {
                lane.cell(scale.bucket(ts_ns)).interrupts += 1;
            }
        }
    }

    fn process(&mut self, ts_ns: u64, process: &Process) {
        self.calls.process(ts_ns, process);
        match process {
            Process::Exec(exec) => self.command(exec.pid, exec.command.join(" ")),
            Process::Found(_) => {
                if let Some((pid, command, _)) = process.named() {
                    self.command(pid, command.join(" "));
                }
            }
            Process::Fork(fork) => {
                if let Some(command) = self.commands.get(&fork.pid).cloned() {
                    self.command(fork.child, command);
                }
            }
            Process::Exit(_) | Process::Library(_) => {}
        }
    }

    fn command(&mut self, pid: u32, command: String) {
        let command = short(&command, LONGEST_COMMAND);
        if self.commands.len() < MOST_COUNTED {
            self.commands.insert(pid, command);
        }
    }
}

impl Lane {
    fn at_site(&mut self, site: Option<Site>, ns: u64) {
        let Some(site) = site else { return };
        if let Some((_, sum)) = self.sites.iter_mut().find(|(known, _)| *known == site) {
            add(sum, ns);
        } else if self.sites.len() < SITES {
            self.sites.push((site, ns));
        }
    }

    fn cell(&mut self, bucket: usize) -> &mut Cell {
        if self.cells.len() <= bucket {
            self.cells.resize(bucket + 1, Cell::default());
        }
        let last = self.cells.len() - 1;
        // `resize` above left at least one cell, and `min` keeps the index in range.
        &mut self.cells[bucket.min(last)]
    }

    /// Whether the thread made a call in the time of the picture, or was in one.
    fn is_seen(&self) -> bool {
        self.calls > 0 || self.calls_ns > 0 || !self.cells.is_empty()
    }

    /// Distributes a time over buckets. Times of one thread must not overlap here, since the cost grows with their
    /// length.
    fn spread(&mut self, scale: &Scale, from_ns: u64, to_ns: u64, mut add: impl FnMut(&mut Cell, u64)) {
        let from_ns = from_ns.max(scale.start_ns);
        if to_ns <= from_ns || !self.drawn {
            return;
        }
        for bucket in scale.bucket(from_ns)..=scale.bucket(to_ns - 1) {
            let ns = part(scale, bucket, from_ns, to_ns);
            if ns > 0 {
                add(self.cell(bucket), ns);
            }
        }
    }

    /// Like `spread`, for times that may overlap: it only notes the buckets covered whole.
    fn cover(&mut self, scale: &Scale, from_ns: u64, to_ns: u64, layer: usize) {
        let from_ns = from_ns.max(scale.start_ns);
        if to_ns <= from_ns || !self.drawn {
            return;
        }
        let (first, last) = (scale.bucket(from_ns), scale.bucket(to_ns - 1));
        for bucket in [last, first].into_iter().take(1 + usize::from(first < last)) {
            if let Some(sum) = self.cell(bucket).below.get_mut(layer) {
                add(sum, part(scale, bucket, from_ns, to_ns));
            }
        }
        if last - first < 2 {
            return;
        }
        if self.covered.len() <= last {
            self.covered.resize(last + 1, [0; LAYERS]);
        }
        for (at, by) in [(first + 1, 1), (last, -1)] {
            if let Some(more) = self.covered.get_mut(at).and_then(|more| more.get_mut(layer)) {
                *more += by;
            }
        }
    }

    /// Adds the noted coverage to the buckets.
    fn settle(&mut self, scale: &Scale) {
        let mut now = [0i64; LAYERS];
        for (more, cell) in std::mem::take(&mut self.covered).iter().zip(&mut self.cells) {
            for ((now, more), sum) in now.iter_mut().zip(more).zip(&mut cell.below) {
                *now += more;
                add(sum, scale.bucket_ns.saturating_mul(u64::try_from(*now).unwrap_or(0)));
            }
        }
    }
}

/// The part of a time that falls into a bucket.
fn part(scale: &Scale, bucket: usize, from_ns: u64, to_ns: u64) -> u64 {
    let (begin, end) = (scale.begins_ns(bucket), scale.begins_ns(bucket + 1));
    to_ns.min(end).saturating_sub(from_ns.max(begin))
}
