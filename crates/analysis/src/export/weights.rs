//! What the calls of each stack and function took, for the formats that are profiles and no time lines.
//!
//! In: begins, ends and consequences of calls, in order. Out: rows of a stack, a function and sums. A call counts if it
//! has a stack of its own; the bytes that calls inside it moved are its bytes. Not here: how a profile is written.

use super::sink::{At, Cause};
use crate::recent::{Recent, announces};
use crate::stacks::{Stacks, Sum};
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::{Entries, LONGEST_NAME, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Line};

/// Limits on functions and on rows. Those beyond share one.
const FUNCTIONS: usize = 65_536;
const NAMES: usize = 16 << 20;
const ROWS: usize = 1 << 19;

#[derive(Default)]
pub struct Weights {
    functions: Entries<String, FUNCTIONS, NAMES>,
    rows: Vec<Row>,
    by_key: Map<(u64, usize), usize>,
    /// The rows of open calls; the walk bounds their number.
    open: Map<u64, usize>,
    /// The call that ended last: lines about its consequences follow.
    last: Option<(u64, usize)>,
    /// The rows of calls whose work the GPU may still report.
    submitted: Recent<usize>,
    follows_gpu: bool,
}

/// The calls of one function from one stack.
pub struct Row {
    pub stack: u64,
    pub function: usize,
    pub sum: Sum,
}

/// What is kept of an open call.
#[derive(Default)]
pub struct Held {
    event_id: u64,
    /// None: it has no stack, or shares that of the call around it.
    own: Option<usize>,
    since_ns: u64,
}

impl Weights {
    pub fn begin(&mut self, at: At, line: &Line) -> Held {
        let mut held = Held { event_id: line.event_id, own: None, since_ns: at.ts_ns };
        let Body::Begin(begin) = &line.body else { return held };
        if let Some(stack) = begin.stack {
            let new = |_| short(&begin.name, LONGEST_NAME);
            let function = self.functions.number(Some(&begin.name), new, |_, _| true);
            held.own = Some(self.row(stack, function));
        }
        let around = || begin.parent.and_then(|parent| self.open.get(&parent).copied());
        self.follows_gpu = self.follows_gpu || announces(line);
        if let Some(row) = held.own.or_else(around) {
            self.open.insert(line.event_id, row);
            if self.follows_gpu && FunctionTraits::of(&begin.name).submits() {
                self.submitted.push(line.event_id, row);
            }
        }
        held
    }

    fn row(&mut self, stack: u64, function: usize) -> usize {
        // The last row takes what is beyond the limit; its stack is of no line.
        let is_full = self.rows.len() >= ROWS && !self.by_key.contains_key(&(stack, function));
        let key = if is_full { (u64::MAX, usize::MAX) } else { (stack, function) };
        *self.by_key.entry(key).or_insert_with(|| {
            self.rows.push(Row { stack: key.0, function: key.1, sum: Sum::default() });
            self.rows.len() - 1
        })
    }

    pub fn end(&mut self, line: &Line, held: Held) {
        let ns = if let Body::End(end) = &line.body { end.duration_ns.unwrap_or(0) } else { 0 };
        self.ended(held, Sum::call(ns));
    }

    /// A call without an end counts with its time until its process or the recording ended, if that is why.
    pub fn close(&mut self, at: At, held: Held, cause: Cause) {
        let so_far = if cause == Cause::Missing { 0 } else { at.ts_ns.saturating_sub(held.since_ns) };
        self.ended(held, Sum { unfinished: 1, ..Sum::call(so_far) });
    }

    fn ended(&mut self, held: Held, sum: Sum) {
        if let Some(row) = self.open.remove(&held.event_id) {
            self.last = Some((held.event_id, row));
        }
        if let Some(row) = held.own.and_then(|row| self.rows.get_mut(row)) {
            row.sum.add(sum);
        }
    }

    pub fn mark(&mut self, line: &Line) {
        self.follows_gpu = self.follows_gpu || announces(line);
        if let Body::Gpu(gpu) = &line.body
            && let Some(row) = gpu.begin.and_then(|begin| self.submitted.get(begin))
            && let Some(row) = self.rows.get_mut(*row)
        {
            row.sum.add(Sum { gpu_ns: gpu.duration_ns, ..Sum::default() });
        }
        let (begin, bytes) = match &line.body {
            Body::Memory(memory) => (memory.begin, memory.size.unwrap_or(0)),
            Body::Transfer(transfer) => (Some(transfer.begin), transfer.size),
            _ => return,
        };
        let Some(begin) = begin else { return };
        let last = self.last.filter(|(last, _)| *last == begin).map(|(_, row)| row);
        if let Some(row) =
            last.or_else(|| self.open.get(&begin).copied()).and_then(|row| self.rows.get_mut(row))
        {
            row.sum.add(Sum { bytes, ..Sum::default() });
        }
    }

    /// True if GPU work was recorded.
    pub fn follows_gpu(&self) -> bool {
        self.follows_gpu
    }

    /// The rows of the trace that ends, in the order in which they first came.
    pub fn source_ends(&mut self) -> Vec<Row> {
        self.by_key.clear();
        self.open.clear();
        self.last = None;
        (self.submitted, self.follows_gpu) = (Recent::default(), false);
        std::mem::take(&mut self.rows)
    }

    pub fn function(&self, number: usize) -> &str {
        self.functions.get(number).map_or("(others)", |name| name)
    }
}

/// The note for a trace from which no profile can be made.
pub fn no_stacks(stacks: &Stacks) -> Option<String> {
    stacks.is_empty().then(|| nothing_of_it("call stacks", "--stacks"))
}

/// The note for a trace that has no GPU time for a profile.
pub fn no_gpu() -> String {
    nothing_of_it("GPU work", "--gpu")
}

fn nothing_of_it(missing: &str, option: &str) -> String {
    format!("it has no {missing}, so the profile has nothing of it: record with {option}")
}
