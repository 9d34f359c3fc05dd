//! Writes the traces of a made-up job, and what is true about them, to a folder.
//!
//! `cargo run -p gpurec-analysis --example make-job -- DIR --ranks 32 --seed 7 --skew-ms 50 --drift-ppm 100
//! --straggler 5 --mismatch --hang`. DIR gets a `.jsonl.zst` for each rank (`--by-node`: for each host; `--plain`: not
//! compressed) and `truth.json`.

#[path = "../src/ranks/made/mod.rs"]
#[allow(dead_code)]
mod made;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use made::{Job, Plan};

const USAGE: &str = "usage: make-job DIR [--ranks N] [--per-host N] [--steps N] [--launches N] [--seed N] [--skew-ms X] \
[--drift-ppm X] [--step-us N] [--straggler RANK] [--slow-gpu RANK] [--ntp-error-us N] [--mismatch] [--hang] [--no-gpu] \
[--groups] [--by-node] [--plain]";

fn main() -> ExitCode {
    match make() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("make-job: {error}");
            ExitCode::from(2)
        }
    }
}

fn make() -> Result<(), Box<dyn Error>> {
    let mut plan = Plan { ranks: 32, per_host: 8, ..Plan::default() };
    let (mut dir, mut plain) = (None, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<f64, Box<dyn Error>> {
            let text = words.next().ok_or_else(|| format!("{word} needs a number; {USAGE}"))?;
            Ok(text.parse::<f64>().map_err(|error| format!("{word} {text}: {error}"))?)
        };
        match word.as_str() {
            "--ranks" => plan.ranks = number()? as u32,
            "--per-host" => plan.per_host = number()? as u32,
            "--steps" => plan.steps = number()? as u32,
            "--launches" => plan.launches = number()? as u32,
            "--seed" => plan.seed = number()? as u64,
            "--skew-ms" => plan.skew_ns = (number()? * 1e6) as u64,
            "--drift-ppm" => plan.drift_ppm = number()?,
            "--step-us" => plan.step_ns = (number()? * 1e3) as i64,
            "--straggler" => plan.straggler = Some(number()? as u32),
            "--slow-gpu" => plan.slow_gpu = Some(number()? as u32),
            "--ntp-error-us" => plan.ntp_error_ns = Some((number()? * 1e3) as u64),
            "--mismatch" => plan.mismatch = true,
            "--hang" => plan.hang = true,
            "--no-gpu" => plan.gpu = false,
            "--groups" => plan.groups = true,
            "--by-node" => plan.by_node = true,
            "--plain" => plain = true,
            _ if !word.starts_with('-') && dir.is_none() => dir = Some(PathBuf::from(word)),
            _ => return Err(format!("{word}: unknown; {USAGE}").into()),
        }
    }
    let dir = dir.ok_or(USAGE)?;
    std::fs::create_dir_all(&dir)?;
    let open = |name: &str| -> std::io::Result<Output> {
        if plain {
            let file = File::create(dir.join(name.trim_end_matches(".zst")))?;
            return Ok(Output::Plain(BufWriter::new(file)));
        }
        Ok(Output::Packed(zstd::Encoder::new(File::create(dir.join(name))?, 1)?))
    };
    let (outputs, truth) = Job::new(plan, open)?.run()?;
    for output in outputs {
        match output {
            Output::Plain(mut file) => file.flush()?,
            Output::Packed(encoder) => drop(encoder.finish()?),
        }
    }
    serde_json::to_writer_pretty(File::create(dir.join("truth.json"))?, &truth)?;
    Ok(())
}

enum Output {
    Plain(BufWriter<File>),
    Packed(zstd::Encoder<'static, File>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Output::Plain(file) => file.write(bytes),
            Output::Packed(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Output::Plain(file) => file.flush(),
            Output::Packed(encoder) => encoder.flush(),
        }
    }
}
