//! `report kernels`: launches by kernel: how often, how far apart, in which shapes, and what launching costs the host.
//! How long a kernel runs on the GPU is in `report gpu`, of a recording that has it.

use super::*;
use gpurec_trace::Launch;
use gpurec_trace::bounds::BytesLeft;

pub const KIND: Kind =
    kind::<Kernels>("kernels", "kernel launches by name: how often, how far apart, which grids")
        .table("kernels", 25)
        .figures(&[LAUNCHES, shows("graph_launches", "how many graphs were launched", &["graph_launches"])]);

/// Limits on distinct kernels and bytes of their names, on shapes of one kernel and of all kernels, and on pairs of a
/// kernel and a process.
const KERNELS_APART: usize = 131_072;
const NAMES: usize = 64 << 20;
const SHAPES_EACH: usize = 64;
const ALL_SHAPES: usize = 1 << 18;
const MOST: usize = 131_072;

/// Row for launches of kernels beyond the limit, and of kernels without a known name.
const OTHERS: &str = "others";

#[derive(Default)]
struct Kernels {
    functions: Functions,
    calls: Calls<Option<Configuration>>,
    kernels: Entries<Kernel, KERNELS_APART, NAMES>,
    shapes: BytesLeft<ALL_SHAPES>,
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
struct Configuration {
    kernel: usize,
    named: bool,
    shape: Shape,
}

struct Kernel {
    name: Arc<str>,
    launches: u64,
    shapes: HashMap<Shape, u64>,
    between: Durations,
    call: Durations,
    sites: Places,
}

impl View for Kernels {
    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(end, context.stacks.site_of(end.begin)),
            Body::Process(process) => {
                if let Some(pid) = self.calls.process(line.ts_ns, process) {
                    self.last.ended(pid);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        if self.launches + self.graphs == 0 {
            return nothing("No kernel was launched in this trace.");
        }
        self.report(&context.stacks, context.has_gpu_work())
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let mut report = Report::default();
        report.facts([("launches", figures.kernel_launches), ("graph_launches", figures.graph_launches)]);
        let kernels = plural(figures.kernels.len() as u64 + figures.more_kernels, "kernel");
        report.title(format!("{} launches of {kernels}", figures.kernel_launches));
        let none = Durations::default();
        let kernels = figures.kernels.iter().map(|seen| Row {
            name: &seen.name,
            launches: seen.launches,
            shape: Shape { grid: seen.grid, block: seen.block, shared: None },
            shapes: seen.shapes,
            between: &none,
            call: &none,
            site: None,
        });
        report.table(table(kernels, figures.kernel_launches).more(figures.more_kernels));
        Some(report)
    }
}

impl Kernels {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.functions.index(&begin.name);
        let role = self.functions.role(function);
        let launch = begin.launch.as_ref().filter(|_| role == Some(Role::KernelLaunch));
        let of = launch.map(|launch| self.configuration(launch));
        let call = Call::new(line.event_id, line.ts_ns, begin, function, of);
        self.calls.begin(call, role.map_or(0, Role::bit));
    }

    fn configuration(&mut self, launch: &Launch) -> Configuration {
        let kernel = self.index(launch.kernel.as_deref());
        let shape = Shape { grid: launch.grid, block: launch.block, shared: launch.shared };
        Configuration { kernel, named: launch.kernel.is_some(), shape }
    }

    fn index(&mut self, name: Option<&str>) -> usize {
        let new = |name: Option<Arc<str>>| Kernel {
            name: name.unwrap_or_else(|| OTHERS.into()),
            launches: 0,
            shapes: HashMap::new(),
            between: Durations::default(),
            call: Durations::default(),
            sites: Places::default(),
        };
        self.kernels.number(name, new, |_, _| true)
    }

    /// Counts a launch at the innermost level that shows it, with details that the level above may have read.
    fn end(&mut self, end: &End, site: Option<Site>) {
        let Some(call) = self.calls.end(end.begin, end.duration_ns) else { return };
        match self.functions.role(call.function) {
            Some(role) if call.has_inside(role.bit()) || !tree::succeeded(end) => {}
            Some(Role::GraphLaunch) => self.graphs += 1,
            Some(Role::KernelLaunch) => {
                let outer = call.parent.and_then(|outer| self.calls.get(outer)).and_then(|outer| outer.of);
                let configuration = call.of.filter(|configuration| configuration.named).or(outer).or(call.of);
                let configuration = configuration.unwrap_or_else(|| self.configuration(&Launch::default()));
                self.launched(call.thread(), &configuration, call.ts_ns, end.duration_ns, site);
            }
            _ => {}
        }
    }

