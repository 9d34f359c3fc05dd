//! A made-up job: ranks on hosts whose clocks differ, which compute, meet in collectives, and have known faults. In: a
//! plan and a seed. Out: their traces and the truth behind them. The program `make-job` (examples/) writes both to
//! files. Not here: reading traces.

mod lines;
mod plan;

use std::io::{self, Write};

use gpurec_trace::{
    Arg, Args, Begin, Body, Collective, End, Exec, Frame, Gpu, GpuKind, InFlight, Ioctl, KernelBegin,
    KernelEnd, Kind, Launch, List, Memory, Ntp, Op, Process, Retval, Stack,
};
use serde_json::{Value, json};

pub use lines::{HostClock, TraceFile};
use plan::{Comm, OPERATIONS, Operation, communicators, file_name, operation};
pub use plan::{Plan, Random};

const STREAM: u64 = 0x55aa_0000_7000;
const WAIT: &str = "cudaStreamSynchronize";
/// The stack of each call: the index is the number of the stack.
const SITES: [(&str, u32); 4] = [("forward", 31), ("all_reduce", 57), ("wait", 60), ("grow_cache", 44)];

/// One rank at work.
struct Worker {
    rank: u32,
    host: usize,
    /// The trace, and the place in it.
    file: usize,
    slot: usize,
    pid: u32,
    /// Where the thread and the stream are, in true time.
    now_ns: i64,
    gpu_ns: i64,
    /// GPU work whose record has not come: name, kind of call, start, end.
    work: Vec<(&'static str, u64, i64, i64)>,
    correlation: u32,
}

fn of_stream() -> Args<'static> {
    Args::Named(List::Owned(vec![Arg { name: "stream".into(), value: gpurec_trace::Value::Hex(STREAM) }]))
}

pub struct Job<W: Write> {
    plan: Plan,
    random: Random,
    hosts: Vec<HostClock>,
    files: Vec<TraceFile<W>>,
    workers: Vec<Worker>,
    comms: Vec<Comm>,
    /// By rank: the number of collectives at which it was last, and what that cost the others.
    last: Vec<(u64, i64)>,
    mismatch: Value,
    hang: Value,
}

impl<W: Write> Job<W> {
    /// `open` makes the output of each trace from its name.
    pub fn new(plan: Plan, mut open: impl FnMut(&str) -> io::Result<W>) -> io::Result<Job<W>> {
        let mut random = Random::new(plan.seed);
        let per_host = plan.per_host.max(1);
        let hosts: Vec<HostClock> = (0..plan.ranks.div_ceil(per_host))
            .map(|host| HostClock {
                host: format!("node{host:02}"),
                boot_id: format!("00000000-0000-4000-8000-{:012x}", random.next() >> 16),
                monotonic_ns: 1_000_000_000 + random.below(10_000_000_000_000),
                offset_ns: (random.signed() * plan.skew_ns as f64) as i64,
                drift_ppm: random.signed() * plan.drift_ppm,
                ntp: plan.ntp_error_ns.map(|max_error_ns| Ntp {
                    offset_ns: 0,
                    max_error_ns,
                    synchronized: true,
                }),
            })
            .collect();
        let (mut files, mut workers) = (Vec::new(), Vec::new());
        for rank in 0..plan.ranks {
            let (host, local) = ((rank / per_host) as usize, rank % per_host);
            let Some(clock) = hosts.get(host) else { continue };
            if local == 0 || !plan.by_node {
                let start_ns = random.below(50_000_000);
                let in_file = if plan.by_node { per_host.min(plan.ranks - rank) } else { 1 };
                let out = open(&file_name(&plan, &clock.host, rank))?;
                files.push(TraceFile::new(out, clock.clone(), start_ns, in_file as usize, plan.gpu)?);
            }
            let slot = if plan.by_node { local as usize } else { 0 };
            workers.push(Worker {
                rank,
                host,
                file: files.len() - 1,
                slot,
                pid: 1000 + local,
                now_ns: 60_000_000,
                gpu_ns: 0,
                work: Vec::new(),
                correlation: 0,
            });
        }
        let comms = communicators(&plan, hosts.len(), &mut random);
        let last = vec![(0, 0); plan.ranks as usize];
        let mut job = Job {
            plan,
            random,
            hosts,
            files,
            workers,
            comms,
            last,
            mismatch: Value::Null,
            hang: Value::Null,
        };
        (0..job.workers.len()).for_each(|rank| job.start(rank));
        Ok(job)
    }

