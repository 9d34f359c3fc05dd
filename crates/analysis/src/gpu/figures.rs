//! The figures of GPU work, as the summary has them under `gpu`. Times are integers, in ns.

use serde::{Deserialize, Serialize};

use crate::driver_figures::is_zero;
use crate::spread::Statistics;
use gpurec_trace::GpuAccount;

/// Only in a recording that has lines of GPU work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFigures {
    /// Number of records: kernels, copies, sets and whole graphs.
    pub kernel_count: u64,
    pub copy_count: u64,
    pub set_count: u64,
    pub graph_count: u64,
    /// The sum of all durations.
    pub time_ns: u64,
    /// The sums over all devices. A device is busy while anything runs on it, and idle otherwise, from its first work to
    /// its last.
    pub busy_ns: u64,
    pub idle_ns: u64,
    /// The idle times that began while the host waited for the GPU and ended with work of the thread that waited.
    pub waited_gaps: u64,
    pub waited_gap_ns: u64,
    /// Work whose call is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub unmatched: u64,
    /// Records that came too late to be counted whole in the busy time.
    #[serde(skip_serializing_if = "is_zero")]
    pub late: u64,
    pub devices: Vec<GpuDeviceFigures>,
    /// The largest time first.
    pub streams: Vec<GpuStreamFigures>,
    #[serde(skip_serializing_if = "is_zero")]
    pub more_streams: u64,
    /// The largest time first.
    pub kernels: Vec<GpuKernelFigures>,
    #[serde(skip_serializing_if = "is_zero")]
    pub more_kernels: u64,
    /// From the end of the launch call to the start of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueFigures>,
    pub copies: Vec<GpuCopyFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<GpuAccount>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDeviceFigures {
    pub device: u32,
    pub work: u64,
    pub time_ns: u64,
    pub busy_ns: u64,
    pub idle_ns: u64,
    pub gaps: u64,
    pub longest_gap_ns: u64,
    /// The start of its first work and the end of its last.
    pub first_ns: u64,
    pub last_ns: u64,
    /// The part of the busy time in which only copies between the host and the device ran.
    pub only_copies_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuStreamFigures {
    pub device: u32,
    pub pid: u32,
    pub context: u32,
    pub stream: u32,
    pub work: u64,
    pub time_ns: u64,
}

/// The columns of nsys's cuda_gpu_kern_sum, and the delay of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuKernelFigures {
    pub name: String,
    pub instances: u64,
    pub total_ns: u64,
    pub avg_ns: u64,
    pub med_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub stddev_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_med_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueFigures {
    pub count: u64,
    /// Kernels that started before their call had returned; their delay counts as 0.
    pub early: u64,
    pub avg_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Copies and sets of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuCopyFigures {
    pub direction: String,
    pub count: u64,
    pub bytes: u64,
    pub total_ns: u64,
}

impl GpuCopyFigures {
    /// Bytes per second.
    pub fn rate(&self) -> Option<u64> {
        let rate = (u128::from(self.bytes) * 1_000_000_000).checked_div(self.total_ns.into())?;
        u64::try_from(rate).ok()
    }
}

impl GpuKernelFigures {
    pub fn new(name: String, times: Statistics, queued_med_ns: Option<u64>) -> GpuKernelFigures {
        GpuKernelFigures {
            name,
            instances: times.count,
            total_ns: times.total_ns,
            avg_ns: times.avg_ns,
            med_ns: times.med_ns,
            min_ns: times.min_ns,
            max_ns: times.max_ns,
            stddev_ns: times.stddev_ns,
            queued_med_ns,
        }
    }
}
