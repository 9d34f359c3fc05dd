//! The description of a target for BPF: its role, the threads whose hits count, the memory to read. Pure.

use super::Target;
use crate::wire;
use gpurec_nvidia::hooks::{Role, Source};

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
    let (entry, exit) = (target.entry(), target.exit());
    config.entry_reads = entry.len().min(config.entry.len()) as u8;
    config.exit_reads = exit.len().min(config.exit.len()) as u8;
    for (slot, read) in config.entry.iter_mut().zip(entry).chain(config.exit.iter_mut().zip(exit)) {
        (slot.source, slot.source_offset) = match read.source {
            Source::Register(register) => (register, 0),
            Source::Inside { piece, offset } => (piece | wire::INSIDE, offset),
        };
        slot.size = read.size.min(wire::HOOK_PIECE);
    }
    config
}
