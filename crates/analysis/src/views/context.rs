//! The context of a view: what it knows about the trace as a whole, in addition to its lines: start and end, processes,
//! and caveats that qualify the figures.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::listing::Listing;
use crate::left_out::LeftOut;
use crate::only::stored;
use crate::stacks::Stacks;
use crate::table::{Table, long, number};
use crate::unknown::{About, NO_END, unknown};
use crate::{Figures, Summary};
use gpurec_trace::Reasons;
use gpurec_trace::bounds::{BytesLeft, COMMANDS, entry};
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Line, Notes, Process};

/// Limit on processes with names.
const MOST: usize = 65_536;

/// Maximum number of processes named below a view.
pub const NAMED: usize = 10;

/// The note for a recording with --summary-only.
pub const ONLY_FIGURES: &str = "the trace has no events, only figures (--summary-only): what is not in its summary is not known; record again without it";

/// A figure that the view shows but the trace does not determine.
pub struct UnknownFigure {
    pub what: &'static str,
    pub reason: String,
    /// The text begins with it.
    pub leads: bool,
}

/// A process as its last `process` line names it.
#[derive(Clone, Default)]
pub struct ProcessFacts {
    pub command: String,
    pub rank: Option<u32>,
    pub ended_ns: Option<u64>,
}

#[derive(Default)]
pub struct Context {
    /// Limit on the rows of tables that have one for each process, thread or function.
    pub rows: usize,
    pub notes: Notes,
    pub stacks: Stacks,
    /// Whether a view asks for the summary. If none does, `summary` stays empty.
    of_summary: bool,
    pub summary: Summary,
    summarized: OnceCell<Figures>,
    /// Time of the first line after the header. Time before it is gpurec's own start.
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    calls: u64,
    /// The figures of a recording with --summary-only.
    figures: Option<Box<Figures>>,
    /// The trace does not answer the question.
    pub unanswered: bool,
    has_gpu_work: bool,
    lost: u64,
    reasons: Reasons,
    left_out: Option<LeftOut>,
    pub unknown_figures: Vec<UnknownFigure>,
    /// Unknown figures according to the recorder; None before the `end` line.
    unknown: Option<BTreeMap<String, String>>,
    /// `callers` are the processes that made calls.
    processes: Map<u32, ProcessFacts>,
    /// Room left for commands.
    commands: BytesLeft<COMMANDS>,
    /// Time so far of each unfinished call, and whether its process ended in it, according to the recorder.
    in_flight: Option<Map<u64, (u64, bool)>>,
    callers: BTreeSet<u32>,
}

impl Context {
    pub fn new(of_summary: bool) -> Context {
        Context { of_summary, rows: usize::MAX, ..Context::default() }
    }

    pub fn line(&mut self, line: &Line) {
        self.last_ns = self.last_ns.max(line.ts_ns);
        self.stacks.line(line);
        if self.of_summary {
            self.summary.add(line);
        }
        match &line.body {
            Body::Header(header) => {
                self.left_out = LeftOut::of(header);
                return;
            }
            Body::Begin(begin) => {
                self.calls += 1;
                if self.callers.len() < MOST {
                    self.callers.insert(begin.pid);
                }
            }
            Body::KernelBegin(_) => self.calls += 1,
            Body::Gpu(_) => self.has_gpu_work = true,
            Body::Process(process) => self.process(line.ts_ns, process),
            Body::Lost(lost) => self.lost = self.lost.saturating_add(lost.count),
            Body::Finish(finish) => {
                self.lost = self.lost.max(finish.lost);
                let so_far = finish.in_flight.iter().map(|call| (call.begin, (call.duration_ns, call.died)));
                self.in_flight = Some(so_far.collect());
                finish.reasons().for_each(|reason| self.reasons.add(reason));
                if self.calls == 0 {
                    self.figures = stored(finish);
                }
                let unknown = finish.summary.get("unknown").cloned().unwrap_or_default();
                self.unknown = Some(serde_json::from_value(unknown).unwrap_or_default());
            }
            _ => {}
        }
        self.first_ns.get_or_insert(line.ts_ns);
    }

    /// For a part of the trace: sets its start and end, which lines that describe processes do not move.
    pub fn within(&mut self) {
        let Some((from, to)) = self.notes.window else { return };
        self.first_ns = self.first_ns.map(|first| first.max(from));
        self.last_ns = self.last_ns.min(to);
    }

