//! `report latency [FUNCTION]`: durations of calls: percentiles of all functions, or the histogram of one.

use glob::Pattern;

use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Figures;
use crate::histogram::Histogram;
use crate::table::{Cell, Column, Table, data, long, number, text};
use crate::text::{duration, plural};
use crate::{did_you_mean, nearest};
use gpurec_cuda as cuda;
use gpurec_trace::bounds::Names;
use gpurec_trace::{Body, Line};

const FUNCTIONS: &[Column] = &[
    long("Name", "name"),
    number("Calls", "calls"),
    number("Min (us)", "min_ns"),
    number("p50 (us)", "p50_ns"),
    number("p90 (us)", "p90_ns"),
    number("p99 (us)", "p99_ns"),
    number("p99.9 (us)", "p999_ns"),
    number("Max (us)", "max_ns"),
];

const BUCKETS: &[Column] = &[
    text("Took", "took"),
    data("from_ns"),
    data("to_ns"),
    number("Calls", "calls"),
    number("(%)", "calls_percent"),
    number("Up to here (%)", "upto_percent"),
    text("Share of the calls", "share_percent"),
];

/// Limits on distinct functions and bytes of their names; width of a bar.
const MOST: usize = 65_536;
const NAMES: usize = 16 << 20;
const BAR: usize = 30;

pub fn make(config: &ReportConfig) -> Box<dyn View> {
    Box::new(Latency { wanted: config.function.clone(), ..Latency::default() })
}

#[derive(Default)]
struct Latency {
    wanted: Option<Pattern>,
    by_name: Names<MOST, NAMES>,
    functions: Vec<Function>,
    /// Number of calls that began, to find those without a duration yet.
    begun: u64,
    ended: u64,
}

struct Function {
    name: std::sync::Arc<str>,
    calls: u64,
    min: u64,
    max: u64,
    all: Histogram,
}

impl View for Latency {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begun += u64::from(self.wants(&begin.name)),
            Body::End(end) if self.wants(&end.name) => {
                self.ended += 1;
                if let Some(ns) = end.duration_ns {
                    self.add(&end.name, ns);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Told) -> Report {
        let open = self.begun.saturating_sub(self.ended);
        if self.functions.is_empty() {
            return nothing(&self.none(open));
        }
        self.functions.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(&b.name)));
        let mut report = Report::default();
        let calls: u64 = self.functions.iter().map(|function| function.calls).sum();
        report.fact("calls", calls);
        report.fact("in_flight", open);
        if let Some(wanted) = &self.wanted {
            histogram(&mut report, wanted.as_str(), &self.functions, &still(open));
            report.title("By function");
        } else {
            let functions = plural(self.functions.len() as u64, "function");
            report.title(format!(
                "How long calls took: {} of {functions}{}",
                plural(calls, "call"),
                still(open)
            ));
        }
        let mut table = Table::new("functions", "functions", FUNCTIONS);
        for function in &self.functions {
            table.row(function.row());
        }
        report.table(table);
        report.words("Percentiles are within 1 %. `gpurec report latency FUNCTION` (a name or a pattern) has the histogram.");
        report
    }

    fn of_figures(&mut self, figures: &Figures, _: &Told) -> Option<Report> {
        let mut report = Report::default();
        let wanted: Vec<_> = figures.functions.iter().filter(|f| self.wants(&f.name)).collect();
        let calls = wanted.iter().map(|f| f.calls).sum();
        report.fact("calls", calls);
        report.title(format!(
            "How long calls took: {} of {}",
            plural(calls, "call"),
            plural(wanted.len() as u64, "function")
        ));
        let mut table = Table::new("functions", "functions", FUNCTIONS);
        for f in wanted {
            table.row(vec![
                f.name.as_str().into(),
                Cell::Count(f.calls),
                Cell::Micros(f.min_ns),
                Cell::Micros(f.med_ns),
                Cell::Missing,
                Cell::Missing,
                Cell::Missing,
                Cell::Micros(f.max_ns),
            ]);
        }
        report.table(table);
        Some(report)
    }
}

fn still(open: u64) -> String {
    if open > 0 { format!("; {open} more had not returned") } else { String::new() }
}

impl Latency {
    /// Why the report is empty.
    fn none(&self, open: u64) -> String {
        let Some(wanted) = &self.wanted else {
            return format!("No CUDA call returned in this trace{}.", still(open));
        };
        let is_known = cuda::function_names().any(|name| wanted.matches(name));
        match self.begun {
            0 if is_known => format!("{wanted} was not called in this trace."),
            0 => {
                let near = nearest(wanted.as_str(), cuda::function_names());
                let hint = did_you_mean(&near);
                format!("No CUDA function and nothing in this trace is called {wanted}{hint}")
            }
            _ => format!("No call of {wanted} returned in this trace{}.", still(open)),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.matches(name))
    }

    fn add(&mut self, name: &str, ns: u64) {
        let at = match self.by_name.get(name) {
            Some(known) => known,
            None => {
                let at = self.functions.len();
                let Some(name) = self.by_name.add(name, at) else { return };
                self.functions.push(Function {
                    name,
                    calls: 0,
                    min: u64::MAX,
                    max: 0,
                    all: Histogram::default(),
                });
                at
            }
        };
        let Some(function) = self.functions.get_mut(at) else { return };
        function.calls += 1;
        function.min = function.min.min(ns);
        function.max = function.max.max(ns);
        function.all.add(ns);
    }
}

impl Function {
    /// The smallest duration that this share, in ten-thousandths, of the calls does not exceed.
    fn percentile(&self, of_10_000: u128) -> u64 {
        let rank = (u128::from(self.calls) * of_10_000).div_ceil(10_000).max(1) - 1;
        // The middle of a histogram bucket may lie outside its values.
        self.all.value_at(u64::try_from(rank).unwrap_or(u64::MAX)).clamp(self.min, self.max)
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::Text(self.name.to_string()),
            Cell::Count(self.calls),
            Cell::Micros(self.min),
            Cell::Micros(self.percentile(5_000)),
            Cell::Micros(self.percentile(9_000)),
            Cell::Micros(self.percentile(9_900)),
            Cell::Micros(self.percentile(9_990)),
            Cell::Micros(self.max),
        ]
    }
}

/// A row for each power of two between the shortest and the longest call.
fn histogram(report: &mut Report, what: &str, functions: &[Function], still: &str) {
    let mut all = Histogram::default();
    functions.iter().for_each(|function| all.merge(&function.all));
    let calls: u64 = functions.iter().map(|function| function.calls).sum();
    report.title(format!("How long {what} took: {}{still}", plural(calls, "call")));
    let octaves = all.by_octave();
    let first = octaves.iter().position(|count| *count > 0).unwrap_or(0);
    let most = octaves.iter().copied().max().unwrap_or(0);
    let mut table = Table::new("histogram", "rows", BUCKETS).whole();
    let mut upto = 0u64;
    for (octave, count) in octaves.iter().enumerate().skip(first) {
        let from = if octave == 0 { 0 } else { 1u64 << octave };
        let to = 1u64.checked_shl(octave as u32 + 1).unwrap_or(u64::MAX);
        upto += count;
        table.row(vec![
            Cell::Text(format!("{} to {}", duration(from), duration(to))),
            Cell::Count(from),
            Cell::Count(to),
            Cell::Count(*count),
            Cell::Share((*count).into(), calls.into()),
            Cell::Share(upto.into(), calls.into()),
            Cell::Bar((*count).into(), most.into(), BAR),
        ]);
    }
    report.table(table);
}
