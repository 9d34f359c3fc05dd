//! gpurec records what a program asks of an NVIDIA GPU. This file parses, dispatches and turns the result into an exit
//! status. Modules do all other work; code that needs neither Linux nor root is in separate crates.
//!
//! It is a library only for the fuzz targets, which use two of its modules (`cfg(fuzzing)`).

// print! and eprint! panic on a closed stream: use crate::ui.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// The fuzz targets use only a part of the library.
#![cfg_attr(fuzzing, allow(dead_code))]

mod cli;
mod clock;
mod demo;
mod doctor;
mod errno;
mod files;
#[cfg(fuzzing)]
pub mod gpu;
#[cfg(not(fuzzing))]
mod gpu;
mod host;
#[cfg(test)]
mod layers;
mod names;
mod nvml;
#[cfg(fuzzing)]
pub mod output;
#[cfg(not(fuzzing))]
mod output;
mod overhead;
#[cfg(fuzzing)]
pub mod pipeline;
#[cfg(not(fuzzing))]
mod pipeline;
#[cfg(fuzzing)]
pub mod probe;
#[cfg(not(fuzzing))]
mod probe;
mod process;
mod record;
mod ring;
mod serve;
#[cfg(fuzzing)]
pub mod stacks;
#[cfg(not(fuzzing))]
mod stacks;
mod ui;
#[cfg(fuzzing)]
pub mod wire;
#[cfg(not(fuzzing))]
mod wire;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use cli::Task;
use process::launch::{self, LaunchError};
use process::{identity, rights};

/// The program.
pub fn main() -> ExitCode {
    names::load_no_modules();
    let inherited = launch::inherited_fds();
    match cli::parse().and_then(|task| perform(task, inherited)) {
        Ok(status) => status.into(),
        Err(error) if cli::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            ui::say(&errno::sentence(&error));
            status_of(&error).into()
        }
    }
}

fn perform(task: Task, keep_fds: Vec<i32>) -> Result<u8> {
    if let Some(name) = identity::unknown_caller() {
        bail!(
            "cannot look up the user {name}, who called doas: use sudo, or as root doas env -u DOAS_USER gpurec ..."
        );
    }
    if task.needs_no_rights() {
        // These commands read and write files that the user named.
        rights::become_caller().context("cannot drop to the privileges of the user who called sudo")?;
    }
    match task {
        Task::Record(config) => record::run(&record::Config { keep_fds, ..*config }),
        Task::Read(task) => {
            // `ranks` has the traces of all ranks open at once.
            process::fds::raise_limit();
            task.perform()
        }
        Task::Doctor => doctor::doctor(),
        Task::Demo { config, args, opens } => demo::run(record::Config { keep_fds, ..*config }, &args, opens),
        Task::Dump { pid } => serve::flight::ask(pid),
        Task::KernelProbes { glob } => probe::kernel::list(glob.as_ref()),
        Task::Print(page) => cli::print(&page),
        Task::Replay(plan) => pipeline::replay::run(&plan).map(|()| 0),
        Task::Probes { glob, selection, pid } => probe::list(&glob, &selection, pid),
    }
}

fn status_of(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit_code();
    }
    cli::status_of(error)
}
