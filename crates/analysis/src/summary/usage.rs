//! Sums by process: adds what the summary counts to the sums of its process too, and takes snapshots of all sums.

use super::{PaidCalls, Summary};
use crate::stacks::{CallRole, Site};
use crate::tally::Role;
use crate::usage::{ByLinux, Name, Names, Snapshot, Sums, Usage};
use gpurec_trace::{End, Memory, Op, Process};

impl Summary {
    /// From here on also sums by process. A snapshot has the `kernels` most launched kernels of each process.
    pub fn measure(&mut self, kernels: usize, sees_xids: bool) {
        self.usage = Some(Box::new(Usage::new(kernels, sees_xids)));
        self.failures.keep_news();
    }

    /// Also follows the threads, call sites and devices of each process.
    pub fn follow_processes(&mut self) {
        if self.usage.is_none() {
            self.measure(0, false);
        }
        self.usage.iter_mut().for_each(|usage| usage.follow());
    }

    /// Whether there are sums by process.
    pub fn is_measured(&self) -> bool {
        self.usage.is_some()
    }

    pub fn follows_processes(&self) -> bool {
        self.usage.as_ref().is_some_and(|usage| usage.follows)
    }

    pub(super) fn of(&mut self, pid: u32) -> impl Iterator<Item = &mut Sums> {
        self.usage.iter_mut().map(move |usage| usage.of(pid))
    }

    pub(super) fn measure_options(&mut self) {
        if let (Some(usage), Some(left_out)) = (&mut self.usage, &self.about.left_out) {
            usage.leaves_out(left_out);
        }
    }

    pub(super) fn measure_process(&mut self, ts_ns: u64, process: &Process) {
        let Some(usage) = &mut self.usage else { return };
        match process {
            Process::Exec(exec) => {
                let command = exec.command.first().map_or("", String::as_str);
                usage.named(exec.pid, command, Name { rank: exec.rank, ..Name::default() });
            }
            Process::Found(found) => {
                let (rank, cgroup, user) = (found.rank, found.cgroup.clone(), found.user.clone());
                usage.named(found.pid, &found.comm, Name { rank, cgroup, user, ..Name::default() });
            }
            Process::Fork(fork) => usage.forked(fork.pid, fork.child),
            Process::Exit(exit) => usage.exited(exit.pid, ts_ns),
            Process::Library(_) => {}
        }
    }

    pub(super) fn measure_memory(&mut self, memory: &Memory) {
        if memory.op == Op::Alloc {
            let bytes = memory.size.unwrap_or(0);
            self.of(memory.pid).for_each(|sums| sums.allocated(&memory.space, bytes));
        }
        self.measure_device(memory.pid, memory.on.device);
    }

    pub(super) fn measure_device(&mut self, pid: u32, device: Option<u32>) {
        let followed = self.usage.as_mut().filter(|_| device.is_some());
        followed.and_then(|usage| usage.followed(pid)).into_iter().for_each(|process| process.used(device));
    }

    /// An outermost call ended.
    pub(super) fn measure_call(&mut self, end: &End, function: usize, role: CallRole, site: Option<Site>) {
        let Some(usage) = &mut self.usage else { return };
        let ns = end.duration_ns.unwrap_or(0);
        usage.of(end.pid).returned(role, ns);
        if let Some(process) = usage.followed(end.pid) {
            process.returned(end.tid, function, site, ns);
        }
    }

    pub(super) fn measure_launch(&mut self, pid: u32, kernel: Option<usize>) {
        self.usage.iter_mut().for_each(|usage| usage.launched(pid, kernel));
    }

    pub(super) fn measure_wait(&mut self, end: &End) {
        let ns = end.duration_ns.unwrap_or(0);
        let Some(usage) = &mut self.usage else { return };
        let sum = &mut usage.of(end.pid).sync_ns;
        *sum = sum.saturating_add(ns);
        if let Some(process) = usage.followed(end.pid) {
            process.waited(end.tid, ns);
        }
    }

