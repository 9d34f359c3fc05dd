//! `--pid`, `--tid`, `--rank`, `--from`, `--to`: select a part of a trace, for every reader. In: the lines of a trace.
//! Out: the lines of the part, as if the file had no others.
//!
//! A call belongs to the time at which it began, together with its end and its consequences. Lines that describe a
//! process stay, and so do lines of the recorder about the whole recording.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, bail};

use crate::recent::Recent;
use crate::{Figures, Usage};
use gpurec_trace::bounds::{BytesLeft, COMMANDS};
use gpurec_trace::{Body, Finish, Found, Gpu, Line, Notes, Process};

/// Limits on processes whose ranks are remembered, and on words of one command.
const MOST: usize = 65_536;
const WORDS: usize = 64;
/// Bytes that a word takes in addition to its text.
const EACH: usize = 64;

const NO_EVENTS: &str = "the trace has only figures (--summary-only), which are of the whole recording: leave out --pid, --tid, --rank, --from and --to, or record without --summary-only";

/// The selected part; by default the whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    pub pids: Vec<u32>,
    pub tids: Vec<u32>,
    pub ranks: Vec<u32>,
    /// Nanoseconds since the start of the recording.
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
}

impl Only {
    pub fn is_all(&self) -> bool {
        *self == Only::default()
    }

    /// Whether the selection is by time only, without a process, thread or rank.
    fn is_time(&self) -> bool {
        self.pids.is_empty() && self.tids.is_empty() && self.ranks.is_empty()
    }

    /// Describes the part to which the figures apply.
    fn sentence(&self) -> String {
        let list = |what: &str, all: &[u32]| {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            (!all.is_empty()).then(|| format!("of {what} {}", all.join(", ")))
        };
        let seconds = |ns: u64| format!("{} s", crate::text::seconds(ns));
        let time = match (self.from_ns, self.to_ns) {
            (None, None) => None,
            (Some(from), None) => Some(format!("that began at {} or later", seconds(from))),
            (None, Some(to)) => Some(format!("that began before {}", seconds(to))),
            (Some(from), Some(to)) => {
                Some(format!("that began between {} and {}", seconds(from), seconds(to)))
            }
        };
        let parts =
            [list("process", &self.pids), list("thread", &self.tids), list("rank", &self.ranks), time];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!(
            "these figures cover only calls {}: memory that other calls allocated is not in them, and losses are those of the whole recording",
            parts.join(" and ")
        )
    }
}

/// What the lines so far say about a process.
#[derive(Default)]
struct Program {
    command: Arc<[String]>,
    rank: Option<u32>,
    /// A line already in the output says so.
    is_named: bool,
}

/// The figures of an `end` line, if they contain calls.
pub fn stored(finish: &Finish) -> Option<Box<Figures>> {
    let figures = Figures::from_json(&finish.summary).ok()?;
    (figures.cuda_calls + figures.other_calls > 0).then(|| Box::new(figures))
}

/// The begin of the call to which a line belongs, and its pid and tid.
pub fn call_of(line: &Line) -> Option<(u64, u32, u32)> {
    Some(match &line.body {
        Body::Begin(begin) => (line.event_id, begin.pid, begin.tid),
        Body::End(end) => (end.begin, end.pid, end.tid),
        Body::KernelBegin(begin) => (line.event_id, begin.pid, begin.tid),
        Body::KernelEnd(end) => (end.begin, end.pid, end.tid),
        Body::Memory(memory) => (memory.begin.unwrap_or(line.event_id), memory.pid, memory.tid),
        Body::Transfer(transfer) => (transfer.begin, transfer.pid, transfer.tid),
        Body::Block(block) => (block.begin.unwrap_or(line.event_id), block.pid, block.tid),
        Body::Collective(it) => (it.begin, it.pid, it.tid),
        Body::Instant(instant) => (line.event_id, instant.pid, instant.tid),
        // Its thread is that of its call.
        Body::Gpu(gpu) => (gpu.begin.unwrap_or(line.event_id), gpu.pid, 0),
        _ => return None,
    })
}

pub struct Sieve<'a> {
    only: &'a Only,
    programs: HashMap<u32, Program>,
    commands_left: BytesLeft<COMMANDS>,
    /// The first event of the selected time, and the first after it: event_ids grow with time.
    first: Option<u64>,
    end: Option<u64>,
    calls: u64,
    kept: u64,
    /// With --tid: the calls of those threads.
    of_threads: Recent<()>,
    /// The trace has a selected process or thread, though perhaps outside the selected time.
    is_there: bool,
}

