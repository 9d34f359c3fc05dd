//! The effects of a successful call. In: the call, with the state saved at its beginning. Out: `memory` and `transfer`
//! lines, and updates of the process's tables.

use std::borrow::Cow;

use super::args::Out;
use super::context::{At, ContextCoverage};
use super::copies::Movement;
use super::ledger::{Allocation, By, FreedAllocation, Owner};
use super::size::RequestedSize;
use super::{CallRef, Effect, Graphs, HANDLE, InnerEffects, Lookup, Open, Process, Role, SavedState};
use crate::traits::{Alloc, Context, Graph, Space, Stream};
use gpurec_trace::{Memory, Op, Transfer, Where};

pub struct Ending<'a, 'l> {
    pub process: &'a mut Process,
    pub lookup: Lookup<'l>,
    pub call: &'a CallRef,
    pub role: &'a Role,
    pub duration_ns: u64,
    /// Some allocations are not seen: unknown memory need not be from before the recording.
    pub blind_to_memory: bool,
    pub seen: ContextCoverage,
    pub out: &'a mut Vec<Effect>,
}

impl Ending<'_, '_> {
    pub fn end(&mut self, open: Open, out: &Out) {
        match open.saved {
            SavedState::Nothing => {}
            SavedState::Alloc { alloc, asked, ptr, at } => match ptr.or_else(|| out.number(0)) {
                Some(0) => {}
                Some(ptr) => self.allocated(alloc, *asked, ptr, at, &open.inner, out),
                None => self.process.missed(),
            },
            SavedState::Free { table, ptr, serial } => {
                if let Some(gone) = self.process.ledger.free(table, ptr, serial) {
                    self.gone(&gone);
                }
            }
            SavedState::FreeEarlier { ptr, space } if !self.blind_to_memory && !open.inner.freed => {
                self.mark_callers(|inner| inner.freed = true);
                let memory = Memory { earlier: true, ..self.memory(Op::Free, space, ptr) };
                self.out.push(Effect::Memory(memory));
            }
            SavedState::FreeEarlier { .. } => {}
            SavedState::Retain => {
                if let Some(handle) = out.number(0) {
                    self.process.ledger.retain(handle);
                }
            }
            SavedState::Map { ptr, size, handle } => self.process.ledger.map(ptr, size, handle),
            SavedState::Unmap { ptr, size } => {
                for gone in self.process.ledger.unmap(ptr, size) {
                    self.gone(&gone);
                }
            }
            SavedState::Movement { moved, is_set, at } => self.moved(&moved, is_set, at, &open.inner),
            SavedState::Context(context, value) => self.context(context, value, &open.inner, out),
            SavedState::Stream(stream, handle) => self.stream(stream, handle, &open.inner, out),
            SavedState::Pool(device) => {
                let Process { tables, contexts, .. } = &mut *self.process;
                if let Some(pool) = out.number(0) {
                    contexts.pool_is(pool, device, tables);
                }
            }
            SavedState::Named(name) => {
                if let Some(handle) = out.number(0) {
                    self.process.kernels.handle(handle, name);
                }
            }
            SavedState::Alias(of) => self.alias(of, out),
            SavedState::Asked(handle) => {
                if let Some((bytes, cut)) = out.bytes(0)
                    && let Some(name) = self.lookup.shown.name(bytes, cut)
                {
                    self.process.kernels.handle(handle, name);
                }
            }
            SavedState::Graph(graph, handle) => self.graph(graph, handle, &open.inner, out),
            SavedState::Capture { stream, begins } => {
                let Process { tables, capturing, .. } = &mut *self.process;
                if begins {
                    tables.insert(capturing, HANDLE, stream, ());
                } else {
                    tables.remove(capturing, HANDLE, &stream);
                }
            }
            SavedState::Nccl(nccl) => self.nccl(*nccl, &open.inner, out),
            SavedState::Global => match (out.number(0), out.number(1)) {
                (Some(ptr), Some(size)) => self.process.ledger.global(ptr, size),
                _ => self.process.whole = false,
            },
            SavedState::Unseen { same } => {
                if same.is_none() || out.number(0) != same {
                    self.process.missed();
                }
            }
        }
    }

