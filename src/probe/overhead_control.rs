//! Overhead control for `--budget`: gives functions up and hooks them again, and reads the cost of each thread.
//! In: functions to hook, a function's number. Out: links made and dropped, counters.
//! Not here: which functions are no longer recorded (src/overhead).
//!
//! Each function has links of its own: all hooks of a link for many functions are removed together, and with a second
//! link for the functions to keep, every call would be seen twice until the first link is gone.

use std::collections::HashMap;
use std::path::Path;
use std::thread::JoinHandle;

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use super::Probe;
use super::attach::{self, Programs};
use super::calibrate::SiteCosts;
use super::hooks::Hooks;
use super::loss;
use super::objects::{self, Base};
use super::shield::Hook;
use crate::wire::{self, Spender, Spent, StackSpent};
use gpurec_elf::Image;
use gpurec_trace::CALL_STACKS;

/// Entries read at a time.
const BATCH: u32 = 4096;

/// Stands for the stacks of all calls. No function has this number.
pub const STACKS: u32 = 0;

pub struct OverheadControl {
    given_up: MapHandle,
    spent: MapHandle,
    /// None if calls have no stacks.
    stack_spent: Option<MapHandle>,
    lost: MapHandle,
    costs: SiteCosts,
    pub(super) hooks: Hooks,
    functions: HashMap<u32, Function>,
    /// Threads that are detaching links: each waits for Linux.
    detaching: Vec<JoinHandle<f64>>,
}

#[derive(Default)]
struct Function {
    name: String,
    /// Linux single-steps its first instruction, in one of the files.
    stepped: bool,
}

impl OverheadControl {
    pub fn new(base: &Base, cuda: &Object, costs: SiteCosts, stacks: bool) -> Result<OverheadControl> {
        let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&objects::find_map(cuda, name)?)?) };
        Ok(OverheadControl {
            given_up: map("given_up")?,
            spent: map("spent")?,
            stack_spent: stacks.then(|| map("stack_spent")).transpose()?,
            lost: base.handle("lost")?,
            costs,
            hooks: Hooks::of_each_function(),
            functions: HashMap::new(),
            detaching: Vec::new(),
        })
    }

    /// Notes functions that have hooks.
    pub(super) fn add(&mut self, probes: &[Probe], image: &Image) {
        for (probe, function) in probes.iter().zip(&image.functions) {
            let known = self.functions.entry(probe.id).or_default();
            known.name.clone_from(&probe.name);
            known.stepped |= !function.emulated;
        }
    }

    /// Notes static probes that have hooks.
    pub(super) fn add_static(&mut self, probes: &[Probe]) {
        for probe in probes {
            self.functions.entry(probe.id).or_default().name.clone_from(&probe.name);
        }
    }

    pub fn name(&self, probe: u32) -> Option<&str> {
        if probe == STACKS {
            return Some(CALL_STACKS);
        }
        self.functions.get(&probe).map(|function| function.name.as_str())
    }

    /// The cost of a hit in nanoseconds.
    pub fn cost(&self, probe: u32) -> u64 {
        let stepped = self.functions.get(&probe).is_some_and(|function| function.stepped);
        if stepped { self.costs.stepped } else { self.costs.emulated }
    }

    /// From now on no new call of the function is recorded. Calls under way are recorded until they return, so the hook
    /// stays until `unhook`.
    pub fn give_up(&self, probe: u32) -> Result<()> {
        self.set_given_up(probe, 1)
    }

    fn set_given_up(&self, probe: u32, value: u32) -> Result<()> {
        Ok(self.given_up.update(&probe.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)?)
    }

    pub(super) fn record_again(
        &mut self,
        calls: &Programs,
        blocks: Option<&Programs>,
        probe: u32,
    ) -> Result<()> {
        self.hooks.hook_again(calls, blocks, probe)?;
        self.set_given_up(probe, 0)
    }

    /// Removes the hooks of some functions, in a thread because Linux takes time for it.
    pub fn unhook(&mut self, probes: &[u32]) {
        let links = self.hooks.unhook(probes);
        self.detaching.retain(|thread| !thread.is_finished());
        if !links.is_empty() {
            // If no thread can be started, the links are dropped here.
            self.detaching.extend(std::thread::Builder::new().spawn(move || attach::detach(links)));
        }
    }

    /// Takes every link for removal at the end; waits for links that are being detached.
    pub(super) fn take_links(&mut self) -> Vec<Hook> {
        for thread in self.detaching.drain(..) {
            let _ = thread.join();
        }
        self.hooks.take_links()
    }

    /// The cost of each thread at each probe since its first hit.
    pub fn spent(&self) -> Result<Vec<(Spender, Spent)>> {
        let all = self.spent.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
        Ok(all.filter_map(|(key, value)| Some((wire::read(&key)?, wire::read(&value)?))).collect())
    }

    /// Whether calls have stacks from now on.
    pub fn take_stacks(&self, on: bool) -> Result<()> {
        self.set_given_up(STACKS, u32::from(!on))
    }

    /// What its stacks have cost each thread since its first.
    pub fn stacks_spent(&self) -> Result<Vec<(u32, StackSpent)>> {
        let Some(map) = &self.stack_spent else { return Ok(Vec::new()) };
        let all = map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
        let entry = |(key, value): (Vec<u8>, Vec<u8>)| {
            Some((u32::from_ne_bytes(key.try_into().ok()?), wire::read(&value)?))
        };
        Ok(all.filter_map(entry).collect())
    }

    /// Removes the entry of a thread whose calls have no stacks any more.
    pub fn forget_stacks(&self, tid: u32) {
        if let Some(map) = &self.stack_spent {
            let _ = map.delete(&tid.to_ne_bytes());
        }
    }

    /// Removes the entry of a thread that makes no calls any more.
    pub fn forget(&self, spender: &Spender) {
        let _ = self.spent.delete(wire::bytes(spender));
    }

    /// Number of calls that found no space in a ring: their returns are not probed.
    pub fn lost(&self, probe: u32) -> u64 {
        loss::of_probe(&self.lost, probe).map_or(0, |lost| lost.calls)
    }
}

/// A thread that has ended will not return from any call.
pub fn lives(spent: &Spent, spender: &Spender) -> bool {
    Path::new(&format!("/proc/{}/task/{}", spent.pid, spender.tid)).exists()
}
