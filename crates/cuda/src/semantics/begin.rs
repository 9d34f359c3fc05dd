//! The beginning of a call: the keys of its line, and the state that it keeps until it returns.
//!
//! In: the call's arguments. Out: the keys of a launch's line, and what effects.rs needs once the call has succeeded.

use std::sync::Arc;

use super::args::In;
use super::context::{At, ContextCoverage, CurrentContexts};
use super::copies::{self, Copies};
use super::kernel::KernelName;
use super::ledger::By;
use super::size::RequestedSize;
use super::{BeginKeys, CallRef, Lookup, Process, Role, SavedState};
use crate::item::dimensions;
use crate::traits::{Context, Free, Graph, Kind, Name, On, Pool, Stream, Table};
use gpurec_trace as trace;
use gpurec_trace::bytes::{u32_at, u64_at};

impl Process {
    /// The keys of the call's line besides its arguments, and the kernel that launches inside this call start.
    pub(super) fn noted(
        &mut self,
        role: &Role,
        call: &CallRef,
        args: &In,
        seen: ContextCoverage,
        lookup: &mut Lookup,
    ) -> (BeginKeys, Option<Arc<KernelName>>) {
        match role.kind {
            Kind::Launch(_) => self.launch(role.runtime, call, args, seen, lookup),
            Kind::KernelNode { params, generic, .. } => {
                (self.kernel_node(args, params, generic, role.runtime, lookup).unwrap_or_default(), None)
            }
            Kind::Graph(Graph::Launch) => {
                let nodes = args.value(0).and_then(|exec| self.graphs.executables.get(&exec).copied());
                let stream = args.value(1);
                let on =
                    stream.map(|stream| self.on_launch(role.runtime, call, stream, seen)).unwrap_or_default();
                let launch = trace::Launch { stream, nodes, on, ..Default::default() };
                (BeginKeys { kernel: None, launch: Some(launch) }, None)
            }
            _ => (BeginKeys::default(), None),
        }
    }

    /// The device and context of a launch.
    fn on_launch(
        &mut self,
        in_runtime: bool,
        call: &CallRef,
        stream: u64,
        seen: ContextCoverage,
    ) -> trace::Where {
        let thread = self.threads.get(call.tid);
        let in_runtime = in_runtime || thread.in_runtime();
        self.contexts.of_launch(stream, &thread.current, in_runtime, seen)
    }

    fn launch(
        &mut self,
        runtime: bool,
        call: &CallRef,
        args: &In,
        seen: ContextCoverage,
        lookup: &mut Lookup,
    ) -> (BeginKeys, Option<Arc<KernelName>>) {
        let Some(launch) = args.signature.and_then(|signature| signature.launch(args.entry)) else {
            return (BeginKeys::default(), None);
        };
        let function = launch.function;
        let outer = self
            .threads
            .by_tid
            .get(&call.tid)
            .and_then(|t| t.open.last())
            .and_then(|open| open.kernel.as_ref());
        let (kernel, known) = match outer {
            Some(outer) => {
                // This is how handles of kernels that were loaded unseen get their names.
                let outer = outer.clone();
                if self.kernels.known(function).is_none_or(|known| !Arc::ptr_eq(known, &outer)) {
                    self.kernels.handle(function, outer.clone());
                }
                (outer, true)
            }
            None => lookup.kernel(&mut self.kernels, function, runtime),
        };
        let for_inner = (runtime && known).then(|| kernel.clone());
        let on = self.on_launch(runtime, call, launch.stream, seen);
        let launch = trace::Launch {
            kernel: None,
            grid: Some(launch.grid),
            block: Some(launch.block),
            shared: Some(launch.shared),
            stream: Some(launch.stream),
            cluster: launch.cluster,
            cooperative: launch.cooperative,
            nodes: None,
            on,
        };
        (BeginKeys { kernel: Some(lookup.shown.text(&kernel)), launch: Some(launch) }, for_inner)
    }

