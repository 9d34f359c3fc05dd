//! The state of the GPUs, as NVML describes it once a second. In: `device` lines. Out: for each device its name, the most
//! that it used and needed, why its clocks were lowered, and what processes held in the beginning. Memory is bounded by
//! the number of devices and of reasons.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::driver_figures::is_zero;
use crate::page::Page;
use crate::ui::clean;
use crate::units::{decimal, plural, size};
use gpurec_trace::Device;
use gpurec_trace::bounds::short;

/// Limits on devices, on reasons and on processes of each, and on the length of a text.
const DEVICES: usize = 256;
const REASONS: usize = 32;
const PROCESSES: usize = 64;
const LONGEST: usize = 128;
/// The recorder asks NVML before it records any process. In a first line that comes later than this, processes may hold
/// memory whose allocations are in the trace.
const AT_START_NS: u64 = 10_000_000;
/// The clocks are low because nothing runs on the GPU. That slows nothing down.
const IDLE: &str = "gpu_idle";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlFigures {
    /// NVML's ordinal.
    pub device: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_name: Option<String>,
    /// Number of lines: one a second, one at the start, one at the end.
    pub samples: u64,
    /// In use by all processes: in the first line, and the most.
    pub first_used_bytes: Option<u64>,
    pub most_used_bytes: Option<u64>,
    /// Average percentage of the time in which a kernel ran.
    pub utilization: Option<u64>,
    pub most_power_mw: Option<u64>,
    pub most_temperature_c: Option<u32>,
    /// Lines in which the clocks were lowered for another reason than `IDLE`: all of them, and by reason.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle: Vec<ThrottleFigures>,
    /// What each process held at the start, what it had before the recording included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes_at_start: Vec<ProcessMemory>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleFigures {
    pub reason: String,
    pub samples: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    pub pid: u32,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Nvml {
    devices: BTreeMap<u32, State>,
}

#[derive(Default)]
struct State {
    seen: NvmlFigures,
    /// The sum of utilizations, and their number.
    utilization: (u64, u64),
}

impl Nvml {
    pub fn add(&mut self, ts_ns: u64, line: &Device) {
        if self.devices.len() >= DEVICES && !self.devices.contains_key(&line.device) {
            return;
        }
        let State { seen, utilization } = self.devices.entry(line.device).or_default();
        let text = |text: &String| short(text, LONGEST);
        if seen.samples == 0 && ts_ns <= AT_START_NS {
            let held =
                line.processes.iter().flatten().filter_map(|process| Some((process.pid, process.bytes?)));
            seen.processes_at_start =
                held.take(PROCESSES).map(|(pid, bytes)| ProcessMemory { pid, bytes }).collect();
        }
        seen.device = line.device;
        seen.samples += 1;
        seen.uuid = seen.uuid.take().or_else(|| line.uuid.as_ref().map(text));
        seen.gpu_name = seen.gpu_name.take().or_else(|| line.gpu_name.as_ref().map(text));
        seen.first_used_bytes = seen.first_used_bytes.or(line.used_bytes);
        seen.most_used_bytes = seen.most_used_bytes.max(line.used_bytes);
        seen.most_temperature_c = seen.most_temperature_c.max(line.temperature_c);
        // A cast of a float saturates.
        seen.most_power_mw = seen.most_power_mw.max(line.power_w.map(|watt| (watt * 1e3).round() as u64));
        if let Some(percent) = line.utilization {
            *utilization = (utilization.0.saturating_add(percent.into()), utilization.1 + 1);
        }
        let reasons = line.throttle.iter().flatten().filter(|reason| *reason != IDLE);
        seen.throttled += u64::from(reasons.clone().next().is_some());
        for reason in reasons.take(REASONS) {
            let reason = short(reason, LONGEST);
            if let Some(known) = seen.throttle.iter_mut().find(|known| known.reason == reason) {
                known.samples += 1;
            } else if seen.throttle.len() < REASONS {
                seen.throttle.push(ThrottleFigures { reason, samples: 1 });
            }
        }
    }

    pub fn finish(&self) -> Vec<NvmlFigures> {
        let figures = |State { seen, utilization: (sum, count) }: &State| {
            let mut figures = NvmlFigures { utilization: sum.checked_div(*count), ..seen.clone() };
            figures.throttle.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.reason.cmp(&b.reason)));
            figures
        };
        self.devices.values().map(figures).collect()
    }
}

/// The section of the summary. `is_recorded` says whether a process, given by its PID, is recorded.
pub fn section(page: &mut Page, devices: &[NvmlFigures], is_recorded: &dyn Fn(u32) -> bool) {
    if devices.is_empty() {
        return;
    }
    page.section("GPUs, as NVML saw them once a second:");
    for it in devices {
        let used = it.first_used_bytes.zip(it.most_used_bytes);
        let parts = [
            used.map(|(first, most)| format!("{} in use at first, at most {}", size(first), size(most))),
            it.utilization.map(|percent| format!("{percent} % utilization on average")),
            it.most_power_mw.map(|mw| format!("up to {} W", decimal(mw / 100, 1))),
            it.most_temperature_c.map(|celsius| format!("up to {celsius} C")),
        ];
        let name = it.gpu_name.as_deref().unwrap_or("GPU");
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        page.wrapped(&format!("  {:>2}  ", it.device), &format!("{}: {}", clean(name), parts.join(", ")));
        if it.throttled > 0 {
            let reasons = it.throttle.iter().map(|why| format!("{} ({})", clean(&why.reason), why.samples));
            let reasons = reasons.collect::<Vec<_>>().join(", ");
            let (times, of) = (it.throttled, plural(it.samples, "sample"));
            page.wrapped("      ", &format!("clocks lowered in {times} of {of}: {reasons}"));
        }
        at_start(page, it, is_recorded);
    }
}

/// What each recorded process held at the start, and what all others held together.
fn at_start(page: &mut Page, it: &NvmlFigures, is_recorded: &dyn Fn(u32) -> bool) {
    let (recorded, others): (Vec<_>, Vec<_>) =
        it.processes_at_start.iter().partition(|held| is_recorded(held.pid));
    for ProcessMemory { pid, bytes } in recorded {
        let said = format!(
            "pid {pid} held {} on device {} at the start; memory held at exit does not count it",
            size(*bytes),
            it.device
        );
        page.wrapped("      ", &said);
    }
    if !others.is_empty() {
        let bytes = others.iter().fold(0u64, |sum, held| sum.saturating_add(held.bytes));
        let count = plural(others.len() as u64, "process");
        page.wrapped("      ", &format!("not recorded: {count} that held {} at the start", size(bytes)));
    }
}
