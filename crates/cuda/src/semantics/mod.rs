//! What calls mean: which kernel a launch starts, which memory a process holds, what a copy moves and between which
//! kinds of memory.
//!
//! In: calls as they begin and end, in order of time, with what was captured of them. Out: the keys that a launch's
//! line has besides its arguments, and `memory`, `transfer` and `collective` lines: one for each effect, at the innermost
//! level that shows it, only after success. Not here: I/O, a clock, guesses written as facts. A line leaves out what is not known.

mod args;
mod begin;
mod collectives;
mod communicators;
mod context;
mod copies;
mod effects;
mod kernel;
mod ledger;
mod size;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::raw::{Entry, Exit};
use crate::traits::{Alloc, Context, FunctionTraits, Graph, Kind, Space, Stream, Table};
use crate::{Api, Signature};
use gpurec_trace as trace;
use gpurec_trace::bounds::{MOST_LIVE, Room, Share};
use gpurec_trace::hash::Map;

use args::{In, Out};
use collectives::NcclCall;
use communicators::Communicators;
use context::{At, ContextCoverage, Contexts, CurrentContexts};
use copies::Movement;
use gpurec_trace::Incomplete;
use kernel::{KernelName, KernelNames, Kernels};
use ledger::Ledger;
use size::RequestedSize;

pub use kernel::{Names, Stub, readable as kernel_name};

/// What the calls of one function do, looked up once per probe; a function without a role costs nothing.
#[derive(Debug)]
pub struct Role {
    /// The call's name in the trace.
    pub name: Box<str>,
    pub kind: Kind,
    runtime: bool,
}

impl Role {
    pub fn of(name: &str) -> Option<Role> {
        let traits = FunctionTraits::of(name);
        Some(Role { name: name.into(), kind: traits.kind?, runtime: traits.api == Api::Runtime })
    }
}

/// A call, identified as the recorder identifies it.
#[derive(Clone, Copy, Debug)]
pub struct CallRef {
    pub pid: u32,
    pub tid: u32,
    /// The event_id of its `Begin`.
    pub id: u64,
}

/// What follows from a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Memory(trace::Memory<'static>),
    Transfer(trace::Transfer<'static>),
    Collective(Box<trace::Collective<'static>>),
}

/// The keys, besides the arguments, of the line that begins a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeginKeys {
    kernel: Option<Arc<str>>,
    launch: Option<trace::Launch<'static>>,
}

pub struct Meaning {
    processes: Map<u32, Process>,
    shown: KernelNames,
    names: Box<dyn Names + Send>,
    rooms: Rooms,
    /// The recording does not see every call.
    blind: bool,
    /// The recording does not see every allocation and free.
    blind_to_memory: bool,
    /// Which calls that change a thread's current context or device the recording sees.
    seen: ContextCoverage,
    /// The recording does not see every call of NCCL.
    blind_to_nccl: bool,
    unnamed: u64,
}

/// What all processes share.
struct Rooms {
    /// Shared by all ledgers, in entries.
    live: Room,
    /// Shared by all other tables, in bytes.
    tables: Room,
}

/// Bytes for handles of kernels, graphs and streams: room for two million.
const TABLES: usize = 64 << 20;
/// Bytes that one handle takes in its table.
const HANDLE: usize = 32;

struct Process {
    /// The process was seen from its beginning: what is not in the tables did not happen.
    whole: bool,
    /// The same of host memory that CUDA knows. A variable of a module may be of unknown size, but is no such memory.
    whole_host: bool,
    /// The process began with the recording, so everything it holds is known.
    begun: bool,
    ledger: Ledger,
    kernels: Kernels,
    contexts: Contexts,
    tables: Share,
    graphs: Graphs,
    communicators: Communicators,
    /// Streams in capture: their calls go into a graph and do nothing yet.
    capturing: Map<u64, ()>,
    threads: Threads,
}

/// The number of nodes of each graph, by handle.
#[derive(Default)]
struct Graphs {
    graphs: Map<u64, u64>,
    executables: Map<u64, u64>,
}

#[derive(Default)]
struct Thread {
    current: CurrentContexts,
    open: Vec<Open>,
    /// Open group calls of NCCL, and the number of the outermost.
    groups: u32,
    group: u64,
}

/// A call with a role that has not returned yet.
struct Open {
    id: u64,
    /// It is a call of the runtime.
    runtime: bool,
    saved: SavedState,
    /// Kernel of a runtime launch; the driver's launch inside it is of the same kernel.
    kernel: Option<Arc<KernelName>>,
    inner: InnerEffects,
}

