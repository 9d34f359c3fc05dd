//! A job from what `gpurec summary --json` said of its traces, where the traces themselves are elsewhere. In: documents,
//! of one trace each. Out: the part of the report that follows from them: completeness, and what one rank does and the
//! others do not. All else is not known, and the report says why.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::missing::Missing;
use super::odd::{ByRank, differences, retain_known, slow_kernels};
use super::process::Sum;
use super::report::{RankState, Report};
use crate::figures::{Figures, OTHER_FUNCTIONS};
use crate::only::Only;
use crate::{Usage, ui};
use gpurec_trace::bounds::BytesLeft;

/// Documents have some kilobytes.
const MOST_BYTES: u64 = 256 << 20;
/// Limit on the memory that one document takes as JSON, reckoned from its bytes: what a list or an object takes with
/// its first values, and what each further value takes.
const DOCUMENT: usize = 96 << 20;
const OBJECT: usize = 700;
const LIST: usize = 160;
const VALUE: usize = 100;
/// Limits on ranks and notes, and on the bytes of reasons and of the names of functions and kernels.
const MOST_RANKS: usize = 1 << 16;
const MOST_NOTES: usize = 1000;
const TEXTS: usize = 16 << 20;
const SUMS: usize = 48 << 20;

/// What documents do not tell.
const UNKNOWN: [&str; 6] = ["clocks", "stragglers", "collectives", "mismatches", "hangs", "skew"];
const WHY: &str = "documents of summary --json have no single collectives: give the traces";

/// A document may have any name; the one that a user gives it ends in this.
pub fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

pub fn gather(files: &[PathBuf], only: &Only) -> Result<Report> {
    if !files.iter().all(|file| is_document(file)) {
        bail!(Usage(
            "some of the files are traces and some documents of summary --json: give one kind".to_owned()
        ));
    }
    if !only.is_all() {
        bail!(Usage(
            "a document has figures of whole traces: give --rank and the like to gpurec summary".to_owned()
        ));
    }
    let mut job = Job::default();
    for file in files {
        if let Err(error) = job.file(file) {
            job.note(|| format!("{}: {error:#}; it is left out", ui::name(file)));
            job.report.unread += 1;
        }
    }
    if job.documents == 0 {
        bail!("{}", job.report.notes.first().cloned().unwrap_or_default());
    }
    Ok(job.finish())
}

#[derive(Default)]
struct Job {
    report: Report,
    documents: u64,
    /// Of documents of one rank.
    calls: ByRank,
    kernels: ByRank,
    /// Ranks whose document does not list all functions.
    not_all: BTreeSet<Option<u32>>,
    there: BTreeSet<u32>,
    texts: BytesLeft<TEXTS>,
    sums: BytesLeft<SUMS>,
    more_notes: u64,
}

/// Stops where a document would take too much memory.
struct Bounded<'a, R> {
    input: R,
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(into)?;
        let of = |byte: &u8| match byte {
            b'{' => OBJECT,
            b'[' => LIST,
            b',' => VALUE,
            _ => 2,
        };
        let taken = into.iter().take(count).map(of).sum();
        let left = self.left.get().checked_sub(taken);
        self.left.set(left.ok_or_else(|| io::Error::other("the document is too large"))?);
        Ok(count)
    }
}

impl Job {
    fn file(&mut self, file: &Path) -> Result<()> {
        let left = Cell::new(DOCUMENT);
        let input = Bounded { input: File::open(file)?.take(MOST_BYTES), left: &left };
        let input = BufReader::new(input);
        let mut found = 0;
        for document in serde_json::Deserializer::from_reader(input).into_iter::<Value>() {
            let document = document.context("it cannot be read as JSON")?;
            left.set(DOCUMENT);
            // Any object can be read as figures.
            if document.get("cuda_calls").is_none() || document.get("functions").is_none() {
                bail!("it is no document of gpurec summary --json");
            }
            let figures =
                Figures::from_json(&document).context("it is no document of gpurec summary --json")?;
            self.document(file, &figures);
            found += 1;
        }
        self.documents += found;
        if found > 0 { Ok(()) } else { bail!("it is empty") }
    }

