//! Access to the files that a view reads. In: the names from the command line. Out: their lines, one by one, and errors
//! that name the file. No view opens a file itself.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use super::only::{Only, Selection, Sieve};
use crate::FAILED;
use crate::ui;
use gpurec_trace::{self as trace, Line, Notes, Original, ReadError, Reader};

const NEWEST: &str = "traces/latest";

/// The newest trace if the user named none.
pub fn or_newest(files: &[PathBuf]) -> Vec<PathBuf> {
    if files.is_empty() { vec![PathBuf::from(NEWEST)] } else { files.to_vec() }
}

pub fn open(file: &Path) -> Result<Reader<Box<dyn Read + Send>>> {
    let is_missing =
        |error: &ReadError| matches!(error, ReadError::Io(error) if error.kind() == ErrorKind::NotFound);
    match trace::open(file) {
        Err(error) if file == Path::new(NEWEST) && is_missing(&error) => Err(anyhow!(
            "there is no trace here ({NEWEST} does not exist, or what it points to is gone); name one, or record one in this folder: sudo gpurec -- COMMAND"
        )),
        opened => opened.with_context(|| ui::name(file)),
    }
}

/// Shows one file after another; `show` returns the status of one. It reports a file that cannot be read and continues
/// with the others. The result is the worst status.
pub fn of_each(files: &[PathBuf], mut show: impl FnMut(usize, &Path) -> Result<u8>) -> Result<u8> {
    let mut worst = 0;
    for (index, file) in files.iter().enumerate() {
        let status = match show(index, file) {
            Err(error) if files.len() > 1 && error.chain().any(|cause| cause.is::<ReadError>()) => {
                ui::say(&ui::with_remedy(format!("{error:#}"), false));
                FAILED
            }
            shown => shown?,
        };
        worst = worst.max(status);
    }
    Ok(worst)
}

/// Passes every line of a part of a trace to `take`. Returns what was odd in the file.
pub fn each(file: &Path, only: &Only, mut take: impl FnMut(&Line)) -> Result<Notes> {
    try_each(file, only, |line| {
        take(line);
        Ok(())
    })
}

/// The same, but stops at the first error.
pub fn try_each(
    file: &Path,
    only: &Only,
    mut take: impl FnMut(&Line) -> std::io::Result<()>,
) -> Result<Notes> {
    try_each_original(file, only, |line, _| take(line))
}

/// The same with each line as it is in the file; a line that the part changes or adds is not in it.
pub fn try_each_original(
    file: &Path,
    only: &Only,
    mut take: impl FnMut(&Line, &Original) -> std::io::Result<()>,
) -> Result<Notes> {
    let named = || ui::name(file);
    let mut reader = open(file)?;
    let mut sieve = (!only.is_all()).then(|| Sieve::new(only));
    let mut each = |line: &Line, original: &Original| -> Result<()> {
        match sieve.as_mut().map(|sieve| sieve.line(line)).transpose().with_context(named)? {
            None | Some(Selection::Yes) => with_end(line, original, &mut take)?,
            Some(Selection::As(line)) => with_end(&line, &Original::default(), &mut take)?,
            Some(Selection::After(first)) => {
                take(&first, &Original::default())?;
                with_end(line, original, &mut take)?;
            }
            Some(Selection::No) => {}
        }
        Ok(())
    };
    while let Some(taken) = reader.pass_next(&mut each).with_context(named)? {
        taken?;
    }
    let mut notes = reader.notes().clone();
    if let Some(sieve) = sieve {
        sieve.note(&mut notes);
    }
    Ok(notes)
}

fn with_end(
    line: &Line,
    original: &Original,
    take: &mut impl FnMut(&Line, &Original) -> std::io::Result<()>,
) -> std::io::Result<()> {
    take(line, original)?;
    line.end_of_unwatched().map_or(Ok(()), |end| take(&end, &Original::default()))
}
