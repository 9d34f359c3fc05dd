//! `gpurec ranks`: one job, many ranks. In: the traces of its ranks, or what `summary --json` said of them. Out: who comes
//! last at collectives and why, which collectives differ, where the job stands still, and how far the clocks of the hosts
//! are apart; for exports, one time line. Memory grows with the number of ranks and of open collectives, not with the
//! length of the traces.

mod align;
mod arrival;
mod clocks;
mod communicators;
mod documents;
mod domain;
mod fit;
mod follow;
mod gather;
mod hangs;
#[cfg(test)]
mod made;
mod matching;
mod metrics;
mod missing;
mod names;
mod odd;
mod process;
#[cfg(test)]
mod real;
mod report;
mod spool;
mod stragglers;
#[cfg(test)]
mod tests;
mod text;
mod write;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;

use crate::only::Only;
use crate::{ui, width_of_output};

pub use align::{Aligned, Placed, align};
pub use gather::{files_of, gather, gather_traces};
pub use metrics::{JOB_FIGURES, JobFigure, JobUnit};
pub use report::Report;

#[derive(Debug)]
pub struct RanksConfig {
    pub files: Vec<PathBuf>,
    /// The dataset that gets the clocks of the hosts.
    pub write_clocks: Option<PathBuf>,
    pub json: bool,
    pub only: Only,
}

/// The exit status is 0 also where it finds faults, and 1 where no trace has a rank.
pub fn ranks(config: &RanksConfig) -> Result<u8> {
    let report = gather(&files_of(&config.files)?, &config.only)?;
    let text = match config.json {
        true => ui::json(&report.json())? + "\n",
        false => text::print(&report, width_of_output()),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    if let Some(folder) = &config.write_clocks {
        write::write_clocks(folder, &report.clocks)?.iter().for_each(|text| ui::say(text));
    }
    if report.ranks.is_empty() {
        ui::say(
            "no process has a rank or calls NCCL: give the traces of a job that was started by a launcher, such as torchrun",
        );
        return Ok(1);
    }
    Ok(0)
}
