//! `report kernels`: launches by kernel: how often, how far apart, in which shapes, and what launching costs the host.
//! The trace does not show how long a kernel runs on the GPU.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Functions, Thread};
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::by_process::ByProcess;
use crate::histogram::Histogram;
use crate::table::{Cell, Column, Table, data, long, number};
use crate::tally::Role;
use crate::text::plural;
use gpurec_trace::bounds::{Entries, Left};
use gpurec_trace::tree::{self, Call, Calls};
use gpurec_trace::{Begin, Body, End, Launch, Line};

const KERNELS: &[Column] = &[
    number("Launches", "launches"),
    data("launches_percent"),
    number("Every (us)", "between_med_ns"),
    data("between_avg_ns"),
    number("at most", "between_max_ns"),
    number("Call (us)", "call_med_ns"),
    data("call_avg_ns"),
    data("call_max_ns"),
    number("Grid", "grid"),
    number("Block", "block"),
    data("shared_bytes"),
    number("Shapes", "shapes_count"),
    long("Kernel", "kernel"),
];

const SHAPES: &[Column] = &[
    number("Launches", "launches"),
    number("Grid", "grid"),
    number("Block", "block"),
    number("Shared", "shared_bytes"),
    long("Kernel", "kernel"),
];

/// Limits on distinct kernels and bytes of their names, on shapes of one kernel and of all kernels, and on pairs of a
/// kernel and a process.
const KERNELS_APART: usize = 131_072;
const NAMES: usize = 64 << 20;
const SHAPES_EACH: usize = 64;
const ALL_SHAPES: usize = 1 << 18;
const MOST: usize = 131_072;

/// Row for launches of kernels beyond the limit, and of kernels without a known name.
const OTHERS: &str = "others";

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Kernels::default())
}

#[derive(Default)]
struct Kernels {
    functions: Functions,
    calls: Calls<Option<Asked>>,
    kernels: Entries<Kernel, KERNELS_APART, NAMES>,
    shapes: Left<ALL_SHAPES>,
    /// When each process last launched each kernel.
    last: ByProcess<usize, Option<u64>>,
    launches: u64,
    graphs: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Shape {
    grid: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    shared: Option<u64>,
}

/// The configuration of a launch.
#[derive(Clone, Copy)]
struct Asked {
    kernel: usize,
    named: bool,
    shape: Shape,
}

struct Kernel {
    name: Arc<str>,
    launches: u64,
    shapes: HashMap<Shape, u64>,
    between: Spread,
    call: Spread,
}

#[derive(Default)]
struct Spread {
    count: u64,
    total: u128,
    min: Option<u64>,
    max: u64,
    all: Histogram,
}

impl Spread {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total += u128::from(ns);
        self.min = Some(self.min.map_or(ns, |min| min.min(ns)));
        self.max = self.max.max(ns);
        self.all.add(ns);
    }

    fn median(&self) -> Option<u64> {
        // The middle of a histogram bucket may lie outside its values.
        self.min.map(|min| self.all.median().clamp(min, self.max))
    }

    fn most(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    fn avg(&self) -> Option<u64> {
        u64::try_from(self.total.checked_div(self.count.into())?).ok()
    }
}

impl View for Kernels {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(end),
            Body::Process(process) => {
                if let Some(pid) = self.calls.process(line.ts_ns, process) {
                    self.last.ended(pid);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Told) -> Report {
        if self.launches + self.graphs == 0 {
            return nothing("No kernel was launched in this trace.");
        }
        self.report()
    }

    fn of_figures(&mut self, figures: &Figures, _: &Told) -> Option<Report> {
        let mut report = Report::default();
        report.fact("launches", figures.kernel_launches);
        report.fact("graph_launches", figures.graph_launches);
        let kernels = figures.kernels.len() as u64 + figures.more_kernels;
        report.title(format!("{} launches of {}", figures.kernel_launches, plural(kernels, "kernel")));
        let mut table = Table::new("kernels", "kernels", KERNELS);
        for seen in &figures.kernels {
            table.sparse_row(&[
                ("launches", Cell::Count(seen.launches)),
                ("launches_percent", Cell::Share(seen.launches.into(), figures.kernel_launches.into())),
                ("grid", Cell::Dims(seen.grid)),
                ("block", Cell::Dims(seen.block)),
                ("shapes_count", if seen.shapes > 1 { Cell::Count(seen.shapes) } else { Cell::Missing }),
                ("kernel", Cell::Kernel(seen.name.clone())),
            ]);
        }
        table.more(figures.more_kernels);
        report.table(table);
        Some(report)
    }
}

impl Kernels {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let role = self.functions.role(function);
        let launch = begin.launch.as_ref().filter(|_| role == Some(Role::KernelLaunch));
        let of = launch.map(|launch| self.asked(launch));
        let call = Call::new(line.event_id, line.ts_ns, begin, function, of);
        self.calls.begin(call, role.map_or(0, Role::bit));
    }

    fn asked(&mut self, launch: &Launch) -> Asked {
        let kernel = self.index(launch.kernel.as_deref());
        let shape = Shape { grid: launch.grid, block: launch.block, shared: launch.shared };
        Asked { kernel, named: launch.kernel.is_some(), shape }
    }

