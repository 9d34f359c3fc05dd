//! `gpurec report NAME`: one question about a trace, answered by one table.
//!
//! In: the lines of a trace, one by one, and the summary's figures where those are the answer. Out: text, JSON or CSV
//! on standard output; notes about oddities of the trace on standard error (in JSON under `notes`). The memory of a
//! view grows with the number of distinct items in the trace, never with its length.

mod api;
pub mod calls;
mod copies;
mod errors;
mod gap_text;
mod gaps;
mod ioctl;
mod kernels;
mod latency;
mod leaks;
mod longest;
mod memory;
pub mod output;
pub mod plot;
pub mod scale;
mod sync;
#[cfg(test)]
pub mod tests;
mod threads;
mod told;
mod waste;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::table::{Column, Table, text};
use super::{Figures, Only, read};
use crate::Usage;
use crate::ui;
use gpurec_trace::Line;

pub use calls::Functions;
use output::Report;
pub use told::{Lacking, ONLY_FIGURES, Told};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
    Csv,
}

#[derive(Clone, Debug, Default)]
pub struct ReportConfig {
    /// None: list the reports.
    pub view: Option<String>,
    /// None: the newest trace.
    pub files: Vec<PathBuf>,
    pub format: Format,
    /// Only for `leaks`.
    pub older_than: Option<Duration>,
    /// Rows of each table. None: `Kind::rows` in text, all rows in JSON and CSV.
    pub top: Option<usize>,
    pub only: Only,
    /// Only for `latency`.
    pub function: Option<glob::Pattern>,
}

/// Computes one view from the lines of a trace.
trait View {
    fn line(&mut self, line: &Line);
    fn finish(&mut self, told: &Told) -> Report;
    /// Called for a recording with --summary-only, which holds only figures. Returns None if they do not answer the
    /// question. A view of a `Summary` has them in it.
    fn of_figures(&mut self, _: &Figures, told: &Told) -> Option<Report> {
        Some(self.finish(told))
    }
}

type Make = fn(&ReportConfig) -> Box<dyn View>;

struct Kind {
    name: &'static str,
    what: &'static str,
    /// The table that CSV output contains.
    main: &'static str,
    /// Default number of rows of each table in text output.
    rows: usize,
    make: Make,
    figures: &'static [Shows],
}

/// A figure of the summary that a view breaks down.
struct Shows {
    figure: &'static str,
    what: &'static str,
    /// The facts of the report that carry the same information.
    facts: &'static [&'static str],
}

const fn shows(figure: &'static str, what: &'static str, facts: &'static [&'static str]) -> Shows {
    Shows { figure, what, facts }
}

const LAUNCHES: Shows = shows("kernel_launches", "how many kernels were launched", &["launches"]);
const GRAPHS: Shows = shows("graph_launches", "how many graphs were launched", &["graph_launches"]);
const LEAKS: Shows = shows("memory.leaks", "what was never freed", &["count", "bytes"]);
const HELD: Shows = shows("memory.held", "how much was held at exit", &["held_count", "held_bytes"]);
const COPIES: Shows = shows("transfers.bytes", "how much was copied", &["count", "bytes"]);
const WAITS: Shows = shows("sync.total_ns", "how long calls waited for the GPU", &["waits", "waited_ns"]);
const CALLS: Shows = shows("cuda_calls", "how many CUDA calls there were", &[]);
const HOST: Shows = shows("cuda_calls", "what the host did between launches", &[]);
const WASTE: Shows = shows("cuda_calls", "all that could be better", &[]);
const PEAKS: Shows = shows("memory.peak", "how much memory was held", &[]);
const FAILURES: Shows = shows("failures.calls", "how many calls failed", &["failed_calls"]);

const fn kind(name: &'static str, what: &'static str) -> Kind {
    Kind { name, what, main: "", rows: 0, make: api::make, figures: &[] }
}

impl Kind {
    const fn of(self, main: &'static str, rows: usize, figures: &'static [Shows], make: Make) -> Kind {
        Kind { main, rows, make, figures, ..self }
    }
}

