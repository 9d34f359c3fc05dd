//! Reads one trace after another and yields events with a place: it matches calls with their ends, puts times on one
//! axis, and decides for all formats what the trace leaves open (such as which call an end belongs to when lines are
//! missing). Memory grows with the number of threads seen and of open calls.

use super::sink::{At, Cause, Link, Links, Sink, Source, WorkLink};
use super::tracks::{Lane, Open, Tracks};
use crate::gpu::StreamKey;
use crate::ranks::Placed;
use crate::recent::{Recent, announces};
use crate::stacks::Stacks;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::MOST_OPEN;
use gpurec_trace::time;
use gpurec_trace::{Body, Gpu, Header, Instant, Kind, Line, Memory, Process};

/// Limit on bytes held for open calls.
const MOST_HELD: usize = 96 << 20;
const DEEPEST: usize = 4096;
/// With more threads than this, one that is in no call has no room for any.
const MANY_THREADS: usize = 4096;

/// Sets the flows of GPU work apart from those of ioctls.
const GPU_FLOW: u64 = 1 << 63;

#[derive(Default)]
pub struct Walk<S: Sink> {
    pub sink: S,
    tracks: Tracks<S::CallState>,
    several: bool,
    /// The wall clock at 0 of the output.
    base_ns: Option<i64>,
    /// Where this trace is on the time line that several traces share.
    placed: Option<Placed>,
    /// The latest time of this trace, in the output.
    last_ns: u64,
    /// Offset that makes an event_id unique over all traces.
    flows: u64,
    next_flow: u64,
    /// Whether this trace has ioctls.
    driver: bool,
    /// Whether it may have GPU work from here on, and the calls that submitted it.
    follows_gpu: bool,
    submitted: Recent<At>,
    open: usize,
    odd: Differences,
    stacks: Stacks,
}

/// Where the output differs from the trace.
#[derive(Default)]
struct Differences {
    ends: u64,
    calls: u64,
    closed: u64,
    backwards: u64,
    unaligned: bool,
}

/// A call or a driver function that begins.
struct BeginEvent<'a> {
    pid: u32,
    tid: u32,
    depth: u32,
    parent: Option<u64>,
    is_call: bool,
    is_ioctl: bool,
    /// The name of a kernel thread.
    thread: Option<&'a str>,
}

impl<S: Sink + Default> Walk<S> {
    /// `base_ns` is known beforehand if several traces are merged.
    pub fn new(sink: S, several: bool, base_ns: Option<i64>) -> Walk<S> {
        let mut walk = Walk { sink, several, ..Walk::default() };
        if let Some(base_ns) = base_ns {
            walk.base(base_ns);
        }
        walk
    }

    fn base(&mut self, base_ns: i64) {
        self.base_ns = Some(base_ns);
        self.sink.clock(u64::try_from(base_ns).unwrap_or(0));
    }

    /// Starts another trace.
    pub fn source(&mut self, source: &Source, placed: Option<Placed>) {
        let suffix = if self.several { format!(" ({})", source.file) } else { String::new() };
        self.tracks.next_source(suffix);
        self.sink.source(source);
        (self.last_ns, self.driver, self.follows_gpu) = (0, false, false);
        self.submitted = Recent::default();
        self.stacks = Stacks::default();
        self.odd = Differences { unaligned: self.several && placed.is_none(), ..Differences::default() };
        self.placed = placed;
        self.flows = self.next_flow;
    }

    /// Converts a time of the trace to one of the output.
    fn time(&self, ts_ns: u64) -> u64 {
        let Some((placed, base_ns)) = self.placed.as_ref().zip(self.base_ns) else { return ts_ns };
        u64::try_from(placed.time(ts_ns).saturating_sub(base_ns)).unwrap_or(0)
    }

