//! `gpurec replay`, with which scripts/bench measures the pipeline: the words of its command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::pipeline::replay::{Plan, Work};

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// Calls of all ranks together
    #[arg(long, default_value_t = 2_000_000)]
    calls: u64,
    /// Ranks, each with a ring of its own
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    #[arg(long, default_value = "training")]
    work: WorkName,
    /// Threads that turn records into lines
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(short, long, default_value = "/dev/null")]
    output: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkName {
    One,
    Training,
}

impl ReplayArgs {
    pub(super) fn plan(self) -> Plan {
        let work = match self.work {
            WorkName::One => Work::One,
            WorkName::Training => Work::Training,
        };
        Plan { work, calls: self.calls, rings: self.ranks, threads: self.threads, output: self.output }
    }
}
