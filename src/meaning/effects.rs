//! What a call that succeeded has done.

use std::borrow::Cow;

use super::args::Out;
use super::copies::Moved;
use super::ledger::{By, Gone, Held, Owner};
use super::role::{Alloc, Context, Graph, Space};
use super::size::Asked;
use super::{CallRef, Effect, Graphs, HANDLE, Lookup, Open, Process, Saved, Told};
use crate::trace::{Memory, Op, Transfer};

pub struct Ending<'a, 'l> {
    pub process: &'a mut Process,
    pub lookup: Lookup<'l>,
    pub call: &'a CallRef,
    pub name: &'a str,
    pub duration_ns: u64,
    pub out: &'a mut Vec<Effect>,
}

impl Ending<'_, '_> {
    pub fn end(&mut self, open: Open, out: &Out) {
        match open.saved {
            Saved::Nothing => {}
            Saved::Alloc { alloc, asked, ptr } => match ptr.or_else(|| out.number(0)) {
                Some(0) => {}
                Some(ptr) => self.allocated(alloc, asked, ptr, &open.told, out),
                None => self.process.whole = false,
            },
            Saved::Free { table, ptr, serial } => {
                if let Some(gone) = self.process.ledger.free(table, ptr, serial) {
                    self.gone(&gone);
                }
            }
            Saved::Retain => {
                if let Some(handle) = out.number(0) {
                    self.process.ledger.retain(handle);
                }
            }
            Saved::Map { ptr, size, handle } => self.process.ledger.map(ptr, size, handle),
            Saved::Unmap { ptr, size } => {
                for gone in self.process.ledger.unmap(ptr, size) {
                    self.gone(&gone);
                }
            }
            Saved::Moved { moved, is_set } => self.moved(&moved, is_set, &open.told),
            Saved::Context(context, value) => self.context(context, value, out),
            Saved::Named(name) => {
                if let Some(handle) = out.number(0) {
                    self.process.kernels.handle(handle, name);
                }
            }
            Saved::Alias(of) => self.alias(of, out),
            Saved::Asked(handle) => {
                if let Some((bytes, cut)) = out.bytes(0)
                    && let Some(name) = self.lookup.shown.name(bytes, cut)
                {
                    self.process.kernels.handle(handle, name);
                }
            }
            Saved::Graph(graph, handle) => self.graph(graph, handle, &open.told, out),
            Saved::Capture { stream, begins: true } => {
                let Process { tables, capturing, .. } = &mut *self.process;
                tables.insert(capturing, HANDLE, stream, ());
            }
            Saved::Capture { stream, begins: false } => {
                let Process { tables, capturing, .. } = &mut *self.process;
                tables.remove(capturing, HANDLE, &stream);
            }
            Saved::Global => match (out.number(0), out.number(1)) {
                (Some(ptr), Some(size)) => self.process.ledger.global(ptr, size),
                _ => self.process.whole = false,
            },
            Saved::Unseen { same } => {
                if same.is_none() || out.number(0) != same {
                    self.process.whole = false;
                }
            }
        }
    }

    fn allocated(&mut self, alloc: Alloc, asked: Asked, ptr: u64, told: &Told, out: &Out) {
        let (size, element) = asked.at_return(out);
        let known = self.process.ledger.get(alloc.table, ptr);
        let inner = known.is_some_and(|held| held.by.tid == self.call.tid && held.by.id > self.call.id);
        let is_again = alloc.space == Space::Ipc && known.is_some_and(|held| held.space == Space::Ipc);
        if inner || told.alloc == Some((alloc.space, size)) {
            return;
        }
        let by = By { tid: self.call.tid, id: self.call.id };
        let mut held = Held::new(alloc.space, size, self.owner(), by);
        held.element = element;
        if let Some(before) = self.process.ledger.alloc(alloc.table, ptr, held) {
            self.freed_before(&before);
        }
        // Of what there was no room for nothing is concluded.
        self.process.whole &= self.process.ledger.get(alloc.table, ptr).is_some();
        if !is_again {
            self.tell_callers(|told| told.alloc = Some((alloc.space, size)));
            let total = self.process.ledger.total(alloc.space);
            self.memory(Op::Alloc, alloc.space, ptr, size, total);
        }
    }

    fn owner(&mut self) -> Owner {
        let thread = self.process.threads.entry(self.call.tid).or_default();
        self.process.contexts.owner(&thread.current)
    }

    /// An address is given out again before the call that freed it has
    /// returned; or nobody saw that call.
    fn freed_before(&mut self, before: &Gone) {
        let (begin, name, missed) = match before.freed_by() {
            Some((by, name)) => (by, name, false),
            None => (By { tid: self.call.tid, id: self.call.id }, self.name, true),
        };
        self.out.push(Effect::Memory(Memory {
            name: Cow::Owned(name.to_owned()),
            pid: self.call.pid,
            tid: begin.tid,
            begin: begin.id,
            op: Op::Free,
            space: Cow::Borrowed(before.held.space.name()),
            ptr: before.ptr,
            size: before.held.size,
            total_allocated: before.total,
            missed,
            runtime: false,
        }));
    }

    fn gone(&mut self, gone: &Gone) {
        self.memory(Op::Free, gone.held.space, gone.ptr, gone.held.size, gone.total);
    }

