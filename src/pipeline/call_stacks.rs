//! The stacks of calls. In: what BPF read of a thread at a call, and where processes have their code. Out: a line for
//! each distinct stack, and its number for the call. Asks a helper process for native functions, and hands BPF the rules
//! by which it unwinds such a stack by itself the next time. Not here: how frames are named and put in order (stacks).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::decode::{CodePart, Frames, Item, Unwind, What};
use crate::files::{Ask, Found, Side};
use crate::probe::RuleTable;
use crate::stacks::native::{Frame, Registers, Stack};
use crate::stacks::{self, Mapped, MappedFile, Mappings, Table};
use gpurec_trace::Body;
use gpurec_trace::bytes::u64_at;
use gpurec_trace::hash::Map;

/// How long to wait for an answer: a helper process may have to read the symbols of a large library. All waits together
/// stay below a part of the recording.
const PATIENCE: Duration = Duration::from_millis(500);
const SHARE: u32 = 4;
/// The most addresses whose functions are remembered.
const MOST_ADDRESSES: usize = 256 << 10;
/// The most threads whose stack items are awaited. A few are at one time; the others were lost.
const MOST_WAITING: usize = 4096;
/// The most files that are remembered as open.
const MOST_FILES: usize = 64 << 10;

pub struct CallStacks {
    pub table: Table,
    side: Side,
    /// Where BPF looks for how to unwind.
    rules: Option<RuleTable>,
    mappings: Mappings,
    /// BPF reports mappings.
    has_reports: bool,
    /// Files that the helper process has opened.
    opened: HashSet<MappedFile>,
    functions: Map<Code, Vec<Frame>>,
    /// For a thread: the return addresses beyond those that BPF found, and whether outer ones are missing.
    unwound: Map<u32, (Vec<u64>, bool)>,
    began: Instant,
    waited: Duration,
    /// Number of native frames without an answer about them.
    pub unnamed: u64,
}

/// What a return address is.
#[derive(PartialEq, Eq, Hash)]
enum Code {
    /// A place in a file.
    File(MappedFile, u64),
    /// By the seed of the process's mappings.
    Address(u64, u64),
}

impl CallStacks {
    /// `has_reports`: BPF reports what recorded processes map.
    pub fn new(side: Side, rules: Option<RuleTable>, has_reports: bool) -> CallStacks {
        CallStacks {
            table: Table::default(),
            side,
            rules,
            mappings: Mappings::default(),
            has_reports,
            opened: HashSet::new(),
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
            What::Mapped(mapped) => {
                self.meet(mapped.pid);
                self.mappings.add(mapped.pid, mapped.number, mapped.what);
            }
            What::Stack { pid, key, seed, frames } => {
                return self.stack(*pid, item.tid, *key, *seed, frames);
            }
            _ => {}
        }
        None
    }

    /// Keeps up with processes.
    pub fn follow(&mut self, what: &What) {
        match what {
            What::Fork { pid, child } => self.mappings.fork(*pid, *child),
            What::Exec { pid, .. } => self.mappings.exec(*pid),
            What::Exit { pid, process: true, .. } => self.mappings.exit(*pid),
            _ => {}
        }
    }

    /// Has new files opened at once, before anything else of these processes: they may end soon.
    pub fn open(&mut self, mut all: Vec<(u32, Mapped)>) {
        all.retain(|(_, mapped)| !self.opened.contains(&mapped.file));
        if all.is_empty() {
            return;
        }
        if let Some(Found::Opened(opened)) = self.ask(&Ask::Mapped { all: all.clone() }) {
            if self.opened.len() >= MOST_FILES {
                self.opened.clear();
            }
            let opened = all.iter().zip(opened).filter(|(_, is_open)| *is_open);
            self.opened.extend(opened.map(|((_, mapped), _)| mapped.file));
        }
    }

    /// Learns what a process that was running before has mapped.
    fn meet(&mut self, pid: u32) {
        if self.has_reports
            && !self.mappings.knows(pid)
            && let Some(Found::Code(Some(list))) = self.ask(&Ask::Code { pid })
        {
            self.mappings.begin(pid, list);
        }
    }

    fn code(&self, pid: u32, seed: u64, address: u64) -> Code {
        // The call is in front of the address that it returns to.
        match self.mappings.at(pid, address.wrapping_sub(1)) {
            Some(mapped) => {
                Code::File(mapped.file, address.wrapping_sub(mapped.start).wrapping_add(mapped.offset))
            }
            None => Code::Address(seed, address),
        }
    }

    /// Unwinds a copy of the thread's stack. Its stack item comes next.
    fn unwind(&mut self, tid: u32, from: &Unwind) {
        // Of a stack whose own record was lost.
        self.unwound.remove(&tid);
        self.meet(from.pid);
        let registers = Registers { ip: from.ip, sp: from.sp, bp: from.bp, others: from.others };
        let stack = Stack { registers, base: from.sp, bytes: from.bytes.to_vec(), replaced: Vec::new() };
        // Any word may be a return address.
        let words =
            (0..from.bytes.len()).step_by(8).filter_map(|at| u64_at(&from.bytes, at)).chain([from.ip]);
        let mapped = self.mappings.around(from.pid, words.map(|word| word.wrapping_sub(1)));
        let found = self.ask(&Ask::Unwind { pid: from.pid, stack: Box::new(stack), mapped });
        let Some(Found::Unwound(unwound)) = found else { return };
        let mut addresses = Vec::new();
        for call in unwound.calls {
            if let Some(rules) = &self.rules {
                rules.learn(from.seed, call.address, call.shortcut);
            }
            let code = self.code(from.pid, from.seed, call.address);
            self.remember(code, call.frames);
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
        let unwound = self.unwound.remove(&tid).filter(|_| frames.is_copied);
        if self.table.knows(key) {
            return None;
        }
        self.meet(pid);
        let mut addresses = frames.native.clone();
        let (outer, mut cut) = unwound.unwrap_or((Vec::new(), frames.is_copied));
        addresses.extend(outer);
        cut |= frames.cut;
        self.name(pid, seed, &addresses);
        let unnamed = Frame::default();
        let calls: Vec<Vec<Frame>> = addresses
            .iter()
            .map(|address| match self.functions.get(&self.code(pid, seed, *address)) {
                Some(known) => known.clone(),
                None => vec![Frame { offset: *address, ..unnamed.clone() }],
            })
            .collect();
        let frames = stacks::Frames { calls: &calls, python: &frames.python, cut };
        self.table.stack(pid, key, &frames).map(Body::Stack)
    }

    /// Asks for the functions of addresses that are not known yet.
    fn name(&mut self, pid: u32, seed: u64, addresses: &[u64]) {
        let is_new = |address: &&u64| !self.functions.contains_key(&self.code(pid, seed, **address));
        let new: Vec<u64> = addresses.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return;
        }
        let mapped = self.mappings.around(pid, new.iter().map(|address| address.wrapping_sub(1)));
        match self.ask(&Ask::Frames { pid, addresses: new.clone(), mapped }) {
            Some(Found::Frames(all)) => {
                for (address, frames) in new.iter().zip(all) {
                    self.remember(self.code(pid, seed, *address), frames);
                }
            }
            _ => self.unnamed += new.len() as u64,
        }
    }

    fn remember(&mut self, code: Code, frames: Vec<Frame>) {
        // Of a file that could not be opened: the next process may have it still.
        if frames.iter().all(|frame| frame.module.is_none()) && matches!(code, Code::File(..)) {
            return;
        }
        if self.functions.len() >= MOST_ADDRESSES {
            self.functions.clear();
        }
        self.functions.insert(code, frames);
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
