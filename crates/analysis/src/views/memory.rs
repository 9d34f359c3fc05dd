//! `report memory`: live bytes over time, in each memory space of each process.

use std::collections::HashMap;

use super::output::Report;
use super::plot::{self, Columns};
use super::scale::{Scale, halve};
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::table::{Cell, Column, Table, number, size, text};
use crate::text::clean;
use gpurec_trace::{Body, Line, Memory, Op, Process};

const SPACES: &[Column] = &[
    number("PID", "pid"),
    text("Space", "space"),
    number("Peak", "peak_bytes"),
    number("at (s)", "peak_at_ns"),
    number("In the end", "end_bytes"),
    number("Allocs", "allocations"),
    number("Bytes", "allocated_bytes"),
    number("Largest", "largest_bytes"),
    number("Frees", "frees"),
    number("Bytes freed", "freed_bytes"),
];

const PEAKS: &[Column] = &[number("PID", "pid"), number("Peak", "peak_bytes")];

const SERIES: &[Column] = &[
    number("", "pid"),
    text("", "space"),
    number("", "from_ns"),
    number("", "to_ns"),
    number("", "least_bytes"),
    number("", "most_bytes"),
];

/// Limits on distinct spaces of processes, on those with a curve, and on curves in text output.
const MOST: usize = 65_536;
const CURVES: usize = 256;
/// Longest name of a space, in bytes.
const LONGEST: usize = 64;
const SHOWN: usize = 3;

const BUCKETS: usize = 2048;

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Memories { width: crate::paper::picture_width(), ..Memories::default() })
}

#[derive(Default)]
struct Memories {
    width: usize,
    scale: Option<Scale>,
    spaces: HashMap<(u32, Box<str>), Space>,
    curves: usize,
    more: u64,
}

#[derive(Default)]
struct Space {
    now: u64,
    peak: u64,
    peak_ns: u64,
    allocations: u64,
    allocated: u64,
    largest: u64,
    frees: u64,
    freed: u64,
    /// The minimum and maximum of each bucket of time; None beyond `CURVES`.
    curve: Option<Vec<(u64, u64)>>,
}

impl Space {
    /// Extends the last value to this bucket.
    fn fill(&mut self, bucket: usize) {
        if let Some(curve) = &mut self.curve {
            while curve.len() <= bucket {
                curve.push((self.now, self.now));
            }
        }
    }

    fn set(&mut self, bucket: usize, ts_ns: u64, live: u64) {
        self.fill(bucket);
        if let Some((least, most)) = self.curve.as_mut().and_then(|curve| curve.last_mut()) {
            (*least, *most) = ((*least).min(live), (*most).max(live));
        }
        self.now = live;
        if live > self.peak {
            (self.peak, self.peak_ns) = (live, ts_ns);
        }
    }
}

impl View for Memories {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Header(_) => return,
            Body::Memory(memory) => self.memory(line.ts_ns, memory),
            Body::Process(Process::Exit(exit)) => self.ended(exit.pid, line.ts_ns),
            Body::Process(Process::Exec(exec)) => self.ended(exec.pid, line.ts_ns),
            _ => {}
        }
        // The plot begins with the recording, not with the first allocation.
        self.scale.get_or_insert(Scale::new(line.ts_ns, BUCKETS));
    }

    fn finish(&mut self, told: &Told) -> Report {
        if self.spaces.is_empty() {
            return nothing("No memory was allocated or freed in this trace.");
        }
        let last = self.bucket(told.last_ns);
        for space in self.spaces.values_mut() {
            space.fill(last);
        }
        self.report(last)
    }

    fn of_figures(&mut self, figures: &Figures, _: &Told) -> Option<Report> {
        let mut report = Report::default();
        report.title("Memory by space");
        let mut table = Table::new("spaces", "spaces", SPACES);
        for seen in &figures.memory.by_space {
            table.sparse_row(&[
                ("space", seen.space.as_str().into()),
                ("allocations", Cell::Count(seen.allocations)),
                ("allocated_bytes", Cell::Bytes(seen.allocated_bytes)),
                ("frees", Cell::Count(seen.frees)),
                ("freed_bytes", Cell::Bytes(seen.freed_bytes)),
            ]);
        }
        report.table(table);
        report.title("The most that each process held of device and virtual memory together");
        let mut table = Table::new("peaks", "processes", PEAKS);
        for seen in figures.processes.iter().filter(|seen| figures.knows_peak(seen)) {
            table.row(vec![Cell::Count(seen.pid.into()), Cell::Bytes(seen.peak_device_bytes)]);
        }
        table.more(figures.more_processes);
        report.table(table);
        Some(report)
    }
}

impl Memories {
    fn bucket(&mut self, ts_ns: u64) -> usize {
        let scale = self.scale.get_or_insert(Scale::new(ts_ns, BUCKETS));
        let times = scale.reach(ts_ns);
        if times > 0 {
            for curve in self.spaces.values_mut().filter_map(|space| space.curve.as_mut()) {
                halve(curve, times, |(a, b), (c, d): (u64, u64)| (c.min(a), d.max(b)));
            }
        }
        scale.bucket(ts_ns)
    }

