//! The events of a trace, one variant for each kind of line.
//!
//! The lines in `line_schema!` are written millions of times: they borrow their texts, and a row of the table is all
//! that a key needs. The others are rare and go through serde (rare.rs).

use std::borrow::Cow;

use super::args::Args;
use super::budget::Budget;
use super::clock::Clock;
use super::device::Device;
use super::enums::{EndKind, GpuKind, GpuSource, Kind, Op, Retval};
use super::rare::{Details, Finish, Header, Lost, Process, Suspend, Xid};
use super::schema::{
    Always, Group, Hex, HexOrDefault, Key, Micros, NonEmpty, NonZeroMicros, OrDefault, OrNull, Sink, Source,
};
use super::schema::{key, line_schema};
use super::stack::Stack;

/// The version of the schema. Keys may be added under the same number; the number grows when a new trace would mislead
/// a reader of the old schema.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// Counts up by 1 from 0, which is the header.
    pub event_id: u64,
    /// Nanoseconds since the recording began.
    pub ts_ns: u64,
    pub body: Body<'a>,
}

impl Line<'_> {
    /// The end of a call whose return is not watched, for readers that count calls where they end. It is not a line of
    /// the trace.
    pub fn end_of_unwatched(&self) -> Option<Line<'static>> {
        let Body::Begin(begin) = &self.body else { return None };
        begin.no_return.as_ref()?;
        let end = End {
            name: begin.name.clone().into_owned().into(),
            pid: begin.pid,
            tid: begin.tid,
            begin: self.event_id,
            ended: EndKind::NotWatched,
            ..End::default()
        };
        Some(Line { event_id: self.event_id, ts_ns: self.ts_ns, body: Body::End(end) })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    Header(Box<Header>),
    Process(Process<'a>),
    Begin(Begin<'a>),
    End(End<'a>),
    Memory(Memory<'a>),
    Transfer(Transfer<'a>),
    Block(Block<'a>),
    Collective(Collective<'a>),
    Stack(Stack<'a>),
    KernelBegin(KernelBegin<'a>),
    KernelEnd(KernelEnd<'a>),
    Instant(Instant<'a>),
    Gpu(Gpu<'a>),
    Device(Box<Device>),
    Clock(Box<Clock>),
    Xid(Xid<'a>),
    Lost(Lost),
    Budget(Budget),
    Suspend(Suspend),
    Finish(Box<Finish>),
    /// A type that this version does not know: a newer gpurec wrote it.
    Unknown(Unknown<'a>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown<'a> {
    pub kind: Cow<'a, str>,
    pub name: Cow<'a, str>,
    /// The line as it is in the file; empty if it is no event.
    pub text: Cow<'a, str>,
}

/// `pid` together with `phase`: each piece of a line costs time.
const BEGIN_PID: Key = Key { name: "pid", before: ",\"phase\":\"B\",\"pid\":", is_detail: false };
const END_PID: Key = Key { name: "pid", before: ",\"phase\":\"E\",\"pid\":", is_detail: false };

line_schema! {
    /// A call into a library began.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Begin<'a> {
        name: Cow<'a, str> = head,
        pid: u32 = (BEGIN_PID),
        tid: u32 = "tid",
        /// The number of calls of this thread that enclose this one.
        depth: u32 as OrDefault = "depth",
        /// The event_id of the call that encloses this one.
        parent: Option<u64> = "parent",
        args: Args<'a> = "args" detail,
        /// With `--stacks`: the number of the stack. The calls inside this one have the same.
        stack: Option<u64> = "stack" detail,
        /// Only for launches and for calls that put a kernel into a graph.
        launch: Option<Launch<'a>>,
        /// Why its return is not watched: the call has no `End` and encloses nothing.
        no_return: Option<Cow<'a, str>> = "no_return",
        /// In a dump of the flight recorder: the line is from before the dump's period.
        carried: bool = "carried" detail,
    }

    /// The GPU, as the process numbers them, and the context; none if the recorded calls do not show them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Where {
        device: Option<u32> = "device" detail,
        context: Option<u64> as Hex = "context" detail,
    }

    /// What a launch starts. A graph launch has only `stream`, `nodes` and `on`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Launch<'a> {
        /// Demangled; the handle in hex if the name is not known yet.
        kernel: Option<Cow<'a, str>> = "kernel" detail,
        grid: Option<[u32; 3]> = "grid" detail,
        block: Option<[u32; 3]> = "block" detail,
        /// Bytes of dynamic shared memory.
        shared: Option<u64> = "shared" detail,
        stream: Option<u64> as Hex = "stream" detail,
        cluster: Option<[u32; 3]> = "cluster" detail,
        cooperative: bool = "cooperative" detail,
        /// The number of nodes in the graph, if known.
        nodes: Option<u64> = "nodes" detail,
        on: Where,
    }

    /// A call into a library ended.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct End<'a> {
        name: Cow<'a, str> = head,
        pid: u32 = (END_PID),
        tid: u32 = "tid",
        /// The event_id of the call's `Begin`.
        begin: u64 = "begin",
        duration_ns: Option<u64> as Micros = "duration_us",
        /// The part of the duration for which gpurec itself had stopped the process.
        paused_ns: u64 as NonZeroMicros = "paused_us",
        retval: Option<Retval> = "retval" detail,
        /// The name of the error; only if the call failed.
        error: Option<Cow<'a, str>> = "error" detail,
        /// What the call wrote through its pointers.
        out: Option<Args<'a>> = "out" detail,
        /// Arguments that could not be read when the call began.
        late: Option<Args<'a>> = "args",
        ended: EndKind,
    }

    /// Memory was allocated or freed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Memory<'a> {
        pid: u32 = "pid",
        tid: u32 = "tid",
        /// The event_id of the call's `Begin`; none if the trace does not have it.
        begin: Option<u64> = "begin" detail,
        on: Where,
        /// The call that did it.
        name: Cow<'a, str> = head function,
        op: Op = "op",
        /// device, managed, host, pool, virtual, array, ipc.
        space: Cow<'a, str> = "space" detail,
        /// The address, or the handle of memory without an address.
        ptr: u64 as Hex = "ptr" detail,
        /// The size of this allocation; none if it could not be read.
        size: Option<u64> = (op.size_key()),
        /// Live bytes of the process in that space after this; none if some of its allocations are unknown.
        total_allocated: Option<u64> = "total_allocated" detail,
        /// The memory was allocated before the recording began.
        earlier: bool = "earlier",
        /// The call that freed it was not seen: the driver gave out the address again.
        missed: bool = "missed" detail,
        /// The program made this allocation through the CUDA runtime: the call is a runtime call or is inside one. False
        /// for memory that libraries allocate from the driver themselves.
        runtime: bool = "runtime" detail,
        /// In a dump of the flight recorder: the line is from before the dump's period.
        carried: bool = "carried" detail,
        /// The number of the call's stack, if the line is carried and the trace does not have the call.
        stack: Option<u64> = "stack" detail,
    }

    /// Memory was copied or set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Transfer<'a> {
        pid: u32 = "pid",
        tid: u32 = "tid",
        /// The event_id of the call's `Begin`.
        begin: u64 = "begin" detail,
        on: Where,
        /// The call that did it.
        name: Cow<'a, str> = head function,
        /// H2D, D2H, D2D, H2H, P2P, set; unknown if the calls do not show the direction.
        direction: Cow<'a, str> = "direction",
        size: u64 = "size" detail,
        /// The call may return before the copy is done.
        is_async: bool as Always = "async" detail,
        /// The list of sizes was longer than what was read, so `size` is only a part.
        partial: bool = "partial" detail,
        /// The host side is known to be memory that CUDA has not pinned.
        pageable: bool = "pageable" detail,
        /// Only for a copy that the call waited for.
        duration_ns: Option<u64> as Micros = "duration_us",
    }
    computed bytes_per_sec: Option<u64> = "bytes_per_sec" detail;

    /// PyTorch's allocator handed out or took back a block. The block lies in memory that `Memory` counts.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Block<'a> {
        pid: u32 = "pid",
        tid: u32 = "tid",
        /// The event_id of the enclosing recorded call, if there is one.
        begin: Option<u64> = "begin" detail,
        /// The probe.
        name: Cow<'a, str> = head function,
        op: Op = "op",
        ptr: u64 as Hex = "ptr" detail,
        /// None if it could not be read.
        size: Option<u64> = "size" detail,
        device: Option<u32> = "device" detail,
        stream: Option<u64> as Hex = "stream" detail,
        /// The number of the stack.
        stack: Option<u64> = "stack" detail,
    }

    /// A collective or point-to-point call of NCCL was enqueued.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Collective<'a> {
        pid: u32 = "pid",
        tid: u32 = "tid",
        /// The event_id of the call's `Begin`.
        begin: u64 = "begin" detail,
        /// The call.
        name: Cow<'a, str> = head function,
        /// The same on all ranks of a communicator; none if the recording did not see how it was made.
        comm: Option<Cow<'a, str>> = "comm" detail,
        rank: Option<u32> = "rank" detail,
        nranks: Option<u32> = "nranks" detail,
        /// The number of collectives of the communicator before this one, in this process.
        seq: Option<u64> = "seq" detail,
        /// AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, AlltoAll, Gather, Scatter, Send, Recv…
        op: Cow<'a, str> = "op" detail,
        /// In elements, as the call counts them.
        count: Option<u64> = "count" detail,
        dtype: Option<Cow<'a, str>> = "dtype" detail,
        /// `count` in bytes.
        bytes: Option<u64> = "bytes" detail,
        stream: Option<u64> as Hex = "stream" detail,
        root: Option<u32> = "root" detail,
        redop: Option<Cow<'a, str>> = "redop" detail,
        /// The rank that a send goes to, or that a receive comes from.
        peer: Option<u32> = "peer" detail,
        /// The number of sends to this peer, or of receives from it, before this one.
        pseq: Option<u64> = "pseq" detail,
        /// The number of the group call around it.
        group: Option<u64> = "group" detail,
    }

    /// With `--kernel`: an ioctl or a function of the driver began. Depth and parent continue from the calls in user
    /// space: the parent is the enclosing call or event.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KernelBegin<'a> {
        kind: Kind = head,
        name: Cow<'a, str> = head,
        pid: u32 = (BEGIN_PID),
        tid: u32 = "tid",
        depth: u32 as OrDefault = "depth",
        parent: Option<u64> = "parent",
        ioctl: Option<Ioctl<'a>>,
        args: Option<Args<'a>> = "args" detail,
        /// The name of a kernel thread, which is never a traced process.
        thread: Option<Cow<'a, str>> = "thread",
        /// In a dump of the flight recorder: the line is from before the dump's period.
        carried: bool = "carried" detail,
    }

    /// The request of an ioctl.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Ioctl<'a> {
        /// nvidiactl, nvidia0, nvidia-uvm…
        device: Cow<'a, str> as OrDefault = "device" detail,
        cmd: u64 as HexOrDefault = "cmd" detail,
        request: Cow<'a, str> as OrDefault = "request" detail,
        detail: Args<'a> as NonEmpty = "detail" detail,
        /// The request, RM command or class has no known name.
        unknown: bool = "unknown" detail,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct KernelEnd<'a> {
        kind: Kind = head,
        name: Cow<'a, str> = head,
        pid: u32 = (END_PID),
        tid: u32 = "tid",
        /// The event_id of its `KernelBegin`.
        begin: u64 = "begin",
        duration_ns: Option<u64> as Micros = "duration_us",
        retval: Option<Retval> = "retval" detail,
        /// NV_OK, NV_ERR_…: the driver's status, whatever the system call returned.
        status: Option<Cow<'a, str>> = "status" detail,
        /// The errno of a failed system call, by name.
        error: Option<Cow<'a, str>> = "error" detail,
        out: Option<Args<'a>> = "out" detail,
        ended: EndKind,
    }

    /// An event without a begin and an end of its own: an interrupt (its ts is the end), time off the CPU (its ts is when
    /// the thread ran again), a tracepoint.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Instant<'a> {
        kind: Kind = head,
        name: Cow<'a, str> = head,
        pid: u32 = "pid" detail,
        tid: u32 = "tid" detail,
        depth: u32 as OrDefault = "depth",
        parent: Option<u64> = "parent" detail,
        cpu: Option<u32> = "cpu" detail,
        duration_ns: Option<u64> as Micros = "duration_us",
        args: Option<Args<'a>> = "args" detail,
    }

    /// Something ran on the GPU. The line's ts is its start there, and the line may come long after that.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Gpu<'a> {
        /// The name of the kernel, demangled; or memcpy, memset, graph.
        name: Cow<'a, str> = head,
        kind: GpuKind = "kind" detail,
        source: GpuSource = "source" detail,
        pid: u32 = "pid" detail,
        grid: Option<[u32; 3]> = "grid" detail,
        block: Option<[u32; 3]> = "block" detail,
        /// Registers of a thread.
        registers: Option<u32> = "registers" detail,
        /// Bytes of shared memory of a block, static and dynamic.
        shared: Option<u64> = "shared" detail,
        /// CUPTI's number of the stream, which is no handle.
        stream: u32 = "stream" detail,
        device: u32 = "device" detail,
        /// CUPTI's number of the context.
        context: u32 = "context" detail,
        /// CUPTI's number of the call that submitted it.
        correlation: u32 = "correlation" detail,
        /// The event_id of the innermost recorded call that submitted it; none if unknown.
        begin: Option<u64> as OrNull = "begin" detail,
        duration_ns: u64 as Micros = "duration_us",
        /// The time from the end of that call to the start; negative if it started before.
        queued_ns: Option<i64> as Micros = "queued_us" detail,
        /// As in `Transfer`.
        direction: Option<Cow<'a, str>> = "direction" detail,
        size: Option<u64> = "size" detail,
        /// CUPTI's numbers of the graph and its node.
        graph: Option<u64> = "graph" detail,
        node: Option<u64> = "node" detail,
    }
}

impl Op {
    fn size_key(self) -> Key {
        match self {
            Op::Alloc => key!("size" detail),
            Op::Free => key!("freed" detail),
        }
    }
}

impl Memory<'_> {
    /// Live bytes in its space after this event, if there were `before` bytes before it. Neither count includes memory
    /// from before the recording.
    pub fn after(&self, before: u64) -> u64 {
        let size = self.size.unwrap_or(0);
        self.total_allocated.unwrap_or_else(|| match self.op {
            Op::Alloc => before.saturating_add(size),
            Op::Free => before.saturating_sub(size),
        })
    }
}

impl Transfer<'_> {
    pub fn bytes_per_sec(&self) -> Option<u64> {
        let ns = self.duration_ns.filter(|ns| *ns > 0)?;
        u64::try_from(u128::from(self.size) * 1_000_000_000 / u128::from(ns)).ok()
    }
}

