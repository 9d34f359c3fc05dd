//! Determines which figures a recording cannot know, and why. In: its options, what --budget gave up, refused hooks,
//! lost records, and other reasons for an incomplete recording. Out: the reason for each such figure.
//!
//! A figure has inputs: calls of a kind. Launches, memory and copies count at the innermost level, and every call of
//! the CUDA runtime goes through the driver, so functions of the driver are their inputs.

use std::collections::{BTreeMap, BTreeSet};

pub use super::figures::PEAK;
use super::figures::{BEFORE, BY_DEVICE, Figures, OUTSIDE};
use super::left_out::LeftOut;
use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::Input;
use gpurec_cuda::{self as cuda, Api};
use gpurec_trace::Notes;

/// An input of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    /// All calls.
    Calls,
    Of(Input),
    /// Memory that a process held before the recording began.
    Before,
    /// Sizes of freed memory that was allocated before the recording.
    Earlier,
    /// Records of GPU work.
    Gpu,
    /// Memory from outside a part of a recording. `Elsewhere`: frees of its memory by other threads.
    Outside,
    Elsewhere,
}

const ALLOCATIONS: From = From::Of(Input::Allocation);
const FREES: From = From::Of(Input::Free);

const TRANSFERS: &[From] = &[From::Of(Input::Copy), From::Of(Input::Set)];

/// The figures, by JSON path, with their inputs.
const FIGURES: [(&str, &[From]); 34] = [
    ("cuda_calls", &[From::Calls]),
    ("failures.calls", &[From::Calls]),
    ("failures.handled", &[From::Calls]),
    ("kernel_launches", &[From::Of(Input::Launch)]),
    ("graph_launches", &[From::Of(Input::GraphLaunch)]),
    ("memory.allocations", &[ALLOCATIONS]),
    ("memory.allocated_bytes", &[ALLOCATIONS]),
    ("memory.frees", &[FREES, ALLOCATIONS]),
    ("memory.freed_bytes", &[FREES, ALLOCATIONS, From::Earlier]),
    ("memory.held", &[FREES, ALLOCATIONS, From::Outside, From::Before]),
    ("memory.leaks", &[FREES, ALLOCATIONS, From::Elsewhere]),
    (PEAK, &[FREES, ALLOCATIONS, From::Outside, From::Before]),
    ("transfers.count", TRANSFERS),
    ("transfers.bytes", TRANSFERS),
    ("devices.launches", &[From::Of(Input::Launch)]),
    ("devices.graph_launches", &[From::Of(Input::GraphLaunch)]),
    ("devices.allocations", &[ALLOCATIONS]),
    ("devices.allocated_bytes", &[ALLOCATIONS]),
    ("devices.peak_bytes", &[FREES, ALLOCATIONS, From::Outside, From::Before]),
    ("devices.held_bytes", &[FREES, ALLOCATIONS, From::Outside]),
    ("devices.transfers", TRANSFERS),
    ("devices.transferred_bytes", TRANSFERS),
    ("sync.calls", &[From::Of(Input::Sync)]),
    ("sync.total_ns", &[From::Of(Input::Sync)]),
    ("gpu.busy_ns", &[From::Gpu]),
    ("gpu.idle_ns", &[From::Gpu]),
    ("gpu.waited_gaps", &[From::Gpu]),
    ("gpu.waited_gap_ns", &[From::Gpu]),
    ("gpu.time_ns", &[From::Gpu]),
    (GPU_KERNELS, &[From::Gpu]),
    ("gpu.copy_count", &[From::Gpu]),
    ("gpu.set_count", &[From::Gpu]),
    ("gpu.graph_count", &[From::Gpu]),
    (FUNCTIONS, &[]),
];

/// The runs of kernels on the GPU.
pub const GPU_KERNELS: &str = "gpu.kernel_count";

/// The rows of `functions`: the number of calls is complete for a recorded function, unless any call may be missing.
pub const FUNCTIONS: &str = "functions.calls";

/// The reason if other threads may free what this part allocates (--tid).
const ELSEWHERE: &str = "what other threads free is not in this part";

