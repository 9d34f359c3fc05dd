//! The files that a view reads. In: the names given on the command line. Out: their lines, one by
//! one, and errors that say which file. No view opens a file by itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::FAILED;
use crate::say;
use crate::trace::{self, Line, Notes, ReadError};

/// The newest trace, if none is named.
pub fn or_newest(files: &[PathBuf]) -> Vec<PathBuf> {
    if files.is_empty() { vec![PathBuf::from("traces/latest")] } else { files.to_vec() }
}

/// Shows one after another; `show` gives the status of one. One that cannot be read is told of, and the others
/// are shown all the same; the status is the worst.
pub fn of_each(files: &[PathBuf], mut show: impl FnMut(usize, &Path) -> Result<u8>) -> Result<u8> {
    let mut worst = 0;
    for (index, file) in files.iter().enumerate() {
        let status = match show(index, file) {
            Err(error) if files.len() > 1 && error.chain().any(|cause| cause.is::<ReadError>()) => {
                say::say(&say::with_remedy(format!("{error:#}")));
                FAILED
            }
            shown => shown?,
        };
        worst = worst.max(status);
    }
    Ok(worst)
}

/// Every line of a trace, and what was odd in it.
pub fn each(file: &Path, mut take: impl FnMut(&Line)) -> Result<Notes> {
    let named = || say::name(file);
    let mut reader = trace::open(file).with_context(named)?;
    while let Some(line) = reader.next().with_context(named)? {
        take(&line);
        if let Some(end) = line.end_of_unwatched() {
            take(&end);
        }
    }
    Ok(reader.notes().clone())
}

/// The same, as long as there is no error.
pub fn try_each(file: &Path, mut take: impl FnMut(&Line) -> std::io::Result<()>) -> Result<Notes> {
    let named = || say::name(file);
    let mut reader = trace::open(file).with_context(named)?;
    while let Some(line) = reader.next().with_context(named)? {
        take(&line)?;
        if let Some(end) = line.end_of_unwatched() {
            take(&end)?;
        }
    }
    Ok(reader.notes().clone())
}
