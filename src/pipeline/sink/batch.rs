//! Lines in a row that any thread can count and format. In: drafts, owned lines, texts, in order. Out: the same lines to
//! the summary, and as text. Pure.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::drafts::{BeginDraft, EndDraft};
use super::facts::Facts;
use crate::pipeline::decode::Payload;
use gpurec_analysis::Summary;
use gpurec_cuda::semantics::BeginKeys;
use gpurec_trace::{Body, Line, append_line};

/// Lines of a batch: they fit into a CPU's cache, as do their texts.
pub(super) const LINES: usize = 1024;
/// Bytes of memory behind the lines of a batch, and bytes of text, beyond which it is full too.
const BYTES: usize = 256 << 10;

pub(super) type Table = Arc<Vec<Arc<Facts>>>;

/// What a line is made of. Ranges are of the batch's bytes.
enum Draft {
    Begin {
        place: Place,
        of: BeginDraft,
        words: u16,
        bytes: Range<u32>,
        launch: Option<u32>,
    },
    End {
        place: Place,
        of: EndDraft,
        bytes: Range<u32>,
    },
    /// The index of an owned line.
    Line(u32),
    /// A line that is counted already: the range of its text.
    Text(Range<u32>),
}

/// The keys that every line has.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) id: u64,
    pub(super) ts_ns: u64,
}

impl Place {
    fn line(self, body: Body<'_>) -> Line<'_> {
        Line { event_id: self.id, ts_ns: self.ts_ns, body }
    }
}

#[derive(Default)]
pub(super) struct Batch {
    facts: Table,
    drafts: Vec<Draft>,
    bytes: Vec<u8>,
    launches: Vec<BeginKeys>,
    lines: Vec<Line<'static>>,
    text: Vec<u8>,
    /// How many of the drafts the summary has counted.
    counted: usize,
}

fn add(to: &mut Vec<u8>, bytes: &[u8]) -> Range<u32> {
    let start = to.len() as u32;
    to.extend_from_slice(bytes);
    start..to.len() as u32
}

fn part<'a>(of: &'a [u8], range: &Range<u32>) -> &'a [u8] {
    of.get(range.start as usize..range.end as usize).unwrap_or_default()
}

impl Batch {
    /// Makes it an empty one, with the memory that it has.
    pub(super) fn begin(&mut self, facts: Table) {
        self.facts = facts;
        self.drafts.clear();
        self.bytes.clear();
        self.launches.clear();
        self.lines.clear();
        self.text.clear();
        self.counted = 0;
    }

    pub(super) fn learn(&mut self, facts: Table) {
        self.facts = facts;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.drafts.len() >= LINES || self.bytes.len() >= BYTES || self.text.len() >= BYTES
    }

    pub(super) fn is_counted(&self) -> bool {
        self.counted == self.drafts.len()
    }

    pub(super) fn begins(&mut self, place: Place, of: BeginDraft, payload: Payload, keys: BeginKeys) {
        let launch = keys.is_launch().then(|| {
            self.launches.push(keys);
            self.launches.len() as u32 - 1
        });
        let bytes = add(&mut self.bytes, payload.bytes);
        self.drafts.push(Draft::Begin { place, of, words: payload.words as u16, bytes, launch });
    }

    pub(super) fn ends(&mut self, place: Place, of: EndDraft, pieces: &[u8]) {
        let bytes = add(&mut self.bytes, pieces);
        self.drafts.push(Draft::End { place, of, bytes });
    }

    pub(super) fn line(&mut self, line: Line<'static>) {
        self.lines.push(line);
        self.drafts.push(Draft::Line(self.lines.len() as u32 - 1));
    }

    /// Adds a line that the summary has, behind counted ones.
    pub(super) fn counted_line(&mut self, line: &Line) -> io::Result<()> {
        let start = self.text.len() as u32;
        append_line(&mut self.text, line)?;
        self.drafts.push(Draft::Text(start..self.text.len() as u32));
        self.counted = self.drafts.len();
        Ok(())
    }

    /// Adds the lines that the summary does not have.
    pub(super) fn count(&mut self, summary: &mut Summary) {
        self.count_in(summary);
        self.counted = self.drafts.len();
    }

    /// Counts the rest of the drafts, of a batch that is not counted again later.
    pub(super) fn count_in(&self, summary: &mut Summary) {
        for draft in self.drafts.get(self.counted..).unwrap_or_default() {
            self.with(draft, false, |line| count(summary, line));
        }
    }

    pub(super) fn format(&self, out: &mut Vec<u8>) -> io::Result<()> {
        for draft in &self.drafts {
            match draft {
                Draft::Text(range) => out.extend_from_slice(part(&self.text, range)),
                _ => self.with(draft, true, |line| append_line(out, line)).unwrap_or(Ok(()))?,
            }
        }
        Ok(())
    }

    /// Passes the line to `each`, unless it is a text. `whole`: with the arguments that the summary does not read.
    fn with<R>(&self, draft: &Draft, whole: bool, each: impl FnOnce(&Line) -> R) -> Option<R> {
        let facts = |probe: u32| self.facts.get(probe as usize).map(Arc::as_ref);
        Some(match draft {
            Draft::Begin { place, of: begin, words, bytes, launch } => {
                let facts = facts(begin.probe);
                let payload = Payload { bytes: part(&self.bytes, bytes), words: usize::from(*words) };
                let launch = launch.and_then(|at| self.launches.get(at as usize)?.launch());
                let with_args = whole || facts.is_some_and(|facts| facts.has_args_read);
                begin.with(facts, payload, launch, with_args, |body| each(&place.line(body)))
            }
            Draft::End { place, of: end, bytes } => {
                let pieces = part(&self.bytes, bytes);
                end.with(facts(end.probe), pieces, None, |body| each(&place.line(body)))
            }
            Draft::Line(at) => each(self.lines.get(*at as usize)?),
            Draft::Text(_) => return None,
        })
    }
}

/// Adds a line to the summary, and the end of a call whose return is not watched.
pub(super) fn count(summary: &mut Summary, line: &Line) {
    summary.add(line);
    if let Body::Begin(begin) = &line.body
        && begin.no_return.is_some()
    {
        line.end_of_unwatched().iter().for_each(|end| summary.add(end));
    }
}
