//! Messages from the recorder to the worker, and the lines they become. In: libraries, functions given up, sleeps.
//! Out: lines, each before the first record that comes after it.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::decode::{Block, Item, What};
use super::observer::Cause;
use super::sink::Lines;
use crate::files::allocator;
use crate::probe::kernel::Change;
use crate::probe::{Library, Probe};
use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::Input;
use gpurec_trace::{self as trace, Body, HookError, Incomplete, Process, Reason};

/// A message from the recorder to the worker.
pub struct Message {
    /// Its place among the records, in CLOCK_MONOTONIC ns.
    pub ts: u64,
    pub pid: u32,
    pub what: MessageKind,
}

impl Message {
    /// Why an unknown number of hits is missing.
    pub fn missed(why: Incomplete) -> Message {
        Message { ts: 0, pid: 0, what: MessageKind::Missed(why.into()) }
    }

    /// A `clock` line.
    pub fn clock(clock: trace::Clock) -> Message {
        Message { ts: clock.monotonic_ns, pid: 0, what: MessageKind::Clock(Box::new(clock)) }
    }
}

pub enum MessageKind {
    /// New probes, sent before the first can be hit.
    Names(Vec<Probe>),
    /// A library that is being hooked. Its calls may come before `Hooked` or `Failed`.
    Coming(Library, Vec<Probe>),
    Hooked(Library),
    Failed {
        path: PathBuf,
        reason: Reason,
    },
    /// A driver module was loaded or unloaded.
    Module(Change),
    /// Why an unknown number of hits is missing.
    Missed(Reason),
    /// A mapped file was gone before gpurec could examine it, and is not known to be a CUDA library.
    NotExamined,
    /// A function was given up for --budget, or taken back.
    Budget(trace::Budget),
    /// Both clocks at the message's time.
    Clock(Box<trace::Clock>),
    /// The state of a GPU.
    Device(Box<trace::Device>),
    /// A request for a dump of the flight recorder.
    Dump(Cause),
    /// The machine was suspended.
    Slept(trace::Suspend),
    /// gpurec stopped the process at `from`, and resumes it at the message's time.
    Stopped {
        from: u64,
    },
}

/// Libraries that are being hooked while their callers run (--all). The first hit proves that a library is hooked.
#[derive(Default)]
pub(super) struct Coming {
    pub(super) waiting: Vec<Message>,
    /// Libraries that have their line already, by time and process.
    written: Vec<(u64, u32)>,
}

impl Coming {
    pub(super) fn write_before(&mut self, item: &Item, lines: &mut Lines) {
        if self.waiting.is_empty() {
            return;
        }
        let (What::Call { probe, .. } | What::Block(Block { probe, .. })) = item.what else { return };
        // An earlier announcement belongs to another file with a function of that name: the two share a probe number.
        let is_of = |message: &Message| {
            matches!(&message.what, MessageKind::Coming(_, probes) if probes.iter().any(|p| p.id == probe))
                && message.ts <= item.ts
        };
        if let Some(at) = self.waiting.iter().position(is_of) {
            let message = self.waiting.remove(at);
            self.written.push((message.ts, message.pid));
            write(message, lines);
        }
    }

    /// The library was hooked, or that failed. True if it has its line already.
    pub(super) fn has_line(&mut self, end: &Message) -> bool {
        let key = (end.ts, end.pid);
        self.waiting.retain(|message| (message.ts, message.pid) != key);
        let at = self.written.iter().position(|written| *written == key);
        at.map(|at| self.written.remove(at)).is_some()
    }
}

pub(super) fn write_until(ts: u64, waiting: &mut VecDeque<Message>, lines: &mut Lines) {
    while waiting.front().is_some_and(|message| message.ts <= ts) {
        waiting.pop_front().into_iter().for_each(|message| write(message, lines));
    }
}

/// True if it is a static probe of PyTorch's allocator, not a function.
pub(super) fn is_of_blocks(probe: &str) -> bool {
    allocator::find(probe).is_some()
}

/// True if the missing hits of a probe may have allocated or freed memory.
pub(super) fn touches_memory(probe: &str) -> bool {
    matches!(traits_of(probe).input(), Some(Input::Allocation | Input::Free)) || probe.starts_with("process:")
}

pub(super) fn touches_contexts(probe: &str) -> bool {
    traits_of(probe).places() || probe.starts_with("process:")
}

/// True if the missing hits of a probe may have enqueued an operation of NCCL, or made a communicator.
pub(super) fn touches_collectives(probe: &str) -> bool {
    traits_of(probe).nccl().is_some() || probe.starts_with("process:")
}

fn traits_of(probe: &str) -> FunctionTraits {
    FunctionTraits::of(probe.strip_suffix(" (return)").unwrap_or(probe))
}

fn write(message: Message, lines: &mut Lines) {
    let Message { ts, pid, what } = message;
    let refused = |name: &str, reason: Reason| trace::RefusedHook::new(name, reason);
    let line = |path: PathBuf, build_id, functions: usize, not_hooked, single_stepped| {
        let (path, functions) = (path.to_string_lossy().into_owned().into(), functions as u64);
        let library = trace::Library { pid, tid: pid, path, build_id, functions, not_hooked, single_stepped };
        Body::Process(Process::Library(library))
    };
    let body = match what {
        MessageKind::Names(_)
        | MessageKind::Missed(_)
        | MessageKind::NotExamined
        | MessageKind::Dump(_)
        | MessageKind::Stopped { .. } => return,
        // The calls are in the trace, without their stacks.
        MessageKind::Budget(line) if line.function == trace::CALL_STACKS => Body::Budget(line),
        MessageKind::Budget(line) if is_of_blocks(&line.function) => {
            lines.blocks.forget();
            Body::Budget(line)
        }
        MessageKind::Budget(line) => {
            lines.meaning.calls_missing();
            if touches_memory(&line.function) {
                lines.meaning.memory_missing();
            }
            lines.meaning.not_seen(&line.function);
            Body::Budget(line)
        }
        MessageKind::Device(device) => Body::Device(device),
        MessageKind::Slept(suspend) => Body::Suspend(suspend),
        MessageKind::Clock(clock) => Body::Clock(clock),
        MessageKind::Coming(library, _) | MessageKind::Hooked(library) => {
            let not_hooked = library.not_hooked.iter().map(|n| refused(&n.name, n.reason.clone())).collect();
            library.not_hooked.iter().for_each(|n| lines.meaning.not_seen(&n.name));
            let hooked = library.functions + library.blocks;
            line(library.path, library.build_id, hooked, not_hooked, library.single_stepped)
        }
        MessageKind::Module(change) => {
            let went = refused(&change.modules, HookError::Unloaded.into());
            let not_hooked = if change.came { change.refused } else { vec![went] };
            line(format!("[{}]", change.modules).into(), None, change.hooked, not_hooked, Vec::new())
        }
        MessageKind::Failed { path, reason } => {
            // The file may be the CUDA driver or runtime.
            ["cuCtxSetCurrent", "cudaSetDevice"].iter().for_each(|name| lines.meaning.not_seen(name));
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            line(path, None, 0, vec![refused(&name, reason)], Vec::new())
        }
    };
    lines.line(ts, body);
}
