//! gpurec records what a program asks of an NVIDIA GPU. This file parses, dispatches and
//! turns the result into an exit status; everything else has a room of its own.

// They panic where nobody listens: crate::say does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod budget;
mod cli;
mod clock;
mod cuda;
mod demo;
mod driver;
mod elf;
mod files;
mod host;
mod meaning;
mod paper;
mod pipeline;
mod probe;
mod record;
mod report;
mod room;
mod say;
mod target;
mod trace;

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};

use cli::{Task, Usage};
use target::launch::{self, LaunchError};
use target::rights;

fn main() -> ExitCode {
    let inherited = launch::inherited_fds();
    match cli::parse().and_then(|task| perform(task, inherited)) {
        Ok(status) => status.into(),
        Err(error) if reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say::say(&say::with_remedy(format!("{error:#}")));
            status_of(&error).into()
        }
    }
}

fn perform(task: Task, keep_fds: Vec<i32>) -> Result<u8> {
    if task.needs_no_rights() {
        // What is read and written there are files that somebody named.
        rights::become_caller().context("gpurec could not take on the rights of who typed sudo")?;
    }
    match task {
        Task::Record(config) => record::run(&record::Config { keep_fds, ..*config }),
        Task::Summary { files, json, only } => report::summary(&files, json, &only),
        Task::Timeline(config) => report::timeline::timeline(&config),
        Task::Report(config) => report::views::report(&config),
        Task::Export(config) => report::export::export(&config),
        Task::Diff(config) => report::diff::diff(&config),
        Task::Check(config) => report::check::check(&config),
        Task::Doctor => host::doctor(),
        Task::Demo { config, args } => demo::run(record::Config { keep_fds, ..*config }, &args),
        Task::KernelProbes { glob } => probe::kernel::list(glob.as_ref()),
        Task::Print(page) => cli::print(&page),
        Task::Probes { glob, selection, pid } => probe::list(&glob, &selection, pid),
    }
}

fn status_of(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit_code();
    }
    if error.is::<Usage>() { 2 } else { record::FAILED }
}

/// Standard output was closed early, as by `head`: no error.
fn reader_left(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}
