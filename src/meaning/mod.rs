//! What calls mean: which kernel a launch starts, what memory a process holds,
//! what is copied where.
//!
//! In: calls as they begin and end, in time's order, with what was captured of
//! them. Out: what a launch's line says beside its arguments, and `memory` and
//! `transfer` lines: once for each effect, at the innermost level that shows it,
//! only after success. What may not be done here: I/O, a clock, a guess told as
//! a fact. What is not known is left out.

mod args;
mod context;
mod copies;
mod effects;
mod kernel;
mod ledger;
mod role;
mod size;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use crate::cuda::Signature;
use crate::cuda::raw::{Entry, Exit};
use crate::room::{MOST_LIVE, Room, Share};
use crate::trace;

use args::{In, Out, three_at, u32_at, u64_at};
use context::{Contexts, Current};
use copies::{Copies, Moved};
use kernel::{Kernels, Shown, Spread};
use ledger::{By, Ledger};
use role::{Alloc, Context, Graph, Kind, Name, Table};
use size::Asked;

pub use kernel::{Names, Stub};
pub use role::Role;

/// A call, as the recorder names it.
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
}

/// What is to be said of a call where it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    kernel: Option<Arc<str>>,
    launch: Option<trace::Launch<'static>>,
}

pub struct Meaning {
    processes: HashMap<u32, Process, Spread>,
    shown: Shown,
    names: Box<dyn Names + Send>,
    rooms: Rooms,
    /// Not every call is seen.
    blind: bool,
    unnamed: u64,
}

/// What all processes share.
struct Rooms {
    /// Of all ledgers, in entries.
    live: Room,
    /// Of all other tables, in bytes.
    tables: Room,
}

/// Bytes of handles of kernels, graphs and streams: of two million.
const TABLES: usize = 64 << 20;
/// One of them in its table.
const HANDLE: usize = 32;

struct Process {
    /// Seen from its beginning: what is not known here was not done.
    whole: bool,
    ledger: Ledger,
    kernels: Kernels,
    contexts: Contexts,
    tables: Share,
    graphs: Graphs,
    /// Streams whose calls go into a graph and do nothing yet.
    capturing: HashMap<u64, ()>,
    threads: HashMap<u32, Thread, Spread>,
}

/// How many nodes graphs have, by handle.
#[derive(Default)]
struct Graphs {
    graphs: HashMap<u64, u64>,
    executables: HashMap<u64, u64>,
}

#[derive(Default)]
struct Thread {
    current: Current,
    open: Vec<Open>,
}

/// A call with a role that has not returned.
struct Open {
    id: u64,
    /// One of the runtime's.
    runtime: bool,
    saved: Saved,
    /// Of a runtime launch: the driver's launch in it is of the same kernel.
    kernel: Option<Arc<str>>,
    told: Told,
}

/// What calls inside this one have told already.
#[derive(Clone, Copy, Default)]
struct Told {
    moved: bool,
    set: bool,
    node: bool,
    /// The space and size of an allocation.
    alloc: Option<(role::Space, Option<u64>)>,
}

/// What is needed at the call's end and known only at its beginning.
enum Saved {
    Nothing,
    Alloc { alloc: Alloc, asked: Asked, ptr: Option<u64> },
    Free { table: Table, ptr: u64, serial: u64 },
    Retain,
    Map { ptr: u64, size: u64, handle: u64 },
    Unmap { ptr: u64, size: u64 },
    Moved { moved: Vec<Moved>, is_set: bool },
    Context(Context, u64),
    Named(Arc<str>),
    Alias(u64),
    Asked(u64),
    Graph(Graph, u64),
    Capture { stream: u64, begins: bool },
    Global,
    Unseen { same: Option<u64> },
}

impl Noted {
    /// The keys of a launch's line.
    pub fn launch(&self) -> Option<trace::Launch<'_>> {
        let kernel = self.kernel.as_deref().map(std::borrow::Cow::Borrowed);
        self.launch.as_ref().map(|launch| trace::Launch { kernel, ..launch.clone() })
    }
}

impl Meaning {
    pub fn new(names: Box<dyn Names + Send>) -> Meaning {
        let rooms = Rooms { live: Room::new(MOST_LIVE), tables: Room::new(TABLES) };
        let processes = HashMap::default();
        Meaning { processes, shown: Shown::default(), names, rooms, blind: false, unnamed: 0 }
    }

