//! What recording one call costs on this machine: gpurec hooks a function of its own,
//! calls it with and without the hook, and takes the difference.
//! In: loaded programs. Out: nanoseconds a call (entry and return), or why the rung's
//! programs cannot be attached here: so this is also the trial that decides a rung.

use std::fs::{self, File};
use std::io;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::aside::without_signals;
use super::attach::{self, ANYONE, Place};
use super::capture;
use super::objects::{Base, Rung};

/// Probe id 0 is this room's: no function of a library has it.
pub const COOKIE: u64 = 0;

const ROUNDS: usize = 5;
const CALLS: u32 = 400;

// A function that begins as those of libcuda 580 and libcudart do, whatever this
// compiler would have made of one written in Rust.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".balign 16",
    ".globl gpurec_calibration",
    ".type gpurec_calibration, @function",
    "gpurec_calibration:",
    "push rbp",
    "mov rbp, rsp",
    "xor eax, eax",
    "pop rbp",
    "ret",
    ".size gpurec_calibration, . - gpurec_calibration",
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    ".balign 16",
    ".globl gpurec_calibration",
    ".type gpurec_calibration, @function",
    "gpurec_calibration:",
    "mov x0, #0",
    "ret",
    ".size gpurec_calibration, . - gpurec_calibration",
);

unsafe extern "C" {
    fn gpurec_calibration() -> u64;
}

/// `alone`: the hook is for this process, and the calls are those of a second thread: a kernel
/// that takes its first thread for all of it sees none of them.
pub fn measure(base: &Base, cuda: &Object, rung: Rung, alone: bool) -> Result<u64> {
    let exe = File::open("/proc/self/exe").context("cannot open gpurec's own program file")?;
    let address = gpurec_calibration as *const () as u64;
    let place = Place { offset: file_offset(address)?, cookie: capture::cookie(COOKIE as u32, None) };
    let me = std::process::id().to_ne_bytes();
    let targets = base.map("targets")?;
    targets.update(&me, &1u32.to_ne_bytes(), MapFlags::ANY)?;
    let plain = cheapest(&mut || ());
    let whom = if alone { std::process::id() as i32 } else { ANYONE };
    let hooked = attach::attach(cuda, rung, &exe, &[place], whom).map(|links| {
        let hooked = if alone { in_a_thread(|| measure_hooked(base)) } else { measure_hooked(base) };
        attach::detach_aside(links);
        hooked
    });
    targets.delete(&me)?;
    let (hooked, records) = hooked??;
    if records == 0 {
        bail!("the hook was attached but recorded nothing");
    }
    Ok(hooked.saturating_sub(plain))
}

fn in_a_thread(work: impl FnOnce() -> Result<(u64, u64)> + Send) -> Result<(u64, u64)> {
    std::thread::scope(|scope| {
        let thread = without_signals(|| std::thread::Builder::new().spawn_scoped(scope, work));
        let thread = thread.context("gpurec cannot start a thread")?;
        thread.join().unwrap_or_else(|_| bail!("the calibration panicked"))
    })
}

fn measure_hooked(base: &Base) -> Result<(u64, u64)> {
    let mut rings = base.near_rings()?;
    let mut records = 0;
    let mut empty = || {
        for ring in &mut rings {
            ring.read(usize::MAX, |_| records += 1);
        }
    };
    let ns = cheapest(&mut empty);
    Ok((ns, records))
}

/// The cheapest of a few rounds, in ns a call: noise only ever adds.
fn cheapest(after: &mut dyn FnMut()) -> u64 {
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                // SAFETY: the assembly above: no arguments, no side effects.
                std::hint::black_box(unsafe { gpurec_calibration() });
            }
            let ns = start.elapsed().as_nanos() as u64 / u64::from(CALLS);
            after();
            ns
        })
        .min()
        .unwrap_or(0)
}

/// Where in our own program file an address of ours lies.
pub(super) fn file_offset(address: u64) -> Result<u64> {
    let maps = fs::read("/proc/self/maps")?;
    crate::target::maps::parse(&maps)
        .iter()
        .find(|m| (m.start..m.end).contains(&address))
        .map(|m| address - m.start + m.offset)
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        .context("cannot find gpurec's own code in /proc/self/maps")
}
