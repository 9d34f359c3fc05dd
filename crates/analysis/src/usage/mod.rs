//! Running sums of what each process did, for views of a running recording (--metrics, --otlp, top, --interval).
//!
//! In: what the summary counts, at the place where it counts it, so that both have the same figures; names of
//! processes. Out: sums by process, and one sum of the ended processes. Memory is bounded by the number of processes
//! that run at once. Not here: names of metrics, rates, and where names of processes come from.

mod follow;
mod observed;
mod sums;

use std::collections::{BTreeMap, VecDeque};

use super::left_out::LeftOut;
use super::stacks::Site;
use follow::Followed;
use gpurec_cuda::Api;
use gpurec_cuda::traits::Space;
use gpurec_trace::bounds::short;
use gpurec_trace::hash::Map;
use gpurec_trace::{Budget, Device, Xid};
use observed::Observed;
use sums::PaidCalls;

pub use follow::{ThreadPart, Times};
pub use sums::{APIS, BOUNDS_NS, DIRECTIONS, Durations, Kernels, ROLES, Sums};

/// A process that ended keeps its own sums for this long, so that they are read once more.
const KEPT_NS: u64 = 60_000_000_000;

/// Limits on ended processes that keep their own sums, on processes, and on those that have made no call yet.
const MOST_ENDED: usize = 1024;
const MOST_PROCESSES: usize = 8192;
const MOST_INTRODUCED: usize = 65_536;

/// Limits on distinct Xids by device, on the length of a device's name, and on devices of NVML.
const MOST_XIDS: usize = 256;
const LONGEST_DEVICE: usize = 64;
const MOST_DEVICES: usize = 64;

/// A sample of a device counts as current for this long.
const PRESENT_NS: u64 = 10_000_000_000;

/// Linux cuts the name of a process to this number of bytes.
const LONGEST_COMM: usize = 15;

#[derive(Default)]
pub struct Usage {
    /// Processes that have made a call.
    processes: Map<u32, Box<ProcessUsage>>,
    /// Processes that have made none yet.
    introduced: Map<u32, Introduced>,
    ended: Rest,
    /// Processes beyond the limit.
    others: Rest,
    /// Ended processes by the time of their end.
    leaving: VecDeque<(u64, u32)>,
    /// Processes that need a name.
    newcomers: Vec<u32>,
    observed: Observed,
    /// The number of kernels of each process in a snapshot.
    kernels: usize,
    /// Threads, call sites and devices of processes are followed, and all kernels counted.
    pub(crate) follows: bool,
    xids: Option<Map<(u32, String), u64>>,
    devices: Map<u32, (u64, Device)>,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub struct ProcessUsage {
    pub pid: u32,
    pub name: Name,
    pub sums: Sums,
    kernels: Kernels,
    followed: Option<Box<Followed>>,
    /// When it made its first call.
    first_ns: u64,
    /// By role: the time before its first call in which not all calls were recorded.
    unobserved_before: [u64; ROLES],
    ended_ns: Option<u64>,
}

/// What is known of a process besides its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    pub comm: String,
    pub rank: Option<u32>,
    /// As Linux gives it.
    pub cgroup: Option<String>,
    pub user: Option<String>,
}

/// What Linux says of a process; none if it is gone.
#[derive(Clone, Debug, Default)]
pub struct ByLinux {
    pub comm: Option<String>,
    pub cgroup: Option<String>,
    pub user: Option<String>,
}

#[derive(Default)]
struct Introduced {
    name: Name,
    stopped_ns: u64,
}

/// The sums of several processes.
#[derive(Default)]
struct Rest {
    sums: Sums,
    kernels: Kernels,
    has_any: bool,
}

/// All sums at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub at_ns: u64,
    /// By number.
    pub processes: Vec<Part>,
    /// Of the processes that ended, and of those beyond the limit (none if there are none beyond it).
    pub ended: Part,
    pub others: Option<Part>,
    /// By Xid and device; none if the recording does not see Xids.
    pub xids: Option<Vec<(u32, String, u64)>>,
    /// By device.
    pub gpu_busy_ns: Vec<(u32, u64)>,
    /// The last sample of each device.
    pub devices: Vec<Device>,
    pub lost: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Part {
    /// 0: of several processes.
    pub pid: u32,
    pub name: Name,
    pub sums: Sums,
    /// gpurec's own cost.
    pub cost_ns: u64,
    pub kernels: Vec<(String, u64)>,
    pub has_ended: bool,
    /// When the process made its first call. A later process with the same PID has another time.
    pub first_ns: u64,
    /// Live bytes, in the order of `Space::ALL`; none if they are not known.
    pub held: Option<[u64; Space::ALL.len()]>,
    /// The same without what was allocated before the recording.
    pub held_since: Option<[u64; Space::ALL.len()]>,
    /// The numbers that its calls give the devices. Empty if processes are not followed, like the fields below.
    pub devices: Vec<u32>,
    pub threads: Vec<ThreadPart>,
    pub detail: Option<Detail>,
}