    /// Makes all of it. Returns the outputs and the truth.
    pub fn run(mut self) -> io::Result<(Vec<W>, Value)> {
        for step in 0..self.plan.steps {
            self.step(step);
            let until = self.workers.iter().map(|worker| worker.now_ns).min().unwrap_or(0);
            for file in &mut self.files {
                file.flush(until)?;
            }
        }
        let open = if self.plan.hang { self.stand_still() } else { Vec::new() };
        let end_ns = self.workers.iter().map(|worker| worker.now_ns).max().unwrap_or(0) + 1_000_000;
        let truth = self.truth();
        let mut outputs = Vec::new();
        for (at, file) in self.files.into_iter().enumerate() {
            let mut of_file = Vec::new();
            for (rank, mut call, began_ns) in open.iter().cloned() {
                if let Some(worker) = self.workers.get(rank).filter(|worker| worker.file == at) {
                    call.duration_ns = (end_ns - began_ns) as u64;
                    of_file.push((worker.slot, call));
                }
            }
            outputs.push(file.finish(end_ns, of_file)?);
        }
        Ok((outputs, truth))
    }

    fn truth(&self) -> Value {
        let host = |clock: &HostClock| json!({ "host": clock.host, "offset_ns": clock.offset_ns, "drift_ppm": clock.drift_ppm });
        let rank = |worker: &Worker| {
            let host = self.hosts.get(worker.host).map(|clock| clock.host.as_str()).unwrap_or_default();
            json!({ "rank": worker.rank, "host": host, "file": file_name(&self.plan, host, worker.rank) })
        };
        let last = self.last.iter().enumerate().filter(|(_, (count, _))| *count > 0);
        let stragglers: Vec<Value> = last
            .map(|(rank, (count, cost))| json!({ "rank": rank, "collectives": count, "cost_ns": cost }))
            .collect();
        json!({
            "job": format!("job-{}", self.plan.seed),
            "ranks": self.workers.iter().map(rank).collect::<Vec<_>>(),
            "start_realtime_ns": self.hosts.first().map(|clock| clock.realtime(0)),
            "clocks": self.hosts.iter().map(host).collect::<Vec<_>>(),
            "straggler": self.plan.straggler,
            "slow_gpu": self.plan.slow_gpu,
            "stragglers": stragglers,
            "mismatch": self.mismatch,
            "hang": self.hang,
        })
    }

    fn add(&mut self, rank: usize, body: impl FnOnce(u32) -> Body<'static>) -> u64 {
        let Some(worker) = self.workers.get(rank) else { return 0 };
        let Some(file) = self.files.get_mut(worker.file) else { return 0 };
        file.add(worker.slot, worker.now_ns, body(worker.pid))
    }

    fn pass(&mut self, rank: usize, ns: i64) {
        if let Some(worker) = self.workers.get_mut(rank) {
            worker.now_ns += ns;
        }
    }

