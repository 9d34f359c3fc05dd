//! Reads a CPU's rings in place (gpurec_positions in bpf/gpurec.h describes their layout). In: the map of rings. Out:
//! the bytes of each record, in order. Reads each record where the BPF program wrote it, without a copy. Not here: the
//! meaning of a record.

use std::io;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::wire;

const LENGTH: u64 = 0xffff;
const LONGEST: usize = wire::RING_SLACK - wire::RING_HEADER;
/// In a long backlog, space is returned to the ring in steps of this size.
const FREE_EVERY: u64 = 64 << 10;
/// The size of the near ring: a busy thread fills it in a few milliseconds, and it fits into the CPU's cache.
const NEAR: usize = 1 << 20;

/// The sizes of each CPU's two rings, and their offsets in that CPU's part of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub near: usize,
    pub far: usize,
    /// Distinguishes a header from any bytes that a target could have left in its place.
    pub secret: u64,
}

impl Layout {
    /// For `size` bytes per CPU, which must be a power of two and several pages.
    pub fn of(size: usize, secret: u64) -> Layout {
        Layout { near: NEAR.min(size / 4), far: size, secret }
    }

    pub fn far_at(self) -> usize {
        wire::RING_DATA + self.near + wire::RING_SLACK
    }

    /// The number of bytes of one CPU's part of the map.
    pub fn part(self) -> usize {
        self.far_at() + self.far + wire::RING_SLACK
    }
}

/// One CPU's part of the map, mapped as long as one of its rings is in use.
struct Part {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: shared memory. Positions and headers are accessed through atomics, and records belong to one Ring.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by Ring::map.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}

pub struct Ring {
    level: Level,
    /// Offset of its data in the part.
    data: usize,
    size: usize,
    secret: u64,
}

/// How full a ring is, for a thread that need not be the one that reads it.
#[derive(Clone)]
pub struct Level {
    part: Arc<Part>,
    /// Offset of the ring's positions in the part.
    positions: usize,
    /// With more waiting bytes than this, reading is urgent.
    many: usize,
}

impl Level {
    fn position(&self, field: usize) -> &AtomicU64 {
        // SAFETY: an aligned word in the part's first page, which only atomics touch.
        unsafe { &*self.part.start.as_ptr().add(self.positions + field).cast::<AtomicU64>() }
    }

    fn head(&self) -> &AtomicU64 {
        self.position(offset_of!(wire::Positions, head))
    }

    fn tail(&self) -> &AtomicU64 {
        self.position(offset_of!(wire::Positions, tail))
    }

    /// True if enough bytes wait that reading this ring must come before any other work.
    pub fn fills(&self) -> bool {
        self.waiting() > self.many
    }

    /// Bytes waiting to be read.
    pub fn waiting(&self) -> usize {
        let end = self.head().load(Ordering::Acquire);
        end.saturating_sub(self.tail().load(Ordering::Relaxed)) as usize
    }
}

/// Why reading stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Everything produced before the call was read.
    Drained,
    /// A record is still being written.
    Busy,
    /// The requested number of records was read.
    Many,
}

impl Ring {
    /// The near and the far ring of a CPU.
    pub fn map(fd: impl AsFd, layout: Layout, cpu: usize) -> io::Result<[Ring; 2]> {
        Ring::map_bytes(fd, layout, cpu, layout.part())
    }

    /// Maps the near ring alone, because Linux takes long to map each page of a far ring.
    pub fn map_near(fd: impl AsFd, layout: Layout, cpu: usize) -> io::Result<Ring> {
        let [near, _] = Ring::map_bytes(fd, layout, cpu, layout.far_at())?;
        Ok(near)
    }

    /// Maps the first `bytes` bytes of the part; a ring beyond them must not be read.
    fn map_bytes(fd: impl AsFd, layout: Layout, cpu: usize, bytes: usize) -> io::Result<[Ring; 2]> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let offset = (cpu * layout.part()) as libc::off_t;
        // SAFETY: a new mapping at an address that Linux chooses.
        let start = unsafe { mmap(None, length, both, MapFlags::MAP_SHARED, fd, offset)? };
        let part = Arc::new(Part { start: start.cast(), length: bytes });
        // Without this, a fork would take long to copy these pages' mappings for a child that needs none of them. If
        // the call fails, children get them.
        // SAFETY: the mapping from above; no child uses it.
        let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTFORK) };
        let ring = |number: usize, data, size| {
            let positions = number * size_of::<wire::Positions>();
            let level = Level { part: part.clone(), positions, many: layout.far / 8 };
            Ring { level, data, size, secret: layout.secret }
        };
        Ok([ring(0, wire::RING_DATA, layout.near), ring(1, layout.far_at(), layout.far)])
    }

    pub fn level(&self) -> &Level {
        &self.level
    }

    /// Reads the records that were produced before this call, at most `most` of them, and passes each to `each`.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> Stopped {
        let end = self.level.head().load(Ordering::Acquire);
        let mut at = self.level.tail().load(Ordering::Relaxed);
        let mut freed = at;
        let mut stopped = Stopped::Drained;
        let mut left = most;
        while at < end {
            if left == 0 {
                stopped = Stopped::Many;
                break;
            }
            left -= 1;
            let offset = at as usize & (self.size - 1);
            // SAFETY: the record begins below the ring's size, and the slack behind the ring has room for the longest
            // one; headers are aligned to 8 bytes.
            let header = unsafe { self.level.part.start.as_ptr().add(self.data + offset) };
            // SAFETY: as above; programs write it while we read.
            let mark = unsafe { &*header.cast::<AtomicU64>() }.load(Ordering::Acquire);
            let length = (mark & LENGTH) as usize;
            if mark & !LENGTH != (at ^ self.secret) << LENGTH.count_ones() || length > LONGEST {
                stopped = Stopped::Busy;
                break;
            }
            // SAFETY: the program wrote this many bytes behind the header before it wrote the header, and no program
            // writes there again before the tail passes them.
            each(unsafe { std::slice::from_raw_parts(header.add(wire::RING_HEADER), length) });
            let room = (length + wire::RING_HEADER).next_multiple_of(8);
            at += room as u64;
            if at - freed >= FREE_EVERY {
                self.level.tail().store(at, Ordering::Release);
                freed = at;
            }
        }
        self.level.tail().store(at, Ordering::Release);
        stopped
    }

    pub fn size(&self) -> usize {
        self.size
    }
}
