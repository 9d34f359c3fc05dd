//! The reader's side of the ring that the injected library fills (crates/inject/src/shape.rs describes it). In: shared
//! memory, in which the recorded process may write anything at any time. Out: records, and counts. A process that breaks
//! the ring's rules is read no further.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::unistd::ftruncate;

use super::shape::{self, Header, record};

pub use super::shape::{class, state, step};

const LENGTH: usize = shape::DATA + shape::SIZE;
/// What has been read is given back in steps of this size.
const GIVE_BACK: u64 = 64 << 10;

#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The hash of the kernel's name, or 0, and the first bytes of CUPTI's record.
    Activity { name: u64, bytes: &'a [u8] },
    /// Before the first activity that has it.
    Name { hash: u64, name: &'a [u8] },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    Drained,
    /// A record is still being written.
    Busy,
    /// The requested number of records was read.
    Many,
    /// What is there is no ring.
    Broken,
}

/// How the library should record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Record graphs as a whole.
    pub graphs: bool,
    /// Wait where the ring has no room.
    pub lossless: bool,
}

/// What the library says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub state: u32,
    pub step: u32,
    pub result: i32,
    pub version: u32,
    pub since: u64,
    pub flushed: bool,
    pub discarded: u64,
    pub dropped: u64,
    pub no_room: [u64; class::COUNT],
}

pub struct Ring {
    at: NonNull<u8>,
    tail: u64,
    /// Nothing behind it is read.
    until: Option<u64>,
    broken: bool,
    scratch: Box<[u8; shape::LONGEST]>,
}

// SAFETY: the mapping belongs to this value. What others write there is only copied.
unsafe impl Send for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped with this length.
        let _ = unsafe { munmap(self.at.cast(), LENGTH) };
    }
}

impl Ring {
    /// A new ring, and the descriptor for the process that writes it.
    pub fn make(wanted: Wanted) -> io::Result<(Ring, OwnedFd)> {
        let fd = memfd_create("gpurec-gpu", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&fd, LENGTH as i64)?;
        // Otherwise the process could cut it off, and reading it would end gpurec.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        let length = NonZeroUsize::new(LENGTH).ok_or(io::ErrorKind::InvalidInput)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that Linux chooses.
        let at = unsafe { mmap(None, length, both, MapFlags::MAP_SHARED, &fd, 0)? };
        // SAFETY: the mapping from above; no child uses it.
        let _ = unsafe { madvise(at, LENGTH, MmapAdvise::MADV_DONTFORK) };
        let mut ring = Ring {
            at: at.cast(),
            tail: 0,
            until: None,
            broken: false,
            scratch: Box::new([0; shape::LONGEST]),
        };
        // SAFETY: no other process has it yet.
        let header = unsafe { ring.at.cast::<Header>().as_mut() };
        (header.magic, header.abi, header.size) = (shape::MAGIC, shape::ABI, shape::SIZE as u64);
        (header.graphs, header.lossless) = (wanted.graphs.into(), wanted.lossless.into());
        ring.tail = header.tail.load(Ordering::Relaxed);
        Ok((ring, fd))
    }

    /// Only the atomic fields: the others are the process's to write.
    fn header(&self) -> &Header {
        // SAFETY: mapped as long as this value is, and aligned to a page.
        unsafe { self.at.cast::<Header>().as_ref() }
    }

    pub fn facts(&self) -> Facts {
        let header = self.header();
        let mut no_room = [0; class::COUNT];
        for (to, from) in no_room.iter_mut().zip(&header.no_room) {
            *to = from.load(Ordering::Relaxed);
        }
        Facts {
            state: header.state.load(Ordering::Acquire),
            step: header.step.load(Ordering::Relaxed),
            result: header.result.load(Ordering::Relaxed),
            version: header.version.load(Ordering::Relaxed),
            since: header.since.load(Ordering::Relaxed),
            flushed: header.flushed.load(Ordering::Acquire) != 0,
            discarded: header.discarded.load(Ordering::Relaxed).into(),
            dropped: header.dropped.load(Ordering::Relaxed),
            no_room,
        }
    }

    /// As the library says it.
    #[cfg(test)]
    pub fn begins_at(&self, since: u64) {
        self.header().since.store(since, Ordering::Relaxed);
    }

    /// The library copies no more records from here on.
    pub fn stop(&self) {
        self.header().stop.store(1, Ordering::Relaxed);
    }

