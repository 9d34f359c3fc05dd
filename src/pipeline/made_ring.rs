//! A ring that this program fills as BPF would, for tests and for replays. In: the bytes of records. Out: a file with the
//! layout of one CPU's part of the map of rings. Only the near ring is filled.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::ring::{Layout, Ring};
use crate::wire;

pub struct MadeRing {
    file: File,
    layout: Layout,
    produced: u64,
}

const SECRET: u64 = 0x1234_5678_9abc_def0;
const HEAD: u64 = offset_of!(wire::Positions, head) as u64;
const TAIL: u64 = offset_of!(wire::Positions, tail) as u64;

impl MadeRing {
    /// Both positions start at `start`, as after some use.
    pub fn new(size: usize, start: u64) -> io::Result<MadeRing> {
        let file = File::from(memfd_create("gpurec-made-ring", MFdFlags::MFD_CLOEXEC)?);
        let layout = Layout { near: size, far: size, secret: SECRET };
        file.set_len(layout.part() as u64)?;
        let mut ring = MadeRing { file, layout, produced: start };
        ring.write_word(TAIL, start)?;
        ring.produce(0)?;
        Ok(ring)
    }

    pub fn map(&self) -> io::Result<Ring> {
        let [near, _] = Ring::map(&self.file, self.layout, 0)?;
        Ok(near)
    }

    /// Writes these records into a ring that has never wrapped. They are in `bytes` as `add` puts them there.
    pub fn fill(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.place(self.produced))?;
        self.produce(bytes.len() as u64)
    }

    fn place(&self, at: u64) -> u64 {
        wire::RING_DATA as u64 + at % self.layout.near as u64
    }

    fn produce(&mut self, more: u64) -> io::Result<()> {
        self.produced += more;
        self.write_word(HEAD, self.produced)
    }

    fn write_word(&self, offset: u64, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), offset)
    }
}

/// Appends a record with its header to what a ring that starts at 0 is to be filled with.
pub fn add(bytes: &mut Vec<u8>, record: &[u8]) {
    let at = bytes.len() as u64;
    bytes.extend_from_slice(&header(at, record.len()).to_ne_bytes());
    bytes.extend_from_slice(record);
    bytes.resize((at + room(record.len())) as usize, 0);
}

fn header(at: u64, length: usize) -> u64 {
    (at ^ SECRET) << 16 | length as u64
}

/// The bytes that a record takes in a ring, with its header.
fn room(length: usize) -> u64 {
    (length as u64 + 8).next_multiple_of(8)
}

#[cfg(test)]
impl MadeRing {
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
        self.write_word(self.place(at), !header(at, record.len())).unwrap();
        self.file.write_all_at(record, self.place(at) + wire::RING_HEADER as u64).unwrap();
        self.produce(room(record.len())).unwrap();
        at
    }

    /// Reserves room and writes nothing there.
    pub fn take_room(&mut self, length: usize) -> u64 {
        let at = self.produced;
        self.produce(room(length)).unwrap();
        at
    }

    pub fn finish(&self, at: u64, length: usize) {
        self.write_word(self.place(at), header(at, length)).unwrap();
    }
}