/// What is copied only for the requested process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Launches by kernel.
    pub kernels: Vec<(String, u64)>,
    pub sites: Vec<SitePart>,
}

/// Calls of one function from one call site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SitePart {
    pub site: String,
    pub function: String,
    pub times: Times,
}

/// Names and prices, which the summary has.
pub(crate) struct Names<'a> {
    pub kernel: &'a dyn Fn(usize) -> String,
    pub function: &'a dyn Fn(usize) -> String,
    pub site: &'a dyn Fn(Site) -> String,
    /// gpurec's own cost of calls.
    pub cost: &'a dyn Fn(PaidCalls) -> u64,
}

impl Usage {
    /// A snapshot has the `kernels` most launched kernels of each process.
    pub fn new(kernels: usize, sees_xids: bool) -> Usage {
        Usage { kernels, xids: sees_xids.then(Map::default), ..Usage::default() }
    }

    /// Also follows threads, call sites and devices, from here on.
    pub fn follow(&mut self) {
        self.follows = true;
    }

    pub(crate) fn leaves_out(&mut self, left_out: &LeftOut) {
        self.observed.leaves_out(left_out);
    }

    pub(crate) fn xid(&mut self, xid: &Xid) {
        let xids = self.xids.get_or_insert_default();
        let key = (xid.xid, short(&xid.device, LONGEST_DEVICE));
        if xids.len() < MOST_XIDS || xids.contains_key(&key) {
            *xids.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn device(&mut self, ts_ns: u64, device: &Device) {
        if self.devices.len() < MOST_DEVICES || self.devices.contains_key(&device.device) {
            let (seen_ns, known) = self.devices.entry(device.device).or_default();
            let uuid = device.uuid.clone().or_else(|| known.uuid.take());
            (*seen_ns, *known) = (ts_ns, Device { uuid, ..device.clone() });
        }
    }

    pub(crate) fn budget(&mut self, ts_ns: u64, line: &Budget) {
        self.observed.budget(ts_ns, line);
    }

    /// A process began to run a program, or was found.
    pub(crate) fn named(&mut self, pid: u32, comm: &str, name: Name) {
        let comm = comm.rsplit('/').next().unwrap_or(comm);
        let end = (0..=LONGEST_COMM.min(comm.len())).rev().find(|end| comm.is_char_boundary(*end));
        let comm = comm.get(..end.unwrap_or(0)).unwrap_or_default().to_owned();
        let name = Name { comm, ..name };
        self.reused(pid);
        match self.processes.get_mut(&pid) {
            Some(process) => {
                process.name = name;
                self.newcomers.push(pid);
            }
            None => self.introduce(pid, name),
        }
    }

    pub(crate) fn forked(&mut self, pid: u32, child: u32) {
        self.reused(child);
        let of_process = self.processes.get(&pid).map(|process| &process.name);
        let name = of_process.or_else(|| self.introduced.get(&pid).map(|known| &known.name));
        if let Some(name) = name.cloned() {
            self.introduce(child, name);
        }
    }

    fn introduce(&mut self, pid: u32, name: Name) {
        if self.has_room_for(pid) {
            self.introduced.entry(pid).or_default().name = name;
        }
    }

    fn has_room_for(&self, pid: u32) -> bool {
        self.introduced.len() < MOST_INTRODUCED || self.introduced.contains_key(&pid)
    }

    /// Folds an ended process, if a new process has its number.
    fn reused(&mut self, pid: u32) {
        if self.processes.get(&pid).is_some_and(|process| process.ended_ns.is_some()) {
            self.fold(pid);
        }
    }

    pub(crate) fn called(&mut self, (pid, tid): (u32, u32), ts_ns: u64, api: Api, stepped: bool) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|process| process.ended_ns.is_none()) {
            return process.called(tid, ts_ns, api, stepped);
        }
        self.reused(pid);
        let Introduced { name, stopped_ns } = self.introduced.remove(&pid).unwrap_or_default();
        if self.processes.len() >= MOST_PROCESSES {
            self.others.has_any = true;
            self.others.sums.stopped_ns = self.others.sums.stopped_ns.saturating_add(stopped_ns);
            return self.others.sums.called(api, stepped);
        }
        let mut process = Box::new(ProcessUsage {
            pid,
            name,
            followed: self.follows.then(Box::default),
            first_ns: ts_ns,
            unobserved_before: self.observed.total_ns(ts_ns),
            ..ProcessUsage::default()
        });
        process.sums.stopped_ns = stopped_ns;
        process.called(tid, ts_ns, api, stepped);
        self.processes.insert(pid, process);
        self.newcomers.push(pid);
    }