    /// Calls whose kernel might have had a name, if there had been time to ask for it.
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// What there was no room for, in sentences: calls tell less for want of it.
    pub fn forgotten(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.rooms.live.refused() > 0 {
            said.push(format!(
                "{} allocations beyond {MOST_LIVE} live ones were not followed: nothing says when they were freed",
                self.rooms.live.refused()
            ));
        }
        let names = self.shown.beyond + self.rooms.tables.refused() as u64;
        if names > 0 {
            said.push(format!(
                "{names} names of kernels or handles were too many to remember: some launches have no name"
            ));
        }
        said
    }

    /// A call has begun.
    pub fn begin(
        &mut self,
        role: Option<&Role>,
        signature: Option<&Signature>,
        call: &CallRef,
        entry: &Entry,
    ) -> Noted {
        let Some(role) = role else { return Noted::default() };
        let Meaning { processes, shown, names, rooms, unnamed, .. } = self;
        let process = processes.entry(call.pid).or_insert_with(|| Process::new(rooms, false));
        let args = In { signature, entry };
        let mut lookup = Lookup { shown, names: names.as_mut(), unnamed, pid: call.pid };
        let (noted, kernel) = process.noted(role, call, &args, &mut lookup);
        let saved = process.saved(role, call, &args, &mut lookup);
        if !matches!(saved, Saved::Nothing) || kernel.is_some() {
            let open = &mut process.threads.entry(call.tid).or_default().open;
            let runtime = role.name.starts_with("cuda");
            open.push(Open { id: call.id, saved, kernel, runtime, told: Told::default() });
        }
        noted
    }

    /// Arguments that could not be read where the call began, and can at its return.
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
        if !matches!(saved, Saved::Nothing) {
            let open = &mut process.threads.entry(call.tid).or_default().open;
            open.retain(|open| open.id < call.id);
            open.push(Open { id: call.id, saved, kernel: None, runtime: false, told: Told::default() });
        }
    }

    /// A call has returned; `status` is 0 if it succeeded or has none. What
    /// follows from it is added to `out`.
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
        let Meaning { processes, shown, names, unnamed, .. } = self;
        let Some(process) = processes.get_mut(&call.pid) else { return };
        let Some(open) = process.close(call) else { return };
        if status != 0 {
            process.undo(&open);
            return;
        }
        let lookup = Lookup { shown, names: names.as_mut(), unnamed, pid: call.pid };
        let mut ending = effects::Ending { process, lookup, call, name: &role.name, duration_ns, out };
        ending.end(open, &Out { signature, exit });
    }

    /// The call has no end: it was unwound, its end was lost, or it died.
    pub fn forget(&mut self, call: &CallRef) {
        if let Some(process) = self.processes.get_mut(&call.pid)
            && let Some(open) = process.close(call)
        {
            // It may have succeeded, with nobody to see it.
            process.whole &= !matches!(open.saved, Saved::Alloc { .. } | Saved::Map { .. });
            process.undo(&open);
        }
    }

    /// Some calls are not seen: a filter leaves them out, or records were
    /// lost. From now on nothing is concluded from what was not seen.
    pub fn calls_missing(&mut self) {
        self.blind = true;
        self.processes.values_mut().for_each(|process| process.whole = false);
    }

    /// Its number may be given to another thread.
    pub fn thread_exited(&mut self, pid: u32, tid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.remove(&tid);
        }
    }

    /// CUDA does not survive a fork: the child has the names of its host
    /// stubs, and nothing else.
    pub fn process_forked(&mut self, pid: u32, child: u32) {
        let mut process = Process::new(&self.rooms, !self.blind);
        if let Some(parent) = self.processes.get(&pid) {
            process.kernels = parent.kernels.of_child(&self.rooms.tables);
        }
        self.processes.insert(child, process);
    }

    pub fn process_execed(&mut self, pid: u32) {
        self.processes.insert(pid, Process::new(&self.rooms, !self.blind));
    }

    pub fn process_exited(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }
}

/// What it takes to name a kernel.
struct Lookup<'a> {
    shown: &'a mut Shown,
    names: &'a mut (dyn Names + Send),
    unnamed: &'a mut u64,
    pid: u32,
}

