//! Formats verdicts for a terminal and for the log of a CI job.

use std::path::Path;

use super::{Outcome, Verdict};
use crate::measure::{First, Gathered, options_that_leave_out};
use crate::text::{Page, clean, duration, plural, seconds};

/// Longer expressions get no padding.
const WIDEST: usize = 48;

pub fn print(file: &Path, gathered: &Gathered, outcomes: &[Outcome], width: usize) -> String {
    let figures = &gathered.whole.figures;
    let state = if figures.complete { "complete" } else { "NOT complete" };
    let mut page = Page::new(width);
    page.line(&format!(
        "{}: {}, {}, {state}",
        clean(&file.display().to_string()),
        duration(figures.duration_ns),
        plural(figures.cuda_calls, "CUDA call")
    ));
    // Totals of a recording that left calls out cover only the remaining calls.
    if let Some(options) = options_that_leave_out(gathered.header.as_deref()) {
        page.wrapped("  - ", &format!("not all calls are in it: {}", clean(&options)));
    }
    let longest = |of: &dyn Fn(&Outcome) -> String| {
        outcomes.iter().map(|o| of(o).chars().count()).filter(|n| *n <= WIDEST).max().unwrap_or(0)
    };
    let (budgets, values) = (longest(&|o| clean(&o.budget.text)), longest(&shown));
    for outcome in outcomes {
        let line = format!(
            "  {:<5}  {:<budgets$}  {:>values$}",
            match outcome.verdict {
                Verdict::Pass => "pass",
                Verdict::Fail => "FAIL",
                Verdict::Wrong => "ERROR",
            },
            clean(&outcome.budget.text),
            shown(outcome)
        );
        page.line(line.trim_end());
        for reason in &outcome.because {
            page.wrapped("         ", &clean(reason));
        }
    }
    page.line(&verdict(outcomes));
    if !figures.complete {
        page.wrapped(
            "",
            "The trace is NOT complete, so what it lacks may break a budget that passes here (`complete` as a line of the budget makes that a failure):",
        );
        for reason in figures.incomplete_because.iter().chain(&figures.notes) {
            page.wrapped("  - ", &clean(reason));
        }
    }
    page.into_text()
}

/// In percent if the limit is: the reader compares the two by eye.
fn shown(outcome: &Outcome) -> String {
    let is_percent = outcome.budget.text.contains('%');
    match outcome.value {
        None => "no value".to_owned(),
        Some(value) if is_percent => value.in_percent().unwrap_or_else(|| value.to_string()),
        Some(value) => value.to_string(),
    }
}

fn verdict(outcomes: &[Outcome]) -> String {
    let count = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let all = outcomes.len();
    match (count(Verdict::Fail), count(Verdict::Wrong)) {
        (0, 0) => format!("{} of {all} passed", all),
        (failed, 0) => format!("{failed} of {all} FAILED"),
        (0, wrong) => format!("{wrong} of {all} cannot be checked"),
        (failed, wrong) => format!("{failed} of {all} FAILED, {wrong} cannot be checked"),
    }
}

/// The place of a call, in the form that timeline and jq need.
pub fn place(first: &First) -> String {
    let event = if first.event_id > 0 { format!(" (event {})", first.event_id) } else { String::new() };
    format!("the first at {} s in pid {} tid {}{event}", seconds(first.ts_ns), first.pid, first.tid)
}
