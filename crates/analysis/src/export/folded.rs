//! Folded stacks for flamegraph.pl and inferno: `outermost;…;innermost;function WEIGHT`, a line for each stack and
//! function. In: calls with stacks. Out: text. The weight is the time on the host in microseconds, the number of calls,
//! bytes, or the time on the GPU in microseconds (`--by`). Frames are written as py-spy writes them. Equal lines of
//! several traces stand apart; readers sum them.

use super::sink::{At, Cause, Links, Sink, Source};
use super::weights::{Held, Weights, no_gpu, no_stacks};
use crate::stacks::{Stacks, Weight};
use gpurec_trace::{Frame, Line, last_part};

#[derive(Default)]
pub struct Folded {
    out: Vec<u8>,
    weights: Weights,
    by: Weight,
}

impl Folded {
    pub fn new(by: Weight) -> Folded {
        Folded { by, ..Folded::default() }
    }

    fn push(&mut self, text: &str) {
        // A semicolon separates frames, and a line is a stack.
        let odd = |c: char| {
            if c == ';' {
                ':'
            } else if c.is_control() {
                '?'
            } else {
                c
            }
        };
        let mut buffer = [0; 4];
        for c in text.chars().map(odd) {
            self.out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
        }
    }
}

/// `load_batch (train.py:88)`
fn text(frame: &Frame) -> String {
    match frame {
        Frame::Python { function, file, line: Some(line) } => {
            format!("{function} ({}:{line})", last_part(file))
        }
        Frame::Python { function, file, line: None } => format!("{function} ({})", last_part(file)),
        Frame::Native { function: Some(function), .. } => function.to_string(),
        Frame::Native { module, offset, .. } => format!("[{}+{offset:#x}]", last_part(module)),
    }
}

impl Sink for Folded {
    type CallState = Held;

    fn source(&mut self, _source: &Source) {}

    fn has_times(&self) -> bool {
        false
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn begin(&mut self, at: At, line: &Line, _: Option<u32>, _: Links, _: &Stacks) -> Held {
        self.weights.begin(at, line)
    }

    fn end(&mut self, _: At, line: &Line, held: Held) {
        self.weights.end(line, held);
    }

    fn close(&mut self, at: At, held: Held, cause: Cause) {
        self.weights.close(at, held, cause);
    }

    fn mark(&mut self, _: At, line: &Line, _: Option<u64>, _: Option<u32>, _: &Stacks) {
        self.weights.mark(line);
    }

    fn source_ends(&mut self, stacks: &Stacks) -> Option<String> {
        let lacks_gpu = self.by == Weight::Gpu && !self.weights.follows_gpu();
        for row in self.weights.source_ends() {
            let weight = match self.by {
                Weight::Time => row.sum.ns.div_ceil(1000),
                Weight::Gpu => row.sum.gpu_ns.div_ceil(1000),
                by => row.sum.weight(by),
            };
            if weight == 0 {
                continue;
            }
            let known = stacks.frames.stack(row.stack);
            if known.is_none_or(|known| known.cut) {
                self.push("[frames missing]");
                self.out.push(b';');
            }
            for frame in known.into_iter().flat_map(|known| known.frames.iter().rev()) {
                self.push(&stacks.frame(*frame).map(text).unwrap_or_default());
                self.out.push(b';');
            }
            let function = self.weights.function(row.function).to_owned();
            self.push(&function);
            self.out.extend_from_slice(format!(" {weight}\n").as_bytes());
        }
        no_stacks(stacks).or_else(|| lacks_gpu.then(no_gpu))
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
