//! `gpurec export`: converts traces for other programs.
//!
//! In: traces. Out: Chrome's trace event JSON, Perfetto's protocol buffers, or a table, written while the traces are
//! read; or a profile by call stack or an HTML page, written at their end. Several traces, such as those of the ranks of
//! a job, become one, on one time line (ranks/align.rs). Parquet is a folder of files for each trace. Not here: sums or
//! judgements; an export only converts what the trace says.

mod annotate;
mod callstacks;
mod chrome;
mod csv;
mod details;
mod folded;
mod html;
mod intern;
mod object;
mod output;
mod parquet;
mod perfetto;
mod pprof;
mod proto;
mod sink;
mod stack_frames;
mod streams;
#[cfg(test)]
mod tests;
mod tracks;
mod walk;
mod weights;

use std::fs;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::views::ONLY_FIGURES;
use super::{Only, read};
use crate::Usage;
use crate::ranks::{Aligned, align};
use crate::stacks::Weight;
use crate::ui;
use gpurec_trace::Body;
use output::Output;
use sink::{Sink, Source};
use walk::Walk;

pub struct ExportConfig {
    /// Empty: the newest trace.
    pub files: Vec<PathBuf>,
    pub format: ExportFormat,
    /// None or `-`: standard output.
    pub output: Option<PathBuf>,
    pub only: Only,
    /// Only for `Folded`; by default time.
    pub by: Option<Weight>,
}

/// The traces to write, and where.
#[derive(Clone, Copy)]
struct Writing<'a> {
    files: &'a [PathBuf],
    only: &'a Only,
    /// None: standard output.
    path: Option<&'a Path>,
}