    fn memory(&mut self, ts_ns: u64, memory: &Memory) {
        let bucket = self.bucket(ts_ns);
        let space = if memory.space.len() < LONGEST { memory.space.as_ref() } else { "others" };
        let key = (memory.pid, Box::from(space));
        if !self.spaces.contains_key(&key) {
            if self.spaces.len() >= MOST {
                self.more += 1;
                return;
            }
            let curve = (self.curves < CURVES).then(Vec::new);
            self.curves += 1;
            self.spaces.insert(key.clone(), Space { curve, ..Space::default() });
        }
        let Some(space) = self.spaces.get_mut(&key) else { return };
        let size = memory.size.unwrap_or(0);
        match memory.op {
            Op::Alloc => {
                space.allocations += 1;
                space.allocated = space.allocated.saturating_add(size);
                space.largest = space.largest.max(size);
            }
            Op::Free => {
                space.frees += 1;
                space.freed = space.freed.saturating_add(size);
            }
        }
        space.set(bucket, ts_ns, memory.after(space.now));
    }

    /// The exit of a process frees everything, without a line for each allocation.
    fn ended(&mut self, pid: u32, ts_ns: u64) {
        let bucket = self.bucket(ts_ns);
        for (_, space) in self.spaces.iter_mut().filter(|((of, _), _)| *of == pid) {
            space.set(bucket, ts_ns, 0);
        }
    }

    fn report(&self, last: usize) -> Report {
        let mut report = Report::default();
        let mut all: Vec<(&(u32, Box<str>), &Space)> = self.spaces.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.peak, y.allocated, *a).cmp(&(x.peak, x.allocated, *b)));
        self.series(&mut report, &all);
        let largest = all.first().map_or(0, |(_, space)| space.peak);
        let worth = |space: &Space| space.peak > 0 && space.peak >= largest / 100;
        let curves = all.iter().filter(|(_, space)| space.curve.is_some() && worth(space));
        for (key, space) in curves.take(SHOWN) {
            self.picture(&mut report, key, space, last);
        }
        report.title("Live bytes by process and memory space");
        let mut table = Table::new("spaces", "spaces", SPACES);
        for ((pid, name), space) in &all {
            table.row(vec![
                Cell::Count((*pid).into()),
                name.as_ref().into(),
                Cell::Bytes(space.peak),
                if space.peak > 0 { Cell::At(space.peak_ns) } else { Cell::Missing },
                Cell::Bytes(space.now),
                Cell::Count(space.allocations),
                Cell::Bytes(space.allocated),
                Cell::Bytes(space.largest),
                Cell::Count(space.frees),
                Cell::Bytes(space.freed),
            ]);
        }
        report.table(table);
        report.words(
            "Of `pool` it is what is asked of the pool, not what the pool takes from the device; `host` is pinned memory. The end of a process frees what it holds. See `gpurec report leaks` for what was never freed.",
        );
        if self.more > 0 {
            report.words(format!("{} allocations and frees in spaces beyond these are left out.", self.more));
        }
        report
    }

    fn series(&self, report: &mut Report, all: &[(&(u32, Box<str>), &Space)]) {
        let mut table = Table::new("series", "points", SERIES);
        let Some(scale) = self.scale else { return };
        for ((pid, name), space) in all {
            for (bucket, (least, most)) in space.curve.iter().flatten().enumerate() {
                table.row(vec![
                    Cell::Count((*pid).into()),
                    name.as_ref().into(),
                    Cell::At(scale.begins_ns(bucket)),
                    Cell::At(scale.begins_ns(bucket + 1)),
                    Cell::Bytes(*least),
                    Cell::Bytes(*most),
                ]);
            }
        }
        report.data(table);
    }

    fn picture(&self, report: &mut Report, (pid, name): &(u32, Box<str>), space: &Space, last: usize) {
        let (Some(scale), Some(curve)) = (self.scale, &space.curve) else { return };
        let width = self.width.clamp(40, 240) - plot::MARGIN;
        let (columns, each) = Columns::new(scale.start_ns, scale.bucket_ns, last + 1, width);
        let join = |all: &[(u64, u64)]| {
            let least = all.iter().map(|(least, _)| *least).min();
            let most = all.iter().map(|(_, most)| *most).max();
            (least.unwrap_or(0), most.unwrap_or(0))
        };
        let values: Vec<(u64, u64)> = curve.chunks(each).map(join).collect();
        report.title(format!("Live {} memory of pid {pid}: {} at most", clean(name), size(space.peak)));
        report.lines(plot::curve(&columns, &values, space.peak));
        if values.iter().any(|(least, most)| least != most) {
            let each = crate::text::duration(columns.column_ns);
            report.words(format!("A column is {each}; ░ was live for a part of it only."));
        }
    }
}
