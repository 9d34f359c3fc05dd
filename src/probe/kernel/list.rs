//! `gpurec probes --kernel`: what can be hooked in Linux and its modules, where and how. In: a pattern of functions, or
//! of tracepoints (`category:event`). Out: one line each, on standard output. Attaches nothing.

use std::fmt::Write as _;
use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use glob::Pattern;

use super::resolve::{HookRequest, PlannedHook, examine, plan};
use super::symbols::{NVIDIA, Scope, Symbols, caller_sees_addresses};
use super::target::Target;
use crate::host::Facts;
use crate::host::tracefs;
use gpurec_nvidia::hooks::{self, Hook};

/// Without a pattern: the functions of the nvidia modules that gpurec knows.
pub fn list(glob: Option<&Pattern>) -> Result<u8> {
    let gather = |scope| Symbols {
        hides_addresses: !caller_sees_addresses(),
        ..Symbols::gather(&Facts::gather(), scope)
    };
    let text = match glob {
        Some(glob) if glob.as_str().contains(':') => tracepoints(glob.as_str())?,
        Some(glob) => functions(glob, &gather(Scope::Everything))?,
        None => table(&gather(Scope::Driver)),
    };
    io::stdout().lock().write_all(crate::ui::clean_lines(&text).as_bytes())?;
    Ok(0)
}

/// Every row of the hook table, by group.
pub(super) fn table(symbols: &Symbols) -> String {
    let rows = hooks::table(symbols.machine.driver.as_deref());
    if !NVIDIA.iter().any(|module| symbols.kallsyms.has_module(module)) {
        return unloaded(&rows);
    }
    let mut text = String::new();
    for group in hooks::Group::ALL {
        let of_it = rows.iter().filter(|row| row.group == group);
        let wanted: Vec<HookRequest> = of_it.map(|row| HookRequest::Hook(Box::new(row.clone()))).collect();
        _ = writeln!(text, "{}", group.name());
        for planned in plan(&wanted, symbols) {
            show(&mut text, &planned, symbols);
        }
    }
    text
}

fn unloaded(rows: &[Hook]) -> String {
    let mut text =
        "no nvidia module is loaded; once one is, --kernel hooks the functions marked *, and --kernel=GROUP those of its group:\n".to_owned();
    for row in rows {
        let on = if row.on { '*' } else { ' ' };
        let names: Vec<&str> = row.names().collect();
        _ = writeln!(
            text,
            "{on} {:<46} {:<10} {:<15} ({})",
            row.name,
            row.group.name(),
            row.module,
            names.join(", ")
        );
    }
    text
}

/// The nvidia modules' functions first, then those of vmlinux and other modules.
pub(super) fn functions(glob: &Pattern, symbols: &Symbols) -> Result<String> {
    let matches = |name: &str| glob.matches(name) || name.split('.').next().is_some_and(|n| glob.matches(n));
    let mut found = examine(symbols, |symbol| matches(symbol.name));
    if found.is_empty() {
        let hint = super::near::hint(glob.as_str(), &symbols.kallsyms);
        bail!("no function of the kernel or a loaded module matches {glob}{hint}");
    }
    let name = |planned: &PlannedHook| match planned {
        PlannedHook::Take(target) => target.symbol.clone(),
        PlannedHook::Refused { name, .. } => name.clone(),
    };
    found.sort_by_cached_key(|(module, planned)| (rank(module), *module, name(planned)));
    let mut text = String::new();
    let mut last = None;
    for (module, planned) in &found {
        if last.replace(module) != Some(module) {
            _ = writeln!(text, "{module}");
        }
        show(&mut text, planned, symbols);
    }
    Ok(text)
}

fn rank(module: &str) -> usize {
    NVIDIA.iter().position(|name| *name == module).unwrap_or(NVIDIA.len())
}

/// Name, address, backends, group, arguments.
fn show(text: &mut String, planned: &PlannedHook, symbols: &Symbols) {
    let target = match planned {
        PlannedHook::Take(target) => target,
        PlannedHook::Refused { name, reason } => {
            _ = writeln!(text, "  {name:<46} not hooked: {reason}");
            return;
        }
    };
    let backends: Vec<&str> = target.usable().map(|backend| backend.name()).collect();
    let address = target.address.filter(|_| !symbols.hides_addresses);
    let address = address.map_or_else(|| "-".to_owned(), |address| format!("{address:#x}"));
    _ = write!(text, "  {:<46} {address:<18} {:<40}", target.symbol, backends.join(" "));
    if let Some(hook) = &target.hook {
        _ = write!(text, " {}{}", hook.group.name(), if hook.on { "" } else { " (off)" });
    }
    _ = write!(text, " ({})", arguments(target));
    if let Some(note) = &target.note {
        _ = write!(text, "; {note}");
    }
    if let Some(hook) = target.hook.as_ref().filter(|hook| !hook.meaning.is_empty()) {
        _ = write!(text, "  # {}", hook.meaning);
    }
    text.push('\n');
}

fn arguments(target: &Target) -> String {
    match (&target.hook, &target.proto) {
        _ if !target.arguments => String::new(),
        (Some(hook), _) if hook.has_args() => hook.names().collect::<Vec<_>>().join(", "),
        (_, Some(proto)) => {
            let places = proto.registers().into_iter();
            places.map(|(param, _)| param.name.as_str()).collect::<Vec<_>>().join(", ")
        }
        (Some(_), None) => String::new(),
        (None, None) => "arg0 to arg5".to_owned(),
    }
}

/// `category:event` with the names of its fields.
fn tracepoints(glob: &str) -> Result<String> {
    let glob = Pattern::new(glob).with_context(|| format!("{glob} is not a pattern; use *, ? and [a-z]"))?;
    let events = tracefs::read("available_events")
        .context("cannot list the kernel's tracepoints; run gpurec as root")?;
    let mut names: Vec<&str> = events.lines().filter(|name| glob.matches(name)).collect();
    names.sort_unstable();
    let mut text = String::new();
    for name in names {
        let path = format!("events/{}/format", name.replace(':', "/"));
        let format = tracefs::read(&path).unwrap_or_default();
        _ = writeln!(text, "  {name:<46} tracepoint ({})", fields(&format).join(", "));
    }
    if text.is_empty() {
        bail!("no tracepoint matches {glob}; `gpurec probes --kernel '*:*'` lists them all");
    }
    Ok(text)
}

/// The event's own fields, without those that every event has.
pub(super) fn fields(format: &str) -> Vec<&str> {
    let own = format.split("\n\n").nth(1).unwrap_or_default();
    own.lines().filter_map(field).collect()
}

/// `field:unsigned long pfn;  offset:8; ...`
fn field(line: &str) -> Option<&str> {
    let declared = line.trim_start().strip_prefix("field:")?.split(';').next()?;
    let word = declared.split_whitespace().last()?;
    Some(word.split('[').next()?.trim_start_matches('*'))
}
