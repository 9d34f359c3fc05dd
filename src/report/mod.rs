//! What a trace says, in figures and in text.
//!
//! In: the events of a trace, live from the recorder or read from a file. Out:
//! `Figures`, the same either way, and text for a person. Nothing here needs
//! root, BPF or a GPU, and nothing is read but the reader that was given.

mod beneath;
mod budget;
mod by_process;
pub mod check;
mod deaths;
pub mod diff;
mod driver;
mod driver_figures;
mod driver_text;
mod errors;
pub mod export;
pub mod figures;
#[cfg(test)]
pub mod golden;
mod habits;
mod histogram;
mod kernels;
pub mod measure;
mod memory;
mod pauses;
pub mod read;
mod rows;
pub mod running;
mod sections;
mod sleeps;
pub mod summary;
mod table;
mod tally;
#[cfg(test)]
mod tests;
pub mod text;
pub mod timeline;
mod transfers;
pub mod views;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::say;
pub use figures::Figures;
pub use measure::nearest;
pub use summary::Summary;

/// The figures of a whole trace: what `gpurec summary FILE` prints.
pub fn summary_of(file: &Path) -> Result<Figures> {
    let mut summary = Summary::new();
    let notes = read::each(file, |line| summary.add(line))?;
    Ok(summary.of_file(&notes))
}

/// `gpurec summary`: of the newest trace if none is named.
pub fn summary(files: &[PathBuf], json: bool) -> Result<u8> {
    let files = read::or_newest(files);
    read::of_each(&files, |_, file| {
        let figures = summary_of(file)?;
        let mut text = String::new();
        if json {
            text = say::json(&figures)? + "\n";
        } else {
            if files.len() > 1 {
                text = format!("{}:\n", say::name(file));
            }
            text.push_str(&text::print(&figures, width_of(libc::STDOUT_FILENO)));
        }
        std::io::stdout().lock().write_all(text.as_bytes())?;
        Ok(0)
    })
}

/// The columns of the terminal behind a descriptor; else of a page that fits any.
pub fn width_of(fd: i32) -> usize {
    // SAFETY: a struct of integers, which the request below fills.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes a winsize.
    let known = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } == 0;
    if known && size.ws_col > 0 { size.ws_col.into() } else { 100 }
}
