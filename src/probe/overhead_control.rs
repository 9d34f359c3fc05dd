//! Overhead control for `--budget`: gives functions up and hooks them again, and reads the cost of each thread.
//! In: functions to hook, a function's number. Out: links made and dropped, counters.
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
use super::calibrate::SiteCosts;
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

pub struct OverheadControl {
    given_up: MapHandle,
    spent: MapHandle,
    lost: MapHandle,
    costs: SiteCosts,
    functions: HashMap<u32, Function>,
    /// Threads that are detaching links: each waits for Linux.
    detaching: Vec<JoinHandle<f64>>,
}

struct Function {
    name: String,
    /// Linux single-steps its first instruction, in one of the files.
    stepped: bool,
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

impl OverheadControl {
    pub fn new(base: &Base, cuda: &Object, costs: SiteCosts) -> Result<OverheadControl> {
        let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&objects::find_map(cuda, name)?)?) };
        Ok(OverheadControl {
            given_up: map("given_up")?,
            spent: map("spent")?,
            lost: MapHandle::try_from(&base.map("lost")?)?,
            costs,
            functions: HashMap::new(),
            detaching: Vec::new(),
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
        let is_unhooked = |probe: &Probe| self.functions.get(&probe.id).is_some_and(|known| !known.hooked);
        let parts = attach::attach_parts(places.len(), true, &mut |part| {
            base.still_here();
            match is_unhooked(&probes[part.start]) {
                true => Ok(Vec::new()),
                false => attach::attach(cuda, backend, file, &places[part]),
            }
        })?;
        for (part, links) in parts.taken {
            let (probe, function) = (&probes[part.start], &image.functions[part.start]);
            let spot = Spot { key, file: shared.clone(), place: places[part.start], links };
            let new =
                || Function { name: probe.name.clone(), stepped: false, hooked: true, places: Vec::new() };
            let known = self.functions.entry(probe.id).or_insert_with(new);
            known.stepped |= !function.emulated;
            known.places.push(spot);
        }
        Ok(parts.refused)
    }

    pub(super) fn files(&self) -> Vec<(FileId, &File)> {
        let mut files = HashMap::new();
        for spot in self.spots() {
            files.entry(spot.key).or_insert(&*spot.file);
        }
        files.into_iter().collect()
    }

    /// Number of hooked functions, without those that --budget unhooked.
    pub(super) fn functions(&self) -> usize {
        self.spots().filter(|spot| !spot.links.is_empty()).count()
    }

    fn spots(&self) -> impl Iterator<Item = &Spot> {
        self.functions.values().flat_map(|function| &function.places)
    }

    /// Forgets a file. Returns its links, which the caller removes.
    pub(super) fn let_go(&mut self, key: FileId) -> Vec<Hook> {
        let mut links = Vec::new();
        for function in self.functions.values_mut() {
            let gone = function.places.extract_if(.., |spot| spot.key == key);
            links.extend(gone.flat_map(|spot| spot.links));
        }
        links
    }

    pub fn name(&self, probe: u32) -> Option<&str> {
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

    pub(super) fn record_again(&mut self, cuda: &Object, backend: Backend, probe: u32) -> Result<()> {
        let function = self.functions.get_mut(&probe).context("no such function")?;
        for spot in function.places.iter_mut().filter(|spot| spot.links.is_empty()) {
            spot.links = attach::attach(cuda, backend, &spot.file, &[spot.place])?;
        }
        function.hooked = true;
        self.set_given_up(probe, 0)
    }

    /// Removes the hooks of some functions, in a thread because Linux takes time for it.
    pub fn unhook(&mut self, probes: &[u32]) {
        let mut links = Vec::new();
        for probe in probes {
            let Some(function) = self.functions.get_mut(probe) else { continue };
            function.hooked = false;
            links.extend(function.places.iter_mut().flat_map(|spot| std::mem::take(&mut spot.links)));
        }
        self.detaching.retain(|thread| !thread.is_finished());
        if !links.is_empty() {
            // If no thread can be started, the links are dropped here.
            self.detaching.extend(std::thread::Builder::new().spawn(move || attach::detach(links)));
        }
    }

    pub(super) fn links(&self) -> usize {
        self.spots().map(|spot| spot.links.len()).sum()
    }

    /// Takes every link for removal at the end; waits for links that are being detached.
    pub(super) fn take_links(&mut self) -> Vec<Hook> {
        for thread in self.detaching.drain(..) {
            let _ = thread.join();
        }
        self.functions.drain().flat_map(|(_, function)| function.places).flat_map(|spot| spot.links).collect()
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

    /// Number of calls that found no space in a ring: their returns are not probed.
    pub fn lost(&self, probe: u32) -> u64 {
        loss::of_probe(&self.lost, probe).map_or(0, |lost| lost.calls)
    }
}

/// A thread that has ended will not return from any call.
pub fn lives(spent: &Spent, spender: &Spender) -> bool {
    Path::new(&format!("/proc/{}/task/{}", spent.pid, spender.tid)).exists()
}
