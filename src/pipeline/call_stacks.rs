//! The stacks of calls. In: what BPF read of a thread at a call, and where processes have their code. Out: a line for
//! each distinct stack, and its number for the call. Asks a helper process for native functions, and hands BPF the rules
//! by which it unwinds such a stack by itself the next time. It never waits for the helper itself: it says that an item
//! is not ready, and the caller comes again with the same item. Not here: how frames are named and put in order (stacks).

use std::collections::HashSet;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use super::decode::{CodePart, Frames, Item, Unwind, What};
use crate::clock::monotonic_ns;
use crate::files::{Ask, Found, Side};
use crate::probe::RuleTable;
use crate::stacks::native::{self, Frame, Registers, Shortcut, Stack, Unwound};
use crate::stacks::{self, Mapped, MappedFile, Mappings, Table};
use gpurec_trace::Body;
use gpurec_trace::bytes::u64_at;
use gpurec_trace::hash::Map;

/// How long an item waits for an answer: a helper process may have to read the symbols of a large library. All waits
/// together stay below a part of the recording.
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
    /// Files that the helper process has opened, and those that it should open next.
    opened: HashSet<MappedFile>,
    to_open: Vec<(u32, Mapped)>,
    /// The request that the helper process works on.
    asked: Option<Asked>,
    functions: Map<Code, Known>,
    /// For a thread: the return addresses beyond those that BPF found, and whether outer ones are missing.
    unwound: Map<u32, (Vec<u64>, bool)>,
    began: Instant,
    waited: Duration,
    /// Number of native frames without an answer about them.
    pub unnamed: u64,
}

struct Asked {
    since: Instant,
    /// What it was asked to open. Empty: the request is of an item.
    opens: Vec<MappedFile>,
}

/// What a return address is.
#[derive(PartialEq, Eq, Hash)]
enum Code {
    /// A place in a file.
    File(MappedFile, u64),
    /// By the seed of the process's mappings.
    Address(u64, u64),
}

