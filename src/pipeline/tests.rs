//! Shared by the tests: reproducible random numbers, hand-made items and records, and a ring that the test fills as
//! BPF would.

mod blocks;
mod decode;
mod interleave;
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
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::decode::{Item, What};
use crate::probe::Probe;
use crate::ring::{Layout, Ring};
use crate::wire;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not start with similar numbers.
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

/// Probes with ids from 1, in this order. They have no signature, because these tests ignore argument names.
pub fn probes_named(names: &[&str]) -> Vec<Probe> {
    let probe =
        |(id, name): (u32, &&str)| Probe { id, name: name.to_string(), signature: None, beneath: None };
    (1..).zip(names).map(probe).collect()
}

/// A file with the layout of one CPU's part of the map of rings. Only the near ring is filled.
pub struct FakeRing {
    file: File,
    layout: Layout,
    produced: u64,
}

const SECRET: u64 = 0x1234_5678_9abc_def0;
const HEAD: u64 = offset_of!(wire::Positions, head) as u64;
const TAIL: u64 = offset_of!(wire::Positions, tail) as u64;

impl FakeRing {
    /// Both positions start at `start`, as after some use.
    pub fn new(size: usize, start: u64) -> FakeRing {
        let file = File::from(memfd_create("gpurec-test-ring", MFdFlags::MFD_CLOEXEC).unwrap());
        let layout = Layout { near: size, far: size, secret: SECRET };
        file.set_len(layout.part() as u64).unwrap();
        let mut ring = FakeRing { file, layout, produced: start };
        ring.write_word(TAIL, start);
        ring.produce(0);
        ring
    }

    pub fn map(&self) -> Ring {
        let [near, _] = Ring::map(&self.file, self.layout, 0).unwrap();
        near
    }

    pub fn consumed(&self) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, TAIL).unwrap();
        u64::from_ne_bytes(word)
    }

    pub fn produced(&self) -> u64 {
        self.produced
    }

    pub fn has_room(&self, length: usize) -> bool {
        self.produced + room(length) - self.consumed() < self.layout.near as u64
    }

    pub fn put(&mut self, record: &[u8]) {
        let at = self.put_unfinished(record);
        self.finish(at, record.len());
    }

    /// Reserves room and leaves the header unfinished. Returns where the record is, for `finish`.
    pub fn put_unfinished(&mut self, record: &[u8]) -> u64 {
        assert!(self.has_room(record.len()), "the test fills the ring");
        let at = self.produced;
        self.write_word(self.place(at), !header(at, record.len()));
        self.file.write_all_at(record, self.place(at) + wire::RING_HEADER as u64).unwrap();
        self.produce(room(record.len()));
        at
    }

    /// Reserves room and writes nothing there.
    pub fn take_room(&mut self, length: usize) -> u64 {
        let at = self.produced;
        self.produce(room(length));
        at
    }

    pub fn finish(&self, at: u64, length: usize) {
        self.write_word(self.place(at), header(at, length));
    }

    fn place(&self, at: u64) -> u64 {
        wire::RING_DATA as u64 + at % self.layout.near as u64
    }

    fn produce(&mut self, more: u64) {
        self.produced += more;
        self.write_word(HEAD, self.produced);
    }

    fn write_word(&self, offset: u64, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), offset).unwrap();
    }
}

fn header(at: u64, length: usize) -> u64 {
    (at ^ SECRET) << 16 | length as u64
}

/// The bytes that a record takes in a ring, with its header.
fn room(length: usize) -> u64 {
    (length as u64 + 8).next_multiple_of(8)
}
