//! Gives CUPTI up to a client that starts later, such as torch.profiler. In: the modules of the process. Out: in each
//! module that is linked against libcupti, the imported functions of `NAMES` lead to this library. At the first such
//! call CUPTI delivers all its records and returns the buffers of this library. Otherwise CUPTI would put the new
//! client's first records into one of these buffers, and the client would drop that buffer because it has not supplied
//! it.
//! Not here: a client that finds the functions by dlsym, and modules that are loaded later.

use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::{cupti, is_owner, system};

const LIBRARY: &[u8] = b"libcupti.so";

/// A new client calls one of these first. If the clock changes, the records that CUPTI still holds lose their times; and
/// giving up disables all kinds of records, so it must come before the client enables one.
const CLOCK: usize = 0;
const CALLBACKS: usize = 1;
const ENABLE: usize = 2;
const NAMES: [&core::ffi::CStr; 3] =
    [c"cuptiActivityRegisterTimestampCallback", c"cuptiActivityRegisterCallbacks", c"cuptiActivityEnable"];
static REAL: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

pub fn is_given_up() -> bool {
    GIVEN_UP.load(Ordering::Acquire)
}

/// The function of this library that replaces CUPTI's.
fn own(which: usize) -> *mut c_void {
    match which {
        CLOCK => clock as *mut c_void,
        CALLBACKS => callbacks as *mut c_void,
        _ => enable as *mut c_void,
    }
}

extern "C" fn clock(function: *mut c_void) -> c_int {
    // SAFETY: its prototype.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(real(CLOCK))(function) }
}

extern "C" fn callbacks(request: *mut c_void, complete: *mut c_void) -> c_int {
    type Register = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
    // SAFETY: its prototype.
    unsafe { transmute::<*mut c_void, Register>(real(CALLBACKS))(request, complete) }
}

extern "C" fn enable(kind: u32) -> c_int {
    // SAFETY: its prototype.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(real(ENABLE))(kind) }
}

/// Gives CUPTI up at the first call, and returns CUPTI's function. `watch` stores it before it changes a slot.
fn real(which: usize) -> *mut c_void {
    if is_owner() && !GIVEN_UP.swap(true, Ordering::AcqRel) {
        cupti::give_up();
    }
    REAL[which].load(Ordering::Acquire)
}

/// Redirects the calls of all modules that are loaded now.
pub fn watch(find: &dyn Fn(&core::ffi::CStr) -> *mut c_void) {
    for (real, name) in REAL.iter().zip(NAMES) {
        real.store(find(name), Ordering::Release);
    }
    // SAFETY: a function of this library, which keeps none of its arguments.
    unsafe { system::dl_iterate_phdr(each, null_mut()) };
}

unsafe extern "C" fn each(module: *const system::Module, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the module stays loaded during this call.
    unsafe {
        let module = &*module;
        if let Some(linked) = Linked::of(module) {
            linked.redirect();
        }
    }
    0
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
/// GNU_RELRO: the dynamic linker makes it read-only after it has relocated the module.
const READ_ONLY: u32 = 0x6474_e552;

const NEEDED: i64 = 1;
const SLOTS_SIZE: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const RELOCATIONS_SIZE: i64 = 8;
const SLOTS: i64 = 23;

/// Relocations that take the address of a function.
#[cfg(target_arch = "x86_64")]
const TAKES_ADDRESS: [u32; 2] = [6, 7];
#[cfg(not(target_arch = "x86_64"))]
const TAKES_ADDRESS: [u32; 2] = [1025, 1026];

/// Elf64_Dyn.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    kind: u32,
    symbol: u32,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    rest: [u32; 5],
}

/// A module that is linked against libcupti.
struct Linked<'a> {
    base: usize,
    headers: &'a [system::ProgramHeader],
    strings: *const c_char,
    symbols: *const Symbol,
    relocations: [&'a [Relocation]; 2],
}

