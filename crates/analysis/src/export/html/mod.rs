//! An HTML page that shows a trace: overview, timeline, every report, flame graph. In: events with their place, and all
//! lines for the figures and reports, which are computed as for `summary --json` and `report --json`. Out: one file,
//! written at the end, whose size is bounded. Not here: sums of its own, and anything that a browser does (`*.mjs`).

mod base64;
mod copies;
mod packed;
mod page;
mod profile;
mod reports;
mod rows;
mod slices;
mod tracks;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use self::copies::Copies;
use self::packed::Packed;
use self::profile::Profile;
use self::reports::Reports;
use self::rows::{MARKS, Rows};
use self::slices::Slice;
use self::tracks::{Counters, PageTracks};
use super::details;
use super::read_twice;
use super::sink::{At, Cause, Links, Process, Sink, Source, Space, Track, WorkLink, name, stack_of};
use super::weights;
use crate::diff;
use crate::only::Only;
use crate::ranks;
use crate::stacks::Stacks;
use crate::text;
use crate::timeline::{SORTS, sort_of};
use crate::views::ON_A_PAGE;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::Entries;
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, GpuKind, Line, Notes};

/// Limits on names of events, and on their bytes.
const NAMES: usize = 65_536;
const NAME_BYTES: usize = 8 << 20;
/// The width of the summary's text.
const WIDTH: usize = 100;

/// What is drawn in a colour of its own, in addition to the sorts of calls.
const MORE_SORTS: [&str; 5] = ["nvidia.ko", "off the CPU", "GPU kernel", "GPU copy or set", "event"];
const DRIVER: usize = SORTS.len();
const OFF_CPU: usize = DRIVER + 1;
const GPU_KERNEL: usize = DRIVER + 2;
const GPU_COPY: usize = DRIVER + 3;
const EVENT: usize = DRIVER + 4;

#[derive(Default)]
pub struct Html {
    out: Vec<u8>,
    /// The traces, which are read once more for their reports.
    files: Vec<PathBuf>,
    only: Only,
    wall_ns: Option<u64>,
    trace: Trace,
    /// The overview and the reports of each trace.
    documents: Vec<Document>,
    tracks: PageTracks,
    counters: Counters,
    copies: Copies,
    /// What several traces say about each other (`ranks`, `diff`).
    together: Together,
    rows: Rows,
    names: Entries<String, NAMES, NAME_BYTES>,
    /// The numbers of pairs of a sort and a name.
    labels: Map<(usize, usize), u32>,
    label_list: Vec<(usize, usize)>,
    profile: Profile,
    last_ns: u64,
    held: usize,
}

/// The documents of `ranks --json` and `diff --json`; null where they do not apply.
#[derive(Default)]
pub struct Together {
    pub ranks: Value,
    pub diff: Value,
}

/// What the page says of one trace.
#[derive(Serialize)]
struct Document {
    file: String,
    header: Value,
    summary: Box<RawValue>,
    text: String,
    reports: Vec<Box<RawValue>>,
    notes: Vec<String>,
}

/// The data of the page, which is written to it piece by piece.
#[derive(Serialize)]
struct Data<'a> {
    version: &'static str,
    wall_ns: Option<String>,
    end_ns: u64,
    traces: &'a [Document],
    sorts: Vec<&'static str>,
    labels: Vec<(&'a str, usize)>,
    processes: &'a [Value],
    tracks: Vec<Value>,
    rows: &'a [Value],
    counters: Vec<Value>,
    copies: Value,
    ranks: &'a Value,
    diff: &'a Value,
    stacks: Value,
    kept: Value,
}

/// The trace that is being read.
#[derive(Default)]
struct Trace {
    file: String,
    header: Value,
    reports: Reports,
}

/// What is kept of an open call.
#[derive(Default)]
pub struct Held {
    track: usize,
    depth: u32,
    from_ns: u64,
    label: u32,
    stack: u32,
    flow: u64,
    details: Vec<u8>,
    weight: weights::Held,
}

impl Html {
    /// Reads the traces to compare them with each other, if there are several.
    pub fn of(files: &[PathBuf], only: &Only) -> Result<Html> {
        let mut together = Together::default();
        if files.len() > 1 {
            files.iter().try_for_each(|file| read_twice(file))?;
            let report = ranks::gather_traces(files, only)?;
            if !report.ranks.is_empty() {
                together.ranks = report.json();
            }
            let ranks_of = |file: &Path| -> BTreeSet<Option<u32>> {
                let name = file.display().to_string();
                report.ranks.iter().filter(|it| it.file == name).map(|it| it.rank).collect()
            };
            if let [before, after] = files {
                let (old, new) = (ranks_of(before), ranks_of(after));
                // Traces of different ranks are parts of one job, not two versions of a program.
                if old.is_empty() || new.is_empty() || !old.is_disjoint(&new) {
                    together.diff = diff::document([before.as_path(), after.as_path()], only)?;
                }
            }
        }
        Ok(Html { files: files.to_vec(), only: only.clone(), together, ..Html::default() })
    }

