//! Facts about what can be hooked on the running kernel. In: /proc/kallsyms, /proc/modules, /sys/kernel/btf, tracefs,
//! the facts of the host. Out: `Symbols`. A fact that could not be determined is None, never "no". Draws no
//! conclusions.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;

use crate::host::Facts;
use crate::host::btf::{Btf, Protos};
use crate::host::tracefs;
use crate::process::identity::invoking_user;
use crate::process::rights::as_caller;

/// The name that vmlinux has among the modules.
pub const VMLINUX: &str = "vmlinux";
/// The modules whose functions are always examined.
pub const NVIDIA: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

#[derive(Default)]
pub struct Symbols {
    pub kallsyms: Kallsyms,
    /// The functions in the type information, by module.
    pub protos: HashMap<String, Protos>,
    /// Modules that are loaded and stay so.
    pub modules: Option<Vec<String>>,
    /// Linux hides the addresses from the caller, even if gpurec itself sees them.
    pub hides_addresses: bool,
    pub machine: Machine,
    /// Functions that ftrace can enter, each as `function` or `function [module]`.
    pub traceable: Option<HashSet<String>>,
    /// Functions that Linux forbids to probe.
    pub blacklist: HashSet<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub kprobes: Option<bool>,
    pub fprobe: Option<bool>,
    /// kprobe.multi with sessions, new in Linux 6.10.
    pub session: Option<bool>,
    /// BPF trampolines on ftrace entries.
    pub trampolines: Option<bool>,
    /// Linux has type information of modules at all.
    pub module_btf: Option<bool>,
    pub lockdown: Option<String>,
    pub driver: Option<String>,
    pub driver_is_open: Option<bool>,
}

/// Which functions to examine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The nvidia modules' functions.
    Driver,
    /// Every function: the user gave names.
    Everything,
}

impl Symbols {
    pub fn gather(facts: &Facts, scope: Scope) -> Symbols {
        let mut symbols = Symbols {
            kallsyms: fs::read("/proc/kallsyms").map(Kallsyms::parse).unwrap_or_default(),
            modules: fs::read_to_string("/proc/modules").ok().map(|text| modules_in(&text)),
            machine: Machine {
                kprobes: facts.kprobes,
                fprobe: facts.fprobe,
                lockdown: facts.lockdown.clone(),
                driver: facts.driver.clone(),
                driver_is_open: facts.driver_is_open,
                ..Machine::default()
            },
            ..Symbols::default()
        };
        symbols.types(scope);
        if scope == Scope::Everything {
            let traceable = tracefs::read("available_filter_functions").ok();
            symbols.traceable = traceable.map(|text| traceable_in(&text));
            symbols.blacklist = blacklist();
        }
        symbols
    }

    fn types(&mut self, scope: Scope) {
        let Ok(bytes) = fs::read(format!("/sys/kernel/btf/{VMLINUX}")) else { return };
        let Some(base) = Btf::parse(&bytes, None) else { return };
        let machine = &mut self.machine;
        machine.session = Some(base.has_enumerator("bpf_attach_type", "BPF_TRACE_KPROBE_SESSION"));
        machine.trampolines = Some(base.has_function("register_ftrace_direct"));
        machine.module_btf = Some(
            base.has_function("btf_module_notify")
                || files_in("/sys/kernel/btf").iter().any(|name| name != VMLINUX),
        );
        let names = match scope {
            Scope::Driver => NVIDIA.map(str::to_owned).to_vec(),
            Scope::Everything => files_in("/sys/kernel/btf"),
        };
        for name in names.into_iter().filter(|name| name != VMLINUX) {
            let Ok(bytes) = fs::read(format!("/sys/kernel/btf/{name}")) else { continue };
            let Some(module) = Btf::parse(&bytes, Some(&base)) else { continue };
            self.protos.insert(name, module.functions(|_| true));
        }
        if scope == Scope::Everything {
            self.protos.insert(VMLINUX.to_owned(), base.functions(|_| true));
        }
    }
}

/// If Linux hides its addresses from the caller (kptr_restrict), every address reads as zero.
pub(super) fn caller_sees_addresses() -> bool {
    const ENOUGH: u64 = 256 << 10;
    let read = || {
        let mut text = Vec::new();
        let file = fs::File::open("/proc/kallsyms")?;
        file.take(ENOUGH).read_to_end(&mut text).map(|_| text)
    };
    let text = as_caller(&invoking_user(), read).and_then(|text| text);
    text.is_ok_and(|text| Kallsyms::parse(text).addresses)
}

