//! The options of `gpurec top`.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::id;
use super::record::{backend, percent};
use crate::files::select::{Selection, Stacks};
use crate::host::Backend;
use crate::record::{Config, Target};
use crate::serve::top;

pub const EXAMPLES: &str = "\
Examples:
  sudo gpurec top                      every process that uses CUDA
  sudo gpurec top --pid 1234 --stacks  one, with the lines of code that make its calls
  sudo gpurec top --once --json        one second, for a program";

#[derive(Args)]
pub struct TopArgs {
    /// Only these processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = id, conflicts_with = "all")]
    pid: Vec<u32>,
    /// Every process that uses CUDA; this is the default
    #[arg(long)]
    all: bool,
    /// Print one measured second and end
    #[arg(long)]
    once: bool,
    /// Print one JSON document for each second
    #[arg(long)]
    json: bool,
    /// Attach call stacks, so that the details of a process have its call sites
    #[arg(long)]
    stacks: bool,
    /// Keep gpurec's own cost under PCT percent of each thread's time: functions that tell least are no longer recorded
    #[arg(long, value_name = "PCT", value_parser = percent)]
    budget: Option<f64>,
    /// For tests: use this backend or none
    #[arg(long, hide = true, value_name = "BACKEND", value_parser = backend)]
    backend: Option<Backend>,
}

pub fn config(args: TopArgs) -> Result<Config> {
    let target = if args.pid.is_empty() { Target::All } else { Target::Pids(args.pid) };
    let selection = Selection { stacks: args.stacks, ..Selection::default() };
    Ok(Config {
        target,
        output: None,
        selection,
        kernel: None,
        duration: None,
        follow: true,
        as_root: false,
        summary_only: false,
        lossless: false,
        stacks: args.stacks.then_some(Stacks::Work),
        gpu: None,
        nvml: None,
        native_frames: true,
        threads: None,
        budget: args.budget,
        live: false,
        flight: None,
        interval: None,
        json: false,
        top: Some(top::Config { once: args.once, json: args.json }),
        metrics: Default::default(),
        ring: None,
        // The view shows what the summary and the remarks would.
        quiet: true,
        verbose: false,
        backend: args.backend,
        options: json!({}),
        keep_fds: Vec::new(),
    })
}
