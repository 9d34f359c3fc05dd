//! The running sums of one function.

use std::sync::Arc;

use super::figures::Function;
use super::histogram::Histogram;
use super::{asked, categories};
use gpurec_cuda::{self as cuda, Api, Category};

/// What a call is counted as beside being a call. A call nested in another of
/// the same role is the one that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    KernelLaunch,
    GraphLaunch,
    Sync,
}

impl Role {
    fn of(name: &str) -> Option<Role> {
        if cuda::is_kernel_launch(name) {
            Some(Role::KernelLaunch)
        } else if cuda::is_graph_launch(name) {
            Some(Role::GraphLaunch)
        } else if cuda::category(name) == Category::Sync {
            Some(Role::Sync)
        } else {
            None
        }
    }

    /// To remember a set of roles in one byte.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What a function's calls say about the calls around them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// It returns before its work is done.
    pub is_async: bool,
    /// It waits for the GPU; or only for what is before an event.
    pub waits: bool,
    pub waits_for_event: bool,
    /// It copies.
    pub copies: bool,
    /// The host may get something by it that no copy shows.
    pub gives: bool,
    /// After a wait: that was waited for.
    pub looks: bool,
    /// By it another process, or the host, sees memory of the device.
    pub shares: bool,
    /// It would report the error of an earlier kernel.
    pub reports: bool,
    pub asks_error: bool,
    /// `<<<>>>` drops what it returns.
    pub hides_error: bool,
    /// It takes memory of a size that its arguments tell.
    pub allocates: bool,
    /// It changes the context its thread works with.
    pub switches: bool,
}

impl Marks {
    fn of(name: &str, role: Option<Role>) -> Marks {
        let base = cuda::base_name(name);
        let category = cuda::category(name);
        let launches = matches!(role, Some(Role::KernelLaunch | Role::GraphLaunch));
        let is_async = launches || (base.contains("Async") && cuda::api(name) != Api::Other);
        let waits = role == Some(Role::Sync);
        let ends = matches!(category, Category::Memcpy | Category::Free) && !is_async;
        let asks = matches!(base, "cuEventQuery" | "cudaEventQuery" | "cuStreamQuery" | "cudaStreamQuery");
        let copies = category == Category::Memcpy;
        let hosts = matches!(base, "cuLaunchHostFunc" | "cudaLaunchHostFunc")
            || base.contains("StreamAddCallback")
            || base.contains("PrefetchAsync");
        Marks {
            is_async: is_async || hosts,
            allocates: asked::allocates(category),
            waits,
            waits_for_event: waits && base.contains("Event"),
            copies,
            gives: hosts || role == Some(Role::GraphLaunch),
            looks: (copies || category == Category::Free) && !is_async || base.ends_with("EventElapsedTime"),
            shares: base.contains("IpcGet")
                || base.contains("IpcOpen")
                || base.ends_with("HostGetDevicePointer"),
            reports: waits || ends || asks || matches!(base, "cudaDeviceReset" | "cuCtxDestroy"),
            asks_error: matches!(base, "cudaGetLastError" | "cudaPeekAtLastError"),
            hides_error: matches!(base, "cudaLaunchKernel" | "__cudaLaunchKernel" | "cudaLaunch"),
            switches: matches!(
                base,
                "cuCtxSetCurrent" | "cuCtxPushCurrent" | "cuCtxPopCurrent" | "cuCtxCreate"
            ),
        }
    }
}

#[derive(Clone)]
pub struct Tally {
    pub name: Arc<str>,
    pub api: Api,
    pub role: Option<Role>,
    pub marks: Marks,
    /// As `categories` numbers them.
    pub category: usize,
    calls: u64,
    total: u128,
    squares: u128,
    min: u64,
    max: u64,
    durations: Histogram,
    kernel_ns: u64,
    off_cpu_ns: u64,
    /// Recorded calls inside those that were timed.
    pub nested_ns: u64,
    /// Of the total, how long gpurec itself had stopped the process.
    pub paused_ns: u64,
    /// The kernel single-steps its hook, in some library.
    pub stepped: bool,
    /// How many failed.
    pub errors: u64,
    /// How many have not returned, and are timed so far.
    pub unfinished: u64,
}

/// The name of functions beyond those that are told apart, by what they are counted as.
pub fn others(role: Option<Role>) -> &'static str {
    match role {
        None => "(other functions)",
        Some(Role::KernelLaunch) => "(other kernel launches)",
        Some(Role::GraphLaunch) => "(other graph launches)",
        Some(Role::Sync) => OTHER_SYNC,
    }
}

pub const OTHER_SYNC: &str = "(other synchronisations)";

impl Tally {
    pub fn new(name: Arc<str>) -> Tally {
        let role = Role::of(&name);
        Tally {
            api: cuda::api(&name),
            role,
            marks: Marks::of(&name, role),
            category: categories::of(&name),
            name,
            calls: 0,
            total: 0,
            squares: 0,
            min: u64::MAX,
            max: 0,
            durations: Histogram::default(),
            kernel_ns: 0,
            off_cpu_ns: 0,
            nested_ns: 0,
            paused_ns: 0,
            stepped: false,
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

    /// Calls of functions that are not told apart, under one name.
    pub fn is_like(&self, other: &Tally) -> bool {
        (self.api, self.role, self.marks, self.category)
            == (other.api, other.role, other.marks, other.category)
    }

    /// As if the other's calls had been this one's.
    pub fn merge(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.total += other.total;
        self.squares = self.squares.saturating_add(other.squares);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.durations.merge(&other.durations);
        self.add_within(other.kernel_ns, other.off_cpu_ns);
        self.nested_ns = self.nested_ns.saturating_add(other.nested_ns);
        self.paused_ns = self.paused_ns.saturating_add(other.paused_ns);
        self.errors += other.errors;
        self.unfinished += other.unfinished;
    }

    pub fn add_within(&mut self, kernel_ns: u64, off_cpu_ns: u64) {
        self.kernel_ns = self.kernel_ns.saturating_add(kernel_ns);
        self.off_cpu_ns = self.off_cpu_ns.saturating_add(off_cpu_ns);
    }

    /// What recording the calls inside has added to the time of these.
    /// The total without gpurec's own part in it, if there was any.
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
            // The middle of a bucket may lie outside of what was in it.
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

    /// Of a sample (by n - 1), as nsys has it.
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
            // Too large for 128 bits: less exact, which nobody can tell there.
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