    fn start(&mut self, rank: usize) {
        let command = vec!["python3".to_owned(), "train.py".to_owned()];
        let world_size = Some(self.plan.ranks);
        let local_rank = Some(rank as u32 % self.plan.per_host.max(1));
        let tid = self.workers.get(rank).map_or(0, |worker| worker.pid);
        let job = Some(format!("job-{}", self.plan.seed));
        let exec = Exec { tid, command, local_rank, world_size, job, ..Exec::default() };
        let number = self.workers.get(rank).map(|worker| worker.rank);
        self.add(rank, |pid| Body::Process(Process::Exec(Exec { pid, rank: number, ..exec })));
        if self.workers.get(rank).is_some_and(|worker| worker.slot > 0) {
            return;
        }
        for (stack, (function, line)) in SITES.into_iter().enumerate() {
            let frame =
                Frame::Python { function: function.into(), file: "/job/train.py".into(), line: Some(line) };
            self.add(rank, |pid| {
                Body::Stack(Stack { stack: stack as u64, pid, frames: vec![frame], cut: false })
            });
        }
    }

    fn begin(
        &mut self,
        rank: usize,
        name: &'static str,
        parent: Option<u64>,
        stack: u64,
        launch: Option<&'static str>,
    ) -> u64 {
        let launch = launch.map(|kernel| Launch {
            kernel: Some(kernel.into()),
            grid: Some([64, 1, 1]),
            block: Some([256, 1, 1]),
            shared: Some(0),
            stream: Some(STREAM),
            ..Launch::default()
        });
        let begin = |pid| Begin {
            name: name.into(),
            pid,
            tid: pid,
            depth: u32::from(parent.is_some()),
            parent,
            args: if name == WAIT { of_stream() } else { Args::default() },
            stack: Some(stack),
            launch,
            no_return: None,
            carried: false,
        };
        self.add(rank, |pid| Body::Begin(begin(pid)))
    }

    fn end(&mut self, rank: usize, name: &'static str, begin: u64, ns: i64) {
        let (duration_ns, retval) = (Some(ns as u64), Some(Retval::Number(0)));
        let end =
            |pid| End { name: name.into(), pid, tid: pid, begin, duration_ns, retval, ..End::default() };
        self.add(rank, |pid| Body::End(end(pid)));
    }

    /// A launch, whose kernel runs when the stream has done what came before. Returns its start and the call.
    fn launch(&mut self, rank: usize, kernel: &'static str, parent: Option<u64>, stack: u64) -> (i64, u64) {
        let call = self.begin(rank, "cudaLaunchKernel", parent, stack, Some(kernel));
        let ns = 3_000 + self.random.below(2_000);
        self.pass(rank, ns);
        self.end(rank, "cudaLaunchKernel", call, ns);
        let Some(worker) = self.workers.get(rank) else { return (0, call) };
        (worker.gpu_ns.max(worker.now_ns + 2_000), call)
    }

    /// The kernel ran from then to then.
    fn ran(&mut self, rank: usize, kernel: &'static str, call: u64, from_ns: i64, to_ns: i64) {
        if let Some(worker) = self.workers.get_mut(rank) {
            worker.gpu_ns = to_ns;
            worker.work.push((kernel, call, from_ns, to_ns));
        }
    }

    fn step(&mut self, step: u32) {
        let all = 0..self.workers.len();
        for rank in all.clone() {
            self.compute(rank, step);
        }
        self.collective(0, OPERATIONS.get(step as usize % OPERATIONS.len()), step);
        for comm in 1..self.comms.len() {
            self.collective(comm, OPERATIONS.first(), u32::MAX);
        }
        if step % 4 == 3 {
            self.ring(u64::from(step / 4));
        }
        for rank in all {
            self.wait(rank);
            // The next step begins at about the same time everywhere.
            let next_ns = 60_000_000 + i64::from(step + 1) * self.plan.step_ns + self.random.below(20_000);
            if let Some(worker) = self.workers.get_mut(rank) {
                worker.now_ns = worker.now_ns.max(next_ns);
            }
        }
    }

