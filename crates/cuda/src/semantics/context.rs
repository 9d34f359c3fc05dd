//! Which device and context each thread and stream works with, and which contexts have ended.
//!
//! In: what calls have done. Out: the device and context of a thread, a stream or a pool, as far as the recorded calls
//! show them.
//!
//! A thread has a stack of contexts, which only its own calls change. If calls may have been missed, the contents of
//! the stack are unknown until a call returns the current context.

use super::HANDLE;
use super::ledger::Owner;
use crate::Api;
use gpurec_trace::Where;
use gpurec_trace::bounds::{Searches, Share};
use gpurec_trace::hash::Map;

#[derive(Default)]
pub struct Contexts {
    /// The device of each live context.
    devices: Map<u64, Option<i32>>,
    /// The primary context of each device, and how often it is retained.
    primary: Map<i32, PrimaryContext>,
    streams: Map<u64, Entry>,
    searches: Searches,
    /// The device that a memory pool is on.
    pools: Map<u64, i32>,
}

#[derive(Default)]
struct PrimaryContext {
    context: Option<u64>,
    retained: u64,
}

/// What is known about a current context or a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    context: Option<u64>,
    device: Option<i32>,
    /// The runtime's device, which its next call makes current. Until then the driver may work with another.
    pending: bool,
}

/// The current contexts of one thread.
#[derive(Default)]
pub struct CurrentContexts {
    stack: Vec<Entry>,
    /// The bottom of the thread's stack is known: nothing is under `stack`.
    whole: bool,
    /// No call has chosen the runtime's device, so it is the default.
    unchosen: bool,
}

/// Which memory a call works with, from its arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    #[default]
    Current,
    Stream(u64),
    Pool(u64),
    Device(i32),
    Unknown,
}

/// Whether every function that returns or changes the current context is recorded, for the driver and the runtime.
#[derive(Clone, Copy, Debug)]
pub struct ContextCoverage {
    pub driver: bool,
    pub runtime: bool,
}

impl ContextCoverage {
    pub const ALL: ContextCoverage = ContextCoverage { driver: true, runtime: true };

    pub fn of(mut self, name: &str) -> bool {
        *self.api(name)
    }

    pub fn api(&mut self, name: &str) -> &mut bool {
        if crate::api(name) == Api::Runtime { &mut self.runtime } else { &mut self.driver }
    }
}

/// A thread can push contexts without limit, and a process can make them without limit.
const DEEPEST: usize = 256;
const MOST: usize = 4096;

/// Handles up to here are the default streams, of which each context has its own.
const DEFAULT_STREAMS: u64 = 2;

impl CurrentContexts {
    /// The state of a thread whose calls are all seen.
    pub fn of_new() -> CurrentContexts {
        CurrentContexts { whole: true, unchosen: true, ..CurrentContexts::default() }
    }

    pub fn set(&mut self, context: u64) {
        self.stack.pop();
        self.push(context);
    }

    pub fn push(&mut self, context: u64) {
        if context != 0 {
            self.enter(Entry { context: Some(context), ..Entry::default() });
        }
    }

    fn enter(&mut self, entry: Entry) {
        if self.stack.len() >= DEEPEST {
            self.stack.remove(0);
            self.whole = false;
        }
        self.stack.push(entry);
    }

    pub fn pop(&mut self) {
        if self.stack.pop().is_none() {
            self.whole = false;
        }
    }

    /// A call returned the current context.
    pub fn is(&mut self, context: u64) {
        // The device that the runtime chose becomes current at its next call, whatever is current now.
        if self.stack.last().is_some_and(|top| top.pending || top.context == Some(context)) {
            return;
        }
        *self =
            CurrentContexts { whole: context == 0, unchosen: self.unchosen, ..CurrentContexts::default() };
        self.push(context);
    }

    /// Forgets everything; later calls may show the current context again.
    pub fn forget(&mut self) {
        *self = CurrentContexts::default();
    }

    /// A context ended. The runtime makes a new one on the same device.
    fn ended(&mut self, context: u64, device: Option<i32>) {
        for entry in self.stack.iter_mut().filter(|entry| entry.context == Some(context)) {
            *entry = Entry { context: None, device, pending: true };
        }
    }

    /// A context was destroyed: the thread that destroyed it no longer has it.
    pub fn destroyed(&mut self, context: u64) {
        self.stack.pop_if(|top| top.context == Some(context));
    }
}

