//! The test of the dependencies between the modules of src/: no module uses one above it. Between crates the compiler
//! checks this.

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top.
const LAYERS: [&str; 16] = [
    "clock", "wire", "ui", "errno", "ring", "process", "host", "files", "output", "probe", "pipeline",
    "overhead", "record", "demo", "doctor", "cli",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_test = name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs");
        match path.is_dir() {
            _ if is_test => {}
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

fn layer(module: &str) -> usize {
    LAYERS.iter().position(|name| *name == module).unwrap_or_else(|| panic!("{module} has no layer: add it"))
}

/// The modules of src/ that a text names with `crate::`, outside its tests.
fn used(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

#[test]
fn no_module_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 100, "{}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let below = file.strip_prefix(&root).unwrap();
        let own = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if matches!(own, "lib" | "main" | "layers") {
            continue;
        }
        for module in used(&fs::read_to_string(&file).unwrap()) {
            if layer(module) > layer(own) {
                wrong.push(format!("{} uses {module}", below.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "these arrows point up: {wrong:#?}");
}
