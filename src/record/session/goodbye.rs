//! What the user reads when a recording is over. In: its figures, why it ended. Out: the summary and remarks, on standard
//! error.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Dumps, EndCause, RecordingEnd, Session, Targets};
use crate::ui;
use gpurec_analysis as analysis;

impl Session<'_> {
    /// `leave`: a signal has come, so a terminal that takes nothing is not waited for.
    pub(super) fn say_goodbye(&mut self, ended: &RecordingEnd, why: &EndCause, leave: &Arc<AtomicBool>) {
        let text = self.goodbye(ended, why);
        self.screen.last_words(&text, leave);
    }

    fn goodbye(&self, ended: &RecordingEnd, why: &EndCause) -> String {
        let mut text = String::new();
        let last = self.dumps.as_ref().and_then(Dumps::last);
        let path = self.path.as_deref().or(last.as_deref());
        if self.config.verbose {
            self.details(&mut text, &ended.outcome.figures);
        }
        if let (Some(error), true) = (&ended.write_error, self.dumps.is_some()) {
            let what = "cannot write the dump of the recording's end";
            say(&mut text, &format!("{what}: {error}; earlier dumps are whole"));
        } else if let Some(error) = &ended.write_error {
            let place = path.map_or("the trace".into(), ui::name);
            say(
                &mut text,
                &format!(
                    "cannot write {place}: {error}; gpurec ended the recording, and what it wrote is incomplete"
                ),
            );
        }
        if self.config.top.is_some() && *why == EndCause::TargetEnded {
            say(&mut text, "the processes of --pid have ended");
        }
        if self.config.quiet {
            return text;
        }
        text.push_str(&analysis::text::print(&ended.outcome.figures, analysis::width_of_errors()));
        if let Some(path) = path {
            text.push_str(&format!("\nTrace: {}\n", ui::name(path)));
        }
        for why in &self.tracker.no_python {
            text.push_str(&format!("\nStacks without Python frames: {why}\n"));
        }
        if let (Targets::Command(running), EndCause::Duration) = (&self.targets, why) {
            text.push_str(&format!(
                "\nThe recording is over; the command (process {}) runs on.\n",
                running.pid()
            ));
        }
        if *why == EndCause::TargetEnded && !matches!(self.targets, Targets::All) {
            text.push_str(&run_on(&self.tracker.still_there()));
        }
        text
    }

    fn details(&self, text: &mut String, figures: &analysis::Figures) {
        for library in &self.tracker.libraries {
            say(
                text,
                &format!(
                    "attached {} functions of {} in {:.1} ms ({} single-stepped, {} not hooked)",
                    library.functions + library.blocks,
                    ui::name(&library.path),
                    library.took.as_secs_f64() * 1e3,
                    library.slow,
                    library.not_hooked.len(),
                ),
            );
        }
        let stops = figures.stops.unwrap_or_default();
        say(
            text,
            &format!(
                "hooks by {}, about {} ns a call, {} single-stepped; {} files examined, {} stops of {:.1} ms in all",
                self.probes.backend.name(),
                self.probes.costs.emulated,
                self.probes.costs.stepped,
                self.tracker.files_examined,
                stops.count,
                stops.total_ns as f64 / 1e6,
            ),
        );
        if let Some(verified) = self.probes.verified() {
            say(text, &verified);
        }
    }
}

fn say(text: &mut String, sentence: &str) {
    let _ = writeln!(text, "gpurec: {sentence}");
}

/// The message about processes that the command left behind, such as daemons.
fn run_on(processes: &[(u32, String)]) -> String {
    const NAMED: usize = 5;
    if processes.is_empty() {
        return String::new();
    }
    let named = processes.iter().take(NAMED).map(|(pid, comm)| format!("{pid} ({})", ui::clean(comm)));
    let more = match processes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.collect::<Vec<_>>().join(", ");
    format!(
        "\nThe target ended, but processes that it started still run, and gpurec no longer records them: {named}{more}; to record one: gpurec --pid PID\n"
    )
}
