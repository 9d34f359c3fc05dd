//! The functions of the C library that this program uses, and its entry point. In: calls. Out: the same. The C library
//! is the one that NVML loads.

use core::ffi::{c_char, c_int, c_ulong, c_void};

unsafe extern "C" {
    pub fn read(fd: c_int, to: *mut c_void, length: usize) -> isize;
    pub fn write(fd: c_int, from: *const c_void, length: usize) -> isize;
    pub fn _exit(status: c_int) -> !;
    pub fn strlen(text: *const c_char) -> usize;
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
}

const SET_NAME: c_int = 15;

/// What `ps` shows.
pub fn set_name(name: &core::ffi::CStr) {
    // SAFETY: a terminated string, which is copied.
    unsafe { prctl(SET_NAME, name.as_ptr() as c_ulong, 0, 0, 0) };
}

// Linux and the loader give a stack pointer that is a multiple of 16, and no return address.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl gpurec_nvml_start",
    "gpurec_nvml_start:",
    "xor %ebp, %ebp",
    "and $-16, %rsp",
    "call {main}",
    "hlt",
    main = sym crate::main,
    options(att_syntax)
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl gpurec_nvml_start",
    "gpurec_nvml_start:",
    "mov x29, #0",
    "mov x30, #0",
    "bl {main}",
    "brk #1",
    main = sym crate::main
);

/// The program's loader: glibc's, because NVIDIA builds NVML for glibc.
#[cfg(target_arch = "x86_64")]
#[unsafe(link_section = ".interp")]
#[used]
static LOADER: [u8; 28] = *b"/lib64/ld-linux-x86-64.so.2\0";
#[cfg(target_arch = "aarch64")]
#[unsafe(link_section = ".interp")]
#[used]
static LOADER: [u8; 27] = *b"/lib/ld-linux-aarch64.so.1\0";