impl Contexts {
    pub fn seen(&mut self, context: u64, device: Option<i32>) {
        if context != 0 && (self.devices.len() < MOST || self.devices.contains_key(&context)) {
            let known = self.devices.entry(context).or_default();
            *known = device.or(*known);
        }
    }

    pub fn retained(&mut self, device: i32, context: u64) {
        self.seen(context, Some(device));
        if self.primary.len() >= MOST && !self.primary.contains_key(&device) {
            return;
        }
        let primary = self.primary.entry(device).or_default();
        primary.context = Some(context);
        primary.retained = primary.retained.saturating_add(1);
    }

    /// Returns true if no retain of the device's primary context is left.
    pub fn released(&mut self, device: i32) -> bool {
        let Some(primary) = self.primary.get_mut(&device).filter(|p| p.retained > 0) else { return false };
        primary.retained -= 1;
        primary.retained == 0
    }

    /// Removes the primary context of a device that was reset, and returns it.
    pub fn reset(&mut self, device: i32) -> Option<u64> {
        let context = self.primary.remove(&device)?.context?;
        self.devices.remove(&context);
        Some(context)
    }

    /// Removes a context; returns its device, if known.
    pub fn destroyed(&mut self, context: u64) -> Option<i32> {
        self.devices.remove(&context).flatten()
    }

