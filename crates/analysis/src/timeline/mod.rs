//! `gpurec timeline`: draws a trace in a terminal, one lane for each thread: CUDA calls above driver calls above
//! interrupts, with time from left to right.
//!
//! In: the lines of a trace. Out: text, coloured only on a terminal. A column is a span of time. It shows what took
//! most of that time, what share of it was used and how many calls it contains, and never anything that the trace
//! lacks.

mod draw;
mod lanes;
#[cfg(test)]
mod tests;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::views::Context;
use super::{Only, read};
use crate::Usage;
use crate::paper::{self, NARROWEST};
use crate::ui;
use draw::Style;
use lanes::Lanes;
pub use lanes::{SORTS, sort_of};

#[derive(Clone, Debug, Default)]
pub struct TimelineConfig {
    /// None: the newest trace.
    pub files: Vec<PathBuf>,
    /// Relative to the start of the trace.
    pub from: Option<Duration>,
    pub to: Option<Duration>,
    /// None: the threads with the most time in CUDA.
    pub tids: Vec<u32>,
    /// Selects processes and ranks; the picture has its own limits of time.
    pub only: Only,
}

const WIDEST: usize = 1000;

pub fn timeline(config: &TimelineConfig) -> Result<u8> {
    if let (Some(from), Some(to)) = (config.from, config.to)
        && from >= to
    {
        bail!(Usage("--from must be less than --to: both are seconds since the recording began".to_owned()));
    }
    let stdout = std::io::stdout();
    let width = paper::picture_width().clamp(NARROWEST, WIDEST);
    let style = Style { width, text_width: paper::width_of_output(), colour: paper::colour() };
    let files = read::or_newest(&config.files);
    let mut out = BufWriter::new(stdout.lock());
    read::of_each(&files, |index, file| {
        let (mut text, context) = draw(file, config, &style)?;
        let unanswered = context.only_figures().is_some();
        if unanswered {
            text = "Not known: the trace has no events to draw (--summary-only). Record again without it.\n"
                .to_owned();
        }
        if files.len() > 1 {
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(out, "{gap}{}:", ui::name(file))?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        ui::of_file(file, &context.sentences(false));
        Ok(u8::from(unanswered))
    })
}

fn draw(file: &Path, config: &TimelineConfig, style: &Style) -> Result<(String, Context)> {
    let ns = |time: Option<Duration>| time.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    let new = || Lanes::new(ns(config.from), ns(config.to), &config.tids, style.columns());
    let chosen = !config.tids.is_empty();
    let mut lanes = new();
    let mut context = Context::new(false);
    context.notes = read::each(file, &config.only, |line| {
        context.line(line);
        lanes.line(line);
    })?;
    lanes.finish();
    // The busiest threads are known only at the end. A second read is possible only for a regular file.
    if let Some(better) = lanes.better(draw::shown(chosen)).filter(|_| file.is_file()) {
        lanes = new();
        lanes.choose(better);
        read::each(file, &config.only, |line| lanes.line(line))?;
        lanes.finish();
    }
    Ok((draw::picture(&lanes, style, chosen), context))
}
