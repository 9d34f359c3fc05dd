//! The program that asks NVML, in a process of its own, with the rights of the user who called gpurec.
//!
//! In: standard input is a socket, on which the recorder sends one byte for each sample that it wants. Out: NVML's
//! answers, on the same socket (shape.rs). It ends when the recorder closes the socket. Not here: what the numbers mean
//! (src/nvml/).
//!
//! NVIDIA's library needs glibc and glibc's loader, and gpurec's static binary has neither. So that loader starts this
//! program. It depends on libnvidia-ml.so.1 alone, uses no symbol versions, and takes the few functions of the C
//! library that it calls from the C library that NVML loads. If libnvidia-ml.so.1 is missing, the loader ends the
//! program. gpurec's build script (crates/apart.rs) compiles it as a shared library with an entry point, and embeds it.

#![no_std]

mod nvml;
#[allow(dead_code)] // The recorder uses the rest.
mod shape;
mod system;

use core::ffi::c_int;

const SOCKET: c_int = 0;

/// A panic is a bug in this program. It ends, and there are no more samples.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: a plain integer.
    unsafe { system::_exit(1) }
}

static mut NVML: nvml::Nvml = nvml::Nvml::new();

extern "C" fn main() -> ! {
    system::set_name(c"gpurec-nvml");
    // SAFETY: the only use, in a program of one thread.
    let nvml = unsafe { &mut *&raw mut NVML };
    let mut asked = [0u8];
    // SAFETY: a buffer of that length.
    while unsafe { system::read(SOCKET, asked.as_mut_ptr().cast(), 1) } == 1 {
        if asked != [shape::ASK] {
            break;
        }
        nvml.sample(&mut |packet| {
            // The result does not matter: if the recorder has closed the socket, the next read fails.
            // SAFETY: a packet of that length.
            unsafe { system::write(SOCKET, packet.as_ptr().cast(), packet.len()) };
        });
    }
    // SAFETY: a plain integer. NVML needs no shutdown: Linux closes its files.
    unsafe { system::_exit(0) }
}
