//! The line about a device, which NVML describes once a second. In: fields, by serde. Out: the same, with the keys of the
//! trace. Not here: asking NVML.

use serde::{Deserialize, Serialize};

use super::rare::details;

/// A device, as NVML describes it once a second. What NVML does not say is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The ordinal of NVML, which CUDA_VISIBLE_DEVICES does not renumber.
    pub device: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Only in the first line of a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<DeviceProcess>>,
    /// The percentage of the last second in which a kernel ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_utilization: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// Why the clocks are lowered; empty if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_errors: Option<u64>,
}

details! { it: Device => device, uuid, gpu_name, used_bytes, processes, utilization, memory_utilization, sm_clock_mhz,
power_w, temperature_c, throttle, ecc_errors }

/// The memory that a process uses on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    pub pid: u32,
    /// None: NVML does not say.
    #[serde(default)]
    pub bytes: Option<u64>,
}
