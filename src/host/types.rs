//! What the kernel has, as its type information shows, whatever its version says. In: the
//! kernel's BTF. Out: answers, found once, since reading it takes milliseconds.
//! Not here: what follows from an answer.

use std::sync::OnceLock;

use libbpf_rs::ReferencesType as _;
use libbpf_rs::btf::{Btf, types};

pub struct Types {
    pub ring_buffer: bool,
    pub task_storage: bool,
    pub uprobe_multi: bool,
    pub uprobe_session: bool,
    pub fprobe: bool,
    pub kprobes: bool,
    pub cookies: bool,
    /// Of the functions that session programs call: whether they are handed the context.
    pub session_cookie_takes_context: bool,
    pub session_is_return_takes_context: bool,
    /// Programs can send signals to others than whoever runs.
    pub signals_to_tasks: bool,
    /// Programs at system calls' tracepoints can be preempted.
    pub faultable_tracepoints: bool,
}

/// None if the kernel has no BTF that can be read.
pub fn types() -> Option<&'static Types> {
    static TYPES: OnceLock<Option<Types>> = OnceLock::new();
    // What libbpf says of a kernel without them is for nobody: gpurec says it.
    libbpf_rs::set_print(None);
    TYPES.get_or_init(|| Some(Types::read(&Btf::from_vmlinux().ok()?))).as_ref()
}

impl Types {
    fn read(btf: &Btf) -> Types {
        let has_struct = |name: &str| btf.type_by_name::<types::Struct>(name).is_some();
        Types {
            ring_buffer: has_struct("bpf_ringbuf"),
            task_storage: has_struct("bpf_local_storage"),
            uprobe_multi: has_struct("bpf_uprobe_multi_link"),
            uprobe_session: has_enumerator(btf, "bpf_attach_type", "BPF_TRACE_UPROBE_SESSION"),
            fprobe: has_struct("bpf_kprobe_multi_link"),
            kprobes: has_struct("kprobe_insn_cache"),
            cookies: has_enumerator(btf, "bpf_func_id", "BPF_FUNC_get_attach_cookie"),
            session_cookie_takes_context: takes_something(btf, "bpf_session_cookie"),
            session_is_return_takes_context: takes_something(btf, "bpf_session_is_return"),
            signals_to_tasks: btf.type_by_name::<types::Func>("bpf_send_signal_task").is_some(),
            faultable_tracepoints: btf.type_by_name::<types::Func>("trace_call_bpf_faultable").is_some(),
        }
    }
}

fn has_enumerator(btf: &Btf, name: &str, member: &str) -> bool {
    let Some(known) = btf.type_by_name::<types::Enum>(name) else { return false };
    known.iter().any(|one| one.name.is_some_and(|n| n == member))
}

fn takes_something(btf: &Btf, function: &str) -> bool {
    btf.type_by_name::<types::Func>(function)
        .and_then(|func| types::FuncProto::try_from(func.referenced_type()).ok())
        .is_some_and(|proto| proto.iter().len() > 0)
}
