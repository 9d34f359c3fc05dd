//! The stacks of calls. In: what BPF read of a thread at a call. Out: a line for each distinct stack, and its number for
//! the call. Asks a helper process for native functions, and hands BPF the rules by which it unwinds such a stack by
//! itself the next time. Not here: how frames are named and put in order (stacks).

use std::time::{Duration, Instant};

use super::decode::{CodePart, Frames, Item, Unwind, What};
use crate::files::{Ask, Files, Found, Side};
use crate::probe::RuleTable;
use crate::stacks::native::{Frame, Registers, Stack};
use crate::stacks::{self, Table};
use gpurec_trace::Body;
use gpurec_trace::hash::Map;

/// How long to wait for an answer: a helper process may have to read the symbols of a large library. All waits together
/// stay below a part of the recording.
const PATIENCE: Duration = Duration::from_millis(500);
const SHARE: u32 = 4;
/// The most addresses whose functions are remembered.
const MOST_ADDRESSES: usize = 256 << 10;
/// The most threads whose stack items are awaited. A few are at one time; the others were lost.
const MOST_WAITING: usize = 4096;

pub struct CallStacks {
    pub table: Table,
    side: Side,
    /// Where BPF looks for how to unwind.
    rules: Option<RuleTable>,
    /// By seed and return address.
    functions: Map<(u64, u64), Vec<Frame>>,
    /// For a thread: the return addresses beyond those that BPF found, and whether outer ones are missing.
    unwound: Map<u32, (Vec<u64>, bool)>,
    began: Instant,
    waited: Duration,
    /// Number of native frames without an answer about them.
    pub unnamed: u64,
}

impl CallStacks {
    pub fn new(files: Option<Files>, rules: Option<RuleTable>) -> CallStacks {
        CallStacks {
            table: Table::default(),
            side: Side::new(files),
            rules,
            functions: Map::default(),
            unwound: Map::default(),
            began: Instant::now(),
            waited: Duration::ZERO,
            unnamed: 0,
        }
    }

    /// Returns the line of a stack that is new.
    pub fn add(&mut self, item: &Item) -> Option<Body<'static>> {
        match &item.what {
            What::Code(part) => self.table.add(&function(part)),
            What::Unwind(unwind) => self.unwind(item.tid, unwind),
            What::Stack { pid, key, seed, frames } => {
                return self.stack(*pid, item.tid, *key, *seed, frames);
            }
            _ => {}
        }
        None
    }

    /// Unwinds a copy of the thread's stack. Its stack item comes next.
    fn unwind(&mut self, tid: u32, from: &Unwind) {
        let registers = Registers { ip: from.ip, sp: from.sp, bp: from.bp, others: None };
        let stack = Stack { registers, base: from.sp, bytes: from.bytes.to_vec(), replaced: Vec::new() };
        let found = self.ask(&Ask::Unwind { pid: from.pid, stack: Box::new(stack) });
        let Some(Found::Unwound(unwound)) = found else { return };
        let mut addresses = Vec::new();
        for call in unwound.calls {
            if let Some(rules) = &self.rules {
                rules.learn(from.seed, call.address, call.shortcut);
            }
            self.remember(from.seed, call.address, call.frames);
            addresses.push(call.address);
        }
        // BPF has the first.
        addresses.drain(..1.min(addresses.len()));
        if self.unwound.len() >= MOST_WAITING {
            self.unwound.clear();
        }
        self.unwound.insert(tid, (addresses, unwound.cut.is_some()));
    }

    fn stack(&mut self, pid: u32, tid: u32, key: u64, seed: u64, frames: &Frames) -> Option<Body<'static>> {
        let unwound = self.unwound.remove(&tid);
        if self.table.knows(key) {
            return None;
        }
        let mut addresses = frames.native.clone();
        let (outer, mut cut) = unwound.unwrap_or((Vec::new(), frames.is_copied));
        addresses.extend(outer);
        cut |= frames.cut;
        self.name(pid, seed, &addresses);
        let unnamed = Frame::default();
        let calls: Vec<Vec<Frame>> = addresses
            .iter()
            .map(|address| match self.functions.get(&(seed, *address)) {
                Some(known) => known.clone(),
                None => vec![Frame { offset: *address, ..unnamed.clone() }],
            })
            .collect();
        let frames = stacks::Frames { calls: &calls, python: &frames.python, cut };
        self.table.stack(pid, key, &frames).map(Body::Stack)
    }

    /// Asks for the functions of addresses that are not known yet.
    fn name(&mut self, pid: u32, seed: u64, addresses: &[u64]) {
        let new = addresses.iter().filter(|address| !self.functions.contains_key(&(seed, **address)));
        let new: Vec<u64> = new.copied().collect();
        if new.is_empty() {
            return;
        }
        match self.ask(&Ask::Frames { pid, addresses: new.clone() }) {
            Some(Found::Frames(all)) => {
                new.iter().zip(all).for_each(|(address, frames)| self.remember(seed, *address, frames));
            }
            _ => self.unnamed += new.len() as u64,
        }
    }

    fn remember(&mut self, seed: u64, address: u64, frames: Vec<Frame>) {
        if self.functions.len() >= MOST_ADDRESSES {
            self.functions.clear();
        }
        self.functions.insert((seed, address), frames);
    }

    fn ask(&mut self, ask: &Ask) -> Option<Found> {
        let now = Instant::now();
        let may_wait = self.waited < PATIENCE * 4 + now.duration_since(self.began) / SHARE;
        let found = self.side.ask(ask, if may_wait { PATIENCE } else { Duration::ZERO });
        self.waited += now.elapsed();
        found
    }
}

fn function(part: &CodePart) -> stacks::CodePart<'_> {
    stacks::CodePart {
        code: part.code,
        version: part.version,
        first_line: part.first_line,
        first_traceable: part.first_traceable,
        name: (&part.name, part.name_state),
        file: (&part.file, part.file_state),
        lines: part.lines,
        at: part.at,
        part: &part.part,
    }
}
