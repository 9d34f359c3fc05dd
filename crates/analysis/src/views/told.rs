//! What each view knows about the trace as a whole, in addition to its lines: start and end, and caveats that qualify
//! the figures.

use std::collections::{BTreeMap, BTreeSet};

use crate::Figures;
use crate::left_out::LeftOut;
use crate::only::stored;
use crate::table::{Cell, Column, Table, long, number};
use crate::unknown::{About, NO_END, unknown};
use gpurec_trace::Reasons;
use gpurec_trace::bounds::{entry, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Line, Notes, Process};

const PROCESSES: &[Column] = &[number("PID", "pid"), number("Rank", "rank"), long("Command", "command")];

/// Limits on processes with names and on the length of a name.
const MOST: usize = 65_536;
const LONGEST: usize = 1024;

/// Maximum number of processes named below a view.
pub const NAMED: usize = 10;

/// The note for a recording with --summary-only.
pub const ONLY_FIGURES: &str = "the trace has no events, only figures (--summary-only): what is not in its summary is not known; record without it";

/// A figure that the view shows but the trace does not determine.
pub struct Lacking {
    pub what: &'static str,
    pub reason: String,
    /// The text begins with it.
    pub leads: bool,
}

#[derive(Default)]
pub struct Told {
    pub notes: Notes,
    /// Time of the first line after the header. Time before it is gpurec's own start.
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    calls: u64,
    /// The figures of a recording with --summary-only.
    figures: Option<Box<Figures>>,
    /// The trace does not answer the question.
    pub unanswered: bool,
    lost: u64,
    because: Reasons,
    left_out: Option<LeftOut>,
    pub lacking: Vec<Lacking>,
    /// Unknown figures according to the recorder; None before the `end` line.
    unknown: Option<BTreeMap<String, String>>,
    /// Names and ranks of processes. `callers` are the processes that made calls.
    names: Map<u32, (String, Option<u32>)>,
    /// Time so far of each unfinished call, according to the recorder.
    in_flight: Option<Map<u64, u64>>,
    callers: BTreeSet<u32>,
}

impl Told {
    pub fn line(&mut self, line: &Line) {
        self.last_ns = self.last_ns.max(line.ts_ns);
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
            Body::Process(process) => self.process(process),
            Body::Lost(lost) => self.lost = self.lost.saturating_add(lost.count),
            Body::Finish(finish) => {
                self.lost = self.lost.max(finish.lost);
                let so_far = finish.in_flight.iter().map(|call| (call.begin, call.duration_ns));
                self.in_flight = Some(so_far.collect());
                finish.reasons().for_each(|reason| self.because.add(reason));
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

    fn process(&mut self, process: &Process) {
        if let Some((pid, command, rank)) = process.named() {
            self.name(pid, short(&command.join(" "), LONGEST), rank);
        } else if let Process::Fork(fork) = process
            && let Some((name, rank)) = self.names.get(&fork.pid).cloned()
        {
            self.name(fork.child, name, rank);
        }
    }

    fn name(&mut self, pid: u32, name: String, rank: Option<u32>) {
        if let Some(known) = entry(&mut self.names, pid, MOST) {
            *known = (name, rank);
        }
    }

    /// The processes that made calls, with their names: views show only pids.
    pub fn processes(&self) -> Table {
        let mut table = Table::new("process_names", "processes", PROCESSES);
        for pid in &self.callers {
            let (name, rank) = self.names.get(pid).cloned().unwrap_or_default();
            let name = if name.is_empty() { Cell::Missing } else { Cell::Text(name) };
            table.row(vec![
                Cell::Count((*pid).into()),
                Cell::optional(rank, |rank| Cell::Count(rank.into())),
                name,
            ]);
        }
        table
    }

    pub fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(0))
    }

    /// How long an unfinished call has taken. Unknown if the trace has no end and its process has exited.
    pub fn so_far(&self, begin: u64, ts_ns: u64, is_dead: bool) -> Option<u64> {
        match &self.in_flight {
            Some(in_flight) => in_flight.get(&begin).copied(),
            None => (!is_dead).then(|| self.last_ns.saturating_sub(ts_ns)),
        }
    }

    /// Whether the recorder listed the calls that did not return.
    pub fn has_in_flight(&self) -> bool {
        self.in_flight.is_some()
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
        let mut said = self.notes.sentences();
        if self.figures.is_some() && self.calls == 0 {
            said.push(ONLY_FIGURES.to_owned());
        }
        let because = self.because.all();
        if self.lost > 0 && !because.iter().any(|reason| reason.code == "lost") {
            said.push(format!("{} events were lost: the figures are too low", self.lost));
        }
        said.extend(self.lacking.iter().filter(|lacking| !(of_text && lacking.leads)).map(
            |Lacking { what, reason, .. }| {
                format!("it is not known {what} ({reason}): this is of what was recorded")
            },
        ));
        said.extend(because.iter().map(|reason| format!("the recording is not complete: {}", reason.text)));
        said
    }
}
