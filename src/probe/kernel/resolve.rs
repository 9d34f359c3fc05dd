//! Decides which functions are hooked and by which backends, and which are not and why. In: the wanted functions, and
//! the facts. Out: a target or a refusal for each. Pure.

use std::collections::{HashMap, HashSet};

use glob::Pattern;

use super::backends::{self, Function};
use super::forbidden;
use super::near::{hint, is_glob};
use super::symbols::{NVIDIA, Symbol, Symbols, VMLINUX};
use super::target::Target;
use gpurec_nvidia::hooks::{self, Hook, Role};
use gpurec_trace::HookError;

/// The largest number of functions hooked for the user's names together.
pub const MOST: usize = 1000;

pub enum HookRequest {
    /// A row of the hook table.
    Hook(Box<Hook>),
    /// The name of a function of Linux or a module, or a pattern of names; not a tracepoint.
    Named(String),
}

pub enum PlannedHook {
    Take(Box<Target>),
    Refused { name: String, reason: HookError },
}

pub fn plan(wanted: &[HookRequest], symbols: &Symbols) -> Vec<PlannedHook> {
    let everything = wanted.iter().any(|one| matches!(one, HookRequest::Named(_)));
    let mut planner = Planner::new(symbols, everything);
    for one in wanted {
        match one {
            HookRequest::Hook(hook) => planner.hook(hook, false),
            HookRequest::Named(name) if is_glob(name) => planner.glob(name),
            HookRequest::Named(name) => planner.named(name),
        }
    }
    planner.finish()
}

/// Everything that matches, without a limit: for listing, not for hooking.
pub fn examine(symbols: &Symbols, matches: impl Fn(&Symbol) -> bool) -> Vec<(&str, PlannedHook)> {
    let mut planner = Planner::new(symbols, true);
    let mut found = Vec::new();
    for symbol in symbols.kallsyms.iter().filter(|symbol| whole(symbol.name) && matches(symbol)) {
        match forbidden::reason(&symbol, symbols) {
            Some(why) => planner.refuse(symbol.name, HookError::Forbidden { why }),
            None => planner.take_known(symbol),
        }
        found.extend(planner.planned.drain(..).map(|planned| (symbol.module, planned)));
    }
    found
}

struct Planner<'a> {
    symbols: &'a Symbols,
    /// By the name up to the first dot.
    index: HashMap<&'a str, Vec<Symbol<'a>>>,
    /// Functions with a `__pfx_` twin, and the modules that contain such functions.
    padded: HashSet<(&'a str, &'a str)>,
    padded_modules: HashSet<&'a str>,
    table: Vec<Hook>,
    seen: HashSet<(&'a str, &'a str, Option<u64>)>,
    /// Rows of the table without a function on this machine, and whether the user asked for them.
    absent: Vec<(Hook, bool)>,
    named: usize,
    planned: Vec<PlannedHook>,
}

/// The compiler's changes to a function, as its name shows them.
#[derive(Clone, Copy, Default)]
struct Renaming {
    /// Arguments may be gone or moved.
    arguments: bool,
    part: bool,
}

impl<'a> Planner<'a> {
    fn new(symbols: &'a Symbols, everything: bool) -> Planner<'a> {
        let mut planner = Planner {
            symbols,
            index: HashMap::new(),
            padded: HashSet::new(),
            padded_modules: HashSet::new(),
            table: hooks::table(symbols.machine.driver.as_deref()),
            seen: HashSet::new(),
            absent: Vec::new(),
            named: 0,
            planned: Vec::new(),
        };
        for symbol in symbols.kallsyms.iter() {
            if !everything && !NVIDIA.contains(&symbol.module) {
                continue;
            }
            if let Some(name) = symbol.name.strip_prefix("__pfx_") {
                planner.padded.insert((symbol.module, name));
                planner.padded_modules.insert(symbol.module);
            } else if !forbidden::is_cold(symbol.name) {
                planner.index.entry(base(symbol.name)).or_default().push(symbol);
            }
        }
        planner
    }

    fn refuse(&mut self, name: &str, reason: HookError) {
        self.planned.push(PlannedHook::Refused { name: name.to_owned(), reason });
    }

    /// A row of the table: looked up in its own module, under its own name or a name that the compiler derived from it.
    fn hook(&mut self, hook: &Hook, asked: bool) {
        let found = self.find(hook.name, hook.module);
        let known = |(other, _): &(Hook, bool)| other.name == hook.name && other.module == hook.module;
        if found.is_empty() && !self.absent.iter().any(known) {
            self.absent.push((hook.clone(), asked));
        }
        for symbol in found {
            self.take(hook.name, symbol, Some(hook), asked);
        }
    }

    /// The whole function if it exists, else its clones, else its parts.
    fn find(&self, name: &str, module: &str) -> Vec<Symbol<'a>> {
        let all = self.index.get(base(name)).map(Vec::as_slice).unwrap_or_default();
        let all = || all.iter().filter(|symbol| symbol.module == module).copied();
        let exact: Vec<_> = all().filter(|symbol| symbol.name == name).collect();
        if !exact.is_empty() || name.contains('.') {
            return exact;
        }
        let of = |part: bool| all().filter(move |s| renamed(s.name).is_some_and(|r| r.part == part));
        let clones: Vec<_> = of(false).collect();
        if clones.is_empty() { of(true).collect() } else { clones }
    }

