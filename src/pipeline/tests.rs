//! Shared by the tests: reproducible random numbers, hand-made items and records. Rings: made_ring.rs.

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
mod threads;
mod worker;

use super::decode::{Item, What};
use crate::probe::Probe;
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
    Item { ts, tid, seq: 0, what: What::Exit { pid, status: 0, process, left_calls: false } }
}

/// Probes with ids from 1, in this order. They have no signature, because these tests ignore argument names.
pub fn probes_named(names: &[&str]) -> Vec<Probe> {
    let probe =
        |(id, name): (u32, &&str)| Probe { id, name: name.to_string(), signature: None, beneath: None };
    (1..).zip(names).map(probe).collect()
}
