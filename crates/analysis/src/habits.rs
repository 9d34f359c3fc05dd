//! Patterns around calls of a thread: waits for work whose results the host never fetches, waits for one call at a
//! time, and errors that the program cannot have seen.
//!
//! A wait is needless if the work before it gave the host nothing, and the thread launches again as soon as the wait
//! returns: stream order alone would have sufficed. The host gets something from a copy to it, a graph (which may
//! contain such copies) or a host function. Memory visible to both sides gives results without a call: if a process has
//! such memory, its waits are needless only if it also fetches results in another way. A wait after a copy may also be
//! there to refill the copied buffer.

use std::collections::HashMap;

use super::by_process::ByProcess;
use super::figures::Finding;
use super::stacks::{Places, Site, Stacks};
use super::tally::{Role, Tally};
use gpurec_cuda::Category;
use gpurec_cuda::traits::Mark;
use gpurec_trace::bounds::{entry, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Memory, Op, Transfer};

/// Limits on threads, kinds of waits and processes.
const MOST: usize = 65_536;

const LONGEST_ERROR: usize = 256;

/// Minimum number and total time of needless waits of one kind for a finding. They must also take a hundredth of the
/// recording.
const WAITS: u64 = 20;
const WAITED_NS: u64 = 1_000_000;
const SHARE: u64 = 100;

/// If the thread launches within this time, the host has not examined many results.
const SOON_NS: u64 = 50_000;

/// The GPU idles for some tens of microseconds while the host wakes up and launches again. After a wait of this length
/// that is negligible.
const LONG_NS: u64 = 2_000_000;

/// If the host sees device memory: one wait in this many fetches results.
const FETCHES: u64 = 64;

#[derive(Default)]
pub struct Habits {
    /// Boxed, since up to half of a table is free.
    threads: Map<(u32, u32), Box<Habit>>,
    waits: ByProcess<Kind, Waits>,
    processes: Map<u32, Process>,
    /// Launches of each process since the last call that could report their errors.
    unsynced: Map<u32, u64>,
    /// Such launches of processes that exited normally.
    never_synced: u64,
    gone: Gone,
}

/// What folded processes leave.
#[derive(Default)]
struct Gone {
    /// The sums of their needless waits, by function and single call.
    waits: HashMap<(usize, Option<usize>), Waits>,
    unseen: u64,
    /// The first of the errors, in their order.
    error: Option<String>,
}

/// Needless waits of a process: the function, and the call that it waited for if that was a single one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    wait: usize,
    single: Option<usize>,
    /// The wait gave the host something that it could have waited for later.
    fetches: bool,
}

#[derive(Clone, Default)]
struct Waits {
    count: u64,
    ns: u64,
    sites: Places,
}

#[derive(Default)]
struct Process {
    /// The host sees device memory: managed, pinned, or another process's.
    shares: bool,
    /// Number of waits that gave the host something.
    fetches: u64,
    waited_ns: u64,
    launches: u64,
}

#[derive(Default)]
struct Habit {
    work: Work,
    /// The last wait, until its purpose is known.
    last_wait: Option<Wait>,
    /// Failed launches whose error the program has not yet queried.
    unseen: u64,
    error: Option<String>,
}

/// Work submitted since the last wait.
#[derive(Clone, Copy, Default)]
struct Work {
    calls: u64,
    last: Option<usize>,
    /// The last call copies.
    copies_last: bool,
    /// Some of the work gives the host something.
    gives: bool,
    /// Some of the work copies from the host; `takes_last`: its last call does.
    takes: bool,
    takes_last: bool,
}

struct Wait {
    function: usize,
    site: Option<Site>,
    ns: u64,
    /// When the wait returned.
    at_ns: u64,
    work: Work,
    /// The thread launched right afterwards.
    went_on: bool,
}

/// An outermost call that has returned.
pub struct FinishedCall<'a> {
    pub pid: u32,
    pub tid: u32,
    pub function: usize,
    pub tally: &'a Tally,
    pub error: Option<&'a str>,
    pub ns: u64,
    /// When the call returned, less gpurec's own cost.
    pub at_ns: u64,
    pub site: Option<Site>,
}

impl Habits {
    pub fn add(&mut self, call: &FinishedCall) {
        let thread = (call.pid, call.tid);
        let traits = &call.tally.traits;
        if call.error.is_none() && traits.reports() {
            self.unsynced.remove(&call.pid);
        }
        if traits.is(Mark::Shares) {
            self.process(call.pid, |process| process.shares = true);
        }
        let Some(habit) = entry(&mut self.threads, thread, MOST) else { return };
        if traits.is(Mark::LastError) {
            habit.unseen = 0;
        } else if traits.is(Mark::Unchecked)
            && let Some(error) = call.error
        {
            habit.unseen += 1;
            habit.error.get_or_insert_with(|| short(error, LONGEST_ERROR));
        }
        if traits.is_sync() {
            self.waited(call);
        } else {
            habit.went_on(call);
            if traits.is(Mark::Async) {
                let copies = traits.category == Category::Memcpy;
                habit.work.calls += 1;
                habit.work.last = Some(call.function);
                habit.work.copies_last = copies;
                habit.work.gives |= traits.is(Mark::Host) || traits.is_graph_launch();
                habit.work.takes_last &= copies;
            }
        }
    }