    /// The figures of the summary, once all lines and notes are known.
    pub fn figures(&self) -> &Figures {
        self.summarized.get_or_init(|| self.summary.of_file(&self.notes))
    }

    pub fn into_figures(self) -> Figures {
        self.figures();
        self.summarized.into_inner().unwrap_or_default()
    }

    fn process(&mut self, ts_ns: u64, process: &Process) {
        let (pid, mut facts) = match process {
            Process::Fork(fork) => (fork.child, self.facts_of(fork.pid)),
            Process::Exit(exit) => {
                if let Some(facts) = self.processes.get_mut(&exit.pid) {
                    facts.ended_ns = Some(ts_ns);
                }
                return;
            }
            _ => {
                let Some((pid, command, rank)) = process.named() else { return };
                (pid, ProcessFacts { command: command.join(" "), rank, ended_ns: None })
            }
        };
        if !self.commands.take(facts.command.len()) {
            facts.command.clear();
        }
        if let Some(known) = entry(&mut self.processes, pid, MOST) {
            *known = facts;
        }
    }

    pub fn facts_of(&self, pid: u32) -> ProcessFacts {
        self.processes.get(&pid).cloned().unwrap_or_default()
    }

    /// The processes that made calls, with their names: views show only pids.
    pub fn processes(&self) -> Table {
        let rows = self.callers.iter().map(|pid| (*pid, self.facts_of(*pid)));
        Listing::at_most(self.rows, "process_names", "processes", rows)
            .count(number("PID", "pid"), |(pid, _)| *pid)
            .count(number("Rank", "rank"), |(_, facts)| facts.rank)
            .cell(long("Command", "command"), |(_, facts)| {
                Some(facts.command.clone()).filter(|command| !command.is_empty())
            })
            .into()
    }

    pub fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(0))
    }

    pub fn in_flight(&self, begin: u64) -> Option<(u64, bool)> {
        self.in_flight.as_ref()?.get(&begin).copied()
    }

    /// How long an unfinished call has taken. Unknown if the trace has no end and its process has exited.
    pub fn so_far(&self, begin: u64, ts_ns: u64, is_dead: bool) -> Option<u64> {
        match &self.in_flight {
            Some(_) => self.in_flight(begin).map(|(ns, _)| ns),
            None => (!is_dead).then(|| self.last_ns.saturating_sub(ts_ns)),
        }
    }

    /// Whether the recorder listed the calls that did not return.
    pub fn has_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether the trace says what ran on the GPU.
    pub fn has_gpu_work(&self) -> bool {
        self.has_gpu_work
    }

    /// The figures of the `end` line, for a recording with --summary-only.
    pub fn only_figures(&self) -> Option<Box<Figures>> {
        self.figures.clone().filter(|_| self.calls == 0)
    }

    /// Whether --only, --skip or --api left calls out.
    pub fn has_left_out(&self) -> bool {
        self.left_out.is_some()
    }

    /// The unknown figures, each with the reason.
    pub fn unknown(&self) -> BTreeMap<String, String> {
        let broken = self.unknown.is_none().then_some(NO_END);
        let about = About { left_out: self.left_out.clone(), broken, ..About::of_part(&self.notes) };
        let mut all = unknown(&Figures::default(), &about);
        all.extend(self.unknown.clone().unwrap_or_default());
        all
    }

    /// The notes; for text without the one that the report already begins with.
    pub fn sentences(&self, of_text: bool) -> Vec<String> {
        let mut notes = self.notes.sentences();
        if self.figures.is_some() && self.calls == 0 {
            notes.push(ONLY_FIGURES.to_owned());
        }
        let reasons = self.reasons.all();
        if self.lost > 0 && !reasons.iter().any(|reason| reason.code == "lost") {
            notes.push(format!("{} events were lost: the figures are too low", self.lost));
        }
        notes.extend(self.unknown_figures.iter().filter(|figure| !(of_text && figure.leads)).map(
            |UnknownFigure { what, reason, .. }| {
                format!("it is not known {what} ({reason}): the figures are those of what was recorded")
            },
        ));
        notes.extend(reasons.iter().map(|reason| format!("the recording is not complete: {}", reason.text)));
        notes
    }
}