    pub fn add(&mut self, line: &Line) {
        let ts_ns = self.time(line.ts_ns);
        self.last_ns = self.last_ns.max(ts_ns);
        self.follows_gpu = self.follows_gpu || announces(line);
        if self.sink.takes_stacks() {
            self.stacks.line(line);
        }
        match &line.body {
            Body::Begin(call) => {
                let &gpurec_trace::Begin { pid, tid, depth, parent, .. } = call;
                let began =
                    BeginEvent { pid, tid, depth, parent, is_call: true, is_ioctl: false, thread: None };
                self.begin(ts_ns, line, &began);
            }
            Body::KernelBegin(call) => {
                let &gpurec_trace::KernelBegin { pid, tid, depth, parent, .. } = call;
                let (is_ioctl, thread) = (call.ioctl.is_some(), call.thread.as_deref());
                self.begin(
                    ts_ns,
                    line,
                    &BeginEvent { pid, tid, depth, parent, is_call: false, is_ioctl, thread },
                );
            }
            Body::End(end) => self.end(ts_ns, line, (end.pid, end.tid), end.begin),
            Body::KernelEnd(end) => self.end(ts_ns, line, (end.pid, end.tid), end.begin),
            Body::Memory(memory) => self.memory(ts_ns, line, memory),
            Body::Transfer(transfer) => self.in_thread(ts_ns, line, (transfer.pid, transfer.tid)),
            Body::Block(block) => self.in_thread(ts_ns, line, (block.pid, block.tid)),
            Body::Collective(it) => self.in_thread(ts_ns, line, (it.pid, it.tid)),
            Body::Instant(instant) => self.instant(ts_ns, line, instant),
            Body::Xid(_) => self.in_lane(ts_ns, line, Lane::Xid, None),
            Body::Lost(_) => self.in_lane(ts_ns, line, Lane::Lost, None),
            Body::Process(process) => self.process(ts_ns, line, process),
            Body::Budget(_) | Body::Suspend(_) | Body::Finish(_) => {
                self.in_lane(ts_ns, line, Lane::Recording, None);
            }
            Body::Header(header) => self.header(line, header),
            Body::Gpu(gpu) => self.work(ts_ns, line, gpu),
            Body::Device(_) | Body::Clock(_) | Body::Stack(_) | Body::Unknown(_) => {
                self.sink.other(line, &self.stacks);
            }
        }
    }

    fn begin(&mut self, ts_ns: u64, line: &Line, began: &BeginEvent) {
        let Some(index) = self.tracks.thread(&mut self.sink, began.pid, began.tid, began.thread) else {
            return;
        };
        let ts_ns = self.in_order(index, ts_ns);
        // The call has fewer enclosing calls than are open: ends are missing.
        self.close(index, usize::try_from(began.depth).unwrap_or(DEEPEST), ts_ns, Cause::Missing);
        let submits = began.is_call && self.follows_gpu && FunctionTraits::of(line.body.head().1).submits();
        let work = submits.then(|| GPU_FLOW | self.number(line.event_id));
        let links = Links { ioctl: self.linked(index, line.event_id, began), work };
        let Some(thread) = self.tracks.threads.get_mut(index) else { return };
        if self.open >= MOST_OPEN || thread.open.len() >= DEEPEST || self.sink.held() > MOST_HELD {
            self.odd.calls += 1;
            return;
        }
        let process = self.tracks.processes.get_mut(thread.process);
        let rank = process.as_ref().and_then(|process| process.rank);
        if let Some(process) = process.filter(|_| !thread.busy) {
            thread.busy = true;
            process.busy.push(index);
        }
        let at = At { ts_ns, track: thread.track };
        if submits {
            self.submitted.push(line.event_id, at);
        }
        let held = self.sink.begin(at, line, rank, links, &self.stacks);
        if thread.open.capacity() == 0 {
            // Most threads of a trace with very many are never in more than one call.
            thread.open.reserve_exact(1);
        }
        thread.open.push(Open { event_id: line.event_id, ts_ns, is_call: began.is_call, held });
        self.open += 1;
    }

    /// The time of an event in a thread, corrected so that it never goes back.
    fn in_order(&mut self, index: usize, ts_ns: u64) -> u64 {
        let Some(thread) = self.tracks.threads.get_mut(index) else { return ts_ns };
        if ts_ns < thread.latest_ns {
            self.odd.backwards += 1;
        }
        thread.latest_ns = thread.latest_ns.max(ts_ns);
        thread.latest_ns
    }

    /// A number of the line that is unique over all traces.
    fn number(&mut self, event_id: u64) -> u64 {
        let number = self.flows.saturating_add(event_id);
        self.next_flow = self.next_flow.max(number.saturating_add(1));
        number
    }

    /// Work on the GPU, on the lane of its stream.
    fn work(&mut self, ts_ns: u64, line: &Line, gpu: &Gpu) {
        let to_ns = ts_ns.saturating_add(gpu.duration_ns);
        let Some(track) = self.tracks.stream(&mut self.sink, StreamKey::of(gpu), ts_ns, to_ns) else {
            return;
        };
        let process = self.tracks.process(gpu.pid);
        let rank = self.tracks.processes.get(process).and_then(|process| process.rank);
        let from = gpu.begin.and_then(|begin| Some((begin, *self.submitted.get(begin)?)));
        let link = from.map(|(begin, from)| WorkLink {
            flow: GPU_FLOW | self.number(begin),
            id: self.number(line.event_id),
            from,
        });
        self.sink.work(At { ts_ns, track }, line, gpu.duration_ns, link, rank, &self.stacks);
    }