/// Every report. An entry here is all that a new one needs beside its own file.
const VIEWS: &[Kind] = &[
    kind("api", "CUDA functions by time, in the columns of nsys's cuda_api_sum").of(
        "functions",
        40,
        &[CALLS],
        api::make,
    ),
    kind("kernels", "kernel launches by name: how often, how far apart, which grids").of(
        "kernels",
        25,
        &[LAUNCHES, GRAPHS],
        kernels::make,
    ),
    kind("memory", "live bytes over time, by process and memory space, as a plot").of(
        "series",
        20,
        &[PEAKS],
        memory::make,
    ),
    kind("leaks", "what was never freed: what leaks, what is held (--older-than, --top)").of(
        "groups",
        10,
        &[LEAKS, HELD],
        leaks::make,
    ),
    kind("copies", "copies and sets by direction: bytes, bandwidth, pageable memory").of(
        "directions",
        20,
        &[COPIES],
        copies::make,
    ),
    kind("sync", "who waits for the GPU, for what, and how long").of("waiters", 20, &[WAITS], sync::make),
    kind("errors", "failed calls, the first failure, and what came before it").of(
        "errors",
        20,
        &[FAILURES],
        errors::make,
    ),
    kind("gaps", "time between launches: how long, and what the host did meanwhile").of(
        "longest",
        10,
        &[LAUNCHES, HOST],
        gaps::make,
    ),
    kind("latency", "how long calls took: percentiles; of one FUNCTION the histogram").of(
        "functions",
        30,
        &[CALLS],
        latency::make,
    ),
    kind("longest", "the longest calls, one by one, with what they were given").of(
        "calls",
        20,
        &[CALLS],
        longest::make,
    ),
    kind("ioctl", "what was asked of the driver, by request and RM command (--kernel)").of(
        "requests",
        30,
        &[],
        ioctl::make,
    ),
    kind("threads", "what each thread did, and where its time went").of(
        "threads",
        20,
        &[CALLS],
        threads::make,
    ),
    kind("waste", "what could be better, by what it costs").of("findings", 20, &[WASTE], waste::make),
];

/// Their names, for the command line.
pub const NAMES: [&str; VIEWS.len()] = {
    let mut names = [""; VIEWS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = VIEWS[at].name;
        at += 1;
    }
    names
};

/// `gpurec report`.
pub fn report(config: &ReportConfig) -> Result<u8> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let Some(name) = &config.view else {
        list(config.format, &mut out)?;
        return Ok(0);
    };
    let Some(kind) = VIEWS.iter().find(|kind| kind.name == name) else {
        let names: Vec<&str> = VIEWS.iter().map(|kind| kind.name).collect();
        bail!(Usage(format!("there is no report called {name}: choose one of {}", names.join(", "))));
    };
    if config.older_than.is_some() && kind.name != "leaks" {
        bail!(Usage(format!("--older-than is for `gpurec report leaks`, not for {name}")));
    }
    let files = read::or_newest(&config.files);
    let width = super::width_of_output();
    read::of_each(&files, |index, file| {
        let (report, told) = run(kind, file, config)?;
        let unanswered = told.unanswered;
        let shown = Shown { kind, file, several: files.len() > 1, first: index == 0, width };
        write(&mut out, &shown, report, &told, config.format)?;
        out.flush()?;
        Ok(u8::from(unanswered))
    })
}

struct Shown<'a> {
    kind: &'a Kind,
    file: &'a Path,
    several: bool,
    first: bool,
    width: usize,
}

