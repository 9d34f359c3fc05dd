//! `--gpu` in a recording of a command: the library in the command's environment, the rings of its processes. In: the
//! configuration, the environment. Out: what the worker reads; one line to the user for each thing that `--gpu` cannot do.
//! Whatever fails here, the recording continues without GPU work.

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};

use super::screen::Voice;
use super::{Config, Target};
use crate::gpu::lane::{Choice, Lane, VARIABLE};
use crate::pipeline::gpu::Gpu;
use crate::probe::Base;
use crate::process::identity::Identity;
use crate::process::proc::Env;
use crate::ui;

/// Call this before gpurec gives up its rights. None: no library is loaded.
pub fn prepare(config: &Config, user: &Identity, env: &mut Env) -> Option<Lane> {
    let choice = config.gpu.filter(|choice| *choice != Choice::Tap)?;
    let say = |text: &str| {
        if !config.quiet {
            ui::say(text);
        }
    };
    if !matches!(config.target, Target::Command(_)) {
        say(
            "--gpu loads its library only into a program that gpurec starts: of running processes it records what another profiler in them is given (--gpu=tap)",
        );
        return None;
    }
    let lane = match Lane::prepare(user, choice, config.lossless) {
        Ok(lane) => lane,
        Err(error) => {
            say(&format!("the GPU's work is not recorded: {error:#}"));
            return None;
        }
    };
    if let Err(value) = lane.add_to(env) {
        say(&format!(
            "the GPU's work is not recorded: {VARIABLE} is set already ({value}), for another profiler; unset it for --gpu"
        ));
        return None;
    }
    say(
        "--gpu uses CUPTI, which has one client: a profiler that the program starts itself (torch.profiler) gets its records instead, from then on",
    );
    Some(lane)
}

/// Begins to give rings to the processes that BPF records.
pub fn serve(lane: &mut Lane, base: &Base, voice: Voice, quiet: bool) -> Result<Gpu> {
    let targets = base.handle("targets")?;
    let everyone = base.is_for_everyone();
    let is_recorded = move |pid: u32| {
        everyone || targets.lookup(&pid.to_ne_bytes(), MapFlags::ANY).is_ok_and(|value| value.is_some())
    };
    let rings = lane.serve(is_recorded)?;
    let say = move |text: &str| {
        if !quiet {
            let _ = voice.say(ui::clean_lines(&format!("gpurec: {text}\n")), 0);
        }
    };
    Ok(Gpu::new(rings, Box::new(say)))
}