    fn document(&mut self, file: &Path, figures: &Figures) {
        let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
        for process in &figures.processes {
            if let Some(rank) = process.rank {
                let pid = ranks.entry(rank).or_insert(process.pid);
                *pid = (*pid).min(process.pid);
            }
        }
        if ranks.is_empty() {
            self.note(|| format!("{}: no process has a rank; it is left out", ui::name(file)));
        }
        let twice: Vec<u32> = ranks.keys().copied().filter(|rank| self.there.contains(rank)).collect();
        for rank in twice {
            ranks.remove(&rank);
            self.note(|| format!("rank {rank} is there twice: that in {} is left out", ui::name(file)));
        }
        let reasons: Vec<String> =
            figures.incomplete_because.iter().chain(&figures.notes).take(5).cloned().collect();
        let bytes = reasons.iter().map(String::len).sum();
        for (rank, pid) in &ranks {
            if self.there.len() >= MOST_RANKS {
                self.note(|| format!("{}: there are more ranks than gpurec follows", ui::name(file)));
                break;
            }
            self.there.insert(*rank);
            self.report.ranks.push(RankState {
                rank: Some(*rank),
                host: String::new(),
                file: file.display().to_string(),
                pid: *pid,
                complete: figures.complete,
                reasons: if self.texts.take(bytes) { reasons.clone() } else { Vec::new() },
                xids: Vec::new(),
                is_duplicate: false,
            });
        }
        match ranks.first_key_value() {
            Some((rank, _)) if ranks.len() == 1 => self.sums(*rank, figures),
            Some(_) => self.note(|| {
                format!(
                    "{}: its calls and kernels are those of {} ranks together, so they are compared with none",
                    ui::name(file),
                    ranks.len()
                )
            }),
            None => {}
        }
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.report.notes.len() < MOST_NOTES {
            self.report.notes.push(text());
        } else {
            self.more_notes += 1;
        }
    }

    fn sums(&mut self, rank: u32, figures: &Figures) {
        let functions = figures.functions.iter().map(|it| it.name.len() + VALUE);
        let kernels = figures.gpu.iter().flat_map(|gpu| &gpu.kernels).map(|it| it.name.len() + VALUE);
        if !self.sums.take(functions.chain(kernels).sum()) {
            self.note(|| {
                format!("rank {rank}: there are too many names, so its calls are compared with none")
            });
            return;
        }
        let calls = self.calls.entry(Some(rank)).or_default();
        for it in &figures.functions {
            calls.insert(it.name.as_str().into(), Sum { count: it.calls, ns: it.total_ns });
        }
        if calls.remove(OTHER_FUNCTIONS).is_some() {
            self.not_all.insert(Some(rank));
        }
        if let Some(gpu) = &figures.gpu {
            let kernels = self.kernels.entry(Some(rank)).or_default();
            for it in &gpu.kernels {
                kernels.insert(it.name.as_str().into(), Sum { count: it.instances, ns: it.total_ns });
            }
        }
    }

    fn finish(mut self) -> Report {
        retain_known(&mut self.calls, &self.not_all);
        if self.more_notes > 0 {
            self.report.notes.push(format!("and {} more notes", self.more_notes));
        }
        let mut report = self.report;
        report.ranks.sort_by(|a, b| (a.rank, &a.file).cmp(&(b.rank, &b.file)));
        report.missing = Missing::of(&self.there, self.there.last().map_or(0, |rank| u64::from(*rank)));
        report.differences = differences(&self.calls);
        report.slow_kernels = slow_kernels(&self.kernels);
        report.unknown = UNKNOWN.iter().map(|figure| (*figure, WHY.to_owned())).collect();
        if self.kernels.is_empty() {
            let why = "no document has work on the GPU: record with --gpu";
            report.unknown.insert("slow_kernels", why.to_owned());
        }
        report
    }
}
