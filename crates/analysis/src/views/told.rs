//! What every view is told about the trace as a whole, beside its lines: when it begins and ends, and what is to
//! be said about it before its figures are believed.

use std::collections::{BTreeMap, BTreeSet};

use crate::Figures;
use crate::left_out::LeftOut;
use crate::table::{Cell, Column, Table, long, number};
use crate::unknown::{About, NO_END, unknown};
use gpurec_trace::bounds::{Sentences, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Finish, Line, Notes, Process};

const PROCESSES: &[Column] = &[number("PID", "pid"), number("Rank", "rank"), long("Command", "command")];

/// How many processes have names, and how long these are.
const MOST: usize = 65_536;
const LONGEST: usize = 1024;

/// So many processes are named beneath a view.
pub const NAMED: usize = 10;

/// Of a recording with --summary-only.
pub const ONLY_FIGURES: &str = "the trace has no events, only figures (--summary-only): what is not in its summary is not known; record without it";

/// Of what the view shows, what is not known.
pub struct Lacking {
    pub what: &'static str,
    pub reason: String,
    /// A text begins with it.
    pub leads: bool,
}

/// The figures of an `end` line that tells of calls.
pub fn stored(finish: &Finish) -> Option<Box<Figures>> {
    let figures = Figures::from_json(&finish.summary).ok()?;
    (figures.cuda_calls + figures.other_calls > 0).then(|| Box::new(figures))
}

#[derive(Default)]
pub struct Told {
    pub notes: Notes,
    /// The first line after the header: what comes before is gpurec's own start.
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    calls: u64,
    /// Of a recording with --summary-only.
    figures: Option<Box<Figures>>,
    /// The trace does not answer the question.
    pub unanswered: bool,
    lost: u64,
    because: Sentences,
    left_out: Option<LeftOut>,
    pub lacking: Vec<Lacking>,
    /// As the recorder says it; none before the `end` line.
    unknown: Option<BTreeMap<String, String>>,
    /// What processes are called, and their ranks; those that made calls.
    names: BTreeMap<u32, (String, Option<u32>)>,
    /// How long the calls took that had not returned, as the recorder says it.
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
                for reason in &finish.incomplete_because {
                    self.because.add(reason);
                }
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

    /// Of a part of the trace: its time, and not that of the lines that say what processes are.
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
        if self.names.len() < MOST || self.names.contains_key(&pid) {
            self.names.insert(pid, (name, rank));
        }
    }

    /// The processes that made calls, by their numbers: those that a view shows by number alone.
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

    /// How long a call took that has not returned; where the trace has no end, and its process one, that is not known.
    pub fn so_far(&self, begin: u64, ts_ns: u64, is_dead: bool) -> Option<u64> {
        match &self.in_flight {
            Some(in_flight) => in_flight.get(&begin).copied(),
            None => (!is_dead).then(|| self.last_ns.saturating_sub(ts_ns)),
        }
    }

    /// Recorded with --summary-only: what the `end` line has.
    pub fn only_figures(&self) -> Option<Box<Figures>> {
        self.figures.clone().filter(|_| self.calls == 0)
    }

    /// By --only, --skip or --api.
    pub fn has_left_out(&self) -> bool {
        self.left_out.is_some()
    }

    /// Of each figure that is not known the reason.
    pub fn unknown(&self) -> BTreeMap<String, String> {
        let broken = self.unknown.is_none().then_some(NO_END);
        let about = About { left_out: self.left_out.clone(), broken, ..About::of_part(&self.notes) };
        let mut all = unknown(&Figures::default(), &about);
        all.extend(self.unknown.clone().unwrap_or_default());
        all
    }

    /// For a text without what it begins with.
    pub fn sentences(&self, of_text: bool) -> Vec<String> {
        let mut said = self.notes.sentences();
        if self.figures.is_some() && self.calls == 0 {
            said.push(ONLY_FIGURES.to_owned());
        }
        if self.lost > 0 && !self.because.list().iter().any(|reason| reason.contains("lost")) {
            said.push(format!("{} events were lost: the figures are too low", self.lost));
        }
        said.extend(self.lacking.iter().filter(|lacking| !(of_text && lacking.leads)).map(
            |Lacking { what, reason, .. }| {
                format!("it is not known {what} ({reason}): this is of what was recorded")
            },
        ));
        said.extend(
            self.because.all().iter().map(|reason| format!("the recording is not complete: {reason}")),
        );
        said
    }
}
