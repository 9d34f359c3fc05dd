//! The backends for one function: which may work, and the reasons against the others. Pure. Only a known fact rules a
//! backend out; the rest is tried.

use super::symbols::{Machine, Symbol, Symbols, VMLINUX};
use crate::host::btf::Proto;
use gpurec_nvidia::hooks::Hook;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// A trampoline at the function's ftrace entry and exit.
    Fentry,
    /// One link for many functions, entry and exit in one session.
    Session,
    Multi,
    /// A breakpoint, one function at a time.
    Kprobe,
    /// Not the function itself, but a Linux tracepoint that fires with it.
    Tracepoint,
}

impl Backend {
    pub const ALL: [Backend; 5] =
        [Backend::Fentry, Backend::Session, Backend::Multi, Backend::Kprobe, Backend::Tracepoint];

    pub fn name(self) -> &'static str {
        match self {
            Backend::Fentry => "fentry",
            Backend::Session => "kprobe.session",
            Backend::Multi => "kprobe.multi",
            Backend::Kprobe => "kprobe",
            Backend::Tracepoint => "tracepoint",
        }
    }

    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name)
    }
}

/// Backends, best first, each with the reason why it cannot work, if any.
pub type Ladder = Vec<(Backend, Option<String>)>;

/// A function that was found, and the facts about it.
pub struct Function<'a> {
    pub symbol: Symbol<'a>,
    /// Other functions in its module have the same name.
    pub shared: bool,
    /// Its name differs from the one in the source.
    pub renamed: bool,
    /// A `__pfx_` twin shows that it was built with an ftrace entry; None: no function of this module has one, so its
    /// absence means nothing.
    pub padded: Option<bool>,
    pub proto: Option<&'a Proto>,
    pub hook: Option<&'a Hook>,
}

const CORE: &str = "it is in the RM core, which has no ftrace entries";
const HIDDEN: &str = "several functions have this name, and the kernel hides their addresses";

pub fn ladder(function: &Function, symbols: &Symbols) -> Ladder {
    let against = |backend| match backend {
        Backend::Fentry => against_fentry(function, symbols),
        Backend::Session if symbols.machine.session == Some(false) => {
            Some("this kernel has no kprobe sessions, new in Linux 6.10".to_owned())
        }
        Backend::Session | Backend::Multi => against_multi(function, symbols),
        Backend::Kprobe => against_kprobe(function, &symbols.machine),
        Backend::Tracepoint => against_tracepoint(function.hook, &symbols.machine),
    };
    Backend::ALL.into_iter().map(|backend| (backend, against(backend))).collect()
}

/// For a function that does not exist: only a tracepoint can replace it.
pub fn ladder_without(hook: &Hook, machine: &Machine, why: &str) -> Ladder {
    let against = |backend| match backend {
        Backend::Tracepoint => against_tracepoint(Some(hook), machine),
        _ => Some(why.to_owned()),
    };
    Backend::ALL.into_iter().map(|backend| (backend, against(backend))).collect()
}

fn against_fentry(function: &Function, symbols: &Symbols) -> Option<String> {
    let module = function.symbol.module;
    let machine = &symbols.machine;
    if machine.trampolines == Some(false) {
        return Some("this kernel has no BPF trampolines on ftrace entries".to_owned());
    }
    if function.shared {
        return Some("several functions have this name".to_owned());
    }
    if function.renamed {
        return Some("the compiler renamed it".to_owned());
    }
    match (function.proto, ftrace_entry(function, symbols)) {
        (_, Some(false)) => Some(no_entry(function)),
        (Some(proto), _) => proto.against_trampoline().map(str::to_owned),
        (None, _) if symbols.protos.contains_key(module) => {
            Some(format!("the type information of {module} does not have it"))
        }
        _ if module != VMLINUX && machine.module_btf == Some(false) => {
            Some("this kernel has no type information of modules (CONFIG_DEBUG_INFO_BTF_MODULES)".to_owned())
        }
        _ => Some(format!("{module} was built without type information (no /sys/kernel/btf/{module})")),
    }
}

