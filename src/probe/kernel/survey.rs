//! For `gpurec doctor`: how much of a plain `--kernel` works here. In: facts. Out: sentences. Attaches nothing, so a
//! later refusal by Linux does not show.

use std::collections::BTreeMap;

use super::{Backend, HookRequest, PlannedHook, Scope, Symbols, plan};
use crate::host::Facts;
use gpurec_nvidia::hooks;

/// Number of reasons listed; the rest is counted.
const SHOWN: usize = 6;

pub fn survey(facts: &Facts) -> Vec<String> {
    let symbols = Symbols::gather(facts, Scope::Driver);
    let rows = hooks::table(facts.driver.as_deref()).into_iter().filter(|hook| hook.on);
    let wanted: Vec<HookRequest> = rows.map(|hook| HookRequest::Hook(Box::new(hook))).collect();
    let mut best: Vec<Option<Backend>> = Vec::new();
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for planned in plan(&wanted, &symbols) {
        match planned {
            PlannedHook::Take(target) => best.push(target.usable().next()),
            PlannedHook::Refused { name, reason } => {
                by_reason.entry(reason.to_string()).or_default().push(name)
            }
        }
    }
    let mut lines = Vec::new();
    for backend in Backend::ALL {
        let count = best.iter().filter(|best| **best == Some(backend)).count();
        if count > 0 {
            lines.push(format!("{}: may work for {count} of {} default hooks", backend.name(), wanted.len()));
        }
    }
    let mut reasons: Vec<_> = by_reason.into_iter().collect();
    reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let more = reasons.len().saturating_sub(SHOWN);
    for (reason, names) in reasons.into_iter().take(SHOWN) {
        let first = names.first().map_or("", String::as_str);
        lines.push(format!(
            "not hooked: {} ({first}{}): {reason}",
            names.len(),
            if names.len() > 1 { ", …" } else { "" }
        ));
    }
    if more > 0 {
        lines.push(format!("and {more} more reasons; `gpurec probes --kernel` lists them all"));
    }
    lines
}
