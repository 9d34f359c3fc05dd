//! The functions of the C library that this library uses, and Linux's numbers for them. In: calls. Out: the same, without
//! C's ways of failing. Every C library has these functions.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

unsafe extern "C" {
    pub fn getenv(name: *const c_char) -> *const c_char;
    pub fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn malloc(length: usize) -> *mut c_void;
    pub fn free(at: *mut c_void);
    pub fn strlen(text: *const c_char) -> usize;
    pub fn mmap(
        at: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: c_long,
    ) -> *mut c_void;
    pub fn mprotect(at: *mut c_void, length: usize, protection: c_int) -> c_int;
    pub fn dl_iterate_phdr(
        each: unsafe extern "C" fn(*const Module, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn sysconf(name: c_int) -> c_long;
    pub fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
    pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    pub fn connect(fd: c_int, address: *const Address, length: c_uint) -> c_int;
    pub fn setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, length: c_uint) -> c_int;
    pub fn recvmsg(fd: c_int, message: *mut Message, flags: c_int) -> isize;
    pub fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn read(fd: c_int, to: *mut c_void, length: usize) -> isize;
    pub fn close(fd: c_int) -> c_int;
    pub fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
    fn getpid() -> c_int;
    #[link_name = "pause"]
    fn wait_for_a_signal() -> c_int;
    fn clock_gettime(clock: c_int, to: *mut Time) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

/// The beginning of struct dl_phdr_info.
#[repr(C)]
pub struct Module {
    pub base: usize,
    pub name: *const c_char,
    pub headers: *const ProgramHeader,
    pub count: u16,
}

/// Elf64_Phdr.
#[repr(C)]
pub struct ProgramHeader {
    pub kind: u32,
    flags: u32,
    offset: u64,
    pub address: u64,
    physical: u64,
    bytes_in_file: u64,
    pub bytes: u64,
    align: u64,
}

#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

/// struct sockaddr_un.
#[repr(C)]
pub struct Address {
    pub family: u16,
    pub path: [u8; 108],
}

#[repr(C)]
pub struct Piece {
    pub at: *mut c_void,
    pub length: usize,
}

/// struct msghdr.
#[repr(C)]
pub struct Message {
    pub name: *mut c_void,
    pub name_length: c_uint,
    pub pieces: *mut Piece,
    pub piece_count: usize,
    pub control: *mut c_void,
    pub control_length: usize,
    pub flags: c_int,
}

/// struct cmsghdr with one descriptor.
#[repr(C)]
pub struct Descriptor {
    pub length: usize,
    pub level: c_int,
    pub kind: c_int,
    pub fd: c_int,
    pub pad: c_int,
}

pub const LOCAL: c_int = 1;
pub const SEQUENCED: c_int = 5 | 0o2000000;
pub const SOCKET_LEVEL: c_int = 1;
pub const DESCRIPTORS: c_int = 1;
pub const RECEIVE_WITHIN: c_int = 20;
pub const SEND_WITHIN: c_int = 21;
pub const CLOSE_ON_EXEC: c_int = 0x4000_0000;

pub const READ: c_int = 1;
pub const READ_AND_WRITE: c_int = 3;
pub const SHARED: c_int = 1;
pub const NOT_IN_CHILDREN: c_int = 10;

/// Of dlopen.
pub const LAZY: c_int = 1;
pub const ONLY_IF_LOADED: c_int = 4;

pub const OPEN_READ: c_int = 0o2000000;

/// The size of a page.
pub fn page() -> usize {
    // SAFETY: a plain integer: _SC_PAGESIZE of glibc and musl.
    usize::try_from(unsafe { sysconf(30) }).unwrap_or(4096)
}

pub fn pid() -> c_int {
    // SAFETY: it takes nothing.
    unsafe { getpid() }
}

pub fn pause() {
    // SAFETY: it takes nothing.
    unsafe { wait_for_a_signal() };
}

#[cfg(target_arch = "x86_64")]
const NANOSLEEP: c_long = 35;
#[cfg(not(target_arch = "x86_64"))]
const NANOSLEEP: c_long = 101;

/// Sleeps for a millisecond, or until a signal arrives. It does not call the C library's nanosleep, because that is a
/// cancellation point: cancelling the thread there would unwind through this library.
pub fn sleep() {
    let time = Time { seconds: 0, nanoseconds: 1_000_000 };
    // SAFETY: a struct that outlives the call.
    unsafe { syscall(NANOSLEEP, &raw const time, core::ptr::null_mut::<Time>()) };
}

/// CUPTI calls this for the times of its records, too.
pub extern "C" fn monotonic() -> u64 {
    let mut now = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: a struct that it fills.
    unsafe { clock_gettime(1, &raw mut now) };
    (now.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(now.nanoseconds as u64)
}
