//! What each process does now: rates between two snapshots of the sums by process, for `gpurec top` and `--interval`.
//!
//! In: two snapshots. Out: a row for each running process, with its threads; totals; the kernels and call sites of one
//! process; as tables (`columns`) and as JSON (`json`). Pure. Not here: the sums (`usage`), and what a terminal shows.

pub mod columns;
mod json;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::time::SystemTime;

use crate::units::plural;
use crate::usage::{Part, Snapshot, Sums, ThreadPart, Times};
use gpurec_cuda::traits::Space;
use gpurec_trace::Device;
use gpurec_trace::hash::Map;

/// Age in nanoseconds from which an unfinished call is reported.
pub const LONG: u64 = 1_000_000_000;

/// Why the memory that a process holds is not known: it ran before the recording, or the recording does not see every
/// allocation.
pub const HELD_UNKNOWN: &str = "what it allocated earlier was not seen";
pub const MEMORY_UNSEEN: &str = "not every allocation and free is seen";
const NVML_UNKNOWN: &str = "NVML does not report it";

/// Bytes by space.
pub type Spaces = Vec<(&'static str, u64)>;

/// What all recorded processes did since the previous snapshot.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Since the recording began.
    pub at_ns: u64,
    /// The time since the previous snapshot, over which rates are computed.
    pub passed_ns: u64,
    /// The processes that run, by number.
    pub rows: Vec<Row>,
    /// Of all processes, including those that ended.
    pub total: Counts,
    pub failed: u64,
    pub lost: u64,
    pub new_lost: u64,
    pub devices: Vec<Device>,
    pub detail: Option<Detail>,
}

/// What was counted since the previous snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    pub launches: u64,
    pub graph_launches: u64,
    pub copied: u64,
    pub failed: u64,
}

impl Counts {
    /// Kernel launches and graph launches.
    pub fn all_launches(&self) -> u64 {
        self.launches + self.graph_launches
    }
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub pid: u32,
    pub comm: String,
    pub user: Option<String>,
    pub container: Option<String>,
    pub rank: Option<u32>,
    /// The numbers that the process itself gives its devices.
    pub devices: Vec<u32>,
    /// The memory that NVML reports for it, by NVML's number of the device.
    pub nvml: Vec<(u32, Option<u64>)>,
    /// Live bytes of the spaces that it uses. None: not known.
    pub held: Option<Spaces>,
    /// The same without what was allocated before the recording.
    pub held_since: Option<Spaces>,
    pub passed_ns: u64,
    pub new: Counts,
    /// Failed calls since the recording began, by error.
    pub failed: Vec<(String, u64)>,
    /// Three maxima over its threads: time in calls that wait for the GPU, time in all calls, cost of recording.
    pub sync_ns: u64,
    pub call_ns: u64,
    pub cost_ns: u64,
    pub threads: Vec<ThreadRow>,
}

/// What one thread did since the previous snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadRow {
    pub tid: u32,
    pub calls: u64,
    pub sync_ns: u64,
    pub call_ns: u64,
    pub cost_ns: u64,
    /// Its outermost call that is open, and for how long.
    pub open: Option<(String, u64)>,
}

/// Details of the requested process. The most frequent kernels and call sites come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    pub pid: u32,
    pub kernels: Vec<KernelRow>,
    pub sites: Vec<SiteRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRow {
    pub name: String,
    pub launches: u64,
    /// Since the previous snapshot. None: that snapshot has no details of the process.
    pub new: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRow {
    pub site: String,
    pub function: String,
    pub times: Times,
    pub new: Option<Times>,
}

fn sum(spaces: &Spaces) -> u64 {
    spaces.iter().map(|(_, bytes)| bytes).sum()
}

impl Row {
    pub fn held_bytes(&self) -> Option<u64> {
        self.held.as_ref().map(sum)
    }

    /// Without what was allocated before the recording.
    pub fn held_since_bytes(&self) -> Option<u64> {
        self.held_since.as_ref().map(sum)
    }

    pub fn nvml_bytes(&self) -> Option<u64> {
        let known: Vec<u64> = self.nvml.iter().filter_map(|(_, bytes)| *bytes).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    }

    pub fn failed_calls(&self) -> u64 {
        self.failed.iter().map(|(_, count)| count).sum()
    }

    /// The calls that have been open for a second or longer, the oldest first: thread, function, duration.
    pub fn long_calls(&self) -> Vec<(u32, &str, u64)> {
        let open = self.threads.iter().filter_map(|thread| {
            let (name, ns) = thread.open.as_ref()?;
            Some((thread.tid, name.as_str(), *ns))
        });
        let mut calls: Vec<(u32, &str, u64)> = open.filter(|(_, _, ns)| *ns >= LONG).collect();
        calls.sort_by_key(|(tid, _, ns)| (Reverse(*ns), *tid));
        calls
    }

    /// NVML's numbers of the devices if NVML lists the process; otherwise the process's own numbers. `0-3,7`.
    pub fn gpus(&self) -> String {
        let by_nvml = || self.nvml.iter().map(|(device, _)| *device).collect();
        let mut all: Vec<u32> = if self.nvml.is_empty() { self.devices.clone() } else { by_nvml() };
        all.sort_unstable();
        let runs = all.chunk_by(|a, b| a.checked_add(1) == Some(*b));
        let text = |run: &[u32]| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        };
        runs.map(text).collect::<Vec<_>>().join(",")
    }
}

