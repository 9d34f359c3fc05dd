//! Finds the files of CUDA libraries that processes are about to load, so that `--all` can hook them before any process
//! maps them. In: the linker's folders, and /proc of a running interpreter. Out: paths. Libraries that this misses are
//! hooked when they are mapped.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::libraries;
use crate::process::maps::{self, Mapping};
use crate::process::{proc, rights};

/// The most paths in one answer.
const MOST: usize = 1024;
/// The most folders of Python packages that are searched for one process, and the most places that may have them.
const MOST_FOLDERS: usize = 16;
/// The most names that are read for one process, which chooses the folders and may fill them.
const MOST_NAMES: usize = 1 << 17;

const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Files in the linker's folders: CUDA's libraries, and those with a name that the user gave.
pub fn of_linker(names: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = libraries::cuda_libraries();
    for name in names {
        if name.components().count() > 1 {
            all.push(name.clone());
        } else {
            all.extend(
                libraries::folders().iter().map(|folder| folder.join(name)).filter(|path| path.exists()),
            );
        }
    }
    all.truncate(MOST);
    all
}

/// True if it looks like a Python interpreter, or like a program that embeds one.
pub fn is_interpreter(mapped: &[Mapping]) -> bool {
    mapped.iter().any(|mapping| {
        let name = mapping.path.file_name().unwrap_or_default().as_bytes();
        let python = [&b"python"[..], b"libpython", b"pypy"].iter().any(|start| name.starts_with(start));
        python || packages_in(&mapping.path).is_some()
    })
}

/// The libraries in an interpreter's wheels: nvidia/*/lib and torch/lib, below the process's root. A process chooses
/// these paths, so they are searched with the caller's own rights.
pub fn of_interpreter(pid: u32, mapped: &[Mapping]) -> Vec<PathBuf> {
    let Ok(root) = maps::root_of(pid) else { return Vec::new() };
    let prefixes = prefixes(pid);
    let found = rights::as_oneself(|| in_wheels(&root.path(), prefixes, mapped)).unwrap_or_default();
    let as_known = |path: PathBuf| Some(root.shown().join(path.strip_prefix(root.path()).ok()?));
    found.into_iter().filter_map(as_known).collect()
}

fn in_wheels(root: &Path, prefixes: Vec<PathBuf>, mapped: &[Mapping]) -> Vec<PathBuf> {
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut add = |folder: PathBuf| {
        if folders.len() < MOST_FOLDERS && !folders.contains(&folder) {
            folders.push(folder);
        }
    };
    mapped.iter().filter_map(|mapping| packages_in(&mapping.path)).for_each(|folder| add(below(&folder)));
    let mut names = Names(MOST_NAMES);
    for prefix in prefixes.into_iter().take(MOST_FOLDERS) {
        for python in names.of(&below(&prefix).join("lib"), |name| name.starts_with(b"python3")) {
            let packages = PACKAGES.map(|packages| python.join(packages));
            packages.into_iter().filter(|folder| folder.is_dir()).for_each(&mut add);
        }
    }
    let mut all = Vec::new();
    for folder in folders {
        let wheels = names.of(&folder.join("nvidia"), |_| true);
        for libraries in wheels.into_iter().map(|wheel| wheel.join("lib")).chain([folder.join("torch/lib")]) {
            let files = names.of(&libraries, |name| memchr::memmem::find(name, b".so").is_some());
            all.extend(files.into_iter().take(MOST.saturating_sub(all.len())));
        }
    }
    all
}

/// How many names may still be read.
struct Names(usize);

impl Names {
    /// The paths in a folder whose names pass.
    fn of(&mut self, folder: &Path, passes: impl Fn(&[u8]) -> bool) -> Vec<PathBuf> {
        let Ok(mut entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut all = Vec::new();
        while self.0 > 0 && all.len() < MOST {
            let Some(entry) = entries.next() else { break };
            self.0 -= 1;
            all.extend(
                entry.ok().filter(|entry| passes(entry.file_name().as_bytes())).map(|entry| entry.path()),
            );
        }
        all.sort();
        all
    }
}

/// Folders that may contain its packages: its installation prefix, its virtual environment, its user's own packages.
fn prefixes(pid: u32) -> Vec<PathBuf> {
    let two_up = |program: &Path| Some(program.parent()?.parent()?.to_owned());
    let mut all: Vec<PathBuf> = proc::exe_path(pid).ok().and_then(|exe| two_up(&exe)).into_iter().collect();
    let command = proc::read_some(&format!("/proc/{pid}/cmdline"), 4096).unwrap_or_default();
    let program = Path::new(OsStr::from_bytes(command.split(|byte| *byte == 0).next().unwrap_or_default()));
    all.extend(two_up(program).filter(|_| program.is_absolute()));
    for (name, value) in proc::environ(pid).unwrap_or_default() {
        match name.as_bytes() {
            b"VIRTUAL_ENV" | b"CONDA_PREFIX" => all.push(value.into()),
            b"HOME" => all.push(Path::new(&value).join(".local")),
            _ => {}
        }
    }
    all.push("/usr/local".into());
    all.retain(|prefix| prefix.is_absolute());
    all
}

/// The packages folder that contains a path.
fn packages_in(path: &Path) -> Option<PathBuf> {
    let is_packages =
        |folder: &&Path| PACKAGES.iter().any(|name| folder.file_name() == Some(OsStr::new(name)));
    path.ancestors().find(is_packages).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_are_read_are_bounded() {
        let room = std::env::temp_dir().join(format!("gpurec-names-{}", std::process::id()));
        fs::create_dir_all(&room).unwrap();
        (0..300).for_each(|number| fs::write(room.join(format!("{number}.so")), "").unwrap());
        let mut names = Names(1000);
        assert_eq!(names.of(&room, |name| name.starts_with(b"1")).len(), 111);
        assert_eq!((names.of(&room, |_| false).len(), names.0), (0, 400));
        let found = [names.of(&room, |_| true).len(), names.of(&room, |_| true).len()];
        assert_eq!((found, names.of(&room, |_| true).len(), names.0), ([300, 100], 0, 0));
        fs::remove_dir_all(&room).unwrap();
    }

    #[test]
    fn the_wheels_beside_what_an_interpreter_has_mapped_are_found() {
        let room = std::env::temp_dir().join(format!("gpurec-early-{}", std::process::id()));
        let packages = room.join("lib/python3.11/site-packages");
        let wheel = packages.join("nvidia/cuda_runtime/lib");
        fs::create_dir_all(&wheel).unwrap();
        fs::create_dir_all(packages.join("torch/lib")).unwrap();
        for file in ["libcudart.so.12", "readme.txt"] {
            fs::write(wheel.join(file), "").unwrap();
        }
        fs::write(packages.join("torch/lib/libcudart-abc.so.12"), "").unwrap();
        let mapped = |path: PathBuf| {
            vec![Mapping { start: 1, end: 2, offset: 0, dev: (8, 1), inode: 7, path, deleted: false }]
        };
        let numpy = mapped(packages.join("numpy/core/multiarray.so"));
        let found = of_interpreter(std::process::id(), &numpy);
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["libcudart.so.12", "libcudart-abc.so.12"]);
        assert!(is_interpreter(&numpy));
        assert!(is_interpreter(&mapped("/usr/lib/libpython3.11.so.1.0".into())));
        assert!(!is_interpreter(&mapped("/usr/lib/libc.so.6".into())));
        fs::remove_dir_all(&room).unwrap();
    }
}