/// What a recording says about itself, in addition to its figures.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub left_out: Option<LeftOut>,
    /// Number of frees of memory from before the recording.
    pub earlier_frees: u64,
    /// It is of a part, without the memory that was there when it began.
    pub part_cuts_memory: bool,
    /// The part lacks frees of its memory by others.
    pub part_cuts_frees: bool,
    /// The file is incomplete, and why.
    pub broken: Option<&'static str>,
}

impl About {
    /// For a file of which a part, or the whole, is read.
    pub fn of_part(notes: &Notes) -> About {
        let Notes { part_cuts_memory, part_cuts_frees, .. } = *notes;
        About { part_cuts_memory, part_cuts_frees, ..About::default() }
    }
}

pub const NO_END: &str = "the trace has no end";
pub const DAMAGED: &str = "the trace is damaged";

/// Each unknown figure with its reason.
pub fn unknown(figures: &Figures, about: &About) -> BTreeMap<String, String> {
    let reasons = Reasons::of(figures, about);
    let unknown = FIGURES.iter().filter_map(|(figure, from)| {
        let of_gpu = *from == [From::Gpu];
        if figure.starts_with(BY_DEVICE) && figures.devices.is_empty() || of_gpu && figures.gpu.is_none() {
            return None;
        }
        // CUPTI delivers records whether calls were lost or not.
        if of_gpu {
            return Some(((*figure).to_owned(), reasons.by.get(&From::Gpu)?.clone()));
        }
        let reason = from.iter().find_map(|from| reasons.by.get(from)).or(reasons.all.as_ref())?;
        Some(((*figure).to_owned(), reason.clone()))
    });
    unknown.collect()
}

#[derive(Default)]
struct Reasons {
    by: BTreeMap<From, String>,
    all: Option<String>,
}

impl Reasons {
    /// The first reason is the one that is reported.
    fn of(figures: &Figures, about: &About) -> Reasons {
        let mut reasons = Reasons::default();
        if let Some(left_out) = &about.left_out {
            reasons.options(left_out);
        }
        reasons.budget(figures);
        reasons.not_hooked(figures);
        reasons.losses(figures);
        if figures.attached {
            reasons.add(From::Before, || BEFORE.to_owned());
        }
        if about.part_cuts_memory {
            reasons.add(From::Outside, || OUTSIDE.to_owned());
        }
        if about.part_cuts_frees {
            reasons.add(From::Elsewhere, || ELSEWHERE.to_owned());
        }
        if about.earlier_frees > 0 {
            let frees = about.earlier_frees;
            reasons.add(From::Earlier, || format!("{frees} frees are of memory from before the recording"));
        }
        if let Some(broken) = about.broken {
            reasons.add(From::Gpu, || broken.to_owned());
        }
        reasons.gpu(figures);
        if let Some(broken) = about.broken {
            reasons.all = Some(broken.to_owned());
        } else if figures.incomplete_codes.iter().any(|code| !OF_FUNCTIONS.contains(&code.as_str())) {
            reasons.all = Some("the recording is not complete".to_owned());
        }
        reasons
    }

    fn add(&mut self, from: From, reason: impl FnOnce() -> String) {
        self.by.entry(from).or_insert_with(reason);
    }

    fn options(&mut self, left_out: &LeftOut) {
        self.add(From::Calls, || left_out.text.clone());
        let mut recorded: BTreeMap<Input, BTreeMap<&str, bool>> = BTreeMap::new();
        for (name, input) in driver_functions() {
            // Programs call one version of a function, usually the newest.
            *recorded.entry(input).or_default().entry(cuda::base_name(name)).or_default() |=
                left_out.records(name);
        }
        for (input, functions) in recorded {
            let missing: Vec<&str> =
                functions.iter().filter(|(_, recorded)| !**recorded).map(|(name, _)| *name).collect();
            let (calls, that) = words(input);
            if missing.len() == functions.len() {
                self.add(From::Of(input), || format!("{calls} were not recorded"));
            } else if let Some(first) = missing.first() {
                let others = match missing.len() {
                    1 => "was".to_owned(),
                    2 => format!("and 1 other function {that} were"),
                    n => format!("and {} other functions {that} were", n - 1),
                };
                self.add(From::Of(input), || format!("{first} {others} not recorded"));
            }
        }
    }

