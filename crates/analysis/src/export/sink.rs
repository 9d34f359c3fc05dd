//! What a format is given to write, in the order of the trace. In: events with their place in the
//! output (tracks.rs) and the line they come from. Out: bytes in a buffer, which mod.rs writes
//! away. A format decides how something is said, never what.

use super::tracks::{Process, Track};
use gpurec_trace::Line;

/// Where and when something is.
#[derive(Clone, Copy)]
pub struct At {
    /// Nanoseconds since the first of the recordings began.
    pub ts_ns: u64,
    pub track: Track,
}

/// An arrow from a call to the ioctl that it makes.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Of the call: one for all it does.
    pub call: u64,
    /// Of this ioctl alone.
    pub ioctl: u64,
    /// When the call began.
    pub from_ns: u64,
}

/// What a call that begins has to do with ioctls.
#[derive(Clone, Copy)]
pub enum Linked {
    No,
    /// It may make some, and this is its number.
    Out(u64),
    In(Flow),
}

/// Why a call has an end that no line tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its line is missing: the call around it ended, or another began.
    Missing,
    /// Its process ended or became another program.
    Died,
    /// The recording ended.
    InFlight,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Cause::Missing => "lost",
            Cause::Died => "died",
            Cause::InFlight => "in_flight",
        }
    }
}

/// One trace of those that are merged.
pub struct Source<'a> {
    pub file: &'a str,
    /// From 0.
    pub index: usize,
}

pub trait Sink {
    /// What is kept of a call until it ends.
    type Held;

    /// Bytes that are held of calls that have not ended.
    fn held(&self) -> usize {
        0
    }

    fn source(&mut self, source: &Source);
    /// The wall clock at 0, in nanoseconds since 1970. Once at most, before any event.
    fn clock(&mut self, wall_ns: u64);
    /// A process, before anything of it, and again when it has another name.
    fn process(&mut self, process: &Process);
    /// A line of events, before anything of it. A thread's has no parent but its process.
    fn track(&mut self, track: Track, parent: u64, name: &str, is_thread: bool);
    fn counter_track(&mut self, uuid: u64, process: &Process, name: &str);

    fn begin(&mut self, at: At, line: &Line, rank: Option<u32>, linked: Linked) -> Self::Held;
    fn end(&mut self, at: At, line: &Line, held: Self::Held);
    fn close(&mut self, at: At, held: Self::Held, cause: Cause);
    /// Something with no begin and end of its own; with a duration, it ends at `at`.
    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, rank: Option<u32>);
    fn counter(&mut self, ts_ns: u64, uuid: u64, pid: u32, name: &str, value: u64);
    /// What is to be said of a trace, on its track.
    fn note(&mut self, at: At, text: &str);

    fn finish(&mut self);
    fn buffer(&mut self) -> &mut Vec<u8>;
}

/// The category of a line, its `type`.
pub fn category(line: &Line) -> &'static str {
    use gpurec_trace::Body;
    match &line.body {
        Body::Begin(_) | Body::End(_) => "userspace",
        Body::KernelBegin(begin) => begin.kind.name(),
        Body::KernelEnd(end) => end.kind.name(),
        Body::Instant(instant) => instant.kind.name(),
        Body::Memory(_) => "memory",
        Body::Transfer(_) => "transfer",
        Body::Xid(_) => "xid",
        Body::Process(_) => "process",
        Body::Lost(_) => "lost",
        Body::Budget(_) => "budget",
        Body::Suspend(_) => "suspend",
        Body::Header(_) => "header",
        Body::Finish(_) => "end",
        Body::Unknown(_) => "unknown",
    }
}

/// The name of a line, as the trace has it.
pub fn function<'a>(line: &'a Line) -> &'a str {
    use gpurec_trace::Body;
    match &line.body {
        Body::Memory(memory) => &memory.name,
        Body::Transfer(transfer) => &transfer.name,
        Body::Header(_) => "gpurec",
        Body::Finish(_) => "end",
        _ => name(line),
    }
}

/// What an event of a line is called on the screen.
pub fn name<'a>(line: &'a Line) -> &'a str {
    use gpurec_trace::{Body, Op, Process};
    match &line.body {
        Body::Begin(begin) => &begin.name,
        Body::KernelBegin(begin) => &begin.name,
        Body::Instant(instant) => &instant.name,
        Body::Memory(memory) if memory.op == Op::Alloc => "alloc",
        Body::Memory(_) => "free",
        Body::Transfer(transfer) => &transfer.direction,
        Body::Xid(_) => "xid",
        Body::Process(Process::Exec(_)) => "exec",
        Body::Process(Process::Found(_)) => "found",
        Body::Process(Process::Fork(_)) => "fork",
        Body::Process(Process::Exit(_)) => "exit",
        Body::Process(Process::Library(_)) => "library",
        Body::Lost(_) => "lost",
        Body::Budget(_) => "budget",
        Body::Suspend(_) => "suspend",
        Body::Header(_) => "recording begins",
        Body::Finish(_) => "recording ends",
        Body::End(end) => &end.name,
        Body::KernelEnd(end) => &end.name,
        Body::Unknown(_) => "unknown",
    }
}
