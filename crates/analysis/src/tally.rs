//! Running sums of the calls of one function.

use std::sync::Arc;

use super::categories;
use super::figures::{Function, OTHER_FUNCTIONS};
use super::spread::{Spread, narrow};
use super::stacks::CallRole;
use gpurec_cuda::FunctionTraits;

/// The additional role in which a call counts. Of nested calls in the same role the innermost counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    KernelLaunch,
    GraphLaunch,
    Sync,
}

impl Role {
    pub fn of(traits: &FunctionTraits) -> Option<Role> {
        if traits.is_kernel_launch() {
            Some(Role::KernelLaunch)
        } else if traits.is_graph_launch() {
            Some(Role::GraphLaunch)
        } else {
            traits.is_sync().then_some(Role::Sync)
        }
    }

    /// The bit for a set of roles in one byte.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }

    pub fn launches(self) -> bool {
        self != Role::Sync
    }
}

#[derive(Clone)]
pub struct Tally {
    pub name: Arc<str>,
    pub traits: FunctionTraits,
    pub role: Option<Role>,
    pub call_role: CallRole,
    /// An index in the numbering of `categories`.
    pub category: usize,
    times: Spread,
    kernel_ns: u64,
    off_cpu_ns: u64,
    /// The part of the total that is in no call inside.
    pub own_ns: u64,
    /// The cost of recording the calls inside the timed ones.
    nested_ns: u64,
    /// The part of the total during which gpurec itself had stopped the process.
    pub paused_ns: u64,
    /// Linux single-steps the hook of this function in at least one library.
    pub stepped: bool,
    /// Number of failed calls.
    pub errors: u64,
    /// Number of unfinished calls, which count with their time so far.
    pub unfinished: u64,
    /// The entry is for functions beyond the limit.
    pub is_other: bool,
}

/// The name of the shared entry for functions beyond the limit, by role.
fn others(role: Option<Role>) -> &'static str {
    match role {
        None => OTHER_FUNCTIONS,
        Some(Role::KernelLaunch) => "(other kernel launches)",
        Some(Role::GraphLaunch) => "(other graph launches)",
        Some(Role::Sync) => OTHER_SYNC,
    }
}

pub const OTHER_SYNC: &str = "(other synchronisations)";

impl Tally {
    /// `kept` is the name, if the function has an entry of its own.
    pub fn new(name: &str, kept: Option<Arc<str>>, stepped: bool) -> Tally {
        let traits = FunctionTraits::of(name);
        let role = Role::of(&traits);
        Tally {
            is_other: kept.is_none(),
            name: kept.unwrap_or_else(|| others(role).into()),
            role,
            call_role: CallRole::of(&traits),
            category: categories::of(traits.category),
            traits,
            stepped,
            times: Spread::default(),
            kernel_ns: 0,
            off_cpu_ns: 0,
            own_ns: 0,
            nested_ns: 0,
            paused_ns: 0,
            errors: 0,
            unfinished: 0,
        }
    }

    pub fn add(&mut self, ns: u64) {
        self.times.add(ns);
    }

    /// Whether calls of both functions, beyond the limit, share one entry.
    pub fn is_like(&self, other: &Tally) -> bool {
        self.traits.api == other.traits.api && self.traits.is_like(&other.traits)
    }

    /// Adds the calls of the other function.
    pub fn merge(&mut self, other: &Tally) {
        self.times.merge(&other.times);
        self.add_inside(other.nested_ns, other.kernel_ns, other.off_cpu_ns);
        self.own_ns = self.own_ns.saturating_add(other.own_ns);
        self.paused_ns = self.paused_ns.saturating_add(other.paused_ns);
        self.errors += other.errors;
        self.unfinished += other.unfinished;
    }

    /// The cost of recording the calls inside, and the time in the driver and off the CPU.
    pub fn add_inside(&mut self, nested_ns: u64, kernel_ns: u64, off_cpu_ns: u64) {
        self.nested_ns = self.nested_ns.saturating_add(nested_ns);
        self.kernel_ns = self.kernel_ns.saturating_add(kernel_ns);
        self.off_cpu_ns = self.off_cpu_ns.saturating_add(off_cpu_ns);
    }

    /// The total without gpurec's own share: the cost of recording nested calls, and its stops. None if there was no
    /// such share.
    fn corrected(&self) -> Option<u64> {
        let own = u128::from(self.nested_ns) + u128::from(self.paused_ns);
        (own > 0).then(|| narrow(self.times.total.saturating_sub(own)))
    }

    /// None if no call has returned.
    pub fn figures(&self, with_kernel: bool) -> Option<Function> {
        let times = self.times.statistics()?;
        Some(Function {
            name: self.name.to_string(),
            calls: times.count,
            total_ns: times.total_ns,
            avg_ns: times.avg_ns,
            med_ns: times.med_ns,
            min_ns: times.min_ns,
            max_ns: times.max_ns,
            stddev_ns: times.stddev_ns,
            kernel_ns: with_kernel.then_some(self.kernel_ns),
            off_cpu_ns: with_kernel.then_some(self.off_cpu_ns),
            corrected_ns: self.corrected(),
            errors: self.errors,
            unfinished: self.unfinished,
        })
    }
}
