//! Writes traces that someone crafted against readers to a folder.
//!
//! `cargo run -p gpurec-analysis --example make-crafted -- DIR [--items N] [--long BYTES] [--seed N] [NAME]...`. DIR gets
//! a `.jsonl.zst` of each kind, or of those that are named.

mod crafted;

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use crafted::Size;

const USAGE: &str = "usage: make-crafted DIR [--items N] [--long BYTES] [--seed N] [NAME]...";

fn main() -> ExitCode {
    match make() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("make-crafted: {error}");
            ExitCode::from(2)
        }
    }
}

fn make() -> Result<(), Box<dyn Error>> {
    let mut size = Size { items: 100_000, long: 4000, seed: 0 };
    let mut names = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, Box<dyn Error>> {
            let text = words.next().ok_or_else(|| format!("{word} needs a number; {USAGE}"))?;
            Ok(text.parse::<u64>().map_err(|error| format!("{word} {text}: {error}"))?)
        };
        match word.as_str() {
            "--items" => size.items = number()?.max(4),
            "--long" => size.long = number()?.max(1) as usize,
            "--seed" => size.seed = number()?,
            _ if !word.starts_with('-') => names.push(word),
            _ => return Err(format!("{word}: unknown; {USAGE}").into()),
        }
    }
    let folder = if names.is_empty() { return Err(USAGE.into()) } else { PathBuf::from(names.remove(0)) };
    std::fs::create_dir_all(&folder)?;
    for kind in crafted::all().filter(|kind| names.is_empty() || names.iter().any(|name| name == kind.name)) {
        let file = File::create(folder.join(format!("{}.jsonl.zst", kind.name)))?;
        let mut out = zstd::Encoder::new(file, 1)?;
        kind.write(&mut out, size)?;
        out.finish()?;
    }
    Ok(())
}