    /// A wait has returned.
    fn waited(&mut self, call: &FinishedCall) {
        let Some(habit) = self.threads.get_mut(&(call.pid, call.tid)) else { return };
        let needless = habit.last_wait.take().and_then(|wait| wait.if_needless(&habit.work));
        let fetched = habit.work.gives;
        // A wait for an event leaves later work running.
        if !call.tally.traits.is(Mark::Event) {
            let work = std::mem::take(&mut habit.work);
            if call.error.is_none() && work.calls > 0 && call.ns < LONG_NS {
                let &FinishedCall { function, ns, at_ns, site, .. } = call;
                habit.last_wait = Some(Wait { function, site, ns, at_ns, work, went_on: false });
            }
        }
        self.needless(call.pid, needless);
        self.process(call.pid, |process| {
            process.fetches += u64::from(fetched);
            process.waited_ns = process.waited_ns.saturating_add(call.ns);
        });
    }

    /// A `transfer` line comes after the end of the copying call, which may be nested.
    pub fn copied(&mut self, ts_ns: u64, transfer: &Transfer) {
        let (takes, gives) = match transfer.direction.as_ref() {
            "H2D" => (true, false),
            "D2D" | "P2P" | "set" => (false, false),
            _ => (false, true),
        };
        let thread = (transfer.pid, transfer.tid);
        let Some(habit) = entry(&mut self.threads, thread, MOST) else { return };
        if transfer.is_async {
            let needless = habit.copies_on(ts_ns, gives);
            habit.work.gives |= gives;
            habit.work.takes |= takes;
            habit.work.takes_last = takes;
            self.needless(transfer.pid, needless);
        } else if gives {
            // The copy waits for all earlier work, and the host has its results.
            let work = std::mem::take(&mut habit.work);
            let needless = habit.last_wait.take().and_then(|wait| wait.if_needless(&work));
            self.needless(transfer.pid, needless);
            self.process(transfer.pid, |process| {
                process.fetches += 1;
                process.waited_ns = process.waited_ns.saturating_add(transfer.duration_ns.unwrap_or(0));
            });
        }
    }

    pub fn holds(&mut self, memory: &Memory) {
        if memory.op == Op::Alloc && matches!(memory.space.as_ref(), "managed" | "host" | "ipc") {
            self.process(memory.pid, |process| process.shares = true);
        }
    }

    fn process(&mut self, pid: u32, change: impl FnOnce(&mut Process)) {
        if let Some(process) = entry(&mut self.processes, pid, MOST) {
            change(process);
        }
    }

    fn needless(&mut self, pid: u32, wait: Option<Wait>) {
        let Some(Wait { function, site, ns, work, .. }) = wait else { return };
        let single = work.last.filter(|_| work.calls == 1);
        let kind = Kind { wait: function, single, fetches: work.gives };
        if let Some(waits) = self.waits.entry(pid, kind, MOST) {
            waits.count += 1;
            waits.ns = waits.ns.saturating_add(ns);
            waits.sites.add(site);
        }
    }