    fn index(&mut self, name: Option<&str>) -> usize {
        let new = |name: Option<Arc<str>>| Kernel {
            name: name.unwrap_or_else(|| OTHERS.into()),
            launches: 0,
            shapes: HashMap::new(),
            between: Spread::default(),
            call: Spread::default(),
        };
        self.kernels.number(name, new, |_, _| true)
    }

    /// Counts a launch at the innermost level that shows it, with details that the level above may have read.
    fn end(&mut self, end: &End) {
        let Some(call) = self.calls.end(end.begin, end.duration_ns) else { return };
        match self.functions.role(call.function) {
            Some(role) if call.has_inside(role.bit()) || !tree::succeeded(end) => {}
            Some(Role::GraphLaunch) => self.graphs += 1,
            Some(Role::KernelLaunch) => {
                let outer = call.parent.and_then(|outer| self.calls.get(outer)).and_then(|outer| outer.of);
                let asked = call.of.filter(|asked| asked.named).or(outer).or(call.of);
                let asked = asked.unwrap_or_else(|| self.asked(&Launch::default()));
                self.launched(call.thread(), &asked, call.ts_ns, end.duration_ns);
            }
            _ => {}
        }
    }

    fn launched(&mut self, thread: Thread, asked: &Asked, ts_ns: u64, call_ns: Option<u64>) {
        self.launches += 1;
        let before = self.last.entry(thread.0, asked.kernel, MOST).and_then(|last| last.replace(ts_ns));
        let Some(kernel) = self.kernels.get_mut(asked.kernel) else { return };
        kernel.launches += 1;
        if let Some(count) = kernel.shapes.get_mut(&asked.shape) {
            *count += 1;
        } else if kernel.shapes.len() < SHAPES_EACH && self.shapes.take(1) {
            kernel.shapes.insert(asked.shape, 1);
        }
        if let Some(before) = before {
            kernel.between.add(ts_ns.saturating_sub(before));
        }
        if let Some(ns) = call_ns {
            kernel.call.add(ns);
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::default();
        let mut all: Vec<&Kernel> = self.kernels.iter().filter(|kernel| kernel.launches > 0).collect();
        all.sort_by(|a, b| b.launches.cmp(&a.launches).then_with(|| a.name.cmp(&b.name)));
        let graphs = match self.graphs {
            0 => String::new(),
            1 => ", and 1 graph launch, whose kernels are not seen".to_owned(),
            n => format!(", and {n} graph launches, whose kernels are not seen"),
        };
        let (launches, kernels) = (plural(self.launches, "launch"), plural(all.len() as u64, "kernel"));
        report.title(format!("{launches} of {kernels}{graphs}"));
        report.fact("launches", self.launches);
        report.fact("graph_launches", self.graphs);
        let mut table = Table::new("kernels", "kernels", KERNELS);
        for kernel in &all {
            table.row(kernel.row(self.launches));
        }
        report.table(table);
        report.words(
            "Every: from one launch of the kernel to its next in the same process, the median (within 1 %) and the most. Call: what launching took the host, the median; how long the kernel ran on the GPU is not seen.",
        );
        let mut shapes = Table::new("shapes", "shapes", SHAPES);
        for kernel in all.iter().filter(|kernel| kernel.shapes.len() > 1) {
            kernel.shape_rows(&mut shapes);
        }
        if shapes.is_empty() {
            report.data(shapes);
        } else {
            report.title("Kernels launched in several shapes");
            report.table(shapes);
        }
        report
    }
}

impl Kernel {
    fn sorted_shapes(&self) -> Vec<(&Shape, u64)> {
        let mut shapes: Vec<(&Shape, u64)> =
            self.shapes.iter().map(|(shape, count)| (shape, *count)).collect();
        shapes.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        shapes
    }

    fn row(&self, launches: u64) -> Vec<Cell> {
        let shape = self.sorted_shapes().first().map(|(shape, _)| **shape).unwrap_or_default();
        vec![
            Cell::Count(self.launches),
            Cell::Share(self.launches.into(), launches.into()),
            Cell::optional(self.between.median(), Cell::Micros),
            Cell::optional(self.between.avg(), Cell::Micros),
            Cell::optional(self.between.most(), Cell::Micros),
            Cell::optional(self.call.median(), Cell::Micros),
            Cell::optional(self.call.avg(), Cell::Micros),
            Cell::optional(self.call.most(), Cell::Micros),
            Cell::Dims(shape.grid),
            Cell::Dims(shape.block),
            Cell::optional(shape.shared, Cell::Bytes),
            if self.shapes.len() > 1 { Cell::Count(self.shapes.len() as u64) } else { Cell::Missing },
            Cell::Kernel(self.name.to_string()),
        ]
    }

    fn shape_rows(&self, table: &mut Table) {
        for (shape, count) in self.sorted_shapes() {
            table.row(vec![
                Cell::Count(count),
                Cell::Dims(shape.grid),
                Cell::Dims(shape.block),
                Cell::optional(shape.shared, Cell::Bytes),
                Cell::Kernel(self.name.to_string()),
            ]);
        }
    }
}
