//! The map of the rings. A separate thread creates and maps it: Linux takes time to find, clear and map each page, and
//! the recorder can read and load the rest of a recording's needs meanwhile.
//! In: the size. Out: the map, for the programs; the rings, for their reader.
//! Not here: loading programs, reading records.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, bounded};
use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use super::aside::without_signals;
use crate::ring::{Layout, Ring};
use crate::wire;

/// The verifier tracks offsets into a map only up to this size.
const MOST_A_RING: usize = 256 << 20;

/// Bytes of a near ring that hold a round of calls with room to spare (calibrate.rs).
const ENOUGH_TO_MEASURE: usize = 512 << 10;

/// The work of the thread.
pub struct Making {
    pub layout: Layout,
    pub cpus: usize,
    map: Receiver<libbpf_rs::Result<MapHandle>>,
    rings: Receiver<Result<Vec<Ring>>>,
}

/// `ring`: bytes of each CPU's ring.
pub fn begin(ring: usize) -> Result<Making> {
    let cpus = libbpf_rs::num_possible_cpus()?;
    if cpus > wire::MAX_CPUS as usize {
        let most = wire::MAX_CPUS;
        bail!("this machine may have {cpus} CPUs, and gpurec supports {most}; boot with nr_cpus={most}");
    }
    if ring > MOST_A_RING {
        bail!("--ring asks for more than {} MiB for each CPU; give a smaller --ring", MOST_A_RING >> 20);
    }
    // Hashed with random keys of this process.
    let layout = Layout::of(ring, RandomState::new().hash_one(ring));
    let (send_map, map) = bounded(1);
    let (send_rings, rings) = bounded(1);
    let work = move || {
        let made = create(layout, cpus);
        let ours = made.as_ref().ok().and_then(|map| map.as_fd().try_clone_to_owned().ok());
        // The receiver is gone if the recording does not begin.
        let _ = send_map.send(made);
        if let Some(map) = ours {
            let _ = send_rings.send(map_all(map, layout, cpus));
        }
    };
    // If no thread can be started, the first caller that needs the result does the work.
    let _ = without_signals(|| std::thread::Builder::new().name("gpurec-rings".into()).spawn(work));
    Ok(Making { layout, cpus, map, rings })
}

impl Making {
    /// The map, for programs that are about to be loaded.
    pub fn map(&self) -> libbpf_rs::Result<MapHandle> {
        self.map.recv().unwrap_or_else(|_| create(self.layout, self.cpus))
    }

    /// The rings of all CPUs, for reading; `map` contains them.
    pub fn rings(&self, map: impl AsFd) -> Result<Vec<Ring>> {
        self.rings.recv().unwrap_or_else(|_| map_all(map, self.layout, self.cpus))
    }

    /// As many rings as gpurec's own calls fill while it measures the cost of a call. They are mapped a second time.
    pub fn near(&self, map: impl AsFd) -> Result<Vec<Ring>> {
        if self.layout.near < ENOUGH_TO_MEASURE {
            return map_all(map, self.layout, self.cpus);
        }
        let each = (0..self.cpus).map(|cpu| Ring::map_near(&map, self.layout, cpu));
        each.collect::<std::io::Result<Vec<_>>>().with_context(|| unmapped(self.layout))
    }
}

fn create(layout: Layout, cpus: usize) -> libbpf_rs::Result<MapHandle> {
    let size = size_of::<bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t;
    let options = bpf_map_create_opts { sz: size, map_flags: BPF_F_MMAPABLE, ..Default::default() };
    MapHandle::create(MapType::Array, Some("rings"), 4, layout.part() as u32, cpus as u32, &options)
}

fn map_all(map: impl AsFd, layout: Layout, cpus: usize) -> Result<Vec<Ring>> {
    let each = (0..cpus).map(|cpu| Ring::map(&map, layout, cpu));
    let rings = each.collect::<std::io::Result<Vec<_>>>().with_context(|| unmapped(layout))?;
    Ok(rings.into_iter().flatten().collect())
}

fn unmapped(layout: Layout) -> String {
    format!("gpurec cannot map its rings of {} KiB for each CPU", layout.part() >> 10)
}
