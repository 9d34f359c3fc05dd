//! Reads one trace of a job up to a time. In: its lines. Out: arrivals at collectives, each when its times are known;
//! and at the end what each process did last. Not here: other traces.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::{LONGEST_NAME, entry, short};
use gpurec_trace::hash::Map;
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{
    Body, Brief, CallBegin, CallEnd, Collective, ExitStatus, Frame, GpuKind, GpuWork, Instant, KernelBegin,
    KernelEnd, Line, Notes, Ntp, Process, Reader, Stack,
};

use super::arrival::{ALL, Arrival, Before, IN_JOB, Key, What, Who};
use super::communicators::{Making, collective, hex, making};
use super::domain::{Shift, worst};
use super::names::{Names, OTHERS, OwnNames};
use super::process::{InCall, Last, Left, Member, Pending, ProcessState, ThreadState};
use crate::driver::OFF_CPU;
use crate::only::{Only, Selection, Sieve};
use crate::recent::Recent;
use crate::stacks::call_site;

/// Limits: processes, threads and stacks of a trace, and collectives of a process, and of all, that wait for their times.
const MOST: usize = 65_536;
const MOST_PENDING: usize = 4096;
const MOST_PENDING_OF_ALL: usize = 1 << 17;
/// Limit on threads of a process whose calls are listed at a hang.
const MOST_IN_CALLS: usize = 256;
/// Limits on bytes of an Xid's text and of a reason.
const LONGEST_XID: usize = 512;
const LONGEST_REASON: usize = 4096;
/// Calls inside NCCL of a trace, by which GPU work is found: a MiB.
const MOST_IN_NCCL: usize = 65_536;
/// Calls at a time that make communicators.
const MOST_MAKING: usize = 4096;
/// A GPU record comes within seconds; after this the collective does without.
const LATEST_NS: u64 = 30_000_000_000;
/// The arrivals of one round, so that a round takes bounded memory.
const MOST_IN_ROUND: usize = 4096;

/// What is kept of an open call.
pub struct Open {
    stack: Option<u64>,
    /// The stream whose work it waits for. Of a request to nvidia.ko it is 0.
    waits_for: Option<u64>,
}

/// The stream of a call that waits for the whole device.
const DEVICE: u64 = u64::MAX;

pub type Input = Reader<Box<dyn Read + Send>>;

/// A trace that is being read. The reader lends its lines to the rest.
pub struct Follower<'a> {
    pub file: PathBuf,
    input: Input,
    sieve: Option<Sieve<'a>>,
    pub error: Option<String>,
    pub seen: Seen,
}

/// What the lines so far say.
pub struct Seen {
    pub trace: u32,
    pub shift: Shift,
    names: OwnNames,
    /// The time of the last line, in that of the trace.
    ts_ns: u64,
    pub is_over: bool,
    /// The arrivals of this round.
    pub arrivals: Vec<Arrival>,
    /// The worst that NTP says of the clock in this round.
    pub ntp: Option<Ntp>,
    has_gpu: bool,
    calls: Calls<Open>,
    /// By the number of a function: whether its calls wait.
    waits: Vec<Option<bool>>,
    pub processes: Map<u32, ProcessState>,
    threads: Map<u32, ThreadState>,
    left: Left,
    /// Collectives that wait for their times, of all processes.
    waiting: usize,
    /// By the call.
    making: Map<u64, Making>,
    /// The call of NCCL around each recent call.
    in_nccl: Recent<u64>,
    /// Call sites by stack.
    sites: Map<u64, u32>,
    pub xids: Vec<String>,
    pub world_size: Option<u32>,
    pub job: Option<String>,
    /// None: there is no end line.
    pub complete: Option<bool>,
    pub reasons: Vec<String>,
    pub unmatched: u64,
    /// Collectives of communicators and processes beyond the limits.
    pub left_out: u64,
}

