//! `report memory`: live bytes over time, in each memory space of each process.

use super::blocks::Blocks;
use super::held::{Held, Room};
use super::plot::{self, Columns};
use super::scale::{Scale, halve};
use super::*;
use gpurec_trace::{Memory, Op};

pub const KIND: Kind =
    kind::<Memories>("memory", "live bytes over time, by process and memory space, as a plot")
        .table("series", 20)
        .figures(&[shows("memory.peak", "how much memory was held", &[])]);

/// Limits on distinct spaces of processes, on those with a curve, and on curves in text output.
const MOST: usize = 65_536;
const CURVES: usize = 64;
/// Longest name of a space, in bytes.
const LONGEST: usize = 64;
const SHOWN: usize = 3;

const BUCKETS: usize = 2048;

#[derive(Default)]
struct Memories {
    width: usize,
    scale: Option<Scale>,
    /// Boxed, since up to half of a table is free.
    spaces: HashMap<(u32, Box<str>), Box<Space>>,
    curves: usize,
    more: u64,
    room: Room,
    blocks: Blocks,
}

#[derive(Default)]
struct Space {
    now: u64,
    peak: u64,
    peak_ns: u64,
    allocated: Total,
    largest: u64,
    freed: Total,
    /// The minimum and maximum of each bucket of time; None beyond `CURVES`.
    curve: Option<Vec<(u64, u64)>>,
    by_site: Held,
}

impl Space {
    /// Extends the last value to this bucket.
    fn fill(&mut self, bucket: usize) {
        if let Some(curve) = &mut self.curve {
            curve.resize(curve.len().max(bucket + 1), (self.now, self.now));
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
            self.by_site.peaked();
        }
    }
}

impl View for Memories {
    fn configure(&mut self, _: &ReportConfig) {
        self.width = crate::paper::picture_width();
    }

    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Header(_) => return,
            Body::Memory(memory) => self.memory(line.ts_ns, memory, context.stacks.site_of_memory(memory)),
            Body::Block(block) => {
                let held = self.holds(block.pid);
                self.blocks.add(line.ts_ns, block, held, context.stacks.site_of_block(block));
            }
            Body::Process(Process::Exit(exit)) => self.ended(exit.pid, line.ts_ns),
            Body::Process(Process::Exec(exec)) => self.ended(exec.pid, line.ts_ns),
            _ => {}
        }
        // The plot begins with the recording, not with the first allocation.
        self.scale.get_or_insert(Scale::new(line.ts_ns, BUCKETS));
    }

    fn finish(&mut self, context: &Context) -> Report {
        if self.spaces.is_empty() && self.blocks.is_empty() {
            return nothing("No memory was allocated or freed in this trace.");
        }
        let last = self.bucket(context.last_ns);
        for space in self.spaces.values_mut() {
            space.fill(last);
        }
        self.report(last, context)
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let mut report = Report::default();
        report.title("Memory by space");
        let mut table = table_of_spaces(usize::MAX, &[]);
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
        let known = figures.processes.iter().filter(|seen| figures.knows_peak(seen));
        report.table(
            Listing::new("peaks", "processes", known)
                .count(number("PID", "pid"), |seen| seen.pid)
                .bytes(number("Peak", "peak_bytes"), |seen| seen.peak_device_bytes)
                .more(figures.more_processes),
        );
        Some(report)
    }
}

/// A space of a process.
type Row<'a> = (&'a (u32, Box<str>), &'a Space);

