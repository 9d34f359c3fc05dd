//! Measures the cost of recording one call on this machine: gpurec hooks functions of its own, one for each kind of
//! site, calls them with and without the hook, and takes the difference.
//! In: loaded programs. Out: nanoseconds per call (entry and return), or the reason why the backend's programs cannot
//! be attached here: so this is also the trial that decides on a backend.

use std::fs::{self, File};
use std::io;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::attach::{self, Place, Programs};
use super::capture;
use super::objects::Base;
use crate::host::Backend;

/// Probe id 0 is reserved for this module: no library function has it.
pub const COOKIE: u64 = 0;

const ROUNDS: usize = 5;
const CALLS: u32 = 400;
/// Single calls, each after the caches were filled with other data.
const COLD_ROUNDS: usize = 5;
/// More than the caches that a core has for itself. The last-level cache is shared, and gpurec cannot know how much
/// other work leaves of it.
const COLD_BYTES: usize = 4 << 20;
const CACHE_LINE: usize = 64;

// Functions that begin like those of libcuda 580 and libcudart, written in assembly because the compiler might choose
// other instructions: Linux emulates the first instruction of the first function, and single-steps that of the second.
macro_rules! function {
    ($name:literal, $($instruction:literal),*) => {
        std::arch::global_asm!(
            ".text",
            ".balign 16",
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            $($instruction,)*
            "ret",
            concat!(".size ", $name, ", . - ", $name),
        );
    };
}
#[cfg(target_arch = "x86_64")]
function!("gpurec_emulated", "push rbp", "mov rbp, rsp", "xor eax, eax", "pop rbp");
#[cfg(target_arch = "x86_64")]
function!("gpurec_stepped", "xor eax, eax");
#[cfg(target_arch = "aarch64")]
function!("gpurec_emulated", "mov x0, #0");
#[cfg(target_arch = "aarch64")]
function!("gpurec_stepped", "mov x0, #0");

unsafe extern "C" {
    fn gpurec_emulated() -> u64;
    fn gpurec_stepped() -> u64;
}

type Function = unsafe extern "C" fn() -> u64;

/// The cost of recording a call, entry and return, by the kind of its hook's site, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteCosts {
    pub emulated: u64,
    pub stepped: u64,
    /// With other data in the processor's caches.
    pub emulated_cold: u64,
    pub stepped_cold: u64,
}

pub fn measure(base: &Base, cuda: &Object, backend: Backend) -> Result<SiteCosts> {
    let exe = File::open("/proc/self/exe").context("cannot open gpurec's own program file")?;
    let cookie = capture::cookie(COOKIE as u32, None);
    let place = |function: Function| -> Result<Place> {
        Ok(Place { offset: file_offset(function as *const () as u64)?, cookie, counter: None })
    };
    let places = [place(gpurec_emulated)?, place(gpurec_stepped)?];
    let me = std::process::id().to_ne_bytes();
    let targets = base.map("targets")?;
    targets.update(&me, &1u32.to_ne_bytes(), MapFlags::ANY)?;
    let plain = costs(&mut || ());
    let programs = Programs::of_calls(cuda, backend);
    let hooked = attach::attach(&programs, &exe, &places).map(|links| {
        let hooked = measure_hooked(base);
        attach::detach_aside(links);
        hooked
    });
    targets.delete(&me)?;
    let (hooked, records) = hooked??;
    if records == 0 {
        bail!("the hook was attached but recorded nothing");
    }
    let cost = |i: usize| hooked[i].saturating_sub(plain[i]);
    let [emulated, stepped, emulated_cold, stepped_cold] = std::array::from_fn(cost);
    // Only a few cold calls are measured, and no cold call is cheaper than a warm one.
    let (emulated_cold, stepped_cold) = (emulated_cold.max(emulated), stepped_cold.max(stepped));
    Ok(SiteCosts { emulated, stepped, emulated_cold, stepped_cold })
}

fn measure_hooked(base: &Base) -> Result<([u64; 4], u64)> {
    let mut rings = base.near_rings()?;
    let mut records = 0;
    let mut empty = || {
        for ring in &mut rings {
            ring.read(usize::MAX, |_| records += 1);
        }
    };
    let costs = costs(&mut empty);
    Ok((costs, records))
}

/// Of a call of each function, warm and cold.
fn costs(after: &mut dyn FnMut()) -> [u64; 4] {
    let emulated = cheapest(gpurec_emulated, after);
    let stepped = cheapest(gpurec_stepped, after);
    let mut other = vec![1u8; COLD_BYTES];
    let emulated_cold = cold(gpurec_emulated, &mut other);
    let stepped_cold = cold(gpurec_stepped, &mut other);
    after();
    [emulated, stepped, emulated_cold, stepped_cold]
}

#[inline]
fn time(call: Function, times: u32) -> u64 {
    let start = Instant::now();
    for _ in 0..times {
        // SAFETY: the assembly above: no arguments, no side effects.
        std::hint::black_box(unsafe { call() });
    }
    start.elapsed().as_nanos() as u64
}

/// The cheapest of a few rounds, in ns a call: noise only ever adds.
fn cheapest(call: Function, after: &mut dyn FnMut()) -> u64 {
    let round = |_| {
        let ns = time(call, CALLS) / u64::from(CALLS);
        after();
        ns
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}

/// The median of a few single calls.
fn cold(call: Function, other: &mut [u8]) -> u64 {
    let mut took = [0; COLD_ROUNDS];
    for ns in &mut took {
        other.iter_mut().step_by(CACHE_LINE).for_each(|byte| *byte = byte.wrapping_add(1));
        std::hint::black_box(&*other);
        *ns = time(call, 1);
    }
    took.sort_unstable();
    took[COLD_ROUNDS / 2]
}

/// The offset in gpurec's own program file of one of its addresses.
fn file_offset(address: u64) -> Result<u64> {
    let maps = fs::read("/proc/self/maps")?;
    crate::process::maps::parse(&maps)
        .iter()
        .find(|m| (m.start..m.end).contains(&address))
        .map(|m| address - m.start + m.offset)
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        .context("cannot find gpurec's own code in /proc/self/maps")
}
