//! The commands that read traces: `summary`, `timeline`, `report`, `export`, `diff`, `check`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::{Usage, span};
use crate::report::check::CheckConfig;
use crate::report::diff::DiffConfig;
use crate::report::export::{ExportConfig, ExportFormat};
use crate::report::timeline::TimelineConfig;
use crate::report::views::{Format, ReportConfig};

pub const SUMMARY: &str = "\
Examples:
  gpurec summary                         of the newest trace, traces/latest
  gpurec summary run.jsonl.zst           of another
  gpurec summary --json monday.jsonl tuesday.jsonl";

pub const TIMELINE: &str = "\
Examples:
  gpurec timeline                        the newest trace, as wide as the terminal
  gpurec timeline --from 1.5 --to 1.6 run.jsonl
  gpurec timeline --tid 1234 --width 120 run.jsonl";

pub const REPORT: &str = "\
Examples:
  gpurec report                          the questions that there are
  gpurec report waste                    what could be better, by cost
  gpurec report leaks --older-than 10 --top 20 run.jsonl
  gpurec report api --csv run.jsonl
  gpurec report gaps --json run.jsonl.zst";

pub const EXPORT: &str = "\
Examples:
  gpurec export --format perfetto -o run.pftrace run.jsonl   open it on ui.perfetto.dev
  gpurec export --format chrome -o run.json run.jsonl        or in chrome://tracing
  gpurec export --format csv run.jsonl.zst                   a row a call";

pub const DIFF: &str = "\
Examples:
  gpurec diff before.jsonl after.jsonl
  gpurec diff --top 5 --json before.jsonl after.jsonl
  gpurec diff --fail-over 'cudaMalloc.calls=10%' before.jsonl after.jsonl";

pub const CHECK: &str = "\
Examples:
  gpurec check --budget 'errors==0' --budget 'memory.leaked==0' run.jsonl
  gpurec check --budget 'launches<=5000' --budget 'sync.time<20ms' run.jsonl
  gpurec check --budget 'cudaMalloc.calls==0 after 10s' run.jsonl
  gpurec check --budget budget.txt run.jsonl";

/// What `report` knows by name.
const VIEWS: [&str; 11] =
    ["api", "kernels", "memory", "leaks", "copies", "sync", "errors", "gaps", "ioctl", "threads", "waste"];

#[derive(Args)]
pub struct SummaryArgs {
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The figures as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct TimelineArgs {
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Begin at this time of the recording: seconds, or with a unit (500ms)
    #[arg(long, value_name = "TIME", value_parser = span)]
    from: Option<Duration>,
    /// End at this time of the recording
    #[arg(long, value_name = "TIME", value_parser = span)]
    to: Option<Duration>,
    /// Only these threads; repeatable
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    tid: Vec<u32>,
    /// How many columns [default: the terminal's, else 100]
    #[arg(long, value_name = "COLUMNS")]
    width: Option<usize>,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Which question; all are listed if none is given
    #[arg(value_name = "NAME", value_parser = VIEWS)]
    view: Option<String>,
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// As JSON, a document a trace
    #[arg(long)]
    json: bool,
    /// As CSV, with a line of names
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// leaks: only what was live for longer: seconds, or with a unit (500ms)
    #[arg(long, value_name = "TIME", value_parser = span)]
    older_than: Option<Duration>,
    /// How many rows
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top: Option<usize>,
}

#[derive(Args)]
pub struct ExportArgs {
    /// For whom
    #[arg(long, value_enum)]
    format: ExportArg,
    /// Where to, packed if it ends in .zst; `-` is standard output [default: standard output]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Traces, plain or .zst, which become one; the newest (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExportArg {
    /// JSON for ui.perfetto.dev and chrome://tracing
    Chrome,
    /// Protobuf for ui.perfetto.dev and trace_processor: smaller and faster
    Perfetto,
    /// A row a call, for a spreadsheet or a dataframe
    Csv,
}

#[derive(Args)]
pub struct DiffArgs {
    /// The trace before the change
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The trace after it
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// How many rows of each kind
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top: Option<usize>,
    /// Exit status 1 if this grew by more (cudaMalloc.calls=10%); repeatable
    #[arg(long, value_name = "EXPR")]
    fail_over: Vec<String>,
}

#[derive(Args)]
pub struct CheckArgs {
    /// What must hold (launches<=5000), or a file with one such line each; repeatable
    #[arg(long, value_name = "FILE|EXPR", required = true)]
    budget: Vec<String>,
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl TimelineArgs {
    pub fn config(self) -> Result<TimelineConfig> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            bail!(Usage("--from must be earlier than --to".into()));
        }
        Ok(TimelineConfig {
            files: self.files,
            from: self.from,
            to: self.to,
            tids: self.tid,
            width: self.width,
        })
    }
}

impl ReportArgs {
    pub fn config(self) -> ReportConfig {
        let format = match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Text,
        };
        ReportConfig {
            view: self.view,
            files: self.files,
            format,
            older_than: self.older_than,
            top: self.top,
        }
    }
}

impl ExportArgs {
    pub fn config(self) -> ExportConfig {
        let format = match self.format {
            ExportArg::Chrome => ExportFormat::Chrome,
            ExportArg::Perfetto => ExportFormat::Perfetto,
            ExportArg::Csv => ExportFormat::Csv,
        };
        ExportConfig { files: self.files, format, output: self.output }
    }
}

impl DiffArgs {
    pub fn config(self) -> DiffConfig {
        DiffConfig {
            before: self.before,
            after: self.after,
            json: self.json,
            top: self.top,
            fail_over: self.fail_over,
        }
    }
}

impl CheckArgs {
    pub fn config(self) -> CheckConfig {
        CheckConfig { files: self.files, budgets: self.budget, json: self.json }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("0 rows say nothing: give 1 or more".to_owned()),
        Ok(rows) => Ok(rows),
        Err(_) => Err("not a number of rows".to_owned()),
    }
}