    fn compute(&mut self, rank: usize, step: u32) {
        let own_ns = 100_000 + self.random.below(60_000);
        self.pass(rank, own_ns);
        let slow = self.plan.slow_gpu == Some(rank as u32);
        for _ in 0..self.plan.launches {
            let (from_ns, call) = self.launch(rank, "void gemm<4>(float*, int)", None, 0);
            let ns = 20_000 + self.random.below(2_000);
            self.ran(
                rank,
                "void gemm<4>(float*, int)",
                call,
                from_ns,
                from_ns + if slow { ns * 3 / 2 } else { ns },
            );
            let own_ns = 1_000 + self.random.below(1_000);
            self.pass(rank, own_ns);
        }
        if self.plan.straggler == Some(rank as u32) && step % 5 < 3 {
            self.allocate(rank);
        }
    }

    /// A slow allocation: nvidia.ko takes most of it.
    fn allocate(&mut self, rank: usize) {
        const PTR: u64 = 0x7f00_0000_0000;
        let call = self.begin(rank, "cudaMalloc", None, 3, None);
        self.pass(rank, 20_000);
        let ioctl = self.ioctl(rank, call);
        let ns = 1_500_000 + self.random.below(500_000);
        self.pass(rank, ns);
        let end = |pid| KernelEnd {
            kind: Kind::Kernel,
            name: "nvidia_ioctl".into(),
            pid,
            tid: pid,
            begin: ioctl,
            duration_ns: Some(ns as u64),
            retval: Some(Retval::Number(0)),
            status: Some("NV_OK".into()),
            error: None,
            out: None,
            ended: gpurec_trace::EndKind::Returned,
        };
        self.add(rank, |pid| Body::KernelEnd(end(pid)));
        self.end(rank, "cudaMalloc", call, ns + 20_000);
        for op in [Op::Alloc, Op::Free] {
            let call = match op {
                Op::Alloc => call,
                Op::Free => {
                    let call = self.begin(rank, "cudaFree", None, 3, None);
                    self.pass(rank, 9_000);
                    self.end(rank, "cudaFree", call, 9_000);
                    call
                }
            };
            let memory = |pid| Memory {
                pid,
                tid: pid,
                begin: Some(call),
                on: Default::default(),
                name: if op == Op::Alloc { "cudaMalloc" } else { "cudaFree" }.into(),
                op,
                space: "device".into(),
                ptr: PTR,
                size: Some(1 << 26),
                total_allocated: Some(if op == Op::Alloc { 1 << 26 } else { 0 }),
                earlier: false,
                missed: false,
                runtime: true,
                carried: false,
                stack: None,
            };
            self.add(rank, |pid| Body::Memory(memory(pid)));
        }
    }

    fn ioctl(&mut self, rank: usize, parent: u64) -> u64 {
        let begin = |pid| KernelBegin {
            kind: Kind::Kernel,
            name: "nvidia_ioctl".into(),
            pid,
            tid: pid,
            depth: 1,
            parent: Some(parent),
            ioctl: Some(Ioctl {
                device: "nvidiactl".into(),
                cmd: 0xc020_462b,
                request: "NV_ESC_RM_ALLOC".into(),
                detail: Args::default(),
                unknown: false,
            }),
            args: None,
            thread: None,
            carried: false,
        };
        self.add(rank, |pid| Body::KernelBegin(begin(pid)))
    }

