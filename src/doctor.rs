//! `gpurec doctor`: what this machine supports, what is missing, and how to get it. In: facts and plan. Out: sentences
//! on standard output.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;

use crate::host::{Facts, Plan, cuda_libraries, plan};
use crate::nvml::{Nvml, State};
use crate::probe;
use crate::process::environment::user_environment;
use crate::process::identity::invoking_user;
use crate::process::rights::as_caller;

/// Returns exit status 0 if this machine can record anything.
pub fn doctor() -> Result<u8> {
    // First, because it forks, and no thread may run yet.
    let user = invoking_user();
    let nvml = Nvml::start(&user, &user_environment(&user).0);
    let facts = Facts::gather();
    let plan = plan(&facts);
    let text = machine(&facts) + &recording(&plan) + &kernel(&facts) + &nvidia(&facts) + &devices(nvml);
    io::stdout().lock().write_all(crate::ui::clean_lines(&text).as_bytes())?;
    Ok(if plan.problems.iter().any(|problem| problem.fatal) { 1 } else { 0 })
}

fn machine(facts: &Facts) -> String {
    let yes = |fact: Option<bool>| match fact {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    let mut text = format!(
        "Machine\n  Linux {} on {}\n  may load BPF: {}; lockdown: {}\n",
        facts.kernel.as_deref().unwrap_or("unknown"),
        facts.machine.as_deref().unwrap_or("unknown"),
        yes(facts.can_load_bpf),
        facts.lockdown.as_deref().unwrap_or("none"),
    );
    for (what, fact) in [
        ("type information (BTF)", facts.btf),
        ("ring buffers", facts.ring_buffer),
        ("uprobe.multi links", facts.uprobe_multi),
        ("uprobe sessions", facts.uprobe_session),
        ("system-call tracepoints", facts.syscall_tracepoints),
        ("tracefs mounted", facts.tracefs_mounted),
        ("kprobes", facts.kprobes),
        ("fprobe (kprobe.multi)", facts.fprobe),
    ] {
        text += &format!("  {what}: {}\n", yes(fact));
    }
    text
}

fn recording(plan: &Plan) -> String {
    let mut text = "Recording CUDA calls\n".to_owned();
    for problem in &plan.problems {
        let kind = if problem.fatal { "not possible" } else { "limited" };
        text.push_str(&format!("  {kind}: {}; {}\n", problem.what, problem.remedy));
    }
    if plan.problems.iter().any(|problem| problem.fatal) {
        return text;
    }
    match probe::trial(plan) {
        Ok(trial) => {
            for (backend, why) in &trial.refused {
                text += &format!("  {}: not available: {why}\n", backend.name());
            }
            let (backend, ns) = (trial.backend.name(), trial.costs.emulated);
            text += &format!("  {backend}: works, about {ns} ns a recorded call\n");
        }
        Err(error) => text += &format!("  not possible: {error:#}\n"),
    }
    text
}

fn kernel(facts: &Facts) -> String {
    let lines = probe::kernel::survey(facts).into_iter().map(|line| format!("  {line}\n"));
    "Recording the driver (--kernel)\n  ioctls, waits and mappings: by system-call tracepoints at least\n"
        .to_owned()
        + &lines.collect::<String>()
}

fn nvidia(facts: &Facts) -> String {
    let mut text = "NVIDIA\n".to_owned();
    match &facts.driver {
        Some(version) => {
            let kind = if facts.driver_is_open == Some(true) { "open" } else { "proprietary" };
            text += &format!("  driver {version} ({kind}), {} GPUs\n", facts.devices.unwrap_or(0));
        }
        None => text.push_str(
            "  no NVIDIA driver is loaded: CUDA programs fail here, but gpurec records their calls (try: sudo gpurec demo)\n",
        ),
    }
    // Search with the caller's rights, because the environment may name folders.
    let libraries = as_caller(&invoking_user(), cuda_libraries).unwrap_or_default();
    if libraries.is_empty() {
        text.push_str(
            "  no CUDA library in the usual places; gpurec finds one elsewhere when a program loads it\n",
        );
    }
    text.extend(libraries.iter().map(|path| format!("  {}\n", path.display())));
    text
}

/// Whether recordings can have `device` lines.
fn devices(nvml: io::Result<Nvml>) -> String {
    const PATIENCE: Duration = Duration::from_secs(5);
    let state = nvml.map(|mut nvml| {
        nvml.wait(PATIENCE);
        nvml.state().clone()
    });
    let said = match state {
        Ok(State::Answers(1)) => "1 GPU".to_owned(),
        Ok(State::Answers(count)) => format!("{count} GPUs"),
        Ok(State::Refuses(why)) => format!("cannot record the state of GPUs: {why}"),
        Ok(State::Waiting) => format!("no answer within {} s", PATIENCE.as_secs()),
        Ok(State::Gone) => "cannot record the state of GPUs: libnvidia-ml.so.1 cannot be loaded".to_owned(),
        Err(error) => format!("cannot record the state of GPUs: {error}"),
    };
    format!("  NVML: {said}\n")
}