    /// Reads CUDA_KERNEL_NODE_PARAMS, its second version, or cudaKernelNodeParams; or the CUgraphNodeParams of a kernel
    /// node, which contains one of them.
    fn kernel_node(
        &mut self,
        args: &In,
        params: usize,
        generic: bool,
        is_stub: bool,
        lookup: &mut Lookup,
    ) -> Option<BeginKeys> {
        const KERNEL: u32 = 0;
        let mut bytes = args.structure(params)?;
        if generic {
            if u32_at(bytes, 0)? != KERNEL {
                return None;
            }
            bytes = bytes.get(16..)?;
        }
        let function = u64_at(bytes, 0).filter(|f| *f != 0).or_else(|| u64_at(bytes, 56))?;
        let (kernel, _) = lookup.kernel(&mut self.kernels, function, is_stub);
        let launch = trace::Launch {
            grid: dimensions(bytes, 8),
            block: dimensions(bytes, 20),
            shared: u32_at(bytes, 32).map(u64::from),
            ..Default::default()
        };
        Some(BeginKeys { kernel: Some(lookup.shown.text(&kernel)), launch: Some(launch) })
    }

    pub(super) fn saved(
        &mut self,
        role: &Role,
        call: &CallRef,
        args: &In,
        lookup: &mut Lookup,
    ) -> SavedState {
        if self.is_captured(role, args) {
            // Memory that a graph allocates has an address that is not in the ledger.
            if matches!(role.kind, Kind::Alloc(_)) {
                self.missed();
            }
            return SavedState::Nothing;
        }
        let first = args.value(0).unwrap_or(0);
        match role.kind {
            Kind::Alloc(alloc) => {
                // Memory of the program itself is not given out by the call.
                let ptr = (alloc.table == Table::Registered).then_some(first);
                let at = allocated_at(alloc.on, args);
                SavedState::Alloc { alloc, asked: Box::new(RequestedSize::of(alloc.size, args)), ptr, at }
            }
            Kind::Free(free) => self.free_begun(free, first, call, &role.name),
            Kind::Retain => SavedState::Retain,
            Kind::Map => match (args.value(1), args.value(3)) {
                (Some(size), Some(handle)) => SavedState::Map { ptr: first, size, handle },
                _ => SavedState::Nothing,
            },
            Kind::Unmap => {
                args.value(1).map_or(SavedState::Nothing, |size| SavedState::Unmap { ptr: first, size })
            }
            Kind::Copy(copy) => {
                let copies = Copies { ledger: &self.ledger, whole: self.whole, whole_host: self.whole_host };
                SavedState::Movement { moved: copies.of(&copy, args), is_set: false, at: stream_of(args) }
            }
            Kind::Set(set) => {
                SavedState::Movement { moved: copies::set(&set, args), is_set: true, at: stream_of(args) }
            }
            Kind::Stream(stream) => {
                if stream == Stream::Destroy {
                    // Another thread may receive the same handle before this call returns.
                    self.contexts.stream_gone(first, &mut self.tables);
                }
                SavedState::Stream(stream, first)
            }
            Kind::Pool(Pool::OfDevice) => SavedState::Pool(args.value(1).map(|device| device as i32)),
            Kind::Pool(Pool::Create) => SavedState::Pool(args.structure(1).and_then(location)),
            Kind::Pool(Pool::Destroy) => {
                self.contexts.pool_is(first, None, &mut self.tables);
                SavedState::Nothing
            }
            Kind::Context(context) => {
                let value = match context {
                    Context::Create { device } => args.value(device),
                    Context::Retain => args.value(1),
                    Context::Device { of } => Some(of.and_then(|of| args.value(of)).unwrap_or(0)),
                    Context::GetDevice => Some(0),
                    // Taken before the driver's call inside this one ends the context.
                    Context::DeviceReset => Some(self.device_of(call.tid) as u64),
                    _ => Some(first),
                };
                SavedState::Context(context, value.unwrap_or(0))
            }
            Kind::Name(name) => self.name_begun(name, args, lookup),
            Kind::KernelNode { adds: true, .. } => SavedState::Graph(Graph::Add, args.value(1).unwrap_or(0)),
            Kind::Graph(Graph::Launch) | Kind::Launch(_) | Kind::KernelNode { .. } => SavedState::Nothing,
            Kind::Graph(graph @ (Graph::Add | Graph::AddMemory | Graph::Instantiate)) => {
                SavedState::Graph(graph, args.value(1).unwrap_or(0))
            }
            Kind::Graph(graph) => SavedState::Graph(graph, first),
            Kind::Capture { begins } => SavedState::Capture { stream: first, begins },
            Kind::Global => SavedState::Global,
            Kind::Nccl(nccl) => self.nccl_begun(nccl, role, call, args),
            Kind::Unseen { same } => SavedState::Unseen { same: same.and_then(|param| args.value(param)) },
        }
    }