    fn launched(
        &mut self,
        thread: Thread,
        configuration: &Configuration,
        ts_ns: u64,
        call_ns: Option<u64>,
        site: Option<Site>,
    ) {
        self.launches += 1;
        let before =
            self.last.entry(thread.0, configuration.kernel, MOST).and_then(|last| last.replace(ts_ns));
        let Some(kernel) = self.kernels.get_mut(configuration.kernel) else { return };
        kernel.launches += 1;
        kernel.sites.add(site);
        if let Some(count) = kernel.shapes.get_mut(&configuration.shape) {
            *count += 1;
        } else if kernel.shapes.len() < SHAPES_EACH && self.shapes.take(1) {
            kernel.shapes.insert(configuration.shape, 1);
        }
        if let Some(before) = before {
            kernel.between.add(ts_ns.saturating_sub(before));
        }
        if let Some(ns) = call_ns {
            kernel.call.add(ns);
        }
    }

    fn report(&self, stacks: &Stacks, has_gpu_work: bool) -> Report {
        let mut report = Report::default();
        let mut all: Vec<&Kernel> = self.kernels.iter().filter(|kernel| kernel.launches > 0).collect();
        all.sort_by(|a, b| b.launches.cmp(&a.launches).then_with(|| a.name.cmp(&b.name)));
        let graphs = positive(self.graphs).map(|count| plural(count, "graph launch"));
        let graphs = graphs.map_or(String::new(), |it| format!(", and {it}, whose kernels are not seen"));
        let (launches, kernels) = (plural(self.launches, "launch"), plural(all.len() as u64, "kernel"));
        report.title(format!("{launches} of {kernels}{graphs}"));
        report.facts([("launches", self.launches), ("graph_launches", self.graphs)]);
        report.table(table(all.iter().map(|kernel| kernel.row(stacks)), self.launches));
        let seen = match has_gpu_work {
            true => "`gpurec report gpu` has how long the kernel ran on the GPU",
            false => "how long the kernel ran on the GPU is not seen",
        };
        report.words(format!(
            "Every: from one launch of the kernel to its next in the same process, the median (within 1 %) and the most. Call: what launching took the host, the median; {seen}.",
        ));
        let apart = all.iter().filter(|kernel| kernel.shapes.len() > 1);
        let shapes: Vec<_> = apart.flat_map(|kernel| kernel.sorted_shapes()).collect();
        let is_empty = shapes.is_empty();
        let shapes = Listing::new("shapes", "shapes", shapes)
            .count(number("Launches", "launches"), |(_, _, count)| *count)
            .cell(number("Grid", "grid"), |(_, shape, _)| Cell::Dims(shape.grid))
            .cell(number("Block", "block"), |(_, shape, _)| Cell::Dims(shape.block))
            .bytes(number("Shared", "shared_bytes"), |(_, shape, _)| shape.shared)
            .cell(long("Kernel", "kernel"), |(name, _, _)| Cell::Kernel(name.to_string()));
        if is_empty {
            report.data(shapes);
        } else {
            report.title("Kernels launched in several shapes");
            report.table(shapes);
        }
        report
    }
}

/// A row of the table of kernels.
struct Row<'a> {
    name: &'a str,
    launches: u64,
    /// The most frequent shape, and the number of them.
    shape: Shape,
    shapes: u64,
    between: &'a Durations,
    call: &'a Durations,
    site: Option<String>,
}

fn table<'a>(rows: impl Iterator<Item = Row<'a>>, launches: u64) -> Listing<Row<'a>> {
    Listing::new("kernels", "kernels", rows)
        .count(number("Launches", "launches"), |row| row.launches)
        .share(data("launches_percent"), |row| Some((row.launches, launches)))
        .micros(number("Every (us)", "between_med_ns"), |row| row.between.median())
        .micros(data("between_avg_ns"), |row| row.between.average())
        .micros(number("at most", "between_max_ns"), |row| row.between.most())
        .micros(number("Call (us)", "call_med_ns"), |row| row.call.median())
        .micros(data("call_avg_ns"), |row| row.call.average())
        .micros(data("call_max_ns"), |row| row.call.most())
        .cell(number("Grid", "grid"), |row| Cell::Dims(row.shape.grid))
        .cell(number("Block", "block"), |row| Cell::Dims(row.shape.block))
        .bytes(data("shared_bytes"), |row| row.shape.shared)
        .count(number("Shapes", "shapes_count"), |row| (row.shapes > 1).then_some(row.shapes))
        .cell(long("Kernel", "kernel"), |row| Cell::Kernel(row.name.to_owned()))
        .cell(long("Launched from", "call_site"), |row| row.site.clone())
}

impl Kernel {
    /// The shapes with the name of the kernel and their launches, the most frequent first.
    fn sorted_shapes(&self) -> Vec<(&str, Shape, u64)> {
        let mut shapes: Vec<_> =
            self.shapes.iter().map(|(shape, count)| (self.name.as_ref(), *shape, *count)).collect();
        shapes.sort_by(|a, b| b.2.cmp(&a.2).then(a.1.cmp(&b.1)));
        shapes
    }

    fn row(&self, stacks: &Stacks) -> Row<'_> {
        Row {
            name: &self.name,
            launches: self.launches,
            shape: self.sorted_shapes().first().map(|(_, shape, _)| *shape).unwrap_or_default(),
            shapes: self.shapes.len() as u64,
            between: &self.between,
            call: &self.call,
            site: self.sites.text(stacks),
        }
    }
}
