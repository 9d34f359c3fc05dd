//! Computes the figures and reports of a trace while the export builds the timeline. In: the trace. Out: what `summary
//! --json` and every `report --json` have. They take as long as all the rest. So if the trace is a file and there is a
//! second processor, another thread reads the file for them. Not here: how a figure is computed.

use std::path::Path;
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use serde_json::value::RawValue;

use crate::Figures;
use crate::only::Only;
use crate::read;
use crate::views::All;
use gpurec_trace::{Line, Notes};

type Made = (Figures, Vec<Box<RawValue>>);

pub enum Reports {
    /// Computed from the lines that `line` gets.
    OfLines(Box<All>),
    /// Another thread reads the file and computes them.
    OfFile(JoinHandle<Result<Made>>),
}

impl Default for Reports {
    fn default() -> Reports {
        Reports::OfLines(Box::default())
    }
}

impl Reports {
    pub fn of(file: &Path, only: &Only) -> Reports {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        // Standard input and pipes can be read only once.
        if processors < 2 || file == Path::new("-") || !file.is_file() {
            return Reports::default();
        }
        let (file, only) = (file.to_owned(), only.clone());
        let work = move || {
            let mut all = All::default();
            let notes = read::each(&file, &only, |line| all.line(line))?;
            all.finish(&notes)
        };
        let started = thread::Builder::new().name("reports".to_owned()).spawn(work);
        started.map_or_else(|_| Reports::default(), Reports::OfFile)
    }

    pub fn line(&mut self, line: &Line) {
        if let Reports::OfLines(all) = self {
            all.line(line);
        }
    }

    /// `notes` are those of the reader whose lines `line` got.
    pub fn finish(self, notes: &Notes) -> Result<Made> {
        match self {
            Reports::OfLines(all) => all.finish(notes),
            Reports::OfFile(thread) => {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the export panicked")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_read_by_a_thread_has_the_same_reports() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/torch_gpu_h100.jsonl.zst");
        let only = Only::default();
        let mut of_lines = Reports::default();
        let notes = read::each(&file, &only, |line| of_lines.line(line)).expect("a trace");
        let [one, other] =
            [of_lines, Reports::of(&file, &only)].map(|it| it.finish(&notes).expect("reports"));
        let texts = |made: &Made| made.1.iter().map(|report| report.get().to_owned()).collect::<Vec<_>>();
        assert_eq!((&one.0, texts(&one)), (&other.0, texts(&other)));
        assert!(matches!(Reports::of(Path::new("/dev/null"), &only), Reports::OfLines(_)));
    }
}
