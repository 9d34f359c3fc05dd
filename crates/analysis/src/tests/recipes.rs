//! Runs the recipes of traces/README.md on the committed traces. In: real jq. Out: the output of each as golden text; a
//! long output is shortened to its first lines and the number of the others.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::golden::{self, TRACES};

const LINES: usize = 6;
const COLUMNS: usize = 160;

/// None if the recipe fails, as an average over nothing does.
fn answer(recipe: &str, folder: &Path) -> Option<String> {
    let done = Command::new("bash")
        .args(["-c", &format!("set -eo pipefail; {recipe}")])
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
}

fn shorten(text: &str) -> String {
    let mut short = String::new();
    for line in text.lines().take(LINES) {
        let cut: String = line.chars().take(COLUMNS).collect();
        let more = if cut.len() < line.len() { " …" } else { "" };
        _ = writeln!(short, "{cut}{more}");
    }
    let left = text.lines().count().saturating_sub(LINES);
    if left > 0 {
        _ = writeln!(short, "… {left} more lines");
    }
    short
}

#[test]
fn every_recipe_over_every_trace() {
    if Command::new("jq").arg("--version").output().is_err() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "jq is missing");
        return;
    }
    let readme = include_str!("../../../../traces/README.md");
    let recipes = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let recipes: Vec<&str> = recipes.filter(|recipe| recipe.starts_with("jq")).collect();
    assert!(recipes.len() > 15, "{recipes:?}");
    for (name, file) in TRACES {
        let folder = std::env::temp_dir().join(format!("gpurec-recipes-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("traces")).unwrap();
        let bytes = fs::read(golden::path(file)).unwrap();
        let bytes = if file.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
        for place in ["T", "K", "traces/trace_20261121_030405.jsonl"] {
            fs::write(folder.join(place), &bytes).unwrap();
        }
        let mut text = String::new();
        for recipe in &recipes {
            let said = answer(recipe, &folder).map_or("(it fails)\n".to_owned(), |answer| shorten(&answer));
            _ = writeln!(text, "$ {recipe}\n{said}");
        }
        fs::remove_dir_all(&folder).unwrap();
        golden::check(&format!("recipes_{name}"), &text);
    }
}

#[test]
fn the_summary_of_every_trace() {
    for (name, file) in TRACES {
        let figures = crate::summary_of(&golden::path(file), &crate::Only::default()).unwrap();
        golden::check(&format!("summary_{name}"), &crate::text::print(&figures, golden::WIDTH));
    }
}

/// Every recipe of these documents, without its comment, on the files that the test creates.
fn all_recipes() -> Vec<String> {
    let of = |page: &'static str| {
        let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        blocks.flat_map(str::lines).filter(|line| line.starts_with("jq ") || line.starts_with("zstdcat "))
    };
    let recipes = of(include_str!("../../../../traces/README.md"))
        .chain(of(include_str!("../../../../docs/reading.md")))
        .chain(of(include_str!("../../../../README.md")));
    let plain = |line: &str| {
        let recipe = line.split("   #").next().unwrap_or(line).trim_end();
        recipe.replace("$T", "T").replace("zstdcat run.jsonl.zst", "cat T")
    };
    recipes.map(plain).collect()
}

/// known.jsonl is a program whose figures are all known: cudaMalloc took 30 us with 20 us of cuMemAlloc inside, a
/// synchronous copy of 1000 bytes 500 us with 400 us inside, and so on. The golden text was checked against that by
/// hand.
#[test]
fn every_recipe_has_the_figures_of_a_known_program() {
    if Command::new("jq").arg("--version").output().is_err() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "jq is missing");
        return;
    }
    let folder = std::env::temp_dir().join(format!("gpurec-known-{}", std::process::id()));
    fs::create_dir_all(folder.join("traces")).unwrap();
    for place in ["T", "K", "traces/trace_20261121_030405.jsonl"] {
        fs::write(folder.join(place), include_str!("known.jsonl")).unwrap();
    }
    let recipes = all_recipes();
    assert!(recipes.len() > 25, "{recipes:?}");
    let mut text = String::new();
    for recipe in &recipes {
        let said = answer(recipe, &folder).unwrap_or_else(|| panic!("it fails: {recipe}"));
        _ = writeln!(text, "$ {recipe}\n{said}");
    }
    fs::remove_dir_all(&folder).unwrap();
    golden::check("recipes_known", &text);
}
