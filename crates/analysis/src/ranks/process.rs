//! One process of a trace: what its threads do between collectives, and the collectives that wait for their GPU times.
//! In: outermost calls, requests, off-CPU time. Out: what came before a collective, and sums. Not here: lines.

use std::collections::VecDeque;

use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::hash::Map;

use super::arrival::{Arrival, Before, CALLS, Key, What};

/// Limits: functions, kernels and communicators of a process, those of all processes of a trace, and functions of a
/// thread between two collectives.
const MOST_NAMES: usize = 4096;
const MOST_SUMS: usize = 1 << 18;
const MOST_COMMS: usize = 1 << 16;
const MOST_BETWEEN: usize = 32;

/// A number of calls or kernels, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
}

impl Sum {
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// A rank's last collective of a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    pub rank: u32,
    pub nranks: Option<u32>,
    /// None: it has made the communicator, and called no collective yet.
    pub seq: Option<u64>,
    /// The call has not returned. Of what it was called with, only the operation is known.
    pub is_open: bool,
    /// It has ended on the GPU, so all ranks came to it.
    pub is_done: bool,
    pub what: What,
    pub enqueued_ns: i64,
    /// The call site; 0 if not known.
    pub site: u32,
}

/// What a process is in a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub comm: u32,
    pub rank: u32,
    pub nranks: Option<u32>,
}

/// A call in which a thread was when the trace ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InCall {
    pub tid: u32,
    /// The outermost first.
    pub calls: Vec<String>,
    pub request: Option<String>,
    pub site: Option<String>,
    pub for_ns: u64,
}

/// A collective whose times are not known yet.
pub struct Pending {
    /// The event_id of the call that starts its kernel: its own, or `ncclGroupEnd`.
    pub call: u64,
    pub stream: u64,
    pub tid: u32,
    pub group: Option<u64>,
    pub arrival: Arrival,
}

/// What the processes of a trace may still keep together.
#[derive(Default)]
pub struct Left {
    sums: BytesLeft<MOST_SUMS>,
    comms: BytesLeft<MOST_COMMS>,
}

#[derive(Default)]
pub struct ProcessState {
    /// From its environment.
    pub rank: Option<u32>,
    /// Its collectives whose times are not known yet, in order.
    pub pending: VecDeque<Pending>,
    /// By name of the function or kernel.
    pub calls: Map<u32, Sum>,
    /// It has called functions that are not in `calls`.
    pub has_more_calls: bool,
    pub kernels: Map<u32, Sum>,
    pub comms: Map<u32, Last>,
    /// The communicators by their handles.
    handles: Map<u64, Member>,
    pub ended: Option<String>,
}

impl ProcessState {
    pub fn called(&mut self, name: u32, ns: u64, left: &mut Left) {
        self.has_more_calls |= !add_to(&mut self.calls, name, ns, left);
    }

    pub fn ran(&mut self, kernel: u32, ns: u64, left: &mut Left) {
        add_to(&mut self.kernels, kernel, ns, left);
    }

    /// The group of a thread ends: this call starts the kernels of its collectives.
    pub fn ends_group(&mut self, tid: u32, group: u64, call: u64) {
        let of_group = self.pending.iter_mut().rev().filter(|it| it.tid == tid && it.group == Some(group));
        of_group.for_each(|it| it.call = call);
    }

    /// Takes the collectives that a call has started.
    pub fn take(&mut self, call: u64) -> Vec<Arrival> {
        let Some(first) = self.pending.iter().position(|it| it.call == call) else { return Vec::new() };
        let mut taken = Vec::new();
        let mut at = first;
        // The collectives of a group follow each other, but for those of other threads.
        while let Some(pending) = self.pending.get(at) {
            if pending.call == call {
                taken.extend(self.pending.remove(at).map(|it| it.arrival));
            } else if pending.group.is_none() || at > first + MOST_BETWEEN {
                break;
            } else {
                at += 1;
            }
        }
        taken
    }

    /// A call made a communicator. `handle`: none if the program gets it later.
    pub fn made(&mut self, handle: Option<u64>, member: Member, at_ns: i64, left: &mut Left) {
        let Member { comm, rank, nranks } = member;
        if !self.comms.contains_key(&comm) {
            let (what, is_done) = (What::default(), false);
            let last =
                Last { rank, nranks, seq: None, is_open: false, is_done, what, enqueued_ns: at_ns, site: 0 };
            self.reached(comm, last, left);
        }
        self.has_handle(handle.unwrap_or(0), member, left);
    }

    /// A call with this handle was one of this communicator.
    pub fn has_handle(&mut self, handle: u64, member: Member, left: &mut Left) {
        let known = self.handles.contains_key(&handle);
        if handle != 0 && (known || (self.handles.len() < MOST_NAMES && left.comms.take(1))) {
            self.handles.insert(handle, member);
        }
    }

    pub fn member(&self, handle: u64) -> Option<Member> {
        self.handles.get(&handle).copied()
    }

    /// A collective has ended on the GPU.
    pub fn done(&mut self, key: Key) {
        if let Some(last) = self.comms.get_mut(&key.comm).filter(|last| last.seq == Some(key.seq)) {
            last.is_done |= key.is_collective();
        }
    }

    pub fn reached(&mut self, comm: u32, last: Last, left: &mut Left) {
        let known = self.comms.contains_key(&comm);
        let fits = known || (self.comms.len() < MOST_NAMES && left.comms.take(1));
        // A process without any would not count as a rank.
        if fits || self.comms.is_empty() {
            self.comms.insert(comm, last);
        }
    }
}

