//! The state of the GPUs in a recording with `--gpu`, `--metrics` or `--otlp`, and in `gpurec top`. In: the
//! configuration, the user and their environment. Out: what the worker reads. Whatever fails here, the recording
//! continues without `device` lines.

use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::Result;
use crossbeam_channel::{Receiver, bounded};
use libbpf_rs::{MapCore, MapFlags};

use super::{Config, Target};
use crate::nvml::{Nvml, Sample, Sampling};
use crate::probe::Base;
use crate::process::identity::Identity;
use crate::process::proc::{Env, pidfd_open};

/// How long the start waits for the first sample, which shows the devices before any process is recorded. NVML starts
/// earlier, and has also had the time in which the BPF programs were loaded.
const BASELINE: Duration = Duration::from_secs(1);
/// The most samples that wait for the worker. Further ones are dropped.
const MOST: usize = 256;

/// Call this before any thread is started.
pub fn start(config: &Config, user: &Identity, env: &Env) -> Option<Nvml> {
    if config.gpu.is_none() && !config.metrics.is_on() && config.top.is_none() {
        return None;
    }
    let mut env = env.clone();
    if let Some(folder) = &config.nvml {
        const FOLDERS: &str = "LD_LIBRARY_PATH";
        env.retain(|(name, _)| name != FOLDERS);
        env.push((FOLDERS.into(), folder.into()));
    }
    Nvml::start(user, &env).ok()
}

/// Waits for the first sample. Call this once BPF programs are loaded, and before a process is recorded.
pub fn baseline(config: &Config, nvml: Option<&mut Nvml>, base: &Base) {
    let Some(nvml) = nvml else { return };
    if matches!(config.target, Target::All) {
        // If this fails, --kernel records NVML's ioctls too.
        let _ = leave_out(nvml.pid(), base);
    }
    nvml.wait(BASELINE);
}

/// Takes a sample a second from here on.
pub fn serve(nvml: Nvml) -> Option<(Sampling, Receiver<Sample>)> {
    let (to, from) = bounded(MOST);
    let sampling = nvml.serve(move |sample| _ = to.try_send(sample)).ok()?;
    Some((sampling, from))
}

/// Gives the main thread of a process a state that excludes it from recording. BPF does not replace an existing state.
fn leave_out(pid: u32, base: &Base) -> Result<()> {
    let threads = base.map("threads")?;
    let state = vec![0; threads.value_size() as usize];
    let pidfd = pidfd_open(pid)?;
    Ok(threads.update(&pidfd.as_raw_fd().to_ne_bytes(), &state, MapFlags::ANY)?)
}