    /// How long the calls of a process waited for the GPU.
    pub fn waited_ns(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.waited_ns)
    }

    pub fn launches(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.launches)
    }

    pub fn launched(&mut self, pid: u32) {
        self.process(pid, |process| process.launches += 1);
        if let Some(launches) = entry(&mut self.unsynced, pid, MOST) {
            *launches += 1;
        }
    }

    pub fn ended(&mut self, pid: u32, well: bool) {
        let launches = self.unsynced.remove(&pid).unwrap_or(0);
        if well {
            self.never_synced += launches;
        }
    }

    /// The process ended, and has no figures of its own any more. `tids`: its threads.
    pub fn fold(&mut self, pid: u32, tids: &[u32]) {
        let process = self.processes.remove(&pid).unwrap_or_default();
        for (kind, waits) in self.waits.ended(pid) {
            if process.is_sure(&kind, &waits)
                && let Some(sum) = entry(&mut self.gone.waits, (kind.wait, kind.single), MOST)
            {
                sum.merge(&waits);
            }
        }
        for habit in tids.iter().filter_map(|tid| self.threads.remove(&(pid, *tid))) {
            self.gone.unseen += habit.unseen;
            let error = habit.error.filter(|_| habit.unseen > 0);
            self.gone.error = error.into_iter().chain(self.gone.error.take()).min();
        }
        self.unsynced.remove(&pid);
    }

    /// Findings for a recording of `whole_ns`.
    pub fn findings<'a>(
        &self,
        name: impl Fn(usize) -> &'a str,
        whole_ns: u64,
        stacks: &Stacks,
    ) -> Vec<Finding> {
        let mut kinds = self.gone.waits.clone();
        for (pid, kind, waits) in self.waits.iter() {
            if self.processes.get(&pid).is_some_and(|process| process.is_sure(kind, waits)) {
                kinds.entry((kind.wait, kind.single)).or_default().merge(waits);
            }
        }
        let least = WAITED_NS.max(whole_ns / SHARE);
        let mut kinds: Vec<_> =
            kinds.into_iter().filter(|(_, waits)| waits.count >= WAITS && waits.ns >= least).collect();
        kinds.sort_by(|a, b| (b.1.ns, a.0).cmp(&(a.1.ns, b.0)));
        let waits = kinds.into_iter().take(3).map(|((wait, single), waits)| {
            let wait = name(wait);
            let (what, advice) = match single.map(&name) {
                Some(call) => (
                    format!("{wait} waits for a single {call}"),
                    "wait once for many calls; order them with streams and events",
                ),
                None => (
                    format!(
                        "{wait} waits though nothing is copied to the host, and the thread launches again at once"
                    ),
                    "leave it out, because a stream keeps its order by itself; order streams with events",
                ),
            };
            Finding::new(what, waits.count, Some(waits.ns), advice)
                .at(&waits.sites, |site| stacks.text(site))
        });
        waits.chain(self.unseen()).chain(self.unsynced()).collect()
    }

    fn unseen(&self) -> Option<Finding> {
        let habits = || self.threads.values().filter(|habit| habit.unseen > 0);
        let errors = habits().filter_map(|habit| habit.error.as_deref()).chain(self.gone.error.as_deref());
        let error = errors.min().unwrap_or("?");
        let unseen = habits().map(|habit| habit.unseen).sum::<u64>() + self.gone.unseen;
        (unseen > 0).then(|| {
            let what = format!("launches failed and the program did not check ({error})");
            Finding::new(what, unseen, None, "call cudaGetLastError after each <<<>>> launch")
        })
    }

    fn unsynced(&self) -> Option<Finding> {
        let what = "launches before an exit without any call that would report their errors".to_owned();
        let advice = "call cudaDeviceSynchronize before the end, and look at what it returns";
        (self.never_synced > 0).then(|| Finding::new(what, self.never_synced, None, advice))
    }
}

impl Process {
    fn is_sure(&self, kind: &Kind, needless: &Waits) -> bool {
        kind.fetches || !self.shares || self.fetches.saturating_mul(FETCHES) >= needless.count
    }
}

impl Waits {
    fn merge(&mut self, other: &Waits) {
        self.count += other.count;
        self.ns = self.ns.saturating_add(other.ns);
        self.sites.merge(&other.sites);
    }
}

impl Habit {
    /// Handles the return of a call that does not wait.
    fn went_on(&mut self, call: &FinishedCall) {
        let Some(wait) = self.last_wait.as_mut().filter(|wait| !wait.went_on) else { return };
        let traits = &call.tally.traits;
        let after_ns = call.at_ns.saturating_sub(call.ns).saturating_sub(wait.at_ns);
        if after_ns > SOON_NS || traits.looks() {
            self.last_wait = None;
        } else if traits.category == Category::Memcpy {
            // The direction of a copy is known only from the line after it.
        } else if wait.work.gives && traits.is(Mark::Async) {
            self.last_wait = None;
        } else if call.tally.role.is_some_and(Role::launches) {
            wait.went_on = true;
        }
    }

    /// Handles a copy that returns without waiting. Returns the last wait if this copy shows that it was needless: it
    /// waited for a single copy to the host, and the next copy follows.
    fn copies_on(&mut self, ts_ns: u64, gives: bool) -> Option<Wait> {
        let wait = self.last_wait.as_mut().filter(|wait| !wait.went_on)?;
        let is_soon = ts_ns.saturating_sub(wait.at_ns) <= SOON_NS;
        let was_alone = wait.work.calls == 1 && wait.work.copies_last;
        match (is_soon, wait.work.gives, gives) {
            (true, false, false) => {
                wait.went_on = true;
                None
            }
            (true, true, true) if was_alone => self.last_wait.take(),
            _ => {
                self.last_wait = None;
                None
            }
        }
    }
}

impl Wait {
    /// Decides with `after`, the work up to the next wait. A wait lets the host refill a buffer if it is for a copy
    /// from the host that was the last call, or for repeated copies.
    fn if_needless(self, after: &Work) -> Option<Wait> {
        let for_buffer = self.work.takes_last || self.work.takes && after.takes;
        (self.went_on && !self.work.gives && !for_buffer).then_some(self)
    }
}
