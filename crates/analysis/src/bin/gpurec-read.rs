//! gpurec's commands that read traces, alone: for machines without Linux, BPF or a GPU.

use std::process::ExitCode;

use clap::Parser;
use gpurec_analysis::cli::{Command, Printing, reader_left, status_of};
use gpurec_analysis::{paper, ui};

/// Reads traces of gpurec: summary, reports, timeline, exports, comparisons and checks.
#[derive(Parser)]
#[command(name = "gpurec-read", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    printing: Printing,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    paper::choose(cli.printing.chosen());
    match cli.command.task().and_then(|task| task.perform()) {
        Ok(status) => status.into(),
        Err(error) if reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            ui::say(&ui::with_remedy(format!("{error:#}"), false));
            status_of(&error).into()
        }
    }
}
