//! Running sums of the calls of one function.

use std::sync::Arc;

use super::figures::Function;
use super::histogram::Histogram;
use super::{asked, categories};
use gpurec_cuda::{self as cuda, Api, Category};

/// The additional role in which a call counts. Of nested calls in the same role the innermost counts.
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

    /// The bit for a set of roles in one byte.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What a call of the function implies for the calls around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The call returns before its work is done.
    pub is_async: bool,
    /// The call waits for the GPU; `waits_for_event`: only for work before an event.
    pub waits: bool,
    pub waits_for_event: bool,
    /// The call copies.
    pub copies: bool,
    /// The host may get results from the call without a visible copy.
    pub gives: bool,
    /// If the call follows a wait, it needed the wait.
    pub looks: bool,
    /// The call makes device memory visible to another process or to the host.
    pub shares: bool,
    /// The call would report the error of an earlier kernel.
    pub reports: bool,
    pub asks_error: bool,
    /// `<<<>>>` discards the returned error.
    pub hides_error: bool,
    /// The call allocates memory of a size that its arguments give.
    pub allocates: bool,
    /// The call changes the current context of its thread.
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
    /// Number of recorded calls inside the timed ones.
    pub nested_ns: u64,
    /// The part of the total during which gpurec itself had stopped the process.
    pub paused_ns: u64,
    /// Linux single-steps the hook of this function in at least one library.
    pub stepped: bool,
    /// Number of failed calls.
    pub errors: u64,
    /// Number of unfinished calls, which count with their time so far.
    pub unfinished: u64,
}

/// The name of the shared entry for functions beyond the limit, by role.
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

    /// Whether calls of both functions, beyond the limit, share one entry.
    pub fn is_like(&self, other: &Tally) -> bool {
        (self.api, self.role, self.marks, self.category)
            == (other.api, other.role, other.marks, other.category)
    }

    /// Adds the calls of the other function.
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