    fn linked(&mut self, index: usize, event_id: u64, began: &BeginEvent) -> Link {
        self.driver |= !began.is_call;
        if !self.driver {
            return Link::No;
        }
        let number = self.number(event_id);
        if began.is_call {
            return Link::Out(number);
        }
        let call = self.tracks.threads.get(index).and_then(|thread| thread.open.last());
        match call {
            Some(call) if began.is_ioctl && call.is_call && Some(call.event_id) == began.parent => {
                let from = self.flows.saturating_add(call.event_id);
                Link::In { call: from, ioctl: number, from_ns: call.ts_ns }
            }
            _ => Link::No,
        }
    }

    fn end(&mut self, ts_ns: u64, line: &Line, (pid, tid): (u32, u32), begin: u64) {
        let Some(index) = self.tracks.thread(&mut self.sink, pid, tid, None) else { return };
        let open = self.tracks.threads.get(index).map(|thread| &thread.open);
        let Some(at) = open.and_then(|open| open.iter().rposition(|call| call.event_id == begin)) else {
            self.odd.ends += 1;
            self.sink.other(line, &self.stacks);
            return;
        };
        let ts_ns = self.in_order(index, ts_ns);
        self.close(index, at + 1, ts_ns, Cause::Missing);
        // Of very many threads, few are in calls at once.
        let is_many = self.tracks.threads.len() > MANY_THREADS;
        let Some(thread) = self.tracks.threads.get_mut(index) else { return };
        let Some(call) = thread.open.pop() else { return };
        if is_many && thread.open.is_empty() {
            thread.open = Vec::new();
        }
        self.open -= 1;
        self.sink.end(At { ts_ns, track: thread.track }, line, call.held);
    }

    /// Ends all calls of a thread except the outermost `keep`.
    fn close(&mut self, index: usize, keep: usize, ts_ns: u64, cause: Cause) {
        let Some(thread) = self.tracks.threads.get_mut(index) else { return };
        while thread.open.len() > keep {
            let Some(call) = thread.open.pop() else { return };
            self.open -= 1;
            self.odd.closed += u64::from(cause == Cause::Missing);
            self.sink.close(At { ts_ns, track: thread.track }, call.held, cause);
        }
    }

    /// Ends all calls of an exited process.
    fn close_process(&mut self, process: usize, ts_ns: u64) {
        let Some(process) = self.tracks.processes.get_mut(process) else { return };
        let mut busy = std::mem::take(&mut process.busy);
        busy.sort_unstable();
        for index in busy {
            let Some(thread) = self.tracks.threads.get_mut(index) else { return };
            thread.busy = false;
            let ts_ns = ts_ns.max(thread.latest_ns);
            self.close(index, 0, ts_ns, Cause::Died);
        }
    }

    fn memory(&mut self, ts_ns: u64, line: &Line, memory: &Memory) {
        self.in_thread(ts_ns, line, (memory.pid, memory.tid));
        let process = self.tracks.process(memory.pid);
        if let Some((pid, space)) = self.tracks.space(&mut self.sink, process, &memory.space) {
            space.live = memory.after(space.live);
            self.sink.counter(ts_ns, space, pid);
        }
    }

    fn in_thread(&mut self, ts_ns: u64, line: &Line, (pid, tid): (u32, u32)) {
        let Some(index) = self.tracks.thread(&mut self.sink, pid, tid, None) else { return };
        let ts_ns = self.in_order(index, ts_ns);
        let Some(thread) = self.tracks.threads.get(index) else { return };
        let rank = self.tracks.processes.get(thread.process).and_then(|process| process.rank);
        self.sink.mark(At { ts_ns, track: thread.track }, line, None, rank, &self.stacks);
    }

    fn in_lane(&mut self, ts_ns: u64, line: &Line, lane: Lane, duration_ns: Option<u64>) {
        let track = self.tracks.lane(&mut self.sink, lane);
        self.sink.mark(At { ts_ns, track }, line, duration_ns, None, &self.stacks);
    }

