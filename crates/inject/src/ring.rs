//! The writer's side of the ring (shape.rs). In: pieces of records. Out: the records in the ring, or a count of those that
//! found no room. No lock: a thread that was stopped in here holds no other one up.

use core::ffi::c_int;
use core::ptr::{copy_nonoverlapping, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::shape::{self, Header, record};
use crate::system;

static RING: AtomicPtr<Header> = AtomicPtr::new(null_mut());

/// The position of `tail` at which writers stopped waiting. 1 is no such position, because `tail` is a multiple of 8.
static GIVEN_UP: AtomicU64 = AtomicU64::new(1);
/// Writers wait for room, also without --lossless.
static WAITS: AtomicBool = AtomicBool::new(false);
/// A writer stops waiting when it has looked this often, a millisecond apart, and the recorder has read nothing.
const LOOKS: u32 = 2000;

pub fn header() -> Option<&'static Header> {
    // SAFETY: mapped for good, and the rest is atomic.
    unsafe { RING.load(Ordering::Acquire).as_ref() }
}

pub fn open(fd: c_int) -> Option<&'static Header> {
    let length = shape::DATA + shape::SIZE;
    // SAFETY: a new mapping at an address that Linux chooses.
    let at = unsafe { system::mmap(null_mut(), length, system::READ_AND_WRITE, system::SHARED, fd, 0) };
    // SAFETY: its own descriptor; the mapping stays.
    unsafe { system::close(fd) };
    if at as isize == -1 {
        return None;
    }
    // SAFETY: the mapping from above, which a child of fork does not need.
    unsafe { system::madvise(at, length, system::NOT_IN_CHILDREN) };
    let ring: *mut Header = at.cast();
    // SAFETY: the recorder has filled it.
    let header = unsafe { &*ring };
    if (header.magic, header.abi, header.size) != (shape::MAGIC, shape::ABI, shape::SIZE as u64) {
        return None;
    }
    RING.store(ring, Ordering::Release);
    Some(header)
}

/// Room for a record of `length` bytes, a multiple of 8.
struct Room {
    at: *mut u8,
    length: usize,
}

fn room(header: &Header, length: usize) -> Option<Room> {
    reserve(header, length).or_else(|| wait(header, || reserve(header, length)))
}

fn reserve(header: &Header, length: usize) -> Option<Room> {
    // SAFETY: behind the header.
    let data = unsafe { RING.load(Ordering::Relaxed).cast::<u8>().add(shape::DATA) };
    let mut head = header.head.load(Ordering::Relaxed);
    loop {
        let at = head as usize & (shape::SIZE - 1);
        let rest = shape::SIZE - at;
        let skipped = if length <= rest { 0 } else { rest };
        let needed = (skipped + length) as u64;
        let tail = header.tail.load(Ordering::Acquire);
        if head.wrapping_sub(tail).saturating_add(needed) > shape::SIZE as u64 {
            return None;
        }
        match header.head.compare_exchange_weak(
            head,
            head.wrapping_add(needed),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                if skipped > 0 {
                    // SAFETY: reserved above.
                    finish(unsafe { data.add(at) }, skipped, record::SKIP);
                }
                let at = if skipped > 0 { 0 } else { at };
                // SAFETY: `at` plus `length` is within the ring.
                return Some(Room { at: unsafe { data.add(at) }, length });
            }
            Err(now) => head = now,
        }
    }
}

/// From here on writers wait as with --lossless. At the process's exit, and when another client takes CUPTI over, CUPTI
/// delivers all its records at once.
pub fn wait_for_room() {
    WAITS.store(true, Ordering::Relaxed);
}

/// Calls `look` until it finds something. Without --lossless it calls it once. With --lossless the calling thread
/// sleeps between two calls; it is a thread of CUPTI, or one that submits work or flushes CUPTI, so this pauses the
/// program. The recorder needs nothing from that thread. If the recorder reads nothing for two seconds, it is gone or
/// stuck: then no thread waits until the recorder reads again, and the program continues.
#[cold]
#[inline(never)]
pub fn wait<T>(header: &Header, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let (mut tail, mut looks) = (0, 0);
    loop {
        let found = look();
        let waits = header.lossless != 0 || WAITS.load(Ordering::Relaxed);
        if found.is_some() || !waits || header.stop.load(Ordering::Relaxed) != 0 {
            return found;
        }
        let now = header.tail.load(Ordering::Relaxed);
        if now != tail || looks == 0 {
            (tail, looks) = (now, 0);
        }
        if looks >= LOOKS || GIVEN_UP.load(Ordering::Relaxed) == tail {
            GIVEN_UP.store(tail, Ordering::Relaxed);
            return None;
        }
        looks += 1;
        system::sleep();
    }
}

fn finish(at: *mut u8, length: usize, what: u32) {
    // SAFETY: an aligned word of the ring that is reserved for this record.
    let word = unsafe { &*at.cast::<AtomicU64>() };
    word.store(length as u64 | u64::from(what) << 32, Ordering::Release);
}

/// `first`, then `bytes` at `from`, as one record. False: there was no room.
pub unsafe fn write(what: u32, first: u64, from: *const u8, bytes: usize) -> bool {
    let Some(header) = header() else { return false };
    let length = (16 + bytes).next_multiple_of(8);
    let Some(room) = room(header, length) else { return false };
    // SAFETY: the room is 16 bytes longer than what is copied; the caller answers for `from`.
    unsafe {
        room.at.add(8).cast::<u64>().write(first);
        copy_nonoverlapping(from, room.at.add(16), bytes);
    }
    finish(room.at, room.length, what);
    true
}

/// As `write`, with the number of bytes in front of them.
pub unsafe fn write_name(hash: u64, from: *const u8, bytes: usize) -> bool {
    let Some(header) = header() else { return false };
    let length = (24 + bytes).next_multiple_of(8);
    let Some(room) = room(header, length) else { return false };
    // SAFETY: as above.
    unsafe {
        room.at.add(8).cast::<u64>().write(hash);
        room.at.add(16).cast::<u64>().write(bytes as u64);
        copy_nonoverlapping(from, room.at.add(24), bytes);
    }
    finish(room.at, room.length, record::NAME);
    true
}

pub fn count_no_room(class: usize) {
    if let Some(count) = header().and_then(|header| header.no_room.get(class)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}