    /// The number of what an event is called and drawn as.
    fn label(&mut self, line: &Line) -> u32 {
        let name = name(line);
        let name = self.names.number(
            Some(name),
            |kept| kept.as_deref().unwrap_or("(others)").to_owned(),
            |_, _| true,
        );
        let key = (sort(line), name);
        *self.labels.entry(key).or_insert_with(|| {
            self.label_list.push(key);
            u32::try_from(self.label_list.len() - 1).unwrap_or(0)
        })
    }

    fn add(&mut self, (track, depth): (usize, u32), (from_ns, to_ns): (u64, u64), line: &Line, flow: u64) {
        self.last_ns = self.last_ns.max(to_ns);
        let mut details = Vec::new();
        details::write(&mut details, line);
        let length = to_ns.saturating_sub(from_ns);
        let slice = Slice {
            from_ns,
            to_ns,
            busy_ns: length,
            longest_ns: length,
            events: 1,
            name: self.label(line),
            stack: stack_number(own_stack(line)),
            flow,
            details: text_of(details),
        };
        self.rows.add(track, depth, slice);
    }

    fn ended(&mut self, to_ns: u64, held: Held) {
        self.held = self.held.saturating_sub(held.bytes());
        self.last_ns = self.last_ns.max(to_ns);
        self.tracks.leave(held.track);
        let length = to_ns.saturating_sub(held.from_ns);
        let slice = Slice {
            from_ns: held.from_ns,
            to_ns,
            busy_ns: length,
            longest_ns: length,
            events: 1,
            name: held.label,
            stack: held.stack,
            flow: held.flow,
            details: text_of(held.details),
        };
        self.rows.add(held.track, held.depth, slice);
    }

    fn data<'a>(&'a self, plan: &'a [Value]) -> Data<'a> {
        let name = |number: usize| self.names.get(number).map_or("?", |name| name);
        Data {
            version: env!("CARGO_PKG_VERSION"),
            wall_ns: self.wall_ns.map(|ns| ns.to_string()),
            end_ns: self.last_ns,
            traces: &self.documents,
            sorts: SORTS.iter().map(|sort| sort.name).chain(MORE_SORTS).collect(),
            labels: self.label_list.iter().map(|(sort, at)| (name(*at), *sort)).collect(),
            processes: self.tracks.processes(),
            tracks: self.tracks.all(),
            rows: plan,
            counters: self.counters.page(),
            copies: self.copies.page(),
            ranks: &self.together.ranks,
            diff: &self.together.diff,
            stacks: self.profile.page(),
            kept: json!({
                "events": self.rows.events,
                "left_out": self.rows.left_out,
                "below_ns": self.rows.below_ns,
                "details_from_ns": self.rows.details_from_ns,
            }),
        }
    }
}

impl Held {
    fn bytes(&self) -> usize {
        size_of::<Held>() + self.details.capacity()
    }
}

/// One more than the number of a stack, as slices have it.
fn stack_number(stack: Option<u64>) -> u32 {
    stack.and_then(|stack| u32::try_from(stack).ok()?.checked_add(1)).unwrap_or(0)
}

fn own_stack(line: &Line) -> Option<u64> {
    match &line.body {
        Body::Block(block) => block.stack,
        _ => stack_of(line),
    }
}

/// The details of an event are one or two JSON objects, apart by a comma.
fn text_of(details: Vec<u8>) -> Option<Box<str>> {
    String::from_utf8(details).ok().filter(|text| text != "{}").map(String::into_boxed_str)
}

/// What an event is drawn as.
fn sort(line: &Line) -> usize {
    match &line.body {
        Body::Begin(begin) => sort_of(FunctionTraits::of(&begin.name).category),
        Body::KernelBegin(_) => DRIVER,
        Body::Instant(instant) if instant.name == "off_cpu" => OFF_CPU,
        Body::Instant(_) => DRIVER,
        Body::Gpu(gpu) => match gpu.kind {
            GpuKind::Kernel | GpuKind::Graph => GPU_KERNEL,
            GpuKind::Copy | GpuKind::Set => GPU_COPY,
        },
        _ => EVENT,
    }
}

/// The flow of a call as slices have it: a number that JavaScript holds exactly, and never 0.
fn flow_number(flow: Option<u64>) -> u64 {
    const EXACT: u64 = (1 << 53) - 1;
    flow.map_or(0, |flow| (flow & EXACT >> 1) + 1)
}

impl Sink for Html {
    type CallState = Held;

    fn held(&self) -> usize {
        self.held
    }

    fn source(&mut self, source: &Source) {
        let reports = self.files.get(source.index).map(|file| Reports::of(file, &self.only));
        let reports = reports.unwrap_or_default();
        self.trace = Trace { file: source.file.to_owned(), reports, ..Trace::default() };
        self.profile.next_source();
    }

