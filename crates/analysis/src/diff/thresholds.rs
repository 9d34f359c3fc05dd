//! `--fail-over METRIC=LIMIT`: how much worse a metric may get. In: expressions and two recordings. Out: the two values
//! and the verdict of each expression.

use anyhow::{Result, bail};
use serde_json::json;

use crate::Usage;
use crate::measure::{self, EvalError, Improvement, Measurements, Threshold, Value, evaluate};

pub struct Verdict {
    pub text: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
    pub because: Vec<String>,
    pub verdict: measure::Verdict,
}

pub fn read(given: &[String]) -> Result<Vec<Threshold>> {
    let mut read = Vec::new();
    let mut errors = Vec::new();
    for text in given {
        match measure::threshold(text) {
            Ok(threshold) => read.push(threshold),
            Err(fault) => errors.push(fault.pointed(&format!("--fail-over: column {}", fault.column), text)),
        }
    }
    if !errors.is_empty() {
        bail!(Usage(errors.join("\n")));
    }
    Ok(read)
}

pub fn judge(given: &Threshold, gathered: &[Measurements; 2]) -> Verdict {
    let [before, after] = gathered.each_ref().map(|side| evaluate(&given.term, side));
    let mut because = Vec::new();
    let mut reasons = Vec::new();
    let mut wrong = 0;
    for (name, side) in [("before", &before), ("after", &after)] {
        match side {
            Ok(found) => because.extend(found.notes.iter().map(|note| format!("{name}: {note}"))),
            Err(EvalError::NoValue(reason)) => reasons.push(format!("{name}: {reason}")),
            Err(EvalError::Unknown { column, reason }) => {
                wrong += 1;
                reasons.push(format!("{name}: column {column}: {reason}"));
            }
        }
    }
    // A misspelt name gives the same error for both recordings.
    if let [first, second] = reasons.as_slice()
        && first.strip_prefix("before: ") == second.strip_prefix("after: ")
    {
        reasons = first.strip_prefix("before: ").into_iter().map(str::to_owned).collect();
    }
    let values = (before.ok().map(|found| found.value), after.ok().map(|found| found.value));
    let lower_is_better = given.term.better() == Improvement::Lower;
    let verdict = measure::Verdict::of(match values {
        (Some(before), Some(after)) => within(given, before, after),
        // A kernel or a --lib function of only one recording is new, or gone.
        (None, Some(after)) if wrong == 1 => after.is_zero() || !lower_is_better,
        // There is no time on one side, since it was not called: no limit can have been kept.
        (Some(_), None) => lower_is_better,
        _ => false,
    });
    let verdict = if wrong == 2 { measure::Verdict::Wrong } else { verdict };
    because.extend(reasons);
    Verdict { text: given.text.clone(), before: values.0, after: values.1, because, verdict }
}

fn within(given: &Threshold, before: Value, after: Value) -> bool {
    let more = given.term.better() == Improvement::Lower;
    let limit =
        if given.relative { before.changed(given.limit, more) } else { before.plus(given.limit, more) };
    let order = after.compare(&limit);
    if more { order.is_le() } else { order.is_ge() }
}

impl Verdict {
    pub fn status(&self) -> u8 {
        self.verdict.status()
    }

    pub fn json(&self) -> serde_json::Value {
        json!({
            "threshold": self.text,
            "before": self.before.map(|value| value.json()),
            "after": self.after.map(|value| value.json()),
            "unit": self.after.or(self.before).map(|value| value.unit.name()),
            "verdict": self.verdict.name(),
            "because": self.because,
        })
    }
}
