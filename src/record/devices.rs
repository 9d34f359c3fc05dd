//! The state of the GPUs in a recording with `--gpu`, `--metrics` or `--otlp`. In: the configuration, the user and their
//! environment. Out: what the worker reads. Whatever fails here, the recording continues without `device` lines.

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

/// How long the start waits for what the devices hold before any process is recorded. NVML has had the time in which
/// the BPF programs were loaded, too.
const BASELINE: Duration = Duration::from_secs(1);
/// Samples that the worker has not taken. If it has no room for more, there is one less.
const MOST: usize = 256;

/// Call this before any thread is started.
pub fn start(config: &Config, user: &Identity, env: &Env) -> Option<Nvml> {
    if config.gpu.is_none() && !config.metrics.is_on() {
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
        // If this fails, NVML's ioctls are among those of --kernel.
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

/// A thread that has a state which says that it is not recorded keeps it.
fn leave_out(pid: u32, base: &Base) -> Result<()> {
    let threads = base.map("threads")?;
    let state = vec![0; threads.value_size() as usize];
    let pidfd = pidfd_open(pid)?;
    Ok(threads.update(&pidfd.as_raw_fd().to_ne_bytes(), &state, MapFlags::ANY)?)
}
