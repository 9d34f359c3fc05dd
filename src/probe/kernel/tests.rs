//! Tests the plan on a fully capable host minus one fact at a time, and the facts of this machine.

mod machine;
mod plan;
mod types;

use std::collections::HashMap;

use super::symbols::{Kallsyms, Machine, Symbols};
use crate::host::btf::{Param, Proto, Type};

/// A kernel with an nvidia.ko of two halves, an nvidia-uvm.ko and some functions of its own.
pub const KALLSYMS: &str = "\
ffffffff81000000 T __pfx_vfs_open
ffffffff81000010 T vfs_open
ffffffff81000020 T do_sys_open
ffffffff81000030 t twice
ffffffff81000040 t twice
ffffffff81000050 T bpf_prog_run
ffffffff81000060 T __noinstr_text_start
ffffffff81000070 t very_early
ffffffff81000080 T __noinstr_text_end
ffffffff81000090 t split.part.0
ffffffff810000a0 t split.part.0.cold
ffffffff810000b0 D some_data
ffffffffc0000000 t __pfx_nvidia_unlocked_ioctl\t[nvidia]
ffffffffc0000010 t nvidia_unlocked_ioctl\t[nvidia]
ffffffffc0000020 t nvidia_unlocked_ioctl.cold\t[nvidia]
ffffffffc0000030 t __pfx_nvidia_mmap\t[nvidia]
ffffffffc0000040 t nvidia_mmap\t[nvidia]
ffffffffc0000050 t rm_ioctl\t[nvidia]
ffffffffc0000060 t kchannelConstruct_IMPL\t[nvidia]
ffffffffc0000070 t kchannelConstruct_IMPL.cold\t[nvidia]
ffffffffc0000080 t nv_kthread_q_schedule_q_item\t[nvidia]
ffffffffc0000090 t __pfx_nv_kthread_q_schedule_q_item\t[nvidia]
ffffffffc00000a0 t nv_twice\t[nvidia]
ffffffffc00000b0 t nv_twice\t[nvidia]
ffffffffc0100000 t uvm_unlocked_ioctl_entry\t[nvidia_uvm]
ffffffffc0100010 t __pfx_uvm_unlocked_ioctl_entry\t[nvidia_uvm]
ffffffffc0100020 t uvm_unlocked_ioctl_entry.part.0\t[nvidia_uvm]
ffffffffc0100030 t uvm_migrate.isra.0\t[nvidia_uvm]
ffffffffc0100040 t __pfx_uvm_migrate.isra.0\t[nvidia_uvm]
ffffffffc0100050 t uvm_api_migrate\t[nvidia_uvm]
ffffffffc0100060 t __pfx_uvm_api_migrate\t[nvidia_uvm]
ffffffffc0100070 t nv_kthread_q_schedule_q_item\t[nvidia_uvm]
ffffffffc0100080 t uvm_mmap_entry.part.0\t[nvidia_uvm]
";

pub fn proto(names: &[&str]) -> Proto {
    let param = |name: &&str| Param { name: (*name).to_owned(), kind: Type::Pointer };
    Proto { params: names.iter().map(param).collect(), variadic: false, returns: Type::Signed(4) }
}

/// A host on which everything works.
pub fn capable() -> Symbols {
    let of = |list: &[(&str, &[&str])]| -> HashMap<String, Proto> {
        list.iter().map(|(name, params)| ((*name).to_owned(), proto(params))).collect()
    };
    let protos = [
        ("vmlinux", of(&[("vfs_open", &["path", "file"]), ("do_sys_open", &["dfd"]), ("twice", &["a"])])),
        (
            "nvidia",
            of(&[("nvidia_unlocked_ioctl", &["file", "cmd", "i_arg"]), ("nvidia_mmap", &["file", "vma"])]),
        ),
        ("nvidia_uvm", of(&[("uvm_unlocked_ioctl_entry", &["filp", "cmd", "arg"]), ("uvm_migrate", &["x"])])),
    ];
    Symbols {
        kallsyms: Kallsyms::parse(KALLSYMS.into()),
        protos: protos.into_iter().map(|(module, of)| (module.to_owned(), of)).collect(),
        modules: Some(vec!["nvidia".into(), "nvidia_uvm".into()]),
        machine: Machine {
            kprobes: Some(true),
            fprobe: Some(true),
            session: Some(true),
            trampolines: Some(true),
            module_btf: Some(true),
            lockdown: Some("none".into()),
            driver: Some("580.159.04".into()),
            driver_is_open: Some(true),
        },
        ..Symbols::default()
    }
}
