//! Periodic output during a recording: the reports of --interval and the totals of the status line. In: the
//! recorder's lines, when it has time. Out: texts for the screen. A report that finds the queue full is dropped, and
//! the next one counts it.

use std::time::{Duration, Instant, SystemTime};

use super::screen::Voice;
use super::status::{self, Totals};
use crate::pipeline::sink::Lines;
use crate::pipeline::worker;
use crate::process::cgroup::Owner;
use gpurec_analysis::activity::Activity;
use gpurec_analysis::running::Now;
use gpurec_analysis::ui;
use gpurec_analysis::usage::Snapshot;

pub struct Watch {
    voice: Voice,
    report: Option<Timer>,
    status: Option<Timer>,
    form: Form,
    /// Values at the last report.
    events: u64,
    before: Snapshot,
    /// Reports that found the queue full.
    skipped: u64,
}

/// The form of the reports.
pub enum Form {
    /// For people, in this number of columns.
    Text(usize),
    /// Each report is one JSON document, with the name of the host.
    Json(String),
}

struct Timer {
    every: Duration,
    next: Instant,
}

impl Timer {
    fn new(every: Duration) -> Timer {
        Timer { every, next: Instant::now() + every }
    }

    /// True if the timer is due. Missed times are skipped, not made up for.
    fn rings(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        while self.next <= now {
            self.next += self.every;
        }
        true
    }
}

impl worker::Watch for Watch {
    fn is_due(&self) -> bool {
        let now = Instant::now();
        self.report.iter().chain(&self.status).any(|timer| timer.next <= now)
    }

    fn show(&mut self, lines: &mut Lines, at_ns: u64, lost: u64) {
        if self.report.as_mut().is_some_and(Timer::rings) {
            self.report(lines, at_ns, lost);
        }
        if self.status.as_mut().is_some_and(Timer::rings) {
            let cost_ns = lines.summary().highest_cost();
            let no_stacks = lines.summary().stacks_are_given_up();
            self.voice.status(Totals { at_ns, events: lines.count(), lost, cost_ns, no_stacks });
        }
    }
}

impl Watch {
    pub fn new(voice: Voice, interval: Option<Duration>, status: bool, form: Form) -> Watch {
        let (report, status) = (interval.map(Timer::new), status.then(|| Timer::new(status::EVERY)));
        Watch { voice, report, status, form, events: 0, before: Snapshot::default(), skipped: 0 }
    }

    fn report(&mut self, lines: &mut Lines, at_ns: u64, lost: u64) {
        if !self.voice.has_room() {
            self.skipped += 1;
            return;
        }
        let Some(snapshot) = lines.snapshot(at_ns, None) else { return };
        let activity = Activity::between(&self.before, &snapshot, |cgroup| Owner::of(cgroup).container);
        let events = lines.count();
        let now = Now {
            at_ns,
            wall: SystemTime::now(),
            events,
            new_events: events - self.events,
            passed_ns: activity.passed_ns,
            lost,
            skipped: std::mem::take(&mut self.skipped),
        };
        (self.events, self.before) = (events, snapshot);
        let text = match &self.form {
            Form::Text(width) => lines.summary().running(&now, &activity, *width),
            Form::Json(host) => {
                let mut document = activity.json(host, now.wall);
                document["events"] = events.into();
                document["reports_skipped"] = now.skipped.into();
                ui::json(&document).map_or_else(|_| String::new(), |document| document + "\n")
            }
        };
        if self.voice.say(text, 0).is_err() {
            self.skipped = now.skipped + 1;
        }
    }
}
