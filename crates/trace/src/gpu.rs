//! The account of GPU work in the `end` line. In: fields, by serde. Out: the same, with the keys of the trace. Not here:
//! the `gpu` line, which is frequent (event.rs), and the counting.

use serde::{Deserialize, Serialize};

/// Three independent counts of GPU work, and the reason for every difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAccount {
    /// Launches that the hooks of CUDA functions recorded.
    pub launches: u64,
    /// Launches for which CUPTI delivered a record of the API call.
    pub api: u64,
    /// Kernels for which CUPTI delivered a record, nodes of graphs included.
    pub delivered: u64,
    /// Records that CUPTI or gpurec dropped.
    pub dropped: u64,
    /// Records of GPU work whose call is not known.
    pub unmatched: u64,
    /// Records of work from before the recording.
    pub before: u64,
    #[serde(default)]
    pub reasons: Vec<GpuReason>,
    /// The time that CUPTI and the driver took for themselves in the process, from CUPTI's records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overhead: Vec<GpuOverhead>,
}

/// A reason for a difference between the counts, and how many it explains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReason {
    pub code: String,
    pub count: u64,
}

/// One kind of overhead of CUPTI or the driver, summed over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuOverhead {
    pub code: String,
    pub count: u64,
    pub total_ns: u64,
}

/// The codes of `GpuOverhead`, each with its words in the summary, and whether CUPTI causes it.
const OVERHEADS: [(&str, &str, bool); 10] = [
    ("buffer_flush", "flushing buffers", true),
    ("instrumentation", "instrumentation", true),
    ("resource", "its resources", true),
    ("buffer_request", "requests for buffers", true),
    ("uvm_init", "preparing for managed memory", true),
    ("driver_compiler", "compiling kernels", false),
    ("module_loading", "loading modules", false),
    ("function_loading", "loading functions", false),
    ("command_buffer_full", "waiting, because the command buffer was full", false),
    ("other", "other", true),
];

impl GpuOverhead {
    fn known(&self) -> Option<&'static (&'static str, &'static str, bool)> {
        OVERHEADS.iter().find(|(code, ..)| *code == self.code)
    }

    /// The kind in words; the code itself if a newer gpurec wrote it.
    pub fn text(&self) -> &str {
        self.known().map_or(self.code.as_str(), |(_, text, _)| text)
    }

    /// Whether CUPTI took the time, which makes it a cost of recording. The driver's overhead is also there without
    /// CUPTI.
    pub fn is_own(&self) -> bool {
        self.known().is_none_or(|(.., is_own)| *is_own)
    }

    /// Every code, for the page that lists them.
    pub fn codes() -> impl Iterator<Item = &'static str> {
        OVERHEADS.iter().map(|(code, ..)| *code)
    }
}

/// The codes of `GpuReason`, each with what it says in the summary, before a number of launches or records.
const REASONS: [(&str, &str); 16] = [
    ("graph_nodes", "kernels of graphs, of which one launch runs many"),
    ("whole_graphs", "graph launches, recorded as one each (--gpu=graphs)"),
    ("failed", "launches that failed, so that no kernel ran"),
    ("captured", "launches that were captured into a graph"),
    ("dropped", "records that CUPTI dropped, because it had no buffer for them"),
    ("no_room", "records for which gpurec's ring had no room"),
    (
        "no_times",
        "records without times, because CUPTI had no room on the GPU to take them, or with times in the future",
    ),
    ("killed", "launches of processes that ended before CUPTI delivered their records"),
    ("running", "launches that the GPU had not finished when the recording ended"),
    ("before", "kernels launched before the recording"),
    ("other_client", "launches while another client held CUPTI"),
    ("no_lane", "launches of processes in which gpurec's library is not, or is off"),
    ("no_client", "launches for which no other client of CUPTI was given a record"),
    ("unread", "records of another client that could not be read"),
    ("other_clock", "records of another client with times of an unknown clock"),
    ("broken", "launches of processes that have damaged their ring"),
];

impl GpuReason {
    /// The reason in words; the code itself if a newer gpurec wrote it.
    pub fn text(&self) -> &str {
        let known = REASONS.iter().find(|(code, _)| *code == self.code);
        known.map_or(self.code.as_str(), |(_, text)| text)
    }

    /// Whether work on the GPU may be missing from the trace. A code of a newer gpurec counts as such.
    pub fn is_loss(&self) -> bool {
        !["graph_nodes", "whole_graphs", "failed", "captured", "before"].contains(&self.code.as_str())
    }

    /// Every code, for the page that lists them.
    pub fn codes() -> impl Iterator<Item = &'static str> {
        REASONS.iter().map(|(code, _)| *code)
    }
}
