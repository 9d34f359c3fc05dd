//! `gpurec export`: converts traces for other programs.
//!
//! In: traces. Out: Chrome's trace event JSON, Perfetto's protocol buffers, or a table, written while the traces are
//! read; or a profile by call stack, written at their end. Several traces, such as those of the ranks of a job, become one, aligned by wall clock. Not here: sums or
//! judgements; an export only converts what the trace says.

mod annotate;
mod callstacks;
mod chrome;
mod csv;
mod details;
mod folded;
mod intern;
mod object;
mod output;
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

use anyhow::{Context, Result, bail};

use super::views::ONLY_FIGURES;
use super::{Only, read};
use crate::Usage;
use crate::stacks::Weight;
use crate::ui;
use gpurec_trace::Body;
use gpurec_trace::time;
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

/// The one list of formats: a row makes the value of `--format`, its place in `ExportFormat::ALL`, and its writer. The
/// tests and the fuzz check go through `ALL`.
macro_rules! formats {
    (|$by:ident| $($(#[$doc:meta])* $name:ident = $sink:expr, $bytes:ident;)*) => {
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
            fn write(
                self,
                files: &[PathBuf],
                only: &Only,
                $by: Weight,
                base_ns: Option<i64>,
                output: Output,
            ) -> Result<Vec<String>> {
                match self {
                    $(ExportFormat::$name => write($sink, files, only, base_ns, output),)*
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
}

/// Whether a format may be shown in a terminal.
#[derive(PartialEq, Eq)]
enum Bytes {
    Text,
    Binary,
}

formats! { |by|
    /// JSON for ui.perfetto.dev and chrome://tracing
    Chrome = chrome::Chrome::new(), Text;
    /// Protobuf for ui.perfetto.dev and trace_processor: smaller and faster
    Perfetto = perfetto::Perfetto::default(), Binary;
    /// One row for each call, for a spreadsheet or a dataframe
    Csv = csv::Csv::new(), Text;
    /// Folded stacks for flamegraph.pl and inferno, of a recording with --stacks
    Folded = folded::Folded::new(by), Text;
    /// Stacks for go tool pprof, Pyroscope and speedscope, of a recording with --stacks
    Pprof = pprof::Pprof::default(), Binary;
}

pub fn export(config: &ExportConfig) -> Result<u8> {
    let files = read::or_newest(&config.files);
    let path = config.output.as_deref().filter(|path| *path != Path::new("-"));
    if path.is_none() && config.format.bytes() == Bytes::Binary && stdout().is_terminal() {
        let name = config.format.name();
        return Err(Usage(format!("{name} is a binary format: give -o FILE, or pipe it to a program")).into());
    }
    if config.by.is_some() && config.format != ExportFormat::Folded {
        let name = config.format.name();
        return Err(
            Usage(format!("--by is for export --format folded: {name} has no weights, or has all")).into()
        );
    }
    let base_ns = if files.len() > 1 { earliest(&files)? } else { None };
    let output = Output::new(path, &files)?;
    for text in config.format.write(&files, &config.only, config.by.unwrap_or_default(), base_ns, output)? {
        ui::say(&text);
    }
    Ok(0)
}

/// The start of the earliest of several recordings. It opens each file for that.
fn earliest(files: &[PathBuf]) -> Result<Option<i64>> {
    let mut earliest: Option<i64> = None;
    for file in files {
        read_twice(file)?;
        let named = || ui::name(file);
        let mut reader = read::open(file)?;
        if let Some(line) = reader.next().with_context(named)?
            && let Body::Header(header) = &line.body
            && let Some(begun) = time::nanoseconds(&header.start)
        {
            earliest = Some(earliest.map_or(begun, |earliest| earliest.min(begun)));
        }
    }
    Ok(earliest)
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

/// Writes the traces in a format. Returns notes for the user.
fn write(
    sink: impl Sink + Default,
    files: &[PathBuf],
    only: &Only,
    base_ns: Option<i64>,
    mut output: Output,
) -> Result<Vec<String>> {
    let mut walk = Walk::new(sink, files.len() > 1, base_ns);
    let mut all = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let name = file.display().to_string();
        walk.source(&Source { file: &name, index });
        let mut has_events = true;
        let notes = read::try_each(file, only, |line| {
            if let Body::Header(header) = &line.body {
                has_events = header.options.get("summary_only") != Some(&true.into());
            }
            walk.add(line);
            output.take(walk.sink.buffer())
        })?;
        let mut said = notes.sentences();
        said.extend((!has_events).then(|| ONLY_FIGURES.to_owned()));
        let said = walk.source_ends(said);
        all.extend(said.into_iter().map(|text| format!("{}: {}", ui::clean(&name), ui::clean(&text))));
    }
    walk.sink.finish();
    output.finish(walk.sink.buffer())?;
    Ok(all)
}