/// Reads a frequent line; none if it is another.
#[inline(always)]
pub(super) fn frequent<'a, S: Source<'a>>(from: &mut S) -> Result<Option<Body<'a>>, S::Error> {
    Ok(Some(match from.line_type() {
        "userspace" => match from.phase()? {
            Some(b'B') => Body::Begin(Group::read(from)?),
            Some(b'E') => Body::End(Group::read(from)?),
            _ => return Err(S::error("its phase is neither B nor E")),
        },
        "kernel" | "scheduler" => match from.phase()? {
            Some(b'B') => Body::KernelBegin(Group::read(from)?),
            Some(b'E') => Body::KernelEnd(Group::read(from)?),
            None => Body::Instant(Group::read(from)?),
            Some(_) => return Err(S::error("its phase is neither B nor E")),
        },
        "memory" => Body::Memory(Group::read(from)?),
        "transfer" => Body::Transfer(Group::read(from)?),
        "block" => Body::Block(Group::read(from)?),
        "collective" => Body::Collective(Group::read(from)?),
        "gpu" => Body::Gpu(Group::read(from)?),
        _ => return Ok(None),
    }))
}

/// The rare lines by type and name. Only a process has several.
macro_rules! rare_lines {
    ($it:ident: $($kind:literal $name:literal [$($line:tt)+];)*) => {
        impl Body<'_> {
            /// The `type` and the `name` of the line.
            #[allow(unused_variables)]
            pub fn head(&self) -> (&str, &str) {
                match self {
                    Body::Begin(it) => ("userspace", &it.name),
                    Body::End(it) => ("userspace", &it.name),
                    Body::Memory(it) => ("memory", &it.name),
                    Body::Transfer(it) => ("transfer", &it.name),
                    Body::Block(it) => ("block", &it.name),
                    Body::Collective(it) => ("collective", &it.name),
                    Body::KernelBegin(it) => (it.kind.name(), &it.name),
                    Body::KernelEnd(it) => (it.kind.name(), &it.name),
                    Body::Instant(it) => (it.kind.name(), &it.name),
                    Body::Gpu(it) => ("gpu", &it.name),
                    Body::Unknown(it) => (&it.kind, &it.name),
                    $(Body::$($line)+ => ($kind, $name),)*
                }
            }

            /// Whether it is one of the lines that are written millions of times.
            #[inline(always)]
            #[allow(unused_variables)]
            pub fn is_frequent(&self) -> bool {
                match self {
                    Body::Unknown(_) => false,
                    $(Body::$($line)+ => false,)*
                    _ => true,
                }
            }

            /// The details of the event, for exports.
            pub fn details(&self, to: &mut impl Sink) {
                match self {
                    $(Body::$($line)+ => $it.details(to),)*
                    frequent => frequent.show(to),
                }
            }

            /// Writes a rare line as an object of its own.
            pub(super) fn write_rare(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
                match self {
                    $(Body::$($line)+ => serde_json::to_writer(out, $it),)*
                    _ => Ok(()),
                }
            }
        }

        /// Reads a rare line again as its own type.
        pub(super) fn rare<'a>(kind: &str, name: &str, text: &'a [u8]) -> serde_json::Result<Option<Body<'a>>> {
            $(if kind == $kind && (name == $name || kind != "process") {
                let $it = serde_json::from_slice(text)?;
                return Ok(Some(Body::$($line)+));
            })*
            Ok(None)
        }
    };
}

