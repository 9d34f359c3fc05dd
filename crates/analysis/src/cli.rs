//! The commands that read traces: `summary`, `timeline`, `report`, `export`, `diff`, `check`, `ranks`. In: words. Out: what they ask
//! for, and the answers. The recorder has these commands too.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use glob::Pattern;

use crate::Usage;
use crate::check::CheckConfig;
use crate::diff::DiffConfig;
use crate::export::{ExportConfig, ExportFormat};
use crate::paper::{Colour, PaperChoice};
use crate::ranks::RanksConfig;
use crate::stacks::{CallRole, Weight};
use crate::timeline::TimelineConfig;
use crate::views::{Format, NAMES, ReportConfig};
use crate::{FAILED, Only};

/// Of everything that prints.
#[derive(Args)]
pub struct Printing {
    /// Width of the output in columns [default: COLUMNS, else the terminal's; without a terminal nothing is cut]
    #[arg(long, value_name = "COLUMNS", global = true, value_parser = columns, display_order = 900)]
    width: Option<u32>,
    /// When to use colour [default: auto: on a terminal, unless NO_COLOR or CLICOLOR=0 is set]
    #[arg(long, value_name = "WHEN", global = true, value_enum, display_order = 901)]
    color: Option<Colour>,
}

impl Printing {
    pub fn chosen(&self) -> PaperChoice {
        let colour = self.color.unwrap_or_default();
        PaperChoice { width: self.width.map(|width| width as usize), colour }
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Print the figures of a trace: no root, no GPU
    #[command(after_help = SUMMARY)]
    Summary(SummaryArgs),
    /// Draw a trace: one lane for each thread, time from left to right
    #[command(after_help = TIMELINE)]
    Timeline(TimelineArgs),
    /// Answer one question about a trace; without a name, list the reports
    #[command(after_help = REPORT)]
    Report(ReportArgs),
    /// Convert a trace for other programs: Chrome and Perfetto, browsers, spreadsheets, flame graphs
    #[command(after_help = EXPORT)]
    Export(ExportArgs),
    /// Compare two traces; what changed most comes first
    #[command(after_help = DIFF)]
    Diff(DiffArgs),
    /// Check assertions about a trace; exit with status 1 if one fails
    #[command(after_help = CHECK)]
    Check(CheckArgs),
    /// Compare the ranks of one job: stragglers, collectives that differ, hangs, clocks
    #[command(after_help = RANKS)]
    Ranks(RanksArgs),
}

/// What a command asks for.
pub enum Task {
    Summary { files: Vec<PathBuf>, json: bool, only: Only },
    Timeline(TimelineConfig),
    Report(ReportConfig),
    Export(ExportConfig),
    Diff(DiffConfig),
    Check(CheckConfig),
    Ranks(RanksConfig),
}

impl Command {
    pub fn task(self) -> Result<Task> {
        Ok(match self {
            Command::Summary(SummaryArgs { files, json, part }) => {
                Task::Summary { only: part.only()?, files, json }
            }
            Command::Timeline(TimelineArgs { files, part }) => {
                let (from, to) = (part.from, part.to);
                let Only { pids, ranks, tids, .. } = part.only()?;
                let only = Only { pids, ranks, ..Only::default() };
                Task::Timeline(TimelineConfig { files, from, to, tids, only })
            }
            Command::Report(args) => Task::Report(args.config()?),
            Command::Export(ExportArgs { format, output, files, by, part }) => {
                let refused = output.as_deref().and_then(gpurec_trace::refused_packing);
                if let Some(sentence) = refused.filter(|_| !format.packs_as(output.as_deref())) {
                    bail!(Usage(sentence));
                }
                Task::Export(ExportConfig { only: part.only()?, files, format, output, by })
            }
            Command::Diff(DiffArgs { before, after, json, top, fail_over, part }) => {
                Task::Diff(DiffConfig { only: part.only()?, before, after, json, top, fail_over })
            }
            Command::Check(CheckArgs { assert, files, json, part }) => {
                Task::Check(CheckConfig { only: part.only()?, files, budgets: assert, json })
            }
            Command::Ranks(RanksArgs { files, json, write_clocks, part }) => {
                Task::Ranks(RanksConfig { only: part.only()?, files, json, write_clocks })
            }
        })
    }
}

impl Task {
    /// The exit status.
    pub fn perform(self) -> Result<u8> {
        match self {
            Task::Summary { files, json, only } => crate::summary(&files, json, &only),
            Task::Timeline(config) => crate::timeline::timeline(&config),
            Task::Report(config) => crate::views::report(&config),
            Task::Export(config) => crate::export::export(&config),
            Task::Diff(config) => crate::diff::diff(&config),
            Task::Check(config) => crate::check::check(&config),
            Task::Ranks(config) => crate::ranks::ranks(&config),
        }
    }
}

/// The exit status of an error.
pub fn status_of(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() { 2 } else { FAILED }
}

/// True if the reader closed standard output early, as `head` does: not an error.
pub fn reader_left(error: &anyhow::Error) -> bool {
    let is_closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(is_closed)
}

const SUMMARY: &str = "\
Examples:
  gpurec summary                         the newest trace, traces/latest
  gpurec summary run.jsonl.zst           another trace
  gpurec summary --json monday.jsonl tuesday.jsonl";

const TIMELINE: &str = "\
Examples:
  gpurec timeline                        the newest trace, as wide as the terminal
  gpurec timeline --from 1.5 --to 1.6 run.jsonl
  gpurec timeline --tid 1234 --width 120 run.jsonl";

const REPORT: &str = "\
Examples:
  gpurec report                          list the reports
  gpurec report waste                    what could be better, by cost
  gpurec report latency cudaMalloc run.jsonl
  gpurec report leaks --older-than 10 --top 20 run.jsonl
  gpurec report stacks --role alloc run.jsonl
  gpurec report api --csv run.jsonl
  gpurec report gaps --json run.jsonl.zst";

const EXPORT: &str = "\
Examples:
  gpurec export --format perfetto -o run.pftrace run.jsonl   open it on ui.perfetto.dev
  gpurec export --format chrome -o run.json run.jsonl        or in chrome://tracing
  gpurec export --format csv run.jsonl.zst                   one row for each call
  gpurec export --format folded run.jsonl | inferno-flamegraph > run.svg
  gpurec export --format pprof -o run.pb.gz run.jsonl        for go tool pprof
  gpurec export --format parquet -o job rank*.jsonl          a dataset for DuckDB, Spark
  gpurec export --format html -o run.html run.jsonl          a page for any browser";

const DIFF: &str = "\
Examples:
  gpurec diff before.jsonl after.jsonl
  gpurec diff --top 5 --json before.jsonl after.jsonl
  gpurec diff --fail-over 'cudaMalloc.calls=10%' before.jsonl after.jsonl";

const CHECK: &str = "\
Examples:
  gpurec check --assert 'errors==0' --assert 'memory.leaked==0' run.jsonl
  gpurec check --assert 'launches<=5000' --assert 'sync.time<20ms' run.jsonl
  gpurec check --assert 'cudaMalloc.calls==0 after 10s' run.jsonl
  gpurec check --assert gate.txt run.jsonl
  gpurec check --assert 'ranks.skew.p99<5ms' job/*.jsonl.zst";

const RANKS: &str = "\
Examples:
  gpurec ranks job/                      all traces of a folder
  gpurec ranks job/node0*.jsonl.zst
  gpurec ranks --write-clocks dataset job/   whose times then are on one clock
  gpurec ranks --json job/ | jq .stragglers";

#[derive(Args)]
pub struct SummaryArgs {
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub part: Part,
}

/// A part of a trace. A call belongs to where it began.
#[derive(Args)]
pub struct Part {
    /// Only these processes; repeatable
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = id)]
    pid: Vec<u32>,
    /// Only these threads; repeatable
    #[arg(long, value_name = "TID", value_delimiter = ',', value_parser = id)]
    tid: Vec<u32>,
    /// Only the processes of these ranks; repeatable
    #[arg(long, value_name = "RANK", value_delimiter = ',')]
    rank: Vec<u32>,
    /// Only from this time of the recording on: seconds, or with a unit (500ms)
    #[arg(long, value_name = "TIME", value_parser = span)]
    from: Option<Duration>,
    /// Only before this time of the recording
    #[arg(long, value_name = "TIME", value_parser = span)]
    to: Option<Duration>,
}

impl Part {
    pub fn only(self) -> Result<Only> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            bail!(Usage("--from must be earlier than --to".into()));
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (from_ns, to_ns) = (self.from.map(ns), self.to.map(ns));
        Ok(Only { pids: self.pid, tids: self.tid, ranks: self.rank, from_ns, to_ns })
    }
}

#[derive(Args)]
pub struct TimelineArgs {
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Name of the report; without one, all are listed
    #[arg(value_name = "NAME", value_parser = NAMES)]
    view: Option<String>,
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given. latency: FUNCTION may come first
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON, one document for each trace
    #[arg(long)]
    json: bool,
    /// Print CSV, with a header line
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// leaks: only allocations older than this: seconds, or with a unit (500ms)
    #[arg(long, value_name = "TIME", value_parser = span)]
    older_than: Option<Duration>,
    /// Number of rows
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top: Option<usize>,
    /// stacks: only the calls of this role
    #[arg(long, value_name = "ROLE", value_enum)]
    role: Option<CallRole>,
    /// stacks: sorted by what [default: bytes of roles that move or hold bytes, else time]
    #[arg(long, value_name = "WEIGHT", value_enum)]
    by: Option<Weight>,
    /// stacks: the innermost frame first
    #[arg(long)]
    invert: bool,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub struct ExportArgs {
    /// Format of the output
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// File to write, compressed if its name ends in .zst; `-` is standard output [default: standard output]; parquet: a
    /// folder
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// folded: what the stacks weigh [default: time, in microseconds]
    #[arg(long, value_name = "WEIGHT", value_enum)]
    by: Option<Weight>,
    /// Traces to convert into one file, or one dataset, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub struct DiffArgs {
    /// The trace before the change
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The trace after it
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Number of rows in each table
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top: Option<usize>,
    /// Exit with status 1 if this metric grew by more than the limit (cudaMalloc.calls=10%); repeatable
    #[arg(long, value_name = "EXPR")]
    fail_over: Vec<String>,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub struct CheckArgs {
    /// An expression that must hold (launches<=5000), or a file with one on each line; repeatable
    #[arg(long, alias = "budget", value_name = "FILE|EXPR", required = true)]
    assert: Vec<String>,
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub struct RanksArgs {
    /// The traces of one job, plain or .zst, or a folder of them: one for each rank or each node; or the documents (.json)
    /// that summary --json printed of them
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write how far the clocks of the hosts are apart into this dataset (export --format parquet)
    #[arg(long, value_name = "DIR")]
    write_clocks: Option<PathBuf>,
    #[command(flatten)]
    part: Part,
}

impl ReportArgs {
    fn config(self) -> Result<ReportConfig> {
        let ReportArgs { view, mut files, json, csv, older_than, top, role, by, invert, part } = self;
        let format = match (json, csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Text,
        };
        let mut function = None;
        if view.as_deref() == Some("latency")
            && let Some(word) = files.first().and_then(|file| file.to_str())
            && is_function(word)
        {
            function = Some(pattern("FUNCTION", word)?);
            files.remove(0);
        }
        let only = part.only()?;
        Ok(ReportConfig { view, files, format, older_than, top, only, function, role, by, invert })
    }
}

/// A word that may be a function or a pattern of some, and no trace.
fn is_function(word: &str) -> bool {
    let is_name = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '?' | '[' | ']'));
    is_name && !word.is_empty()
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be 1 or more".to_owned()),
        Ok(rows) => Ok(rows),
        Err(_) => Err("must be a number of rows, 1 or more".to_owned()),
    }
}

pub fn pattern(option: &str, glob: &str) -> Result<Pattern> {
    Pattern::new(glob)
        .map_err(|error| Usage(format!("{option} {glob}: not a pattern: {error}; use *, ? and [a-z]")).into())
}

const NO_TIME: &str = "not a time: a number of seconds, or a number with a unit, as in 500ms";

/// Seconds, or a number with a unit: `10`, `0.5`, `500ms`, `2m`.
pub fn span(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let scale = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => *scale,
        None if unit.is_empty() => 1.0,
        None if digits.is_empty() => return Err(NO_TIME.to_owned()),
        None => return Err("the unit is one of ns, us, ms, s, m, h; without one it is seconds".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|_| NO_TIME.to_owned())?;
    if !(0.0..1e9).contains(&(number * scale)) {
        return Err("must be 0 or more".to_owned());
    }
    Duration::try_from_secs_f64(number * scale).map_err(|error| error.to_string())
}

fn columns(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|columns| *columns > 0)
        .ok_or_else(|| "must be a number of columns, 1 or more".to_owned())
}

/// Of a process or thread, as `ps` shows it.
pub fn id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "must be a number, as in the columns PID and TID of: ps -eL".to_owned())
}
