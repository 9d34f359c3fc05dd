//! Overhead control for `--budget`: records a function, only counts it, or does not hook it at all; and reads the cost
//! of each thread. In: functions to hook, a function's number. Out: links made and dropped, counters.
//! Not here: which functions are no longer recorded (src/overhead).
//!
//! Each function has links of its own, so that it can be unhooked alone: all hooks of a link for many functions are
//! removed together, and with a second link for the functions to keep, every call would be seen twice until the first
//! link is gone.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use super::Probe;
use super::attach::{self, Place, Refused};
use super::capture;
use super::hit_costs::HitCosts;
use super::loss;
use super::objects::{self, Base};
use super::shield::Hook;
use crate::files::FileId;
use crate::host::Backend;
use crate::process::fds;
use crate::wire::{self, Spender, Spent};
use gpurec_elf::Image;

/// Entries read at a time.
const BATCH: u32 = 4096;

pub struct Levers {
    levels: MapHandle,
    counted: MapHandle,
    spent: MapHandle,
    lost: MapHandle,
    pub costs: HitCosts,
    held: HashMap<u32, Held>,
    /// Threads that are detaching links: each waits for Linux.
    going: Vec<JoinHandle<f64>>,
}

struct Held {
    name: String,
    /// Linux single-steps its first instruction, in one of the files.
    stepped: bool,
    /// Its calls read memory.
    reads: bool,
    hooked: bool,
    places: Vec<Spot>,
}

/// The function's place in a file.
struct Spot {
    key: FileId,
    file: Rc<File>,
    place: Place,
    /// Empty while the function is unhooked.
    links: Vec<Hook>,
}