impl<'a> Follower<'a> {
    /// The header was read before. `has_gpu`: it announces GPU work.
    pub fn new(
        file: PathBuf,
        trace: u32,
        input: Input,
        shift: Shift,
        names: Names,
        only: &'a Only,
        has_gpu: bool,
    ) -> Follower<'a> {
        let seen = Seen {
            trace,
            shift,
            names: OwnNames::new(names),
            ts_ns: 0,
            is_over: false,
            arrivals: Vec::new(),
            ntp: None,
            has_gpu,
            calls: Calls::default(),
            waits: Vec::new(),
            processes: Map::default(),
            threads: Map::default(),
            left: Left::default(),
            waiting: 0,
            making: Map::default(),
            in_nccl: Recent::at_most(MOST_IN_NCCL),
            sites: Map::default(),
            xids: Vec::new(),
            world_size: None,
            job: None,
            complete: None,
            reasons: Vec::new(),
            unmatched: 0,
            left_out: 0,
        };
        Follower { file, input, sieve: (!only.is_all()).then(|| Sieve::new(only)), error: None, seen }
    }

    pub fn notes(&self) -> &Notes {
        self.input.notes()
    }

    /// Reads up to that time. Stops before it if the round has enough arrivals.
    pub fn advance(&mut self, until_ns: i64) {
        let until = self.seen.shift.ts(until_ns);
        while !self.seen.is_over
            && (self.seen.ts_ns as i64) < until
            && self.seen.arrivals.len() < MOST_IN_ROUND
        {
            let read = match &mut self.sieve {
                Some(sieve) => sieved(&mut self.input, sieve, &mut self.seen),
                None => in_brief(&mut self.input, &mut self.seen),
            };
            match read {
                Ok(true) => {}
                Ok(false) => self.seen.finish(),
                Err(error) => {
                    self.error = Some(format!("{error:#}"));
                    self.seen.finish();
                }
            }
        }
    }
}

/// Reads a line. False: there are no more.
fn in_brief(input: &mut Input, seen: &mut Seen) -> anyhow::Result<bool> {
    let taken = input.pass_brief(|line| match line {
        Brief::Begin(begin) => seen.begin(begin),
        Brief::End(end) => seen.end(end),
        Brief::Work(work) => seen.work(work),
        Brief::Other(line) => seen.line(line),
    })?;
    Ok(taken.is_some())
}

/// The same for a part of the trace.
fn sieved(input: &mut Input, sieve: &mut Sieve, seen: &mut Seen) -> anyhow::Result<bool> {
    let Some(line) = input.next()? else { return Ok(false) };
    let line = &line;
    match sieve.line(line)? {
        Selection::Yes => seen.line(line),
        Selection::As(line) => seen.line(&line),
        Selection::After(first) => {
            seen.line(&first);
            seen.line(line);
        }
        Selection::No => {}
    }
    Ok(true)
}

impl Seen {
    /// How far it has been read.
    pub fn reached_ns(&self) -> i64 {
        if self.is_over { i64::MAX } else { self.end_ns() }
    }

    pub fn end_ns(&self) -> i64 {
        self.shift.time(self.ts_ns)
    }

    fn line(&mut self, line: &Line) {
        if !matches!(line.body, Body::Gpu(_)) {
            self.ts_ns = line.ts_ns;
        }
        match &line.body {
            // A call whose end is not watched encloses nothing.
            Body::Begin(begin) if begin.no_return.is_some() => {}
            Body::Begin(begin) => self.begin(&CallBegin::of(line, begin)),
            Body::End(end) => {
                self.made(end.begin, end.out.as_ref().and_then(|out| hex(out.get("comm")?)));
                self.end(&CallEnd::of(line, end));
            }
            Body::KernelBegin(begin) => self.kernel_begin(line, begin),
            Body::KernelEnd(end) => self.kernel_end(end),
            Body::Instant(instant) => self.instant(instant),
            Body::Collective(collective) => self.collective(line.ts_ns, collective),
            Body::Gpu(gpu) => self.work(&GpuWork::of(line, gpu)),
            Body::Stack(stack) => self.stack(stack),
            Body::Process(process) => self.process(line.ts_ns, process),
            Body::Clock(clock) => self.ntp = worst(self.ntp, clock.ntp),
            Body::Xid(xid) if self.xids.len() < 100 => {
                let at = gpurec_trace::text::clean(&xid.message);
                let text = format!("Xid {} on {}: {at}", xid.xid, xid.device);
                self.xids.push(short(&text, LONGEST_XID));
            }
            Body::Finish(finish) => {
                self.complete = Some(finish.complete);
                let reasons = finish.incomplete_because.iter().take(5);
                self.reasons = reasons.map(|reason| short(reason, LONGEST_REASON)).collect();
            }
            _ => {}
        }
    }