    pub(super) fn measure_failures(&mut self) {
        if let Some(usage) = &mut self.usage {
            self.failures.take_news(|pid, error, count| usage.of(pid).failed(error, count));
        }
    }

    /// gpurec itself stopped the process for `ns`.
    pub fn stopped(&mut self, pid: u32, ns: u64) {
        self.usage.iter_mut().for_each(|usage| usage.stopped(pid, ns));
    }

    /// The thread of a call ended `ns` after the call began: the call will not end.
    pub fn died(&mut self, begin: u64, ns: u64) {
        if let Some(open) = self.open.get_mut(begin) {
            open.of.died_after_ns = Some(ns);
        }
    }

    /// A process whose name is not final: call `identify` with it.
    pub fn newcomer(&mut self) -> Option<u32> {
        self.usage.as_mut()?.newcomer()
    }

    pub fn identify(&mut self, pid: u32, by_linux: ByLinux) {
        if let Some(usage) = &mut self.usage {
            usage.identify(pid, by_linux);
        }
    }

    /// The sums at `at_ns`, with details of one process. None if they are not measured.
    pub fn snapshot(&mut self, at_ns: u64, detail: Option<u32>) -> Option<Snapshot> {
        let (kernels, prices) = (&self.kernels, &self.prices);
        let (functions, stacks) = (&self.functions, &self.stacks);
        let names = Names {
            kernel: &|index| kernels.name(index).to_owned(),
            function: &|index| functions.get(index).map_or("?", |tally| &tally.name).to_owned(),
            site: &|site| stacks.text(site),
            cost: &|paid: PaidCalls| prices.as_ref().map_or(0, |prices| prices.sum(paid)),
        };
        let mut snapshot = self.usage.as_mut()?.snapshot(at_ns, detail, &names);
        snapshot.gpu_busy_ns = self.gpu.busy_ns();
        snapshot.lost = self.figures.lost;
        self.unfinished_in(&mut snapshot);
        Some(snapshot)
    }

    /// As in the summary, a wait counts with its time so far, and a failure inside a call that will not end counts as
    /// one that the program saw.
    fn unfinished_in(&self, snapshot: &mut Snapshot) {
        let at_ns = snapshot.at_ns;
        for open in self.open.iter() {
            let so_far = |at_ns: u64| at_ns.saturating_sub(open.ts_ns);
            let process_died_ns = self.open.died_ns(open);
            let died = open.of.died_after_ns.or(process_died_ns.map(so_far));
            let of_process = (open.pid, process_died_ns.is_some());
            let is_wait =
                self.functions.get(open.function).is_some_and(|tally| tally.role == Some(Role::Sync));
            let ns = died.unwrap_or_else(|| so_far(at_ns));
            let part = snapshot.part_of(of_process);
            let waits = is_wait && !open.has_inside(Role::Sync.bit());
            if waits {
                part.sums.sync_ns = part.sums.sync_ns.saturating_add(ns);
            }
            if let Some(thread) = part.thread(open.tid).filter(|_| died.is_none()) {
                thread.sync_ns = thread.sync_ns.saturating_add(if waits { ns } else { 0 });
                // Only the newest is open: the ends of older ones were lost.
                if open.parent.is_none() && thread.open.as_ref().is_none_or(|(_, known)| ns < *known) {
                    thread.open = Some((self.name_of(open.function).to_owned(), ns));
                }
            }
            if let (true, Some(inside)) = (died.is_some(), &open.of.failed) {
                let sums = &mut snapshot.part_of(of_process).sums;
                self.failures.undecided_in(inside).for_each(|(error, count)| sums.failed(error, count));
            }
        }
        for thread in snapshot.processes.iter_mut().flat_map(|process| &mut process.threads) {
            let open_ns = thread.open.as_ref().map_or(0, |(_, ns)| *ns);
            thread.call_ns = thread.call_ns.saturating_add(open_ns);
        }
    }
}
