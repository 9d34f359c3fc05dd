//! Damaged and hostile files: an answer in bounded time, never a panic.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::{Want, read};
use super::{Folder, runtime_name};

const SOURCE: &str = "int cudaMalloc(void) { return 1; } int cudaLaunchKernel(void) { return cudaMalloc(); } \
    __attribute__((section(\".nv_fatbin\"), used)) static const char code[64] = {1};";

/// Deterministic, so that a failure can be met again (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn small(folder: &Folder, soname: &str) -> Vec<u8> {
    let soname = format!("-Wl,-soname,{soname}");
    let arguments =
        ["-shared", "-fPIC", "-nostdlib", "-Wl,-z,max-page-size=4096", "-Wl,-z,noseparate-code", &soname];
    std::fs::read(folder.compile("small", "c", SOURCE, &arguments)).unwrap()
}

/// Reads the file in each way there is; the answers do not matter, that they come does.
fn survive(file: &File) -> Duration {
    let start = Instant::now();
    for (name, want) in
        [("libcudart.so", Want::Cuda), ("any.so", Want::Cuda), ("any.so", Want::Matching(&|_| true))]
    {
        if let Err(refused) = read(file, name, &want, &runtime_name) {
            assert!(!refused.to_string().is_empty());
        }
    }
    start.elapsed()
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn every_truncation() {
    let folder = Folder::new();
    for soname in ["libcudart.so.12", "libother.so"] {
        let bytes = small(&folder, soname);
        let file = open(&folder.path("cut"));
        file.write_all_at(&bytes, 0).unwrap();
        let mut slowest = Duration::ZERO;
        for length in (0..bytes.len()).rev() {
            file.set_len(length as u64).unwrap();
            slowest = slowest.max(survive(&file));
        }
        println!("{soname}: {} truncations, the slowest took {slowest:?}", bytes.len());
        assert!(slowest < Duration::from_secs(1));
    }
}

#[test]
fn random_damage() {
    let folder = Folder::new();
    for soname in ["libcudart.so.12", "libother.so"] {
        let bytes = small(&folder, soname);
        let file = open(&folder.path("damaged"));
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut slowest = Duration::ZERO;
        for _ in 0..6000 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(4) {
                damage(&mut damaged, &mut random);
            }
            file.write_all_at(&damaged, 0).unwrap();
            slowest = slowest.max(survive(&file));
        }
        println!("{soname}: 6000 damaged files, the slowest took {slowest:?}");
        assert!(slowest < Duration::from_secs(1));
    }
}

/// Changes a byte, or writes one of the numbers that break arithmetic; mostly where headers are.
fn damage(bytes: &mut [u8], random: &mut Random) {
    const NASTY: [u64; 6] = [0, 1, u64::MAX, u64::MAX - 7, i64::MAX as u64, 0x1_0000_0000];
    let length = bytes.len() as u64;
    let at = match random.below(3) {
        0 => random.below(64 + 12 * 56),
        1 => length - 1 - random.below(32 * 64),
        _ => random.below(length),
    } as usize;
    if random.below(2) == 0 {
        bytes[at] = random.below(256) as u8;
        return;
    }
    let value = NASTY[random.below(6) as usize].to_le_bytes();
    let at = at & !7;
    let room = (bytes.len() - at).min(8);
    bytes[at..at + room].copy_from_slice(&value[..room]);
}

/// A large sparse file whose headers claim all of it for every table.
#[test]
fn huge_claims() {
    let folder = Folder::new();
    let bytes = small(&folder, "libother.so");
    let path = folder.path("huge");
    let file = open(&path);
    file.write_all_at(&bytes, 0).unwrap();
    file.set_len(3 << 30).unwrap();
    let sections = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap());
    let count = u64::from(u16::from_le_bytes(bytes[0x3c..0x3e].try_into().unwrap()));
    for section in 1..count {
        file.write_all_at(&(3u64 << 30).to_le_bytes(), sections + section * 64 + 32).unwrap();
        file.write_all_at(&0u64.to_le_bytes(), sections + section * 64 + 24).unwrap();
    }
    let took = survive(&file);
    println!("3 GiB claimed by {count} sections: {took:?}");
    assert!(took < Duration::from_secs(20));
    file.write_all_at(&[0, 0], 0x3c).unwrap();
    file.write_all_at(&u64::MAX.to_le_bytes(), sections + 32).unwrap();
    assert!(survive(&file) < Duration::from_secs(20));
}