    fn begin(&mut self, begin: &CallBegin) {
        self.ts_ns = begin.ts_ns;
        let name = self.names.number(begin.name);
        let waits = self.waits.get(name as usize).copied().flatten();
        let waits = waits.unwrap_or_else(|| self.learn(name, begin.name));
        let waits_for = if waits { stream_of(begin) } else { None };
        let open = Open { stack: begin.stack, waits_for };
        let is_nccl = begin.name.starts_with("nccl");
        let collective = if is_nccl { collective(begin, &mut self.names) } else { None };
        if is_nccl
            && self.making.len() < MOST_MAKING
            && let Some(member) = making(begin, &mut self.names)
        {
            self.making.insert(begin.event_id, Making { pid: begin.pid, at_ns: begin.ts_ns, member });
        }
        if let Some(thread) = known_or_new(&mut self.threads, begin.tid) {
            if begin.parent.is_none() {
                thread.enters(begin.ts_ns);
            }
            if is_nccl {
                thread.enters_nccl(begin.event_id, begin.ts_ns, begin.stack, collective);
                if let Some(group) = thread.ends_group(begin.name)
                    && let Some(process) = self.processes.get_mut(&begin.pid)
                {
                    process.ends_group(begin.tid, group, begin.event_id);
                }
            }
            if let Some(nccl) = thread.in_nccl().filter(|_| self.has_gpu) {
                self.in_nccl.push(begin.event_id, nccl);
            }
        }
        let thread = (begin.pid, begin.tid);
        let call = Call::of_thread(thread, begin.event_id, begin.ts_ns, begin.parent, name as usize, open);
        self.calls.begin(call, 0);
    }

    /// A call ended. If it was to make a communicator, the process is a member, also if the call failed: the others wait
    /// for this rank in their first collective.
    fn made(&mut self, begin: u64, handle: Option<u64>) {
        if self.making.is_empty() {
            return;
        }
        let Some(Making { pid, at_ns, member }) = self.making.remove(&begin) else { return };
        let at_ns = self.shift.time(at_ns);
        if let Some(process) = known_or_new(&mut self.processes, pid) {
            process.made(handle, member, at_ns, &mut self.left);
        }
    }

    /// Whether calls of the function wait for the GPU.
    fn learn(&mut self, name: u32, text: &str) -> bool {
        let (at, waits) = (name as usize, FunctionTraits::of(text).is_sync());
        if self.waits.len() <= at {
            self.waits.resize(at + 1, None);
        }
        if let Some(known) = self.waits.get_mut(at) {
            *known = Some(waits);
        }
        waits
    }

    fn end(&mut self, end: &CallEnd) {
        self.ts_ns = end.ts_ns;
        let ns = end.duration_ns.unwrap_or(0);
        self.made(end.begin, None);
        let call = self.calls.end(end.begin, end.duration_ns);
        let name = call.as_ref().map_or_else(|| self.names.number(end.name), |call| call.function as u32);
        if let Some(process) = known_or_new(&mut self.processes, end.pid) {
            process.called(name, ns, &mut self.left);
        }
        if let Some(thread) = self.threads.get_mut(&end.tid) {
            thread.leaves_nccl(end.begin);
            if let Some(call) = call.as_ref().filter(|call| call.parent.is_none()) {
                thread.leaves(end.ts_ns, name, ns, call.of.stack);
            }
        }
        if let Some((stream, call)) = call.and_then(|call| Some((call.of.waits_for?, call)))
            && end.succeeded
        {
            self.waited(end.pid, call.id, stream, end.ts_ns);
        }
    }