/// Effects that calls inside this one have already reported.
#[derive(Clone, Copy, Default)]
struct InnerEffects {
    moved: bool,
    set: bool,
    node: bool,
    stream: bool,
    /// A context became current.
    switched: bool,
    /// A free of memory whose allocation was not seen.
    freed: bool,
    /// The space and size of an allocation.
    alloc: Option<(Space, Option<u64>)>,
    /// An operation of NCCL, or a new communicator.
    nccl: bool,
}

/// State from a call's beginning that its end needs.
enum SavedState {
    Nothing,
    Alloc {
        alloc: Alloc,
        /// In a box: without it every open call would be larger, and slower to move.
        asked: Box<RequestedSize>,
        ptr: Option<u64>,
        at: At,
    },
    Free {
        table: Table,
        ptr: u64,
        serial: u64,
    },
    /// Memory from before the recording, if the free succeeds.
    FreeEarlier {
        ptr: u64,
        space: Option<Space>,
    },
    Retain,
    Map {
        ptr: u64,
        size: u64,
        handle: u64,
    },
    Unmap {
        ptr: u64,
        size: u64,
    },
    Movement {
        moved: Vec<Movement>,
        is_set: bool,
        at: At,
    },
    Context(Context, u64),
    Stream(Stream, u64),
    /// The device of the pool that the call writes, if known.
    Pool(Option<i32>),
    Named(Arc<KernelName>),
    Alias(u64),
    Asked(u64),
    Graph(Graph, u64),
    Capture {
        stream: u64,
        begins: bool,
    },
    Global,
    Unseen {
        same: Option<u64>,
    },
    Nccl(Box<NcclCall>),
}

impl BeginKeys {
    pub fn is_launch(&self) -> bool {
        self.launch.is_some()
    }

    /// The launch keys of the line.
    pub fn launch(&self) -> Option<trace::Launch<'_>> {
        let kernel = self.kernel.as_deref().map(std::borrow::Cow::Borrowed);
        self.launch.as_ref().map(|launch| trace::Launch { kernel, ..launch.clone() })
    }
}

impl Meaning {
    pub fn new(names: Box<dyn Names + Send>) -> Meaning {
        let rooms = Rooms { live: Room::new(MOST_LIVE), tables: Room::new(TABLES) };
        let processes = Map::default();
        Meaning {
            processes,
            shown: KernelNames::default(),
            names,
            rooms,
            blind: false,
            blind_to_memory: false,
            seen: ContextCoverage::ALL,
            blind_to_nccl: false,
            unnamed: 0,
        }
    }

    /// The number of calls whose kernel might have had a name, had there been time to ask for it.
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Tables that were full: calls report less because of it.
    pub fn forgotten(&self) -> Vec<Incomplete> {
        let mut said = Vec::new();
        if self.rooms.live.refused() > 0 {
            let count = self.rooms.live.refused();
            said.push(Incomplete::ForgottenMemory { count, most: MOST_LIVE });
        }
        let names = self.shown.beyond + self.rooms.tables.refused() as u64;
        if names > 0 {
            said.push(Incomplete::ForgottenNames { count: names });
        }
        said
    }

    /// A call began.
    pub fn begin(
        &mut self,
        role: Option<&Role>,
        signature: Option<&Signature>,
        call: &CallRef,
        entry: &Entry,
    ) -> BeginKeys {
        let Some(role) = role else { return BeginKeys::default() };
        let Meaning { processes, shown, names, rooms, unnamed, seen, .. } = self;
        let process = processes.entry(call.pid).or_insert_with(|| Process::of_running(rooms));
        let args = In { signature, entry };
        let mut lookup = Lookup { shown, names: names.as_mut(), unnamed, pid: call.pid };
        let (noted, kernel) = process.noted(role, call, &args, *seen, &mut lookup);
        let saved = process.saved(role, call, &args, &mut lookup);
        let runtime = role.runtime;
        let is_outer = runtime && matches!(role.kind, Kind::Launch(_) | Kind::Graph(Graph::Launch));
        if !matches!(saved, SavedState::Nothing) || kernel.is_some() || is_outer {
            let open = &mut process.threads.get(call.tid).open;
            open.push(Open { id: call.id, saved, kernel, runtime, inner: InnerEffects::default() });
        }
        noted
    }

