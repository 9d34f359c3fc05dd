//! Reads the real libraries, if GPUREC_NVIDIA_LIBS names a folder with them, and measures the time of `read`.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::{Image, Kind, Want, read};
use super::{image, read_path, runtime_name};

const FOLDER: &str = "GPUREC_NVIDIA_LIBS";

fn library(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!(
            "skipped: {FOLDER} names no folder with NVIDIA's libraries (scripts/nvidia-libs fetches them)"
        );
        return None;
    };
    let path = Path::new(&folder).join(name);
    assert!(path.is_file(), "{FOLDER} is set, but there is no {}", path.display());
    Some(path)
}

/// The names of exported functions according to nm, which shares no code with this crate. `None`: nm is not installed.
fn by_nm(path: &Path, prefixes: &[&str]) -> Option<BTreeSet<String>> {
    let listing = Command::new("nm").args(["-D", "--defined-only"]).arg(path).output().ok()?;
    let listing = String::from_utf8(listing.stdout).unwrap();
    let functions = listing.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next()?.split('@').next()?);
        let wanted = prefixes.iter().any(|prefix| name.starts_with(prefix));
        (wanted && matches!(kind, "T" | "W" | "i")).then(|| name.to_owned())
    });
    Some(functions.collect())
}

fn names(image: &Image) -> BTreeSet<String> {
    let all =
        image.functions.iter().flat_map(|function| std::iter::once(&function.name).chain(&function.aliases));
    all.cloned().collect()
}

fn check(name: &str, kind: Kind, prefixes: &[&str]) {
    let Some(path) = library(name) else { return };
    let start = Instant::now();
    let image = image(&path);
    let took = start.elapsed();
    assert_eq!(image.kind, kind);
    assert!(image.build_id.is_some());
    match by_nm(&path, prefixes) {
        Some(expected) => assert_eq!(names(&image), expected),
        None => println!("no nm here (package binutils): the names were not compared"),
    }
    let sites: BTreeSet<u64> = image.functions.iter().map(|function| function.site).collect();
    assert_eq!(sites.len(), image.functions.len(), "a site is shared");
    let emulated = image.functions.iter().filter(|function| function.emulated).count();
    let moved = image.functions.iter().filter(|function| function.site != function.entry).count();
    println!(
        "{name}: {} functions, {} names, {emulated} on an emulated instruction, {moved} not at the entry, {} not hooked, {took:?}",
        image.functions.len(),
        names(&image).len(),
        image.not_hooked.len()
    );
    for function in image.functions.iter().filter(|function| !function.emulated) {
        println!("  single-stepped: {} {}", function.name, function.instruction);
    }
    for not in &image.not_hooked {
        println!("  not hooked: {} ({})", not.name, not.reason.text);
    }
    assert!(emulated * 100 >= image.functions.len() * 95);
}

#[test]
fn libcuda_535() {
    check("libcuda.so.1", Kind::Driver, &["cu"]);
}

#[test]
fn libcudart_12() {
    check("cudart12/libcudart.so.12", Kind::Runtime, &["cuda", "__cuda"]);
}

#[test]
fn libcudart_13() {
    check("cudart13/libcudart.so.13", Kind::Runtime, &["cuda", "__cuda"]);
}

/// The shortest of many reads of a file in the page cache.
fn shortest(path: &Path) -> Duration {
    let file = File::open(path).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let once = || {
        let start = Instant::now();
        let _ = read(&file, name, &Want::Cuda, &runtime_name);
        start.elapsed()
    };
    (0..20).map(|_| once()).min().unwrap()
}

/// Reads every file that this test maps as code, which is the cost of a program's start. Prints figures, and checks a
/// generous bound.
#[test]
fn the_files_of_a_process() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped =
        maps.lines().filter(|line| line.contains("r-xp")).filter_map(|line| line.split_whitespace().nth(5));
    // A build that runs at the same time may have replaced this test's own file.
    let files: BTreeSet<&str> =
        mapped.filter(|path| path.starts_with('/') && Path::new(path).exists()).collect();
    for path in files {
        let (path, took) = (Path::new(path), shortest(Path::new(path)));
        let size = path.metadata().unwrap().len();
        println!(
            "{}: {size} bytes, {took:?}, {:?}",
            path.display(),
            read_path(path).unwrap().map(|image| image.kind)
        );
        // The bound is generous: this binary itself is among the files, unoptimised and with every symbol.
        assert!(took < Duration::from_secs(5));
    }
    if let Some(path) = library("libcuda.so.1") {
        println!("{}: {:?}", path.display(), shortest(&path));
    }
}