    /// A wait ended, which began with the call `before`: the work enqueued before it is done.
    fn waited(&mut self, pid: u32, before: u64, stream: u64, ts_ns: u64) {
        let ended_ns = self.shift.time(ts_ns);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let mut done = Vec::new();
        for it in &mut process.pending {
            if it.call < before && (stream == DEVICE || it.stream == stream) && it.arrival.ended_ns.is_none()
            {
                it.arrival.ended_ns = Some(ended_ns);
                done.push(it.arrival.key);
            }
        }
        done.into_iter().for_each(|key| process.done(key));
        if self.has_gpu {
            return;
        }
        let is_done = |it: &&Pending| it.arrival.ended_ns.is_some();
        self.arrivals.extend(process.pending.iter().filter(is_done).map(|it| it.arrival));
        let before = process.pending.len();
        process.pending.retain(|it| it.arrival.ended_ns.is_none());
        self.waiting = self.waiting.saturating_sub(before - process.pending.len());
    }

    fn kernel_begin(&mut self, line: &Line, begin: &KernelBegin) {
        let request = begin.ioctl.as_ref().map(|ioctl| ioctl.request.as_ref());
        let name = self.names.number(request.unwrap_or(&begin.name));
        let open = Open { stack: None, waits_for: request.map(|_| 0) };
        self.calls.begin(Call::span(line.event_id, line.ts_ns, begin, name as usize, open), 0);
    }

    fn kernel_end(&mut self, end: &KernelEnd) {
        let call = self.calls.end(end.begin, end.duration_ns).filter(|call| call.of.waits_for.is_some());
        if let (Some(call), Some(thread)) = (call, self.threads.get_mut(&end.tid)) {
            thread.asked(call.function as u32, end.duration_ns.unwrap_or(0));
        }
    }

    fn instant(&mut self, instant: &Instant) {
        if instant.name == OFF_CPU
            && let Some(thread) = self.threads.get_mut(&instant.tid)
        {
            thread.slept(instant.duration_ns.unwrap_or(0));
        }
    }

    fn collective(&mut self, ts_ns: u64, line: &Collective) {
        let thread = entry(&mut self.threads, line.tid, MOST).map(|thread| {
            thread.group = line.group;
            thread.collective(line.begin)
        });
        let nccl = thread.flatten();
        let began_ns = || self.calls.get(line.begin).map_or(ts_ns, |call| call.ts_ns);
        let enqueued_ns = self.shift.time(nccl.as_ref().map_or_else(began_ns, |nccl| nccl.ts_ns));
        let site_of = |stack: Option<u64>| stack.and_then(|it| self.sites.get(&it)).copied().unwrap_or(0);
        let own_site = site_of(nccl.as_ref().and_then(|nccl| nccl.stack));
        let longest_site = site_of(nccl.as_ref().and_then(|nccl| nccl.longest));
        let before =
            nccl.as_ref().map(|nccl| Before { site: longest_site, ..nccl.before }).unwrap_or_default();
        let named = |names: &mut OwnNames, text: &Option<std::borrow::Cow<str>>| {
            text.as_ref().map(|it| names.number(it))
        };
        let what = What {
            op: self.names.number(&line.op),
            count: line.count,
            dtype: named(&mut self.names, &line.dtype),
            root: line.root,
            redop: named(&mut self.names, &line.redop),
        };
        let comm = line.comm.as_ref().map_or(OTHERS, |comm| self.names.number(comm));
        if line.comm.is_some() && comm == OTHERS {
            self.left_out += 1;
            return;
        }
        let Some(process) = entry(&mut self.processes, line.pid, MOST) else {
            self.left_out += 1;
            return;
        };
        let rank = line.rank.or(process.rank.map(|rank| rank | IN_JOB));
        let key = match (line.seq, line.peer, line.pseq) {
            _ if comm == OTHERS => None,
            (Some(seq), ..) => Some(Key { comm, from: ALL, to: ALL, seq }),
            (None, Some(peer), Some(seq)) => line.rank.map(|rank| match line.op == "Recv" {
                true => Key { comm, from: peer, to: rank, seq },
                false => Key { comm, from: rank, to: peer, seq },
            }),
            _ => None,
        };
        let (Some(rank), Some(key)) = (rank, key) else {
            self.unmatched += 1;
            return;
        };
        if key.is_collective() {
            let (seq, is_open, is_done) = (Some(key.seq), false, false);
            let last =
                Last { rank, nranks: line.nranks, seq, is_open, is_done, what, enqueued_ns, site: own_site };
            process.reached(comm, last, &mut self.left);
            let member = Member { comm, rank, nranks: line.nranks };
            process.has_handle(nccl.as_ref().map_or(0, |nccl| nccl.comm), member, &mut self.left);
        }
        let arrival = Arrival {
            who: Who { trace: self.trace, pid: line.pid },
            key,
            rank,
            nranks: line.nranks,
            what,
            site: own_site,
            enqueued_ns,
            started_ns: None,
            ended_ns: None,
            before,
        };
        let Collective { begin: call, tid, group, .. } = *line;
        process.pending.push_back(Pending { call, stream: line.stream.unwrap_or(0), tid, group, arrival });
        let oldest_ns = self.shift.time(ts_ns.saturating_sub(LATEST_NS));
        self.waiting += 1;
        while process.pending.len() > MOST_PENDING
            || self.waiting > MOST_PENDING_OF_ALL
            || process.pending.front().is_some_and(|it| it.arrival.enqueued_ns < oldest_ns)
        {
            self.waiting = self.waiting.saturating_sub(1);
            self.arrivals.extend(process.pending.pop_front().map(|it| it.arrival));
        }
    }