    /// Arguments that could not be read when the call began and were read at its return.
    pub fn late(
        &mut self,
        role: Option<&Role>,
        signature: Option<&Signature>,
        call: &CallRef,
        entry: &Entry,
    ) {
        let Some(Role { kind: Kind::Name(name), .. }) = role else { return };
        let Meaning { processes, shown, names, unnamed, .. } = self;
        let Some(process) = processes.get_mut(&call.pid) else { return };
        let mut lookup = Lookup { shown, names: names.as_mut(), unnamed, pid: call.pid };
        let saved = process.name_begun(*name, &In { signature, entry }, &mut lookup);
        if !matches!(saved, SavedState::Nothing) {
            let open = &mut process.threads.get(call.tid).open;
            open.retain(|open| open.id < call.id);
            open.push(Open {
                id: call.id,
                saved,
                kernel: None,
                runtime: false,
                inner: InnerEffects::default(),
            });
        }
    }

    /// A call returned; `status` is 0 if it succeeded or has none. Appends the effects to `out`.
    #[allow(clippy::too_many_arguments, reason = "the ends of a call, as the recorder has them")]
    pub fn end(
        &mut self,
        role: Option<&Role>,
        signature: Option<&Signature>,
        call: &CallRef,
        exit: &Exit,
        status: i32,
        duration_ns: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(role) = role else { return };
        let Meaning { processes, shown, names, unnamed, blind_to_memory, seen, .. } = self;
        let (blind_to_memory, seen) = (*blind_to_memory, *seen);
        let Some(process) = processes.get_mut(&call.pid) else { return };
        let Some(open) = process.close(call) else { return };
        if status != 0 {
            process.undo(&open, call.tid);
            return;
        }
        let lookup = Lookup { shown, names: names.as_mut(), unnamed, pid: call.pid };
        let mut ending =
            effects::Ending { process, lookup, call, role, duration_ns, blind_to_memory, seen, out };
        ending.end(open, &Out { signature, exit });
    }

    /// The call has no end: it was unwound, its end was lost, or its thread died.
    pub fn forget(&mut self, call: &CallRef) {
        if let Some(process) = self.processes.get_mut(&call.pid)
            && let Some(open) = process.close(call)
        {
            // It may have succeeded without a record of it.
            if matches!(open.saved, SavedState::Alloc { .. } | SavedState::Map { .. }) {
                process.missed();
            }
            process.undo(&open, call.tid);
        }
    }

    /// Some calls are not seen: a filter leaves them out, or records were lost. From now on the absence of a call
    /// proves nothing.
    pub fn calls_missing(&mut self) {
        self.blind = true;
        self.processes.values_mut().for_each(Process::missed);
    }

    /// Some allocations or frees are not seen.
    pub fn memory_missing(&mut self) {
        self.blind_to_memory = true;
        self.processes.values_mut().for_each(|process| process.begun = false);
    }

    /// The live bytes of a process in each of `Space::ALL`. None: gpurec has not seen all its allocations and frees.
    pub fn held(&self, pid: u32) -> Option<[u64; Space::ALL.len()]> {
        let process = self.processes.get(&pid).filter(|process| process.begun)?;
        Some(Space::ALL.map(|space| process.ledger.total(space)))
    }

    /// The same of a process that was running already: what it has allocated since the recording began and not freed.
    /// None: not every allocation and free is seen.
    pub fn held_since(&self, pid: u32) -> Option<[u64; Space::ALL.len()]> {
        let process = self.processes.get(&pid).filter(|_| !self.blind_to_memory)?;
        Some(Space::ALL.map(|space| process.ledger.total(space)))
    }

    /// From now on the recording does not see every call of this function.
    pub fn not_seen(&mut self, name: &str) {
        if FunctionTraits::of(name).places() {
            *self.seen.api(name) = false;
            self.contexts_missing();
        }
        if FunctionTraits::of(name).nccl().is_some() {
            self.blind_to_nccl = true;
            self.collectives_missing();
        }
    }

    /// Lost calls may have enqueued operations, or made communicators.
    pub fn collectives_missing(&mut self) {
        self.processes.values_mut().for_each(|process| process.communicators.missed());
    }

    /// Lost calls may have changed the current context or device of threads.
    pub fn contexts_missing(&mut self) {
        for process in self.processes.values_mut() {
            process.threads.followed = false;
            process.threads.by_tid.values_mut().for_each(|thread| thread.current.forget());
            process.contexts.forget(&mut process.tables);
        }
    }

