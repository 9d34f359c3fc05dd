//! Dumps of random recordings, cut at random places: each is a whole trace of its part.
//!
//! In: a seed. Out: a recording of several processes with nested calls, memory, stacks, work on the GPU, process exits;
//! dumps of it, compared with the whole recording.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{Dumper, Ending};
use super::kept::read;
use super::state::State;
use crate::pipeline::stops::Stops;
use crate::pipeline::tests::Random;
use gpurec_trace::{
    self as trace, Args, Begin, Block, Body, Device, End, EndKind, Exec, Exit, ExitStatus, Fork, Frame, Gpu,
    GpuAccount, GpuKind, GpuSource, Header, Instant, KernelBegin, KernelEnd, Kind, Library, Line, LineWriter,
    Memory, Op, Process, Reader, Retval, Stack, Transfer, Where,
};

/// A recording as lines of text, and the calls whose threads ended, each before the line with that event_id.
#[derive(Default)]
struct Recording {
    lines: Vec<Vec<u8>>,
    died: Vec<(u64, u64)>,
}

struct Maker {
    random: Random,
    to: Recording,
    ts_ns: u64,
    /// Open calls by thread: event_id, and whether it is the driver's.
    open: BTreeMap<(u32, u32), Vec<(u64, bool)>>,
    live: BTreeMap<(u32, u64), u64>,
    pids: Vec<u32>,
    next_pid: u32,
    /// The process of each stack, by the stack's number.
    stacks: Vec<u32>,
    submitted: Vec<(u32, u64)>,
}

const ALLOC: &str = "cuMemAlloc_v2";
const FREE: &str = "cuMemFree_v2";

impl Maker {
    fn push(&mut self, body: Body) -> u64 {
        self.ts_ns += self.random.below(2_000_000);
        self.push_at(self.ts_ns, body)
    }

    fn push_at(&mut self, ts_ns: u64, body: Body) -> u64 {
        let event_id = self.to.lines.len() as u64;
        let mut writer = LineWriter::new(Vec::new());
        writer.write(&Line { event_id, ts_ns, body }).unwrap();
        let mut text = writer.into_inner().unwrap();
        text.pop();
        self.to.lines.push(text);
        event_id
    }

    fn process(&mut self) {
        let pid = self.next_pid;
        self.next_pid += 1;
        let command = vec!["train".to_owned()];
        match self.pids.first().copied() {
            Some(parent) if self.random.below(2) == 0 => {
                self.push(Body::Process(Process::Fork(Fork { pid: parent, tid: parent, child: pid })));
            }
            _ => {
                let exec = Exec { pid, tid: pid, command, rank: Some(1), ..Exec::default() };
                self.push(Body::Process(Process::Exec(exec)));
            }
        }
        self.pids.push(pid);
    }

    fn thread(&mut self) -> (u32, u32) {
        let pid = self.pids[self.random.below(self.pids.len() as u64) as usize];
        (pid, pid * 10 + self.random.below(2) as u32)
    }

    fn stack(&mut self, pid: u32) -> Option<u64> {
        if self.random.below(3) == 0 {
            return None;
        }
        let known: Vec<u64> =
            (0..self.stacks.len() as u64).filter(|n| self.stacks[*n as usize] == pid).collect();
        if !known.is_empty() && self.random.below(4) != 0 {
            return Some(known[self.random.below(known.len() as u64) as usize]);
        }
        let number = self.stacks.len() as u64;
        self.stacks.push(pid);
        let frame =
            Frame::Python { function: "step".into(), file: "train.py".into(), line: Some(number as u32) };
        self.push(Body::Stack(Stack { stack: number, pid, frames: vec![frame], cut: false }));
        Some(number)
    }

    fn begin(&mut self, (pid, tid): (u32, u32), name: &'static str) -> u64 {
        let stack = self.stack(pid);
        let open = self.open.entry((pid, tid)).or_default();
        let (depth, parent) = (open.len() as u32, open.last().map(|(id, _)| *id));
        let stack = stack.filter(|_| depth == 0);
        let is_span = depth > 0 && self.random.below(3) == 0;
        let body = if is_span {
            let (kind, name, ioctl) = (Kind::Kernel, "nvidia_ioctl".into(), None);
            let args = None;
            Body::KernelBegin(KernelBegin {
                kind,
                name,
                pid,
                tid,
                depth,
                parent,
                ioctl,
                args,
                thread: None,
                carried: false,
            })
        } else {
            Body::Begin(Begin {
                name: name.into(),
                pid,
                tid,
                depth,
                parent,
                args: Args::raw(&[1, 2]),
                stack,
                launch: None,
                no_return: (self.random.below(40) == 0).then(|| "elsewhere".into()),
                carried: false,
            })
        };
        let returns = !matches!(&body, Body::Begin(begin) if begin.no_return.is_some());
        let id = self.push(body);
        if returns {
            self.open.entry((pid, tid)).or_default().push((id, is_span));
        }
        self.submitted.push((pid, id));
        id
    }

