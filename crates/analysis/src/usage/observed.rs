//! The time in which not all calls of a role were recorded, for each role. In: the options of a recording, and the
//! functions that `--budget` gives up and takes back. Out: a time for each role, which grows while a function of the role
//! is not recorded.

use std::collections::{BTreeMap, BTreeSet};

use super::super::left_out::LeftOut;
use super::super::stacks::CallRole;
use super::sums::ROLES;
use gpurec_cuda::{self as cuda, FunctionTraits};
use gpurec_trace::{Budget, CALL_STACKS, Level};

/// There are never more hooked functions than this.
const FUNCTIONS: usize = 16_384;

#[derive(Clone, Debug, Default)]
pub struct Observed {
    roles: [Role; ROLES],
    /// Functions that are given up, by probe.
    given_up: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Role {
    /// The number of its functions that are not recorded now.
    missing: u64,
    since_ns: u64,
    total_ns: u64,
}

impl Observed {
    /// Functions that the options leave out are never recorded.
    pub fn leaves_out(&mut self, left_out: &LeftOut) {
        // Programs call one version of a function, usually the newest.
        let mut recorded: BTreeMap<(CallRole, &str), bool> = BTreeMap::new();
        for name in cuda::function_names() {
            let role = CallRole::of(&FunctionTraits::of(name));
            *recorded.entry((role, cuda::base_name(name))).or_default() |= left_out.records(name);
        }
        for (role, _) in recorded.into_iter().filter(|(_, recorded)| !recorded).map(|(key, _)| key) {
            self.missing(0, role, true);
        }
    }

    pub fn budget(&mut self, ts_ns: u64, line: &Budget) {
        // A static probe is no call.
        if line.function == CALL_STACKS || line.function.contains(':') {
            return;
        }
        let is_missing = line.level != Level::Recorded;
        let has_changed = match is_missing {
            true => self.given_up.len() < FUNCTIONS && self.given_up.insert(line.probe),
            false => self.given_up.remove(&line.probe),
        };
        if has_changed {
            self.missing(ts_ns, CallRole::of(&FunctionTraits::of(&line.function)), is_missing);
        }
    }

    fn missing(&mut self, ts_ns: u64, role: CallRole, is_missing: bool) {
        let Some(role) = self.roles.get_mut(role as usize) else { return };
        if is_missing {
            if role.missing == 0 {
                role.since_ns = ts_ns;
            }
            role.missing += 1;
        } else {
            role.total_ns = role.total(ts_ns);
            role.since_ns = ts_ns;
            role.missing = role.missing.saturating_sub(1);
        }
    }

    /// The time until `ts_ns`, by role.
    pub fn total_ns(&self, ts_ns: u64) -> [u64; ROLES] {
        self.roles.map(|role| role.total(ts_ns))
    }
}

impl Role {
    fn total(&self, ts_ns: u64) -> u64 {
        let open_ns = if self.missing > 0 { ts_ns.saturating_sub(self.since_ns) } else { 0 };
        self.total_ns.saturating_add(open_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_trace::{Action, Header};

    fn change(observed: &mut Observed, ts_ns: u64, function: &str, probe: u32, level: Level) {
        let (action, before) = (Action::GiveUp, Level::Recorded);
        let function = function.to_owned();
        let line = Budget { action, function, probe, level, before, counted: 0, why: None };
        observed.budget(ts_ns, &line);
    }

    #[test]
    fn a_role_is_not_observed_while_any_of_its_functions_is_missing() {
        let mut observed = Observed::default();
        let sync = |observed: &Observed, at| observed.total_ns(at)[CallRole::Sync as usize];
        change(&mut observed, 100, "cuCtxSynchronize", 1, Level::Unhooked);
        change(&mut observed, 150, "cudaDeviceSynchronize", 2, Level::Unhooked);
        change(&mut observed, 160, "cuCtxSynchronize", 1, Level::Unhooked);
        change(&mut observed, 200, "cuCtxSynchronize", 1, Level::Recorded);
        assert_eq!(sync(&observed, 250), 150);
        change(&mut observed, 300, "cudaDeviceSynchronize", 2, Level::Recorded);
        change(&mut observed, 350, CALL_STACKS, 0, Level::Unhooked);
        change(&mut observed, 350, "pytorch:malloc", 9, Level::Unhooked);
        assert_eq!(sync(&observed, 1000), 200);
        assert_eq!(observed.total_ns(1000).iter().sum::<u64>(), 200);
    }

    #[test]
    fn options_leave_roles_out_from_the_start() {
        let of = |options: serde_json::Value| {
            let mut observed = Observed::default();
            observed.leaves_out(&LeftOut::of(&Header { options, ..Header::default() }).unwrap());
            let missing = observed.total_ns(7);
            CallRole::ALL
                .into_iter()
                .take(ROLES)
                .filter(|role| missing[*role as usize] == 7)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(serde_json::json!({"skip": ["*Synchronize*"]})), [CallRole::Sync]);
        let all_but_init = of(serde_json::json!({"only": ["*Launch*", "cu*Init*"]}));
        assert!(all_but_init.contains(&CallRole::Alloc) && !all_but_init.contains(&CallRole::Launch));
    }
}