impl Lookup<'_> {
    /// The name of a function, and whether it is one: else it is the handle.
    fn kernel(&mut self, kernels: &mut Kernels, function: u64, is_stub: bool) -> (Arc<str>, bool) {
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

impl Process {
    fn new(rooms: &Rooms, whole: bool) -> Process {
        Process {
            whole,
            ledger: Ledger::new(&rooms.live),
            kernels: Kernels::new(&rooms.tables),
            contexts: Contexts::default(),
            tables: Share::new(&rooms.tables),
            graphs: Graphs::default(),
            capturing: HashMap::new(),
            threads: HashMap::default(),
        }
    }

    /// What the call's line says beside its arguments; and the kernel that
    /// launches inside this call are of.
    fn noted(
        &mut self,
        role: &Role,
        call: &CallRef,
        args: &In,
        lookup: &mut Lookup,
    ) -> (Noted, Option<Arc<str>>) {
        match role.kind {
            Kind::Launch { runtime } => self.launch(runtime, call, args, lookup),
            Kind::KernelNode { params, generic, .. } => {
                (self.kernel_node(args, params, generic, &role.name, lookup).unwrap_or_default(), None)
            }
            Kind::Graph(Graph::Launch) => {
                let nodes = args.value(0).and_then(|exec| self.graphs.executables.get(&exec).copied());
                let launch = trace::Launch { stream: args.value(1), nodes, ..Default::default() };
                (Noted { kernel: None, launch: Some(launch) }, None)
            }
            _ => (Noted::default(), None),
        }
    }

    fn launch(
        &mut self,
        runtime: bool,
        call: &CallRef,
        args: &In,
        lookup: &mut Lookup,
    ) -> (Noted, Option<Arc<str>>) {
        let Some(launch) = args.signature.and_then(|signature| signature.launch(args.entry)) else {
            return (Noted::default(), None);
        };
        let function = launch.function;
        let outer =
            self.threads.get(&call.tid).and_then(|t| t.open.last()).and_then(|open| open.kernel.as_ref());
        let (kernel, known) = match outer {
            Some(outer) => {
                // How the handles of kernels that were loaded unseen get their names.
                let outer = outer.clone();
                if self.kernels.known(function).is_none_or(|known| !Arc::ptr_eq(known, &outer)) {
                    self.kernels.handle(function, outer.clone());
                }
                (outer, true)
            }
            None => lookup.kernel(&mut self.kernels, function, runtime),
        };
        let for_inner = (runtime && known).then(|| kernel.clone());
        let launch = trace::Launch {
            kernel: None,
            grid: Some(launch.grid),
            block: Some(launch.block),
            shared: Some(launch.shared),
            stream: Some(launch.stream),
            cluster: launch.cluster,
            cooperative: launch.cooperative,
            nodes: None,
        };
        (Noted { kernel: Some(kernel), launch: Some(launch) }, for_inner)
    }

    /// CUDA_KERNEL_NODE_PARAMS, its second version, or cudaKernelNodeParams;
    /// or CUgraphNodeParams of a kernel, which has one of them inside.
    fn kernel_node(
        &mut self,
        args: &In,
        params: usize,
        generic: bool,
        name: &str,
        lookup: &mut Lookup,
    ) -> Option<Noted> {
        const KERNEL: u32 = 0;
        let mut bytes = args.structure(params)?;
        if generic {
            if u32_at(bytes, 0)? != KERNEL {
                return None;
            }
            bytes = bytes.get(16..)?;
        }
        let function = u64_at(bytes, 0).filter(|f| *f != 0).or_else(|| u64_at(bytes, 56))?;
        let (kernel, _) = lookup.kernel(&mut self.kernels, function, name.starts_with("cuda"));
        let launch = trace::Launch {
            grid: three_at(bytes, 8),
            block: three_at(bytes, 20),
            shared: u32_at(bytes, 32).map(u64::from),
            ..Default::default()
        };
        Some(Noted { kernel: Some(kernel), launch: Some(launch) })
    }

    fn saved(&mut self, role: &Role, call: &CallRef, args: &In, lookup: &mut Lookup) -> Saved {
        if self.is_captured(role, args) {
            // What a graph allocates has an address that is not in the ledger.
            self.whole &= !matches!(role.kind, Kind::Alloc(_));
            return Saved::Nothing;
        }
        let first = args.value(0).unwrap_or(0);
        match role.kind {
            Kind::Alloc(alloc) => {
                let ptr = alloc.in_place.then_some(first);
                Saved::Alloc { alloc, asked: Asked::of(alloc.size, args), ptr }
            }
            Kind::Free(table) => self.free_begun(table, first, call, &role.name),
            Kind::Retain => Saved::Retain,
            Kind::Map => match (args.value(1), args.value(3)) {
                (Some(size), Some(handle)) => Saved::Map { ptr: first, size, handle },
                _ => Saved::Nothing,
            },
            Kind::Unmap => args.value(1).map_or(Saved::Nothing, |size| Saved::Unmap { ptr: first, size }),
            Kind::Copy(copy) => {
                let copies = Copies { ledger: &self.ledger, whole: self.whole };
                Saved::Moved { moved: copies.of(&copy, args), is_set: false }
            }
            Kind::Set(set) => Saved::Moved { moved: copies::set(&set, args), is_set: true },
            Kind::Context(context) => {
                let value = match context {
                    Context::Create { device } => args.value(device),
                    Context::Retain => args.value(1),
                    // Before the driver's call inside this one ends the context.
                    Context::DeviceReset => Some(self.device_of(call.tid) as u64),
                    _ => Some(first),
                };
                Saved::Context(context, value.unwrap_or(0))
            }
            Kind::Name(name) => self.name_begun(name, args, lookup),
            Kind::KernelNode { adds: true, .. } => Saved::Graph(Graph::Add, args.value(1).unwrap_or(0)),
            Kind::Graph(Graph::Launch) | Kind::Launch { .. } | Kind::KernelNode { .. } => Saved::Nothing,
            Kind::Graph(graph @ (Graph::Add | Graph::AddMemory | Graph::Instantiate)) => {
                Saved::Graph(graph, args.value(1).unwrap_or(0))
            }
            Kind::Graph(graph) => Saved::Graph(graph, first),
            Kind::Capture { begins } => Saved::Capture { stream: first, begins },
            Kind::Global => Saved::Global,
            Kind::Unseen { same } => Saved::Unseen { same: same.and_then(|param| args.value(param)) },
        }
    }

    /// Whether the call only puts a node into a graph.
    fn is_captured(&self, role: &Role, args: &In) -> bool {
        !self.capturing.is_empty()
            && matches!(role.kind, Kind::Alloc(_) | Kind::Free(_) | Kind::Copy(_) | Kind::Set(_))
            && args.stream().is_some_and(|stream| self.capturing.contains_key(&stream))
    }

    fn free_begun(&mut self, table: Table, ptr: u64, call: &CallRef, name: &str) -> Saved {
        let by = By { tid: call.tid, id: call.id };
        match self.ledger.begin_free(table, ptr, by, name) {
            Some(serial) => Saved::Free { table, ptr, serial },
            None => Saved::Nothing,
        }
    }

    fn name_begun(&mut self, name: Name, args: &In, lookup: &mut Lookup) -> Saved {
        let text = |param| args.bytes(param);
        match name {
            Name::Get => match text(2) {
                Some((bytes, cut)) => lookup.shown.name(bytes, cut).map_or(Saved::Nothing, Saved::Named),
                None => Saved::Nothing,
            },
            Name::Alias => args.value(1).map_or(Saved::Nothing, Saved::Alias),
            Name::Asked => args.value(1).map_or(Saved::Nothing, Saved::Asked),
            Name::Register => {
                if let (Some(stub), Some((bytes, cut))) = (args.value(1), text(3))
                    && let Some(name) = lookup.shown.name(bytes, cut)
                {
                    self.kernels.register(stub, name);
                }
                Saved::Nothing
            }
        }
    }

    fn device_of(&self, tid: u32) -> i32 {
        let nothing = Current::default();
        let current = self.threads.get(&tid).map_or(&nothing, |thread| &thread.current);
        self.contexts.device(current)
    }

    /// The call itself, after dropping calls inside it that never ended.
    fn close(&mut self, call: &CallRef) -> Option<Open> {
        let open = &mut self.threads.get_mut(&call.tid)?.open;
        while open.last()?.id > call.id {
            open.pop();
        }
        open.pop_if(|last| last.id == call.id)
    }

    fn undo(&mut self, open: &Open) {
        if let Saved::Free { table, ptr, serial } = open.saved {
            self.ledger.cancel_free(table, ptr, serial);
        }
    }
}
