//! The interface of an export format, called in the order of the trace, with the processes and tracks that it shows. In:
//! events with their place in the output and their line. Out: bytes in a buffer, which mod.rs writes out. A format
//! decides how to write an event, never which events there are.

use anyhow::Result;

use crate::stacks::Stacks;
use gpurec_trace::{Body, Line, Notes};

/// One track of events, identified by `uuid` in Perfetto, by pid and tid in Chrome.
#[derive(Clone, Copy)]
pub struct Track {
    pub uuid: u64,
    pub pid: u32,
    pub tid: u32,
}

#[derive(Default)]
pub struct Process {
    pub uuid: u64,
    /// The pid in the output: that of the trace, unless another trace uses it.
    pub pid: u32,
    pub name: String,
    pub command: Vec<String>,
    pub rank: Option<u32>,
    /// When the process ended.
    pub exit_ns: Option<u64>,
    /// Threads of the process that have been in a call.
    pub busy: Vec<usize>,
    pub announced: bool,
    pub spaces: Vec<Space>,
}

/// Live memory in one space.
pub struct Space {
    pub space: Box<str>,
    pub name: String,
    pub uuid: u64,
    pub live: u64,
}

/// The place and time of an event.
#[derive(Clone, Copy)]
pub struct At {
    /// Nanoseconds since the start of the first recording.
    pub ts_ns: u64,
    pub track: Track,
}

/// The relation of a beginning call to ioctls.
#[derive(Clone, Copy)]
pub enum Link {
    No,
    /// The call may make ioctls, and has this id.
    Out(u64),
    /// An arrow from a call to this ioctl, which it makes.
    In {
        /// Id of the call, common to all its ioctls.
        call: u64,
        ioctl: u64,
        /// When the call began.
        from_ns: u64,
    },
}

/// What a beginning call leads to.
#[derive(Clone, Copy)]
pub struct Links {
    pub ioctl: Link,
    /// The call submits work to the GPU, and has this id in its flow.
    pub work: Option<u64>,
}

/// The call that submitted some GPU work.
#[derive(Clone, Copy)]
pub struct WorkLink {
    /// The flow of the call, common to all its work.
    pub flow: u64,
    /// The id of this work alone.
    pub id: u64,
    /// When the call began.
    pub from: At,
}

/// Why a call ends without a line for its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The line is missing: the enclosing call ended, or another call began.
    Missing,
    /// The process exited or called exec.
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

/// One of the traces to merge.
pub struct Source<'a> {
    pub file: &'a str,
    /// Counts from 0.
    pub index: usize,
}

pub trait Sink {
    /// The state of an open call.
    type CallState: Default;

    /// Bytes held for open calls.
    fn held(&self) -> usize {
        0
    }

    fn source(&mut self, source: &Source);
    /// Each line of the trace, before the events that it makes.
    fn line(&mut self, _line: &Line) {}
    /// The trace has been read. `notes` are the reader's.
    fn read(&mut self, _notes: &Notes) -> Result<()> {
        Ok(())
    }
    /// Whether the format shows when something happened.
    fn has_times(&self) -> bool {
        true
    }
    /// Whether the buffer holds whole lines of JSON.
    fn is_json(&self) -> bool {
        false
    }
    /// Whether the format shows call stacks. If not, they are not followed.
    fn takes_stacks(&self) -> bool {
        false
    }
    /// The trace has ended. Returns a note for the user.
    fn source_ends(&mut self, _stacks: &Stacks) -> Option<String> {
        None
    }
    /// The wall clock at 0, in nanoseconds since 1970. Called at most once, before any event.
    fn clock(&mut self, _wall_ns: u64) {}
    /// A process, before any of its events, and again when its name changes.
    fn process(&mut self, _process: &Process) {}
    /// A track, before any of its events. The parent of a thread's track is its process.
    fn track(&mut self, _track: Track, _parent: u64, _name: &str, _is_thread: bool) {}
    fn counter_track(&mut self, _uuid: u64, _process: &Process, _name: &str) {}

    /// `stacks` has the stack of the line, if the format takes stacks.
    fn begin(
        &mut self,
        at: At,
        line: &Line,
        rank: Option<u32>,
        links: Links,
        stacks: &Stacks,
    ) -> Self::CallState;
    fn end(&mut self, at: At, line: &Line, held: Self::CallState);
    fn close(&mut self, at: At, held: Self::CallState, cause: Cause);
    /// An event without its own begin and end; if it has a duration, it ends at `at`.
    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, rank: Option<u32>, stacks: &Stacks);
    /// Work on the GPU that starts at `at`; `link` is the call that submitted it, if the export has that.
    fn work(
        &mut self,
        at: At,
        line: &Line,
        duration_ns: u64,
        _link: Option<WorkLink>,
        rank: Option<u32>,
        stacks: &Stacks,
    ) {
        let at = At { ts_ns: at.ts_ns.saturating_add(duration_ns), ..at };
        self.mark(at, line, Some(duration_ns), rank, stacks);
    }
    /// A line that is no event of a track, or the end of a call that did not begin.
    fn other(&mut self, _line: &Line, _stacks: &Stacks) {}
    fn counter(&mut self, _ts_ns: u64, _space: &Space, _pid: u32) {}
    /// A note about a trace, on the trace's track.
    fn note(&mut self, _at: At, _text: &str) {}

    fn finish(&mut self) {}
    fn buffer(&mut self) -> &mut Vec<u8>;
}

/// The stack of a line that begins a call.
pub fn stack_of(line: &Line) -> Option<u64> {
    if let Body::Begin(begin) = &line.body { begin.stack } else { None }
}

/// The stack from which a call was made, or the call that a line is about.
pub fn stack_of_call(line: &Line, stacks: &Stacks) -> Option<u64> {
    match &line.body {
        Body::Begin(_) => stacks.stack_of(line.event_id),
        Body::Memory(memory) => memory.stack.or_else(|| stacks.stack_of(memory.begin?)),
        Body::Transfer(transfer) => stacks.stack_of(transfer.begin),
        Body::Collective(it) => stacks.stack_of(it.begin),
        Body::Block(block) => block.stack.or_else(|| stacks.stack_of(block.begin?)),
        Body::Gpu(gpu) => stacks.stack_of_work(gpu),
        _ => None,
    }
}

/// The displayed name of a line's event.
pub fn name<'a>(line: &'a Line) -> &'a str {
    match &line.body {
        Body::Memory(memory) => memory.op.name(),
        Body::Transfer(transfer) => &transfer.direction,
        Body::Block(block) => block.op.name(),
        Body::Collective(it) => &it.op,
        Body::Header(_) => "recording begins",
        Body::Finish(_) => "recording ends",
        Body::Unknown(_) => "unknown",
        body => body.head().1,
    }
}

impl Process {
    pub fn announce(&mut self, sink: &mut impl Sink) {
        if !self.announced {
            self.announced = true;
            sink.process(self);
        }
    }
}
