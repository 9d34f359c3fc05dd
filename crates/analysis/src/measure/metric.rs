//! The available metrics. In: a name with its dots. Out: what to look up, and its unit.

use super::part::Coverage;
use super::sample::Percentile;
use super::value::{Unit, Value};
use crate::figures::{DirectionFigures, LeakSpace, MemoryFigures, SpaceFigures};
use crate::ranks::{JobFigure, JobUnit, Report};
use crate::unknown;

#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    Total(&'static Total),
    Memory {
        space: String,
        field: &'static Heap,
    },
    /// Of one direction, or of all directions that are copies.
    Copies {
        direction: Option<String>,
        field: &'static CopyMetric,
    },
    Function {
        name: String,
        field: Field,
    },
    Kernel {
        name: String,
        field: Field,
    },
    Ioctl {
        name: String,
        field: Field,
    },
    /// Runs of a kernel on the GPU.
    Gpu {
        name: String,
        field: Field,
    },
    /// The delay of all kernels, from the return of the launch call to the start on the GPU.
    Queue {
        field: Field,
    },
    /// Of the ranks of a job: all traces together.
    Job(&'static JobFigure),
    /// A percentile of the time by which the ranks arrive apart at collectives.
    Skew(Percentile),
}

/// A field of a function's calls, a kernel's launches or a request's ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Calls,
    Time,
    Avg,
    Min,
    Max,
    Percentile(Percentile),
    Errors,
    Bytes,
}

/// The direction of improvement, for a threshold on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Improvement {
    Lower,
    Higher,
}

/// A figure, by the name that an expression gives it.
pub struct Figure<F> {
    pub name: &'static str,
    pub unit: Unit,
    /// The figure of the summary that is unknown where this one is; empty: none.
    pub figure: &'static str,
    of: F,
}

/// Of the whole recording. None: the recording cannot tell.
pub type Total = Figure<fn(&Coverage) -> Option<u64>>;
/// Of one space of memory.
pub type Heap = Figure<fn(&MemoryFigures, &str) -> u64>;
/// Of copies, as a fraction.
pub type CopyMetric = Figure<fn(&DirectionFigures) -> (u128, u128)>;

impl<F> std::fmt::Debug for Figure<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl<F> PartialEq for Figure<F> {
    fn eq(&self, other: &Figure<F>) -> bool {
        self.name == other.name
    }
}

const fn count<F>(name: &'static str, figure: &'static str, of: F) -> Figure<F> {
    Figure { name, unit: Unit::Count, figure, of }
}

const fn time<F>(name: &'static str, figure: &'static str, of: F) -> Figure<F> {
    Figure { name, unit: Unit::Time, figure, of }
}

const fn bytes<F>(name: &'static str, figure: &'static str, of: F) -> Figure<F> {
    Figure { name, unit: Unit::Bytes, figure, of }
}

