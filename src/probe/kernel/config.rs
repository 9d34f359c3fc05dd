//! The description of a target for BPF: its role, the threads whose hits count, the memory to read. Pure.

use super::Target;
use crate::wire;
use gpurec_nvidia::hooks::{self, Role};

/// Tells BPF how to handle a function.
pub fn bpf_hook(target: &Target) -> wire::Hook {
    let of_driver = target.module.as_ref().is_some_and(|module| module.starts_with("nvidia"));
    let scope = if of_driver { wire::DRIVER } else { wire::TARGETS };
    let role = match &target.hook {
        Some(hook) if hook.top_half && hook.role != Role::Xid => wire::ROLE_TOP_HALF,
        Some(hook) => match hook.role {
            Role::Ioctl if hook.operation.file == Some(1) => wire::ROLE_IOCTL_INODE,
            Role::Ioctl => wire::ROLE_IOCTL,
            Role::Xid => wire::ROLE_XID,
            Role::File | Role::Function => wire::ROLE_FUNCTION,
        },
        None => wire::ROLE_FUNCTION,
    };
    let mut config = wire::Hook { role, scope, ..wire::Hook::default() };
    let size = |size: u16| size.min(wire::HOOK_PIECE);
    for (slot, read) in config.entry.iter_mut().zip(target.entry()) {
        (slot.source, slot.source_offset) = source(read.source);
        slot.size = size(read.size);
        config.entry_reads += 1;
    }
    for (slot, read) in config.exit.iter_mut().zip(target.exit()) {
        (slot.source, slot.source_offset) = source(read.source);
        slot.size = size(read.size);
        config.exit_reads += 1;
    }
    config
}

fn source(source: hooks::Source) -> (u8, u16) {
    match source {
        hooks::Source::Register(register) => (register, 0),
        hooks::Source::Inside { piece, offset } => (piece | wire::INSIDE, offset),
    }
}
