//! The available metrics. In: a name with its dots. Out: what to look up, and its unit.

use super::part::Seen;
use super::sample::Percentile;
use super::value::Unit;
use crate::figures::DirectionSeen;

#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    Total(&'static Total),
    Memory {
        space: String,
        field: Heap,
    },
    /// Of one direction, or of all directions that are copies.
    Copies {
        direction: Option<String>,
        field: Copied,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap {
    Allocations,
    Allocated,
    Frees,
    Freed,
    Leaks,
    Leaked,
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    Calls,
    Bytes,
    Pageable,
    Rate,
}

/// The direction of improvement, for a threshold on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// A figure of the whole recording.
pub struct Total {
    pub name: &'static str,
    pub unit: Unit,
    /// None: the recording cannot tell.
    pub of: fn(&Seen) -> Option<u64>,
}

impl std::fmt::Debug for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Total {
    fn eq(&self, other: &Total) -> bool {
        self.name == other.name
    }
}

const fn count(name: &'static str, of: fn(&Seen) -> Option<u64>) -> Total {
    Total { name, unit: Unit::Count, of }
}

const fn time(name: &'static str, of: fn(&Seen) -> Option<u64>) -> Total {
    Total { name, unit: Unit::Time, of }
}

const fn bytes(name: &'static str, of: fn(&Seen) -> Option<u64>) -> Total {
    Total { name, unit: Unit::Bytes, of }
}

pub static TOTALS: [Total; 31] = [
    count("calls", |seen| Some(seen.figures.cuda_calls)),
    count("launches", |seen| Some(seen.figures.kernel_launches)),
    count("graph_launches", |seen| Some(seen.figures.graph_launches)),
    count("errors", |seen| Some(seen.figures.failures.calls)),
    count("errors.handled", |seen| Some(seen.figures.failures.handled)),
    count("shutdown_errors", |seen| Some(seen.figures.failures.shutdown)),
    count("in_flight", |seen| Some(seen.figures.in_flight.len() as u64)),
    count("findings", |seen| Some(seen.figures.findings.len() as u64)),
    count("processes", |seen| Some(seen.figures.processes.len() as u64 + seen.figures.more_processes)),
    count("lost", |seen| Some(seen.figures.lost)),
    count(COMPLETE, |seen| Some(u64::from(seen.figures.complete))),
    time("duration", |seen| Some(seen.duration_ns)),
    time("overhead", |seen| {
        seen.figures.cost.as_ref().filter(|cost| cost.stops.is_some()).map(|cost| cost.total_ns)
    }),
    count("memory.allocations", |seen| Some(seen.figures.memory.allocations)),
    bytes("memory.allocated", |seen| Some(seen.figures.memory.allocated_bytes)),
    count("memory.frees", |seen| Some(seen.figures.memory.frees)),
    bytes("memory.freed", |seen| Some(seen.figures.memory.freed_bytes)),
    count("memory.leaks", |seen| Some(seen.figures.memory.leaks.count)),
    bytes("memory.leaked", |seen| Some(seen.figures.memory.leaks.bytes)),
    bytes("memory.peak", |seen| Some(seen.peak_bytes)),
    bytes("memory.held", |seen| Some(seen.figures.memory.held.bytes)),
    count("sync.calls", |seen| Some(seen.figures.sync.calls)),
    time("sync.time", |seen| Some(seen.figures.sync.total_ns)),
    count("ioctl.calls", |seen| seen.figures.kernel_space.as_ref().map(|k| k.ioctls)),
    time("ioctl.time", |seen| seen.figures.kernel_space.as_ref().map(|k| k.ioctl_ns)),
    count("ioctl.errors", |seen| seen.figures.kernel_space.as_ref().map(|k| k.failed_ioctls)),
    count("ioctl.unknown", |seen| seen.figures.kernel_space.as_ref().map(|k| k.unknown_ioctls)),
    count("off_cpu.count", |seen| seen.figures.kernel_space.as_ref().map(|k| k.off_cpu.count)),
    time("off_cpu.time", |seen| seen.figures.kernel_space.as_ref().map(|k| k.off_cpu.total_ns)),
    count("scheduler.calls", |seen| seen.figures.kernel_space.as_ref().map(|k| k.scheduler_calls)),
    count("xids", |seen| seen.figures.kernel_space.as_ref().map(|k| k.xid_count)),
];

pub const COMPLETE: &str = "complete";

pub const SPACES: [&str; 7] = ["device", "managed", "host", "pool", "virtual", "array", "ipc"];
pub const DIRECTIONS: [&str; 7] = ["H2D", "D2H", "D2D", "H2H", "P2P", "set", "unknown"];

pub const HEAP: [(&str, Heap); 7] = [
    ("allocations", Heap::Allocations),
    ("allocated", Heap::Allocated),
    ("frees", Heap::Frees),
    ("freed", Heap::Freed),
    ("leaks", Heap::Leaks),
    ("leaked", Heap::Leaked),
    ("held", Heap::Held),
];

pub const COPIED: [(&str, Copied); 4] = [
    ("calls", Copied::Calls),
    ("bytes", Copied::Bytes),
    ("pageable", Copied::Pageable),
    ("rate", Copied::Rate),
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
            Metric::Memory { field: Heap::Allocated | Heap::Freed | Heap::Leaked | Heap::Held, .. } => {
                Unit::Bytes
            }
            Metric::Memory { .. } => Unit::Count,
            Metric::Copies { field, .. } => match field {
                Copied::Calls => Unit::Count,
                Copied::Bytes | Copied::Pageable => Unit::Bytes,
                Copied::Rate => Unit::Rate,
            },
            Metric::Function { field, .. } | Metric::Kernel { field, .. } | Metric::Ioctl { field, .. } => {
                match field {
                    Field::Calls | Field::Errors => Unit::Count,
                    Field::Bytes => Unit::Bytes,
                    _ => Unit::Time,
                }
            }
        }
    }

    pub fn better(&self) -> Better {
        match self {
            Metric::Total(total) if total.name == COMPLETE => Better::Higher,
            Metric::Copies { field: Copied::Rate, .. } => Better::Higher,
            _ => Better::Lower,
        }
    }

    pub fn percentile(&self) -> Option<Percentile> {
        match self {
            Metric::Function { field: Field::Percentile(of), .. }
            | Metric::Kernel { field: Field::Percentile(of), .. } => Some(*of),
            _ => None,
        }
    }
}

/// Sums directions; only copies that the call waited for have a rate.
pub fn copied<'a>(seen: impl Iterator<Item = &'a DirectionSeen>) -> DirectionSeen {
    seen.fold(DirectionSeen::default(), |sum, one| DirectionSeen {
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