/// The one list of formats: a row makes the value of `--format`, its place in `ExportFormat::ALL`, and its writer. The
/// tests and the fuzz check go through `ALL`.
macro_rules! formats {
    (|$to:ident, $by:ident| $($(#[$doc:meta])* $name:ident = $written:expr, $bytes:ident;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
        pub enum ExportFormat {
            $($(#[$doc])* $name,)*
        }

        impl ExportFormat {
            pub const ALL: &[ExportFormat] = &[$(ExportFormat::$name),*];

            /// The name that `--format` has for it.
            pub fn name(self) -> String {
                format!("{self:?}").to_lowercase()
            }

            fn bytes(self) -> Bytes {
                match self {
                    $(ExportFormat::$name => Bytes::$bytes,)*
                }
            }

            /// Writes the traces. Returns notes for the user.
            fn write(self, $to: Writing, $by: Weight) -> Result<Vec<String>> {
                match self {
                    $(ExportFormat::$name => $written,)*
                }
            }
        }
    };
}

impl ExportFormat {
    /// Whether the format itself is packed as the name of the file says.
    pub fn packs_as(self, output: Option<&Path>) -> bool {
        let extension = output.and_then(Path::extension);
        self == ExportFormat::Pprof && extension.is_some_and(|extension| extension == "gz")
    }

    /// Whether the export is a folder of files.
    pub fn is_folder(self) -> bool {
        self.bytes() == Bytes::Folder
    }
}

/// What an export is, which decides where it may be written.
#[derive(PartialEq, Eq)]
enum Bytes {
    Text,
    /// Not for a terminal.
    Binary,
    /// Not for one file.
    Folder,
}

formats! { |to, by|
    /// JSON for ui.perfetto.dev and chrome://tracing
    Chrome = to.stream(chrome::Chrome::new()), Text;
    /// Protobuf for ui.perfetto.dev and trace_processor: smaller and faster
    Perfetto = to.stream(perfetto::Perfetto::default()), Binary;
    /// One row for each call, for a spreadsheet or a dataframe
    Csv = to.stream(csv::Csv::new()), Text;
    /// Folded stacks for flamegraph.pl and inferno, of a recording with --stacks
    Folded = to.stream(folded::Folded::new(by)), Text;
    /// Stacks for go tool pprof, Pyroscope and speedscope, of a recording with --stacks
    Pprof = to.stream(pprof::Pprof::default()), Binary;
    /// Tables for DuckDB, Spark and other engines, of many traces: -o is a folder
    Parquet = to.folder(parquet::write), Folder;
    /// A page for a browser: one file with overview, timeline and reports, which needs nothing else
    Html = to.stream(html::Html::of(to.files, to.only)?), Text;
}

pub fn export(config: &ExportConfig) -> Result<u8> {
    let files = read::or_newest(&config.files);
    let path = config.output.as_deref().filter(|path| *path != Path::new("-"));
    let name = config.format.name();
    if path.is_none() && config.format.bytes() == Bytes::Binary && stdout().is_terminal() {
        return Err(Usage(format!("{name} is a binary format: give -o FILE, or pipe it to a program")).into());
    }
    if config.by.is_some() && config.format != ExportFormat::Folded {
        return Err(
            Usage(format!("--by is for export --format folded: {name} has no weights, or has all")).into()
        );
    }
    let to = Writing { files: &files, only: &config.only, path };
    for text in config.format.write(to, config.by.unwrap_or_default())? {
        ui::say(&text);
    }
    Ok(0)
}

/// Rejects a pipe, which can be read only once.
fn read_twice(file: &Path) -> Result<()> {
    let what = if file == Path::new("-") {
        "standard input".to_owned()
    } else if fs::metadata(file).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
        ui::name(file)
    } else {
        return Ok(());
    };
    bail!(Usage(format!(
        "{what} can be exported only alone, because gpurec reads each of several traces twice: save it to a file first"
    )))
}

impl Writing<'_> {
    /// As one stream of bytes.
    fn stream(self, sink: impl Sink + Default) -> Result<Vec<String>> {
        let several = self.files.len() > 1;
        let aligned = match several {
            true => {
                self.files.iter().try_for_each(|file| read_twice(file))?;
                align(self.files, sink.has_times())?
            }
            false => Aligned { traces: vec![None], notes: Vec::new() },
        };
        let output = Output::new(self.path, self.files)?;
        write(sink, self.files, self.only, aligned, output)
    }

    fn folder(
        self,
        write: impl FnOnce(&[PathBuf], &Only, &Path) -> Result<Vec<String>>,
    ) -> Result<Vec<String>> {
        let path =
            self.path.ok_or_else(|| Usage("a dataset is a folder of files: give -o FOLDER".to_owned()))?;
        write(self.files, self.only, path)
    }
}

/// Writes the traces in a format. Returns notes for the user.
fn write(
    sink: impl Sink + Default,
    files: &[PathBuf],
    only: &Only,
    aligned: Aligned,
    mut output: Output,
) -> Result<Vec<String>> {
    let base_ns = aligned.traces.iter().flatten().map(|placed| placed.time(0)).min();
    output.is_json = sink.is_json();
    let mut walk = Walk::new(sink, files.len() > 1, base_ns);
    let mut all = aligned.notes;
    for ((index, file), placed) in files.iter().enumerate().zip(aligned.traces) {
        let name = file.display().to_string();
        walk.source(&Source { file: &name, index }, placed);
        let mut has_events = true;
        let notes = read::try_each(file, only, |line| {
            if let Body::Header(header) = &line.body {
                has_events = header.options.get("summary_only") != Some(&true.into());
            }
            walk.sink.line(line);
            walk.add(line);
            output.take(walk.sink.buffer())
        })?;
        walk.sink.read(&notes)?;
        let mut said = notes.sentences();
        said.extend((!has_events).then(|| ONLY_FIGURES.to_owned()));
        let said = walk.source_ends(said);
        all.extend(said.into_iter().map(|text| format!("{}: {}", ui::clean(&name), ui::clean(&text))));
    }
    walk.sink.finish();
    output.finish(walk.sink.buffer())?;
    Ok(all)
}
