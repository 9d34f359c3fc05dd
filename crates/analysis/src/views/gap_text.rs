//! Tables about gaps: what filled them, how long they are, and the longest ones.

use std::collections::HashMap;

use super::calls::{Functions, Thread};
use super::nothing;
use super::output::Report;
use crate::table::{Cell, Column, Table, data, long, number, text};
use crate::text::{duration, percent, plural};

const CAUSES: &[Column] = &[
    number("Total (ms)", "total_ns"),
    number("(%)", "total_percent"),
    number("Gaps", "gaps"),
    long("What the host did", "what"),
];

const LENGTHS: &[Column] = &[
    text("Length", "length"),
    data("from_ns"),
    number("Gaps", "gaps"),
    number("Total (ms)", "total_ns"),
    text("Share of the gaps' time", "total_percent"),
];

const LONGEST: &[Column] = &[
    number("Gap (ms)", "gap_ns"),
    number("From (s)", "from_ns"),
    number("Thread", "tid"),
    data("pid"),
    long("After", "after"),
    long("Before", "before"),
    long("What the host did", "what"),
    data("own_ns"),
    data("in_calls_ns"),
    data("in_driver_ns"),
    data("off_cpu_ns"),
];

/// Bounds of the classes: half decades from 1 us.
const BOUNDS_NS: [u64; 15] = [
    0,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// What the host did during a gap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Outside of all recorded activity.
    Own,
    Call(usize),
    /// In ioctls and functions of nvidia.ko, in calls of this function or outside any call.
    Driver(Option<usize>),
    OffCpu(Option<usize>),
}

/// Stands for the functions beyond the limit.
pub const OTHERS: usize = usize::MAX;

pub struct Gap {
    pub since_ns: u64,
    pub ns: u64,
    pub thread: Thread,
    /// The kernels around the gap, or the calls if the kernels are unknown.
    pub after: Option<usize>,
    pub before: usize,
    /// The largest time first.
    pub causes: Vec<(Cause, u64)>,
}

impl Gap {
    fn sum(&self, of: impl Fn(&Cause) -> bool) -> Cell {
        let those = self.causes.iter().filter(|(cause, _)| of(cause));
        Cell::Micros(those.fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns)))
    }
}

#[derive(Default)]
pub struct Sums {
    pub launch_calls: u64,
    gaps: u64,
    gap_ns: u64,
    by_length: [(u64, u64); BOUNDS_NS.len()],
    by_cause: HashMap<Cause, (u64, u64)>,
    /// The longest first.
    longest: Vec<Gap>,
}

impl Sums {
    pub fn add(&mut self, gap: Gap, listed: usize) {
        self.gaps += 1;
        self.gap_ns = self.gap_ns.saturating_add(gap.ns);
        let at = BOUNDS_NS.iter().rposition(|bound| gap.ns >= *bound).unwrap_or(0);
        if let Some((count, total)) = self.by_length.get_mut(at) {
            *count += 1;
            *total = total.saturating_add(gap.ns);
        }
        for (cause, ns) in &gap.causes {
            let seen = self.by_cause.entry(*cause).or_default();
            seen.0 += 1;
            seen.1 = seen.1.saturating_add(*ns);
        }
        if self.longest.len() < listed || self.longest.last().is_some_and(|least| gap.ns > least.ns) {
            let at = self.longest.partition_point(|known| known.ns >= gap.ns);
            self.longest.insert(at, gap);
            self.longest.truncate(listed);
        }
    }

    pub fn report(&self, functions: &Functions) -> Report {
        if self.gaps == 0 {
            return nothing("There is no time between launches in this trace: it has fewer than two.");
        }
        let mut report = Report::default();
        for (key, value) in
            [("launch_calls", self.launch_calls), ("gaps", self.gaps), ("gap_ns", self.gap_ns)]
        {
            report.fact(key, value);
        }
        let longest = self.longest.first().map_or(0, |gap| gap.ns);
        report.title(format!(
            "Between {}: {} in {}, the longest {}",
            plural(self.launch_calls, "launch call"),
            duration(self.gap_ns),
            plural(self.gaps, "gap"),
            duration(longest)
        ));
        self.causes(&mut report, functions);
        report.title("How long the gaps are");
        self.lengths(&mut report);
        report.title("The longest");
        self.longest(&mut report, functions);
        report
    }

