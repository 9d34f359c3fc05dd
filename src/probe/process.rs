//! The process programs: attached before anything is recorded, detached at the end. In: the loaded objects. Out: links.

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, Object, ProgramType};

use super::objects::without_copy;
use super::tracepoint;
use crate::errno::KernelRefused;

pub fn attach(object: &Object) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for program in object.progs_mut().filter(|program| program.autoload()) {
        let name = program.name().to_string_lossy().into_owned();
        let link = match program.prog_type() {
            ProgramType::Tracepoint => syscall_tracepoint(&program, &name),
            _ => program.attach().map_err(|e| anyhow!("{e:#}")),
        };
        links.push(link.with_context(|| KernelRefused(format!("the hook {}", without_copy(&name))))?);
    }
    Ok(links)
}

fn syscall_tracepoint(program: &libbpf_rs::ProgramMut, name: &str) -> Result<Link> {
    // "mmap_enter" is at "sys_enter_mmap".
    let (call, side) = without_copy(name).rsplit_once('_').context("a program without a system call")?;
    let event = format!("sys_{side}_{call}");
    let id = tracepoint::id("syscalls", &event)
        .context("gpurec needs the system-call tracepoints to see libraries as they are loaded")?;
    tracepoint::attach(program, id, 0).with_context(|| format!("syscalls:{event}"))
}