/// What a thread has done since its last collective.
#[derive(Default)]
pub struct ThreadState {
    /// It has had a collective.
    is_known: bool,
    calls: Vec<(u32, u64)>,
    ioctls: Vec<(u32, u64)>,
    own_ns: u64,
    off_cpu_ns: u64,
    /// When its last outermost call ended.
    free_since_ns: Option<u64>,
    longest_ns: u64,
    /// The stack of the longest call.
    stack: Option<u64>,
    /// The calls of NCCL that it is in, the outermost first: ncclBcast calls ncclBroadcast.
    in_nccl: Vec<u64>,
    /// How many groups are open, one in the other, and the group of its last collective, which has not ended.
    groups: u32,
    pub group: Option<u64>,
    /// Its last outermost call of NCCL, and the calls of NCCL in that one.
    nccl: Vec<NcclCall>,
    /// The collective whose call it is in.
    pub stands: Option<Stands>,
}

/// A collective whose call has not returned.
#[derive(Clone, Copy)]
pub struct Stands {
    pub call: u64,
    pub pid: u32,
    /// The handle of the communicator.
    pub comm: u64,
    pub op: u32,
    pub ts_ns: u64,
    pub stack: Option<u64>,
}

/// A call of NCCL, which may be a collective.
#[derive(Clone, Copy)]
pub struct NcclCall {
    call: u64,
    pub ts_ns: u64,
    /// What came before it, and the stack of the longest call then.
    pub before: Before,
    pub longest: Option<u64>,
    pub stack: Option<u64>,
    /// The handle of its communicator; 0 if it has none.
    pub comm: u64,
}

impl ThreadState {
    pub fn enters(&mut self, ts_ns: u64) {
        if let Some(since_ns) = self.free_since_ns.take() {
            self.own_ns = self.own_ns.saturating_add(ts_ns.saturating_sub(since_ns));
        }
        // They are empty, unless an end was lost.
        self.in_nccl.clear();
        self.stands = None;
    }

    /// An outermost call ended.
    pub fn leaves(&mut self, ts_ns: u64, name: u32, ns: u64, stack: Option<u64>) {
        self.free_since_ns = Some(ts_ns);
        add(&mut self.calls, name, ns);
        if ns > self.longest_ns {
            (self.longest_ns, self.stack) = (ns, stack);
        }
    }

    pub fn asked(&mut self, request: u32, ns: u64) {
        add(&mut self.ioctls, request, ns);
    }

    pub fn slept(&mut self, ns: u64) {
        self.off_cpu_ns = self.off_cpu_ns.saturating_add(ns);
    }

    /// The innermost call of NCCL that it is in.
    pub fn in_nccl(&self) -> Option<u64> {
        self.in_nccl.last().copied()
    }

    pub fn enters_nccl(&mut self, call: u64, ts_ns: u64, stack: Option<u64>, collective: Option<Stands>) {
        if self.in_nccl.is_empty() {
            self.nccl.clear();
        }
        self.stands = collective.or(self.stands);
        let comm = collective.map_or(0, |stands| stands.comm);
        let around = self.nccl.first().copied();
        let before = around.map_or_else(|| self.before(), |nccl| nccl.before);
        let stack = stack.or(around.and_then(|nccl| nccl.stack));
        if self.in_nccl.len() < MOST_BETWEEN && self.nccl.len() < MOST_BETWEEN {
            self.in_nccl.push(call);
            self.nccl.push(NcclCall { call, ts_ns, before, longest: self.stack, stack, comm });
        }
    }

    pub fn leaves_nccl(&mut self, call: u64) {
        self.stands.take_if(|stands| stands.call == call);
        if let Some(at) = self.in_nccl.iter().position(|it| *it == call) {
            self.in_nccl.truncate(at);
        }
    }

    /// A call of NCCL begins. Returns the group that it ends: PyTorch puts groups into groups, and the outermost launches.
    pub fn ends_group(&mut self, name: &str) -> Option<u64> {
        match name {
            "ncclGroupStart" => self.groups += 1,
            "ncclGroupEnd" => {
                self.groups = self.groups.saturating_sub(1);
                return self.group.take_if(|_| self.groups == 0);
            }
            _ => {}
        }
        None
    }

    fn before(&mut self) -> Before {
        self.calls.sort_unstable_by_key(|(name, ns)| (std::cmp::Reverse(*ns), *name));
        let mut calls = [(0, 0); CALLS];
        calls.iter_mut().zip(&self.calls).for_each(|(to, call)| *to = *call);
        Before {
            is_known: self.is_known,
            calls,
            own_ns: self.own_ns,
            off_cpu_ns: self.off_cpu_ns,
            ioctl: self.ioctls.iter().max_by_key(|(_, ns)| *ns).copied().unwrap_or_default(),
            site: 0,
        }
    }

    /// A collective. From here on the sums are those of the next one.
    pub fn collective(&mut self, call: u64) -> Option<NcclCall> {
        let nccl = *self.nccl.iter().find(|nccl| nccl.call == call)?;
        self.is_known = true;
        self.calls.clear();
        self.ioctls.clear();
        (self.own_ns, self.off_cpu_ns, self.longest_ns, self.stack) = (0, 0, 0, None);
        Some(nccl)
    }
}

/// False: it is not in the sums, which have no room.
fn add_to(sums: &mut Map<u32, Sum>, name: u32, ns: u64, left: &mut Left) -> bool {
    let known = sums.contains_key(&name) || (sums.len() < MOST_NAMES && left.sums.take(1));
    if known {
        sums.entry(name).or_default().add(ns);
    }
    known
}

fn add(to: &mut Vec<(u32, u64)>, name: u32, ns: u64) {
    if let Some((_, sum)) = to.iter_mut().find(|(known, _)| *known == name) {
        *sum = sum.saturating_add(ns);
    } else if to.len() < MOST_BETWEEN {
        to.push((name, ns));
    }
}
