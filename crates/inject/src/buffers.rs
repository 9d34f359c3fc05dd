//! CUPTI's buffers: it asks for empty ones and returns full ones, on threads of its own or of the program. In: completed
//! buffers. Out: their records in the ring. CUPTI always gets a buffer, because versions before 12.9 end the process
//! where they get none. They are of the C library's heap: if another client takes CUPTI over, it may be given a buffer
//! of this one, and mostly frees what it is given. Such a buffer is never used here again.

use core::ffi::{c_char, c_void};
use core::ptr::{null_mut, read_unaligned};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::shape::{self, class, record};
use crate::{cupti, is_owner, ring, system};

/// CUPTI recommends one to ten.
const BYTES: usize = 1 << 20;
const MOST: usize = 32;

const EMPTY: u8 = 0;
const FREE: u8 = 1;
const TAKEN: u8 = 2;

struct Slot {
    state: AtomicU8,
    at: AtomicPtr<u8>,
}

static POOL: [Slot; MOST] =
    [const { Slot { state: AtomicU8::new(EMPTY), at: AtomicPtr::new(null_mut()) } }; MOST];

/// Where records go that are not read, if there is no memory: its bytes mean nothing, because several threads may write
/// into it.
#[repr(align(4096))]
struct Discarded(core::cell::UnsafeCell<[u8; DISCARDED_BYTES]>);

const DISCARDED_BYTES: usize = 16 << 10;

// SAFETY: only CUPTI writes into it, and nothing is ever read from it.
unsafe impl Sync for Discarded {}

static DISCARDED: Discarded = Discarded(core::cell::UnsafeCell::new([0; DISCARDED_BYTES]));

