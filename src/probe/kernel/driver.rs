//! The attached Linux-side hooks. In: loaded objects with their links, refusals. Out: what is attached, by which backend;
//! what is not, and why; recursion misses. Not here: how a hook is attached (attach, functions).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use anyhow::{Result, anyhow};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ProgramMut};

use super::{Backend, Choice};
use crate::probe::missed::Misses;
use crate::probe::objects::{Base, Only, find_map};
use crate::probe::{Beneath, Probe};
use crate::wire;
use gpurec_trace::{HookEntry, HookError, Layer, RefusedHook};

/// The modules whose loading and unloading matters.
pub(super) const MODULES: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

/// An attached hook: dropping this detaches it.
pub enum Hold {
    Link(Link),
    Fd(OwnedFd),
}

pub(super) struct AttachedHook {
    pub backend: Backend,
    pub hook: HookEntry,
    /// The module whose unloading removes the hook.
    pub module: Option<String>,
}

pub struct Driver {
    pub(super) base: Rc<Base>,
    pub(super) choice: Choice,
    /// Loaded without programs: the maps that all other objects share.
    pub(super) maps: Object,
    /// The objects in one inner list are copies at the same hooks.
    pub(super) objects: Vec<Vec<Object>>,
    pub(super) holds: Vec<Hold>,
    pub(super) missed_before: Misses,
    pub(super) attached: Vec<AttachedHook>,
    pub(super) refused: Vec<RefusedHook>,
    pub(super) numbers: wire::Driver,
    /// The modules that were loaded when functions were last hooked.
    pub(super) modules: [bool; MODULES.len()],
    /// Flags for the table of majors, by family.
    pub(super) by_function: BTreeMap<u32, u32>,
}

impl Driver {
    /// For the trace's header.
    pub fn layer(&self) -> Layer {
        let mut by_backend = BTreeMap::new();
        for one in &self.attached {
            *by_backend.entry(one.hook.backend.clone()).or_insert(0) += 1;
        }
        let names: Vec<&str> = by_backend.keys().map(String::as_str).collect();
        Layer {
            backend: names.join("+"),
            attached: self.attached.len() as u64,
            refused: self.refused.clone(),
            hooks: self.attached.iter().map(|one| one.hook.clone()).collect(),
            by_backend,
        }
    }

    /// Hits that Linux skipped since `recording_begins`.
    pub fn missed(&self) -> Misses {
        self.all_missed().since(&self.missed_before)
    }

    /// Hits that were skipped before now, while hooking, do not count.
    pub fn recording_begins(&mut self) {
        self.missed_before = self.all_missed();
    }

    fn all_missed(&self) -> Misses {
        let mut missed = Misses::default();
        for copies in &self.objects {
            missed.add_programs(copies);
        }
        for hold in &self.holds {
            missed.add_link(match hold {
                Hold::Link(link) => link.as_fd().as_raw_fd(),
                Hold::Fd(fd) => fd.as_raw_fd(),
            });
        }
        missed
    }

    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().flatten()
    }

    pub fn take_holds(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.holds)
    }

    pub(super) fn load_more(&self, programs: &[&str], only: Option<Only>) -> Result<Object> {
        self.base.load_driver(programs, Some(&self.maps), only)
    }

    /// Sets an entry of a shared map.
    pub(super) fn set(&self, map: &str, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(find_map(&self.maps, map)?.update(key, value, MapFlags::ANY)?)
    }

    pub(super) fn keep(&mut self, object: Object, holds: impl IntoIterator<Item = Hold>) {
        self.holds.extend(holds);
        self.objects.push(vec![object]);
    }

    pub(super) fn note(&mut self, backend: Backend, module: Option<String>, hook: HookEntry) {
        let name = backend.name().to_owned();
        let hook = HookEntry { backend: name.clone(), how: name, ..hook };
        self.attached.push(AttachedHook { backend, hook, module });
    }

    /// Notes a hook at a tracepoint, or why there is none.
    pub(super) fn report(&mut self, name: &str, symbol: Option<&str>, result: Result<(), HookError>) {
        match result {
            Ok(()) => {
                let symbol = symbol.map(str::to_owned);
                let hook = HookEntry { name: name.to_owned(), symbol, ..HookEntry::default() };
                self.note(Backend::Tracepoint, None, hook);
            }
            Err(why) => self.refuse(name, why),
        }
    }

    pub(super) fn refuse(&mut self, name: &str, why: HookError) {
        let refused = RefusedHook::new(name, why.into());
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }
}

pub(super) fn failed(error: &anyhow::Error) -> HookError {
    HookError::Failed { error: format!("{error:#}") }
}

/// Attaches a program that names its own function or tracepoint.
pub(super) fn attach_trace(program: &ProgramMut) -> Result<Hold> {
    Ok(Hold::Link(program.attach_trace().map_err(|e| anyhow!("{e:#}"))?))
}

/// Gives probes their numbers, in order from a counter that it shares with other code, and announces them before they
/// can be hit.
pub struct Numbering<'a> {
    pub next: &'a Cell<u32>,
    pub waiting: Vec<Probe>,
    pub tell: &'a mut dyn FnMut(&[Probe]),
}

impl Numbering<'_> {
    pub(super) fn number(&mut self, name: &str, what: Beneath) -> Option<u32> {
        let id = self.next.get();
        if id >= wire::MAX_PROBES {
            return None;
        }
        self.next.set(id + 1);
        self.waiting.push(Probe { id, name: name.to_owned(), signature: None, beneath: Some(what) });
        Some(id)
    }

    pub(super) fn announce(&mut self) {
        if !self.waiting.is_empty() {
            (self.tell)(&std::mem::take(&mut self.waiting));
        }
    }
}