fn table_of_spaces(most: usize, rows: &[Row]) -> Table {
    Listing::at_most(most, "spaces", "spaces", rows)
        .count(number("PID", "pid"), |((pid, _), _)| *pid)
        .cell(text("Space", "space"), |((_, name), _)| name)
        .bytes(number("Peak", "peak_bytes"), |(_, space)| space.peak)
        .at(number("at (s)", "peak_at_ns"), |(_, space)| positive(space.peak).map(|_| space.peak_ns))
        .bytes(number("In the end", "end_bytes"), |(_, space)| space.now)
        .count(number("Allocs", "allocations"), |(_, space)| space.allocated.count)
        .bytes(number("Bytes", "allocated_bytes"), |(_, space)| space.allocated.sum)
        .bytes(number("Largest", "largest_bytes"), |(_, space)| space.largest)
        .count(number("Frees", "frees"), |(_, space)| space.freed.count)
        .bytes(number("Bytes freed", "freed_bytes"), |(_, space)| space.freed.sum)
        .into()
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

    fn memory(&mut self, ts_ns: u64, memory: &Memory, site: Option<Site>) {
        let bucket = self.bucket(ts_ns);
        let space = if memory.space.len() < LONGEST { memory.space.as_ref() } else { "others" };
        let key = (memory.pid, Box::from(space));
        let Some(space) = entry(&mut self.spaces, key, MOST) else {
            self.more += 1;
            return;
        };
        if space.allocated.count + space.freed.count == 0 && self.curves < CURVES {
            self.curves += 1;
            space.curve = Some(Vec::new());
        }
        let size = memory.size.unwrap_or(0);
        match memory.op {
            Op::Alloc => {
                space.allocated.add(size);
                space.largest = space.largest.max(size);
                space.by_site.alloc(&mut self.room, memory.ptr, size, site);
            }
            Op::Free => {
                space.freed.add(size);
                space.by_site.free(&mut self.room, memory.ptr);
            }
        }
        space.set(bucket, ts_ns, memory.after(space.now));
    }

    /// The exit of a process frees everything, without a line for each allocation.
    fn ended(&mut self, pid: u32, ts_ns: u64) {
        let bucket = self.bucket(ts_ns);
        for (_, space) in self.spaces.iter_mut().filter(|((of, _), _)| *of == pid) {
            space.by_site.clear(&mut self.room);
            space.set(bucket, ts_ns, 0);
        }
        self.blocks.ended(pid);
    }

    /// What a process holds of device and virtual memory.
    fn holds(&self, pid: u32) -> u64 {
        let of = |space: &str| self.spaces.get(&(pid, Box::from(space))).map_or(0, |space| space.now);
        of("device").saturating_add(of("virtual"))
    }

    fn sites(&self, report: &mut Report, all: &[Row], stacks: &Stacks) {
        let sites = all.iter().flat_map(|((pid, name), space)| {
            space.by_site.at_peak().into_iter().map(move |(site, total)| (*pid, name, site, total))
        });
        report.section(
            "Held at the peak, by call site",
            Listing::new("held_at_peak", "call sites", sites)
                .bytes(number("Bytes", "bytes"), |(.., total)| total.sum)
                .count(number("Allocs", "allocations"), |(.., total)| total.count)
                .count(number("PID", "pid"), |(pid, ..)| *pid)
                .cell(text("Space", "space"), |(_, name, ..)| Cell::from(name.as_ref()))
                .cell(long("Call site", "call_site"), |(_, _, site, _)| site.map(|site| stacks.text(site))),
        );
    }

    fn report(&self, last: usize, context: &Context) -> Report {
        let stacks = &context.stacks;
        let mut report = Report::default();
        let mut all: Vec<Row> = self.spaces.iter().map(|(key, space)| (key, &**space)).collect();
        all.sort_by(|(a, x), (b, y)| (y.peak, y.allocated.sum, *a).cmp(&(x.peak, x.allocated.sum, *b)));
        self.series(&mut report, &all, context.rows);
        let largest = all.first().map_or(0, |(_, space)| space.peak);
        let worth = |space: &Space| space.peak > 0 && space.peak >= largest / 100;
        let curves = all.iter().filter(|(_, space)| space.curve.is_some() && worth(space));
        for (key, space) in curves.take(SHOWN) {
            self.picture(&mut report, key, space, last);
        }
        report.title("Live bytes by process and memory space");
        report.table(table_of_spaces(context.rows, &all));
        report.words(
            "Of `pool` it is what is asked of the pool, not what the pool takes from the device; `host` is pinned memory. The end of a process frees what it holds. See `gpurec report leaks` for what was never freed.",
        );
        self.sites(&mut report, &all, stacks);
        self.blocks.report(&mut report, stacks);
        report.words_if(
            self.more > 0,
            format!("{} allocations and frees in spaces beyond these are left out.", self.more),
        );
        report
    }

    fn series(&self, report: &mut Report, all: &[Row], most: usize) {
        let Some(scale) = self.scale else { return };
        let points = all.iter().flat_map(|(key, space)| {
            space.curve.iter().flatten().enumerate().map(move |(bucket, ends)| (*key, bucket, *ends))
        });
        report.data(
            Listing::at_most(most, "series", "points", points)
                .count(data("pid"), |((pid, _), _, _)| *pid)
                .cell(data("space"), |((_, name), _, _)| name)
                .at(data("from_ns"), |(_, bucket, _)| scale.begins_ns(*bucket))
                .at(data("to_ns"), |(_, bucket, _)| scale.begins_ns(bucket + 1))
                .bytes(data("least_bytes"), |(_, _, (least, _))| *least)
                .bytes(data("most_bytes"), |(_, _, (_, most))| *most),
        );
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