fn run(kind: &Kind, file: &Path, config: &ReportConfig) -> Result<(Report, Told)> {
    let mut view = (kind.make)(config);
    let mut told = Told::default();
    let notes = read::each(file, &config.only, |line| {
        told.line(line);
        view.line(line);
    })?;
    told.notes = notes;
    told.within();
    let unknown = told.unknown();
    let lacking: Vec<&Shows> =
        kind.figures.iter().filter(|shows| unknown.contains_key(shows.figure)).collect();
    let mut report = match told.only_figures() {
        Some(figures) => view.of_figures(&figures, &told).unwrap_or_else(|| {
            told.unanswered = true;
            nothing("Not known: the trace has no events, and its figures do not say it.")
        }),
        None => view.finish(&told),
    };
    let mut is_replaced = false;
    for (at, shows) in lacking.iter().enumerate() {
        let reason = unknown[shows.figure].clone();
        let leads = at == 0 && !told.unanswered && lead(&mut report, shows, &reason);
        if leads && shows.figure == LEAKS.figure {
            is_replaced = true;
            if told.has_left_out() {
                report.words("Record again without --only, --skip and --api.");
            }
        }
        told.lacking.push(Lacking { what: shows.what, reason, leads: leads || is_replaced });
    }
    report.not_known(lacking.iter().flat_map(|shows| shows.facts));
    if !lacking.is_empty() {
        let reasons =
            lacking.iter().map(|shows| (shows.figure.to_owned(), unknown[shows.figure].clone().into()));
        report.fact("unknown", serde_json::Value::Object(reasons.collect()));
    }
    let rows = if config.format == Format::Text { Some(kind.rows) } else { None };
    if let Some(rows) = config.top.or(rows) {
        report.limit(rows);
    }
    Ok((report, told))
}

/// Puts the unknown figure at the head of the report. Returns whether the report now begins with it.
fn lead(report: &mut Report, shows: &Shows, reason: &str) -> bool {
    let not_known = format!("Not known: {} ({reason}).", shows.what);
    let has_rows = !report.has_no_rows();
    let is_seen = has_rows || report.take_claim_of_nothing();
    // A list of memory whose frees may be missing is no answer.
    if shows.figure == LEAKS.figure || !is_seen {
        *report = nothing(&not_known);
        return true;
    }
    let leads = !has_rows || !shows.facts.is_empty();
    if leads {
        report.lead(format!("{not_known} What was seen:"));
    }
    leads
}

fn write(out: &mut impl Write, shown: &Shown, mut report: Report, told: &Told, format: Format) -> Result<()> {
    let file = shown.file.display().to_string();
    let notes = told.sentences(format == Format::Text);
    let mut processes = told.processes();
    if format == Format::Json {
        report.data(processes);
    } else if shown.kind.name != "threads" && !processes.is_empty() {
        // `threads` has its own table of processes, with more columns.
        processes.limit(told::NAMED);
        report.title("Processes");
        report.table(processes);
    }
    match format {
        Format::Text => {
            if shown.several {
                let gap = if shown.first { "" } else { "\n" };
                writeln!(out, "{gap}{}:", ui::name(shown.file))?;
            }
            out.write_all(report.text(shown.width).as_bytes())?;
        }
        Format::Json => writeln!(out, "{}", ui::json(&report.json(shown.kind.name, &file, &notes))?)?,
        Format::Csv => {
            let file = shown.several.then_some(file.as_str());
            out.write_all(report.csv(shown.kind.main, shown.first, file).as_bytes())?;
        }
    }
    if format != Format::Json {
        out.flush()?;
        // Notes are not part of the answer, so they go to standard error.
        ui::of_file(shown.file, &notes);
    }
    Ok(())
}

fn list(format: Format, out: &mut impl Write) -> Result<()> {
    const COLUMNS: &[Column] = &[text("Name", "name"), text("What it says", "what")];
    let mut table = Table::new("views", "reports", COLUMNS);
    for kind in VIEWS {
        table.row(vec![kind.name.into(), kind.what.into()]);
    }
    match format {
        Format::Text => {
            writeln!(out, "Reports (`gpurec report NAME [FILE]...`):")?;
            for line in table.text(usize::MAX) {
                writeln!(out, "{line}")?;
            }
        }
        Format::Json => writeln!(out, "{}", ui::json(&serde_json::json!({ "views": table.json() }))?)?,
        Format::Csv => out.write_all(table.csv(true, None).as_bytes())?,
    }
    Ok(out.flush()?)
}

/// A report that consists of one sentence: the view found nothing.
fn nothing(what: &str) -> Report {
    let mut report = Report::default();
    report.title(what);
    report
}