fn take() -> Option<*mut u8> {
    let become_taken = |slot: &Slot, from| {
        slot.state.compare_exchange(from, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    if let Some(slot) = POOL.iter().find(|slot| become_taken(slot, FREE)) {
        return Some(slot.at.load(Ordering::Relaxed));
    }
    let slot = POOL.iter().find(|slot| become_taken(slot, EMPTY))?;
    // SAFETY: a plain integer.
    let memory: *mut u8 = unsafe { system::malloc(BYTES) }.cast();
    slot.at.store(memory, Ordering::Relaxed);
    if memory.is_null() {
        slot.state.store(EMPTY, Ordering::Release);
        return None;
    }
    Some(memory)
}

/// The number of threads that copy records out of a buffer.
static COPYING: AtomicU32 = AtomicU32::new(0);

/// Returns a buffer. With --lossless it waits for one while other threads copy records: each of them frees its buffer
/// when the recorder has made room. It does not wait for buffers that CUPTI keeps.
fn take_or_wait() -> Option<*mut u8> {
    let header = ring::header()?;
    let look = || match take() {
        None if COPYING.load(Ordering::Acquire) == 0 => Some(take()),
        None => None,
        taken => Some(taken),
    };
    ring::wait(header, look).flatten()
}

fn give_back(buffer: *mut u8) {
    if let Some(slot) = POOL.iter().find(|slot| slot.at.load(Ordering::Relaxed) == buffer) {
        slot.state.store(FREE, Ordering::Release);
    }
}

pub extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    let taken = if is_owner() { take_or_wait() } else { None };
    let (at, bytes) = taken.map_or_else(discarded, |at| (at, BYTES));
    // SAFETY: CUPTI's own variables. 0: as many records as fit.
    unsafe {
        *buffer = at;
        *size = bytes;
        *most = 0;
    }
}

fn discarded() -> (*mut u8, usize) {
    // SAFETY: a plain integer.
    let memory: *mut u8 = unsafe { system::malloc(DISCARDED_BYTES) }.cast();
    let at = if memory.is_null() { DISCARDED.0.get().cast() } else { memory };
    (at, DISCARDED_BYTES)
}

pub extern "C" fn complete(context: *mut c_void, stream: u32, buffer: *mut u8, _size: usize, valid: usize) {
    if !is_owner() {
        return;
    }
    let Some(header) = ring::header() else { return };
    let is_ours = POOL.iter().any(|slot| slot.at.load(Ordering::Relaxed) == buffer);
    if is_ours {
        COPYING.fetch_add(1, Ordering::Relaxed);
        if header.stop.load(Ordering::Relaxed) == 0 {
            // SAFETY: CUPTI's own buffer, which it has completed.
            unsafe { records(buffer, valid) };
        }
        give_back(buffer);
        COPYING.fetch_sub(1, Ordering::Release);
    } else {
        header.discarded.fetch_add(1, Ordering::Relaxed);
        if buffer != DISCARDED.0.get().cast() {
            // SAFETY: from `discarded`.
            unsafe { system::free(buffer.cast()) };
        }
    }
    // SAFETY: values that CUPTI gave.
    let dropped = unsafe { cupti::take_dropped(context, stream) };
    header.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
}

unsafe fn records(buffer: *mut u8, valid: usize) {
    let mut at = null_mut();
    // SAFETY: what CUPTI returns is a record of its buffer.
    while let Some(next) = unsafe { cupti::next_record(buffer, valid, at) } {
        at = next;
        unsafe { one(at) };
    }
}

/// The kinds, the bytes that are copied of each, and its class.
const COPIED: [(u32, usize, usize); 8] = [
    (10, 160, class::KERNEL),
    (1, 80, class::COPY),
    (22, 88, class::COPY),
    (2, 80, class::SET),
    (51, 40, class::GRAPH),
    (4, 40, class::API),
    (5, 40, class::API),
    (17, 40, class::OVERHEAD),
];

/// Where a kernel's record has the pointer to its name, and an API record the function.
const NAME: usize = 104;
const FUNCTION: usize = 4;

unsafe fn one(at: *const u8) {
    // SAFETY: every record begins with its kind.
    let kind = unsafe { read_unaligned(at.cast::<u32>()) };
    let Some((_, bytes, class)) = COPIED.iter().find(|one| one.0 == kind) else { return };
    let mut name = 0;
    // SAFETY: the fields of these kinds, in every version.
    unsafe {
        match *class {
            class::API => {
                let function = read_unaligned(at.add(FUNCTION).cast::<u32>());
                let ranges: &[(u16, u16)] = if kind == 4 { &shape::DRIVER } else { &shape::RUNTIME };
                if !shape::submits(ranges, function) {
                    return;
                }
            }
            class::KERNEL => match named(read_unaligned(at.add(NAME).cast::<*const c_char>())) {
                Some(hash) => name = hash,
                None => return ring::count_no_room(class::KERNEL),
            },
            _ => {}
        }
        if !ring::write(record::ACTIVITY, name, at, *bytes) {
            ring::count_no_room(*class);
        }
    }
}

/// Hashes of names that are in the ring already. A lost entry only writes a name again.
static KNOWN: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

/// The hash of a kernel's name, which is in the ring from here on. None: there was no room for it.
unsafe fn named(name: *const c_char) -> Option<u64> {
    if name.is_null() {
        return Some(0);
    }
    // SAFETY: CUPTI's own terminated string.
    let length = unsafe { system::strlen(name) }.min(shape::LONGEST_NAME);
    // SAFETY: within the string.
    let hash = unsafe { hash(name.cast(), length) };
    let slot = |step: usize| KNOWN.get((hash as usize).wrapping_add(step) % KNOWN.len());
    if (0..4).filter_map(slot).any(|slot| slot.load(Ordering::Relaxed) == hash) {
        return Some(hash);
    }
    // SAFETY: as above.
    if !unsafe { ring::write_name(hash, name.cast(), length) } {
        return None;
    }
    let empty = (0..4).filter_map(slot).find(|slot| slot.load(Ordering::Relaxed) == 0);
    if let Some(slot) = empty.or(slot(0)) {
        slot.store(hash, Ordering::Relaxed);
    }
    Some(hash)
}

/// Never 0. Eight bytes at a time: names of kernels have hundreds.
unsafe fn hash(at: *const u8, length: usize) -> u64 {
    let mut hash = length as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut add = |word: u64| {
        hash = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        hash ^= hash >> 32;
    };
    for done in (0..length / 8).map(|word| word * 8) {
        // SAFETY: less than the length.
        add(unsafe { read_unaligned(at.add(done).cast::<u64>()) });
    }
    let mut last = [0u8; 8];
    for (to, done) in last.iter_mut().zip(length / 8 * 8..length) {
        // SAFETY: as above.
        *to = unsafe { *at.add(done) };
    }
    add(u64::from_le_bytes(last));
    hash | 1
}
