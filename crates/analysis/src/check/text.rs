//! Formats verdicts for a terminal and for the log of a CI job.

use std::path::Path;

use super::{Outcome, Verdict};
use crate::measure::{First, Measurements, Value, options_that_leave_out};
use crate::ranks::Report;
use crate::text::{Page, clean, plural, seconds};

/// Longer expressions get no padding.
const WIDEST: usize = 48;

pub fn print(file: &Path, gathered: &Measurements, outcomes: &[Outcome], width: usize) -> String {
    let figures = &gathered.whole.figures;
    let mut page = Page::new(width);
    page.line(&gathered.headline(file));
    // Totals of a recording that left calls out cover only the remaining calls.
    if let Some(options) = options_that_leave_out(gathered.header.as_deref()) {
        page.wrapped("  - ", &format!("calls were left out: {}", clean(&options)));
    }
    lines(&mut page, outcomes);
    if !figures.complete {
        page.wrapped(
            "",
            "The trace is NOT complete, so an assertion that passes here may fail on the missing part (add --assert complete to make that a failure):",
        );
        for reason in figures.incomplete_because.iter().chain(&figures.notes) {
            page.wrapped("  - ", &clean(reason));
        }
    }
    page.into_text()
}

/// Assertions about the ranks of a job.
pub fn print_job(job: &Report, outcomes: &[Outcome], width: usize) -> String {
    let mut page = Page::new(width);
    page.line(&format!("Job: {}", plural(job.count(), "rank")));
    lines(&mut page, outcomes);
    for note in &job.notes {
        page.wrapped("  - ", &clean(note));
    }
    page.into_text()
}

/// A line for each expression, and the verdict.
fn lines(page: &mut Page, outcomes: &[Outcome]) {
    let longest = |of: &dyn Fn(&Outcome) -> String| {
        outcomes.iter().map(|o| of(o).chars().count()).filter(|n| *n <= WIDEST).max().unwrap_or(0)
    };
    let (budgets, values) = (longest(&|o| clean(&o.budget.text)), longest(&shown));
    for outcome in outcomes {
        let (budget, value) = (clean(&outcome.budget.text), shown(outcome));
        let line = format!("{budget:<budgets$}  {value:>values$}");
        outcome.verdict.print(page, &line, &outcome.because);
    }
    page.line(&verdict(outcomes));
}

/// In percent if the limit is: the reader compares the two by eye.
fn shown(outcome: &Outcome) -> String {
    let is_percent = outcome.budget.text.contains('%');
    let percent = |value: &Value| value.in_percent().filter(|_| is_percent);
    outcome.value.map_or("no value".to_owned(), |value| percent(&value).unwrap_or_else(|| value.to_string()))
}

fn verdict(outcomes: &[Outcome]) -> String {
    let count = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let all = outcomes.len();
    match (count(Verdict::Fail), count(Verdict::Wrong)) {
        (0, 0) => format!("{all} of {all} passed"),
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
