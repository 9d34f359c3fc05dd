//! Compares texts with files in crates/analysis/src/golden. GPUREC_REWRITE=1 writes the file instead; review it before
//! you commit it.

use std::path::{Path, PathBuf};

/// The committed traces, and the names of their golden texts.
pub const TRACES: [(&str, &str); 5] = [
    ("demo", "traces/demo.jsonl.zst"),
    ("torch", "traces/torch_h200.jsonl"),
    ("context", "traces/context_h200.jsonl.zst"),
    ("torch_stacks", "traces/torch_stacks_h100.jsonl.zst"),
    ("torch_gpu", "traces/torch_gpu_h100.jsonl.zst"),
];

/// The fixed width of golden texts, since terminals differ.
pub const WIDTH: usize = 100;

/// A path in the repository.
pub fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(of)
}

pub fn check(name: &str, text: &str) {
    let file = path(&format!("crates/analysis/src/golden/{name}.txt"));
    if std::env::var_os("GPUREC_REWRITE").is_some() {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; make it with GPUREC_REWRITE=1", file.display()));
    assert!(
        text == expected,
        "{} differs; if the new text is right, run with GPUREC_REWRITE=1\n--- is\n{text}\n--- was\n{expected}",
        file.display()
    );
}