    fn end(&mut self, (pid, tid): (u32, u32)) {
        let Some((begin, is_span)) = self.open.get_mut(&(pid, tid)).and_then(Vec::pop) else { return };
        if is_span {
            let (kind, name, duration_ns) = (Kind::Kernel, "nvidia_ioctl".into(), Some(5));
            let (retval, status, error, out, ended) =
                (Some(Retval::Number(0)), None, None, None, EndKind::Returned);
            let end =
                KernelEnd { kind, name, pid, tid, begin, duration_ns, retval, status, error, out, ended };
            self.push(Body::KernelEnd(end));
            return;
        }
        let retval = Some(Retval::Number(0));
        self.push(Body::End(End {
            name: ALLOC.into(),
            pid,
            tid,
            begin,
            duration_ns: Some(9),
            retval,
            ..End::default()
        }));
        match self.random.below(4) {
            0 => {
                let ptr = 0x1000 + self.random.below(50);
                if self.live.contains_key(&(pid, ptr)) {
                    self.memory((pid, tid), begin, ptr, Op::Free);
                } else {
                    self.memory((pid, tid), begin, ptr, Op::Alloc);
                }
            }
            1 => {
                let (direction, size) = ("H2D".into(), 5);
                let on = Where::default();
                let (is_async, partial, pageable) = (true, false, false);
                let name = "cuMemcpyHtoD_v2".into();
                let duration_ns = None;
                self.push(Body::Transfer(Transfer {
                    pid,
                    tid,
                    begin,
                    on,
                    name,
                    direction,
                    size,
                    is_async,
                    partial,
                    pageable,
                    duration_ns,
                }));
            }
            _ => {}
        }
    }

    fn memory(&mut self, (pid, tid): (u32, u32), begin: u64, ptr: u64, op: Op) {
        let size = match op {
            Op::Alloc => 1 + self.random.below(1000),
            Op::Free => self.live[&(pid, ptr)],
        };
        match op {
            Op::Alloc => _ = self.live.insert((pid, ptr), size),
            Op::Free => _ = self.live.remove(&(pid, ptr)),
        }
        let total = self.live.iter().filter(|((of, _), _)| *of == pid).map(|(_, size)| size).sum();
        self.push(Body::Memory(Memory {
            pid,
            tid,
            begin: Some(begin),
            on: Where::default(),
            name: if op == Op::Alloc { ALLOC } else { FREE }.into(),
            op,
            space: "device".into(),
            ptr,
            size: Some(size),
            total_allocated: Some(total),
            earlier: false,
            missed: false,
            runtime: false,
            carried: false,
            stack: None,
        }));
    }

    fn dies(&mut self, pid: u32) {
        let at = self.to.lines.len() as u64;
        let threads: Vec<(u32, u32)> = self.open.keys().copied().filter(|(of, _)| *of == pid).collect();
        for thread in threads {
            let calls = self.open.remove(&thread).unwrap();
            self.to.died.extend(calls.into_iter().map(|(call, _)| (at, call)));
        }
    }