fn against_multi(function: &Function, symbols: &Symbols) -> Option<String> {
    if symbols.machine.fprobe == Some(false) {
        return Some("this kernel has no fprobe (CONFIG_FPROBE, new in Linux 5.18)".to_owned());
    }
    if let Some(why) = against_locked(&symbols.machine) {
        return Some(why);
    }
    if function.shared {
        return Some("several functions have this name".to_owned());
    }
    match ftrace_entry(function, symbols) {
        Some(true) => None,
        Some(false) => Some(no_entry(function)),
        // A single function without an entry makes a link for many fail, and in nvidia.ko most have none.
        None if function.symbol.module == "nvidia" => {
            Some("nothing tells whether it has an ftrace entry".to_owned())
        }
        None => None,
    }
}

fn against_kprobe(function: &Function, machine: &Machine) -> Option<String> {
    if machine.kprobes == Some(false) {
        return Some("this kernel has no kprobes (CONFIG_KPROBES)".to_owned());
    }
    if let Some(why) = against_locked(machine) {
        return Some(why);
    }
    (function.shared && function.symbol.address.is_none()).then(|| HIDDEN.to_owned())
}

fn against_locked(machine: &Machine) -> Option<String> {
    (machine.lockdown.as_deref() == Some("confidentiality"))
        .then(|| "the kernel is locked down to confidentiality".to_owned())
}

fn against_tracepoint(hook: Option<&Hook>, machine: &Machine) -> Option<String> {
    let Some(tracepoint) = hook.and_then(|hook| hook.tracepoint) else {
        return Some("no tracepoint stands for it".to_owned());
    };
    let driver = machine.driver.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    (tracepoint.starts_with("nvidia:") && driver.is_some_and(|major| major < 575))
        .then(|| format!("{tracepoint} is new in driver 575"))
}

fn no_entry(function: &Function) -> String {
    match function.hook {
        Some(hook) if hook.core => CORE.to_owned(),
        _ if function.symbol.module == "nvidia" && function.padded == Some(false) => CORE.to_owned(),
        _ => "it has no ftrace entry".to_owned(),
    }
}

/// Asks ftrace first, then the types and padding that the build left, then the table.
fn ftrace_entry(function: &Function, symbols: &Symbols) -> Option<bool> {
    let symbol = &function.symbol;
    if let Some(list) = &symbols.traceable {
        return Some(match symbol.module {
            VMLINUX => list.contains(symbol.name),
            module => list.contains(&format!("{} [{module}]", symbol.name)),
        });
    }
    if function.proto.is_some() && !function.renamed {
        return Some(true);
    }
    function.padded.or_else(|| function.hook.map(|hook| !hook.core))
}

/// One sentence, with the remedy if there is one.
pub fn refusal(ladder: &Ladder, machine: &Machine) -> String {
    let why = |wanted: Backend| {
        let (backend, why) = ladder.iter().find(|(backend, _)| *backend == wanted)?;
        Some(format!("{}: {}", backend.name(), why.as_deref()?))
    };
    let reasons: Vec<String> =
        [Backend::Fentry, Backend::Multi, Backend::Kprobe].into_iter().filter_map(why).collect();
    let kprobe =
        ladder.iter().find(|(backend, _)| *backend == Backend::Kprobe).and_then(|(_, why)| why.as_deref());
    let remedy = if machine.kprobes == Some(false) {
        "; use a kernel built with CONFIG_KPROBES=y"
    } else if against_locked(machine).is_some() {
        "; boot with lockdown=integrity or without lockdown"
    } else if kprobe == Some(HIDDEN) {
        "; run gpurec as root, with kernel.kptr_restrict at 0 or 1"
    } else {
        ""
    };
    format!("no way to hook it here ({}){remedy}", reasons.join("; "))
}