    fn line(&mut self, line: &Line) {
        if let Body::Header(header) = &line.body {
            self.trace.header = serde_json::to_value(header).unwrap_or_default();
            if let Some(header) = self.trace.header.as_object_mut() {
                // The summary says what was not hooked.
                header.remove("hooks");
            }
        }
        self.trace.reports.line(line);
    }

    fn read(&mut self, notes: &Notes) -> Result<()> {
        let Trace { file, header, reports } = std::mem::take(&mut self.trace);
        let (mut figures, reports) = reports.finish(notes)?;
        let text = text::print(&figures, WIDTH);
        figures.keep(ON_A_PAGE);
        let summary = to_raw_value(&figures.with_nulls())?;
        self.documents.push(Document { file, header, summary, text, reports, notes: Vec::new() });
        Ok(())
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn source_ends(&mut self, stacks: &Stacks) -> Option<String> {
        let Html { profile, rows, .. } = self;
        rows.renumber(|stack| {
            let number = stack.checked_sub(1).and_then(|stack| profile.number(stack.into(), stacks));
            stack_number(number.map(|number| number as u64))
        });
        profile.source_ends(stacks);
        None
    }

    fn clock(&mut self, wall_ns: u64) {
        self.wall_ns = Some(wall_ns);
    }

    fn process(&mut self, process: &Process) {
        self.tracks.process(process);
    }

    fn track(&mut self, track: Track, parent: u64, name: &str, is_thread: bool) {
        self.tracks.track(track, parent, name, is_thread);
    }

    fn counter_track(&mut self, uuid: u64, process: &Process, name: &str) {
        self.counters.track(uuid, process, name);
    }

    fn begin(&mut self, at: At, line: &Line, _rank: Option<u32>, links: Links, _: &Stacks) -> Held {
        let track = self.tracks.number(at.track.uuid);
        let mut details = Vec::new();
        details::write(&mut details, line);
        let held = Held {
            track,
            depth: self.tracks.enter(track),
            from_ns: at.ts_ns,
            label: self.label(line),
            stack: stack_number(stack_of(line)),
            flow: flow_number(links.work),
            details,
            weight: self.profile.begin(at, line),
        };
        self.held += held.bytes();
        held
    }

    fn end(&mut self, at: At, line: &Line, mut held: Held) {
        self.profile.weights.end(line, std::mem::take(&mut held.weight));
        self.held = self.held.saturating_sub(held.bytes());
        let before = held.details.len();
        held.details.push(b',');
        if details::write(&mut held.details, line) {
            held.details.truncate(before);
        }
        self.held += held.bytes();
        self.ended(at.ts_ns, held);
    }

    fn close(&mut self, at: At, mut held: Held, cause: Cause) {
        self.profile.close(at, std::mem::take(&mut held.weight), cause);
        self.held = self.held.saturating_sub(held.bytes());
        held.details.extend_from_slice(format!(",{{\"{}\":true}}", cause.name()).as_bytes());
        self.held += held.bytes();
        self.ended(at.ts_ns, held);
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, _rank: Option<u32>, _: &Stacks) {
        self.profile.weights.mark(line);
        if let Body::Transfer(transfer) = &line.body {
            self.copies.add(at.ts_ns, &transfer.direction, transfer.size);
        }
        let track = self.tracks.number(at.track.uuid);
        let depth = if duration_ns.is_some() { 0 } else { MARKS };
        let from_ns = at.ts_ns.saturating_sub(duration_ns.unwrap_or(0));
        self.add((track, depth), (from_ns, at.ts_ns), line, 0);
    }

    fn work(
        &mut self,
        at: At,
        line: &Line,
        duration_ns: u64,
        link: Option<WorkLink>,
        _rank: Option<u32>,
        _: &Stacks,
    ) {
        self.profile.weights.mark(line);
        let track = self.tracks.number(at.track.uuid);
        let to_ns = at.ts_ns.saturating_add(duration_ns);
        self.add((track, 0), (at.ts_ns, to_ns), line, flow_number(link.map(|link| link.flow)));
    }

    fn counter(&mut self, ts_ns: u64, space: &Space, _pid: u32) {
        self.counters.add(ts_ns, space);
    }

    fn note(&mut self, _at: At, text: &str) {
        if let Some(document) = self.documents.last_mut() {
            document.notes.push(text.to_owned());
        }
    }

    fn finish(&mut self) {
        self.rows.finish();
        let packed = Packed::of(&self.rows.all, self.last_ns);
        let data = page::packed(|to| Ok(serde_json::to_writer(to, &self.data(&packed.plan))?));
        let [slices, details] =
            [packed.slices, packed.details].map(|bytes| page::packed(|to| to.write_all(&bytes)));
        page::write(&mut self.out, &[("data", &data), ("slices", &slices), ("details", &details)]);
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
