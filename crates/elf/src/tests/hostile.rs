//! Damaged and hostile files produce a result in bounded time, never a panic.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::layout::{Layout, Machine};
use super::super::{Data, Object, Want, function_symbols, read, static_probes, symbols};
use super::{Folder, runtime_name};

const SOURCE: &str = "int cudaMalloc(void) { return 1; } int cudaLaunchKernel(void) { return cudaMalloc(); } \
    __attribute__((section(\".nv_fatbin\"), used)) static const char code[64] = {1}; \
    __asm__(\".text\\n9: nop\\n.section .probes, \\\"aw\\\"\\n8: .2byte 0\\n\" \
    \".section .note.stapsdt, \\\"\\\", \\\"note\\\"\\n.4byte 8, 3f - 2f, 3\\n.asciz \\\"stapsdt\\\"\\n\" \
    \"2: .8byte 9b, 0, 8b\\n.asciz \\\"pytorch\\\"\\n.asciz \\\"free\\\"\\n.asciz \\\"-8@%rdi\\\"\\n3:\\n\");";

/// Deterministic, so that a failure can be repeated (xorshift64).
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

/// Reads the file in every way; the results do not matter, only that each read returns.
fn survive(file: &File) -> Duration {
    let start = Instant::now();
    for (name, want) in
        [("libcudart.so", Want::Cuda), ("any.so", Want::Cuda), ("any.so", Want::Matching(&|_| true))]
    {
        if let Err(refused) = read(file, name, &want, &runtime_name) {
            assert!(!refused.to_string().is_empty());
        }
    }
    if let Ok(Some(found)) = static_probes(file, "pytorch") {
        assert!(found.list.len() + found.not_hooked.len() == 1);
    }
    if let Ok(object) = Object::read(file) {
        for table in [object.full, object.dynamic].into_iter().flatten() {
            let _ = object.code(file, table, &mut |code| _ = table.name(file, code.name));
        }
        let _ = object.at(file, object.address_of(0).unwrap_or(0), 4096);
    }
    if let Ok(data) = Data::read(file) {
        let _ = (data.section(".probes"), data.exported("cudaMalloc"), data.unexported("cudaMalloc"));
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

/// Changes a byte, or writes a number that breaks arithmetic; mostly in headers.
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

/// A large sparse file whose headers claim the whole file for every table.
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

/// Very many sections share one name, which is as long as all names of the file.
#[test]
fn sections_with_long_names() {
    const MANY: usize = 1 << 16;
    const LENGTH: usize = 64 << 20;
    let folder = Folder::new();
    let mut bytes = small(&folder, "libother.so");
    let start = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    let names = usize::from(bytes[0x3e]);
    let (table, text) = (1u64 << 20, 16u64 << 20);
    let mut headers = Vec::from(&bytes[start..start + (names + 1) * 64]);
    headers.resize(MANY * 64, 0);
    let progbits = 1u64 << 32;
    for (number, header) in headers.chunks_exact_mut(64).enumerate() {
        match number {
            0 => header[32..40].copy_from_slice(&(MANY as u64).to_le_bytes()),
            number if number == names => {
                header[24..32].copy_from_slice(&text.to_le_bytes());
                header[32..40].copy_from_slice(&(LENGTH as u64).to_le_bytes());
            }
            _ => header[..8].copy_from_slice(&progbits.to_le_bytes()),
        }
    }
    bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    bytes[0x3c..0x3e].copy_from_slice(&[0, 0]);
    let file = open(&folder.path("names"));
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(&headers, table).unwrap();
    // With and without an end of the name.
    for end in [b"\0", b"x"] {
        let name = [b".debug_", vec![b'x'; LENGTH - 8].as_slice(), end].concat();
        file.write_all_at(&name, text).unwrap();
        let took = survive(&file);
        println!("{MANY} sections whose names have {} MiB: {took:?}", LENGTH >> 20);
        assert!(took < Duration::from_secs(20));
    }
}

/// The offset of a section's header.
fn header_of(bytes: &[u8], kind: u32) -> usize {
    let start = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes(bytes[0x3c..0x3e].try_into().unwrap()));
    let mut headers = (0..count).map(|section| start + section * 64);
    headers.find(|at| bytes[at + 4..at + 8] == kind.to_le_bytes()).expect("such a section")
}

/// The code of a function may be beyond the end of the file: then no address of the file belongs to the function.
#[test]
fn a_symbol_outside_the_file_names_nothing() {
    let folder = Folder::new();
    let mut bytes = small(&folder, "libother.so");
    let segments = u64::from_le_bytes(bytes[0x20..0x28].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes(bytes[0x38..0x3a].try_into().unwrap()));
    let path = folder.path("outside");
    let file = open(&path);
    file.write_all_at(&bytes, 0).unwrap();
    assert_eq!(function_symbols(&file).len(), 2);
    // Executable segments that are long in memory and far beyond the end of the file.
    for segment in (0..count).map(|segment| segments + segment * 56) {
        bytes[segment + 8..segment + 16].copy_from_slice(&(1u64 << 50).to_le_bytes());
        bytes[segment + 40..segment + 48].copy_from_slice(&(1u64 << 50).to_le_bytes());
    }
    file.write_all_at(&bytes, 0).unwrap();
    assert_eq!(function_symbols(&file), []);
}

/// Many symbols may share one long name: the memory for names is bounded.
#[test]
fn names_that_are_shared_take_bounded_memory() {
    let folder = Folder::new();
    let mut bytes = small(&folder, "libother.so");
    let section = header_of(&bytes, 2);
    let names = usize::from(bytes[section + 40]);
    let start = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    let place = |bytes: &mut Vec<u8>, at: usize, offset: u64, size: u64| {
        bytes[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
    };
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let table = field(section + 24) as usize;
    let symbols = &bytes[table..table + field(section + 32) as usize];
    let function = symbols.chunks(24).find(|s| s[4] & 15 == 2 && s[6] != 0).unwrap().to_vec();
    let count = 100_000u64;
    let (at, text) = (1u64 << 20, [vec![0], vec![b'x'; 4000], vec![0]].concat());
    let mut many = Vec::new();
    for number in 0..count {
        let mut symbol = function.clone();
        symbol[..4].copy_from_slice(&1u32.to_le_bytes());
        let address = u64::from_le_bytes(symbol[8..16].try_into().unwrap()) + number;
        symbol[8..16].copy_from_slice(&address.to_le_bytes());
        many.extend(symbol);
    }
    place(&mut bytes, section, at, count * 24);
    let segments = u64::from_le_bytes(bytes[0x20..0x28].try_into().unwrap()) as usize;
    for segment in (0..usize::from(bytes[0x38])).map(|segment| segments + segment * 56) {
        bytes[segment + 32..segment + 40].copy_from_slice(&at.to_le_bytes());
        bytes[segment + 40..segment + 48].copy_from_slice(&at.to_le_bytes());
    }
    place(&mut bytes, start + names * 64, 2 * at + count * 24, text.len() as u64);
    let file = open(&folder.path("many"));
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(&many, at).unwrap();
    file.write_all_at(&text, 2 * at + count * 24).unwrap();
    let layout = Layout::read(&file, Machine::here().unwrap()).unwrap();
    let found = symbols::functions(&layout).unwrap().len();
    assert_eq!(found, symbols::MOST_NAMES / (4000 + symbols::EACH) + 1, "names of 4,000 bytes");
    // The dynamic table with the same names: exported symbols have a limit of their own.
    let dynamic = header_of(&bytes, 11);
    place(&mut bytes, dynamic, at, count * 24);
    let dynamic_names = usize::from(bytes[dynamic + 40]);
    place(&mut bytes, start + dynamic_names * 64, 2 * at + count * 24, text.len() as u64);
    file.write_all_at(&bytes, 0).unwrap();
    let layout = Layout::read(&file, Machine::here().unwrap()).unwrap();
    let mut wanted = symbols::exported(&layout, &|_| true).unwrap();
    assert_eq!(wanted.list.len(), symbols::MOST_HOOKED_NAMES / 4000);
    let left_out = wanted.too_many().unwrap().reason.text;
    let more = count as usize - wanted.list.len() - 1;
    assert!(left_out.contains(&format!("this one and {more} more")), "{left_out}");
}

/// A sparse file may have any size: its tables are refused before they are read.
#[test]
fn tables_of_holes_are_refused_at_once() {
    let folder = Folder::new();
    let bytes = small(&folder, "libother.so");
    let file = open(&folder.path("holes"));
    file.set_len(1 << 42).unwrap();
    let symbols = header_of(&bytes, 2);
    let names = header_of(&bytes, 0) + 64 * usize::from(bytes[symbols + 40]);
    for table in [symbols, names, header_of(&bytes, 11)] {
        let mut bytes = bytes.clone();
        bytes[table + 24..table + 32].copy_from_slice(&(1u64 << 20).to_le_bytes());
        bytes[table + 32..table + 40].copy_from_slice(&(1u64 << 41).to_le_bytes());
        file.write_all_at(&bytes, 0).unwrap();
        let took = survive(&file);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(function_symbols(&file).len() <= 2);
    }
}

/// Real files have about ten segments, and every look-up of an address searches all of them.
#[test]
fn a_file_of_very_many_segments_is_refused() {
    let folder = Folder::new();
    let mut bytes = small(&folder, "libcudart.so.12");
    bytes[0x38..0x3a].copy_from_slice(&1025u16.to_le_bytes());
    bytes.resize(bytes.len() + 1025 * 56, 0);
    let file = open(&folder.path("segments"));
    file.write_all_at(&bytes, 0).unwrap();
    let refused = read(&file, "libcudart.so", &Want::Cuda, &runtime_name).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "this ELF file is damaged: it claims 1025 segments; fetch or build it again"
    );
}