    fn take(&mut self, name: &str, symbol: Symbol<'a>, hook: Option<&Hook>, asked: bool) {
        if !self.seen.insert((symbol.module, symbol.name, symbol.address)) {
            return;
        }
        let changed = renamed(symbol.name);
        let function = Function {
            symbol,
            shared: self.is_shared(symbol),
            renamed: changed.is_some(),
            padded: self
                .padded_modules
                .contains(symbol.module)
                .then(|| self.padded.contains(&(symbol.module, symbol.name))),
            proto: self.symbols.protos.get(symbol.module).and_then(|protos| protos.get(base(symbol.name))),
            hook,
        };
        let ladder = backends::ladder(&function, self.symbols);
        if ladder.iter().all(|(_, against)| against.is_some()) {
            let reason = backends::refusal(&ladder, &self.symbols.machine);
            return self.refuse(name, reason);
        }
        let target = Target {
            name: name.to_owned(),
            symbol: symbol.name.to_owned(),
            module: (symbol.module != VMLINUX).then(|| symbol.module.to_owned()),
            address: symbol.address,
            backends: ladder,
            hook: hook.cloned(),
            proto: function.proto.cloned(),
            asked,
            arguments: !changed.unwrap_or_default().arguments,
            note: note(symbol.name, changed),
        };
        self.planned.push(PlannedHook::Take(Box::new(target)));
    }

    fn is_shared(&self, symbol: Symbol) -> bool {
        let same = |other: &&Symbol| other.name == symbol.name && other.module == symbol.module;
        self.index.get(base(symbol.name)).is_some_and(|all| all.iter().filter(same).count() > 1)
    }

    /// A function that the user named: in every module that has it.
    fn named(&mut self, name: &str) {
        if let Some(text) = hooks::folklore(name) {
            return self.refuse(name, HookError::Folklore { text });
        }
        let rows: Vec<Hook> = self.table.iter().filter(|row| row.name == name).cloned().collect();
        for row in &rows {
            self.hook(row, true);
        }
        if !rows.is_empty() {
            return;
        }
        let all = self.index.get(base(name)).map(Vec::as_slice).unwrap_or_default();
        let mut modules: Vec<&str> = all.iter().map(|symbol| symbol.module).collect();
        // Linux lists a module's functions together.
        modules.dedup();
        let found: Vec<Symbol> = modules.iter().flat_map(|module| self.find(name, module)).collect();
        if found.is_empty() {
            return self.refuse(name, self.missing(name));
        }
        for symbol in found {
            match forbidden::reason(&symbol, self.symbols) {
                Some(why) => self.refuse(name, HookError::Forbidden { why }),
                None if self.named == MOST => return self.refuse(name, too_many(MOST + 1)),
                None => {
                    self.named += 1;
                    self.take(symbol.name, symbol, None, true);
                }
            }
        }
    }

    fn missing(&self, name: &str) -> HookError {
        if self.symbols.kallsyms.is_empty() {
            return HookError::NoKallsyms;
        }
        HookError::NoSuchFunction { hint: hint(name, &self.symbols.kallsyms) }
    }

    fn glob(&mut self, glob: &str) {
        let pattern = match Pattern::new(glob) {
            Ok(pattern) => pattern,
            Err(error) => return self.refuse(glob, HookError::BadPattern { error: error.to_string() }),
        };
        let symbols = self.symbols;
        let matches = symbols
            .kallsyms
            .iter()
            .filter(|s| whole(s.name) && (pattern.matches(s.name) || pattern.matches(base(s.name))));
        let (mut wanted, mut kept_out) = (Vec::new(), Vec::new());
        for symbol in matches {
            match forbidden::reason(&symbol, symbols) {
                Some(why) => kept_out.push((symbol.name, why)),
                None => wanted.push(symbol),
            }
        }
        if self.named + wanted.len() > MOST {
            return self.refuse(glob, too_many(self.named + wanted.len()));
        }
        if let Some((name, why)) = kept_out.first() {
            let what = if wanted.is_empty() { "everything" } else { "some of what" };
            let (count, name) = (kept_out.len(), (*name).to_owned());
            self.refuse(glob, HookError::ForbiddenMatches { what, count, name, why });
        } else if wanted.is_empty() {
            let hint = hint(glob, &symbols.kallsyms);
            return self.refuse(glob, HookError::NoMatch { hint });
        }
        self.named += wanted.len();
        for symbol in wanted {
            self.take_known(symbol);
        }
    }

