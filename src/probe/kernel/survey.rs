//! For `gpurec doctor`: how much of a plain `--kernel` works here. In: facts. Out: sentences. Attaches nothing, so a
//! later refusal by Linux does not show.

use std::collections::BTreeMap;

use super::{Backend, Planned, Scope, Symbols, Wanted, plan};
use crate::host::Facts;
use gpurec_nvidia::hooks;

/// Number of reasons listed; the rest is counted.
const SHOWN: usize = 6;

pub fn survey(facts: &Facts) -> Vec<String> {
    let symbols = Symbols::gather(facts, Scope::Driver);
    let rows = hooks::table(facts.driver.as_deref()).into_iter().filter(|hook| hook.on);
    let wanted: Vec<Wanted> = rows.map(|hook| Wanted::Hook(Box::new(hook))).collect();
    let mut by_backend: BTreeMap<usize, u64> = BTreeMap::new();
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for planned in plan(&wanted, &symbols) {
        match planned {
            Planned::Take(target) => {
                let best = target.usable().next();
                let place = Backend::ALL.iter().position(|backend| Some(*backend) == best);
                *by_backend.entry(place.unwrap_or(Backend::ALL.len())).or_default() += 1;
            }
            Planned::Refused { name, reason } => by_reason.entry(reason.to_string()).or_default().push(name),
        }
    }
    let backends =
        by_backend.iter().filter_map(|(place, count)| Some((Backend::ALL.get(*place)?.name(), count)));
    let mut lines: Vec<String> = backends
        .map(|(backend, count)| format!("{backend}: may work for {count} of {} default hooks", wanted.len()))
        .collect();
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
        lines.push(format!("and {more} more reasons; `gpurec probes --kernel` has them all"));
    }
    lines
}
