//! The metrics: names, types, units, and which sum each one shows. In: a copy of the sums. Out: families, each with its
//! points. Not here: formats.

use std::collections::BTreeMap;

use gpurec_analysis::stacks::CallRole;
use gpurec_analysis::usage::{APIS, DIRECTIONS, Durations, Part, ROLES};
use gpurec_cuda::traits::Space;
use gpurec_trace::Device;

use super::labels::{self, Labels, Pods, clean};
use crate::serve::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub struct Family {
    /// Without `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// In OpenMetrics and in OTLP. A plain count has `NONE`.
    pub unit: (&'static str, &'static str),
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Count(u64),
    /// Nanoseconds, shown in seconds.
    Nanos(u64),
    Real(f64),
    Durations(&'a Durations),
}

/// Which process a point belongs to: an index of `Points::processes`.
pub type Of = Option<usize>;

pub type Extra<'a> = &'a [(&'static str, &'a str)];

/// A format.
pub trait Sink {
    fn family(&mut self, family: &'static Family);
    fn point(&mut self, of: Of, labels: Extra, value: Value);
}

const NONE: (&str, &str) = ("", "1");
const BYTES: (&str, &str) = ("bytes", "By");
const SECONDS: (&str, &str) = ("seconds", "s");

macro_rules! families {
    ($($id:ident $kind:ident $name:literal $unit:expr, $help:literal;)*) => {
        $(static $id: Family = Family { name: $name, kind: Kind::$kind, unit: $unit, help: $help };)*
        #[cfg(test)]
        pub static ALL: &[&Family] = &[$(&$id),*];
    };
}

families! {
    CALLS Counter "gpurec_calls" NONE, "Calls of CUDA functions, including calls inside other calls.";
    LAUNCHES Counter "gpurec_launches" NONE, "Kernel launches that succeeded, each once.";
    GRAPHS Counter "gpurec_graph_launches" NONE, "Graph launches that succeeded, each once.";
    KERNELS Counter "gpurec_kernel_launches" NONE, "Launches of the most launched kernels (--metrics-kernels).";
    HELD Gauge "gpurec_memory_held_bytes" BYTES, "Memory allocated and not freed.";
    ALLOCATED Counter "gpurec_memory_allocated_bytes" BYTES, "Memory allocated so far.";
    COPIED Counter "gpurec_copied_bytes" BYTES, "Bytes copied and set.";
    FAILED Counter "gpurec_failed_calls" NONE, "Failed calls that the program saw.";
    SYNC Counter "gpurec_sync_seconds" SECONDS, "Time in calls that wait for the GPU.";
    DURATIONS Histogram "gpurec_call_duration_seconds" SECONDS, "Duration of outermost calls.";
    UNOBSERVED Counter "gpurec_unobserved_seconds" SECONDS, "Time in which calls of a role were not all recorded.";
    OVERHEAD Counter "gpurec_overhead_seconds" SECONDS, "Time that recording took from processes.";
    BUSY Counter "gpurec_gpu_busy_seconds" SECONDS, "Time in which work ran on the GPU (--gpu).";
    XIDS Counter "gpurec_xid" NONE, "Errors that the driver reported.";
    LOST Counter "gpurec_events_lost" NONE, "Records that were lost.";
    DROPPED Counter "gpurec_otlp_dropped" NONE, "Exports of --otlp that were dropped.";
    USED Gauge "gpurec_device_used_bytes" BYTES, "Memory in use on the device, by NVML.";
    UTILIZATION Gauge "gpurec_device_utilization_ratio" ("ratio", "1"), "Share of the last second in which a kernel ran, by NVML.";
    POWER Gauge "gpurec_device_power_watts" ("watts", "W"), "Power that the device draws, by NVML.";
    TEMPERATURE Gauge "gpurec_device_temperature_celsius" ("celsius", "Cel"), "Temperature of the device, by NVML.";
    THROTTLED Gauge "gpurec_device_throttled" NONE, "1 while the clocks are lowered for this reason, by NVML.";
}

/// The sums of processes with their labels.
pub struct Points<'a> {
    state: &'a State,
    parts: Vec<&'a Part>,
    /// Labels by index.
    pub processes: Vec<Labels>,
    /// The number of processes that run or ended a moment ago; the sums of others follow.
    single: usize,
}

impl<'a> Points<'a> {
    pub fn of(state: &'a State, pods: &Pods) -> Points<'a> {
        let usage = &state.usage;
        let parts = usage.processes.iter().chain([&usage.ended]).chain(&usage.others).collect();
        let mut processes: Vec<Labels> =
            usage.processes.iter().map(|part| labels::of_process(part, pods)).collect();
        processes.push(labels::of_ended());
        processes.extend(usage.others.iter().map(|_| labels::of_others()));
        Points { state, parts, processes, single: usage.processes.len() }
    }

    pub fn write(&self, to: &mut impl Sink) {
        self.calls(to);
        self.memory(to);
        self.times(to);
        self.machine(to);
        self.devices(to);
    }

    /// A family with points of each process.
    fn each<S: Sink>(&self, to: &mut S, family: &'static Family, points: impl Fn(&mut S, Of, &Part)) {
        to.family(family);
        for (at, part) in self.parts.iter().enumerate() {
            points(to, Some(at), part);
        }
    }

    /// A counter of each process.
    fn sum<S: Sink>(&self, to: &mut S, family: &'static Family, value: impl Fn(&Part) -> Value<'static>) {
        self.each(to, family, |to, of, part| to.point(of, &[], value(part)));
    }

    fn calls<S: Sink>(&self, to: &mut S) {
        self.each(to, &CALLS, |to, of, part| {
            let known = APIS.into_iter().zip(part.sums.calls);
            // Only --lib and collectives have calls of other libraries.
            for (api, calls) in known.filter(|(api, calls)| *calls > 0 || *api != "other") {
                to.point(of, &[("api", api)], Value::Count(calls));
            }
        });
        self.sum(to, &LAUNCHES, |part| Value::Count(part.sums.launches));
        self.sum(to, &GRAPHS, |part| Value::Count(part.sums.graph_launches));
        if self.parts.iter().any(|part| !part.kernels.is_empty()) {
            self.each(to, &KERNELS, |to, of, part| {
                // Labels are shortened: kernels with equal labels are one series.
                let mut by_label = BTreeMap::new();
                for (kernel, launches) in &part.kernels {
                    *by_label.entry(clean(kernel)).or_insert(0) += launches;
                }
                for (kernel, launches) in &by_label {
                    to.point(of, &[("kernel", kernel)], Value::Count(*launches));
                }
            });
        }
        self.each(to, &FAILED, |to, of, part| {
            for (error, count) in &part.sums.failed {
                to.point(of, &[("error", &clean(error))], Value::Count(*count));
            }
        });
    }

    fn memory<S: Sink>(&self, to: &mut S) {
        to.family(&HELD);
        for (at, part) in self.parts.iter().take(self.single).enumerate() {
            let Some(held) = part.held.filter(|_| !part.has_ended) else { continue };
            for (space, bytes) in in_use(part).map(|(at, space)| (space, held[at])) {
                to.point(Some(at), &[("space", space)], Value::Count(bytes));
            }
        }
        self.each(to, &ALLOCATED, |to, of, part| {
            for (at, space) in in_use(part) {
                to.point(of, &[("space", space)], Value::Count(part.sums.allocated[at]));
            }
        });
        self.each(to, &COPIED, |to, of, part| {
            let known = DIRECTIONS.into_iter().zip(part.sums.copied);
            for (direction, bytes) in known.filter(|(_, bytes)| *bytes > 0) {
                to.point(of, &[("direction", direction)], Value::Count(bytes));
            }
        });
    }

    fn times<S: Sink>(&self, to: &mut S) {
        self.sum(to, &SYNC, |part| Value::Nanos(part.sums.sync_ns));
        self.each(to, &DURATIONS, |to, of, part| {
            let known = roles().zip(&part.sums.durations);
            for (role, durations) in known.filter(|(_, durations)| durations.count() > 0) {
                to.point(of, &[("role", role)], Value::Durations(durations));
            }
        });
        self.each(to, &UNOBSERVED, |to, of, part| {
            for (role, ns) in roles().zip(part.sums.unobserved_ns).filter(|(_, ns)| *ns > 0) {
                to.point(of, &[("role", role)], Value::Nanos(ns));
            }
        });
        self.sum(to, &OVERHEAD, |part| Value::Nanos(part.cost_ns));
    }

    fn machine<S: Sink>(&self, to: &mut S) {
        let usage = &self.state.usage;
        if !usage.gpu_busy_ns.is_empty() {
            to.family(&BUSY);
            for (device, ns) in &usage.gpu_busy_ns {
                to.point(None, &[("device", &device.to_string())], Value::Nanos(*ns));
            }
        }
        if let Some(xids) = &usage.xids {
            to.family(&XIDS);
            for (xid, device, count) in xids {
                let labels = [("xid", xid.to_string()), ("device", clean(device))];
                let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
                to.point(None, &labels, Value::Count(*count));
            }
        }
        to.family(&LOST);
        to.point(None, &[], Value::Count(self.state.usage.lost));
        if let Some(dropped) = self.state.dropped {
            to.family(&DROPPED);
            to.point(None, &[], Value::Count(dropped));
        }
    }

    fn devices<S: Sink>(&self, to: &mut S) {
        let devices = &self.state.usage.devices;
        let mut gauge = |family: &'static Family, value: fn(&Device) -> Option<Value<'static>>| {
            if !devices.iter().any(|device| value(device).is_some()) {
                return;
            }
            to.family(family);
            for device in devices {
                if let Some(value) = value(device) {
                    to.point(None, &labels_of(device).each_ref().map(|(name, v)| (*name, v.as_str())), value);
                }
            }
        };
        gauge(&USED, |device| device.used_bytes.map(Value::Count));
        gauge(&UTILIZATION, |device| {
            device.utilization.map(|percent| Value::Real(f64::from(percent) / 100.0))
        });
        gauge(&POWER, |device| device.power_w.map(Value::Real));
        gauge(&TEMPERATURE, |device| device.temperature_c.map(|celsius| Value::Count(celsius.into())));
        if devices.iter().any(|device| device.throttle.is_some()) {
            to.family(&THROTTLED);
            for device in devices {
                let [number, uuid] = labels_of(device);
                for reason in device.throttle.iter().flatten() {
                    let labels =
                        [(number.0, number.1.as_str()), (uuid.0, &uuid.1), ("reason", &clean(reason))];
                    to.point(None, &labels, Value::Count(1));
                }
            }
        }
    }
}

fn roles() -> impl Iterator<Item = &'static str> {
    CallRole::ALL.into_iter().take(ROLES).map(CallRole::name)
}

/// The spaces in which a process has allocated memory of its own.
fn in_use(part: &Part) -> impl Iterator<Item = (usize, &'static str)> {
    let all = Space::ALL.into_iter().enumerate().zip(part.sums.allocated);
    all.filter(|((_, space), bytes)| *bytes > 0 && *space != Space::Ipc)
        .map(|((at, space), _)| (at, space.name()))
}

fn labels_of(device: &Device) -> [(&'static str, String); 2] {
    let uuid = device.uuid.as_deref().map(clean).unwrap_or_default();
    [("device", device.device.to_string()), ("uuid", uuid)]
}
