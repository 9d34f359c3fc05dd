//! Functions that must not be hooked: those on which Linux would deadlock or crash, and those that run because of a
//! hook, which would see itself. Pure.

use super::symbols::{Symbol, Symbols};

/// Functions that gpurec's own programs run through, by prefix.
const OWN_PATH: &str = "\
    bpf_ __bpf_ ___bpf_ rcu_ __rcu_ srcu_ __srcu_ perf_trace_ perf_event_ __perf_event_ perf_tp_ \
    perf_swevent_ trace_call_bpf trace_event_ __traceiter_ ftrace_ __ftrace_ arch_ftrace_ ring_buffer_ \
    htab_ __htab_ array_map_ percpu_array_ migrate_disable migrate_enable irq_work_ \
    copy_from_kernel_nofault copy_from_user_nofault ktime_get_mono_fast_ns this_cpu_";

/// Functions that Linux itself runs for a hook, by prefix.
const TRACING: &str = "\
    kprobe_ __kprobe kretprobe_ __kretprobe_ arch_kprobe arch_rethook rethook_ fprobe_ \
    optimized_callback text_poke smp_text_poke int3_ do_int3 exc_ asm_exc_ asm_ sysvec_ notify_die \
    __fentry__";

/// Symbols that are not callable functions: padding, thunks and the like.
const STUBS: &str = "\
    __pfx_ __cfi_ __SCT__ __SCK__ __x86_ __kstrtab";

/// The reason why it must not be hooked; None if it may be.
pub fn reason(symbol: &Symbol, symbols: &Symbols) -> Option<&'static str> {
    let begins = |list: &str| list.split(' ').any(|start| symbol.name.starts_with(start));
    if begins(STUBS) || is_cold(symbol.name) {
        Some("it is padding or a part that the compiler split off, not a function that is called")
    } else if symbol.module == "bpf" || symbol.module.starts_with("__builtin__") {
        Some("hooks themselves consist of it (BPF, trampolines)")
    } else if begins(OWN_PATH) {
        Some("gpurec's own hooks call it and would trigger themselves")
    } else if begins(TRACING) {
        Some("the kernel calls it while it handles a hook")
    } else if symbols.blacklist.contains(symbol.name) {
        Some("the kernel forbids probes in it")
    } else if symbol.address.is_some_and(|address| symbols.kallsyms.is_forbidden(address)) {
        Some("it is code that must not be interrupted (noinstr)")
    } else {
        None
    }
}

/// The rarely used part of a function, after a `.cold` label.
pub fn is_cold(name: &str) -> bool {
    name.split('.').skip(1).any(|part| part == "cold")
}
