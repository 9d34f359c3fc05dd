//! The backends for one function: which may work, and the reasons against the others. Pure. Only a known fact rules a
//! backend out; the rest is tried.

use libbpf_rs::libbpf_sys::{BPF_TRACE_KPROBE_MULTI, BPF_TRACE_KPROBE_SESSION};

use super::symbols::{Machine, Symbol, Symbols, VMLINUX};
use crate::host::btf::Proto;
use crate::host::types;
use gpurec_nvidia::hooks::Hook;
use gpurec_trace::HookError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    Fentry,
    Session,
    Multi,
    Kprobe,
    Tracepoint,
}

pub struct Row {
    name: &'static str,
    /// Why it cannot hook a function.
    against: fn(&Function, &Symbols) -> Option<HookError>,
    /// In the order of attaching, with the flags of their links. Returns come first: then a function whose entry is seen
    /// already has its exit hooked.
    pub programs: fn() -> &'static [(&'static str, u32)],
    /// The type of a link that hooks many functions.
    pub bulk: Option<u32>,
}

/// Flag of a link to the returns.
pub const RETURN: u32 = 1;

/// Best first, in the order of `Backend`. super::functions attaches them.
static TABLE: [Row; Backend::ALL.len()] = [
    // A trampoline at the function's ftrace entry and exit.
    Row {
        name: "fentry",
        against: against_fentry,
        programs: || &[("function_fexit", RETURN), ("function_fentry", 0)],
        bulk: None,
    },
    // One link for many functions, entry and exit in one session.
    Row {
        name: "kprobe.session",
        against: |function, symbols| match symbols.machine.session {
            Some(false) => Some(HookError::NoKernelSessions),
            _ => against_multi(function, symbols),
        },
        programs: || match types().is_some_and(|types| types.session_is_return_takes_context) {
            true => &[("session_ctx", 0)],
            false => &[("session", 0)],
        },
        bulk: Some(BPF_TRACE_KPROBE_SESSION),
    },
    Row {
        name: "kprobe.multi",
        against: against_multi,
        programs: || &[("multi_return", RETURN), ("multi_entry", 0)],
        bulk: Some(BPF_TRACE_KPROBE_MULTI),
    },
    // A breakpoint, one function at a time.
    Row {
        name: "kprobe",
        against: |function, symbols| against_kprobe(function, &symbols.machine),
        programs: || &[("single_return", RETURN), ("single_entry", 0)],
        bulk: None,
    },
    // Not the function itself, but a Linux tracepoint that fires with it.
    Row {
        name: "tracepoint",
        against: |function, symbols| against_tracepoint(function.hook, &symbols.machine),
        programs: || &[],
        bulk: None,
    },
];

impl Backend {
    pub const ALL: [Backend; 5] =
        [Backend::Fentry, Backend::Session, Backend::Multi, Backend::Kprobe, Backend::Tracepoint];

    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
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
    Backend::ALL.into_iter().map(|backend| (backend, (backend.row().against)(function, symbols))).collect()
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
    match (function.proto, ftrace_entry(function, symbols)) {
        _ if machine.trampolines == Some(false) => Some(HookError::NoTrampolines),
        _ if function.shared => Some(HookError::SeveralFunctions),
        _ if function.renamed => Some(HookError::Renamed),
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
    let machine = &symbols.machine;
    match ftrace_entry(function, symbols) {
        _ if machine.fprobe == Some(false) => Some(HookError::NoFprobe),
        _ if is_locked(machine) => Some(HookError::LockedDown),
        _ if function.shared => Some(HookError::SeveralFunctions),
        Some(true) => None,
        Some(false) => Some(no_entry(function)),
        // A single function without an entry makes a link for many fail, and in nvidia.ko most have none.
        None if function.symbol.module == "nvidia" => Some(HookError::EntryUnknown),
        None => None,
    }
}

fn against_kprobe(function: &Function, machine: &Machine) -> Option<HookError> {
    match machine.kprobes {
        Some(false) => Some(HookError::NoKprobes),
        _ if is_locked(machine) => Some(HookError::LockedDown),
        _ => (function.shared && function.symbol.address.is_none()).then_some(HookError::HiddenAddresses),
    }
}

fn is_locked(machine: &Machine) -> bool {
    machine.lockdown.as_deref() == Some("confidentiality")
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
    let why = |wanted: Backend| ladder.iter().find(|one| one.0 == wanted)?.1.as_ref();
    let sentence = |backend: Backend| Some(format!("{}: {}", backend.name(), why(backend)?));
    let reasons: Vec<String> =
        [Backend::Fentry, Backend::Multi, Backend::Kprobe].into_iter().filter_map(sentence).collect();
    let remedy = if machine.kprobes == Some(false) {
        "; use a kernel built with CONFIG_KPROBES=y"
    } else if is_locked(machine) {
        "; boot with lockdown=integrity or without lockdown"
    } else if why(Backend::Kprobe) == Some(&HookError::HiddenAddresses) {
        "; run gpurec as root, with kernel.kptr_restrict at 0 or 1"
    } else {
        ""
    };
    HookError::NoBackend { reasons: format!("no backend can hook it here ({}){remedy}", reasons.join("; ")) }
}
