//! Loads the programs. In: the shared maps, the plan of what this machine may support. Out: the process programs, and
//! the programs of the best backend that works here.

use anyhow::{Result, bail};
use libbpf_rs::Object;

use super::aside::without_signals;
use super::calibrate;
use super::calibrate::SiteCosts;
use super::objects::Base;
use crate::host::Backend;
use crate::host::Plan;
use gpurec_trace::HookError;

pub struct LoadedBackend {
    pub backend: Backend,
    /// Better backends, and why they were refused.
    pub refused: Vec<(Backend, HookError)>,
    pub cuda: Object,
    pub costs: SiteCosts,
}

/// Loading the process programs takes Linux as long as finding the backend, so a thread loads them meanwhile. `force`
/// allows only one backend.
pub fn all(base: &Base, plan: &Plan, force: Option<Backend>) -> Result<(Object, LoadedBackend)> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("gpurec-process".into());
        let loading = without_signals(|| thread.spawn_scoped(scope, || base.load_process()));
        let works = best_backend(base, plan, force);
        let process = match loading {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| bail!("gpurec's thread that loads BPF programs panicked"))
            }
            // If no thread can be started, this thread does the work.
            Err(_) => base.load_process(),
        };
        Ok((process?, works?))
    })
}

fn best_backend(base: &Base, plan: &Plan, force: Option<Backend>) -> Result<LoadedBackend> {
    let mut refused = Vec::new();
    for (backend, against) in &plan.backends {
        let backend = *backend;
        if force.is_some_and(|only| only != backend) {
            continue;
        }
        if let Some(why) = against {
            refused.push((backend, why.clone()));
            continue;
        }
        match try_backend(base, backend) {
            Ok((cuda, costs)) => return Ok(LoadedBackend { backend, refused, cuda, costs }),
            Err(error) => refused.push((backend, HookError::Backend { error: format!("{error:#}") })),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(r, why)| format!("{}: {why}", r.name())).collect();
    bail!(
        "no backend can hook functions on this machine ({}); run `gpurec doctor` to see what is missing",
        reasons.join("; ")
    )
}

fn try_backend(base: &Base, backend: Backend) -> Result<(Object, SiteCosts)> {
    let cuda = base.load_cuda(backend)?;
    let costs = calibrate::measure(base, &cuda, backend)?;
    Ok((cuda, costs))
}
