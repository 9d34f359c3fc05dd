//! The library that `--gpu` loads into the recorded process, by CUDA_INJECTION64_PATH: a client of CUPTI that copies
//! activity records into a ring that the recorder reads.
//!
//! In: the call of InitializeInjection that the CUDA driver makes while it initialises, and CUPTI's buffers. Out:
//! records in the ring (shape.rs), a state that says why there are none. The process must never notice: no panic, no
//! abort, no lock, no thread, always a buffer for CUPTI, and nothing at all in a child of fork. Only with --lossless,
//! at the exit, and when another client takes CUPTI over, threads wait until the recorder makes room (ring.rs).
//! Not here: what a record means. That is read outside (src/gpu/), because only facts of the record's size are needed.
//!
//! It has no standard library and links none: it takes its functions from whatever the process has loaded, so that it
//! fits any C library. build.rs of gpurec compiles it and embeds it.

#![no_std]
#![allow(clippy::missing_safety_doc)]

mod buffers;
mod cupti;
mod find;
mod link;
mod ring;
#[allow(dead_code)] // The recorder uses the rest.
mod shape;
mod system;
mod way;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};

use shape::{state, step};

/// A panic would be a mistake in this library. The thread that made it waits for ever: the process must not end.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        system::pause();
    }
}

/// The process in which the library works. A child of fork has another number.
static OWNER: AtomicI32 = AtomicI32::new(0);

pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == system::pid()
}

/// The CUDA driver calls this. Its answer is always that all is well.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    if OWNER.compare_exchange(0, system::pid(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        && let Some(header) = link::connect().and_then(ring::open)
    {
        match cupti::begin(header.graphs != 0) {
            Ok(()) => {
                // SAFETY: a function of this library, which is never unloaded: the driver keeps it.
                unsafe { system::__cxa_atexit(at_exit, core::ptr::null_mut(), core::ptr::null_mut()) };
                header.since.store(system::monotonic(), Ordering::Relaxed);
                header.state.store(state::ON, Ordering::Release);
            }
            Err(failed) => {
                header.step.store(failed.step, Ordering::Relaxed);
                header.result.store(failed.result, Ordering::Relaxed);
                header.state.store(state::OFF, Ordering::Release);
            }
        }
    }
    1
}

/// Why there is no recording.
pub(crate) struct Failed {
    pub step: u32,
    /// CUPTI's, or 0.
    pub result: c_int,
}

impl Failed {
    fn at(step: u32) -> Failed {
        Failed { step, result: 0 }
    }

    fn is_find(&self) -> bool {
        self.step == step::FIND
    }
}

/// Asks CUPTI for all its records. It does not shut CUPTI down, because that has crashed processes. It asks for nothing
/// if the recorder has stopped reading, or if another client took CUPTI over: that client's functions may be gone by
/// now.
extern "C" fn at_exit(_: *mut c_void) {
    if let Some(header) = ring::header()
        .filter(|header| is_owner() && header.stop.load(Ordering::Acquire) == 0)
        .filter(|_| !way::is_given_up())
    {
        ring::wait_for_room();
        cupti::flush();
        header.flushed.store(1, Ordering::Release);
    }
}
