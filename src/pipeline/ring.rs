//! A BPF ring buffer, read in place. In: the map's descriptor. Out: each record's bytes,
//! in order. The position moves on only when the caller says so, so a record is read
//! where the kernel put it, without a copy and without a call into libbpf.
//! What may not be done here: interpret a record.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;
/// While a long backlog is read, room is given back to the kernel in steps of this size.
const FREE_EVERY: usize = 64 << 10;

pub struct Ring {
    consumer: NonNull<AtomicUsize>,
    producer: NonNull<AtomicUsize>,
    data: NonNull<u8>,
    size: usize,
    page: usize,
}

// SAFETY: the pointers are to shared memory that this Ring alone maps; it has one reader,
// and what the kernel writes concurrently is accessed through atomics.
unsafe impl Send for Ring {}

/// Why reading stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Everything produced before the call was read.
    Drained,
    /// A record is still being written.
    Busy,
}

impl Ring {
    /// `size` is the map's max_entries, a power of two and a multiple of the page size.
    pub fn map(fd: impl AsFd, size: usize) -> io::Result<Ring> {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let one = NonZeroUsize::new(page).ok_or(io::ErrorKind::InvalidInput)?;
        let rest = NonZeroUsize::new(page + 2 * size).ok_or(io::ErrorKind::InvalidInput)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new mappings at an address of the kernel's choice.
        let consumer = unsafe { mmap(None, one, both, MapFlags::MAP_SHARED, fd.as_fd(), 0)? };
        // SAFETY: as above; the data pages follow the producer page, twice in a row.
        let producer = unsafe {
            let offset = page as libc::off_t;
            mmap(None, rest, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, fd.as_fd(), offset)
        };
        let producer = producer.inspect_err(|_| {
            // SAFETY: mapped above with this length, used by nobody yet.
            let _ = unsafe { munmap(consumer, page) };
        })?;
        // SAFETY: page is inside the mapping of page + 2 * size bytes.
        let data = unsafe { producer.cast::<u8>().add(page) };
        Ok(Ring { consumer: consumer.cast(), producer: producer.cast(), data, size, page })
    }

    /// Reads what was produced before this call, giving each record to `each`.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> Stopped {
        // SAFETY: both positions are aligned words at the start of their mapped pages.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        let end = producer.load(Ordering::Acquire);
        let mut at = consumer.load(Ordering::Relaxed);
        let mut freed = at;
        let mut stopped = Stopped::Drained;
        while at < end {
            let offset = at & (self.size - 1);
            // SAFETY: the data is mapped twice in a row, so a record that begins below
            // size is contiguous; headers are 8-byte aligned.
            let header = unsafe { &*self.data.add(offset).as_ptr().cast::<AtomicU32>() };
            let length = header.load(Ordering::Acquire);
            if length & BUSY != 0 {
                stopped = Stopped::Busy;
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            if length & DISCARDED == 0 {
                // SAFETY: the kernel wrote this many bytes after the header, and leaves
                // them alone until the consumer position passes them.
                each(unsafe { std::slice::from_raw_parts(self.data.add(offset + HEADER).as_ptr(), bytes) });
            }
            at += (bytes + HEADER).next_multiple_of(8);
            if at - freed >= FREE_EVERY {
                consumer.store(at, Ordering::Release);
                freed = at;
            }
        }
        consumer.store(at, Ordering::Release);
        stopped
    }

    /// Bytes waiting to be read.
    pub fn waiting(&self) -> usize {
        // SAFETY: as in read.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        producer.load(Ordering::Acquire).saturating_sub(consumer.load(Ordering::Relaxed))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both mappings are ours, with these lengths.
        unsafe {
            let _ = munmap(self.consumer.cast(), self.page);
            let _ = munmap(self.producer.cast(), self.page + 2 * self.size);
        }
    }
}