    /// A context ended: updates the threads and streams that worked with it.
    pub fn ended<'a>(
        &mut self,
        context: u64,
        device: Option<i32>,
        threads: impl Iterator<Item = &'a mut CurrentContexts>,
        share: &mut Share,
    ) {
        threads.for_each(|current| current.ended(context, device));
        let before = self.streams.len();
        self.streams.retain(|_, entry| entry.context != Some(context));
        share.give_back((before - self.streams.len()) * HANDLE);
        if !self.searches.looked(self.streams.len()) {
            // The program ends contexts again and again: give up what is known about its streams.
            share.give_back(self.streams.len() * HANDLE);
            self.streams.clear();
        }
    }

    /// Forgets streams and pools: their handles may have been reused.
    pub fn forget(&mut self, share: &mut Share) {
        share.give_back((self.streams.len() + self.pools.len()) * HANDLE);
        self.streams.clear();
        self.pools.clear();
        self.devices.values_mut().for_each(|device| *device = None);
        self.primary.values_mut().for_each(|primary| primary.context = None);
    }

    /// Whether an unknown owner can only be this context.
    pub fn is_only(&self, context: u64) -> bool {
        self.devices.keys().all(|known| *known == context)
    }

    pub fn only_device(&self, device: i32) -> bool {
        self.devices.values().flatten().chain(self.primary.keys()).all(|known| *known == device)
    }

    /// The context and device whose end will free what the thread allocates now: a guess where only one context is
    /// known.
    pub fn owner(&self, current: &CurrentContexts) -> Owner {
        let only = || match self.devices.len() {
            1 => self.devices.keys().next().copied(),
            _ => None,
        };
        let top = current.stack.last().copied().unwrap_or_default();
        let context = top.context.or_else(only);
        let of_context = context.and_then(|context| self.device_of(context));
        Owner { context, device: of_context.or(top.device) }
    }

    /// The thread's device in the runtime: 0 unless it was set.
    pub fn device(&self, current: &CurrentContexts) -> i32 {
        let top = current.stack.last().copied().unwrap_or_default();
        top.device.or_else(|| self.owner(current).device).unwrap_or(0)
    }

    fn device_of(&self, context: u64) -> Option<i32> {
        self.devices.get(&context).copied().flatten()
    }

    /// cudaSetDevice. `switched`: it set the thread's context through driver calls that were seen.
    pub fn chosen(&mut self, current: &mut CurrentContexts, device: i32, switched: bool) {
        current.unchosen = false;
        let top = current.stack.last().and_then(|top| top.context);
        match top {
            Some(context) if switched => self.seen(context, Some(device)),
            Some(context) if self.primary.get(&device).and_then(|p| p.context) == Some(context) => {}
            _ => self.works_on(current, device, true),
        }
    }

    /// A call returned the current device.
    pub fn is_on(&mut self, current: &mut CurrentContexts, device: i32, of_runtime: bool) {
        match current.stack.last().copied() {
            Some(Entry { context: Some(context), .. })
                if self.device_of(context).is_none_or(|d| d == device) =>
            {
                self.seen(context, Some(device));
            }
            Some(Entry { context: None, device: Some(known), .. }) if known == device => {}
            Some(top) if top.pending && !of_runtime => {}
            None if of_runtime && current.whole && current.unchosen && device == 0 => {}
            _ => self.works_on(current, device, of_runtime),
        }
    }

    /// The thread works on a device, but which of its contexts is current is unknown.
    fn works_on(&mut self, current: &mut CurrentContexts, device: i32, pending: bool) {
        current.stack.pop();
        current.enter(Entry { context: None, device: Some(device), pending });
    }

    /// The thread's context and device in a runtime call (or inside one), or in a driver call.
    fn current(&self, current: &CurrentContexts, in_runtime: bool, seen: ContextCoverage) -> Entry {
        match current.stack.last() {
            Some(top) if top.pending && !in_runtime => Entry::default(),
            Some(top) => {
                let of_context = || top.context.and_then(|context| self.device_of(context));
                Entry { device: top.device.or_else(of_context), ..*top }
            }
            // The default of the runtime.
            None if current.whole && current.unchosen && in_runtime && seen.runtime => {
                Entry { device: Some(0), ..Entry::default() }
            }
            None => Entry::default(),
        }
    }

    pub fn at(&self, at: At, current: &CurrentContexts, in_runtime: bool, seen: ContextCoverage) -> Where {
        let entry = match at {
            At::Current | At::Stream(..=DEFAULT_STREAMS) => self.current(current, in_runtime, seen),
            At::Stream(stream) => self.stream(stream).unwrap_or_default(),
            At::Pool(pool) => Entry { device: self.pools.get(&pool).copied(), ..Entry::default() },
            At::Device(device) => Entry { device: Some(device), ..Entry::default() },
            At::Unknown => Entry::default(),
        };
        entry.into()
    }

    /// A launch into an unknown stream succeeds only on the thread's device, but the stream may belong to another
    /// context of that device.
    pub fn of_launch(
        &self,
        stream: u64,
        current: &CurrentContexts,
        in_runtime: bool,
        seen: ContextCoverage,
    ) -> Where {
        if stream <= DEFAULT_STREAMS {
            return self.current(current, in_runtime, seen).into();
        }
        let of_thread = || Entry { context: None, ..self.current(current, in_runtime, seen) };
        self.stream(stream).unwrap_or_else(of_thread).into()
    }

    fn stream(&self, stream: u64) -> Option<Entry> {
        let entry = *self.streams.get(&stream)?;
        let of_context = || entry.context.and_then(|context| self.device_of(context));
        Some(Entry { device: entry.device.or_else(of_context), ..entry })
    }

    /// A stream was made in the thread's context. `again`: a call inside this one made it.
    pub fn stream_made(&mut self, stream: u64, on: Where, again: bool, share: &mut Share) {
        let known = self.stream(stream).is_some_and(|entry| entry.device.is_some());
        if !(again && known) {
            self.stream_is(stream, on.context, on.device.and_then(|d| i32::try_from(d).ok()), share);
        }
    }

    pub fn stream_is(&mut self, stream: u64, context: Option<u64>, device: Option<i32>, share: &mut Share) {
        self.stream_gone(stream, share);
        if stream > DEFAULT_STREAMS && (context.is_some() || device.is_some()) {
            let entry = Entry { context, device, pending: false };
            self.searches.filled();
            share.insert(&mut self.streams, HANDLE, stream, entry);
        }
    }

    /// A call returned the device of a stream.
    pub fn stream_on(&mut self, stream: u64, device: i32, share: &mut Share) {
        let known = self.streams.get(&stream).and_then(|entry| entry.context);
        self.stream_is(stream, known, Some(device), share);
    }

    pub fn stream_gone(&mut self, stream: u64, share: &mut Share) {
        share.remove(&mut self.streams, HANDLE, &stream);
    }

    pub fn pool_is(&mut self, pool: u64, device: Option<i32>, share: &mut Share) {
        share.remove(&mut self.pools, HANDLE, &pool);
        if let Some(device) = device {
            share.insert(&mut self.pools, HANDLE, pool, device);
        }
    }
}

impl From<Entry> for Where {
    fn from(entry: Entry) -> Where {
        Where { device: entry.device.and_then(|device| u32::try_from(device).ok()), context: entry.context }
    }
}