    /// Marks the end of what is read: records that the process writes later are ignored.
    pub fn close(&mut self) {
        self.stop();
        let head = self.header().head.load(Ordering::Acquire);
        self.until.get_or_insert(head);
    }

    /// Reads up to `most` records.
    pub fn read(&mut self, most: usize, each: &mut dyn FnMut(Record)) -> Stopped {
        if self.broken {
            return Stopped::Broken;
        }
        let head = self.until.unwrap_or_else(|| self.header().head.load(Ordering::Acquire));
        let mut given_back = self.tail;
        let mut stopped = Stopped::Many;
        for _ in 0..most {
            if self.tail == head {
                stopped = Stopped::Drained;
                break;
            }
            match self.one(head, each) {
                None => {
                    stopped = Stopped::Busy;
                    break;
                }
                Some(false) => {
                    self.broken = true;
                    stopped = Stopped::Broken;
                    break;
                }
                Some(true) if self.tail.wrapping_sub(given_back) >= GIVE_BACK => {
                    given_back = self.tail;
                    self.header().tail.store(self.tail, Ordering::Release);
                }
                Some(true) => {}
            }
        }
        self.header().tail.store(self.tail, Ordering::Release);
        stopped
    }

    /// None: the next record is not finished. False: it is none.
    fn one(&mut self, head: u64, each: &mut dyn FnMut(Record)) -> Option<bool> {
        let at = self.tail as usize & (shape::SIZE - 1);
        // SAFETY: positions are multiples of 8 within the ring.
        let word = unsafe { self.at.add(shape::DATA + at).cast::<AtomicU64>().as_ref() };
        let word = word.load(Ordering::Acquire);
        if word == 0 {
            return None;
        }
        let (length, what) = (word as u32 as usize, (word >> 32) as u32);
        let filled = head.wrapping_sub(self.tail);
        let longest = if what == record::SKIP { shape::SIZE } else { shape::LONGEST };
        let fits = (8..=longest).contains(&length)
            && length % 8 == 0
            && at + length <= shape::SIZE
            && filled <= shape::SIZE as u64
            && length as u64 <= filled;
        if !fits {
            return Some(false);
        }
        // SAFETY: within the ring, by the checks above.
        let from = unsafe { self.at.add(shape::DATA + at) };
        let mut good = true;
        if what != record::SKIP {
            let to = &mut self.scratch[..length];
            // SAFETY: as many bytes on both sides. Whatever the process writes meanwhile, these are only bytes.
            unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), length) };
            match parse(what, &to[8..]) {
                Some(record) => each(record),
                None => good = false,
            }
        }
        // SAFETY: as above.
        unsafe { from.as_ptr().write_bytes(0, length) };
        self.tail = self.tail.wrapping_add(length as u64);
        Some(good)
    }
}