    /// The sums of a process that has made a call.
    pub(crate) fn of(&mut self, pid: u32) -> &mut Sums {
        self.of_both(pid).0
    }

    /// The sums of a process that ended: its own until it is folded. Another process may have its number.
    pub(crate) fn of_dead(&mut self, pid: u32) -> &mut Sums {
        let own = self.processes.get_mut(&pid).filter(|process| process.ended_ns.is_some());
        own.map_or(&mut self.ended.sums, |process| &mut process.sums)
    }

    fn of_both(&mut self, pid: u32) -> (&mut Sums, &mut Kernels) {
        match self.processes.get_mut(&pid) {
            Some(process) => (&mut process.sums, &mut process.kernels),
            None => {
                self.others.has_any = true;
                (&mut self.others.sums, &mut self.others.kernels)
            }
        }
    }

    pub(crate) fn launched(&mut self, pid: u32, kernel: Option<usize>) {
        let has_kernels = self.kernels > 0 || self.follows;
        let (sums, kernels) = self.of_both(pid);
        sums.launches += 1;
        if let Some(kernel) = kernel.filter(|_| has_kernels) {
            kernels.launched(kernel, 1);
        }
    }

    /// What is followed of a process.
    pub(crate) fn followed(&mut self, pid: u32) -> Option<&mut Followed> {
        if !self.follows {
            return None;
        }
        self.processes.get_mut(&pid)?.followed.as_deref_mut()
    }

    /// gpurec itself stopped the process for `ns`.
    pub(crate) fn stopped(&mut self, pid: u32, ns: u64) {
        let sum = if let Some(process) = self.processes.get_mut(&pid) {
            &mut process.sums.stopped_ns
        } else if self.has_room_for(pid) {
            &mut self.introduced.entry(pid).or_default().stopped_ns
        } else {
            &mut self.ended.sums.stopped_ns
        };
        *sum = sum.saturating_add(ns);
    }