    fn step(&mut self) {
        let thread = self.thread();
        let (pid, tid) = thread;
        match self.random.below(40) {
            0..=12 if self.open.get(&thread).is_none_or(|open| open.len() < 5) => {
                let name = if self.random.below(2) == 0 { ALLOC } else { "cuLaunchKernel" };
                self.begin(thread, name);
            }
            13..=28 => self.end(thread),
            29 if self.pids.len() > 2 => {
                self.dies(pid);
                self.live.retain(|(of, _), _| *of != pid);
                self.pids.retain(|of| *of != pid);
                let status = ExitStatus::Code(1);
                self.push(Body::Process(Process::Exit(Exit { pid, tid: pid, status })));
                self.process();
            }
            30 => {
                let (id, path) = (self.to.lines.len(), format!("/lib/{}.so", self.random.below(5)));
                let library = Library {
                    pid,
                    tid,
                    path: path.into(),
                    build_id: Some(id.to_string()).filter(|_| false),
                    functions: 3,
                    not_hooked: Vec::new(),
                    single_stepped: Vec::new(),
                };
                self.push(Body::Process(Process::Library(library)));
            }
            31 => {
                let gpu_name = self.to.lines.len().lt(&40).then(|| "H100".to_owned());
                self.push(Body::Device(Box::new(Device { device: 0, gpu_name, ..Device::default() })));
            }
            32..=34 if !self.submitted.is_empty() => {
                let (pid, begin) = self.submitted[self.random.below(self.submitted.len() as u64) as usize];
                let ts_ns = self.ts_ns.saturating_sub(self.random.below(50_000_000));
                let gpu = Gpu {
                    name: "kernel".into(),
                    kind: GpuKind::Kernel,
                    source: GpuSource::Lane,
                    pid,
                    begin: Some(begin).filter(|_| self.random.below(4) != 0),
                    ..Gpu::default()
                };
                self.push_at(ts_ns, Body::Gpu(gpu));
            }
            35 | 36 => {
                let stack = self.stack(pid);
                let begin = self.open.get(&thread).and_then(|open| open.last()).map(|(id, _)| *id);
                self.push(Body::Block(Block {
                    pid,
                    tid,
                    begin,
                    name: "pytorch:malloc".into(),
                    op: Op::Alloc,
                    ptr: 7,
                    size: Some(1),
                    device: None,
                    stream: None,
                    stack: stack.filter(|_| begin.is_none()),
                }));
            }
            37 => {
                let parent = self.open.get(&thread).and_then(|open| open.last()).map(|(id, _)| *id);
                let depth = self.open.get(&thread).map_or(0, Vec::len) as u32;
                let (kind, name) = (Kind::Scheduler, "off_cpu".into());
                self.push(Body::Instant(Instant {
                    kind,
                    name,
                    pid,
                    tid,
                    depth,
                    parent,
                    cpu: Some(1),
                    duration_ns: Some(4),
                    args: None,
                }));
            }
            38 if self.random.below(4) == 0 => {
                self.live.retain(|(of, _), _| *of != pid);
                self.dies(pid);
                let command = vec!["other".to_owned()];
                let exec = Exec { pid, tid: pid, command, ..Exec::default() };
                self.push(Body::Process(Process::Exec(exec)));
            }
            _ => {}
        }
    }
}

fn recording(seed: u64, steps: u64) -> Recording {
    let mut maker = Maker {
        random: Random::new(seed),
        to: Recording::default(),
        ts_ns: 0,
        open: BTreeMap::new(),
        live: BTreeMap::new(),
        pids: Vec::new(),
        next_pid: 100,
        stacks: Vec::new(),
        submitted: Vec::new(),
    };
    maker.push_at(
        0,
        Body::Header(Box::new(Header {
            schema: 1,
            command: Some(vec!["train".into()]),
            ..Header::default()
        })),
    );
    (0..3).for_each(|_| maker.process());
    (0..steps).for_each(|_| maker.step());
    maker.to
}

/// How long gpurec stopped a process at the start.
const STOP_NS: u64 = 1_000_000;

/// A dump of the lines from `evicted` to `end`, from `from_ns` on.
fn dump(of: &Recording, evicted: usize, end: usize, from_ns: u64) -> Vec<u8> {
    let mut state = State::default();
    let mut died = of.died.iter().peekable();
    for (at, text) in of.lines[..evicted].iter().enumerate() {
        while let Some((_, call)) = died.next_if(|(before, _)| *before <= at as u64) {
            state.died(*call);
        }
        state.add(&read(text).unwrap(), text);
    }
    let mut dumper = Dumper::new(state, from_ns, Vec::new());
    for (at, text) in of.lines[..end].iter().enumerate().skip(evicted) {
        while let Some((_, call)) = died.next_if(|(before, _)| *before <= at as u64) {
            dumper.died(*call);
        }
        dumper.text(text).unwrap();
    }
    while let Some((_, call)) = died.next_if(|(before, _)| *before <= end as u64) {
        dumper.died(*call);
    }
    let dump = trace::Dump {
        number: 1,
        event: "error".into(),
        because: "of a test".into(),
        ..trace::Dump::default()
    };
    let mut stops = Stops::default();
    stops.add(5, 0, STOP_NS);
    let gpu = Some(GpuAccount { launches: 7, ..GpuAccount::default() });
    let (reasons, stops) = (Vec::new(), stops.recent(0));
    dumper.finish(Ending { dump, ts_ns: 0, reasons, stops, gpu }).unwrap().out
}