fn files_in(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Modules whose fifth word says that they stay loaded.
pub(super) fn modules_in(text: &str) -> Vec<String> {
    let live = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        words.nth(3).is_none_or(|state| state == "Live").then_some(name)
    };
    text.lines().filter_map(live).collect()
}

/// `name`, or `name [module]`; newer kernels may insert other words.
pub(super) fn traceable_in(text: &str) -> HashSet<String> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let module = words.find(|word| word.starts_with('['));
        Some(module.map_or_else(|| name.to_owned(), |module| format!("{name} {module}")))
    };
    text.lines().filter_map(entry).collect()
}

fn blacklist() -> HashSet<String> {
    let text = fs::read_to_string("/sys/kernel/debug/kprobes/blacklist").unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.to_owned())).collect()
}

/// The functions of Linux and its modules, in the order of /proc/kallsyms.
#[derive(Default)]
pub struct Kallsyms {
    text: String,
    entries: Vec<Entry>,
    modules: Vec<String>,
    /// The file shows addresses, so they are meaningful.
    addresses: bool,
    /// Address ranges of code that must not be hooked.
    forbidden: Vec<(u64, u64)>,
}

struct Entry {
    address: u64,
    name: u32,
    length: u16,
    module: u16,
}

/// A function as /proc/kallsyms lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol<'a> {
    pub name: &'a str,
    pub module: &'a str,
    /// None: kptr_restrict hides it, or hides it from this user.
    pub address: Option<u64>,
}

/// Sections whose bounds are symbols: code that runs before tracing may run, or inside tracing.
const FORBIDDEN: [(&str, &str); 3] = [
    ("__noinstr_text_start", "__noinstr_text_end"),
    ("__entry_text_start", "__entry_text_end"),
    ("__kprobes_text_start", "__kprobes_text_end"),
];

impl Kallsyms {
    pub fn parse(text: Vec<u8>) -> Kallsyms {
        let text = String::from_utf8(text)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let mut all = Kallsyms { modules: vec![VMLINUX.to_owned()], ..Kallsyms::default() };
        let mut bounds = HashMap::new();
        for line in text.lines() {
            all.add(line, text.as_ptr(), &mut bounds);
        }
        all.addresses = all.entries.iter().any(|entry| entry.address != 0);
        all.forbidden = FORBIDDEN
            .iter()
            .filter_map(|(from, to)| Some((*bounds.get(from)?, *bounds.get(to)?)))
            .filter(|(from, to)| from < to)
            .collect();
        all.text = text;
        all
    }

    /// `ffffffff81000000 T name` and, for a module's function, a tab and `[module]`.
    fn add(&mut self, line: &str, text: *const u8, bounds: &mut HashMap<&'static str, u64>) -> Option<()> {
        let (address, rest) = line.split_once(' ')?;
        let (kind, rest) = rest.split_once(' ')?;
        if !matches!(kind, "t" | "T" | "w" | "W") {
            return None;
        }
        let (name, module) = rest.split_once(['\t', ' ']).unwrap_or((rest, ""));
        let address = u64::from_str_radix(address, 16).ok()?;
        let module = self.module(module.trim())?;
        if let Some(bound) = FORBIDDEN.iter().flat_map(|(a, b)| [*a, *b]).find(|bound| *bound == name) {
            bounds.insert(bound, address);
        }
        self.entries.push(Entry {
            address,
            name: u32::try_from(name.as_ptr() as usize - text as usize).ok()?,
            length: u16::try_from(name.len()).ok()?,
            module,
        });
        Some(())
    }

    /// The module's number. A module's functions are listed together, so the last module is tried first.
    fn module(&mut self, text: &str) -> Option<u16> {
        let name = match text.strip_prefix('[') {
            Some(name) => name.strip_suffix(']')?,
            None => VMLINUX,
        };
        let index = self.modules.iter().rposition(|known| known == name).unwrap_or_else(|| {
            self.modules.push(name.to_owned());
            self.modules.len() - 1
        });
        u16::try_from(index).ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().filter_map(|entry| self.symbol(entry))
    }

    fn symbol(&self, entry: &Entry) -> Option<Symbol<'_>> {
        let start = entry.name as usize;
        Some(Symbol {
            name: self.text.get(start..start + usize::from(entry.length))?,
            module: self.modules.get(usize::from(entry.module))?,
            address: (self.addresses && entry.address != 0).then_some(entry.address),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|known| known == name)
    }

    pub fn is_forbidden(&self, address: u64) -> bool {
        self.forbidden.iter().any(|(from, to)| (*from..*to).contains(&address))
    }
}