    fn causes(&self, report: &mut Report, functions: &Functions) {
        let mut table = Table::new("causes", "causes", CAUSES);
        let mut all: Vec<_> = self.by_cause.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.1.cmp(&x.1).then(a.cmp(b)));
        for (cause, (gaps, ns)) in all {
            table.row(vec![
                Cell::Millis(*ns),
                Cell::Share((*ns).into(), self.gap_ns.into()),
                Cell::Count(*gaps),
                Cell::Text(named(*cause, functions)),
            ]);
        }
        report.table(table);
        report.words(
            "A gap is time in which no thread of the process launches; where it is spent waiting, the GPU is at work. Own code is all outside of CUDA calls, computing or asleep.",
        );
    }

    fn lengths(&self, report: &mut Report) {
        let mut table = Table::new("lengths", "lengths", LENGTHS).whole();
        let used = |(count, _): &(u64, u64)| *count > 0;
        let first = self.by_length.iter().position(used).unwrap_or(0);
        let last = self.by_length.iter().rposition(used).unwrap_or(0);
        for (at, (count, ns)) in self.by_length.iter().enumerate() {
            if at < first || at > last {
                continue;
            }
            let from = BOUNDS_NS.get(at).copied().unwrap_or(0);
            let to = BOUNDS_NS.get(at + 1).map(|to| format!("to {}", whole(*to)));
            let to = to.unwrap_or_else(|| "and more".to_owned());
            table.row(vec![
                Cell::Text(format!("{} {to}", whole(from))),
                Cell::Micros(from),
                Cell::Count(*count),
                Cell::Millis(*ns),
                Cell::Bar((*ns).into(), self.gap_ns.into(), 40),
            ]);
        }
        report.table(table);
    }

    fn longest(&self, report: &mut Report, functions: &Functions) {
        let mut table = Table::new("longest", "gaps", LONGEST);
        for gap in &self.longest {
            // A cause below a hundredth of the gap explains nothing.
            let worth = |(_, ns): &&(Cause, u64)| u128::from(*ns) * 100 >= u128::from(gap.ns);
            let what: Vec<String> = gap
                .causes
                .iter()
                .filter(worth)
                .take(3)
                .map(|(cause, ns)| {
                    format!("{} {} %", named(*cause, functions), percent((*ns).into(), gap.ns.into()))
                })
                .collect();
            table.row(vec![
                Cell::Millis(gap.ns),
                Cell::At(gap.since_ns),
                Cell::Count(gap.thread.1.into()),
                Cell::Count(gap.thread.0.into()),
                Cell::optional(gap.after, |after| Cell::Kernel(functions.name(after).to_owned())),
                Cell::Kernel(functions.name(gap.before).to_owned()),
                Cell::Text(what.join("; ")),
                gap.sum(|cause| matches!(cause, Cause::Own)),
                gap.sum(|cause| matches!(cause, Cause::Call(_))),
                gap.sum(|cause| matches!(cause, Cause::Driver(_))),
                gap.sum(|cause| matches!(cause, Cause::OffCpu(_))),
            ]);
        }
        table.more(self.gaps.saturating_sub(self.longest.len() as u64));
        report.table(table);
    }
}

fn named(cause: Cause, functions: &Functions) -> String {
    let name = |function: usize| if function == OTHERS { "other calls" } else { functions.name(function) };
    match cause {
        Cause::Own => "own code".to_owned(),
        Cause::Call(function) => name(function).to_owned(),
        Cause::Driver(Some(function)) => format!("{}, in the driver", name(function)),
        Cause::Driver(None) => "the driver, in no CUDA call".to_owned(),
        Cause::OffCpu(Some(function)) => format!("{}, off the CPU", name(function)),
        Cause::OffCpu(None) => "the driver, off the CPU".to_owned(),
    }
}

/// A bound without decimals.
fn whole(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}