/// What a line is, without its numbers.
fn shape(body: &Body) -> String {
    let mut body = body.clone();
    match &mut body {
        Body::Begin(it) => (it.parent, it.carried) = (None, false),
        Body::KernelBegin(it) => (it.parent, it.carried) = (None, false),
        Body::Instant(it) => it.parent = None,
        Body::End(it) => it.begin = 0,
        Body::KernelEnd(it) => it.begin = 0,
        Body::Memory(it) => it.begin = None,
        Body::Transfer(it) => it.begin = 0,
        Body::Block(it) => it.begin = None,
        Body::Gpu(it) => it.begin = None,
        _ => {}
    }
    format!("{body:?}")
}

/// The line to which a line refers.
fn reference(body: &Body) -> Option<u64> {
    match body {
        Body::Begin(it) => it.parent,
        Body::KernelBegin(it) => it.parent,
        Body::Instant(it) => it.parent,
        Body::End(it) => Some(it.begin),
        Body::KernelEnd(it) => Some(it.begin),
        Body::Transfer(it) => Some(it.begin),
        Body::Memory(it) => it.begin,
        Body::Block(it) => it.begin,
        Body::Gpu(it) => it.begin,
        _ => None,
    }
}

/// The time and the shape of a line.
fn known(line: &Line) -> String {
    format!("{} {}", line.ts_ns, shape(&line.body))
}

/// What is open and live at a line of the whole recording: shapes of B lines, and pid, address and size.
fn truth(of: &Recording, at: usize) -> (BTreeSet<String>, BTreeSet<(u32, u64, u64)>) {
    let (mut open, mut live) = (BTreeMap::new(), BTreeMap::new());
    for text in &of.lines[..at] {
        let line = read(text).unwrap();
        match &line.body {
            Body::Begin(it) if it.no_return.is_none() => {
                _ = open.insert(line.event_id, (line.ts_ns, shape(&line.body)))
            }
            Body::KernelBegin(_) => _ = open.insert(line.event_id, (line.ts_ns, shape(&line.body))),
            Body::End(it) => _ = open.remove(&it.begin),
            Body::KernelEnd(it) => _ = open.remove(&it.begin),
            Body::Memory(it) if it.op == Op::Alloc => _ = live.insert((it.pid, it.ptr), it.size.unwrap()),
            Body::Memory(it) => _ = live.remove(&(it.pid, it.ptr)),
            Body::Process(Process::Exit(Exit { pid, .. }) | Process::Exec(Exec { pid, .. })) => {
                live.retain(|(of, _), _| of != pid);
            }
            _ => {}
        }
    }
    of.died.iter().filter(|(before, _)| *before <= at as u64).for_each(|(_, call)| _ = open.remove(call));
    let open = open.into_values().map(|(ts, shape)| format!("{ts} {shape}")).collect();
    (open, live.into_iter().map(|((pid, ptr), size)| (pid, ptr, size)).collect())
}

/// The first line of a dump's period.
fn first_of(of: &Recording, evicted: usize, end: usize, from_ns: u64) -> usize {
    let first = (evicted..end).find(|at| {
        let line = read(&of.lines[*at]).unwrap();
        line.ts_ns >= from_ns && !matches!(line.body, Body::Memory(_) | Body::Transfer(_) | Body::Header(_))
    });
    first.unwrap_or(end)
}

