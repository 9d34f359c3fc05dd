//! `gpurec report NAME`: one question about a trace, answered by one table.
//!
//! In: the lines of a trace, one by one, and the summary's figures where those are the answer. Out: text, JSON or
//! CSV on standard output; what was odd about the trace on standard error (in JSON under `notes`). What a view
//! keeps grows with what is distinct in the trace, never with its length.

mod api;
pub mod calls;
mod copies;
mod errors;
mod gap_text;
mod gaps;
mod ioctl;
mod kernels;
mod leaks;
mod memory;
pub mod output;
pub mod plot;
pub mod scale;
mod sync;
#[cfg(test)]
mod tests;
mod threads;
mod told;
mod waste;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::read;
use super::table::{Column, Table, text};
use crate::cli::Usage;
use crate::say;
use crate::trace::Line;

pub use calls::{Functions, Stacks};
use output::Report;
pub use told::Told;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
    Csv,
}

#[derive(Clone, Debug, Default)]
pub struct ReportConfig {
    /// None: list them.
    pub view: Option<String>,
    /// None: the newest trace.
    pub files: Vec<PathBuf>,
    pub format: Format,
    /// Only for `leaks`.
    pub older_than: Option<Duration>,
    /// Rows of each table; none: as many as a person wants to see, and all for a program.
    pub top: Option<usize>,
}

/// What reads a trace for one view.
trait View {
    fn line(&mut self, line: &Line);
    fn finish(&mut self, told: &Told) -> Report;
}

struct Kind {
    name: &'static str,
    what: &'static str,
    /// The table that CSV has.
    main: &'static str,
    /// Rows of each table that a person is shown.
    rows: usize,
    make: fn(&ReportConfig) -> Box<dyn View>,
}

const VIEWS: [Kind; 11] = [
    Kind {
        name: "api",
        what: "CUDA functions by time, in the columns of nsys's cuda_api_sum",
        main: "functions",
        rows: 40,
        make: api::make,
    },
    Kind {
        name: "kernels",
        what: "kernel launches by name: how often, how far apart, which grids",
        main: "kernels",
        rows: 25,
        make: kernels::make,
    },
    Kind {
        name: "memory",
        what: "live bytes over time, by process and memory space, as a plot",
        main: "series",
        rows: 20,
        make: memory::make,
    },
    Kind {
        name: "leaks",
        what: "what was allocated and never freed (--older-than, --top)",
        main: "groups",
        rows: 10,
        make: leaks::make,
    },
    Kind {
        name: "copies",
        what: "copies and sets by direction: bytes, bandwidth, pageable memory",
        main: "directions",
        rows: 20,
        make: copies::make,
    },
    Kind {
        name: "sync",
        what: "who waits for the GPU, for what, and how long",
        main: "waiters",
        rows: 20,
        make: sync::make,
    },
    Kind {
        name: "errors",
        what: "failed calls, the first failure, and what came before it",
        main: "errors",
        rows: 20,
        make: errors::make,
    },
    Kind {
        name: "gaps",
        what: "time between launches: how long, and what the host did meanwhile",
        main: "longest",
        rows: 10,
        make: gaps::make,
    },
    Kind {
        name: "ioctl",
        what: "what was asked of the driver, by request and RM command (--kernel)",
        main: "requests",
        rows: 30,
        make: ioctl::make,
    },
    Kind {
        name: "threads",
        what: "what each thread did, and where its time went",
        main: "threads",
        rows: 20,
        make: threads::make,
    },
    Kind {
        name: "waste",
        what: "what could be better, by what it costs",
        main: "findings",
        rows: 20,
        make: waste::make,
    },
];

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
    let width = super::width_of(libc::STDOUT_FILENO);
    read::of_each(&files, |index, file| {
        let (report, told) = run(kind, file, config)?;
        let shown = Shown { kind, file, several: files.len() > 1, first: index == 0, width };
        write(&mut out, &shown, report, &told, config.format)?;
        out.flush()?;
        Ok(0)
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
    let notes = read::each(file, |line| {
        told.line(line);
        view.line(line);
    })?;
    told.notes = notes;
    let mut report = view.finish(&told);
    let rows = if config.format == Format::Text { Some(kind.rows) } else { None };
    if let Some(rows) = config.top.or(rows) {
        report.limit(rows);
    }
    Ok((report, told))
}

fn write(out: &mut impl Write, shown: &Shown, report: Report, told: &Told, format: Format) -> Result<()> {
    let file = shown.file.display().to_string();
    let notes = told.sentences();
    match format {
        Format::Text => {
            if shown.several {
                let gap = if shown.first { "" } else { "\n" };
                writeln!(out, "{gap}{}:", say::name(shown.file))?;
            }
            out.write_all(report.text(shown.width).as_bytes())?;
        }
        Format::Json => writeln!(out, "{}", say::json(&report.json(shown.kind.name, &file, &notes))?)?,
        Format::Csv => {
            let file = shown.several.then_some(file.as_str());
            out.write_all(report.csv(shown.kind.main, shown.first, file).as_bytes())?;
        }
    }
    if format != Format::Json {
        out.flush()?;
        // It is no part of the answer.
        say::of_file(shown.file, &notes);
    }
    Ok(())
}

fn list(format: Format, out: &mut impl Write) -> Result<()> {
    const COLUMNS: &[Column] = &[text("Name", "name"), text("What it says", "what")];
    let mut table = Table::new("views", "reports", COLUMNS);
    for kind in &VIEWS {
        table.row(vec![kind.name.into(), kind.what.into()]);
    }
    match format {
        Format::Text => {
            writeln!(out, "Reports, to be had with `gpurec report NAME [FILE]…`:")?;
            for line in table.text(usize::MAX) {
                writeln!(out, "{line}")?;
            }
        }
        Format::Json => writeln!(out, "{}", say::json(&serde_json::json!({ "views": table.json() }))?)?,
        Format::Csv => out.write_all(table.csv(true, None).as_bytes())?,
    }
    Ok(out.flush()?)
}

/// The end of a sentence that says of what a view found nothing.
fn nothing(what: &str) -> Report {
    let mut report = Report::default();
    report.title(what);
    report
}
