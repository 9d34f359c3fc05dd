//! `report longest`: the longest calls, one by one: when, in which thread, with which arguments. Of nested calls it
//! lists only the outermost; unfinished calls count with their time so far.

use std::collections::BTreeMap;

use super::calls::Functions;
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::table::{Cell, Column, Table, long, number, text};
use gpurec_trace::bounds::{MOST_OPEN, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Begin, Body, End, Ended, InFlight, Line};

const CALLS: &[Column] = &[
    long("Name", "name"),
    number("Took (ms)", "duration_ns"),
    number("At (s)", "ts_ns"),
    number("PID", "pid").minor(),
    number("TID", "tid"),
    number("Event", "event").vital(),
    text("Result", "result"),
    long("What", "what"),
];

const ROWS: usize = 20;
/// Limits on rows and on the length of a text in a row.
const MOST: usize = 65_536;
const LONGEST: usize = 400;

pub fn make(config: &ReportConfig) -> Box<dyn View> {
    Box::new(Longest { most: config.top.unwrap_or(ROWS).min(MOST), ..Longest::default() })
}

#[derive(Default)]
struct Longest {
    most: usize,
    functions: Functions,
    open: Map<u64, Call>,
    /// By duration; among equals the later one comes first.
    longest: BTreeMap<(u64, std::cmp::Reverse<u64>), Call>,
    in_flight: Vec<InFlight>,
}

struct Call {
    function: usize,
    ts_ns: u64,
    pid: u32,
    tid: u32,
    what: Box<str>,
    result: Box<str>,
}

impl View for Longest {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) if begin.depth == 0 => self.begin(line, begin),
            Body::End(end) => self.end(end),
            Body::Finish(finish) => self.in_flight = finish.in_flight.clone(),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        let in_flight = std::mem::take(&mut self.in_flight);
        let in_flight: Map<u64, &InFlight> = in_flight.iter().map(|one| (one.begin, one)).collect();
        for (event, mut call) in std::mem::take(&mut self.open) {
            let known = in_flight.get(&event);
            let ns = known.map_or(told.last_ns.saturating_sub(call.ts_ns), |one| one.duration_ns);
            call.result =
                if known.is_some_and(|one| one.died) { "its process ended" } else { "not returned" }.into();
            self.add(event, ns, call);
        }
        if self.longest.is_empty() {
            return nothing("No CUDA call returned in this trace.");
        }
        let mut report = Report::default();
        report.title("The longest calls");
        let mut table = Table::new("calls", "calls", CALLS);
        for ((ns, event), call) in self.longest.iter().rev() {
            table.row(vec![
                Cell::Text(self.functions.name(call.function).to_owned()),
                Cell::Millis(*ns),
                Cell::At(call.ts_ns),
                Cell::Count(call.pid.into()),
                Cell::Count(call.tid.into()),
                Cell::Count(event.0),
                if call.result.is_empty() { Cell::Missing } else { Cell::Text(call.result.to_string()) },
                if call.what.is_empty() { Cell::Missing } else { Cell::Text(call.what.to_string()) },
            ]);
        }
        report.table(table);
        report.words("A call made inside another is in the time of that one. `jq 'select(.event_id==EVENT)' FILE` shows a call.");
        report
    }

    fn of_figures(&mut self, _: &Figures, _: &Told) -> Option<Report> {
        None
    }
}

impl Longest {
    fn begin(&mut self, line: &Line, begin: &Begin) {
        if self.open.len() >= MOST_OPEN || begin.no_return.is_some() {
            return;
        }
        let call = Call {
            function: self.functions.index(&begin.name),
            ts_ns: line.ts_ns,
            pid: begin.pid,
            tid: begin.tid,
            what: what(begin).into(),
            result: "".into(),
        };
        self.open.insert(line.event_id, call);
    }

    fn end(&mut self, end: &End) {
        let Some(mut call) = self.open.remove(&end.begin) else { return };
        let Some(ns) = end.duration_ns else { return };
        if let Some(error) = &end.error {
            call.result = short(error, LONGEST).into();
        } else if end.ended == Ended::Unwound {
            call.result = "left by an exception or longjmp".into();
        }
        self.add(end.begin, ns, call);
    }

    fn add(&mut self, event: u64, ns: u64, call: Call) {
        self.longest.insert((ns, std::cmp::Reverse(event)), call);
        if self.longest.len() > self.most {
            self.longest.pop_first();
        }
    }
}

/// The kernel that it launches, or else its arguments.
fn what(begin: &Begin) -> String {
    let kernel = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
    match kernel {
        Some(kernel) => short(kernel, LONGEST),
        None => short(&begin.args.shown(), LONGEST),
    }
}
