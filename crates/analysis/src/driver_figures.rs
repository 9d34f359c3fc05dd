//! The figures of `--kernel`, stored under `kernel_space`. Times are integer nanoseconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelSpace {
    pub ioctls: u64,
    pub ioctl_ns: u64,
    /// Ioctls whose status or errno indicates a failure.
    pub failed_ioctls: u64,
    /// Ioctls whose request, RM command or class has no known name.
    pub unknown_ioctls: u64,
    /// Lines of the type `scheduler`: functions and instants.
    pub scheduler_calls: u64,
    pub unmatched_ends: u64,
    /// Number of attached hooks, by backend.
    pub hooks: BTreeMap<String, u64>,
    /// By total time, largest first.
    pub requests: Vec<RequestFigures>,
    pub more_requests: u64,
    /// By total time, largest first.
    pub functions: Vec<DriverFigures>,
    pub more_functions: u64,
    pub interrupts: Vec<DriverFigures>,
    pub tracepoints: Vec<DriverFigures>,
    pub off_cpu: OffCpu,
    /// The slowest CUDA calls, each at the level that spent the time.
    pub slowest: Vec<SlowCall>,
    pub xid_count: u64,
    pub xids: Vec<XidFigures>,
}

/// Errors that the driver reported, of a recording that looked for nothing else in nvidia.ko.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverErrors {
    pub xid_count: u64,
    pub xids: Vec<XidFigures>,
}

/// One request; for RM control and allocation requests, one command or class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestFigures {
    /// The name of its lines: nvidia_ioctl, nvidia_uvm_ioctl…
    pub ioctl: String,
    pub request: String,
    /// The RM command or class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    pub calls: u64,
    /// Total, average and maximum cover only requests that returned.
    pub total_ns: u64,
    pub avg_ns: u64,
    pub max_ns: u64,
    /// The part of the total during which the thread was off the CPU, as far as observed.
    pub off_cpu_ns: u64,
    pub failed: u64,
    /// Returned statuses other than NV_OK, including warnings.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<String, u64>,
}

/// A driver function, an interrupt or a tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverFigures {
    pub name: String,
    /// The function belongs to nvidia-uvm.ko.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uvm: bool,
    pub calls: u64,
    pub total_ns: u64,
    pub avg_ns: u64,
    pub max_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
}

/// Time that threads spent off the CPU inside CUDA calls. Each function's own share is with the functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OffCpu {
    pub count: u64,
    pub total_ns: u64,
    /// The largest time first.
    pub by_state: Vec<OffCpuState>,
    /// Inside the driver, but in no CUDA call.
    pub outside_count: u64,
    pub outside_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpuState {
    pub state: String,
    pub count: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowCall {
    pub function: String,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of its B line.
    pub begin: u64,
    pub ts_ns: u64,
    pub duration_ns: u64,
    pub kernel_ns: u64,
    pub off_cpu_ns: u64,
    /// What took the time in the driver, the largest first.
    pub requests: Vec<SlowRequest>,
    pub more_calls: u64,
    pub more_ns: u64,
}

/// A request, or a driver function that was called without an ioctl.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowRequest {
    pub request: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub calls: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidFigures {
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub xid: u32,
    pub device: String,
    pub message: String,
}

pub fn is_zero(count: &u64) -> bool {
    *count == 0
}