    /// Whether the call only puts a node into a graph.
    fn is_captured(&self, role: &Role, args: &In) -> bool {
        !self.capturing.is_empty()
            && matches!(role.kind, Kind::Alloc(_) | Kind::Free(_) | Kind::Copy(_) | Kind::Set(_))
            && args.stream().is_some_and(|stream| self.capturing.contains_key(&stream))
    }

    fn free_begun(
        &mut self,
        Free { table, space }: Free,
        ptr: u64,
        call: &CallRef,
        name: &str,
    ) -> SavedState {
        let by = By { tid: call.tid, id: call.id };
        match self.ledger.begin_free(table, ptr, by, name) {
            Some(serial) => SavedState::Free { table, ptr, serial },
            None if ptr != 0 && !self.begun => SavedState::FreeEarlier { ptr, space },
            None => SavedState::Nothing,
        }
    }

    pub(super) fn name_begun(&mut self, name: Name, args: &In, lookup: &mut Lookup) -> SavedState {
        let text = |param| args.bytes(param);
        match name {
            Name::Get => match text(2) {
                Some((bytes, cut)) => {
                    lookup.shown.name(bytes, cut).map_or(SavedState::Nothing, SavedState::Named)
                }
                None => SavedState::Nothing,
            },
            Name::Alias => args.value(1).map_or(SavedState::Nothing, SavedState::Alias),
            Name::Asked => args.value(1).map_or(SavedState::Nothing, SavedState::Asked),
            Name::Register => {
                if let (Some(stub), Some((bytes, cut))) = (args.value(1), text(3))
                    && let Some(name) = lookup.shown.name(bytes, cut)
                {
                    self.kernels.register(stub, name);
                }
                SavedState::Nothing
            }
        }
    }

    fn device_of(&self, tid: u32) -> i32 {
        let nothing = CurrentContexts::default();
        let current = self.threads.by_tid.get(&tid).map_or(&nothing, |thread| &thread.current);
        self.contexts.device(current)
    }
}

/// The stream of a copy or a set.
fn stream_of(args: &In) -> At {
    args.stream().map_or(At::Current, At::Stream)
}

fn allocated_at(on: On, args: &In) -> At {
    match on {
        On::Current => At::Current,
        On::Stream => stream_of(args),
        On::Pool => args.value(2).map_or(At::Unknown, At::Pool),
        On::Location => args.structure(2).and_then(location).map_or(At::Unknown, At::Device),
        On::Unknown => At::Unknown,
    }
}

/// Reads the device from CUmemAllocationProp, CUmemPoolProps or cudaMemPoolProps.
fn location(bytes: &[u8]) -> Option<i32> {
    const DEVICE: u32 = 1;
    u32_at(bytes, 12).filter(|_| u32_at(bytes, 8) == Some(DEVICE)).map(|device| device as i32)
}
