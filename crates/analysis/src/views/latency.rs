//! `report latency [FUNCTION]`: durations of calls: percentiles of all functions, or the histogram of one.

use super::*;
use glob::Pattern;

use crate::histogram::Histogram;
use crate::{did_you_mean, nearest};
use gpurec_cuda as cuda;

pub const KIND: Kind =
    kind::<Latency>("latency", "how long calls took: percentiles; of one FUNCTION the histogram")
        .table("functions", 30)
        .figures(&[CALLS]);

/// Limits on distinct functions and bytes of their names; width of a bar.
const MOST: usize = 65_536;
const NAMES: usize = 16 << 20;
const BAR: usize = 30;

#[derive(Default)]
struct Latency {
    wanted: Option<Pattern>,
    functions: Entries<Function, MOST, NAMES>,
    /// Number of calls that began, to find those without a duration yet.
    begun: u64,
    ended: u64,
}

struct Function {
    name: Arc<str>,
    time: Durations,
}

/// A row of the table of functions: its name, calls, least time, percentiles and most.
type Row = (String, u64, u64, [Option<u64>; 4], u64);

impl View for Latency {
    fn configure(&mut self, config: &ReportConfig) {
        self.wanted = config.function.clone();
    }

    fn line(&mut self, line: &Line, _: &Context) {
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

    fn finish(&mut self, _: &Context) -> Report {
        let open = self.begun.saturating_sub(self.ended);
        let mut functions: Vec<&Function> = self.functions.iter().collect();
        if functions.is_empty() {
            return nothing(&self.none(open));
        }
        functions.sort_by(|a, b| b.time.count.cmp(&a.time.count).then_with(|| a.name.cmp(&b.name)));
        let mut report = Report::default();
        let calls: u64 = functions.iter().map(|function| function.time.count).sum();
        report.facts([("calls", calls), ("in_flight", open)]);
        if let Some(wanted) = &self.wanted {
            histogram(&mut report, wanted.as_str(), &functions, &still(open));
            report.title("By function");
        } else {
            report.title(format!("{}{}", title(calls, functions.len()), still(open)));
        }
        table(&mut report, functions.into_iter().map(Function::row));
        report.words("Percentiles are within 1 %. `gpurec report latency FUNCTION` (a name or a pattern) has the histogram.");
        report
    }

    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let mut report = Report::default();
        let wanted: Vec<_> = figures.functions.iter().filter(|f| self.wants(&f.name)).collect();
        let calls = wanted.iter().map(|f| f.calls).sum();
        report.fact("calls", calls);
        report.title(title(calls, wanted.len()));
        let row = |f: &crate::figures::Function| {
            (f.name.clone(), f.calls, f.min_ns, [Some(f.med_ns), None, None, None], f.max_ns)
        };
        table(&mut report, wanted.into_iter().map(row));
        Some(report)
    }
}

fn title(calls: u64, functions: usize) -> String {
    let functions = plural(functions as u64, "function");
    format!("How long calls took: {} of {functions}", plural(calls, "call"))
}

fn table(report: &mut Report, rows: impl Iterator<Item = Row>) {
    report.table(
        Listing::new("functions", "functions", rows)
            .cell(long("Name", "name"), |row| row.0.clone())
            .count(number("Calls", "calls"), |row| row.1)
            .micros(number("Min (us)", "min_ns"), |row| row.2)
            .micros(number("p50 (us)", "p50_ns"), |row| row.3[0])
            .micros(number("p90 (us)", "p90_ns"), |row| row.3[1])
            .micros(number("p99 (us)", "p99_ns"), |row| row.3[2])
            .micros(number("p99.9 (us)", "p999_ns"), |row| row.3[3])
            .micros(number("Max (us)", "max_ns"), |row| row.4),
    );
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
        let new = |kept: Option<Arc<str>>| Function {
            name: kept.unwrap_or_else(|| "others".into()),
            time: Durations::default(),
        };
        let number = self.functions.number(Some(name), new, |_, _| true);
        if let Some(function) = self.functions.get_mut(number) {
            function.time.add(ns);
        }
    }
}

impl Function {
    /// The smallest duration that this share, in ten-thousandths, of the calls does not exceed.
    fn percentile(&self, of_10_000: u128) -> u64 {
        let rank = (u128::from(self.time.count) * of_10_000).div_ceil(10_000).max(1) - 1;
        // The middle of a histogram bucket may lie outside its values.
        let value = self.time.all.value_at(u64::try_from(rank).unwrap_or(u64::MAX));
        value.clamp(self.time.min, self.time.max)
    }

    fn row(&self) -> Row {
        let percentiles = [5_000, 9_000, 9_900, 9_990].map(|of_10_000| Some(self.percentile(of_10_000)));
        (self.name.to_string(), self.time.count, self.time.min, percentiles, self.time.max)
    }
}

/// A row for each power of two between the shortest and the longest call.
fn histogram(report: &mut Report, what: &str, functions: &[&Function], still: &str) {
    let mut all = Histogram::default();
    functions.iter().for_each(|function| all.merge(&function.time.all));
    let calls: u64 = functions.iter().map(|function| function.time.count).sum();
    report.title(format!("How long {what} took: {}{still}", plural(calls, "call")));
    let octaves = all.by_octave();
    let most = octaves.iter().copied().max().unwrap_or(0);
    let from = |octave: usize| if octave == 0 { 0 } else { 1u64 << octave };
    let to = |octave: usize| 1u64.checked_shl(octave as u32 + 1).unwrap_or(u64::MAX);
    let upto = octaves.iter().scan(0u64, |upto, count| {
        *upto += count;
        Some((*count, *upto))
    });
    let rows = upto.enumerate().skip_while(|(_, (_, upto))| *upto == 0);
    report.table(
        Listing::new("histogram", "rows", rows)
            .cell(text("Took", "took"), |(at, _)| format!("{} to {}", duration(from(*at)), duration(to(*at))))
            .count(data("from_ns"), |(at, _)| from(*at))
            .count(data("to_ns"), |(at, _)| to(*at))
            .count(number("Calls", "calls"), |(_, (count, _))| *count)
            .share(number("(%)", "calls_percent"), |(_, (count, _))| Some((*count, calls)))
            .share(number("Up to here (%)", "upto_percent"), |(_, (_, upto))| Some((*upto, calls)))
            .bar(text("Share of the calls", "share_percent"), BAR, |(_, (count, _))| (*count, most))
            .whole(),
    );
}
