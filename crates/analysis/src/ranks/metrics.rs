//! Figures of a job, by the name that an assertion gives them (`ranks.skew.p99`). In: a name, a report. Out: a number, or
//! none where the traces do not tell. Not here: comparing it.

use super::report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobUnit {
    Count,
    /// In nanoseconds.
    Time,
}

pub struct JobFigure {
    pub name: &'static str,
    pub unit: JobUnit,
    /// The part of the document that it is of.
    part: &'static str,
    of: fn(&Report) -> Option<u64>,
}

const fn count(name: &'static str, part: &'static str, of: fn(&Report) -> Option<u64>) -> JobFigure {
    JobFigure { name, unit: JobUnit::Count, part, of }
}

const fn time(name: &'static str, part: &'static str, of: fn(&Report) -> Option<u64>) -> JobFigure {
    JobFigure { name, unit: JobUnit::Time, part, of }
}

/// Percentiles of `skew` are not in the list.
pub static JOB_FIGURES: [JobFigure; 12] = [
    count("count", "ranks", |job| Some(job.count())),
    count("missing", "missing", |job| Some(job.missing.count())),
    count("incomplete", "ranks", |job| Some(job.ranks.iter().filter(|rank| !rank.complete).count() as u64)),
    count("mismatches", "mismatches", |job| Some(job.mismatches.len() as u64 + job.more_mismatches)),
    count("hangs", "hangs", |job| Some(job.hangs.len() as u64)),
    count("collectives", "collectives", |job| Some(job.collectives.iter().map(|it| it.count).sum())),
    count("slow_kernels", "slow_kernels", |job| Some(job.slow_kernels.len() as u64)),
    time("wait", "collectives", |job| {
        matched(job, job.collectives.iter().fold(0, |sum, it| sum.saturating_add(it.wait_ns)))
    }),
    time("cost", "stragglers", |job| {
        matched(job, job.stragglers.iter().map(|it| it.cost_ns).max().unwrap_or(0))
    }),
    time("skew.avg", "skew", |job| job.skew.total_ns.checked_div(job.skew.count)),
    time("skew.max", "skew", |job| (job.skew.count > 0).then_some(job.skew.max_ns)),
    time("clock.error", "clocks", |job| {
        let errors: Option<Vec<f64>> = job.clocks.iter().map(|clock| clock.error_ns).collect();
        Some(errors?.into_iter().fold(0.0, f64::max).ceil() as u64)
    }),
];

/// A time at collectives. None if no collective was matched.
fn matched(job: &Report, ns: u64) -> Option<u64> {
    (!job.collectives.is_empty()).then_some(ns)
}

impl JobFigure {
    pub fn value(&self, job: &Report) -> Option<u64> {
        // Without a rank, nothing was measured.
        let is_known =
            !job.unknown.contains_key(self.part) && (!job.ranks.is_empty() || self.name == "count");
        is_known.then(|| (self.of)(job)).flatten()
    }
}

impl std::fmt::Debug for JobFigure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for JobFigure {
    fn eq(&self, other: &JobFigure) -> bool {
        self.name == other.name
    }
}
