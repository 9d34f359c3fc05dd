//! The CUDA libraries in the usual places. In: the linker's folders, the caller's environment. Out: paths, each file
//! once. `--all` hooks these before any process loads them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub fn cuda_libraries() -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let mut found: Vec<PathBuf> = folders()
        .into_iter()
        .flat_map(libraries_in)
        .filter(|path| path.metadata().is_ok_and(|m| seen.insert((m.dev(), m.ino()))))
        .collect();
    found.sort();
    found
}

pub(super) fn folders() -> Vec<PathBuf> {
    let usual = "/lib64 /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib/wsl/lib \
        /usr/local/cuda/lib64 /usr/local/nvidia/lib64 /usr/lib /opt/cuda/lib64";
    let mut folders: Vec<PathBuf> = usual.split(' ').map(PathBuf::from).collect();
    folders.extend(linker_folders(Path::new("/etc/ld.so.conf"), 0));
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    for root in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os) {
        folders.extend(wheel_folders(Path::new(&root)));
    }
    folders
}

/// ld.so.conf: one folder per line, and `include PATTERN`.
fn linker_folders(file: &Path, depth: u32) -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let mut folders = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
        match line.strip_prefix("include ") {
            Some(pattern) if depth < 4 => {
                let files = glob::glob(pattern.trim()).into_iter().flatten().flatten();
                folders.extend(files.flat_map(|file| linker_folders(&file, depth + 1)));
            }
            Some(_) => {}
            None if line.starts_with('/') => folders.push(PathBuf::from(line)),
            None => {}
        }
    }
    folders
}

/// pip's nvidia wheels: lib/python3.X/site-packages/nvidia/NAME/lib.
fn wheel_folders(root: &Path) -> Vec<PathBuf> {
    let pattern = root.join("lib/python3*/site-packages/nvidia/*/lib");
    let Some(pattern) = pattern.to_str() else { return Vec::new() };
    glob::glob(pattern).into_iter().flatten().flatten().collect()
}

fn libraries_in(folder: PathBuf) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libcuda.so") || (name.starts_with("libcudart") && name.contains(".so"))
    })
}
