//! What a trace says, in figures and in text.
//!
//! In: the events of a trace, live from the recorder or read from a file. Out:
//! `Figures`, the same either way, and text for a person. Nothing here needs
//! root, BPF or a GPU, and nothing is read but the reader that was given.

mod beneath;
mod driver;
mod driver_figures;
mod driver_text;
mod errors;
pub mod figures;
mod habits;
mod histogram;
mod kernels;
mod memory;
mod rows;
mod sections;
pub mod summary;
mod tally;
#[cfg(test)]
mod tests;
pub mod text;
mod transfers;

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::trace::{self, ReadError, Reader};

pub use figures::Figures;
pub use summary::Summary;

/// The figures of a whole trace: what `gpurec summary FILE` prints.
pub fn summary_of<R: BufRead>(mut reader: Reader<R>) -> Result<Figures, ReadError> {
    let mut summary = Summary::new();
    while let Some(line) = reader.next()? {
        summary.add(&line);
    }
    Ok(summary.of_file(reader.notes()))
}

/// `gpurec summary`: of the newest trace if none is named.
pub fn summary(files: &[PathBuf], json: bool) -> Result<u8> {
    let newest = [PathBuf::from("traces/latest")];
    let files = if files.is_empty() { &newest } else { files };
    for file in files {
        let named = || file.display().to_string();
        let figures = summary_of(trace::open(file).with_context(named)?).with_context(named)?;
        let mut text = String::new();
        if json {
            text = serde_json::to_string(&figures)? + "\n";
        } else {
            if files.len() > 1 {
                text = format!("{}:\n", file.display());
            }
            text.push_str(&text::print(&figures, width_of(libc::STDOUT_FILENO)));
        }
        std::io::stdout().lock().write_all(text.as_bytes())?;
    }
    Ok(0)
}

/// The columns of the terminal behind a descriptor; else of a page that fits any.
pub fn width_of(fd: i32) -> usize {
    // SAFETY: a struct of integers, which the request below fills.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes a winsize.
    let known = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } == 0;
    if known && size.ws_col > 0 { size.ws_col.into() } else { 100 }
}