    /// The call of a collective. Returns when the rank arrives, when its kernel can start, and the call that launched it.
    fn enqueue(
        &mut self,
        comm: usize,
        rank: usize,
        operation: &Operation,
        line: Collective<'static>,
    ) -> (i64, i64, u64) {
        if self.plan.groups {
            let start = self.begin(rank, "ncclGroupStart", None, 1, None);
            self.end(rank, "ncclGroupStart", start, 0);
        }
        let began_ns = self.workers.get(rank).map_or(0, |worker| worker.now_ns);
        let mut call = self.begin(rank, operation.call, None, 1, None);
        let of_comm = self.comms.get(comm);
        let line = Collective {
            begin: call,
            name: operation.call.into(),
            comm: of_comm.map(|comm| comm.name.clone().into()),
            rank: of_comm
                .and_then(|comm| comm.ranks.iter().position(|it| *it == rank))
                .map(|rank| rank as u32),
            nranks: of_comm.map(|comm| comm.ranks.len() as u32),
            op: operation.op.into(),
            dtype: Some("bfloat16".into()),
            bytes: line.count.map(|count| count * 2),
            stream: Some(STREAM),
            root: operation.root,
            redop: operation.redop.map(Into::into),
            group: self.plan.groups.then_some(call),
            ..line
        };
        self.add(rank, |pid| Body::Collective(Collective { pid, tid: pid, ..line }));
        let mut name = operation.call;
        if self.plan.groups {
            self.end(rank, name, call, 0);
            name = "ncclGroupEnd";
            call = self.begin(rank, name, None, 1, None);
        }
        let (from_ns, launch) = self.launch(rank, operation.kernel, Some(call), 1);
        let ns = 1_000 + self.random.below(500);
        self.pass(rank, ns);
        let now_ns = self.workers.get(rank).map_or(0, |worker| worker.now_ns);
        self.end(rank, name, call, now_ns - began_ns);
        (if self.plan.gpu { from_ns } else { began_ns }, from_ns, launch)
    }

    fn collective(&mut self, comm: usize, operation: Option<&Operation>, step: u32) {
        let (Some(of_comm), Some(operation)) = (self.comms.get_mut(comm), operation) else { return };
        let (ranks, seq, name) = (of_comm.ranks.clone(), of_comm.seq, of_comm.name.clone());
        of_comm.seq += 1;
        let odd = (self.plan.mismatch && step == self.plan.steps / 2).then_some(ranks.len() / 3);
        let mut started = Vec::new();
        for (at, rank) in ranks.iter().enumerate() {
            let count = if odd == Some(at) { operation.count / 2 } else { operation.count };
            let line = Collective { seq: Some(seq), count: Some(count), ..Collective::default() };
            started.push(self.enqueue(comm, *rank, operation, line));
        }
        if let Some(at) = odd {
            let rank = ranks.get(at);
            self.mismatch = json!({ "comm": name, "seq": seq, "field": "count", "rank": rank, "value": operation.count / 2, "others": operation.count });
        }
        let last_ns = started.iter().map(|(_, from_ns, _)| *from_ns).max().unwrap_or(0);
        let root_ns =
            operation.root.and_then(|root| started.get(root as usize)).map(|(_, from_ns, _)| *from_ns);
        let transfer_ns = 25_000 + self.random.below(15_000);
        for (rank, (_, from_ns, launch)) in ranks.iter().zip(&started) {
            // In a broadcast, each rank waits only for the root.
            let met_ns = root_ns.map_or(last_ns, |root_ns| root_ns.max(*from_ns));
            let to_ns = met_ns + transfer_ns + self.random.below(2_000);
            self.ran(*rank, operation.kernel, *launch, *from_ns, to_ns);
        }
        let latest = started.iter().zip(&ranks).max_by_key(|((arrived_ns, ..), _)| *arrived_ns);
        if let Some(((latest_ns, ..), rank)) = latest {
            let cost: i64 = started.iter().map(|(arrived_ns, ..)| latest_ns - arrived_ns).sum();
            if let Some((count, sum)) = self.last.get_mut(*rank) {
                *count += 1;
                *sum += cost;
            }
        }
    }

