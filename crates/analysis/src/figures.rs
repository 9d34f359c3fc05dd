//! The figures of a recording, as they are printed and as they stand under
//! `summary` in the `end` line. Times are integer nanoseconds, so that a
//! figure is the same however it was come by.

mod json;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use super::budget::BudgetFigures;
pub use super::categories::CategorySeen;
pub use super::devices::DeviceSeen;
pub use super::driver_figures::KernelSpace;
pub use super::pauses::PauseFigures;
pub use super::sleeps::SleepFigures;
use super::unknown::{BEFORE, PEAK};
use gpurec_trace::{self as trace, InFlight, Refused};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// How long the recording took.
    pub duration_ns: u64,
    /// Nothing was lost, cut or left undecoded; if not, why.
    pub complete: bool,
    pub incomplete_because: Vec<String>,
    /// They are of a part of the trace.
    #[serde(skip)]
    pub is_part: bool,
    /// What a reader found odd in the file. Empty in the file itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,

    /// Processes that ran before the recording are in it: what they held then is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Of each figure that is not known the reason, by where it stands (`memory.leaks`). There the JSON has null, and what
    /// was seen is under `seen`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: BTreeMap<String, String>,

    pub cuda_calls: u64,
    /// Calls into libraries added with --lib.
    pub other_calls: u64,
    /// Counted once, at the innermost level seen.
    pub kernel_launches: u64,
    pub graph_launches: u64,
    /// Left by longjmp or an exception.
    pub unwound_calls: u64,
    /// Ends without a beginning.
    pub unmatched_ends: u64,

    pub memory: MemoryFigures,
    pub transfers: TransferFigures,
    /// Empty where no device is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceSeen>,
    /// Those launched most.
    pub kernels: Vec<KernelSeen>,
    pub more_kernels: u64,
    /// Launches shown by an address, for there was no time to look for a name.
    #[serde(skip_serializing_if = "is_zero")]
    pub unnamed_launches: u64,
    /// The first failures of each context, and where their causes lie.
    pub error_windows: Vec<ErrorWindow>,
    /// What the program could do better.
    pub findings: Vec<Finding>,

    /// Of a recording with --kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_space: Option<KernelSpace>,

    /// By total time, the largest first.
    pub functions: Vec<Function>,
    /// Outermost calls by what they are for, the most time first.
    pub by_category: Vec<CategorySeen>,
    pub failures: Failures,
    pub sync: Sync,
    pub in_flight: Vec<InFlight>,
    pub processes: Vec<ProcessSeen>,
    /// How many more there were than `processes` holds.
    pub more_processes: u64,
    pub libraries: Vec<LibrarySeen>,
    /// Times that a library was told of which `libraries` has no room for.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_libraries: u64,
    /// Hooks asked for and refused, by layer.
    pub refused: BTreeMap<String, Vec<Refused>>,
    pub lost: u64,
    pub lost_by_probe: BTreeMap<String, u64>,
    /// Of a recording that gave something up for --budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetFigures>,
    /// Of a recording with --lossless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pauses: Option<PauseFigures>,
    /// gpurec's own stops of the recorded processes, those of --lossless too; none if the trace does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stops: Option<trace::Stops>,
    /// When the machine was suspended, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<SleepFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The calls of one function, in nsys's columns. The
/// median is within 1 %, everything else exact.
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
    /// Of the total the time in the driver, and that off the CPU, which may be there too. Only
    /// with --kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_cpu_ns: Option<u64>,
    /// The total less what recording the calls inside has cost, and less the time for which gpurec had stopped the
    /// process: only where there was such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrected_ns: Option<u64>,
    /// How many of the calls failed, also inside others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// How many of the calls have not returned: they count with their time so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failures {
    /// That the program saw: of calls inside each other only the outermost.
    pub calls: u64,
    /// Of calls inside a call that did not fail.
    pub handled: u64,
    /// That the program saw after the driver was shut down; not among `calls`.
    pub shutdown: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstFailure>,
    /// In the order they first came.
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
}

/// The call inside a failed one that failed too.
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
    /// Of allocations: the most bytes that one of them asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<u64>,
    pub first_ns: u64,
    pub last_ns: u64,
    /// Of the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
}