    pub(crate) fn exited(&mut self, pid: u32, ts_ns: u64) {
        self.fold_until(ts_ns);
        if let Some(known) = self.introduced.remove(&pid) {
            let sum = &mut self.ended.sums.stopped_ns;
            *sum = sum.saturating_add(known.stopped_ns);
        }
        let observed = &self.observed;
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.ended_ns.is_none()) else {
            return;
        };
        process.sums.unobserved_ns = process.unobserved(observed, ts_ns);
        process.ended_ns = Some(ts_ns);
        self.leaving.push_back((ts_ns, pid));
        if self.leaving.len() > MOST_ENDED
            && let Some((_, oldest)) = self.leaving.front().copied()
        {
            self.fold(oldest);
        }
    }

    /// Folds the processes that ended `KEPT_NS` ago or earlier.
    fn fold_until(&mut self, now_ns: u64) {
        while let Some((ended_ns, pid)) = self.leaving.front().copied()
            && ended_ns.saturating_add(KEPT_NS) <= now_ns
        {
            self.fold(pid);
        }
    }

    /// Moves the sums of a process into the one sum of the ended processes.
    fn fold(&mut self, pid: u32) {
        self.leaving.retain(|(_, ended)| *ended != pid);
        if let Some(process) = self.processes.remove(&pid) {
            self.ended.sums.merge(&process.sums);
            self.ended.kernels.merge(&process.kernels);
        }
    }

    /// A process whose name is not final yet: `identify` gives it.
    pub(crate) fn newcomer(&mut self) -> Option<u32> {
        self.newcomers.pop()
    }

    pub(crate) fn identify(&mut self, pid: u32, by_linux: ByLinux) {
        let ByLinux { comm, cgroup, user } = by_linux;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.name.comm = comm.unwrap_or_else(|| std::mem::take(&mut process.name.comm));
        process.name.cgroup = cgroup.or_else(|| process.name.cgroup.take());
        process.name.user = user.or_else(|| process.name.user.take());
    }

    /// `detail`: the process to copy details of.
    pub(crate) fn snapshot(&mut self, at_ns: u64, detail: Option<u32>, names: &Names) -> Snapshot {
        self.fold_until(at_ns);
        let most = self.kernels;
        let named = |kernels: &mut Kernels| {
            let shown = kernels.most(most);
            shown.into_iter().map(|(index, launches)| ((names.kernel)(index), launches)).collect()
        };
        let part = |sums: &Sums, kernels: &mut Kernels| Part {
            cost_ns: (names.cost)(sums.paid).saturating_add(sums.stopped_ns),
            sums: sums.clone(),
            kernels: named(kernels),
            ..Part::default()
        };
        let observed = &self.observed;
        let mut processes: Vec<Part> = self
            .processes
            .values_mut()
            .map(|process| {
                let mut made = part(&process.sums, &mut process.kernels);
                if process.ended_ns.is_none() {
                    made.sums.unobserved_ns = process.unobserved(observed, at_ns);
                }
                let (pid, has_ended) = (process.pid, process.ended_ns.is_some());
                let first_ns = process.first_ns;
                let mut part = Part { pid, name: process.name.clone(), has_ended, first_ns, ..made };
                if let Some(followed) = &process.followed {
                    part.devices = followed.devices.iter().copied().collect();
                    part.threads = followed.threads(names.cost);
                    part.detail = (detail == Some(pid)).then(|| process.detail(followed, names));
                }
                part
            })
            .collect();
        processes.sort_unstable_by_key(|process| process.pid);
        let ended = part(&self.ended.sums, &mut self.ended.kernels);
        let others = self.others.has_any.then(|| part(&self.others.sums, &mut self.others.kernels));
        let xids = self.xids.as_ref().map(|xids| {
            let mut xids: Vec<_> =
                xids.iter().map(|((xid, device), count)| (*xid, device.clone(), *count)).collect();
            xids.sort();
            xids
        });
        let is_present = |(seen_ns, _): &&(u64, Device)| seen_ns.saturating_add(PRESENT_NS) > at_ns;
        let mut devices: Vec<Device> =
            self.devices.values().filter(is_present).map(|(_, device)| device.clone()).collect();
        devices.sort_unstable_by_key(|device| device.device);
        Snapshot { at_ns, processes, ended, others, xids, devices, ..Snapshot::default() }
    }
}

impl ProcessUsage {
    fn called(&mut self, tid: u32, ts_ns: u64, api: Api, stepped: bool) {
        self.sums.called(api, stepped);
        if let Some(followed) = &mut self.followed {
            followed.called(tid, ts_ns, stepped);
        }
    }

    fn detail(&self, followed: &Followed, names: &Names) -> Detail {
        let kernels = self.kernels.all().map(|(index, launches)| ((names.kernel)(index), launches));
        // Two call sites with the same text may differ by their address.
        let mut sites: BTreeMap<(String, String), Times> = BTreeMap::new();
        for (site, function, times) in followed.sites() {
            sites.entry(((names.site)(site), (names.function)(function))).or_default().add(times);
        }
        let site = |((site, function), times)| SitePart { site, function, times };
        Detail { kernels: kernels.collect(), sites: sites.into_iter().map(site).collect() }
    }

    fn unobserved(&self, observed: &Observed, at_ns: u64) -> [u64; ROLES] {
        let mut now = observed.total_ns(at_ns);
        now.iter_mut()
            .zip(self.unobserved_before)
            .for_each(|(now, before)| *now = now.saturating_sub(before));
        now
    }
}

impl Part {
    /// One of the threads that are followed.
    pub(crate) fn thread(&mut self, tid: u32) -> Option<&mut ThreadPart> {
        let at = self.threads.binary_search_by_key(&tid, |thread| thread.tid).ok()?;
        self.threads.get_mut(at)
    }
}

impl Snapshot {
    /// The part that has the sums of a process. If it died, another process may have its number.
    pub(crate) fn part_of(&mut self, (pid, died): (u32, bool)) -> &mut Part {
        let at = self.processes.binary_search_by_key(&pid, |process| process.pid).ok();
        let process = at.and_then(|at| self.processes.get_mut(at));
        process.filter(|process| process.has_ended || !died).unwrap_or(&mut self.ended)
    }
}
