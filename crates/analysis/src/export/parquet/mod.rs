//! `--format parquet`: traces as a dataset for DuckDB, Spark and others, a folder of files.
//!
//! In: traces, several at once. Out: for each trace a part of each table that it has lines for. Columns are in
//! columns.rs, which docs/fleet.md describes for users. Not here: questions to the dataset, which python/ has.

mod batch;
mod chunk;
mod columns;
mod file;
mod folder;
mod parts;
mod sink;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

use super::sink::Source;
use super::walk::Walk;
use crate::views::ONLY_FIGURES;
use crate::{Only, Usage, read, ui};
use gpurec_trace::{Body, Notes as TraceNotes};
use parts::{MOST_RANKS, Parts};
use sink::Rows;

/// What a trace gave: notes for the user.
type Notes = Result<Vec<String>>;

/// Writes the traces into the folder. Returns notes for the user.
pub fn write(files: &[PathBuf], only: &Only, folder: &Path) -> Result<Vec<String>> {
    if folder.exists() && !folder.is_dir() {
        let text = format!("{} is no folder: parquet is a folder of files, give -o FOLDER", ui::name(folder));
        return Err(Usage(text).into());
    }
    // Traces are independent, and each has its own parts.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Notes>>> = files.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..processors.min(files.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(file), Some(result)) = (files.get(index), results.get(index)) else { return };
                    let notes = one(file, only, folder);
                    if let Ok(mut result) = result.lock() {
                        *result = Some(notes);
                    }
                }
            });
        }
    });
    let (mut all, mut failed) = (Vec::new(), None);
    for (file, result) in files.iter().zip(results) {
        let notes = result.into_inner().ok().flatten().with_context(|| ui::name(file))?;
        match notes {
            Ok(notes) => {
                all.extend(notes.iter().map(|text| format!("{}: {}", ui::name(file), ui::clean(text))))
            }
            // The last error is the one that ends the export.
            Err(error) => all.extend(failed.replace(error).map(|error| format!("{error:#}"))),
        }
    }
    let Some(error) = failed else { return Ok(all) };
    all.iter().for_each(|text| ui::say(text));
    Err(error)
}

fn one(file: &Path, only: &Only, folder: &Path) -> Notes {
    let name = file.display().to_string();
    let mut walk = Walk::new(Rows::new(Parts::new(folder.to_path_buf())?), false, None);
    walk.source(&Source { file: &name, index: 0 }, None);
    let mut has_events = true;
    let mut failed = None;
    let notes = read::try_each_original(file, only, |line, original| {
        walk.sink.original(line, original);
        if let Body::Header(header) = &line.body {
            has_events = header.options.get("summary_only") != Some(&true.into());
        }
        walk.add(line);
        walk.sink.parts.check().map_err(|error| {
            failed = Some(error);
            std::io::Error::other("a part cannot be written")
        })
    });
    if let Some(error) = failed {
        let what = "is not in the dataset: free some space, or give -o another folder";
        return Err(error.context(format!("{} {what}", ui::name(file))));
    }
    // The dataset has what other views skip.
    let notes = TraceNotes { unknown_lines: 0, unknown_keys: 0, ..notes? };
    let mut said = notes.sentences();
    said.extend((!has_events).then(|| ONLY_FIGURES.to_owned()));
    let is_whole = notes.is_whole() && only.is_all();
    let mut said = walk.source_ends(said);
    let mut rows = walk.sink;
    if rows.parts.left_out > 0 {
        said.push(format!(
            "the trace has more than {MOST_RANKS} ranks: the rows of {} processes are in the partition without a rank",
            rows.parts.left_out
        ));
    }
    let complete = rows.meta(&said, is_whole);
    rows.parts.publish(complete)?;
    Ok(said)
}