    /// Takes a symbol, with the table's row for it if there is one.
    fn take_known(&mut self, symbol: Symbol<'a>) {
        let is_it = |row: &&Hook| row.name == base(symbol.name) && row.module == symbol.module;
        let row = self.table.iter().find(is_it).cloned();
        self.take(row.as_ref().map_or(symbol.name, |row| row.name), symbol, row.as_ref(), true);
    }

    fn finish(mut self) -> Vec<PlannedHook> {
        for (hook, asked) in std::mem::take(&mut self.absent) {
            self.stand_in(hook, asked);
        }
        one_ioctl(&mut self.planned);
        self.planned
    }

    /// The function does not exist. A tracepoint that sees the same event replaces it, unless another hook already
    /// does.
    fn stand_in(&mut self, hook: Hook, asked: bool) {
        let why = self.why_absent(&hook);
        let ladder = backends::ladder_without(&hook, &self.symbols.machine, &why);
        if ladder.iter().all(|(_, against)| against.is_some()) {
            return self.refuse(hook.name, why);
        }
        let same = |planned: &PlannedHook| match planned {
            PlannedHook::Take(target) => target.hook.as_ref().is_some_and(|other| {
                other.line == hook.line && other.module == hook.module && other.tracepoint == hook.tracepoint
            }),
            PlannedHook::Refused { .. } => false,
        };
        if let Some(PlannedHook::Take(other)) = self.planned.iter().find(|planned| same(planned)) {
            let reason = HookError::Replaced { why: why.to_string(), by: other.name.clone() };
            return self.refuse(hook.name, reason);
        }
        let target = Target {
            name: hook.name.to_owned(),
            symbol: hook.name.to_owned(),
            module: None,
            address: None,
            backends: ladder,
            proto: None,
            asked,
            arguments: true,
            note: Some(why.to_string()),
            hook: Some(hook),
        };
        self.planned.push(PlannedHook::Take(Box::new(target)));
    }

    fn why_absent(&self, hook: &Hook) -> HookError {
        let module = hook.module;
        let loaded = self.symbols.modules.iter().flatten().any(|name| name == module);
        if self.symbols.kallsyms.is_empty() {
            return HookError::NoKallsyms;
        }
        if !loaded && !self.symbols.kallsyms.has_module(module) {
            return HookError::NotLoaded { module: module.to_owned(), modprobe: module.replace('_', "-") };
        }
        if hook.open_only && self.symbols.machine.driver_is_open == Some(false) {
            return HookError::ProprietaryDriver;
        }
        let version = self.symbols.machine.driver.as_deref().map(|v| format!(" {v}")).unwrap_or_default();
        HookError::NotInDriver { driver: format!("{module}{version}") }
    }
}

/// An RM ioctl passes through several functions: the outermost reports the ioctl; an inner one is an ordinary function.
fn one_ioctl(planned: &mut [PlannedHook]) {
    let mut entries: Vec<&mut Hook> = planned
        .iter_mut()
        .filter_map(|planned| match planned {
            PlannedHook::Take(target) => target.hook.as_mut(),
            PlannedHook::Refused { .. } => None,
        })
        .filter(|hook| hook.role == Role::Ioctl && hook.module == "nvidia")
        .collect();
    // The inner one takes the inode before the file.
    entries.sort_by_key(|hook| hook.operation.file);
    for inner in entries.into_iter().skip(1) {
        inner.role = Role::Function;
        inner.line = inner.name;
    }
}

/// `foo` of `foo.isra.0`.
fn base(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Neither a part nor padding of a function of this name.
fn whole(name: &str) -> bool {
    !forbidden::is_cold(name) && !name.starts_with("__pfx_")
}

/// None: the name is the one in the source.
fn renamed(name: &str) -> Option<Renaming> {
    let (_, suffix) = name.split_once('.')?;
    let mut renamed = Renaming::default();
    for word in suffix.split('.') {
        match word {
            "isra" | "constprop" => renamed.arguments = true,
            "part" => renamed = Renaming { arguments: true, part: true },
            _ => {}
        }
    }
    Some(renamed)
}

fn note(symbol: &str, changed: Option<Renaming>) -> Option<String> {
    let changed = changed?;
    Some(if changed.part {
        format!(
            "gpurec hooks {symbol}, a part that the compiler split off: it does not see calls that do not reach this part, and shows the part's own arguments"
        )
    } else if changed.arguments {
        format!("the compiler turned it into {symbol} and may have dropped arguments, so gpurec shows none")
    } else {
        format!("the compiler named it {symbol}")
    })
}

fn too_many(count: usize) -> HookError {
    HookError::BeyondPattern { count, most: MOST }
}
