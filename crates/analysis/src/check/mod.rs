//! `gpurec check`: a gate for CI. In: assertions (expressions or files of them) and traces. Out: each expression with
//! its value and verdict, and the exit status: 1 if an assertion fails, 2 if an expression names something that does
//! not exist. Assertions about ranks take all traces as one job. The output always states that a trace is incomplete, whatever the verdicts.

mod budget;
#[cfg(test)]
pub mod tests;
mod text;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::measure::{
    Asks, EvalError, Evaluation, Measurements, Op, Value, Verdict, decide, evaluate, evaluate_job, gather,
    options_that_leave_out,
};
use super::{FAILED, Only, read, width_of_output};
use crate::ranks::{files_of, gather as gather_job};
use crate::ui;
use budget::Budget;

#[derive(Debug)]
pub struct CheckConfig {
    pub files: Vec<PathBuf>,
    /// File names, or expressions.
    pub budgets: Vec<String>,
    pub json: bool,
    pub only: Only,
}

/// The result of one expression.
struct Outcome<'a> {
    budget: &'a Budget,
    verdict: Verdict,
    /// The value as printed.
    value: Option<Value>,
    /// Why there is no value, or why it does not mean what it seems to; and where to look.
    because: Vec<String>,
}

pub fn check(config: &CheckConfig) -> Result<u8> {
    let budgets = budget::read(&config.budgets)?;
    let (of_job, budgets): (Vec<Budget>, Vec<Budget>) =
        budgets.into_iter().partition(|it| it.term.is_of_job());
    let job = if of_job.is_empty() { 0 } else { check_job(config, &of_job)? };
    if budgets.is_empty() {
        return Ok(job);
    }
    let mut asks = Asks::default();
    for budget in &budgets {
        asks.add(&budget.term, Some(budget.limit));
    }
    let files = read::or_newest(&config.files);
    let mut out = BufWriter::new(std::io::stdout().lock());
    let status = read::of_each(&files, |_, file| {
        let gathered = gather(file, &asks, &config.only)?;
        let outcomes: Vec<Outcome> = budgets.iter().map(|budget| judge(budget, &gathered)).collect();
        let status = outcomes.iter().map(|outcome| outcome.verdict.status()).max().unwrap_or(0);
        if config.json {
            writeln!(out, "{}", ui::json(&to_json(file, &gathered, &outcomes))?)?;
        } else {
            // Problems of the file come before their consequences.
            ui::of_file(file, &gathered.sentences);
            out.write_all(text::print(file, &gathered, &outcomes, width_of_output()).as_bytes())?;
        }
        out.flush()?;
        Ok(status)
    })?;
    Ok(status.max(job))
}

/// Assertions about ranks: all traces are one job.
fn check_job(config: &CheckConfig, budgets: &[Budget]) -> Result<u8> {
    let report = gather_job(&files_of(&read::or_newest(&config.files))?, &config.only)?;
    let outcomes: Vec<Outcome> =
        budgets.iter().map(|budget| outcome(budget, evaluate_job(&budget.term, &report))).collect();
    let status = outcomes.iter().map(|outcome| outcome.verdict.status()).max().unwrap_or(0);
    // An assertion may be about a file that could not be read.
    let status = if report.unread > 0 { status.max(FAILED) } else { status };
    let mut out = BufWriter::new(std::io::stdout().lock());
    if config.json {
        let json = json!({
            "job": report.job,
            "ranks": report.count(),
            "notes": report.notes,
            "unread": report.unread,
            "passed": report.unread == 0 && outcomes.iter().all(|outcome| outcome.verdict == Verdict::Pass),
            "checks": outcomes.iter().map(check_json).collect::<Vec<_>>(),
        });
        writeln!(out, "{}", ui::json(&json)?)?;
    } else {
        out.write_all(text::print_job(&report, &outcomes, width_of_output()).as_bytes())?;
    }
    out.flush()?;
    Ok(status)
}

fn judge<'a>(budget: &'a Budget, gathered: &Measurements) -> Outcome<'a> {
    outcome(budget, evaluate(&budget.term, gathered))
}

fn outcome(budget: &Budget, found: Result<Evaluation, EvalError>) -> Outcome<'_> {
    let found = match found {
        Ok(found) => found,
        Err(EvalError::NoValue(reason)) => {
            return Outcome { budget, verdict: Verdict::Fail, value: None, because: vec![reason] };
        }
        Err(EvalError::Unknown { column, reason }) => {
            let because = vec![format!("{}: {reason}", budget.place.at(column))];
            return Outcome { budget, verdict: Verdict::Wrong, value: None, because };
        }
    };
    let pass = decide(&found, budget.op, &budget.limit);
    let mut because = Vec::new();
    // Where to look: the first occurrence of something that should be absent.
    let none_wanted = budget.limit.is_zero() && matches!(budget.op, Op::Is | Op::AtMost);
    if let Some(first) = found.first.filter(|_| !pass && none_wanted) {
        because.push(text::place(&first));
    }
    let value = Some(found.shown(&budget.limit));
    because.extend(found.notes);
    Outcome { budget, verdict: Verdict::of(pass), value, because }
}

fn to_json(file: &Path, gathered: &Measurements, outcomes: &[Outcome]) -> serde_json::Value {
    let mut json = gathered.json(file);
    json["left_out"] = json!(options_that_leave_out(gathered.header.as_deref()));
    json["passed"] = outcomes.iter().all(|outcome| outcome.verdict == Verdict::Pass).into();
    json["checks"] = outcomes.iter().map(check_json).collect();
    json
}

fn check_json(outcome: &Outcome) -> serde_json::Value {
    let budget = outcome.budget;
    json!({
        "budget": budget.text,
        "from": budget.place.file,
        "line": budget.place.line,
        "value": outcome.value.map(|value| value.json()),
        "limit": budget.limit.json(),
        "unit": budget.limit.unit.name(),
        "verdict": outcome.verdict.name(),
        "because": outcome.because,
    })
}
