//! What the gates print about a file and about an expression. In: what was gathered, and whether an expression holds.
//! Out: text, JSON, and an exit status.

use std::path::Path;

use serde_json::{Value, json};

use super::Measurements;
use crate::text::{Page, clean, duration, plural};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    /// The expression names something that does not exist.
    Wrong,
}

impl Verdict {
    pub fn of(holds: bool) -> Verdict {
        if holds { Verdict::Pass } else { Verdict::Fail }
    }

    pub fn status(self) -> u8 {
        self as u8
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Wrong => "error",
        }
    }

    /// Adds the line of an expression, and the reasons below it.
    pub(crate) fn print(self, page: &mut Page, line: &str, because: &[String]) {
        let word = if self == Verdict::Pass { "pass".to_owned() } else { self.name().to_uppercase() };
        page.line(format!("  {word:<5}  {line}").trim_end());
        for reason in because {
            page.wrapped("         ", &clean(reason));
        }
    }
}

impl Measurements {
    pub fn headline(&self, file: &Path) -> String {
        let figures = &self.whole.figures;
        let state = if figures.complete { "complete" } else { "NOT complete" };
        let (file, length) = (clean(&file.display().to_string()), duration(figures.duration_ns));
        format!("{file}: {length}, {}, {state}", plural(figures.cuda_calls, "CUDA call"))
    }

    pub fn json(&self, file: &Path) -> Value {
        let figures = &self.whole.figures;
        json!({
            "file": file.display().to_string(),
            "duration_ns": figures.duration_ns,
            "complete": figures.complete,
            "incomplete_because": figures.incomplete_because,
            "incomplete_codes": figures.incomplete_codes,
            "notes": self.sentences,
        })
    }
}
