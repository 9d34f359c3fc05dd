//! What every view is told about the trace as a whole, beside its lines: when it begins and ends, and what is to
//! be said about it before its figures are believed.

use crate::room::Sentences;
use crate::trace::{Body, Line, Notes};

#[derive(Default)]
pub struct Told {
    pub notes: Notes,
    /// The first line after the header: what comes before is gpurec's own start.
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    calls: u64,
    calls_of_summary: u64,
    lost: u64,
    because: Sentences,
}

impl Told {
    pub fn line(&mut self, line: &Line) {
        self.last_ns = self.last_ns.max(line.ts_ns);
        match &line.body {
            Body::Header(_) => return,
            Body::Begin(_) | Body::KernelBegin(_) => self.calls += 1,
            Body::Lost(lost) => self.lost = self.lost.saturating_add(lost.count),
            Body::Finish(finish) => {
                self.lost = self.lost.max(finish.lost);
                for reason in &finish.incomplete_because {
                    self.because.add(reason);
                }
                let calls = finish.summary.get("cuda_calls").and_then(serde_json::Value::as_u64);
                self.calls_of_summary = calls.unwrap_or(0);
            }
            _ => {}
        }
        self.first_ns.get_or_insert(line.ts_ns);
    }

    pub fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(0))
    }

    /// Recorded with --summary-only.
    pub fn only_figures(&self) -> bool {
        self.calls == 0 && self.calls_of_summary > 0
    }

    pub fn sentences(&self) -> Vec<String> {
        let mut said = self.notes.sentences();
        if self.only_figures() {
            said.push(
                "the trace has no events, only figures (--summary-only): what is not in its summary is not known; record without it"
                    .to_owned(),
            );
        }
        if self.lost > 0 && !self.because.list().iter().any(|reason| reason.contains("lost")) {
            said.push(format!("{} events were lost: the figures are too low", self.lost));
        }
        said.extend(
            self.because.all().iter().map(|reason| format!("the recording is not complete: {reason}")),
        );
        said
    }
}