/// Time in calls that wait for the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// Counted once, at the innermost level seen.
    pub calls: u64,
    pub total_ns: u64,
    /// How many of the calls have not returned: they count with their time so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
    /// By function, where a nested call counts in both.
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
pub struct ProcessSeen {
    pub pid: u32,
    /// Empty if it was running before the recording.
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// As a shell says it; none if it outlived the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    pub calls: u64,
    /// It ran before the recording: what it held then is not known, so there are no peaks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ran_before: bool,
    /// The most bytes it held in the spaces `device` and `virtual` together.
    pub peak_device_bytes: u64,
    /// The same of what it asked for through the runtime: without what libraries took from
    /// the driver themselves. What torch.cuda.max_memory_reserved() counts.
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
    pub by_space: Vec<SpaceSeen>,
    /// What was live when its process, or the recording, ended.
    pub held: Leaks,
    /// Of it what there was more and more of through the run (`growth`).
    pub leaks: Leaks,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceSeen {
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
    /// Of equals the oldest first.
    pub largest: Vec<Leak>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakSpace {
    pub space: String,
    pub count: u64,
    pub bytes: u64,
    /// How many of them were live when their process ended.
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
    /// The call that made it.
    pub function: String,
    pub begin: u64,
    /// Live when its process ended; else when the recording did.
    pub at_exit: bool,
}

/// Copies; what is only set is in `by_direction`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferFigures {
    pub count: u64,
    pub bytes: u64,
    /// The most bytes first.
    pub by_direction: Vec<DirectionSeen>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectionSeen {
    pub direction: String,
    pub count: u64,
    pub bytes: u64,
    /// Some sizes were not read: there were more bytes.
    pub partial: bool,
    /// Those that the call waited for: only they have a bandwidth.
    pub waited_count: u64,
    pub waited_bytes: u64,
    pub waited_ns: u64,
    /// Those known to be with host memory that is not pinned.
    pub pageable_count: u64,
    pub pageable_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSeen {
    /// The handle, if the name is not known.
    pub name: String,
    pub launches: u64,
    /// The most frequent shape; none if it could not be read.
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// How many shapes there were, 64 at most.
    pub shapes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorWindow {
    pub pid: u32,
    pub tid: u32,
    /// In hex; none if no call said which it is.
    pub context: Option<String>,
    pub function: String,
    pub error: String,
    /// The error comes from the device: its cause is an earlier call.
    pub asynchronous: bool,
    /// The call inside that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
    pub begin: u64,
    pub ts_ns: u64,
    /// The last synchronisation before it that succeeded.
    pub last_sync: Option<SyncSeen>,
    /// Launches since then, and of which kernels.
    pub launches: u64,
    pub kernels: Vec<LaunchCount>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncSeen {
    pub function: String,
    pub begin: u64,
    pub ts_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchCount {
    pub kernel: String,
    pub launches: u64,
}

/// One line of advice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    pub times: u64,
    pub cost_ns: Option<u64>,
    pub advice: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibrarySeen {
    pub path: String,
    pub build_id: Option<String>,
    pub functions: u64,
    pub not_hooked: Vec<Refused>,
}

/// What the recording cost the threads recorded: their calls times what one
/// call was measured to cost when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    pub ns_per_call: u64,
    pub calls: u64,
    /// Of the calls and of the stops together.
    pub total_ns: u64,
    /// What a call of a function costs whose hook the kernel single-steps, and how many of the calls were such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_stepped: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stepped_calls: u64,
    /// What the calls would have cost if each had found the processor's caches cold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_ns: Option<u64>,
    /// gpurec's own stops of the processes; none if the trace does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops: Option<trace::Stops>,
    /// The threads that paid most.
    pub threads: Vec<ThreadCost>,
    pub more_threads: u64,
}

impl Cost {
    /// Of the calls alone.
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

/// Bytes of the `end` line for figures, beside the calls in flight; and how many rows of each table there are
/// instead where there would be more.
const LONGEST_SUMMARY: usize = 11 << 20;
const FEWER_ROWS: [usize; 4] = [4096, 1024, 256, 32];

fn fits_beside(json: &serde_json::Value, most: usize) -> bool {
    let text = json.to_string();
    text.len() <= most && trace::fits(text.as_bytes())
}

impl Function {
    /// Both as one.
    fn with(self, other: Function) -> Function {
        let calls = self.calls + other.calls;
        let total_ns = self.total_ns.saturating_add(other.total_ns);
        let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Function {
            name: super::tally::others(None).to_owned(),
            calls,
            total_ns,
            avg_ns: total_ns.checked_div(calls).unwrap_or(0),
            med_ns: total_ns.checked_div(calls).unwrap_or(0),
            min_ns: self.min_ns.min(other.min_ns),
            max_ns: self.max_ns.max(other.max_ns),
            stddev_ns: 0,
            kernel_ns: add(self.kernel_ns, other.kernel_ns),
            off_cpu_ns: add(self.off_cpu_ns, other.off_cpu_ns),
            corrected_ns: None,
            errors: self.errors.saturating_add(other.errors),
            unfinished: self.unfinished.saturating_add(other.unfinished),
        }
    }
}

impl Figures {
    /// For the `summary` of the `end` line: with fewer rows where all of them would not fit there.
    pub fn to_json(&self) -> serde_json::Value {
        let whole = self.with_nulls();
        if fits_beside(&whole, LONGEST_SUMMARY) {
            return whole;
        }
        let shorter = FEWER_ROWS.iter().map(|rows| {
            let mut shorter = self.clone();
            shorter.keep(*rows);
            shorter.with_nulls()
        });
        shorter.into_iter().find(|json| fits_beside(json, LONGEST_SUMMARY)).unwrap_or_default()
    }

    /// So many rows of each table; what the others add up to is one more.
    fn keep(&mut self, rows: usize) {
        const OTHERS: &str = "(others)";
        if self.functions.len() > rows {
            let rest = self.functions.split_off(rows);
            self.functions.extend(rest.into_iter().reduce(Function::with));
        }
        for errors in [&mut self.failures.by_error, &mut self.failures.handled_by_error] {
            if errors.len() > rows {
                let rest: Vec<FailureKind> = errors.drain(rows..).collect();
                let [api, error, function] = ["other", OTHERS, OTHERS].map(str::to_owned);
                errors.push(FailureKind {
                    count: rest.iter().map(|kind| kind.count).sum(),
                    first_ns: rest.first().map_or(0, |kind| kind.first_ns),
                    last_ns: rest.iter().map(|kind| kind.last_ns).max().unwrap_or(0),
                    ..FailureKind { api, error, function, ..FailureKind::default() }
                });
            }
        }
        if self.sync.by_function.len() > rows {
            let mut others = SyncFunction { name: OTHERS.to_owned(), calls: 0, total_ns: 0, unfinished: 0 };
            for one in self.sync.by_function.drain(rows..) {
                others.calls += one.calls;
                others.unfinished += one.unfinished;
                others.total_ns = others.total_ns.saturating_add(one.total_ns);
            }
            self.sync.by_function.push(others);
        }
        if self.lost_by_probe.len() > rows {
            let mut by_count: Vec<_> = std::mem::take(&mut self.lost_by_probe).into_iter().collect();
            by_count.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let rest = by_count.drain(rows..).map(|(_, count)| count).sum();
            self.lost_by_probe = by_count.into_iter().chain([(OTHERS.to_owned(), rest)]).collect();
        }
        // The line lists them itself.
        self.in_flight.truncate(rows);
        self.error_windows.truncate(rows.div_ceil(64));
        self.refused.values_mut().for_each(|refused| refused.truncate(rows));
        for (cut, more) in [
            (self.libraries.len().saturating_sub(rows), &mut self.more_libraries),
            (self.processes.len().saturating_sub(rows), &mut self.more_processes),
            (self.kernels.len().saturating_sub(rows), &mut self.more_kernels),
        ] {
            *more += cut as u64;
        }
        self.libraries.truncate(rows);
        self.processes.truncate(rows);
        self.kernels.truncate(rows);
    }

    /// The file has less than these figures: what the worker was told of it was not the reason,
    /// or too late to be heard.
    pub fn not_written(&mut self, why: &std::io::Error) {
        const BEGINNING: &str = "the trace could not be written";
        self.complete = false;
        self.incomplete_because.retain(|reason| !reason.starts_with(BEGINNING));
        self.incomplete_because.push(format!("{BEGINNING}: {why}; the figures end there"));
    }

    pub fn knows_peak(&self, process: &ProcessSeen) -> bool {
        self.unknown.get(PEAK).is_none_or(|reason| reason == BEFORE && !process.ran_before)
    }

    /// A figure in words: `text`, or why it is not known.
    pub fn said(&self, figure: &str, seen: u64, text: impl FnOnce(u64) -> String) -> String {
        match self.unknown.get(figure) {
            None => text(seen),
            Some(reason) if seen == 0 => format!("not known ({reason})"),
            Some(reason) => format!("not known ({reason}; {} seen)", text(seen)),
        }
    }
}