    fn work(&mut self, work: &GpuWork) {
        self.has_gpu = true;
        let Some(process) = known_or_new(&mut self.processes, work.pid) else { return };
        if work.kind == GpuKind::Kernel {
            process.ran(self.names.number(work.name), work.duration_ns, &mut self.left);
        }
        let Some(nccl) = work.begin.and_then(|begin| self.in_nccl.get(begin)) else { return };
        // In its first collectives NCCL sets itself up, with copies.
        if work.kind != GpuKind::Kernel || !work.name.contains("nccl") {
            return;
        }
        let started_ns = self.shift.time(work.ts_ns);
        let ended_ns = started_ns.saturating_add(work.duration_ns as i64);
        let (started_ns, ended_ns) = (Some(started_ns), Some(ended_ns));
        // NCCL puts the collectives of a group into one kernel.
        let taken = process.take(*nccl);
        taken.iter().for_each(|arrival| process.done(arrival.key));
        let joined = taken.into_iter();
        self.waiting = self.waiting.saturating_sub(joined.len());
        self.arrivals.extend(joined.map(|arrival| Arrival { started_ns, ended_ns, ..arrival }));
    }

    fn stack(&mut self, stack: &Stack) {
        if self.sites.len() < MOST {
            let site = call_site(&stack.frames).and_then(|at| stack.frames.get(at)).map(Frame::text);
            let site = site.map_or(0, |text| self.names.number(&text));
            self.sites.insert(stack.stack, site);
        }
    }