impl Activity {
    /// `container` returns the id of the container that a cgroup belongs to.
    pub fn between(
        before: &Snapshot,
        now: &Snapshot,
        container: impl Fn(&str) -> Option<String>,
    ) -> Activity {
        let passed_ns = now.at_ns.saturating_sub(before.at_ns);
        let parts: Map<(u32, u64), &Part> =
            before.processes.iter().map(|part| ((part.pid, part.first_ns), part)).collect();
        let nothing = Part::default();
        let mut rows = Vec::new();
        let mut detail = None;
        for part in now.processes.iter().filter(|part| !part.has_ended) {
            let earlier = parts.get(&(part.pid, part.first_ns)).copied();
            let cgroup = part.name.cgroup.as_deref();
            let container = cgroup.and_then(&container);
            rows.push(row(earlier.unwrap_or(&nothing), part, (now, passed_ns), container));
            detail = detail.or_else(|| details(earlier, part));
        }
        let (failed_before, failed) = (all(before, failed_of), all(now, failed_of));
        let new = |of: fn(&Sums) -> u64| all(now, of).saturating_sub(all(before, of));
        let total = Counts {
            calls: new(calls_of),
            launches: new(|sums| sums.launches),
            graph_launches: new(|sums| sums.graph_launches),
            copied: new(copied_of),
            failed: failed.saturating_sub(failed_before),
        };
        let new_lost = now.lost.saturating_sub(before.lost);
        let (at_ns, lost, devices) = (now.at_ns, now.lost, now.devices.clone());
        Activity { at_ns, passed_ns, rows, total, failed, lost, new_lost, devices, detail }
    }

    /// The bytes that processes hold, and the number of processes for which that is not known.
    pub fn held(&self) -> (u64, u64) {
        let known = self.rows.iter().filter_map(Row::held_bytes);
        let unknown = self.rows.iter().filter(|row| row.held.is_none()).count();
        (known.sum(), unknown as u64)
    }

    /// `3 processes`.
    pub fn processes(&self) -> String {
        plural(self.rows.len() as u64, "process")
    }

    /// One document, at this time.
    pub fn json(&self, host: &str, at: SystemTime) -> serde_json::Value {
        json::document(self, host, at)
    }
}

fn all(snapshot: &Snapshot, of: fn(&Sums) -> u64) -> u64 {
    let parts = snapshot.processes.iter().chain([&snapshot.ended]).chain(&snapshot.others);
    parts.map(|part| of(&part.sums)).sum()
}

fn calls_of(sums: &Sums) -> u64 {
    sums.calls.iter().sum()
}

