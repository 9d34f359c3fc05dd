//! What is followed of a process beyond its sums: its threads, its call sites, its devices. In: single events. Out:
//! sums that only grow. A thread that has made no call for a minute gives its place to a new one.

use std::collections::BTreeSet;

use super::super::stacks::Site;
use super::sums::PaidCalls;
use gpurec_trace::bounds::entry;
use gpurec_trace::hash::Map;

/// Limits on the threads, call sites and devices of a process.
const THREADS: usize = 1024;
const SITES: usize = 4096;
const DEVICES: usize = 64;

/// A thread without a call for this time loses its place if a new one needs it.
const IDLE_NS: u64 = 60_000_000_000;

#[derive(Clone, Debug, Default)]
pub struct Followed {
    threads: Map<u32, Thread>,
    /// No thread is idle before this time, so a search for one is useless.
    full_until_ns: u64,
    /// By call site and number of the function.
    sites: Map<(Site, usize), Times>,
    pub devices: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    paid: PaidCalls,
    call_ns: u64,
    sync_ns: u64,
    last_ns: u64,
}

/// A number of calls, and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub calls: u64,
    pub ns: u64,
}

impl Times {
    pub fn add(&mut self, other: Times) {
        self.calls += other.calls;
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// One thread at one time. Its open calls count with their time so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadPart {
    pub tid: u32,
    pub calls: u64,
    /// In outermost calls.
    pub call_ns: u64,
    /// In calls that wait for the GPU.
    pub sync_ns: u64,
    pub cost_ns: u64,
    /// Its outermost call that is open, and for how long.
    pub open: Option<(String, u64)>,
}

impl Followed {
    pub fn called(&mut self, tid: u32, ts_ns: u64, stepped: bool) {
        if self.threads.len() >= THREADS && ts_ns >= self.full_until_ns && !self.threads.contains_key(&tid) {
            self.threads.retain(|_, thread| thread.last_ns.saturating_add(IDLE_NS) > ts_ns);
            let oldest_ns = self.threads.values().map(|thread| thread.last_ns).min().unwrap_or(0);
            self.full_until_ns = oldest_ns.saturating_add(IDLE_NS);
        }
        let Some(thread) = entry(&mut self.threads, tid, THREADS) else { return };
        thread.paid.calls += 1;
        thread.paid.stepped += u64::from(stepped);
        thread.last_ns = ts_ns;
    }

    pub fn waited(&mut self, tid: u32, ns: u64) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.sync_ns = thread.sync_ns.saturating_add(ns);
        }
    }

    /// An outermost call ended.
    pub fn returned(&mut self, tid: u32, function: usize, site: Option<Site>, ns: u64) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.call_ns = thread.call_ns.saturating_add(ns);
        }
        if let Some(times) = site.and_then(|site| entry(&mut self.sites, (site, function), SITES)) {
            times.add(Times { calls: 1, ns });
        }
    }

    pub fn used(&mut self, device: Option<u32>) {
        if let Some(device) = device.filter(|_| self.devices.len() < DEVICES) {
            self.devices.insert(device);
        }
    }

    /// By number.
    pub fn threads(&self, cost: impl Fn(PaidCalls) -> u64) -> Vec<ThreadPart> {
        let part = |(tid, thread): (&u32, &Thread)| ThreadPart {
            tid: *tid,
            calls: thread.paid.calls,
            call_ns: thread.call_ns,
            sync_ns: thread.sync_ns,
            cost_ns: cost(thread.paid),
            open: None,
        };
        let mut threads: Vec<ThreadPart> = self.threads.iter().map(part).collect();
        threads.sort_unstable_by_key(|thread| thread.tid);
        threads
    }

    pub fn sites(&self) -> impl Iterator<Item = (Site, usize, Times)> {
        self.sites.iter().map(|((site, function), times)| (*site, *function, *times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_threads_make_room_for_new_ones() {
        let mut followed = Followed::default();
        (0..THREADS as u32).for_each(|tid| followed.called(tid, u64::from(tid % 2) * IDLE_NS, false));
        followed.called(5000, IDLE_NS - 1, true);
        let threads = followed.threads(|paid| paid.stepped);
        assert!(threads.len() == THREADS, "a thread that was active a moment ago keeps its place");
        followed.called(5000, IDLE_NS, true);
        let threads = followed.threads(|paid| paid.stepped);
        assert_eq!(threads.len(), THREADS / 2 + 1);
        assert!(threads.last().is_some_and(|last| (last.tid, last.calls, last.cost_ns) == (5000, 1, 1)));
    }

    #[test]
    fn the_number_of_devices_is_bounded() {
        let mut followed = Followed::default();
        (0..1000).for_each(|device| followed.used(Some(device)));
        followed.used(None);
        assert_eq!(followed.devices.len(), DEVICES);
    }
}
