//! Facts that only the recorder knows: how long --lossless made processes wait, and how many launches have no name for
//! lack of time. A reader takes them from the `end` line, from there to figures, and from figures to text.

use serde::{Deserialize, Serialize};

use super::Summary;
use super::figures::Figures;
use super::text::{Page, duration, plural};
use gpurec_trace as trace;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseFigures {
    pub count: u64,
    /// Sum over all processes.
    pub total_ns: u64,
}

impl PauseFigures {
    /// Reads the pauses from the figures in the `end` line.
    pub fn stored(figures: &serde_json::Value) -> Option<PauseFigures> {
        PauseFigures::deserialize(figures.get("pauses")?).ok()
    }
}

impl Summary {
    /// Takes the recorder's own count.
    pub fn paused(&mut self, count: u64, total_ns: u64) {
        self.figures.pauses = Some(PauseFigures { count, total_ns });
    }

    /// Takes the recorder's own count.
    pub fn stopped(&mut self, stops: trace::Stops) {
        self.figures.stops = Some(stops);
    }

    /// Takes the recorder's own count.
    pub fn unnamed(&mut self, launches: u64) {
        self.figures.unnamed_launches = launches;
    }

    /// Takes the recorder's own counts from the figures in the `end` line.
    pub(super) fn takes_the_recorders_own(&mut self, stored: &serde_json::Value) {
        self.figures.pauses = PauseFigures::stored(stored);
        self.unnamed(stored["unnamed_launches"].as_u64().unwrap_or(0));
    }
}

pub(super) fn section(page: &mut Page, figures: &Figures) {
    let Some(pauses) = figures.pauses.as_ref().filter(|pauses| pauses.count > 0) else { return };
    page.section(&format!(
        "Paused for --lossless: {}, {} in all",
        plural(pauses.count, "time"),
        duration(pauses.total_ns)
    ));
    page.wrapped("  ", "Calls that were under way then, and gaps between calls, are longer by that.");
}
