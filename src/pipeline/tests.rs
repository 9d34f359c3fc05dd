//! What the tests share: random numbers that are the same every time, items and records
//! by hand, and a ring that the test itself fills as the kernel would.

mod decode;
mod kernel;
mod loss;
mod model;
mod order;
mod pair;
mod pair_random;
mod pieces;
mod ring;
mod sink;
mod worker;

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::decode::{Item, What};
use super::ring::Ring;
use crate::probe::wire;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not begin alike.
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

pub fn head(kind: u16, flags: u16, ts: u64, tid: u32, seq: u32, probe: u32) -> wire::Head {
    wire::Head { ts, tid, seq, kind, flags, probe }
}

pub fn call_record(ts: u64, tid: u32, seq: u32, probe: u32, sp: u64) -> Vec<u8> {
    let head = head(wire::CALL, 0, ts, tid, seq, probe);
    wire::bytes(&wire::Call { head, pid: tid, payload: 0, words: 0, sp, args: [1, 2, 3, 4, 5, 6] }).to_vec()
}

pub fn return_record(ts: u64, tid: u32, seq: u32, probe: u32, begin: u64, value: u64) -> Vec<u8> {
    let head = head(wire::RETURN, 0, ts, tid, seq, probe);
    wire::bytes(&wire::Return { head, begin, value, payload: 0, pad: 0 }).to_vec()
}

pub fn exit_item(ts: u64, pid: u32, tid: u32, process: bool) -> Item {
    Item { ts, tid, seq: 0, what: What::Exit { pid, status: 0, process } }
}

/// A file laid out as the kernel shows a ring buffer: the consumer's page, the producer's
/// page, and the data, twice in a row.
pub struct FakeRing {
    file: File,
    page: u64,
    size: u64,
    produced: u64,
}

pub const BUSY: u32 = 1 << 31;
pub const DISCARDED: u32 = 1 << 30;

impl FakeRing {
    /// Both positions begin at `start`, as after a while of use.
    pub fn new(size: usize, start: u64) -> FakeRing {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap() as u64;
        let file = File::from(memfd_create("gpurec-test-ring", MFdFlags::MFD_CLOEXEC).unwrap());
        let size = size as u64;
        file.set_len(2 * page + 2 * size).unwrap();
        let mut ring = FakeRing { file, page, size, produced: start };
        ring.write_word(0, start);
        ring.produce(0);
        ring
    }

    pub fn map(&self) -> Ring {
        Ring::map(&self.file, self.size as usize).unwrap()
    }

    pub fn consumed(&self) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, 0).unwrap();
        u64::from_ne_bytes(word)
    }

    pub fn produced(&self) -> u64 {
        self.produced
    }

    pub fn has_room(&self, length: usize) -> bool {
        self.produced + room(length) - self.consumed() < self.size
    }

    pub fn put(&mut self, record: &[u8]) {
        self.put_as(record, 0);
    }

    /// Returns where the record is, for `set_flags`.
    pub fn put_as(&mut self, record: &[u8], flags: u32) -> u64 {
        assert!(self.has_room(record.len()), "the test fills the ring");
        let at = self.produced;
        self.write_data(at, &(record.len() as u32 | flags).to_ne_bytes());
        self.write_data(at + 8, record);
        self.produce(room(record.len()));
        at
    }

    pub fn set_flags(&self, at: u64, length: usize, flags: u32) {
        self.write_data(at, &(length as u32 | flags).to_ne_bytes());
    }

    fn produce(&mut self, more: u64) {
        self.produced += more;
        self.write_word(self.page, self.produced);
    }

    fn write_word(&self, offset: u64, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), offset).unwrap();
    }

    fn write_data(&self, at: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let offset = 2 * self.page + (at + i as u64) % self.size;
            self.file.write_all_at(&[*byte], offset).unwrap();
            self.file.write_all_at(&[*byte], offset + self.size).unwrap();
        }
    }
}

/// What a record takes in a ring, with its header.
fn room(length: usize) -> u64 {
    (length as u64 + 8).next_multiple_of(8)
}
