//! Call stacks: which stack a call was made from, and what the calls of each stack took.
//!
//! In: the lines of a trace, in order. Out: for each open call, and for the one that ended last, its stack and its call
//! site; sums by stack and role. A call inside one with a stack has that one's. Memory is bounded for any trace
//! (`frames`, `MOST_OPEN`, `MOST_SUMS`). A trace without stacks costs nothing beyond a look at each line's type.

mod frames;
mod role;
mod sums;
#[cfg(test)]
pub mod tests;

use std::collections::BTreeMap;

use crate::recent::{Recent, announces};
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::MOST_OPEN;
use gpurec_trace::hash::Map;
use gpurec_trace::{Begin, Block, Body, CALL_STACKS, End, Finish, Frame, Gpu, Line, Memory, Op};

pub use frames::{Frames, Known, Site, call_site};
pub use role::{CallRole, Weight};
pub use sums::{Places, RoleFigures, StackFigures, StackRow, Sum, Sums};

#[derive(Default)]
pub struct Stacks {
    pub frames: Frames,
    pub sums: Sums,
    open: Map<u64, Open>,
    /// The call that ended last: lines about its consequences follow right after its end.
    last: Option<(u64, Open)>,
    /// The stacks of the calls whose work the GPU may still report, and the role of each.
    submitted: Recent<(u64, CallRole)>,
    follows_gpu: bool,
    pub totals: Totals,
    /// Stacks that found no space in a ring.
    pub lost: u64,
    pub recorder: Gaps,
}

/// What only the recorder knows: calls whose stack it did not keep, and native frames whose function it did not learn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    pub missing: u64,
    pub unnamed: u64,
}

impl Gaps {
    /// As the `end` line has them.
    fn of(finish: &Finish) -> Gaps {
        let of = |key: &str| finish.summary["stacks"][key].as_u64().unwrap_or(0);
        Gaps { missing: of("missing"), unnamed: of("unnamed") }
    }
}

/// A call site of any trace: numbers of frames are of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file or the module.
    pub file: String,
    pub function: String,
    pub line: Option<u32>,
    /// As it is shown.
    pub text: String,
}

impl Place {
    fn of(frame: &Frame) -> Place {
        let (file, function, line) = match frame {
            Frame::Python { function, file, line } => (file.as_ref(), function.as_ref(), *line),
            Frame::Native { function, module, file, line, .. } => {
                (file.as_deref().unwrap_or(module), function.as_deref().unwrap_or_default(), *line)
            }
        };
        Place { file: file.to_owned(), function: function.to_owned(), line, text: frame.text() }
    }
}

/// What was seen, whether its stack was kept or not.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Calls that bear the number of a stack.
    pub calls: u64,
    /// Calls that were not followed, because too many were open.
    pub unfollowed: u64,
}

/// An open call with a stack, its own or that of a call around it.
#[derive(Clone, Copy)]
struct Open {
    stack: u64,
    ts_ns: u64,
    /// The roles of the call and of those around it.
    roles: u16,
    /// The role in which it counts: none if a call around it has the same.
    counts: Option<CallRole>,
}

impl Stacks {
    #[inline]
    pub fn line(&mut self, line: &Line) {
        self.follows_gpu = self.follows_gpu || announces(line);
        match &line.body {
            Body::Begin(begin) if begin.stack.is_some() || !self.open.is_empty() => self.begin(line, begin),
            Body::End(end) if !self.open.is_empty() => self.end(end),
            Body::Memory(memory) if self.last.is_some() => {
                let role = if memory.op == Op::Alloc { CallRole::Alloc } else { CallRole::Free };
                if let Some(begin) = memory.begin {
                    self.moved(begin, role, memory.size.unwrap_or(0));
                }
            }
            Body::Transfer(transfer) if self.last.is_some() => {
                let role = if transfer.direction == "set" { CallRole::Set } else { CallRole::Copy };
                self.moved(transfer.begin, role, transfer.size);
            }
            Body::Block(block) => self.block(block),
            Body::Gpu(gpu) => {
                if let Some((stack, role)) = gpu.begin.and_then(|begin| self.submitted.get(begin)) {
                    self.sums.add(*stack, *role, Sum { gpu_ns: gpu.duration_ns, ..Sum::default() });
                }
            }
            Body::Stack(stack) => self.frames.add(stack),
            Body::Lost(lost) => {
                let count = lost.by_probe.get(CALL_STACKS).copied().unwrap_or(0);
                self.lost = self.lost.saturating_add(count);
            }
            Body::Finish(finish) => self.recorder = Gaps::of(finish),
            _ => {}
        }
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let around = begin.parent.and_then(|parent| self.open.get(&parent));
        let Some(stack) = begin.stack.or(around.map(|around| around.stack)) else { return };
        let around = around.map_or(0, |around| around.roles);
        let role = CallRole::of(&FunctionTraits::of(&begin.name));
        self.totals.calls += u64::from(begin.stack.is_some());
        if self.follows_gpu && role.submits() {
            self.submitted.push(line.event_id, (stack, role));
        }
        if self.open.len() >= MOST_OPEN {
            self.totals.unfollowed += 1;
            return;
        }
        let counts = (around & role.bit() == 0 && (around == 0 || role != CallRole::Other)).then_some(role);
        let open = Open { stack, ts_ns: line.ts_ns, roles: around | role.bit(), counts };
        self.open.insert(line.event_id, open);
    }

