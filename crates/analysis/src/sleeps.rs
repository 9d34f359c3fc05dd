//! Suspends of the machine during the recording. In: `suspend` lines. Out: figures, and a section of the summary.

use serde::{Deserialize, Serialize};

use super::Summary;
use super::figures::Figures;
use super::text::{Page, duration, plural, seconds};
use gpurec_trace::Suspend;

/// Number of suspends listed; the others are only counted.
const LISTED: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepFigures {
    pub count: u64,
    pub total_ns: u64,
    /// The first suspends.
    pub first: Vec<Sleep>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleep {
    pub at_ns: u64,
    pub slept_ns: u64,
}

impl Summary {
    pub(super) fn slept(&mut self, at_ns: u64, suspend: &Suspend) {
        let sleeps = self.figures.sleeps.get_or_insert_default();
        sleeps.count += 1;
        sleeps.total_ns = sleeps.total_ns.saturating_add(suspend.slept_ns);
        if sleeps.first.len() < LISTED {
            sleeps.first.push(Sleep { at_ns, slept_ns: suspend.slept_ns });
        }
    }
}

pub(super) fn section(page: &mut Page, figures: &Figures) {
    let Some(sleeps) = &figures.sleeps else { return };
    page.section(&format!(
        "The machine slept: {}, {} in all",
        plural(sleeps.count, "time"),
        duration(sleeps.total_ns)
    ));
    for sleep in &sleeps.first {
        page.line(&format!("  {} at {}", duration(sleep.slept_ns), seconds(sleep.at_ns)));
    }
    page.more(sleeps.count as usize, sleeps.first.len(), "times");
    page.wrapped("  ", "The clock of a trace stands still meanwhile: that time is in no duration.");
}
