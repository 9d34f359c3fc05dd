//! `--fail-over METRIC=LIMIT`: how much worse a metric may get. In: expressions and two recordings. Out: the two values
//! and the verdict of each expression.

use anyhow::{Result, bail};
use serde_json::json;

use crate::Usage;
use crate::measure::{self, Better, Fault, Gathered, Missing, Threshold, Value, evaluate};
use crate::text::clean;
use crate::ui::is_unsafe;

pub struct Given {
    pub term: measure::Term,
    limit: Value,
    relative: bool,
    text: String,
}

pub struct Verdict {
    pub text: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
    pub because: Vec<String>,
    status: u8,
}

pub fn read(given: &[String]) -> Result<Vec<Given>> {
    let mut read = Vec::new();
    let mut errors = Vec::new();
    for text in given {
        match measure::threshold(text) {
            Ok(Threshold { term, limit, relative }) => {
                read.push(Given { term, limit, relative, text: text.trim().to_owned() });
            }
            Err(Fault { column, reason }) => {
                let mark = " ".repeat(column.saturating_sub(1));
                let shown: String = text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect();
                errors
                    .push(format!("--fail-over: column {column}: {}\n  {shown}\n  {mark}^", clean(&reason)));
            }
        }
    }
    if !errors.is_empty() {
        bail!(Usage(errors.join("\n")));
    }
    Ok(read)
}

pub fn judge(given: &Given, gathered: &[Gathered; 2]) -> Verdict {
    let [before, after] = gathered.each_ref().map(|side| evaluate(&given.term, side));
    let mut because = Vec::new();
    let mut told = Vec::new();
    let mut wrong = 0;
    for (name, side) in [("before", &before), ("after", &after)] {
        match side {
            Ok(found) => because.extend(found.notes.iter().map(|note| format!("{name}: {note}"))),
            Err(Missing::NoValue(reason)) => told.push(format!("{name}: {reason}")),
            Err(Missing::Unknown { column, reason }) => {
                wrong += 1;
                told.push(format!("{name}: column {column}: {reason}"));
            }
        }
    }
    // A misspelt name gives the same error for both recordings.
    if let [first, second] = told.as_slice()
        && first.strip_prefix("before: ") == second.strip_prefix("after: ")
    {
        told = first.strip_prefix("before: ").into_iter().map(str::to_owned).collect();
    }
    let values = (before.ok().map(|found| found.value), after.ok().map(|found| found.value));
    let status = match values {
        (Some(before), Some(after)) if within(given, before, after) => 0,
        (Some(_), Some(_)) => 1,
        // A kernel or a --lib function of only one recording is new, or gone.
        (None, Some(after)) if wrong == 1 => {
            u8::from(!after.is_zero() && given.term.better() == Better::Lower)
        }
        (Some(_), None) if wrong == 1 => u8::from(given.term.better() == Better::Higher),
        (None, None) if wrong == 2 => 2,
        // There is no time on one side, since it was not called: no limit can have been kept.
        (Some(_), None) if given.term.better() == Better::Lower => 0,
        _ => 1,
    };
    because.extend(told);
    Verdict { text: given.text.clone(), before: values.0, after: values.1, because, status }
}

fn within(given: &Given, before: Value, after: Value) -> bool {
    let more = given.term.better() == Better::Lower;
    let limit =
        if given.relative { before.changed(given.limit, more) } else { before.plus(given.limit, more) };
    let order = after.compare(&limit);
    if more { order.is_le() } else { order.is_ge() }
}

impl Verdict {
    pub fn status(&self) -> u8 {
        self.status
    }

    pub fn json(&self) -> serde_json::Value {
        json!({
            "threshold": self.text,
            "before": self.before.map(|value| value.json()),
            "after": self.after.map(|value| value.json()),
            "unit": self.after.or(self.before).map(|value| value.unit.name()),
            "verdict": match self.status {
                0 => "pass",
                1 => "fail",
                _ => "error",
            },
            "because": self.because,
        })
    }
}
