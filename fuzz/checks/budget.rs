//! Budget expressions.
//! In: lines of a budget.
//! Out: panics unless an answer comes, an error points into its line, a limit is read as it was written, its opposite
//! is decided the opposite way, and `check` gives one of its three exit statuses for all of the lines together.

use std::cell::OnceCell;
use std::path::PathBuf;

use super::{Scratch, with_file};
use gpurec_analysis::Usage;
use gpurec_analysis::check::{CheckConfig, check};
use gpurec_analysis::measure::{
    Asks, EvalError, Op, Term, Value, budget as parse, decide, evaluate, gather, threshold,
};
use gpurec_analysis::only::Only;

pub fn budget(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines().take(4) {
        one(line);
    }
    whole(text.as_bytes());
}

/// A small recording with an example of everything.
fn recording() -> PathBuf {
    thread_local!(static RECORDING: OnceCell<Scratch> = const { OnceCell::new() });
    let made = || {
        let scratch = Scratch::new();
        scratch.fill(include_bytes!("../../crates/analysis/src/tests/kernel.jsonl"));
        scratch
    };
    RECORDING.with(|recording| recording.get_or_init(made).path.clone())
}

fn one(line: &str) {
    let columns = line.chars().count() + 1;
    if let Err(fault) = threshold(line) {
        assert!((1..=columns).contains(&fault.column) && !fault.reason.is_empty(), "{fault:?}");
    }
    match parse(line) {
        Ok(None) => assert!(line.trim_start().is_empty() || line.trim_start().starts_with('#')),
        Ok(Some((term, op, limit))) => verdict(&term, op, limit),
        Err(fault) => {
            assert!((1..=columns).contains(&fault.column) && !fault.reason.is_empty(), "{fault:?}");
        }
    }
}

fn verdict(term: &Term, op: Op, limit: Value) {
    assert_eq!(term.unit, limit.unit);
    assert!(!limit.to_string().is_empty() && limit.compare(&limit).is_eq());
    let mut asks = Asks::default();
    asks.add(term, Some(limit));
    let gathered = gather(&recording(), &asks, &Only::default()).unwrap();
    match evaluate(term, &gathered) {
        Ok(found) => {
            let opposite = match op {
                Op::Less => Op::AtLeast,
                Op::AtMost => Op::More,
                Op::More => Op::AtMost,
                Op::AtLeast => Op::Less,
                Op::Is => Op::IsNot,
                Op::IsNot => Op::Is,
            };
            assert_ne!(
                decide(&found, op, &limit),
                decide(&found, opposite, &limit),
                "{term:?} {op:?} {limit:?}"
            );
            assert!(!found.shown(&limit).to_string().is_empty());
            let json = found.shown(&limit).json();
            assert!(json.is_number(), "{json}");
        }
        Err(EvalError::NoValue(reason) | EvalError::Unknown { reason, .. }) => assert!(!reason.is_empty()),
    }
}

fn whole(text: &[u8]) {
    let files = vec![recording()];
    let json = text.len() % 2 == 0;
    let done = with_file(text, |scratch| {
        let budgets = vec![scratch.path.display().to_string()];
        check(&CheckConfig { files, budgets, json, only: Only::default() })
    });
    match done {
        Ok(status) => assert!(status <= 2),
        Err(error) => assert!(error.is::<Usage>() && !error.to_string().is_empty(), "{error:#}"),
    }
}