impl Levers {
    pub fn new(cuda: &Object, lost: MapHandle, costs: HitCosts) -> Result<Levers> {
        let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&objects::find_map(cuda, name)?)?) };
        Ok(Levers {
            levels: map("levels")?,
            counted: map("counted")?,
            spent: map("spent")?,
            lost,
            costs,
            held: HashMap::new(),
            going: Vec::new(),
        })
    }

    /// Hooks each function by itself. Functions that --budget unhooked in other files are not hooked in this one
    /// either, until it hooks them again. Returns the functions that Linux refused, if it accepted any.
    #[allow(clippy::too_many_arguments)] // a single call site passes them
    pub(super) fn attach(
        &mut self,
        base: &Base,
        cuda: &Object,
        backend: Backend,
        key: FileId,
        file: &File,
        probes: &[Probe],
        image: &Image,
    ) -> Result<Vec<Refused>> {
        let shared = Rc::new(file.try_clone().with_context(fds::too_few)?);
        let places: Vec<Place> = probes.iter().zip(&image.functions).map(|(p, f)| p.place(f.site)).collect();
        let is_given_up = |probe: &Probe| self.held.get(&probe.id).is_some_and(|held| !held.hooked);
        let parts = attach::attach_parts(places.len(), true, &mut |part| {
            base.still_here();
            match is_given_up(&probes[part.start]) {
                true => Ok(Vec::new()),
                false => attach::attach(cuda, backend, file, &places[part]),
            }
        })?;
        for (part, links) in parts.taken {
            let (probe, function) = (&probes[part.start], &image.functions[part.start]);
            let spot = Spot { key, file: shared.clone(), place: places[part.start], links };
            let held = self.held.entry(probe.id).or_insert_with(|| Held {
                name: probe.name.clone(),
                stepped: false,
                reads: probe.signature.is_some_and(|s| capture::capture(&s.plan).is_some()),
                hooked: true,
                places: Vec::new(),
            });
            held.stepped |= !function.emulated;
            held.places.push(spot);
        }
        Ok(parts.refused)
    }

    pub(super) fn files(&self) -> Vec<(FileId, &File)> {
        let mut files = HashMap::new();
        for spot in self.held.values().flat_map(|held| &held.places) {
            files.entry(spot.key).or_insert(&*spot.file);
        }
        files.into_iter().collect()
    }

    /// Number of hooked functions, without those that --budget unhooked.
    pub(super) fn functions(&self) -> usize {
        self.held.values().flat_map(|held| &held.places).filter(|spot| !spot.links.is_empty()).count()
    }

    /// Forgets a file. Returns its links, which the caller removes.
    pub(super) fn let_go(&mut self, key: FileId) -> Vec<Hook> {
        let mut links = Vec::new();
        for held in self.held.values_mut() {
            let gone = held.places.extract_if(.., |spot| spot.key == key);
            links.extend(gone.flat_map(|spot| spot.links));
        }
        links
    }

    pub fn name(&self, probe: u32) -> Option<&str> {
        self.held.get(&probe).map(|held| held.name.as_str())
    }

    /// A sentence for the user: the weight of each kind of hit.
    pub fn weights(&self) -> String {
        let HitCosts { recorded, reading, counted, stepping } = self.costs;
        format!(
            "the budget weighs a recorded call as {recorded} ns, {reading} where memory is read, a counted one \
             as {counted}, and {stepping} more where the kernel single-steps"
        )
    }

    /// The cost of a hit in nanoseconds: recorded, and counted.
    pub fn cost(&self, probe: u32) -> (u64, u64) {
        let HitCosts { recorded, reading, counted, stepping } = self.costs;
        let (reads, stepped) =
            self.held.get(&probe).map_or((false, false), |held| (held.reads, held.stepped));
        let more = if stepped { stepping } else { 0 };
        (if reads { reading } else { recorded } + more, counted + more)
    }

    /// Takes effect from the next hit on.
    pub fn count_only(&self, probe: u32, counted: bool) -> Result<()> {
        let level = if counted { wire::COUNTED } else { wire::RECORDED };
        Ok(self.levels.update(&probe.to_ne_bytes(), &level.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// Removes the hooks of some functions, in a thread because Linux takes time for it.
    pub fn unhook(&mut self, probes: &[u32]) {
        let mut links = Vec::new();
        for probe in probes {
            let Some(held) = self.held.get_mut(probe) else { continue };
            held.hooked = false;
            links.extend(held.places.iter_mut().flat_map(|spot| std::mem::take(&mut spot.links)));
        }
        self.going.retain(|thread| !thread.is_finished());
        if !links.is_empty() {
            // If no thread can be started, the links are dropped here.
            self.going.extend(std::thread::Builder::new().spawn(move || attach::detach(links)));
        }
    }

    pub(super) fn hook(&mut self, cuda: &Object, backend: Backend, probe: u32) -> Result<()> {
        let held = self.held.get_mut(&probe).context("no such function")?;
        for spot in held.places.iter_mut().filter(|spot| spot.links.is_empty()) {
            spot.links = attach::attach(cuda, backend, &spot.file, &[spot.place])?;
        }
        held.hooked = true;
        Ok(())
    }

    pub(super) fn links(&self) -> usize {
        self.held.values().flat_map(|held| &held.places).map(|spot| spot.links.len()).sum()
    }

    /// Takes every link for removal at the end; waits for links that are being detached.
    pub(super) fn take_links(&mut self) -> Vec<Hook> {
        for thread in self.going.drain(..) {
            let _ = thread.join();
        }
        self.held.drain().flat_map(|(_, held)| held.places).flat_map(|spot| spot.links).collect()
    }

    /// The cost of each thread at each probe since its first hit.
    pub fn spent(&self) -> Result<Vec<(Spender, Spent)>> {
        let all = self.spent.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
        Ok(all.filter_map(|(key, value)| Some((wire::read(&key)?, wire::read(&value)?))).collect())
    }

    /// Removes the entry of a thread that makes no calls any more.
    pub fn forget(&self, spender: &Spender) {
        let _ = self.spent.delete(wire::bytes(spender));
    }

    /// Number of calls that were counted and not recorded.
    pub fn counted(&self, probe: u32) -> u64 {
        let cpus = self.counted.lookup_percpu(&probe.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        cpus.iter()
            .flatten()
            .filter_map(|value| Some(u64::from_ne_bytes(value.as_slice().try_into().ok()?)))
            .sum()
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