    /// Each rank sends to the next.
    fn ring(&mut self, pseq: u64) {
        const SEND: Operation = operation("Send", "ncclSend", "ncclDevKernel_SendRecv");
        const RECV: Operation = operation("Recv", "ncclRecv", "ncclDevKernel_SendRecv");
        let count = self.workers.len();
        if count < 2 {
            return;
        }
        let mut started = vec![(0, 0, 0); count];
        for rank in 0..count {
            for (operation, peer) in [(SEND, (rank + 1) % count), (RECV, (rank + count - 1) % count)] {
                let line = Collective {
                    peer: Some(peer as u32),
                    pseq: Some(pseq),
                    count: Some(4096),
                    ..Collective::default()
                };
                let start = self.enqueue(0, rank, &operation, line);
                if let Some(known) = started.get_mut(rank).filter(|_| operation.op == "Recv") {
                    *known = start;
                }
            }
        }
        let last_ns = started.iter().map(|(_, from_ns, _)| *from_ns).max().unwrap_or(0);
        for (rank, (_, from_ns, launch)) in started.into_iter().enumerate() {
            self.ran(rank, "ncclDevKernel_SendRecv", launch, from_ns, last_ns + 8_000);
        }
    }

    /// Waits for the stream. The records of its work come after that.
    fn wait(&mut self, rank: usize) {
        let call = self.begin(rank, WAIT, None, 2, None);
        let extra_ns = 3_000 + self.random.below(2_000);
        let Some(worker) = self.workers.get_mut(rank) else { return };
        let began_ns = worker.now_ns;
        worker.now_ns = worker.now_ns.max(worker.gpu_ns) + extra_ns;
        let ns = worker.now_ns - began_ns;
        self.end(rank, WAIT, call, ns);
        self.deliver(rank);
    }

    fn deliver(&mut self, rank: usize) {
        let Some(worker) = self.workers.get_mut(rank) else { return };
        let work = std::mem::take(&mut worker.work);
        let Some(file) = self.files.get_mut(worker.file).filter(|_| self.plan.gpu) else { return };
        let at_ns = worker.now_ns + 5_000;
        for (name, begin, from_ns, to_ns) in work {
            worker.correlation += 1;
            let gpu = Gpu {
                name: name.into(),
                kind: GpuKind::Kernel,
                pid: worker.pid,
                grid: Some([64, 1, 1]),
                block: Some([256, 1, 1]),
                stream: 7,
                context: 1,
                correlation: worker.correlation,
                begin: Some(begin),
                duration_ns: (to_ns - from_ns) as u64,
                ..Gpu::default()
            };
            file.add_late(worker.slot, from_ns, at_ns, Body::Gpu(gpu));
        }
    }

    /// One rank does not come to the last collective. Returns the calls in flight, with their ranks and begins.
    fn stand_still(&mut self) -> Vec<(usize, InFlight, i64)> {
        let absent = self.workers.len() / 2 + 1;
        let absent = if absent < self.workers.len() { absent } else { 0 };
        let seq = self.comms.first().map_or(0, |comm| comm.seq);
        let name = self.comms.first().map(|comm| comm.name.clone());
        self.hang = json!({ "comm": name, "seq": seq, "missing": [absent], "call": "cudaMemcpy", "request": "NV_ESC_RM_ALLOC" });
        let mut open = Vec::new();
        for rank in 0..self.workers.len() {
            let in_call = if rank == absent { "cudaMemcpy" } else { WAIT };
            if rank != absent
                && let Some(operation) = OPERATIONS.first()
            {
                let line =
                    Collective { seq: Some(seq), count: Some(operation.count), ..Collective::default() };
                self.enqueue(0, rank, operation, line);
            }
            let call = self.begin(rank, in_call, None, if rank == absent { 3 } else { 2 }, None);
            let began_ns = self.workers.get(rank).map_or(0, |worker| worker.now_ns);
            let ioctl = (rank == absent).then(|| self.ioctl(rank, call));
            let tid = self.workers.get(rank).map_or(0, |worker| worker.pid);
            let named = [(in_call, Some(call)), ("nvidia_ioctl", ioctl)];
            for (name, begin) in named.into_iter().filter_map(|(name, begin)| Some((name, begin?))) {
                let call =
                    InFlight { pid: tid, tid, name: name.to_owned(), begin, duration_ns: 0, died: false };
                open.push((rank, call, began_ns));
            }
            self.pass(rank, 5_000_000_000);
        }
        open
    }
}
