//! `gpurec report NAME`: one question about a trace, answered by one table.
//!
//! In: the lines of a trace, one by one, and the summary's figures where those are the answer. Out: text, JSON or CSV
//! on standard output; notes about oddities of the trace on standard error (in JSON under `notes`). The memory of a
//! view grows with the number of distinct items in the trace, never with its length.

mod all;
mod api;
mod blocks;
pub mod calls;
mod context;
mod copies;
mod errors;
mod gap_text;
mod gaps;
mod gpu;
mod held;
mod idle;
mod idle_text;
mod ioctl;
mod kernels;
mod latency;
mod leaks;
mod listing;
mod longest;
mod memory;
pub mod output;
pub mod plot;
pub mod scale;
mod stacks;
mod sync;
#[cfg(test)]
pub mod tests;
mod threads;
mod waste;

use std::collections::{HashMap, HashSet};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};

// The views import from here what most of them need.
use super::{Figures, Only, Summary, read};
use crate::Usage;
use crate::by_process::ByProcess;
use crate::stacks::{CallRole, Places, Site, Stacks, Weight};
use crate::table::{Cell, Column, Table, data, long, number, size, text};
use crate::tally::Role;
use crate::text::{clean, duration, plural};
use crate::ui;
use gpurec_trace::bounds::{Entries, Sums, entry};
use gpurec_trace::tree::{self, Call, Calls};
use gpurec_trace::{Begin, Body, End, Line, Process, Transfer};

pub use all::All;
pub use calls::Functions;
use calls::{Durations, Thread, Total, handle, largest, left_out, unfinished};
pub use context::{Context, ONLY_FIGURES, UnknownFigure};
use listing::{Listing, positive};
pub use output::ON_A_PAGE;
use output::Report;

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
    /// Only for `stacks`: the calls of one role, what they are sorted by, and the innermost frame first.
    pub role: Option<CallRole>,
    pub by: Option<Weight>,
    pub invert: bool,
}

/// Computes one view from the lines of a trace.
trait View {
    /// Called before the first line.
    fn configure(&mut self, _: &ReportConfig) {}
    /// The context has seen this line: its `stacks` know the call sites of open calls and of the call that ended last.
    fn line(&mut self, _line: &Line, _context: &Context) {}
    fn finish(&mut self, context: &Context) -> Report;
    /// Called for a recording with --summary-only, which holds only figures. Returns None if they do not answer the
    /// question. A view of a `Summary` has them in it.
    fn of_figures(&mut self, _: &Figures, context: &Context) -> Option<Report> {
        Some(self.finish(context))
    }
}

struct Kind {
    name: &'static str,
    what: &'static str,
    /// The table that CSV output contains.
    main: &'static str,
    /// Default number of rows of each table in text output.
    rows: usize,
    make: fn() -> Box<dyn View>,
    figures: &'static [Breakdown],
    /// Whether the view asks for the figures of the summary. Then the context computes them.
    of_summary: bool,
}

/// A figure of the summary that a view breaks down.
struct Breakdown {
    figure: &'static str,
    what: &'static str,
    /// The facts of the report that carry the same information.
    facts: &'static [&'static str],
}

const fn shows(figure: &'static str, what: &'static str, facts: &'static [&'static str]) -> Breakdown {
    Breakdown { figure, what, facts }
}

const LAUNCHES: Breakdown = shows("kernel_launches", "how many kernels were launched", &["launches"]);
const LEAKS: Breakdown = shows("memory.leaks", "what was never freed", &["count", "bytes"]);
const CALLS: Breakdown = shows("cuda_calls", "how many CUDA calls there were", &[]);

const fn kind<V: View + Default + 'static>(name: &'static str, what: &'static str) -> Kind {
    Kind { name, what, main: "", rows: 0, make: || Box::new(V::default()), figures: &[], of_summary: false }
}

impl Kind {
    const fn table(self, main: &'static str, rows: usize) -> Kind {
        Kind { main, rows, ..self }
    }

    const fn of_summary(self) -> Kind {
        Kind { of_summary: true, ..self }
    }

    const fn figures(self, figures: &'static [Breakdown]) -> Kind {
        Kind { figures, ..self }
    }
}

/// Every report. An entry here and its module are all that a new one needs beside its own file.
const VIEWS: &[Kind] = &[
    api::KIND,
    kernels::KIND,
    memory::KIND,
    leaks::KIND,
    copies::KIND,
    sync::KIND,
    errors::KIND,
    gaps::KIND,
    gpu::KIND,
    idle::KIND,
    latency::KIND,
    longest::KIND,
    ioctl::KIND,
    threads::KIND,
    waste::KIND,
    stacks::KIND,
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
        bail!(Usage(format!("there is no report called {name}: choose one of {}", NAMES.join(", "))));
    };
    if config.older_than.is_some() && kind.name != "leaks" {
        bail!(Usage(format!("--older-than is for `gpurec report leaks`, not for {name}")));
    }
    if (config.role.is_some() || config.by.is_some() || config.invert) && kind.name != "stacks" {
        bail!(Usage(format!("--role, --by and --invert are for `gpurec report stacks`, not for {name}")));
    }
    let files = read::or_newest(&config.files);
    let width = super::width_of_output();
    read::of_each(&files, |index, file| {
        let (report, context) = run(kind, file, config)?;
        let layout = Layout { kind, file, several: files.len() > 1, first: index == 0, width };
        write(&mut out, &layout, report, &context, config.format)?;
        out.flush()?;
        Ok(u8::from(context.unanswered))
    })
}

