//! `gpurec diff`: what changed between two recordings. In: two traces, and thresholds. Out: totals, and changed
//! functions and kernels, the most informative first; exit status 1 if a change exceeds a threshold.

mod order;
mod rows;
mod sites;
#[cfg(test)]
mod tests;
mod text;
mod thresholds;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::measure::{Asks, Measurements, Threshold, gather};
use super::{Only, width_of_output};
use crate::ui;
use order::{Change, ChangeList, Rank};
use rows::Total;
use thresholds::Verdict;

#[derive(Debug)]
pub struct DiffConfig {
    pub before: PathBuf,
    pub after: PathBuf,
    pub json: bool,
    /// Number of rows of each kind.
    pub top: Option<usize>,
    /// `cudaMalloc.calls=10%`
    pub fail_over: Vec<String>,
    pub only: Only,
}

/// The complete comparison.
struct Diff<'a> {
    files: [&'a Path; 2],
    gathered: [Measurements; 2],
    totals: Vec<Total>,
    changes: ChangeList,
    /// None: one of the recordings has no call sites, or not all.
    sites: Option<sites::SiteChanges>,
    /// Differences that make the recordings hard to compare.
    caveats: Vec<String>,
    verdicts: Vec<Verdict>,
}

pub fn diff(config: &DiffConfig) -> Result<u8> {
    let thresholds = thresholds::read(&config.fail_over)?;
    let mut asks = Asks::default();
    for threshold in &thresholds {
        asks.add(&threshold.term, None);
    }
    let diff = Diff::new([&config.before, &config.after], &asks, &thresholds, &config.only)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if config.json {
        writeln!(out, "{}", ui::json(&diff.json(config.top))?)?;
    } else {
        for (file, gathered) in diff.files.iter().zip(&diff.gathered) {
            ui::of_file(file, &gathered.sentences);
        }
        out.write_all(text::print(&diff, config.top, width_of_output()).as_bytes())?;
    }
    out.flush()?;
    Ok(diff.verdicts.iter().map(Verdict::status).max().unwrap_or(0))
}

/// The comparison as `--json` prints it, without thresholds.
pub fn document(files: [&Path; 2], only: &Only) -> Result<Value> {
    Ok(Diff::new(files, &Asks::default(), &[], only)?.json(None))
}

impl<'a> Diff<'a> {
    fn new(files: [&'a Path; 2], asks: &Asks, thresholds: &[Threshold], only: &Only) -> Result<Diff<'a>> {
        let [before, after] = files;
        let gathered = [gather(before, asks, only)?, gather(after, asks, only)?];
        let rows = rows::rows(&gathered);
        Ok(Diff {
            files,
            totals: rows::totals(&gathered),
            caveats: rows::caveats(&gathered),
            changes: order::ordered(rows),
            sites: sites::changes(&gathered),
            verdicts: thresholds.iter().map(|given| thresholds::judge(given, &gathered)).collect(),
            gathered,
        })
    }

    fn json(&self, top: Option<usize>) -> Value {
        let side = |at: usize| Some(self.gathered.get(at)?.json(self.files.get(at)?));
        let changes: Vec<Value> =
            self.changes.changes.iter().take(top.unwrap_or(usize::MAX)).map(Change::json).collect();
        json!({
            "before": side(0),
            "after": side(1),
            "notes": self.caveats,
            "scale": self.changes.scale,
            "totals": self.totals.iter().map(Total::json).collect::<Vec<_>>(),
            "changes": changes,
            "unchanged": self.changes.unchanged,
            "call_sites": self.sites.as_ref().map(sites::SiteChanges::json),
            "passed": self.verdicts.iter().all(|verdict| verdict.status() == 0),
            "thresholds": self.verdicts.iter().map(Verdict::json).collect::<Vec<_>>(),
        })
    }
}

impl Change {
    fn json(&self) -> Value {
        let pair = |of: fn(&rows::Side) -> u64| json!({"before": of(&self.row.before), "after": of(&self.row.after)});
        json!({
            "name": self.row.name,
            "kind": if self.row.is_kernel { "kernel" } else { "function" },
            "what": match self.rank {
                Rank::Errors => "errors",
                Rank::Counts => "counts",
                Rank::Times => "times",
            },
            "calls": pair(|side| side.calls),
            "time_ns": pair(|side| side.total_ns),
            "slower_ns": self.slower,
            "bytes": pair(|side| side.bytes),
            "errors": pair(|side| side.errors),
            "follows": self.follows,
        })
    }
}