    /// Linux may reuse the thread's number.
    pub fn thread_exited(&mut self, pid: u32, tid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.by_tid.remove(&tid);
        }
    }

    /// CUDA does not survive a fork: the child inherits only the names of the host stubs.
    pub fn process_forked(&mut self, pid: u32, child: u32) {
        let mut process = self.new_process();
        if let Some(parent) = self.processes.get(&pid) {
            process.kernels = parent.kernels.of_child(&self.rooms.tables);
        }
        self.processes.insert(child, process);
    }

    pub fn process_execed(&mut self, pid: u32) {
        self.names.gone(pid);
        let process = self.new_process();
        self.processes.insert(pid, process);
    }

    fn new_process(&self) -> Process {
        let (whole, begun) = (!self.blind, !self.blind_to_memory);
        let threads = Threads { followed: true, ..Threads::default() };
        let communicators = Communicators::of_new(!self.blind_to_nccl);
        let running = Process::of_running(&self.rooms);
        Process { whole, whole_host: whole, begun, threads, communicators, ..running }
    }

    pub fn process_exited(&mut self, pid: u32) {
        self.names.gone(pid);
        self.processes.remove(&pid);
    }
}

/// The tables and look-ups for naming a kernel.
struct Lookup<'a> {
    shown: &'a mut KernelNames,
    names: &'a mut (dyn Names + Send),
    unnamed: &'a mut u64,
    pid: u32,
}

impl Lookup<'_> {
    /// The name of a function and true, or its handle and false.
    fn kernel(&mut self, kernels: &mut Kernels, function: u64, is_stub: bool) -> (Arc<KernelName>, bool) {
        if let Some(name) = kernels.known(function) {
            return (name.clone(), true);
        }
        kernels.look_up(function, || {
            match if is_stub { self.names.stub(self.pid, function) } else { Stub::Unknown } {
                Stub::Named(symbol) => Some(self.shown.name(symbol.as_bytes(), false)),
                Stub::Unknown => Some(None),
                Stub::NotNow => {
                    *self.unnamed += 1;
                    None
                }
            }
        })
    }
}

#[derive(Default)]
struct Threads {
    by_tid: Map<u32, Thread>,
    /// A thread that is new here has made no calls before.
    followed: bool,
}

impl Threads {
    fn get(&mut self, tid: u32) -> &mut Thread {
        let current = || if self.followed { CurrentContexts::of_new() } else { CurrentContexts::default() };
        self.by_tid.entry(tid).or_insert_with(|| Thread { current: current(), ..Thread::default() })
    }
}

impl Thread {
    /// Whether a call of the runtime is open.
    fn in_runtime(&self) -> bool {
        self.open.iter().any(|open| open.runtime)
    }
}

impl Process {
    /// A process that was already running, about which nothing is known.
    fn of_running(rooms: &Rooms) -> Process {
        Process {
            whole: false,
            whole_host: false,
            begun: false,
            ledger: Ledger::new(&rooms.live),
            kernels: Kernels::new(&rooms.tables),
            contexts: Contexts::default(),
            tables: Share::new(&rooms.tables),
            graphs: Graphs::default(),
            communicators: Communicators::default(),
            capturing: Map::default(),
            threads: Threads::default(),
        }
    }

    /// A call that may have given out memory was not seen.
    fn missed(&mut self) {
        (self.whole, self.whole_host) = (false, false);
    }

    /// Returns the call, after dropping calls inside it that never ended.
    fn close(&mut self, call: &CallRef) -> Option<Open> {
        let open = &mut self.threads.by_tid.get_mut(&call.tid)?.open;
        let mut switched = false;
        while open.last()?.id > call.id {
            switched |= open.pop().is_some_and(|inner| inner.switches());
        }
        let closed = open.pop_if(|last| last.id == call.id);
        if switched {
            self.threads.get(call.tid).current.forget();
        }
        closed
    }

    fn undo(&mut self, open: &Open, tid: u32) {
        if let SavedState::Free { table, ptr, serial } = open.saved {
            self.ledger.cancel_free(table, ptr, serial);
        }
        if open.switches() {
            self.threads.get(tid).current.forget();
        }
    }
}

impl Open {
    /// Whether a failure of this call leaves the thread's current context unknown.
    fn switches(&self) -> bool {
        use Context::{Current, Device, GetDevice, Release, Reset, Retain};
        match self.saved {
            SavedState::Context(context, _) => {
                !matches!(context, Current | Device { .. } | GetDevice | Retain | Release | Reset)
            }
            _ => false,
        }
    }
}