fn check(of: &Recording, evicted: usize, end: usize, from_ns: u64) {
    let text = dump(of, evicted, end, from_ns);
    let what = format!("{evicted}..{end} from {from_ns}: {}", String::from_utf8_lossy(&text));
    let mut reader = Reader::new(&text[..]);
    let (mut begun, mut stacks, mut next) = (BTreeMap::new(), BTreeSet::new(), 0);
    let (mut open, mut live, mut period, mut processes) =
        (BTreeSet::new(), BTreeSet::new(), Vec::new(), BTreeSet::new());
    let mut total = BTreeMap::new();
    let mut ended = None;
    while let Some(line) = reader.next().unwrap() {
        assert_eq!(line.event_id, next, "{what}");
        next += 1;
        let refers = reference(&line.body).map(|id| {
            let known: Option<&String> = begun.get(&id);
            known.unwrap_or_else(|| panic!("line {} refers to nothing: {what}", line.event_id)).clone()
        });
        let stack = match &line.body {
            Body::Stack(it) => {
                assert!(stacks.insert(it.stack), "{what}");
                None
            }
            Body::Begin(it) => it.stack,
            Body::Memory(it) => it.stack,
            Body::Block(it) => it.stack,
            _ => None,
        };
        assert!(stack.is_none_or(|stack| stacks.contains(&stack)), "stack {stack:?}: {what}");
        if let Body::Memory(it) = &line.body {
            assert_eq!(it.begin.is_none(), it.carried, "{what}");
        }
        let mut is_carried = false;
        match &line.body {
            Body::Begin(it) => {
                begun.insert(line.event_id, known(&line));
                is_carried = it.carried;
                assert!(processes.contains(&it.pid), "process {} has no name: {what}", it.pid);
            }
            Body::KernelBegin(it) => {
                begun.insert(line.event_id, known(&line));
                is_carried = it.carried;
            }
            Body::Memory(it) if it.carried => {
                is_carried = true;
                live.insert((it.pid, it.ptr, it.size.unwrap()));
                total.insert(it.pid, it.total_allocated.unwrap());
            }
            Body::Process(Process::Exec(it)) => _ = processes.insert(it.pid),
            Body::Process(Process::Fork(it)) => _ = processes.insert(it.child),
            Body::Finish(it) => ended = Some(it.clone()),
            _ => {}
        }
        if is_carried && !matches!(line.body, Body::Memory(_)) {
            open.insert(known(&line));
        } else if !is_carried && !matches!(line.body, Body::Stack(_) | Body::Finish(_)) {
            period.push((known(&line), refers));
        }
    }
    assert!(reader.notes().is_whole(), "{:?} {what}", reader.notes());
    let ended = ended.unwrap();
    assert!(ended.complete && ended.events + 1 == next, "{ended:?} {what}");
    // The account is that of the whole recording, and the stops are those of the period.
    let is_whole = first_of(of, evicted, end, from_ns) <= 1;
    assert_eq!(ended.gpu.map(|account| account.launches), is_whole.then_some(7), "{what}");
    let stopped_ns = STOP_NS.saturating_sub(ended.dump.unwrap().from_ns);
    assert_eq!(ended.stops.map(|stops| stops.total_ns), Some(stopped_ns), "{what}");
    // The period is what the recording has from its first line on.
    let is_in = |line: &Line| !matches!(line.body, Body::Stack(_));
    let first = first_of(of, evicted, end, from_ns);
    let (open_then, live_then) = truth(of, first);
    let expected: Vec<_> = of.lines[first..end]
        .iter()
        .map(|text| read(text).unwrap())
        .filter(is_in)
        .map(|line| {
            let refers = reference(&line.body).and_then(|id| {
                let begun = known(&read(&of.lines[id as usize]).unwrap());
                (id >= first as u64 || open_then.contains(&begun)).then_some(begun)
            });
            (known(&line), refers)
        })
        .collect();
    assert_eq!(period[period.len() - expected.len()..], expected, "{what}");
    assert_eq!((&open, &live), (&open_then, &live_then), "{what}");
    for (pid, total) in total {
        let sum: u64 = live_then.iter().filter(|(of, ..)| *of == pid).map(|(_, _, size)| size).sum();
        assert_eq!(total, sum, "{what}");
    }
    let (open_at_end, live_at_end) = truth(of, end);
    assert_eq!(ended.in_flight.iter().filter(|call| !call.died).count(), open_at_end.len(), "{what}");
    let held: u64 = live_at_end.iter().map(|(_, _, size)| size).sum();
    let at_exit = ended.summary["memory"]["held"]["bytes"].as_u64();
    assert!(at_exit.is_some_and(|bytes| bytes >= held), "{at_exit:?} {held} {what}");
}

#[test]
fn every_part_of_a_recording_is_a_whole_trace() {
    for seed in 1..60 {
        let of = recording(seed * 7919, 400);
        let mut random = Random::new(seed);
        let last_ns = read(of.lines.last().unwrap()).unwrap().ts_ns;
        check(&of, 0, of.lines.len(), 0);
        for _ in 0..12 {
            let end = 1 + random.below(of.lines.len() as u64) as usize;
            let evicted = random.below(end as u64 + 1) as usize;
            let from_ns = if random.below(2) == 0 { 0 } else { random.below(last_ns) };
            check(&of, evicted, end, from_ns);
        }
    }
}