pub static TOTALS: [Total; 36] = [
    count("calls", "cuda_calls", |seen| Some(seen.figures.cuda_calls)),
    count("launches", "kernel_launches", |seen| Some(seen.figures.kernel_launches)),
    count("graph_launches", "graph_launches", |seen| Some(seen.figures.graph_launches)),
    count("errors", "failures.calls", |seen| Some(seen.figures.failures.calls)),
    count("errors.handled", "failures.handled", |seen| Some(seen.figures.failures.handled)),
    count("shutdown_errors", "failures.calls", |seen| Some(seen.figures.failures.shutdown)),
    count("in_flight", "", |seen| Some(seen.figures.in_flight.len() as u64)),
    count("findings", "", |seen| Some(seen.figures.findings.len() as u64)),
    count("processes", "", |seen| Some(seen.figures.processes.len() as u64 + seen.figures.more_processes)),
    count("lost", "", |seen| Some(seen.figures.lost)),
    count(COMPLETE, "", |seen| Some(u64::from(seen.figures.complete))),
    time("duration", "", |seen| Some(seen.duration_ns)),
    time("overhead", "", |seen| {
        seen.figures.cost.as_ref().filter(|cost| cost.stops.is_some()).map(|cost| cost.total_ns)
    }),
    count("memory.allocations", "memory.allocations", |seen| Some(seen.figures.memory.allocations)),
    bytes("memory.allocated", "memory.allocated_bytes", |seen| Some(seen.figures.memory.allocated_bytes)),
    count("memory.frees", "memory.frees", |seen| Some(seen.figures.memory.frees)),
    bytes("memory.freed", "memory.freed_bytes", |seen| Some(seen.figures.memory.freed_bytes)),
    count("memory.leaks", "memory.leaks", |seen| Some(seen.figures.memory.leaks.count)),
    bytes("memory.leaked", "memory.leaks", |seen| Some(seen.figures.memory.leaks.bytes)),
    bytes("memory.peak", unknown::PEAK, |seen| Some(seen.peak_bytes)),
    bytes("memory.held", "memory.held", |seen| Some(seen.figures.memory.held.bytes)),
    count("sync.calls", "sync.calls", |seen| Some(seen.figures.sync.calls)),
    time("sync.time", "sync.total_ns", |seen| Some(seen.figures.sync.total_ns)),
    time("gpu.busy", "gpu.busy_ns", |seen| seen.figures.gpu.as_ref().map(|gpu| gpu.busy_ns)),
    time("gpu.idle", "gpu.idle_ns", |seen| seen.figures.gpu.as_ref().map(|gpu| gpu.idle_ns)),
    time("gpu.waited", "gpu.waited_gap_ns", |seen| seen.figures.gpu.as_ref().map(|gpu| gpu.waited_gap_ns)),
    time("gpu.time", "gpu.time_ns", |seen| seen.figures.gpu.as_ref().map(|gpu| gpu.time_ns)),
    count("gpu.kernels", "gpu.kernel_count", |seen| seen.figures.gpu.as_ref().map(|gpu| gpu.kernel_count)),
    count("ioctl.calls", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.ioctls)),
    time("ioctl.time", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.ioctl_ns)),
    count("ioctl.errors", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.failed_ioctls)),
    count("ioctl.unknown", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.unknown_ioctls)),
    count("off_cpu.count", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.off_cpu.count)),
    time("off_cpu.time", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.off_cpu.total_ns)),
    count("scheduler.calls", "", |seen| seen.figures.kernel_space.as_ref().map(|k| k.scheduler_calls)),
    count("xids", "", |seen| seen.figures.xids().map(|(count, _)| count)),
];

pub const COMPLETE: &str = "complete";

pub const SPACES: [&str; 7] = ["device", "managed", "host", "pool", "virtual", "array", "ipc"];
pub const DIRECTIONS: [&str; 7] = ["H2D", "D2H", "D2D", "H2H", "P2P", "set", "unknown"];

pub static HEAP: [Heap; 7] = [
    count("allocations", "memory.allocations", |memory, name| space(memory, name, |s| s.allocations)),
    bytes("allocated", "memory.allocated_bytes", |memory, name| space(memory, name, |s| s.allocated_bytes)),
    count("frees", "memory.frees", |memory, name| space(memory, name, |s| s.frees)),
    bytes("freed", "memory.freed_bytes", |memory, name| space(memory, name, |s| s.freed_bytes)),
    count("leaks", "memory.leaks", |memory, name| live(&memory.leaks.by_space, name, |s| s.count)),
    bytes("leaked", "memory.leaks", |memory, name| live(&memory.leaks.by_space, name, |s| s.bytes)),
    bytes("held", "memory.held", |memory, name| live(&memory.held.by_space, name, |s| s.bytes)),
];

fn space(memory: &MemoryFigures, name: &str, of: fn(&SpaceFigures) -> u64) -> u64 {
    memory.by_space.iter().find(|space| space.space == name).map_or(0, of)
}

fn live(spaces: &[LeakSpace], name: &str, of: fn(&LeakSpace) -> u64) -> u64 {
    spaces.iter().find(|space| space.space == name).map_or(0, of)
}

pub static COPIED: [CopyMetric; 4] = [
    count("calls", "transfers.count", |copies| (copies.count.into(), 1)),
    bytes("bytes", "transfers.bytes", |copies| (copies.bytes.into(), 1)),
    bytes("pageable", "transfers.bytes", |copies| (copies.pageable_bytes.into(), 1)),
    Figure {
        name: "rate",
        unit: Unit::Rate,
        figure: "transfers.bytes",
        of: |copies| (u128::from(copies.waited_bytes) * 1_000_000_000, copies.waited_ns.into()),
    },
];