    fn process(&mut self, ts_ns: u64, process: &Process) {
        self.calls.process(ts_ns, process);
        if let Some((pid, _, rank)) = process.named()
            && let Some(known) = entry(&mut self.processes, pid, MOST)
        {
            known.rank = rank.or(known.rank);
        }
        let of_job = match process {
            Process::Exec(exec) => (exec.world_size, &exec.job),
            Process::Found(found) => (found.world_size, &found.job),
            _ => (None, &None),
        };
        self.world_size = self.world_size.max(of_job.0);
        if self.job.is_none() {
            self.job = of_job.1.as_ref().map(|job| short(job, LONGEST_NAME));
        }
        match process {
            Process::Fork(fork) => {
                let rank = self.processes.get(&fork.pid).and_then(|parent| parent.rank);
                if let Some(child) = entry(&mut self.processes, fork.child, MOST) {
                    child.rank = rank;
                }
            }
            Process::Exit(exit) => {
                if let Some(known) = self.processes.get_mut(&exit.pid) {
                    known.ended = Some(match exit.status {
                        ExitStatus::Code(code) => format!("ended with status {code}"),
                        ExitStatus::Signal(number) => {
                            format!("killed by {}", gpurec_trace::signal_name(number))
                        }
                    });
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self) {
        self.is_over = true;
        for process in self.processes.values_mut() {
            self.arrivals.extend(process.pending.drain(..).map(|it| it.arrival));
        }
    }

    /// By process, the collectives whose calls have not returned: these have no line. A process that has ended stands in
    /// its last one.
    pub fn open_collectives(&self) -> BTreeMap<u32, BTreeMap<u32, Last>> {
        let mut found: BTreeMap<u32, BTreeMap<u32, Last>> = BTreeMap::new();
        for stands in self.threads.values().filter_map(|thread| thread.stands) {
            let Some(process) = self.processes.get(&stands.pid) else { continue };
            let Some(Member { comm, rank, nranks }) = process.member(stands.comm) else { continue };
            let before = process.comms.get(&comm).and_then(|last| last.seq);
            let last = Last {
                rank,
                nranks,
                seq: Some(before.map_or(0, |seq| seq.saturating_add(1))),
                is_open: true,
                is_done: false,
                what: What { op: stands.op, ..What::default() },
                enqueued_ns: self.shift.time(stands.ts_ns),
                site: stands.stack.and_then(|stack| self.sites.get(&stack)).copied().unwrap_or(0),
            };
            found.entry(stands.pid).or_default().insert(comm, last);
        }
        found
    }

    /// The calls that each process was in at the end. The innermost call of a thread comes first.
    pub fn open_calls(&self) -> Map<u32, Vec<&Call<Open>>> {
        let mut by_pid: Map<u32, Vec<&Call<Open>>> = Map::default();
        for call in self.calls.nested() {
            by_pid.entry(call.pid).or_default().push(call);
        }
        by_pid
    }

    /// The same of one process, by thread.
    pub fn in_calls(&self, calls: &[&Call<Open>], names: &Names) -> Vec<InCall> {
        let mut found: Vec<InCall> = Vec::new();
        for call in calls {
            if found.last().is_none_or(|last| last.tid != call.tid) {
                if found.len() >= MOST_IN_CALLS {
                    break;
                }
                found.push(InCall { tid: call.tid, ..InCall::default() });
            }
            let Some(thread) = found.last_mut() else { continue };
            let name = names.text(call.function as u32);
            if call.is_span {
                thread.request.get_or_insert(name);
            } else {
                thread.calls.insert(0, name);
            }
            thread.for_ns = self.ts_ns.saturating_sub(call.ts_ns);
            let site = call.of.stack.and_then(|stack| self.sites.get(&stack)).filter(|site| **site != 0);
            thread.site = site.map(|site| names.text(*site)).or(thread.site.take());
        }
        found.retain(|thread| !thread.calls.is_empty() || thread.request.is_some());
        found
    }
}

/// The state of a process or thread. Most lines are of one that is known.
fn known_or_new<T: Default>(table: &mut Map<u32, T>, id: u32) -> Option<&mut T> {
    if table.len() >= MOST && !table.contains_key(&id) {
        return None;
    }
    Some(table.entry(id).or_default())
}

/// The stream that a call waits for; `DEVICE` if it waits for all. None: the call does not say.
fn stream_of(begin: &CallBegin) -> Option<u64> {
    match begin.name {
        "cudaDeviceSynchronize" | "cuCtxSynchronize" | "cuCtxSynchronize_v2" => Some(DEVICE),
        name if name.starts_with("cudaStreamSynchronize") || name.starts_with("cuStreamSynchronize") => {
            hex(begin.arg("stream").or_else(|| begin.arg("hStream"))?)
        }
        _ => None,
    }
}