    fn instant(&mut self, ts_ns: u64, line: &Line, instant: &Instant) {
        let cpu = instant.cpu.unwrap_or(0);
        match instant.kind {
            Kind::Scheduler if instant.name == "off_cpu" => {
                let Some(index) = self.tracks.thread(&mut self.sink, instant.pid, instant.tid, None) else {
                    return;
                };
                let Some(track) = self.tracks.off_cpu(&mut self.sink, index, instant.tid) else { return };
                self.sink.mark(At { ts_ns, track }, line, instant.duration_ns, None, &self.stacks);
            }
            Kind::Scheduler => {
                let lane = Lane::Interrupt(cpu, instant.name.as_ref().into());
                self.in_lane(ts_ns, line, lane, instant.duration_ns);
            }
            Kind::Kernel if instant.tid == 0 => self.in_lane(ts_ns, line, Lane::Cpu(cpu), None),
            Kind::Kernel => self.in_thread(ts_ns, line, (instant.pid, instant.tid)),
        }
    }

    fn process(&mut self, ts_ns: u64, line: &Line, process: &Process) {
        match process {
            Process::Exec(exec) => {
                let index = self.tracks.process(exec.pid);
                self.close_process(index, ts_ns);
                self.tracks.spaces_to_zero(&mut self.sink, index, ts_ns);
                self.tracks.exec(&mut self.sink, exec.pid, &exec.command, exec.rank);
            }
            Process::Found(_) => {
                if let Some((pid, command, rank)) = process.named() {
                    self.tracks.exec(&mut self.sink, pid, &command, rank);
                }
            }
            Process::Fork(fork) => {
                let index = self.tracks.process(fork.child);
                // The pid belonged to another process before.
                if let Some(exit_ns) = self.tracks.processes.get(index).and_then(|process| process.exit_ns) {
                    self.close_process(index, exit_ns);
                }
                self.tracks.fork(fork.pid, fork.child);
            }
            Process::Exit(exit) => {
                // The trace may still have ends for calls of its other threads.
                let index = self.tracks.process(exit.pid);
                self.tracks.spaces_to_zero(&mut self.sink, index, ts_ns);
                if let Some(process) = self.tracks.processes.get_mut(index) {
                    process.exit_ns = Some(ts_ns);
                }
            }
            Process::Library(_) => {}
        }
        self.in_lane(ts_ns, line, Lane::Recording, None);
    }

    /// The first line: the reader ends a trace before a second header.
    fn header(&mut self, line: &Line, header: &Header) {
        if let (None, Some(begun)) = (self.base_ns, time::nanoseconds(&header.start)) {
            self.base(begun);
        }
        self.driver |= header.hooks.contains_key("kernel");
        self.in_lane(self.time(line.ts_ns), line, Lane::Recording, None);
    }

    fn close_all(&mut self) {
        for index in 0..self.tracks.threads.len() {
            let Some(thread) = self.tracks.threads.get(index) else { return };
            let exit = self.tracks.processes.get(thread.process).and_then(|process| process.exit_ns);
            let (end_ns, cause) =
                exit.map_or((self.last_ns, Cause::InFlight), |exit_ns| (exit_ns, Cause::Died));
            self.close(index, 0, end_ns.max(thread.latest_ns), cause);
        }
    }

    /// Finishes a trace. `notes` are the reader's; the result adds those about the export.
    pub fn source_ends(&mut self, mut notes: Vec<String>) -> Vec<String> {
        self.close_all();
        notes.extend(self.sink.source_ends(&self.stacks));
        notes.extend(self.odd.sentences(self.tracks.left_out, self.tracks.left_out_work()));
        if !notes.is_empty() {
            let track = self.tracks.lane(&mut self.sink, Lane::Recording);
            for text in &notes {
                self.sink.note(At { ts_ns: self.last_ns, track }, text);
            }
        }
        notes
    }
}

impl Differences {
    fn sentences(&self, left_out: u64, left_out_work: u64) -> impl Iterator<Item = String> + use<> {
        let counted = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        [
            counted(self.ends, "ends of calls whose begin is not in the trace are not in the export"),
            counted(
                self.calls,
                "calls are not in the export: too many are open at once, so ends must be missing",
            ),
            counted(
                self.closed,
                "calls have no end in the trace and end in the export where the next line shows it",
            ),
            counted(
                self.backwards,
                "events are earlier than the one before them in their thread and were moved to it",
            ),
            self.unaligned.then(|| {
                "no header says when a recording in it began, so its times are not aligned with the others"
                    .to_owned()
            }),
            counted(left_out, "events of threads beyond the first 262144 are not in the export"),
            counted(left_out_work, "records of GPU work are not in the export: too many overlap in one stream, or there are too many streams"),
        ]
        .into_iter()
        .flatten()
    }
}