/// A kernel has `launches` instead of `calls`.
pub const FIELDS: [(&str, Field); 9] = [
    ("calls", Field::Calls),
    ("launches", Field::Calls),
    ("time", Field::Time),
    ("avg", Field::Avg),
    ("min", Field::Min),
    ("med", Field::Percentile(50_000)),
    ("max", Field::Max),
    ("errors", Field::Errors),
    ("bytes", Field::Bytes),
];

impl Metric {
    pub fn unit(&self) -> Unit {
        match self {
            Metric::Total(total) => total.unit,
            Metric::Memory { field, .. } => field.unit,
            Metric::Copies { field, .. } => field.unit,
            Metric::Job(figure) => match figure.unit {
                JobUnit::Count => Unit::Count,
                JobUnit::Time => Unit::Time,
            },
            Metric::Skew(_) => Unit::Time,
            Metric::Function { field, .. }
            | Metric::Kernel { field, .. }
            | Metric::Ioctl { field, .. }
            | Metric::Gpu { field, .. }
            | Metric::Queue { field } => match field {
                Field::Calls | Field::Errors => Unit::Count,
                Field::Bytes => Unit::Bytes,
                _ => Unit::Time,
            },
        }
    }

    /// Why the recording cannot tell it.
    pub fn unknown<'a>(&self, seen: &'a Coverage) -> Option<&'a String> {
        seen.figures.unknown.get(match self {
            Metric::Total(total) => total.figure,
            Metric::Memory { field, .. } => field.figure,
            Metric::Copies { field, .. } => field.figure,
            Metric::Kernel { .. } => "kernel_launches",
            Metric::Gpu { .. } | Metric::Queue { .. } => unknown::GPU_KERNELS,
            _ => return None,
        })
    }

    /// The value of a figure; none for calls and launches by name.
    pub fn value(&self, seen: &Coverage) -> Option<Value> {
        let unit = self.unit();
        match self {
            Metric::Total(total) => (total.of)(seen).map(|n| Value::whole(n, unit)),
            Metric::Memory { space, field } => {
                Some(Value::whole((field.of)(&seen.figures.memory, space), unit))
            }
            Metric::Copies { direction, field } => {
                let (num, den) = (field.of)(&copied(direction.as_deref(), seen));
                Value::fraction(num, den, unit)
            }
            _ => None,
        }
    }

    /// Whether it is one of a job.
    pub fn is_of_job(&self) -> bool {
        matches!(self, Metric::Job(_) | Metric::Skew(_))
    }

    pub fn of_job(&self, job: &Report) -> Option<Value> {
        let value = match self {
            Metric::Job(figure) => figure.value(job),
            Metric::Skew(of) => job.skew_ns(*of),
            _ => None,
        };
        Some(Value::whole(value?, self.unit()))
    }

    pub fn better(&self) -> Improvement {
        match self {
            Metric::Total(total) if total.name == COMPLETE => Improvement::Higher,
            Metric::Copies { field, .. } if field.unit == Unit::Rate => Improvement::Higher,
            _ => Improvement::Lower,
        }
    }

    pub fn percentile(&self) -> Option<Percentile> {
        match self {
            Metric::Function { field: Field::Percentile(of), .. }
            | Metric::Kernel { field: Field::Percentile(of), .. }
            | Metric::Gpu { field: Field::Percentile(of), .. }
            | Metric::Queue { field: Field::Percentile(of) } => Some(*of),
            _ => None,
        }
    }
}

/// Sums a direction, or all that are copies: a set is none. Only copies that the call waited for have a rate.
pub fn copied(direction: Option<&str>, seen: &Coverage) -> DirectionFigures {
    let wanted = |name: &str| direction.map_or(name != "set", |direction| direction == name);
    let all = seen.figures.transfers.by_direction.iter().filter(|one| wanted(&one.direction));
    all.fold(DirectionFigures::default(), |sum, one| DirectionFigures {
        direction: String::new(),
        count: sum.count + one.count,
        bytes: sum.bytes.saturating_add(one.bytes),
        partial: sum.partial | one.partial,
        waited_count: sum.waited_count + one.waited_count,
        waited_bytes: sum.waited_bytes.saturating_add(one.waited_bytes),
        waited_ns: sum.waited_ns.saturating_add(one.waited_ns),
        pageable_count: sum.pageable_count + one.pageable_count,
        pageable_bytes: sum.pageable_bytes.saturating_add(one.pageable_bytes),
    })
}