    fn end(&mut self, end: &End) {
        let Some(open) = self.open.remove(&end.begin) else { return };
        if let Some(role) = open.counts {
            self.sums.add(open.stack, role, Sum::call(end.duration_ns.unwrap_or(0)));
        }
        self.last = Some((end.begin, open));
    }

    /// The call will not end: its process ended `ns` after it began.
    pub fn settle(&mut self, id: u64, ns: u64) {
        if let Some(open) = self.open.remove(&id)
            && let Some(role) = open.counts
        {
            self.sums.add(open.stack, role, Sum { unfinished: 1, ..Sum::call(ns) });
        }
    }

    fn moved(&mut self, begin: u64, role: CallRole, bytes: u64) {
        if let Some(open) = self.of(begin) {
            self.sums.add(open.stack, role, Sum { bytes, ..Sum::default() });
        }
    }

    fn block(&mut self, block: &Block) {
        let Some(stack) = block.stack.or_else(|| self.of(block.begin?).map(|open| open.stack)) else {
            return;
        };
        if block.op == Op::Alloc {
            let bytes = block.size.unwrap_or(0);
            self.sums.add(stack, CallRole::Block, Sum { calls: 1, bytes, ..Sum::default() });
        }
    }

    fn of(&self, begin: u64) -> Option<Open> {
        let last = self.last.filter(|(last, _)| *last == begin).map(|(_, open)| open);
        last.or_else(|| self.open.get(&begin).copied())
    }

    /// The stack of a call that is open, or that ended last.
    pub fn stack_of(&self, begin: u64) -> Option<u64> {
        Some(self.of(begin)?.stack)
    }

    /// The stack from which some GPU work was submitted.
    pub fn stack_of_work(&self, work: &Gpu) -> Option<u64> {
        self.submitted.get(work.begin?).map(|(stack, _)| *stack)
    }

    /// The call site of such a call.
    pub fn site_of(&self, begin: u64) -> Option<Site> {
        if self.last.is_none() && self.open.is_empty() {
            return None;
        }
        self.site(self.stack_of(begin)?)
    }

    /// The call site of a stack.
    pub fn site(&self, stack: u64) -> Option<Site> {
        self.frames.stack(stack)?.site
    }

    /// The call site of a block.
    pub fn site_of_block(&self, block: &Block) -> Option<Site> {
        self.site(block.stack.or_else(|| self.stack_of(block.begin?))?)
    }

    /// The call site of an allocation or a free, whose call ended last or is not in the trace.
    pub fn site_of_memory(&self, memory: &Memory) -> Option<Site> {
        match memory.begin {
            Some(begin) => self.site_of(begin),
            None => self.site(memory.stack?),
        }
    }

    /// `train.py:88 load_batch`
    pub fn text(&self, site: Site) -> String {
        self.frames.text(site)
    }

    pub fn frame(&self, site: Site) -> Option<&Frame<'static>> {
        self.frames.frame(site)
    }

    /// The sums with those of unfinished calls, whose time so far `so_far` gives by event_id and begin.
    pub fn with_unfinished(&self, so_far: impl Fn(u64, u64) -> Option<u64>) -> Sums {
        let mut sums = self.sums.clone();
        for (id, open) in &self.open {
            if let (Some(role), Some(ns)) = (open.counts, so_far(*id, open.ts_ns)) {
                sums.add(open.stack, role, Sum { unfinished: 1, ..Sum::call(ns) });
            }
        }
        sums
    }

    /// The sums by role and call site, if every stack was kept.
    pub fn by_site(&self) -> Option<BTreeMap<(CallRole, Place), Sum>> {
        if self.is_empty() || self.frames.left_out > 0 || !self.sums.others.is_empty() {
            return None;
        }
        let mut sites: BTreeMap<(CallRole, Place), Sum> = BTreeMap::new();
        for ((stack, role), sum) in &self.sums.by_stack {
            if let Some(frame) = self.site(*stack).and_then(|site| self.frame(site)) {
                sites.entry((*role, Place::of(frame))).or_default().add(*sum);
            }
        }
        Some(sites)
    }

    pub fn is_empty(&self) -> bool {
        self.totals.calls == 0 && self.frames.count() == 0
    }
}