/// What is behind the word in front.
fn parse(what: u32, bytes: &[u8]) -> Option<Record<'_>> {
    let (first, rest) = bytes.split_first_chunk()?;
    let first = u64::from_ne_bytes(*first);
    match what {
        record::ACTIVITY => Some(Record::Activity { name: first, bytes: rest }),
        record::NAME => {
            let (length, rest) = rest.split_first_chunk()?;
            let name = rest.get(..usize::try_from(u64::from_ne_bytes(*length)).ok()?)?;
            Some(Record::Name { hash: first, name })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer as the library is one, and as it must not be.
    struct Writer<'a>(&'a Ring, u64);

    impl Writer<'_> {
        fn word(&self, position: u64, word: u64) {
            let at = shape::DATA + (position as usize & (shape::SIZE - 1));
            // SAFETY: a word of the mapping.
            unsafe { self.0.at.add(at).cast::<AtomicU64>().as_ref() }.store(word, Ordering::Release);
        }

        fn head(&mut self, by: u64) -> &mut Self {
            self.1 += by;
            self.0.header().head.store(self.1, Ordering::Release);
            self
        }

        fn put(&mut self, what: u32, words: &[u64]) {
            let length = 8 * (words.len() as u64 + 1);
            let rest = shape::SIZE as u64 - (self.1 & (shape::SIZE as u64 - 1));
            if rest < length {
                self.word(self.1, rest | u64::from(record::SKIP) << 32);
                self.head(rest);
            }
            words.iter().zip(1..).for_each(|(word, at)| self.word(self.1 + 8 * at, *word));
            self.word(self.1, length | u64::from(what) << 32);
            self.head(length);
        }
    }

    fn all(ring: &mut Ring) -> (Stopped, Vec<String>) {
        let mut found = Vec::new();
        let stopped = ring.read(1000, &mut |record| {
            found.push(match record {
                Record::Activity { name, bytes } => format!("{name} {}", bytes.len()),
                Record::Name { hash, name } => format!("{hash}={}", String::from_utf8_lossy(name)),
            })
        });
        (stopped, found)
    }

    #[test]
    fn records_come_in_order_all_around_the_ring() {
        let (mut ring, _fd) = Ring::make(Wanted::default()).unwrap();
        let mut head = 0;
        for round in 0..1000u64 {
            // SAFETY: the writer lives only between two reads.
            let shared = unsafe { &*std::ptr::from_ref(&ring) };
            let mut writer = Writer(shared, head);
            writer.put(record::NAME, &[round + 1, 3, u64::from_ne_bytes(*b"abc\0\0\0\0\0")]);
            for size in 0..100 {
                writer.put(record::ACTIVITY, &vec![7; 1 + (size * 7) % 50]);
            }
            head = writer.1;
            let (stopped, found) = all(&mut ring);
            assert_eq!((stopped, found.len()), (Stopped::Drained, 101), "{round}");
            assert_eq!(found[0], format!("{}=abc", round + 1));
            assert_eq!(found[1..3], ["7 0", "7 56"]);
        }
        assert!(head > shape::SIZE as u64);
    }

    #[test]
    fn an_unfinished_record_is_waited_for() {
        let (mut ring, _fd) = Ring::make(Wanted::default()).unwrap();
        // SAFETY: as above.
        let shared = unsafe { &*std::ptr::from_ref(&ring) };
        let mut writer = Writer(shared, 0);
        writer.put(record::ACTIVITY, &[1, 2]);
        writer.head(24);
        assert_eq!(all(&mut ring), (Stopped::Busy, vec!["1 8".to_owned()]));
        writer.word(24 + 8, 5);
        writer.word(24, 24 | u64::from(record::ACTIVITY) << 32);
        assert_eq!(all(&mut ring), (Stopped::Drained, vec!["5 8".to_owned()]));
    }

    #[test]
    fn what_is_no_ring_is_read_no_further() {
        let activity = u64::from(record::ACTIVITY) << 32;
        for (head, word) in [
            (64, 4),
            (64, 12 | activity),
            (64, 72 | activity),
            (64, 16 | 9 << 32),
            (1 << 40, 16 | activity),
            (1 << 30, (shape::LONGEST as u64 + 8) | activity),
            (1 << 30, (1 << 30) | u64::from(record::SKIP) << 32),
            (64, 24 | u64::from(record::NAME) << 32),
        ] {
            let (mut ring, _fd) = Ring::make(Wanted { graphs: true, lossless: true }).unwrap();
            // SAFETY: as above.
            let shared = unsafe { &*std::ptr::from_ref(&ring) };
            let mut writer = Writer(shared, 0);
            writer.word(16, u64::MAX);
            writer.word(0, word);
            writer.head(head);
            assert_eq!(all(&mut ring), (Stopped::Broken, vec![]), "{head} {word:#x}");
            assert_eq!(all(&mut ring).0, Stopped::Broken);
        }
    }

    #[test]
    fn a_closed_ring_has_an_end_although_the_process_writes_on() {
        let (mut ring, _fd) = Ring::make(Wanted::default()).unwrap();
        // SAFETY: as above.
        let shared = unsafe { &*std::ptr::from_ref(&ring) };
        let mut writer = Writer(shared, 0);
        writer.put(record::ACTIVITY, &[1, 2]);
        ring.close();
        writer.put(record::ACTIVITY, &[3, 4]);
        assert_eq!(all(&mut ring), (Stopped::Drained, vec!["1 8".to_owned()]));
        assert_eq!(all(&mut ring), (Stopped::Drained, vec![]));
    }

    #[test]
    fn the_size_cannot_be_changed() {
        let (_ring, fd) = Ring::make(Wanted::default()).unwrap();
        for size in [0, 1, LENGTH as i64 + 1] {
            assert!(ftruncate(&fd, size).is_err());
        }
    }
}
