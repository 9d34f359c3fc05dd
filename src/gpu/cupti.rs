//! CUPTI's activity records: what gpurec reads of them. In: the bytes of one record, from a process that may have
//! written anything there. Out: the work that it describes, or None. Pure.
//!
//! CUPTI gives its records no version and no length: a library writes its newest layout. From CUDA 12.0 to 13.5 layouts
//! only ever grew at their ends, so one table of offsets reads all of them. Kinds that are not in the table are left out.

/// The kinds of records, by CUPTI's numbers.
pub mod kind {
    pub const COPY: u32 = 1;
    pub const SET: u32 = 2;
    /// Kernels that CUPTI serialised. gpurec never asks for them, but another client may.
    pub const SERIAL_KERNEL: u32 = 3;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const KERNEL: u32 = 10;
    pub const OVERHEAD: u32 = 17;
    pub const PEER_COPY: u32 = 22;
    pub const GRAPH: u32 = 51;
}

/// The most bytes that gpurec reads of any record.
pub const LONGEST: usize = 160;

/// Where a kernel's record has the pointer to its name.
pub const NAME: usize = 104;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    Work(Work),
    Api(Api),
    Overhead(Overhead),
}

/// Work on the GPU. Times are on the clock that CUPTI's client has chosen; both are 0 if CUPTI could not take them, and
/// `end` is 0 of work that had not ended when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    /// The number of the call that submitted it.
    pub correlation: u32,
    /// None outside graphs.
    pub node: Option<Node>,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub graph: u32,
    pub node: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Kernel { grid: [u32; 3], block: [u32; 3], registers: u16, shared: u64 },
    Copy { direction: Option<Direction>, bytes: u64 },
    Set { bytes: u64 },
    Graph { graph: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
    Peer,
}

impl Direction {
    /// As the trace has it.
    pub fn name(self) -> &'static str {
        match self {
            Direction::HostToDevice => "H2D",
            Direction::DeviceToHost => "D2H",
            Direction::DeviceToDevice => "D2D",
            Direction::HostToHost => "H2H",
            Direction::Peer => "P2P",
        }
    }

    /// CUPTI tells arrays from other memory of the device; the trace does not.
    fn of(kind: u8) -> Option<Direction> {
        Some(match kind {
            1 | 3 => Direction::HostToDevice,
            2 | 4 => Direction::DeviceToHost,
            5..=8 => Direction::DeviceToDevice,
            9 => Direction::HostToHost,
            10 => Direction::Peer,
            _ => return None,
        })
    }
}

/// A call of the driver or the runtime, as CUPTI saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    pub is_driver: bool,
    /// CUPTI's number of the function.
    pub function: u32,
    pub start: u64,
    pub end: u64,
    pub tid: u32,
    pub correlation: u32,
    pub status: u32,
}

/// Time that CUPTI or the driver took for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overhead {
    pub kind: u32,
    pub start: u64,
    pub end: u64,
}

/// Offsets of what every record of work has. 0 where a kind has it not: at 0 all have their kind.
struct Layout {
    kind: u32,
    start: usize,
    end: usize,
    device: usize,
    context: usize,
    stream: usize,
    correlation: usize,
    node: usize,
    graph: usize,
}

const KERNEL: Layout = Layout {
    kind: kind::KERNEL,
    start: 16,
    end: 24,
    device: 40,
    context: 44,
    stream: 48,
    correlation: 92,
    node: 144,
    graph: 156,
};

const COPY: Layout = Layout {
    kind: kind::COPY,
    start: 16,
    end: 24,
    device: 32,
    context: 36,
    stream: 40,
    correlation: 44,
    node: 64,
    graph: 72,
};

/// With the source and the destination behind the stream.
const PEER_COPY: Layout = Layout { kind: kind::PEER_COPY, correlation: 60, node: 72, graph: 80, ..COPY };

const SET: Layout = Layout { kind: kind::SET, ..COPY };

const GRAPH: Layout = Layout {
    kind: kind::GRAPH,
    start: 8,
    end: 16,
    device: 24,
    context: 32,
    stream: 36,
    correlation: 4,
    node: 0,
    graph: 28,
};

const LAYOUTS: [Layout; 6] =
    [KERNEL, Layout { kind: kind::SERIAL_KERNEL, ..KERNEL }, COPY, PEER_COPY, SET, GRAPH];

/// Bytes with offsets: None beyond their end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_ne_bytes)
    }

    fn three(&self, at: usize) -> Option<[u32; 3]> {
        Some([self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?])
    }
}

/// Bytes behind the record do not matter.
pub fn decode(bytes: &[u8]) -> Option<Activity> {
    let fields = Fields(bytes);
    let kind = fields.u32(0)?;
    match kind {
        kind::DRIVER | kind::RUNTIME => Some(Activity::Api(Api {
            is_driver: kind == kind::DRIVER,
            function: fields.u32(4)?,
            start: fields.u64(8)?,
            end: fields.u64(16)?,
            tid: fields.u32(28)?,
            correlation: fields.u32(32)?,
            status: fields.u32(36)?,
        })),
        kind::OVERHEAD => Some(Activity::Overhead(Overhead {
            kind: fields.u32(4)?,
            start: fields.u64(24)?,
            end: fields.u64(32)?,
        })),
        _ => work(&fields, LAYOUTS.iter().find(|layout| layout.kind == kind)?).map(Activity::Work),
    }
}

fn work(fields: &Fields, layout: &Layout) -> Option<Work> {
    let graph = fields.u32(layout.graph)?;
    let what = match layout.kind {
        kind::KERNEL | kind::SERIAL_KERNEL => What::Kernel {
            grid: fields.three(52)?,
            block: fields.three(64)?,
            registers: fields.u16(6)?,
            // Bytes of a block: those that the kernel declares, and those that the launch adds.
            shared: u64::from(fields.u32(76)?) + u64::from(fields.u32(80)?),
        },
        kind::SET => What::Set { bytes: fields.u64(8)? },
        kind::GRAPH => What::Graph { graph },
        kind::PEER_COPY => What::Copy { direction: Some(Direction::Peer), bytes: fields.u64(8)? },
        _ => What::Copy { direction: Direction::of(fields.u8(4)?), bytes: fields.u64(8)? },
    };
    let node = match layout.node {
        0 => None,
        at => Some(Node { graph, node: fields.u64(at)? }).filter(|node| node.graph != 0),
    };
    Some(Work {
        start: fields.u64(layout.start)?,
        end: fields.u64(layout.end)?,
        device: fields.u32(layout.device)?,
        context: fields.u32(layout.context)?,
        stream: fields.u32(layout.stream)?,
        correlation: fields.u32(layout.correlation)?,
        node,
        what,
    })
}

#[cfg(test)]
#[path = "cupti_tests.rs"]
mod tests;
