//! The program that asks NVML, in a process of its own, with the rights of the user who called gpurec.
//!
//! In: on standard input, a socket, a byte for each sample that the recorder wants. Out: on the same, what NVML says
//! (shape.rs). It ends when the recorder closes the socket. Not here: what the numbers mean (src/nvml/).
//!
//! NVIDIA's library needs glibc and its loader, and gpurec's static binary has neither. So this is a program for that
//! loader: it needs libnvidia-ml.so.1 and no other library, links no version of one, and takes the few functions of the C
//! library that it uses from the one that NVML needs. Where the library is missing, the loader ends it. build.rs of gpurec
//! compiles it, as a shared library with an entry, and embeds it.

#![no_std]

mod nvml;
#[allow(dead_code)] // The recorder uses the rest.
mod shape;
mod system;

use core::ffi::c_int;

const SOCKET: c_int = 0;

/// A panic would be a mistake in this program: it ends, and there are no more samples.
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
            // A recorder that is gone closes the socket, which the next read notices.
            // SAFETY: a packet of that length.
            unsafe { system::write(SOCKET, packet.as_ptr().cast(), packet.len()) };
        });
    }
    // SAFETY: a plain integer. NVML needs no end: Linux closes its files.
    unsafe { system::_exit(0) }
}
