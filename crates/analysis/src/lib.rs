//! The content of a trace in figures and text.
//!
//! In: the events of a trace, live from the recorder or read from a file. Out: `Figures`, the same either way, and text
//! for the user. Nothing here needs root, BPF or a GPU, or reads anything except the reader that it is given.

pub mod activity;
pub mod asked;
mod beneath;
mod budget;
mod by_process;
mod categories;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
mod dataset;
mod devices;
pub mod diff;
mod driver;
mod driver_figures;
mod driver_text;
mod errors;
pub mod export;
mod failures;
pub mod figures;
#[cfg(test)]
pub mod golden;
mod gpu;
mod growth;
mod habits;
mod histogram;
mod kernels;
mod left_out;
pub mod measure;
mod memory;
mod nsys;
pub mod only;
mod page;
pub mod paper;
mod prose;
pub mod ranks;
pub mod read;
mod recent;
mod rows;
pub mod running;
mod sections;
mod shorten;
mod spread;
pub mod stacks;
pub mod summary;
pub mod table;
mod tally;
#[cfg(test)]
mod tests;
pub mod text;
pub mod timeline;
mod transfers;
pub mod ui;
mod units;
mod unknown;
pub mod usage;
pub mod views;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

pub use crate::paper::{width_of_errors, width_of_output};
pub use failures::is_shutdown;
pub use figures::Figures;
use gpurec_trace::Header;
pub use measure::{did_you_mean, nearest};
pub use only::Only;
pub use stacks::Gaps;
pub use summary::Summary;
pub use units::{short_size, size};

/// Exit status of a command that failed.
pub const FAILED: u8 = 125;

/// A usage error: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Whether a recording with this header leaves out calls that allocate or free.
pub fn leaves_out_memory(header: &Header) -> bool {
    left_out::LeftOut::of(header).is_some_and(|left_out| unknown::leaves_out_memory(&left_out))
}

/// Whether a recording with this header leaves out calls of this function.
pub fn leaves_out(header: &Header) -> impl Fn(&str) -> bool + use<> {
    let left_out = left_out::LeftOut::of(header);
    move |name| left_out.as_ref().is_some_and(|left_out| !left_out.records(name))
}

/// The figures of a whole trace: what `gpurec summary FILE` prints.
pub fn summary_of(file: &Path, only: &Only) -> Result<Figures> {
    let mut summary = Summary::new();
    let notes = read::each(file, only, |line| summary.add(line))?;
    Ok(summary.of_file(&notes))
}

/// `gpurec summary`; without files it takes the newest trace.
pub fn summary(files: &[PathBuf], json: bool, only: &Only) -> Result<u8> {
    let files = read::or_newest(files);
    read::of_each(&files, |_, file| {
        let figures = summary_of(file, only)?;
        let text = match json {
            true => ui::json(&figures.with_nulls())? + "\n",
            false if files.len() > 1 => {
                format!("{}:\n{}", ui::name(file), text::print(&figures, width_of_output()))
            }
            false => text::print(&figures, width_of_output()),
        };
        std::io::stdout().lock().write_all(text.as_bytes())?;
        Ok(0)
    })
}