/// What one report is printed for, and where it stands in the output.
struct Layout<'a> {
    kind: &'a Kind,
    file: &'a Path,
    several: bool,
    first: bool,
    width: usize,
}

fn run(kind: &Kind, file: &Path, config: &ReportConfig) -> Result<(Report, Context)> {
    let mut view = (kind.make)();
    view.configure(config);
    let mut context = Context::new(kind.of_summary);
    context.notes = read::each(file, &config.only, |line| {
        context.line(line);
        view.line(line, &context);
    })?;
    context.within();
    let mut report = answer(kind, &mut *view, &mut context);
    let rows = if config.format == Format::Text { Some(kind.rows) } else { None };
    if let Some(rows) = config.top.or(rows) {
        report.limit(rows);
    }
    Ok((report, context))
}

/// The report of a view that has all lines. What it does not answer is noted in the context.
fn answer(kind: &Kind, view: &mut dyn View, context: &mut Context) -> Report {
    let unknown = context.unknown();
    let unknown_figures: Vec<&Breakdown> =
        kind.figures.iter().filter(|figure| unknown.contains_key(figure.figure)).collect();
    let mut report = match context.only_figures() {
        Some(figures) => view.of_figures(&figures, context).unwrap_or_else(|| {
            context.unanswered = true;
            nothing("Not known: the trace has no events, and its figures do not have the answer. Record again without --summary-only.")
        }),
        None => view.finish(context),
    };
    let mut is_replaced = false;
    for (at, figure) in unknown_figures.iter().enumerate() {
        let reason = unknown[figure.figure].clone();
        let leads = at == 0 && !context.unanswered && lead(&mut report, figure, &reason);
        if leads && figure.figure == LEAKS.figure {
            is_replaced = true;
            if context.has_left_out() {
                report.words("Record again without --only, --skip and --api.");
            }
        }
        context.unknown_figures.push(UnknownFigure {
            what: figure.what,
            reason,
            leads: leads || is_replaced,
        });
    }
    report.not_known(unknown_figures.iter().flat_map(|figure| figure.facts));
    if !unknown_figures.is_empty() {
        let reasons = unknown_figures
            .iter()
            .map(|figure| (figure.figure.to_owned(), unknown[figure.figure].clone().into()));
        report.fact("unknown", serde_json::Value::Object(reasons.collect()));
    }
    report
}

/// Puts the unknown figure at the head of the report. Returns whether the report now begins with it.
fn lead(report: &mut Report, figure: &Breakdown, reason: &str) -> bool {
    let not_known = format!("Not known: {} ({reason}).", figure.what);
    let has_rows = !report.has_no_rows();
    let is_seen = has_rows || report.take_claim_of_nothing();
    // A list of memory whose frees may be missing is no answer.
    if figure.figure == LEAKS.figure || !is_seen {
        *report = nothing(&not_known);
        return true;
    }
    let leads = !has_rows || !figure.facts.is_empty();
    if leads {
        report.lead(format!("{not_known} What was seen:"));
    }
    leads
}

fn write(
    out: &mut impl Write,
    layout: &Layout,
    mut report: Report,
    context: &Context,
    format: Format,
) -> Result<()> {
    let file = layout.file.display().to_string();
    let notes = context.sentences(format == Format::Text);
    let mut processes = context.processes();
    if format == Format::Json {
        report.data(processes);
    } else if layout.kind.name != "threads" && !processes.is_empty() {
        // `threads` has its own table of processes, with more columns.
        processes.limit(context::NAMED);
        report.title("Processes");
        report.table(processes);
    }
    match format {
        Format::Text => {
            if layout.several {
                let gap = if layout.first { "" } else { "\n" };
                writeln!(out, "{gap}{}:", ui::name(layout.file))?;
            }
            out.write_all(report.text(layout.width).as_bytes())?;
        }
        Format::Json => writeln!(out, "{}", ui::json(&report.json(layout.kind.name, &file, &notes))?)?,
        Format::Csv => {
            let file = layout.several.then_some(file.as_str());
            out.write_all(report.csv(layout.kind.main, layout.first, file).as_bytes())?;
        }
    }
    if format != Format::Json {
        out.flush()?;
        // Notes are not part of the answer, so they go to standard error.
        ui::of_file(layout.file, &notes);
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
