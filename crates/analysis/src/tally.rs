//! Running sums of the calls of one function.

use std::sync::Arc;

use super::categories;
use super::figures::{Function, OTHER_FUNCTIONS};
use super::histogram::Histogram;
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
    /// An index in the numbering of `categories`.
    pub category: usize,
    calls: u64,
    total: u128,
    squares: u128,
    min: u64,
    max: u64,
    durations: Histogram,
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
            category: categories::of(traits.category),
            traits,
            stepped,
            calls: 0,
            total: 0,
            squares: 0,
            min: u64::MAX,
            max: 0,
            durations: Histogram::default(),
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
        let wide = u128::from(ns);
        self.calls += 1;
        self.total += wide;
        self.squares = self.squares.saturating_add(wide * wide);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        self.durations.add(ns);
    }

    /// Whether calls of both functions, beyond the limit, share one entry.
    pub fn is_like(&self, other: &Tally) -> bool {
        self.traits.api == other.traits.api && self.traits.is_like(&other.traits)
    }

    /// Adds the calls of the other function.
    pub fn merge(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.total += other.total;
        self.squares = self.squares.saturating_add(other.squares);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.durations.merge(&other.durations);
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
        (own > 0).then(|| narrow(self.total.saturating_sub(own)))
    }

    /// None if no call has returned.
    pub fn figures(&self, with_kernel: bool) -> Option<Function> {
        let calls = u128::from(self.calls);
        let average = self.total.checked_div(calls)?;
        Some(Function {
            name: self.name.to_string(),
            calls: self.calls,
            total_ns: narrow(self.total),
            avg_ns: narrow(average + u128::from(self.total % calls * 2 >= calls)),
            // The middle of a histogram bucket may lie outside its values.
            med_ns: self.durations.median().clamp(self.min, self.max),
            min_ns: self.min,
            max_ns: self.max,
            stddev_ns: self.deviation(),
            kernel_ns: with_kernel.then_some(self.kernel_ns),
            off_cpu_ns: with_kernel.then_some(self.off_cpu_ns),
            corrected_ns: self.corrected(),
            errors: self.errors,
            unfinished: self.unfinished,
        })
    }

    /// Standard deviation of a sample (division by n - 1), as in nsys.
    fn deviation(&self) -> u64 {
        let calls = u128::from(self.calls);
        if calls < 2 {
            return 0;
        }
        let exact = calls
            .checked_mul(self.squares)
            .zip(self.total.checked_mul(self.total))
            .map(|(a, b)| a.saturating_sub(b));
        let spread = match exact {
            Some(spread) => spread as f64,
            // The sum exceeds 128 bits: a less exact result suffices at that size.
            None => {
                let total = self.total as f64;
                (calls as f64 * self.squares as f64 - total * total).max(0.0)
            }
        };
        let n = calls as f64;
        (spread / (n * (n - 1.0))).sqrt().round() as u64
    }
}

fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
