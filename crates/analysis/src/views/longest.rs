//! `report longest`: the longest calls, one by one: when, in which thread, with which arguments. Of nested calls it
//! lists only the outermost; unfinished calls count with their time so far.

use std::collections::BTreeMap;

use super::*;
use gpurec_trace::EndKind;
use gpurec_trace::bounds::{MOST_OPEN, short};
use gpurec_trace::hash::Map;

pub const KIND: Kind = kind::<Longest>("longest", "the longest calls, one by one, with their arguments")
    .table("calls", ROWS)
    .figures(&[CALLS]);

const ROWS: usize = 20;
/// Limits on rows and on the length of a text in a row.
const MOST: usize = 65_536;
const LONGEST: usize = 400;

#[derive(Default)]
struct Longest {
    most: usize,
    functions: Functions,
    open: Map<u64, Call>,
    /// By duration; among equals the later one comes first.
    longest: BTreeMap<(u64, std::cmp::Reverse<u64>), Call>,
}

struct Call {
    function: usize,
    ts_ns: u64,
    pid: u32,
    tid: u32,
    what: Box<str>,
    result: Box<str>,
    site: Option<Site>,
}

impl View for Longest {
    fn configure(&mut self, config: &ReportConfig) {
        self.most = config.top.unwrap_or(ROWS).min(MOST);
    }

    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) if begin.depth == 0 => {
                self.begin(line, begin, context.stacks.site_of(line.event_id))
            }
            Body::End(end) => self.end(end),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        for (event, mut call) in std::mem::take(&mut self.open) {
            let known = context.in_flight(event);
            let (ns, died) = known.unwrap_or((context.last_ns.saturating_sub(call.ts_ns), false));
            call.result = if died { "its process ended" } else { "not returned" }.into();
            self.add(event, ns, call);
        }
        if self.longest.is_empty() {
            return nothing("No CUDA call returned in this trace.");
        }
        let mut report = Report::default();
        report.title("The longest calls");
        report.table(
            Listing::new("calls", "calls", self.longest.iter().rev())
                .cell(long("Name", "name"), |(_, call)| self.functions.name(call.function))
                .millis(number("Took (ms)", "duration_ns"), |((ns, _), _)| *ns)
                .at(number("At (s)", "ts_ns"), |(_, call)| call.ts_ns)
                .count(number("PID", "pid").minor(), |(_, call)| call.pid)
                .count(number("TID", "tid"), |(_, call)| call.tid)
                .count(number("Event", "event").vital(), |((_, event), _)| event.0)
                .cell(text("Result", "result"), |(_, call)| (!call.result.is_empty()).then_some(&call.result))
                .cell(long("What", "what"), |(_, call)| (!call.what.is_empty()).then_some(&call.what))
                .cell(long("Call site", "call_site"), |(_, call)| {
                    call.site.map(|site| context.stacks.text(site))
                }),
        );
        report.words("A call made inside another is in the time of that one. `jq 'select(.event_id==EVENT)' FILE` shows a call.");
        report
    }

    fn of_figures(&mut self, _: &Figures, _: &Context) -> Option<Report> {
        None
    }
}

impl Longest {
    fn begin(&mut self, line: &Line, begin: &Begin, site: Option<Site>) {
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
            site,
        };
        self.open.insert(line.event_id, call);
    }

    fn end(&mut self, end: &End) {
        let Some(mut call) = self.open.remove(&end.begin) else { return };
        let Some(ns) = end.duration_ns else { return };
        if let Some(error) = &end.error {
            call.result = short(error, LONGEST).into();
        } else if end.ended == EndKind::Unwound {
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
    kernel.map_or_else(|| short(&begin.args.shown(), LONGEST), |kernel| short(kernel, LONGEST))
}
