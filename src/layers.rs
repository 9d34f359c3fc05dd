//! The tests of the dependencies between modules: none of src/ uses one above it, and the files of a room do not use each
//! other in circles. Between crates the compiler checks this.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top.
const LAYERS: [&str; 21] = [
    "names", "clock", "wire", "ui", "errno", "ring", "process", "nvml", "host", "gpu", "stacks", "files",
    "output", "probe", "pipeline", "overhead", "serve", "record", "demo", "doctor", "cli",
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

type Module = Vec<String>;

/// `a::{b::c, d}` becomes `a::b::c` and `a::d`.
fn expand(before: &[String], text: &str, found: &mut Vec<Module>) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    let (path, rest) = text.split_at(end);
    let mut whole = before.to_vec();
    whole.extend(path.split("::").filter(|word| !word.is_empty()).map(str::to_owned));
    let Some(group) = rest.strip_prefix('{').filter(|_| path.ends_with("::") || path.is_empty()) else {
        found.push(whole);
        return;
    };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                expand(&whole, group[from..at].trim(), found);
                from = at + 1;
                if c == '}' {
                    return;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The modules that a file names by `crate::` and `super::`, without those around it and inside it.
fn neighbours(own: &Module, text: &str, all: &BTreeMap<Module, PathBuf>) -> BTreeSet<Module> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        expand(&[], &code[at + "crate::".len()..], &mut paths);
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let ups = code[at..].split("super::").take_while(|between| between.is_empty()).count();
        let around = &own[..own.len().saturating_sub(ups)];
        expand(around, code[at..].trim_start_matches("super::"), &mut paths);
    }
    let module = |path: Module| {
        (1..=path.len()).rev().find_map(|n| all.get_key_value(&path[..n])).map(|m| m.0.clone())
    };
    paths.into_iter().filter_map(module).filter(|m| !m.starts_with(own) && !own.starts_with(m)).collect()
}

/// One circle that begins and ends at the module, if there is one.
fn circle(from: &Module, arrows: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let (mut waiting, mut seen) = (vec![vec![from.clone()]], BTreeSet::new());
    while let Some(path) = waiting.pop() {
        for next in arrows.get(path.last()?).into_iter().flatten() {
            if next == from {
                return Some(path);
            }
            if seen.insert(next.clone()) {
                waiting.push(path.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for room in ["src", "trace", "cuda", "nvidia", "elf", "analysis"] {
        let root = if room == "src" { root.join(room) } else { root.join("crates").join(room).join("src") };
        let mut files = Vec::new();
        sources(&root, &mut files);
        let name = |path: &PathBuf| -> Module {
            let below = path.strip_prefix(&root).unwrap().with_extension("");
            let words = below.iter().map(|word| word.to_str().unwrap().to_owned());
            words.filter(|word| !matches!(word.as_str(), "mod" | "lib" | "main")).collect()
        };
        let all: BTreeMap<Module, PathBuf> = files.into_iter().map(|path| (name(&path), path)).collect();
        assert!(all.len() > 5, "{room}: {}", all.len());
        let arrows = all
            .iter()
            .map(|(own, path)| (own.clone(), neighbours(own, &fs::read_to_string(path).unwrap(), &all)));
        let arrows: BTreeMap<Module, BTreeSet<Module>> = arrows.collect();
        let circles: Vec<_> = arrows.keys().filter_map(|own| circle(own, &arrows)).collect();
        let texts: Vec<_> =
            circles.iter().map(|c| c.iter().map(|m| m.join("::")).collect::<Vec<_>>().join(" -> ")).collect();
        assert!(texts.is_empty(), "{room}: {texts:#?}");
    }
}
