//! Reads an ELF file and places probes.
//! In: a choice of functions, and a file.
//! Out: panics unless an answer comes whatever the file says, and every probe is in the file, at or a little behind its
//! function's entry, no two at one place; static probes are in the file too, and few.

use std::collections::HashSet;
use std::fs::File;

use super::{choice, with_file};
use gpurec_cuda as cuda;
use gpurec_elf::{self as elf, Image, StaticProbes, Want};

/// How far behind its entry a probe may be, and how many probes there may be.
const REACH: u64 = 64;
const MOST_HOOKS: usize = 1 << 16;
/// The same of static probes, and their arguments.
const MOST_STATIC: usize = 256;
const MOST_ARGUMENTS: usize = 12;

pub fn elf(data: &[u8]) {
    let (how, bytes) = choice(data);
    with_file(bytes, |scratch| {
        // A file may have any size and still consist of a hole.
        let hole = (how >> 4).checked_sub(6).map_or(0, |size| 1u64 << (4 * size));
        let len = bytes.len() as u64 + hole;
        scratch.file.set_len(len).unwrap();
        look(how, &scratch.file, len);
    });
}

fn look(how: u8, file: &File, len: u64) {
    let name = ["libcudart.so.12", "libcuda.so.1", "any", "libcudart-0a1b.so.13"][usize::from(how % 4)];
    let even = |name: &str| name.len() % 2 == 0;
    let want = match how & 12 {
        4 => Want::Matching(&even),
        12 => Want::Nccl(&even),
        _ => Want::Cuda,
    };
    match elf::read(file, name, &want, &cuda::is_runtime_name) {
        Ok(Some(image)) => judge(&image, len),
        Ok(None) => {}
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
    if how & 8 != 0 {
        for symbol in elf::function_symbols(file) {
            assert!(!symbol.name.is_empty() && symbol.offset < len, "{symbol:?} in {len} bytes");
        }
        let _ = elf::soname(file);
    }
    match elf::static_probes(file, "pytorch") {
        Ok(found) => found.iter().for_each(|found| judge_static(found, len)),
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
}

fn judge_static(found: &StaticProbes, len: u64) {
    let count = found.list.len() + found.not_hooked.len();
    assert!((1..=MOST_STATIC).contains(&count), "{count} static probes");
    for probe in &found.list {
        assert!(probe.provider == "pytorch" && probe.site < len, "{probe:?} in {len} bytes");
        assert!(probe.counter.is_none_or(|at| at + 2 <= len), "{probe:?} in {len} bytes");
        assert!(probe.arguments.len() <= MOST_ARGUMENTS, "{probe:?}");
    }
    assert!(found.not_hooked.iter().all(|none| !none.name.is_empty() && !none.reason.text.is_empty()));
}

fn judge(image: &Image, len: u64) {
    let functions = &image.functions;
    assert!(functions.len() <= MOST_HOOKS + 1);
    assert!(functions.is_sorted_by(|a, b| a.entry < b.entry), "not in the order of their entries");
    let reaches_next = functions.windows(2).find(|two| two[0].site >= two[1].entry);
    assert!(reaches_next.is_none(), "a probe in the next function: {reaches_next:?}");
    let mut sites = HashSet::new();
    for function in functions {
        assert!(function.site < len, "beyond the file's {len} bytes: {function:?}");
        let behind = function.site.checked_sub(function.entry).expect("in front of the entry");
        assert!(behind < REACH && (behind == 0 || function.emulated), "{function:?}");
        assert!(!function.name.is_empty() && !function.instruction.is_empty(), "{function:?}");
        assert!(sites.insert(function.site), "two probes at one place: {function:?}");
    }
    assert!(image.not_hooked.iter().all(|none| !none.name.is_empty() && !none.reason.text.is_empty()));
    assert!(image.build_id.as_deref().unwrap_or_default().bytes().all(|b| b.is_ascii_hexdigit()));
}
