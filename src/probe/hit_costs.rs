//! Measures the cost of the hits that `--budget` weighs on this machine: recorded, recorded with memory read, only
//! counted; and the additional cost where Linux single-steps the instruction.
//! In: loaded programs. Out: nanoseconds. Like calibrate.rs, it hooks functions of gpurec itself.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::attach::{self, Place};
use super::calibrate::{COOKIE, file_offset, gpurec_emulated, gpurec_stepped};
use super::objects::{self, Base};
use crate::host::Backend;
use crate::ring::Ring;
use crate::wire;

const ROUNDS: usize = 8;
const CALLS: u32 = 200;
/// Stack words for a function's parameters after the sixth, as a launch has them.
const WORDS: u8 = 5;

/// In nanoseconds, including the return.
#[derive(Clone, Copy, Debug, Default)]
pub struct HitCosts {
    pub recorded: u64,
    /// With memory reads.
    pub reading: u64,
    pub counted: u64,
    /// Added to each where Linux single-steps.
    pub stepping: u64,
}

pub fn measure(base: &Base, cuda: &Object, backend: Backend) -> Result<HitCosts> {
    let exe = File::open("/proc/self/exe").context("cannot open gpurec's own program file")?;
    let addresses = [gpurec_emulated as *const () as u64, gpurec_stepped as *const () as u64];
    let mut places = Vec::new();
    for address in addresses {
        places.push(Place { offset: file_offset(address)?, cookie: COOKIE });
    }
    let mut rings = base.near_rings()?;
    let me = std::process::id().to_ne_bytes();
    let targets = base.map("targets")?;
    targets.update(&me, &1u32.to_ne_bytes(), MapFlags::ANY)?;
    let plain = cheapest(gpurec_emulated, &mut rings);
    let links = attach::attach(cuda, backend, &exe, &places)?;
    let costs = measure_hooked(cuda, plain, &mut rings);
    attach::detach(links);
    targets.delete(&me)?;
    costs
}

fn measure_hooked(cuda: &Object, plain: u64, rings: &mut [Ring]) -> Result<HitCosts> {
    let probe = (COOKIE as u32).to_ne_bytes();
    let set = |map: &str, value: &[u8]| -> Result<()> {
        Ok(objects::find_map(cuda, map)?.update(&probe, value, MapFlags::ANY)?)
    };
    let mut costs = HitCosts { recorded: cheapest(gpurec_emulated, rings), ..HitCosts::default() };
    set("captures", wire::bytes(&wire::Capture { words: WORDS, ..wire::Capture::default() }))?;
    costs.reading = cheapest(gpurec_emulated, rings);
    set("captures", wire::bytes(&wire::Capture::default()))?;
    set("levels", &wire::COUNTED.to_ne_bytes())?;
    costs.counted = cheapest(gpurec_emulated, rings);
    costs.stepping = cheapest(gpurec_stepped, rings).saturating_sub(costs.counted);
    set("levels", &wire::RECORDED.to_ne_bytes())?;
    for cost in [&mut costs.recorded, &mut costs.reading, &mut costs.counted] {
        *cost = cost.saturating_sub(plain).max(1);
    }
    Ok(costs)
}

/// The cheapest of a few rounds, in ns a call: noise only ever adds.
fn cheapest(call: unsafe extern "C" fn() -> u64, rings: &mut [Ring]) -> u64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: calibrate.rs's assembly: no arguments, no side effects.
            std::hint::black_box(unsafe { call() });
        }
        let ns = start.elapsed().as_nanos() as u64 / u64::from(CALLS);
        for ring in rings.iter_mut() {
            ring.read(usize::MAX, |_| ());
        }
        ns
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}