rare_lines! { it:
    "header" "gpurec" [Header(it)];
    "process" "exec" [Process(Process::Exec(it))];
    "process" "found" [Process(Process::Found(it))];
    "process" "fork" [Process(Process::Fork(it))];
    "process" "exit" [Process(Process::Exit(it))];
    "process" "library" [Process(Process::Library(it))];
    "xid" "xid" [Xid(it)];
    "device" "device" [Device(it)];
    "clock" "clock" [Clock(it)];
    "lost" "lost" [Lost(it)];
    "budget" "budget" [Budget(it)];
    "suspend" "suspend" [Suspend(it)];
    "stack" "stack" [Stack(it)];
    "end" "end" [Finish(it)];
}

impl Body<'_> {
    /// The keys of a frequent line, after those that every line has.
    #[inline(always)]
    pub fn show(&self, to: &mut impl Sink) {
        match self {
            Body::Begin(it) => it.show(to),
            Body::End(it) => it.show(to),
            Body::Memory(it) => it.show(to),
            Body::Transfer(it) => it.show(to),
            Body::Block(it) => it.show(to),
            Body::Collective(it) => it.show(to),
            Body::KernelBegin(it) => it.show(to),
            Body::KernelEnd(it) => it.show(to),
            Body::Instant(it) => it.show(to),
            Body::Gpu(it) => it.show(to),
            _ => {}
        }
    }
}
