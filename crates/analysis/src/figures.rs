//! The figures of a recording, as printed and as stored under `summary` in the `end` line. Times are integer
//! nanoseconds, so that a figure is the same however it was computed.

mod json;
mod shorter;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use super::budget::BudgetFigures;
pub use super::categories::CategoryFigures;
pub use super::devices::DeviceFigures;
use super::driver_figures::is_zero;
pub use super::driver_figures::{DriverErrors, KernelSpace, XidFigures};
pub use super::gpu::figures::GpuFigures;
pub use super::gpu::nvml::NvmlFigures;
pub use super::stacks::StackFigures;
use super::stacks::{Places, Site};
use gpurec_trace::{self as trace, InFlight, Incomplete, Reason, RefusedHook, reasons};

/// The names of rows for what is beyond a limit.
pub const OTHER_FUNCTIONS: &str = "(other functions)";
pub const OTHERS: &str = "(others)";

/// The peaks of all processes.
pub const PEAK: &str = "memory.peak";

/// The prefix of each device's figures.
pub const BY_DEVICE: &str = "devices.";

/// The reason that affects only processes from before the recording.
pub const BEFORE: &str = "memory from before the recording is not in it";

/// The reason if memory may come from outside a part (--from, --tid).
pub const OUTSIDE: &str = "memory from outside this part is not in it";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Length of the recording.
    pub duration_ns: u64,
    /// Nothing was lost, cut or left undecoded; otherwise `incomplete_because` says why.
    pub complete: bool,
    pub incomplete_because: Vec<String>,
    /// The code of each reason, in the same order.
    pub incomplete_codes: Vec<String>,
    /// The figures cover a part of the trace.
    #[serde(skip)]
    pub is_part: bool,
    /// Oddities that a reader found in the file. Empty in the file itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,

    /// The recording has processes that ran before it; memory they held then is not in it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Each unknown figure by its JSON path (`memory.leaks`), with the reason. The JSON has null there, and the
    /// observed value under `seen`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: BTreeMap<String, String>,

    pub cuda_calls: u64,
    /// Calls into libraries added with --lib.
    pub other_calls: u64,
    /// Each launch counts once, at the innermost level seen.
    pub kernel_launches: u64,
    pub graph_launches: u64,
    /// Calls left by longjmp or an exception.
    pub unwound_calls: u64,
    /// Ends without a begin.
    pub unmatched_ends: u64,

    pub memory: MemoryFigures,
    pub transfers: TransferFigures,
    /// Empty if no device is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceFigures>,
    /// The most launched kernels.
    pub kernels: Vec<KernelFigures>,
    pub more_kernels: u64,
    /// Launches shown by address, because there was no time to look up the name.
    #[serde(skip_serializing_if = "is_zero")]
    pub unnamed_launches: u64,
    /// The first failures of each context, with the calls that may have caused them.
    pub error_windows: Vec<ErrorWindow>,
    /// Possible improvements of the program.
    pub findings: Vec<Finding>,

    /// Only in a recording with --kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_space: Option<KernelSpace>,
    /// Only in a recording without --kernel that has Xids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_errors: Option<DriverErrors>,

    /// Only in a recording that has lines of GPU work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFigures>,
    /// The state of each device, if the recording has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvml: Vec<NvmlFigures>,

    /// By total time, largest first.
    pub functions: Vec<Function>,
    /// Outermost calls by category, largest time first.
    pub by_category: Vec<CategoryFigures>,
    pub failures: Failures,
    pub sync: Sync,
    /// Only in a recording with --stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StackFigures>,
    pub in_flight: Vec<InFlight>,
    pub processes: Vec<ProcessFigures>,
    /// Number of processes beyond those in `processes`.
    pub more_processes: u64,
    pub libraries: Vec<LibraryFigures>,
    /// Number of library lines for which `libraries` had no room.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_libraries: u64,
    /// Requested hooks that were refused, by layer.
    pub refused: BTreeMap<String, Vec<RefusedHook>>,
    pub lost: u64,
    pub lost_by_probe: BTreeMap<String, u64>,
    /// Only if the recording gave something up for --budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetFigures>,
    /// How often and for how long --lossless made processes wait. Only in a recording with --lossless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pauses: Option<trace::Stops>,
    /// gpurec's own stops of the recorded processes, including those of --lossless; None if the trace does not contain
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stops: Option<trace::Stops>,
    /// Suspends of the machine, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<SleepFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// The calls of one function, in the columns of nsys. The median is within 1 %, everything else is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub calls: u64,
    pub total_ns: u64,
    pub avg_ns: u64,
    pub med_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub stddev_ns: u64,
    /// The parts of the total in the driver and off the CPU, which may overlap. Only with --kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_cpu_ns: Option<u64>,
    /// The total without the cost of recording nested calls, and without the time during which gpurec had stopped the
    /// process; set only if either exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrected_ns: Option<u64>,
    /// Number of failed calls, nested ones included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// Number of unfinished calls, which count with their time so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failures {
    /// Failures that the program saw: of nested calls only the outermost.
    pub calls: u64,
    /// Failures inside a call that succeeded.
    pub handled: u64,
    /// Failures that the program saw after the shutdown of the driver; not in `calls`.
    pub shutdown: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstFailure>,
    /// In the order of first occurrence.
    pub by_error: Vec<FailureKind>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handled_by_error: Vec<FailureKind>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FirstFailure {
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub begin: u64,
    pub function: String,
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// The failed call inside a failed call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCause {
    pub function: String,
    pub error: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureKind {
    pub api: String,
    pub error: String,
    pub code: Option<i64>,
    pub function: String,
    pub count: u64,
    /// For allocations: the largest requested size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<u64>,
    pub first_ns: u64,
    pub last_ns: u64,
    /// The cause of the first occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
    /// The call site of the first occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// Time in calls that wait for the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// Each wait counts once, at the innermost level seen.
    pub calls: u64,
    pub total_ns: u64,
    /// Number of unfinished calls, which count with their time so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
    /// By function; a nested call counts in both functions.
    pub by_function: Vec<SyncFunction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFunction {
    pub name: String,
    pub calls: u64,
    pub total_ns: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFigures {
    pub pid: u32,
    /// Empty if the process ran before the recording.
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// As in a shell; None if the process outlived the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    pub calls: u64,
    /// The process ran before the recording: what it held then is unknown, so it has no peaks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ran_before: bool,
    /// The largest number of bytes that it held in the spaces `device` and `virtual` together.
    pub peak_device_bytes: u64,
    /// The same for memory requested through the runtime, without what libraries took from the driver themselves.
    /// torch.cuda.max_memory_reserved() counts this.
    #[serde(default)]
    pub peak_runtime_bytes: u64,
}

/// Sizes that could not be read count as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryFigures {
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    pub by_space: Vec<SpaceFigures>,
    /// Memory that was live when its process, or the recording, ended.
    pub held: Leaks,
    /// The part of it that kept growing through the run (see `growth`).
    pub leaks: Leaks,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceFigures {
    pub space: String,
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub frees: u64,
    pub freed_bytes: u64,
}

/// Allocations that were not freed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leaks {
    pub count: u64,
    pub bytes: u64,
    pub by_space: Vec<LeakSpace>,
    /// Among equals the oldest comes first.
    pub largest: Vec<Leak>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakSpace {
    pub space: String,
    pub count: u64,
    pub bytes: u64,
    /// Number of those that were live when their process ended.
    pub at_exit: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    pub pid: u32,
    pub space: String,
    /// In hex.
    pub ptr: String,
    pub size: u64,
    pub age_ns: u64,
    /// The call that allocated it.
    pub function: String,
    /// The call site: `train.py:88 load_batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    pub begin: u64,
    /// True: live at the end of its process. False: live at the end of the recording.
    pub at_exit: bool,
}

/// Copies. Sets appear only in `by_direction`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferFigures {
    pub count: u64,
    pub bytes: u64,
    /// The largest number of bytes first.
    pub by_direction: Vec<DirectionFigures>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectionFigures {
    pub direction: String,
    pub count: u64,
    pub bytes: u64,
    /// Some sizes could not be read: the real number of bytes is higher.
    pub partial: bool,
    /// Copies that the call waited for: only they have a bandwidth.
    pub waited_count: u64,
    pub waited_bytes: u64,
    pub waited_ns: u64,
    /// Copies known to use host memory that is not pinned.
    pub pageable_count: u64,
    pub pageable_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFigures {
    /// The handle, if the name is not known.
    pub name: String,
    pub launches: u64,
    /// The most frequent shape; None if it could not be read.
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// Number of distinct shapes, at most 64.
    pub shapes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorWindow {
    pub pid: u32,
    pub tid: u32,
    /// In hex; None if no call showed the context.
    pub context: Option<String>,
    pub function: String,
    pub error: String,
    /// The error comes from the device: an earlier call caused it.
    pub asynchronous: bool,
    /// The nested call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
    pub begin: u64,
    pub ts_ns: u64,
    /// The last successful synchronisation before it.
    pub last_sync: Option<SyncFigures>,
    /// Launches since then, and their kernels.
    pub launches: u64,
    pub kernels: Vec<LaunchCount>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFigures {
    pub function: String,
    pub begin: u64,
    pub ts_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchCount {
    pub kernel: String,
    pub launches: u64,
}

/// Suspends of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepFigures {
    pub count: u64,
    pub total_ns: u64,
    /// The first suspends.
    pub first: Vec<Sleep>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleep {
    pub at_ns: u64,
    pub slept_ns: u64,
}

/// One line of advice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    pub times: u64,
    pub cost_ns: Option<u64>,
    pub advice: String,
    /// The call site of most of them, and of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub site_times: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryFigures {
    pub path: String,
    pub build_id: Option<String>,
    pub functions: u64,
    pub not_hooked: Vec<RefusedHook>,
}

/// The cost of the recording for the recorded threads: their calls times the cost of a call measured when the recording
/// began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    pub ns_per_call: u64,
    pub calls: u64,
    /// Cost of calls and stops together.
    pub total_ns: u64,
    /// Cost of a call whose hook Linux single-steps, and the number of such calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_stepped: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stepped_calls: u64,
    /// Cost of the calls if the processor's caches had been cold each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_ns: Option<u64>,
    /// gpurec's own stops of the processes; None if the trace does not contain them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops: Option<trace::Stops>,
    /// The threads with the highest cost.
    pub threads: Vec<ThreadCost>,
    pub more_threads: u64,
}

impl Cost {
    /// Cost of the calls alone.
    pub fn calls_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.stops.map_or(0, |stops| stops.total_ns))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadCost {
    pub pid: u32,
    pub tid: u32,
    pub calls: u64,
    pub cost_ns: u64,
}

impl Finding {
    pub fn new(what: String, times: u64, cost_ns: Option<u64>, advice: &str) -> Finding {
        Finding { what, times, cost_ns, advice: advice.to_owned(), ..Finding::default() }
    }

    /// Adds the call site that most of them come from.
    pub fn at<T: Into<String>>(mut self, sites: &Places, text: impl Fn(Site) -> T) -> Finding {
        if let Some((site, times)) = sites.most() {
            (self.site, self.site_times) = (Some(text(site).into()), times);
        }
        self
    }
}

/// Limits a list. Returns the number of entries that it left out.
pub fn truncate<T>(all: &mut Vec<T>, most: usize) -> u64 {
    let more = all.len().saturating_sub(most);
    all.truncate(most);
    more as u64
}

impl Figures {
    /// The number of Xids, and the first of them. None: the recording did not look for them, or saw none and looked for
    /// nothing else in nvidia.ko.
    pub fn xids(&self) -> Option<(u64, &[XidFigures])> {
        let with_kernel = self.kernel_space.as_ref().map(|kernel| (kernel.xid_count, &*kernel.xids));
        with_kernel.or_else(|| self.driver_errors.as_ref().map(|errors| (errors.xid_count, &*errors.xids)))
    }

    /// Records that the file ends before these figures do. `why` replaces the error that the worker reported, which may
    /// have been another one, or may have come too late.
    pub fn not_written(&mut self, why: &std::io::Error) {
        let why = Incomplete::Unwritten { error: why.to_string() };
        let others = reasons(&self.incomplete_because, &self.incomplete_codes);
        let others: Vec<Reason> = others.filter(|reason| reason.code != why.code()).collect();
        (self.complete, self.incomplete_because, self.incomplete_codes) = (false, Vec::new(), Vec::new());
        others.into_iter().chain([why.into()]).for_each(|reason| self.incomplete(reason));
    }

    pub fn incomplete(&mut self, reason: Reason) {
        self.incomplete_because.push(reason.text);
        self.incomplete_codes.push(reason.code);
    }

    pub fn knows_peak(&self, process: &ProcessFigures) -> bool {
        self.unknown.get(PEAK).is_none_or(|reason| reason == BEFORE && !process.ran_before)
    }

    /// A figure in words: `text`, or why it is unknown.
    pub fn said(&self, figure: &str, seen: u64, text: impl FnOnce(u64) -> String) -> String {
        match self.unknown.get(figure) {
            None => text(seen),
            Some(reason) if seen == 0 => format!("not known ({reason})"),
            Some(reason) => format!("not known ({reason}; {} seen)", text(seen)),
        }
    }
}
