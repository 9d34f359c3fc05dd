//! Messages from the recorder to the worker, and the lines they become. In: libraries, functions given up, sleeps.
//! Out: lines, each before the first record that comes after it.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::decode::{Item, What};
use super::sink::Lines;
use crate::probe::kernel::Change;
use crate::probe::{Library, Probe};
use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::Input;
use gpurec_trace::{self as trace, Body, HookError, Process, Reason};

/// A message from the recorder to the worker.
pub struct Message {
    /// Its place among the records, in CLOCK_MONOTONIC ns.
    pub ts: u64,
    pub pid: u32,
    pub what: Told,
}

pub enum Told {
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
    Unlooked,
    /// A function was given up for --budget, or taken back.
    Budget(trace::Budget),
    /// The machine was suspended.
    Slept(trace::Suspend),
    /// gpurec stopped the process at `from`, and resumes it at the message's time.
    Stopped {
        from: u64,
    },
}

/// Libraries that are being hooked while their callers run (--all). The first call proves that a library is hooked.
#[derive(Default)]
pub(super) struct Coming {
    pub(super) untold: Vec<Message>,
    /// Libraries that have their line already, by time and process.
    told: Vec<(u64, u32)>,
}

impl Coming {
    pub(super) fn tell_before(&mut self, item: &Item, lines: &mut Lines) {
        if self.untold.is_empty() {
            return;
        }
        let What::Call { probe, .. } = item.what else { return };
        // An earlier announcement belongs to another file with a function of that name: the two share a probe number.
        let is_of = |message: &Message| {
            matches!(&message.what, Told::Coming(_, probes) if probes.iter().any(|p| p.id == probe))
                && message.ts <= item.ts
        };
        if let Some(at) = self.untold.iter().position(is_of) {
            let message = self.untold.remove(at);
            self.told.push((message.ts, message.pid));
            tell(message, lines);
        }
    }

    /// The library was hooked, or that failed. True if it has its line already.
    pub(super) fn is_told(&mut self, end: &Message) -> bool {
        let key = (end.ts, end.pid);
        self.untold.retain(|message| (message.ts, message.pid) != key);
        let told = self.told.iter().position(|told| *told == key);
        told.map(|at| self.told.remove(at)).is_some()
    }
}

pub(super) fn tell_until(ts: u64, waiting: &mut VecDeque<Message>, lines: &mut Lines) {
    while waiting.front().is_some_and(|message| message.ts <= ts) {
        if let Some(message) = waiting.pop_front() {
            tell(message, lines);
        }
    }
}

/// True if the missing hits of a probe may have allocated or freed memory.
pub(super) fn touches_memory(probe: &str) -> bool {
    matches!(traits_of(probe).input(), Some(Input::Allocation | Input::Free)) || probe.starts_with("process:")
}

pub(super) fn touches_contexts(probe: &str) -> bool {
    traits_of(probe).places() || probe.starts_with("process:")
}

fn traits_of(probe: &str) -> FunctionTraits {
    FunctionTraits::of(probe.strip_suffix(" (return)").unwrap_or(probe))
}

fn tell(message: Message, lines: &mut Lines) {
    let Message { ts, pid, what } = message;
    let refused = |name: &str, reason: Reason| trace::Refused::new(name, reason);
    let mut single_stepped = Vec::new();
    let (path, build_id, functions, not_hooked) = match what {
        Told::Names(_) | Told::Missed(_) | Told::Unlooked | Told::Stopped { .. } => return,
        Told::Budget(line) => {
            lines.calls_missing();
            if touches_memory(&line.function) {
                lines.memory_missing();
            }
            lines.not_seen(&line.function);
            lines.line(ts, Body::Budget(line));
            return;
        }
        Told::Slept(suspend) => {
            lines.line(ts, Body::Suspend(suspend));
            return;
        }
        Told::Coming(library, _) | Told::Hooked(library) => {
            let not_hooked = library.not_hooked.iter().map(|n| refused(&n.name, n.reason.clone())).collect();
            library.not_hooked.iter().for_each(|n| lines.not_seen(&n.name));
            single_stepped = library.single_stepped;
            (library.path, library.build_id, library.functions as u64, not_hooked)
        }
        Told::Module(change) => {
            let went = refused(&change.modules, HookError::Unloaded.into());
            let not_hooked = if change.came { change.refused } else { vec![went] };
            (format!("[{}]", change.modules).into(), None, change.hooked as u64, not_hooked)
        }
        Told::Failed { path, reason } => {
            // The file may be the CUDA driver or runtime.
            ["cuCtxSetCurrent", "cudaSetDevice"].iter().for_each(|function| lines.not_seen(function));
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            (path, None, 0, vec![refused(&name, reason)])
        }
    };
    let path = path.to_string_lossy().into_owned().into();
    let library = trace::Library { pid, tid: pid, path, build_id, functions, not_hooked, single_stepped };
    lines.line(ts, Body::Process(Process::Library(library)));
}