/// The decision about a line.
pub enum Selection {
    No,
    Yes,
    As(Box<Line<'static>>),
    /// Another line must name the line's process first.
    After(Box<Line<'static>>),
}

impl<'a> Sieve<'a> {
    pub fn new(only: &'a Only) -> Sieve<'a> {
        let first = if only.from_ns.is_none() { Some(0) } else { None };
        Sieve {
            only,
            programs: HashMap::new(),
            commands_left: BytesLeft::default(),
            first,
            end: None,
            calls: 0,
            kept: 0,
            of_threads: Recent::default(),
            is_there: false,
        }
    }

    pub fn line(&mut self, line: &Line) -> Result<Selection> {
        if self.only.from_ns.is_some_and(|from| line.ts_ns >= from) {
            self.first.get_or_insert(line.event_id);
        }
        if self.only.to_ns.is_some_and(|to| line.ts_ns >= to) {
            self.end.get_or_insert(line.event_id);
        }
        let is_call = matches!(&line.body, Body::Begin(_) | Body::KernelBegin(_));
        self.calls += u64::from(is_call);
        let call = call_of(line);
        self.is_there |= call.is_some_and(|(_, pid, tid)| is_call && self.is_asked(pid, tid));
        let keeps = match &line.body {
            Body::Xid(xid) => self.has_time(line.event_id) && (xid.pid == 0 || self.is_of(xid.pid)),
            Body::Process(process) => self.process(process),
            Body::Finish(finish) => return self.finish(line, finish),
            Body::Gpu(gpu) => self.has_work(line.event_id, gpu),
            _ => call.is_none_or(|(began, pid, tid)| self.has_time(began) && self.is_asked(pid, tid)),
        };
        if !keeps {
            return Ok(Selection::No);
        }
        self.kept += u64::from(is_call);
        if !self.only.tids.is_empty() && matches!(line.body, Body::Begin(_)) {
            self.of_threads.push(line.event_id, ());
        }
        if let Body::Begin(begin) = &line.body
            && let Some(found) = self.unnamed(begin.pid)
        {
            let body = Body::Process(Process::Found(found));
            return Ok(Selection::After(Box::new(Line { event_id: line.event_id, ts_ns: line.ts_ns, body })));
        }
        Ok(Selection::Yes)
    }

    fn is_asked(&self, pid: u32, tid: u32) -> bool {
        (self.only.tids.is_empty() || self.only.tids.contains(&tid)) && self.is_of(pid)
    }

    /// GPU work belongs to the call that submitted it.
    fn has_work(&self, event_id: u64, gpu: &Gpu) -> bool {
        let of_thread = || gpu.begin.is_some_and(|begin| self.of_threads.get(begin).is_some());
        self.is_of(gpu.pid)
            && self.has_time(gpu.begin.unwrap_or(event_id))
            && (self.only.tids.is_empty() || of_thread())
    }

    fn has_time(&self, began: u64) -> bool {
        self.first.is_some_and(|first| began >= first) && self.end.is_none_or(|end| began < end)
    }

    fn is_of(&self, pid: u32) -> bool {
        let rank = || self.programs.get(&pid).and_then(|program| program.rank);
        (self.only.pids.is_empty() || self.only.pids.contains(&pid))
            && (self.only.ranks.is_empty() || rank().is_some_and(|rank| self.only.ranks.contains(&rank)))
    }

    fn process(&mut self, process: &Process) -> bool {
        if let Some((pid, mut command, rank)) = process.named() {
            command.truncate(WORDS);
            let bytes = command.iter().map(|word| EACH + word.len()).sum();
            let command = if self.commands_left.take(bytes) { command.into() } else { Arc::default() };
            self.know(pid, Program { command, rank, is_named: false });
        }
        let pid = match process {
            Process::Fork(fork) => {
                let parent = self.programs.get(&fork.pid);
                let (command, rank) = parent.map(|it| (it.command.clone(), it.rank)).unwrap_or_default();
                self.know(fork.child, Program { command, rank, is_named: false });
                if !self.is_of(fork.child) {
                    return false;
                }
                fork.pid
            }
            Process::Exec(exec) => exec.pid,
            Process::Found(found) => found.pid,
            Process::Exit(exit) => exit.pid,
            Process::Library(library) => library.pid,
        };
        self.is_there |= self.only.tids.is_empty() && self.is_of(pid);
        // A process that ends after the selected time is still part of it.
        let keeps = self.is_of(pid) && self.end.is_none();
        if let Process::Fork(fork) = process
            && keeps
        {
            self.unnamed(fork.child);
        } else if keeps && process.named().is_some() {
            self.unnamed(pid);
        }
        keeps
    }

    fn know(&mut self, pid: u32, program: Program) {
        if self.programs.len() < MOST || self.programs.contains_key(&pid) {
            self.programs.insert(pid, program);
        }
    }

    /// The description of a process that no line of the output names yet, for example because its parent's was dropped.
    /// From now on it is named.
    fn unnamed(&mut self, pid: u32) -> Option<Found> {
        let program = self.programs.get_mut(&pid).filter(|program| !program.is_named)?;
        program.is_named = true;
        let (command, rank) = (program.command.to_vec(), program.rank);
        Some(Found { pid, tid: pid, comm: "?".to_owned(), command, rank, ..Found::default() })
    }

    fn finish(&self, line: &Line, finish: &Finish) -> Result<Selection> {
        if self.calls == 0 && stored(finish).is_some() {
            bail!(Usage(NO_EVENTS.to_owned()));
        }
        let mut part = finish.clone();
        part.in_flight.retain(|call| self.has_time(call.begin) && self.is_asked(call.pid, call.tid));
        // Figures and stops describe the whole recording. What is unknown for the whole is unknown for a part.
        part.summary = serde_json::json!({ "unknown": finish.summary["unknown"] });
        part.stops = None;
        let body = Body::Finish(Box::new(part));
        Ok(Selection::As(Box::new(Line { event_id: line.event_id, ts_ns: line.ts_ns, body })))
    }

    /// Adds a note that describes the part.
    pub fn note(&self, notes: &mut Notes) {
        let mut said = self.only.sentence();
        if self.kept == 0 {
            said = format!("the trace has no call in this part: {said}");
        }
        notes.part = Some(said);
        notes.part_cuts_frees = !self.only.tids.is_empty();
        notes.part_cuts_memory = self.only.from_ns.is_some() || !self.only.tids.is_empty();
        notes.is_absent = !self.only.is_time() && !self.is_there;
        notes.window = Some((self.only.from_ns.unwrap_or(0), self.only.to_ns.unwrap_or(u64::MAX)));
    }
}