    fn budget(&mut self, figures: &Figures) {
        let Some(budget) = &figures.budget else { return };
        for function in budget.functions.iter().filter(|f| f.unhooked_ns > 0) {
            let reason = || format!("--budget gave up {} for a while", function.name);
            self.add(From::Calls, reason);
            if let Some(input) = input_of_driver(&function.name) {
                self.add(From::Of(input), reason);
            }
        }
    }

    fn gpu(&mut self, figures: &Figures) {
        let Some(gpu) = &figures.gpu else { return };
        let missing = gpu.account.iter().flat_map(|account| &account.reasons);
        for reason in missing.filter(|reason| reason.count > 0 && reason.is_loss()) {
            self.add(From::Gpu, || format!("{}: {}", reason.text(), reason.count));
        }
        if gpu.late > 0 {
            self.add(From::Gpu, || format!("{} records came too late to be counted whole", gpu.late));
        }
    }

    fn not_hooked(&mut self, figures: &Figures) {
        for refused in figures.libraries.iter().flat_map(|library| &library.not_hooked) {
            let reason = || format!("{} could not be hooked", refused.name);
            if let Some(input) = input_of_driver(&refused.name) {
                self.add(From::Calls, reason);
                self.add(From::Of(input), reason);
            }
        }
    }

    fn losses(&mut self, figures: &Figures) {
        let (mut sum, mut of_all) = (0u64, false);
        for (probe, count) in &figures.lost_by_probe {
            let reason = || match count {
                1 => format!("1 record of {probe} was lost"),
                n => format!("{n} records of {probe} were lost"),
            };
            let name = probe.strip_suffix(" (return)").unwrap_or(probe);
            sum = sum.saturating_add(*count);
            // A lost process event makes the whole process unknown; hooks in nvidia.ko have their own figures.
            of_all |= probe.starts_with("process:") || probe.starts_with('(');
            if cuda::api(name) != Api::Other {
                self.add(From::Calls, reason);
            }
            if let Some(input) = input_of_driver(name) {
                self.add(From::Of(input), reason);
            }
        }
        if of_all || figures.lost > sum {
            self.all = Some(format!("{} events were lost", figures.lost));
        }
    }
}

/// Codes of reasons that affect no figure, or of which more is known than the reason says.
const OF_FUNCTIONS: [&str; 3] = ["lost", "not_written", "budget"];

/// Whether allocations or frees are left out.
pub fn leaves_out_memory(left_out: &LeftOut) -> bool {
    let mut reasons = Reasons::default();
    reasons.options(left_out);
    [ALLOCATIONS, FREES].iter().any(|from| reasons.by.contains_key(from))
}

fn driver_functions() -> impl Iterator<Item = (&'static str, Input)> {
    let names: BTreeSet<&str> = cuda::function_names().collect();
    names.into_iter().filter_map(|name| Some((name, input_of_driver(name)?)))
}

fn input_of_driver(name: &str) -> Option<Input> {
    let traits = FunctionTraits::of(name);
    if traits.api != Api::Driver {
        return None;
    }
    traits.input().or_else(|| traits.is_sync().then_some(Input::Sync))
}

/// The calls of an input, and the words for functions that make such calls.
fn words(input: Input) -> (&'static str, &'static str) {
    match input {
        Input::Allocation => ("allocations", "that allocate"),
        Input::Free => ("frees", "that free"),
        Input::Copy => ("copies", "that copy"),
        Input::Set => ("sets of memory", "that set memory"),
        Input::Launch => ("launches", "that launch"),
        Input::GraphLaunch => ("launches of graphs", "that launch graphs"),
        Input::Sync => ("calls that wait for the GPU", "that wait for the GPU"),
    }
}