    fn allocated(
        &mut self,
        alloc: Alloc,
        asked: RequestedSize,
        ptr: u64,
        at: At,
        inner: &InnerEffects,
        out: &Out,
    ) {
        let (size, element) = asked.at_return(out);
        let known = self.process.ledger.get(alloc.table, ptr);
        let is_inner = known.is_some_and(|held| held.by.tid == self.call.tid && held.by.id > self.call.id);
        let is_again = alloc.space == Space::Ipc && known.is_some_and(|held| held.space == Space::Ipc);
        if is_inner || inner.alloc == Some((alloc.space, size)) {
            return;
        }
        let by = By { tid: self.call.tid, id: self.call.id };
        let mut held = Allocation::new(alloc.space, size, self.owner(), by);
        (held.element, held.on) = (element, self.at(at));
        let on = held.on;
        if let Some(before) = self.process.ledger.alloc(alloc.table, ptr, held) {
            self.freed_before(&before);
        }
        // The ledger had no room for it: conclude nothing from its absence.
        if self.process.ledger.get(alloc.table, ptr).is_none() {
            self.process.missed();
        }
        if !is_again {
            self.mark_callers(|inner| inner.alloc = Some((alloc.space, size)));
            let total = self.process.ledger.total(alloc.space);
            let total_allocated = self.process.begun.then_some(total);
            let memory = self.memory(Op::Alloc, Some(alloc.space), ptr);
            self.out.push(Effect::Memory(Memory { on, size, total_allocated, ..memory }));
        }
    }

    fn owner(&mut self) -> Owner {
        let Process { threads, contexts, .. } = &mut *self.process;
        contexts.owner(&threads.get(self.call.tid).current)
    }

    /// The device and context that this call works with.
    fn at(&mut self, at: At) -> Where {
        let in_runtime = self.in_runtime();
        let Process { threads, contexts, .. } = &mut *self.process;
        let current = &threads.get(self.call.tid).current;
        contexts.at(at, current, in_runtime, self.seen)
    }

    /// The driver gave out an address again before the call that freed it returned, or the free was not seen.
    fn freed_before(&mut self, before: &FreedAllocation) {
        let mut memory = self.freed(before);
        match before.freed_by() {
            Some((by, name)) => {
                (memory.name, memory.tid, memory.begin) = (Cow::Owned(name.to_owned()), by.tid, Some(by.id));
            }
            None => memory.missed = true,
        }
        self.out.push(Effect::Memory(memory));
    }

    fn gone(&mut self, gone: &FreedAllocation) {
        let memory = self.freed(gone);
        self.out.push(Effect::Memory(memory));
    }