    /// This call is one of the runtime's, or lies inside one.
    fn asked_of_runtime(&self) -> bool {
        let open = self.process.threads.get(&self.call.tid).map(|thread| thread.open.as_slice());
        self.name.starts_with("cuda") || open.unwrap_or_default().iter().any(|outer| outer.runtime)
    }

    fn memory(&mut self, op: Op, space: Space, ptr: u64, size: Option<u64>, total_allocated: u64) {
        self.out.push(Effect::Memory(Memory {
            name: Cow::Owned(self.name.to_owned()),
            pid: self.call.pid,
            tid: self.call.tid,
            begin: self.call.id,
            op,
            space: Cow::Borrowed(space.name()),
            ptr,
            size,
            total_allocated,
            missed: false,
            runtime: op == Op::Alloc && self.asked_of_runtime(),
        }));
    }

    fn moved(&mut self, moved: &[Moved], is_set: bool, told: &Told) {
        if moved.is_empty() || if is_set { told.set } else { told.moved } {
            return;
        }
        self.tell_callers(|told| if is_set { told.set = true } else { told.moved = true });
        for one in moved {
            let waited = !one.is_async && one.direction != "unknown";
            self.out.push(Effect::Transfer(Transfer {
                name: Cow::Owned(self.name.to_owned()),
                pid: self.call.pid,
                tid: self.call.tid,
                begin: self.call.id,
                direction: Cow::Borrowed(one.direction),
                size: one.size,
                partial: one.partial,
                is_async: one.is_async,
                pageable: one.pageable,
                duration_ns: waited.then_some(self.duration_ns),
            }));
        }
    }

    fn tell_callers(&mut self, mut tell: impl FnMut(&mut Told)) {
        if let Some(thread) = self.process.threads.get_mut(&self.call.tid) {
            thread.open.iter_mut().for_each(|open| tell(&mut open.told));
        }
    }

    fn alias(&mut self, of: u64, out: &Out) {
        let Some(handle) = out.number(0) else { return };
        let is_stub = self.name.contains("cuda");
        let (name, known) = self.lookup.kernel(&mut self.process.kernels, of, is_stub);
        if known {
            self.process.kernels.handle(handle, name);
        }
    }

    fn graph(&mut self, graph: Graph, handle: u64, told: &Told, out: &Out) {
        let Process { whole, tables, graphs: Graphs { graphs, executables }, .. } = &mut *self.process;
        match graph {
            Graph::Create => {
                if let Some(made) = out.number(0) {
                    tables.insert(graphs, HANDLE, made, 0);
                }
            }
            Graph::Add | Graph::AddMemory => {
                *whole &= graph == Graph::Add;
                if !told.node
                    && let Some(nodes) = graphs.get_mut(&handle)
                {
                    *nodes += 1;
                }
                self.tell_callers(|told| told.node = true);
            }
            Graph::Nodes => {
                if let Some(nodes) = out.number(2) {
                    // It may be the room for handles that was filled, no more than there are.
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

    fn context(&mut self, context: Context, value: u64, out: &Out) {
        let thread = self.process.threads.entry(self.call.tid).or_default();
        let contexts = &mut self.process.contexts;
        match context {
            Context::Create { .. } => {
                if let Some(made) = out.number(0) {
                    contexts.seen(made, Some(value as i32));
                    thread.current.push(made);
                }
            }
            Context::Set | Context::Push => {
                contexts.seen(value, None);
                match context {
                    Context::Set => thread.current.set(value),
                    _ => thread.current.push(value),
                }
            }
            Context::Pop => thread.current.pop(),
            Context::Current => {
                if let Some(current) = out.number(0) {
                    contexts.seen(current, None);
                    thread.current.set(current);
                }
            }
            Context::Retain => {
                if let Some(retained) = out.number(0) {
                    contexts.retained(value as i32, retained);
                }
            }
            Context::SetDevice => thread.current.set_device(value as i32),
            Context::Destroy => self.context_ended(value),
            Context::Release => {
                let last = contexts.released(value as i32);
                if last && self.process.whole {
                    self.device_reset(value as i32);
                }
            }
            Context::Reset | Context::DeviceReset => self.device_reset(value as i32),
        }
    }

    fn context_ended(&mut self, context: u64) {
        let contexts = &mut self.process.contexts;
        let only = contexts.is_only(context);
        contexts.destroyed(context);
        let gone = self.process.ledger.end_of(false, |owner| match owner.context {
            Some(known) => known == context,
            None => only,
        });
        self.all_gone(&gone, Some(context));
    }

    /// All that belongs to a device in this process, memory pools too. If it
    /// was told by a call inside, nothing is left here.
    fn device_reset(&mut self, device: i32) {
        let contexts = &mut self.process.contexts;
        let only = contexts.only_device(device);
        let context = contexts.reset(device);
        let gone = self.process.ledger.end_of(true, |owner| match owner.device {
            Some(known) => known == device,
            None => only || (context.is_some() && owner.context == context),
        });
        self.all_gone(&gone, context);
    }

    fn all_gone(&mut self, gone: &[Gone], context: Option<u64>) {
        for one in gone {
            self.gone(one);
        }
        if let Some(context) = context {
            for thread in self.process.threads.values_mut() {
                thread.current.ended(context);
            }
        }
    }
}
