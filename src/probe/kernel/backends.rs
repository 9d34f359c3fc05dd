//! The backends for one function: which may work, and the reasons against the others. Pure. Only a known fact rules a
//! backend out; the rest is tried.

use super::symbols::{Machine, Symbol, Symbols, VMLINUX};
use crate::host::btf::Proto;
use gpurec_nvidia::hooks::Hook;
use gpurec_trace::HookError;

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
pub type Ladder = Vec<(Backend, Option<HookError>)>;

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

pub fn ladder(function: &Function, symbols: &Symbols) -> Ladder {
    let against = |backend| match backend {
        Backend::Fentry => against_fentry(function, symbols),
        Backend::Session if symbols.machine.session == Some(false) => Some(HookError::NoKernelSessions),
        Backend::Session | Backend::Multi => against_multi(function, symbols),
        Backend::Kprobe => against_kprobe(function, &symbols.machine),
        Backend::Tracepoint => against_tracepoint(function.hook, &symbols.machine),
    };
    Backend::ALL.into_iter().map(|backend| (backend, against(backend))).collect()
}

/// For a function that does not exist: only a tracepoint can replace it.
pub fn ladder_without(hook: &Hook, machine: &Machine, why: &HookError) -> Ladder {
    let against = |backend| match backend {
        Backend::Tracepoint => against_tracepoint(Some(hook), machine),
        _ => Some(why.clone()),
    };
    Backend::ALL.into_iter().map(|backend| (backend, against(backend))).collect()
}

fn against_fentry(function: &Function, symbols: &Symbols) -> Option<HookError> {
    let module = function.symbol.module;
    let machine = &symbols.machine;
    if machine.trampolines == Some(false) {
        return Some(HookError::NoTrampolines);
    }
    if function.shared {
        return Some(HookError::SeveralFunctions);
    }
    if function.renamed {
        return Some(HookError::Renamed);
    }
    match (function.proto, ftrace_entry(function, symbols)) {
        (_, Some(false)) => Some(no_entry(function)),
        (Some(proto), _) => proto.against_trampoline().map(|why| HookError::Type { why }),
        (None, _) if symbols.protos.contains_key(module) => {
            Some(HookError::NoType { module: module.to_owned() })
        }
        _ if module != VMLINUX && machine.module_btf == Some(false) => Some(HookError::NoModuleTypes),
        _ => Some(HookError::ModuleWithoutTypes { module: module.to_owned() }),
    }
}

fn against_multi(function: &Function, symbols: &Symbols) -> Option<HookError> {
    if symbols.machine.fprobe == Some(false) {
        return Some(HookError::NoFprobe);
    }
    if let Some(why) = against_locked(&symbols.machine) {
        return Some(why);
    }
    if function.shared {
        return Some(HookError::SeveralFunctions);
    }
    match ftrace_entry(function, symbols) {
        Some(true) => None,
        Some(false) => Some(no_entry(function)),
        // A single function without an entry makes a link for many fail, and in nvidia.ko most have none.
        None if function.symbol.module == "nvidia" => Some(HookError::EntryUnknown),
        None => None,
    }
}

fn against_kprobe(function: &Function, machine: &Machine) -> Option<HookError> {
    if machine.kprobes == Some(false) {
        return Some(HookError::NoKprobes);
    }
    if let Some(why) = against_locked(machine) {
        return Some(why);
    }
    (function.shared && function.symbol.address.is_none()).then_some(HookError::HiddenAddresses)
}

fn against_locked(machine: &Machine) -> Option<HookError> {
    (machine.lockdown.as_deref() == Some("confidentiality")).then_some(HookError::LockedDown)
}

fn against_tracepoint(hook: Option<&Hook>, machine: &Machine) -> Option<HookError> {
    let Some(tracepoint) = hook.and_then(|hook| hook.tracepoint) else {
        return Some(HookError::NoTracepoint);
    };
    let driver = machine.driver.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    (tracepoint.starts_with("nvidia:") && driver.is_some_and(|major| major < 575))
        .then_some(HookError::NewTracepoint { tracepoint })
}

fn no_entry(function: &Function) -> HookError {
    match function.hook {
        Some(hook) if hook.core => HookError::CoreFunction,
        _ if function.symbol.module == "nvidia" && function.padded == Some(false) => HookError::CoreFunction,
        _ => HookError::NoEntry,
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
pub fn refusal(ladder: &Ladder, machine: &Machine) -> HookError {
    let why = |wanted: Backend| {
        let (backend, why) = ladder.iter().find(|(backend, _)| *backend == wanted)?;
        Some(format!("{}: {}", backend.name(), why.as_ref()?))
    };
    let reasons: Vec<String> =
        [Backend::Fentry, Backend::Multi, Backend::Kprobe].into_iter().filter_map(why).collect();
    let kprobe =
        ladder.iter().find(|(backend, _)| *backend == Backend::Kprobe).and_then(|(_, why)| why.as_ref());
    let remedy = if machine.kprobes == Some(false) {
        "; use a kernel built with CONFIG_KPROBES=y"
    } else if against_locked(machine).is_some() {
        "; boot with lockdown=integrity or without lockdown"
    } else if kprobe == Some(&HookError::HiddenAddresses) {
        "; run gpurec as root, with kernel.kptr_restrict at 0 or 1"
    } else {
        ""
    };
    HookError::NoBackend { reasons: format!("no way to hook it here ({}){remedy}", reasons.join("; ")) }
}
