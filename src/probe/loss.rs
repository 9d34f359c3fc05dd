//! Records that found no space in a ring, from BPF's counters. In: the maps. Out: sums. The counters only grow; the
//! caller remembers what it has already reported. Create this before any hook is attached: losses before the first
//! record is read count too.

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::objects::Base;
use crate::wire::{self, Lost, LostTotal};

pub struct LossCounters {
    /// None for rings that BPF does not fill: of those nothing is lost.
    maps: Option<Maps>,
    /// The calibration may have filled a small ring.
    pub before: LostTotal,
}

struct Maps {
    by_probe: MapHandle,
    total: MapHandle,
}

impl LossCounters {
    pub fn new(base: &Base) -> Result<LossCounters> {
        let maps = Maps { by_probe: base.handle("lost")?, total: base.handle("lost_total")? };
        let mut counters = LossCounters { maps: Some(maps), before: LostTotal::default() };
        counters.before = counters.total()?;
        Ok(counters)
    }

    pub fn none() -> LossCounters {
        LossCounters { maps: None, before: LostTotal::default() }
    }

    pub fn total(&self) -> Result<LostTotal> {
        let mut sum = LostTotal::default();
        let Some(maps) = &self.maps else { return Ok(sum) };
        let cpus = maps.total.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        for cpu in cpus.iter().flatten().filter_map(|value| wire::read::<LostTotal>(value)) {
            sum.calls += cpu.calls;
            sum.returns += cpu.returns;
            sum.fork += cpu.fork;
            sum.exec += cpu.exec;
            sum.exit += cpu.exit;
            sum.file += cpu.file;
            sum.stack += cpu.stack;
        }
        Ok(sum)
    }

    pub fn of_probe(&self, probe: u32) -> Result<Lost> {
        self.maps.as_ref().map_or(Ok(Lost::default()), |maps| of_probe(&maps.by_probe, probe))
    }
}

/// `lost` is the map of that name.
pub fn of_probe(lost: &MapHandle, probe: u32) -> Result<Lost> {
    let value = lost.lookup(&probe.to_ne_bytes(), MapFlags::ANY)?;
    Ok(value.and_then(|value| wire::read(&value)).unwrap_or_default())
}