fn copied_of(sums: &Sums) -> u64 {
    sums.copied.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

fn failed_of(sums: &Sums) -> u64 {
    sums.failed.values().sum()
}

fn row(before: &Part, part: &Part, (now, passed_ns): (&Snapshot, u64), container: Option<String>) -> Row {
    let (sums, earlier) = (&part.sums, &before.sums);
    let stopped_ns = sums.stopped_ns.saturating_sub(earlier.stopped_ns);
    let threads = threads(&before.threads, &part.threads, stopped_ns);
    let most = |of: fn(&ThreadRow) -> u64| threads.iter().map(of).max().unwrap_or(0).min(passed_ns);
    let mut failed: Vec<(String, u64)> =
        sums.failed.iter().map(|(error, count)| (error.clone(), *count)).collect();
    failed.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    Row {
        pid: part.pid,
        comm: part.name.comm.clone(),
        user: part.name.user.clone(),
        container,
        rank: part.name.rank,
        devices: part.devices.clone(),
        nvml: by_nvml(part.pid, &now.devices),
        held: part.held.map(|held| in_use(sums, &held)),
        held_since: part.held_since.map(|held| in_use(sums, &held)),
        passed_ns,
        new: Counts {
            calls: calls_of(sums).saturating_sub(calls_of(earlier)),
            launches: sums.launches.saturating_sub(earlier.launches),
            graph_launches: sums.graph_launches.saturating_sub(earlier.graph_launches),
            copied: copied_of(sums).saturating_sub(copied_of(earlier)),
            failed: failed_of(sums).saturating_sub(failed_of(earlier)),
        },
        failed,
        sync_ns: most(|thread| thread.sync_ns),
        call_ns: most(|thread| thread.call_ns),
        cost_ns: most(|thread| thread.cost_ns),
        threads,
    }
}

/// The spaces in which the process has allocated memory of its own.
fn in_use(sums: &Sums, held: &[u64; Space::ALL.len()]) -> Spaces {
    let all = Space::ALL.into_iter().zip(sums.allocated).zip(held);
    let used =
        all.filter(|((space, allocated), held)| *space != Space::Ipc && (*allocated > 0 || **held > 0));
    used.map(|((space, _), held)| (space.name(), *held)).collect()
}

fn by_nvml(pid: u32, devices: &[Device]) -> Vec<(u32, Option<u64>)> {
    let of = |device: &Device| {
        let process = device.processes.as_ref()?.iter().find(|process| process.pid == pid)?;
        Some((device.device, process.bytes))
    };
    devices.iter().filter_map(of).collect()
}

/// `stopped_ns`: how long gpurec stopped the process, which costs each of its threads that time.
fn threads(before: &[ThreadPart], now: &[ThreadPart], stopped_ns: u64) -> Vec<ThreadRow> {
    let earlier: Map<u32, &ThreadPart> = before.iter().map(|thread| (thread.tid, thread)).collect();
    let none = ThreadPart::default();
    let row = |thread: &ThreadPart| {
        let before = earlier.get(&thread.tid).copied().unwrap_or(&none);
        let new = |of: fn(&ThreadPart) -> u64| of(thread).saturating_sub(of(before));
        ThreadRow {
            tid: thread.tid,
            calls: new(|thread| thread.calls),
            sync_ns: new(|thread| thread.sync_ns),
            call_ns: new(|thread| thread.call_ns),
            cost_ns: new(|thread| thread.cost_ns).saturating_add(stopped_ns),
            open: thread.open.clone(),
        }
    };
    now.iter().map(row).collect()
}

fn details(before: Option<&Part>, part: &Part) -> Option<Detail> {
    let now = part.detail.as_ref()?;
    let before = before.and_then(|part| part.detail.as_ref());
    let launches = before.map(|detail| -> Map<&str, u64> {
        detail.kernels.iter().map(|(name, launches)| (name.as_str(), *launches)).collect()
    });
    let sites = before.map(|detail| -> Map<(&str, &str), Times> {
        detail.sites.iter().map(|site| ((site.site.as_str(), site.function.as_str()), site.times)).collect()
    });
    let kernel = |(name, count): &(String, u64)| KernelRow {
        name: name.clone(),
        launches: *count,
        new: launches
            .as_ref()
            .map(|known| count.saturating_sub(known.get(name.as_str()).copied().unwrap_or(0))),
    };
    let mut kernels: Vec<KernelRow> = now.kernels.iter().map(kernel).collect();
    kernels.sort_by(|a, b| (b.new, b.launches, &a.name).cmp(&(a.new, a.launches, &b.name)));
    let site = |site: &crate::usage::SitePart| SiteRow {
        site: site.site.clone(),
        function: site.function.clone(),
        times: site.times,
        new: sites.as_ref().map(|known| {
            let before =
                known.get(&(site.site.as_str(), site.function.as_str())).copied().unwrap_or_default();
            Times {
                calls: site.times.calls.saturating_sub(before.calls),
                ns: site.times.ns.saturating_sub(before.ns),
            }
        }),
    };
    let mut sites: Vec<SiteRow> = now.sites.iter().map(site).collect();
    let key = |row: &SiteRow| (row.new.map(|new| new.calls), row.times.calls);
    sites.sort_by(|a, b| {
        key(b).cmp(&key(a)).then_with(|| (&a.site, &a.function).cmp(&(&b.site, &b.function)))
    });
    Some(Detail { pid: part.pid, kernels, sites })
}