#[derive(Default)]
struct Known {
    /// Its function, after those that the compiler put into it.
    frames: Vec<Frame>,
    shortcut: Option<Shortcut>,
    /// When BPF last got the shortcut, and for which process: by its seed.
    taught: (u64, u64),
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
            to_open: Vec::new(),
            asked: None,
            functions: Map::default(),
            unwound: Map::default(),
            began: Instant::now(),
            waited: Duration::ZERO,
            unnamed: 0,
        }
    }

    /// Calls have stacks.
    pub fn is_on(&self) -> bool {
        self.rules.is_some()
    }

    /// Finds out what the item's line needs. The items before it have been added.
    pub fn prepare(&mut self, item: &Item) -> Poll<()> {
        match &item.what {
            What::Unwind(unwind) => self.unwind(item.ts, item.tid, unwind),
            What::Mapped(mapped) => self.meet(mapped.pid),
            What::Stack { pid, key, seed, frames } if !self.table.knows(*key) => {
                ready!(self.meet(*pid));
                let (addresses, _) = self.addresses(item.tid, frames);
                self.name(*pid, *seed, &addresses)
            }
            _ => Poll::Ready(()),
        }
    }

    /// Returns the line of a stack that is new. The item has been prepared.
    pub fn add(&mut self, item: &Item) -> Option<Body<'static>> {
        match &item.what {
            What::Code(part) => self.table.add(&function(part)),
            What::Mapped(mapped) => self.mappings.add(mapped.pid, mapped.number, mapped.what),
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
            What::Exec { pid, .. } => {
                self.mappings.exec(*pid);
                self.table.gone(*pid);
            }
            What::Exit { pid, process: true, .. } => {
                self.mappings.exit(*pid);
                self.table.gone(*pid);
            }
            _ => {}
        }
    }

    /// Has new files opened at once, before anything else of these processes: they may end soon.
    pub fn open(&mut self, all: Vec<(u32, Mapped)>) {
        let new = all.into_iter().filter(|(_, mapped)| !self.opened.contains(&mapped.file));
        let room = MOST_FILES.saturating_sub(self.to_open.len());
        self.to_open.extend(new.take(room));
        let _ = self.opening();
    }

    /// Sends what is to be opened, unless a request is under way. Ready: none is.
    fn opening(&mut self) -> Poll<()> {
        loop {
            if let Some(asked) = &self.asked {
                if asked.opens.is_empty() {
                    return Poll::Pending;
                }
                let Some(Found::Opened(opened)) = ready!(self.side.answer(Duration::ZERO)) else {
                    self.asked = None;
                    continue;
                };
                if self.opened.len() >= MOST_FILES {
                    self.opened.clear();
                }
                let opens = self.asked.take().map_or(Vec::new(), |asked| asked.opens);
                let opened = opens.into_iter().zip(opened).filter(|(_, is_open)| *is_open);
                self.opened.extend(opened.map(|(file, _)| file));
            }
            if self.to_open.is_empty() {
                return Poll::Ready(());
            }
            let all = std::mem::take(&mut self.to_open);
            let opens = all.iter().map(|(_, mapped)| mapped.file).collect();
            if self.side.send(&Ask::Mapped { all }) {
                self.asked = Some(Asked { since: Instant::now(), opens });
            }
        }
    }

    /// Learns what a process that was running before has mapped.
    fn meet(&mut self, pid: u32) -> Poll<()> {
        if self.has_reports
            && !self.mappings.knows(pid)
            && let Some(Found::Code(Some(list))) = ready!(self.ask(|_| Ask::Code { pid }))
        {
            self.mappings.begin(pid, list);
        }
        Poll::Ready(())
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
    fn unwind(&mut self, ts: u64, tid: u32, from: &Unwind) -> Poll<()> {
        // Of a stack whose own record was lost.
        self.unwound.remove(&tid);
        ready!(self.meet(from.pid));
        let registers = Registers { ip: from.ip, sp: from.sp, bp: from.bp, others: from.others };
        let stack = Stack { registers, base: from.sp, bytes: from.bytes.to_vec(), replaced: Vec::new() };
        let code = |address| self.code(from.pid, from.seed, address);
        let rule = |address| self.functions.get(&code(address)).and_then(|known| known.shortcut);
        // Until BPF has the rules it copies the same stacks again.
        let (addresses, cut) = match native::follow(&stack, rule) {
            Some((callers, cut)) => {
                [from.ip].iter().chain(&callers).for_each(|address| self.teach(from, *address, ts));
                (callers, cut)
            }
            None => match ready!(self.ask(|known| known.request_of(from, stack))) {
                Some(Found::Unwound(unwound)) => self.learn(from, unwound),
                _ => return Poll::Ready(()),
            },
        };
        if self.unwound.len() >= MOST_WAITING {
            self.unwound.clear();
        }
        self.unwound.insert(tid, (addresses, cut));
        Poll::Ready(())
    }

    fn request_of(&self, from: &Unwind, stack: Stack) -> Ask {
        // Any word may be a return address.
        let words =
            (0..from.bytes.len()).step_by(8).filter_map(|at| u64_at(&from.bytes, at)).chain([from.ip]);
        let mapped = self.mappings.around(from.pid, words.map(|word| word.wrapping_sub(1)));
        Ask::Unwind { pid: from.pid, stack: Box::new(stack), mapped }
    }

    /// The callers' return addresses, and whether outer ones are missing.
    fn learn(&mut self, from: &Unwind, unwound: Unwound) -> (Vec<u64>, bool) {
        let mut addresses = Vec::new();
        for call in unwound.calls {
            if let Some(rules) = &self.rules {
                rules.learn(from.seed, call.address, call.shortcut);
            }
            let code = self.code(from.pid, from.seed, call.address);
            let taught = (monotonic_ns(), from.seed);
            self.remember(code, Known { frames: call.frames, shortcut: Some(call.shortcut), taught });
            addresses.push(call.address);
        }
        // BPF has the first.
        addresses.drain(..1.min(addresses.len()));
        (addresses, unwound.cut.is_some())
    }

    /// Gives BPF a rule that was known, unless BPF got it after the stack was copied.
    fn teach(&mut self, from: &Unwind, address: u64, copied: u64) {
        let code = self.code(from.pid, from.seed, address);
        let Some(known) = self.functions.get_mut(&code) else { return };
        let (Some(rules), Some(shortcut)) = (&self.rules, known.shortcut) else { return };
        if known.taught.1 != from.seed || known.taught.0 < copied {
            rules.learn(from.seed, address, shortcut);
            known.taught = (monotonic_ns(), from.seed);
        }
    }

    /// The return addresses of a stack, and whether outer ones are missing.
    fn addresses(&self, tid: u32, frames: &Frames) -> (Vec<u64>, bool) {
        let mut addresses = frames.native.clone();
        let unwound = self.unwound.get(&tid).filter(|_| frames.is_copied);
        addresses.extend(unwound.iter().flat_map(|(outer, _)| outer));
        (addresses, frames.cut || unwound.map_or(frames.is_copied, |(_, cut)| *cut))
    }

    fn stack(&mut self, pid: u32, tid: u32, key: u64, seed: u64, frames: &Frames) -> Option<Body<'static>> {
        let (addresses, cut) = self.addresses(tid, frames);
        self.unwound.remove(&tid);
        if self.table.knows(key) {
            return None;
        }
        let unnamed = Frame::default();
        let calls: Vec<Vec<Frame>> = addresses
            .iter()
            .map(|address| match self.functions.get(&self.code(pid, seed, *address)) {
                Some(known) => known.frames.clone(),
                None => vec![Frame { offset: *address, ..unnamed.clone() }],
            })
            .collect();
        let frames = stacks::Frames { calls: &calls, python: &frames.python, cut };
        self.table.stack(pid, key, &frames).map(Body::Stack)
    }

    /// Asks for the functions of addresses that are not known yet.
    fn name(&mut self, pid: u32, seed: u64, addresses: &[u64]) -> Poll<()> {
        let is_new = |address: &&u64| !self.functions.contains_key(&self.code(pid, seed, **address));
        let new: Vec<u64> = addresses.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return Poll::Ready(());
        }
        let found = ready!(self.ask(|known| {
            let mapped = known.mappings.around(pid, new.iter().map(|address| address.wrapping_sub(1)));
            Ask::Frames { pid, addresses: new.clone(), mapped }
        }));
        match found {
            Some(Found::Frames(all)) => {
                for (address, frames) in new.iter().zip(all) {
                    self.remember(self.code(pid, seed, *address), Known { frames, ..Known::default() });
                }
            }
            _ => self.unnamed += new.len() as u64,
        }
        Poll::Ready(())
    }

    fn remember(&mut self, code: Code, known: Known) {
        // Of a file that could not be opened: the next process may have it still.
        if known.frames.iter().all(|frame| frame.module.is_none()) && matches!(code, Code::File(..)) {
            return;
        }
        if self.functions.len() >= MOST_ADDRESSES {
            self.functions.clear();
        }
        self.functions.insert(code, known);
    }

    /// The answer to an item's request, which is sent the first time. None: there is none in time.
    fn ask(&mut self, request: impl FnOnce(&Self) -> Ask) -> Poll<Option<Found>> {
        if self.asked.as_ref().is_none_or(|asked| !asked.opens.is_empty()) {
            if self.opening().is_pending() {
                return if self.is_late() { Poll::Ready(None) } else { Poll::Pending };
            }
            if !self.side.send(&request(self)) {
                return Poll::Ready(None);
            }
            self.asked = Some(Asked { since: Instant::now(), opens: Vec::new() });
        }
        let found = self.side.answer(Duration::ZERO);
        if found.is_pending() && !self.is_late() {
            return Poll::Pending;
        }
        self.waited += self.asked.take().map_or(Duration::ZERO, |asked| asked.since.elapsed());
        Poll::Ready(match found {
            Poll::Ready(found) => found,
            Poll::Pending => None,
        })
    }

    fn is_late(&self) -> bool {
        let may_wait = self.waited < PATIENCE * 4 + self.began.elapsed() / SHARE;
        self.asked.as_ref().is_some_and(|asked| !may_wait || asked.since.elapsed() >= PATIENCE)
    }

    /// Waits until something arrives from the helper process or `patience` is over.
    pub fn wait(&self, patience: Duration) {
        self.side.wait(patience);
    }
}

fn function(part: &CodePart) -> stacks::CodePart<'_> {
    stacks::CodePart {
        pid: part.pid,
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
