//! The call stacks of the page: those of its calls, and the weights of its flame graph. In: events in order, and the
//! stacks of a trace at its end. Out: tables of frames and stacks, and rows of a stack, a function and sums. Not here: the
//! sums (weights.rs).

use serde_json::{Value, json};

use super::super::sink::{At, Cause};
use super::super::weights::{Held, Weights};
use crate::stacks::{Site, Stacks};
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::hash::Map;
use gpurec_trace::{Frame, Line};

/// Limits on stacks, on all their frames, on bytes of frames' texts, and on rows of the flame graph.
const STACKS: usize = 32_768;
const FRAMES: usize = 1 << 20;
const TEXTS: usize = 8 << 20;
const ROWS: usize = 16_384;

#[derive(Default)]
pub struct Profile {
    pub weights: Weights,
    /// The text of each frame, and where it is.
    frames: Vec<[String; 2]>,
    texts_left: BytesLeft<TEXTS>,
    frames_left: BytesLeft<FRAMES>,
    /// The frames of each stack, the innermost first, and whether deeper ones are missing.
    stacks: Vec<(Vec<usize>, bool)>,
    flame: Vec<Value>,
    /// Rows of the flame graph beyond the limit.
    left_out: usize,
    /// The numbers of the trace that is being read.
    by_site: Map<Site, usize>,
    by_stack: Map<u64, Option<usize>>,
}

impl Profile {
    pub fn begin(&mut self, at: At, line: &Line) -> Held {
        self.weights.begin(at, line)
    }

    pub fn close(&mut self, at: At, held: Held, cause: Cause) {
        self.weights.close(at, held, cause);
    }

    /// The trace has ended: takes the heaviest rows.
    pub fn source_ends(&mut self, stacks: &Stacks) {
        let mut rows = self.weights.source_ends();
        rows.sort_by_key(|row| std::cmp::Reverse(row.sum.ns));
        let room = ROWS.saturating_sub(self.flame.len());
        self.left_out += rows.len().saturating_sub(room);
        rows.truncate(room);
        for row in rows {
            let function = self.weights.function(row.function).to_owned();
            let stack = self.number(row.stack, stacks);
            let (ns, gpu_ns) = (row.sum.ns, row.sum.gpu_ns);
            self.flame.push(json!([stack, function, ns, gpu_ns, row.sum.bytes, row.sum.calls]));
        }
    }

    /// The stacks of the next trace have the same numbers.
    pub fn next_source(&mut self) {
        self.by_site.clear();
        self.by_stack.clear();
    }

    /// The number on the page of a stack of the trace; none if it was not kept.
    pub fn number(&mut self, stack: u64, stacks: &Stacks) -> Option<usize> {
        if let Some(known) = self.by_stack.get(&stack) {
            return *known;
        }
        let known = stacks.frames.stack(stack).filter(|known| !known.frames.is_empty());
        let fits = self.stacks.len() < STACKS;
        let known = known.filter(|known| fits && self.frames_left.take(known.frames.len()));
        let number = known.map(|known| {
            let frames = known.frames.iter().map(|site| self.frame(*site, stacks)).collect();
            self.stacks.push((frames, known.cut));
            self.stacks.len() - 1
        });
        self.by_stack.insert(stack, number);
        number
    }

    fn frame(&mut self, site: Site, stacks: &Stacks) -> usize {
        if let Some(known) = self.by_site.get(&site) {
            return *known;
        }
        let text = stacks.text(site);
        let place = stacks.frame(site).map(place).unwrap_or_default();
        let number = self.frames.len();
        let fits = self.texts_left.take(text.len() + place.len());
        self.frames.push(if fits { [text, place] } else { ["(others)".to_owned(), String::new()] });
        self.by_site.insert(site, number);
        number
    }

    pub fn page(&self) -> Value {
        let stack = |(frames, cut): &(Vec<usize>, bool)| json!({ "frames": frames, "cut": cut });
        json!({
            "frames": self.frames,
            "stacks": self.stacks.iter().map(stack).collect::<Value>(),
            "rows": self.flame,
            "left_out": self.left_out,
        })
    }
}

fn place(frame: &Frame) -> String {
    let at = |file: &str, line: Option<u32>| match line {
        Some(line) => format!("{file}:{line}"),
        None => file.to_owned(),
    };
    match frame {
        Frame::Python { file, line, .. } => at(file, *line),
        Frame::Native { file: Some(file), line, .. } => at(file, *line),
        Frame::Native { module, offset, .. } => format!("{module}+{offset:#x}"),
    }
}
