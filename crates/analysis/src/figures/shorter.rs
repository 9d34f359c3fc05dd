//! The figures as they stand in the `end` line: with fewer rows where they would not fit. In: figures. Out: JSON of a
//! bounded length. Not here: figures that are not known (json.rs).

use std::iter;

use super::{FailureKind, Figures, Function, OTHER_FUNCTIONS, OTHERS, SyncFunction, truncate};
use gpurec_trace as trace;

/// Bytes of the `end` line for figures, without the calls in flight, and the limits on rows of each table if the
/// figures exceed that.
const LONGEST_SUMMARY: usize = 11 << 20;
const FEWER_ROWS: [usize; 4] = [4096, 1024, 256, 32];

fn fits_beside(json: &serde_json::Value, most: usize) -> bool {
    let text = json.to_string();
    text.len() <= most && trace::fits(text.as_bytes())
}

impl Function {
    /// Merges both.
    fn with(self, other: Function) -> Function {
        let (calls, total_ns) = (self.calls + other.calls, self.total_ns.saturating_add(other.total_ns));
        let average = total_ns.checked_div(calls).unwrap_or(0);
        let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Function {
            name: OTHER_FUNCTIONS.to_owned(),
            calls,
            total_ns,
            avg_ns: average,
            med_ns: average,
            min_ns: self.min_ns.min(other.min_ns),
            max_ns: self.max_ns.max(other.max_ns),
            stddev_ns: 0,
            kernel_ns: add(self.kernel_ns, other.kernel_ns),
            off_cpu_ns: add(self.off_cpu_ns, other.off_cpu_ns),
            corrected_ns: None,
            errors: self.errors.saturating_add(other.errors),
            unfinished: self.unfinished.saturating_add(other.unfinished),
        }
    }
}

impl FailureKind {
    fn with(self, other: FailureKind) -> FailureKind {
        let [api, error, function] = ["other", OTHERS, OTHERS].map(str::to_owned);
        let (count, last_ns) = (self.count + other.count, self.last_ns.max(other.last_ns));
        FailureKind { api, error, function, count, first_ns: self.first_ns, last_ns, ..Default::default() }
    }
}

impl SyncFunction {
    fn with(self, other: SyncFunction) -> SyncFunction {
        SyncFunction {
            name: OTHERS.to_owned(),
            calls: self.calls + other.calls,
            total_ns: self.total_ns.saturating_add(other.total_ns),
            unfinished: self.unfinished + other.unfinished,
        }
    }
}

impl Figures {
    /// The `summary` of the `end` line, with fewer rows if they would not all fit.
    pub fn to_json(&self) -> serde_json::Value {
        let shorter = FEWER_ROWS.iter().map(|rows| {
            let mut shorter = self.clone();
            shorter.keep(*rows);
            shorter.with_nulls()
        });
        iter::once_with(|| self.with_nulls())
            .chain(shorter)
            .find(|json| fits_beside(json, LONGEST_SUMMARY))
            .unwrap_or_default()
    }

    /// Limits each table to this number of rows, plus one row for the sum of the rest.
    pub fn keep(&mut self, rows: usize) {
        fn sum<T>(all: &mut Vec<T>, rows: usize, merge: fn(T, T) -> T) {
            let rest = all.split_off(rows.min(all.len()));
            all.extend(rest.into_iter().reduce(merge));
        }
        sum(&mut self.functions, rows, Function::with);
        sum(&mut self.failures.by_error, rows, FailureKind::with);
        sum(&mut self.failures.handled_by_error, rows, FailureKind::with);
        sum(&mut self.sync.by_function, rows, SyncFunction::with);
        if self.lost_by_probe.len() > rows {
            let mut by_count: Vec<_> = std::mem::take(&mut self.lost_by_probe).into_iter().collect();
            by_count.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let rest = by_count.drain(rows..).map(|(_, count)| count).sum();
            self.lost_by_probe = by_count.into_iter().chain([(OTHERS.to_owned(), rest)]).collect();
        }
        // The `end` line has its own list of these calls.
        self.in_flight.truncate(rows);
        self.error_windows.truncate(rows.div_ceil(64));
        self.refused.values_mut().for_each(|refused| refused.truncate(rows));
        self.more_libraries += truncate(&mut self.libraries, rows);
        self.more_processes += truncate(&mut self.processes, rows);
        self.more_kernels += truncate(&mut self.kernels, rows);
        if let Some(gpu) = &mut self.gpu {
            gpu.more_kernels += truncate(&mut gpu.kernels, rows);
            gpu.more_streams += truncate(&mut gpu.streams, rows);
        }
        for role in self.stacks.iter_mut().flat_map(|stacks| &mut stacks.by_role) {
            role.top.truncate(rows.div_ceil(128));
        }
    }
}