    fn freed(&self, gone: &FreedAllocation) -> Memory<'static> {
        let Allocation { space, size, on, .. } = *gone.held;
        let total_allocated = self.process.begun.then_some(gone.total);
        Memory { on, size, total_allocated, ..self.memory(Op::Free, Some(space), gone.ptr) }
    }

    /// Whether this call is a runtime call or is inside one.
    fn in_runtime(&self) -> bool {
        self.role.runtime
            || self.process.threads.by_tid.get(&self.call.tid).is_some_and(|thread| thread.in_runtime())
    }

    /// An allocation or a free by this call, whose size and place are not known.
    fn memory(&self, op: Op, space: Option<Space>, ptr: u64) -> Memory<'static> {
        Memory {
            name: Cow::Owned(self.role.name.to_string()),
            pid: self.call.pid,
            tid: self.call.tid,
            begin: Some(self.call.id),
            on: Where::default(),
            op,
            space: Cow::Borrowed(space.map_or("unknown", Space::name)),
            ptr,
            size: None,
            total_allocated: None,
            earlier: false,
            missed: false,
            runtime: op == Op::Alloc && self.in_runtime(),
            carried: false,
            stack: None,
        }
    }

    fn moved(&mut self, moved: &[Movement], is_set: bool, at: At, inner: &InnerEffects) {
        if moved.is_empty() || if is_set { inner.set } else { inner.moved } {
            return;
        }
        self.mark_callers(|inner| if is_set { inner.set = true } else { inner.moved = true });
        let on = self.at(at);
        for one in moved {
            let waited = !one.is_async && one.direction != "unknown";
            self.out.push(Effect::Transfer(Transfer {
                name: Cow::Owned(self.role.name.to_string()),
                pid: self.call.pid,
                tid: self.call.tid,
                begin: self.call.id,
                on,
                direction: Cow::Borrowed(one.direction),
                size: one.size,
                partial: one.partial,
                is_async: one.is_async,
                pageable: one.pageable,
                duration_ns: waited.then_some(self.duration_ns),
            }));
        }
    }

    pub(super) fn mark_callers(&mut self, mut tell: impl FnMut(&mut InnerEffects)) {
        if let Some(thread) = self.process.threads.by_tid.get_mut(&self.call.tid) {
            thread.open.iter_mut().for_each(|open| tell(&mut open.inner));
        }
    }

    fn alias(&mut self, of: u64, out: &Out) {
        let Some(handle) = out.number(0) else { return };
        let (name, known) = self.lookup.kernel(&mut self.process.kernels, of, self.role.runtime);
        if known {
            self.process.kernels.handle(handle, name);
        }
    }

    fn graph(&mut self, graph: Graph, handle: u64, inner: &InnerEffects, out: &Out) {
        let Process { whole, tables, graphs: Graphs { graphs, executables }, .. } = &mut *self.process;
        match graph {
            Graph::Create => {
                if let Some(made) = out.number(0) {
                    tables.insert(graphs, HANDLE, made, 0);
                }
            }
            Graph::Add | Graph::AddMemory => {
                *whole &= graph == Graph::Add;
                if !inner.node
                    && let Some(nodes) = graphs.get_mut(&handle)
                {
                    *nodes += 1;
                }
                self.mark_callers(|inner| inner.node = true);
            }
            Graph::Nodes => {
                if let Some(nodes) = out.number(2) {
                    // The call may have returned only as many nodes as the caller's array holds: keep the larger number.
                    let known = graphs.get(&handle).copied().unwrap_or(0);
                    tables.insert(graphs, HANDLE, handle, nodes.max(known));
                }
            }
            Graph::Instantiate => {
                if let (Some(made), Some(nodes)) = (out.number(0), graphs.get(&handle)) {
                    tables.insert(executables, HANDLE, made, *nodes);
                }
            }
            Graph::Destroy => {
                tables.remove(graphs, HANDLE, &handle);
                tables.remove(executables, HANDLE, &handle);
            }
            Graph::DestroyNode => {
                tables.give_back(HANDLE * graphs.len());
                graphs.clear();
            }
            Graph::Launch => {}
        }
    }

    fn stream(&mut self, stream: Stream, handle: u64, inner: &InnerEffects, out: &Out) {
        let on = self.at(At::Current);
        let seen = self.seen.of(&self.role.name);
        let Process { tables, contexts, .. } = &mut *self.process;
        match stream {
            Stream::Create => {
                let Some(made) = out.number(0) else { return };
                match seen {
                    true => contexts.stream_made(made, on, inner.stream, tables),
                    false => contexts.stream_gone(made, tables),
                }
                self.mark_callers(|inner| inner.stream = true);
            }
            Stream::CreateElsewhere => {
                if let Some(made) = out.number(0) {
                    contexts.stream_gone(made, tables);
                }
            }
            Stream::Context => {
                if let Some(context) = out.number(1).filter(|context| *context != 0 && seen) {
                    contexts.stream_is(handle, Some(context), None, tables);
                }
            }
            Stream::Device => {
                if let Some(device) = out.number(1).filter(|_| seen) {
                    contexts.stream_on(handle, device as i32, tables);
                }
            }
            Stream::Destroy => {}
        }
    }

    fn context(&mut self, context: Context, value: u64, inner: &InnerEffects, out: &Out) {
        let Process { threads, contexts, .. } = &mut *self.process;
        let current = &mut threads.get(self.call.tid).current;
        let seen = self.seen.of(&self.role.name);
        match context {
            Context::Create { .. } => {
                if let Some(made) = out.number(0) {
                    contexts.seen(made, Some(value as i32));
                    current.push(made);
                }
            }
            Context::Set => {
                contexts.seen(value, None);
                current.set(value);
            }
            Context::Push => {
                contexts.seen(value, None);
                current.push(value);
            }
            Context::Pop => current.pop(),
            Context::Current => {
                if let Some(is) = out.number(0).filter(|_| seen) {
                    contexts.seen(is, None);
                    current.is(is);
                }
            }
            Context::Device { .. } | Context::GetDevice => {
                let Some(device) = out.number(0).filter(|_| seen) else { return };
                match value {
                    0 => contexts.is_on(current, device as i32, context == Context::GetDevice),
                    of => contexts.seen(of, Some(device as i32)),
                }
            }
            Context::Retain => {
                if let Some(retained) = out.number(0) {
                    contexts.retained(value as i32, retained);
                }
            }
            Context::SetDevice => contexts.chosen(current, value as i32, inner.switched),
            Context::Destroy => {
                current.destroyed(value);
                self.context_ended(value);
            }
            Context::Release => {
                let last = contexts.released(value as i32);
                if last && self.process.whole {
                    self.device_reset(value as i32);
                }
            }
            Context::Reset | Context::DeviceReset => self.device_reset(value as i32),
            Context::Other => current.forget(),
        }
        self.switched(context, seen);
    }

    /// The thread's current context or device may have changed.
    fn switched(&mut self, context: Context, seen: bool) {
        if !matches!(
            context,
            Context::Create { .. } | Context::Set | Context::Push | Context::Pop | Context::SetDevice
        ) {
            return;
        }
        self.mark_callers(|inner| inner.switched = true);
        // The driver's calls inside cudaSetDevice show the change too.
        let seen = seen || (context == Context::SetDevice && self.seen.driver);
        if !seen {
            // Calls that were not recorded may have changed it too, before or after.
            let Process { threads, .. } = &mut *self.process;
            threads.get(self.call.tid).current.forget();
        }
    }

    fn context_ended(&mut self, context: u64) {
        let contexts = &mut self.process.contexts;
        let only = contexts.is_only(context);
        let device = contexts.destroyed(context);
        let gone = self.process.ledger.end_of(false, |owner| match owner.context {
            Some(known) => known == context,
            None => only,
        });
        self.all_gone(&gone, Some(context), device);
    }

    /// Frees everything of a device in this process, memory pools too. If a call inside has already reported the frees,
    /// nothing is left here.
    fn device_reset(&mut self, device: i32) {
        let contexts = &mut self.process.contexts;
        let only = contexts.only_device(device);
        let context = contexts.reset(device);
        let gone = self.process.ledger.end_of(true, |owner| match owner.device {
            Some(known) => known == device,
            None => only || (context.is_some() && owner.context == context),
        });
        self.all_gone(&gone, context, Some(device));
    }

    fn all_gone(&mut self, gone: &[FreedAllocation], context: Option<u64>, device: Option<i32>) {
        for one in gone {
            self.gone(one);
        }
        if let Some(context) = context {
            let Process { threads, contexts, tables, .. } = &mut *self.process;
            let all = threads.by_tid.values_mut().map(|thread| &mut thread.current);
            contexts.ended(context, device, all, tables);
        }
    }
}