impl<'a> Linked<'a> {
    unsafe fn of(module: &'a system::Module) -> Option<Linked<'a>> {
        // SAFETY: the dynamic linker reads these tables in the same way.
        unsafe {
            let headers = slice::from_raw_parts(module.headers, module.count.into());
            let dynamic = headers.iter().find(|header| header.kind == DYNAMIC)?;
            let mut entry = (module.base + dynamic.address as usize) as *const Entry;
            let first = entry;
            let mut values = [0u64; 24];
            while (*entry).tag != 0 {
                let Entry { tag, value } = *entry;
                if tag != NEEDED
                    && let Some(known) = usize::try_from(tag).ok().and_then(|tag| values.get_mut(tag))
                {
                    *known = value;
                }
                entry = entry.add(1);
            }
            // glibc has already added the base to these addresses; other C libraries have not.
            let at = |tag: i64| match values[tag as usize] as usize {
                0 => None,
                value if value < module.base => Some(module.base + value),
                value => Some(value),
            };
            let strings = at(STRINGS)? as *const c_char;
            let mut entry = first;
            while !((*entry).tag == NEEDED && is_libcupti(strings.add((*entry).value as usize))) {
                if (*entry).tag == 0 {
                    return None;
                }
                entry = entry.add(1);
            }
            let table = |tag, size: i64| match at(tag) {
                None => &[][..],
                Some(table) => slice::from_raw_parts(
                    table as *const Relocation,
                    values[size as usize] as usize / size_of::<Relocation>(),
                ),
            };
            let relocations = [table(SLOTS, SLOTS_SIZE), table(RELOCATIONS, RELOCATIONS_SIZE)];
            Some(Linked {
                base: module.base,
                headers,
                strings,
                symbols: at(SYMBOLS)? as *const Symbol,
                relocations,
            })
        }
    }

    unsafe fn redirect(&self) {
        for relocation in self.relocations.into_iter().flatten() {
            // SAFETY: the module's own tables.
            unsafe {
                if TAKES_ADDRESS.contains(&relocation.kind) {
                    let name = (*self.symbols.add(relocation.symbol as usize)).name;
                    let name = self.strings.add(name as usize);
                    if let Some(which) = NAMES.iter().position(|known| same(name, known.as_ptr())) {
                        self.lead(self.base + relocation.offset as usize, which);
                    }
                }
            }
        }
    }

    /// Redirects one slot, unless it holds another library's function.
    unsafe fn lead(&self, slot: usize, which: usize) {
        let any = |kind: u32, fits: &dyn Fn(usize, usize) -> bool| {
            self.headers.iter().filter(|header| header.kind == kind).any(|header| {
                let first = self.base + header.address as usize;
                fits(first, first + header.bytes as usize)
            })
        };
        // SAFETY: a slot of the module, by its own tables.
        let pointer = unsafe { &*(slot as *const AtomicPtr<c_void>) };
        let leads_to = pointer.load(Ordering::Acquire);
        // Before the dynamic linker resolves a slot, it holds an address in the module's own code.
        let is_own_code = any(LOAD, &|first, end| (first..end).contains(&(leads_to as usize)));
        let real = REAL[which].load(Ordering::Acquire);
        if real.is_null() || leads_to != real && !is_own_code {
            return;
        }
        let page = system::page();
        let at = slot & !(page - 1);
        // The dynamic linker protects whole pages only: the last page may also hold variables, which stay writable.
        if any(READ_ONLY, &|first, end| first < at + page && at + page <= end) {
            let at = at as *mut c_void;
            // SAFETY: a page of the module that nothing writes after relocation.
            unsafe {
                if system::mprotect(at, page, system::READ_AND_WRITE) == 0 {
                    pointer.store(own(which), Ordering::Release);
                    system::mprotect(at, page, system::READ);
                }
            }
        } else {
            pointer.store(own(which), Ordering::Release);
        }
    }
}

unsafe fn is_libcupti(name: *const c_char) -> bool {
    // SAFETY: a terminated string; a byte that differs ends it.
    LIBRARY.iter().enumerate().all(|(at, byte)| unsafe { *name.add(at) } as u8 == *byte)
}

unsafe fn same(one: *const c_char, other: *const c_char) -> bool {
    // SAFETY: terminated strings.
    (0..).find_map(|at| unsafe {
        let (one, other) = (*one.add(at), *other.add(at));
        (one != other || one == 0).then_some(one == other)
    }) == Some(true)
}
