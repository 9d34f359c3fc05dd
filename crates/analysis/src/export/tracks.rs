//! Assigns tracks and their ids. In: the processes and threads of one trace after another. Out: tracks with unique ids,
//! even if two traces use the same pid. Memory grows with the number of processes and threads seen.

use std::collections::{HashMap, HashSet};

use super::sink::Sink;
pub use super::sink::{Process, Space, Track};
use super::streams::Streams;
use crate::gpu::StreamKey;
use gpurec_trace::bounds::{BytesLeft, COMMANDS, short};
use gpurec_trace::hash::Map;

/// Limit on distinct threads; a trace exceeds it only if a program creates threads without end.
const MOST_THREADS: usize = 262_144;
const MOST_PROCESSES: usize = 65_536;
const MOST_LANES: usize = 16_384;

/// The allocator's overhead of each word of a command.
const EACH: usize = 32;

/// Limit on memory spaces with a counter in a process; there are seven.
const MOST_SPACES: usize = 32;
/// Longest name of a space, and of an interrupt.
const LONGEST_SPACE: usize = 256;

/// Maximum length of a displayed command.
const LONGEST_NAME: usize = 120;

/// Greater than any pid of Linux, and within the range of Perfetto's format.
const FRESH: u32 = 1 << 30;

pub struct Thread<H> {
    pub track: Track,
    pub process: usize,
    off_cpu: Option<Track>,
    /// The thread is in `busy` of its process.
    pub busy: bool,
    /// The calls it is in, the outermost first.
    pub open: Vec<Open<H>>,
    /// The time of its last event. Events must be in order, or nesting breaks.
    pub latest_ns: u64,
}

/// A call that has begun and not ended.
pub struct Open<H> {
    pub event_id: u64,
    pub ts_ns: u64,
    /// A call in user space, not a driver span.
    pub is_call: bool,
    pub held: H,
}

/// A track that belongs to no thread.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Header, end, processes and libraries.
    Recording,
    Xid,
    Lost,
    /// Interrupts of one name on a CPU. Those of two names may enclose each other, and which one began first is known
    /// only when both have ended.
    Interrupt(u32, Box<str>),
    /// Activity on a CPU outside any thread.
    Cpu(u32),
    /// All tracks beyond `MOST_LANES`.
    More,
}

impl Lane {
    fn name(&self) -> String {
        match self {
            Lane::Recording => "recording".to_owned(),
            Lane::Xid => "Xid errors".to_owned(),
            Lane::Lost => "lost events".to_owned(),
            Lane::Interrupt(cpu, name) => format!("CPU {cpu} {name}"),
            Lane::Cpu(cpu) => format!("CPU {cpu}"),
            Lane::More => "more of the driver".to_owned(),
        }
    }
}

/// Hands out unique numbers.
#[derive(Default)]
struct Numbers {
    used: HashSet<u32>,
    fresh: u32,
}

impl Numbers {
    fn take(&mut self, wanted: u32) -> u32 {
        if wanted > 0 && wanted < FRESH && self.used.insert(wanted) { wanted } else { self.fresh() }
    }

    fn fresh(&mut self) -> u32 {
        self.fresh += 1;
        FRESH + self.fresh
    }
}

#[derive(Default)]
pub struct Tracks<H> {
    uuids: u64,
    pids: Numbers,
    tids: Numbers,
    pub processes: Vec<Process>,
    pub threads: Vec<Thread<H>>,
    by_pid: Map<u32, usize>,
    by_thread: Map<(u32, u32), usize>,
    /// The thread of the previous line, which is mostly that of the next one too.
    last: Option<((u32, u32), usize)>,
    lanes: HashMap<Lane, Track>,
    streams: Streams,
    group: Option<(u64, u32)>,
    commands: BytesLeft<COMMANDS>,
    /// Suffix of every name if several traces are merged.
    suffix: String,
    /// Number of events of threads beyond `MOST_THREADS`.
    pub left_out: u64,
}

impl<H: Default> Tracks<H> {
    /// Starts another trace, whose pids are its own.
    pub fn next_source(&mut self, suffix: String) {
        let (pids, tids) = (std::mem::take(&mut self.pids), std::mem::take(&mut self.tids));
        *self = Tracks { uuids: self.uuids, pids, tids, suffix, ..Tracks::default() };
    }

    fn uuid(&mut self) -> u64 {
        self.uuids += 1;
        self.uuids
    }

    pub fn process(&mut self, pid: u32) -> usize {
        if let Some(index) = self.by_pid.get(&pid) {
            return *index;
        }
        let last = self.processes.len();
        if last < MOST_PROCESSES {
            let number = self.pids.take(pid);
            self.add_process(number, format!("process {pid}"));
            self.by_pid.insert(pid, last);
            return last;
        }
        if last == MOST_PROCESSES {
            let number = self.pids.fresh();
            self.add_process(number, "more processes".to_owned());
        }
        MOST_PROCESSES
    }

    fn add_process(&mut self, pid: u32, name: String) {
        let process = Process { uuid: self.uuid(), pid, name: name + &self.suffix, ..Process::default() };
        self.processes.push(process);
    }

    fn is_shared(&self, process: usize) -> bool {
        process >= MOST_PROCESSES
    }

    /// The index of an event's thread. `name` is the name of a kernel thread.
    pub fn thread(&mut self, sink: &mut impl Sink, pid: u32, tid: u32, name: Option<&str>) -> Option<usize> {
        if let Some((key, index)) = self.last
            && key == (pid, tid)
        {
            return Some(index);
        }
        let index = match self.by_thread.get(&(pid, tid)) {
            Some(index) => *index,
            None => self.new_thread(sink, pid, tid, name)?,
        };
        self.last = Some(((pid, tid), index));
        Some(index)
    }

    fn new_thread(&mut self, sink: &mut impl Sink, pid: u32, tid: u32, name: Option<&str>) -> Option<usize> {
        if self.threads.len() >= MOST_THREADS {
            self.left_out += 1;
            return None;
        }
        let index = self.process(pid);
        let track = Track { uuid: self.uuid(), pid: 0, tid: self.tids.take(tid) };
        let process = self.processes.get_mut(index)?;
        if let Some(name) = name
            && process.command.is_empty()
        {
            process.name = format!("{}{}", short(name, LONGEST_SPACE), self.suffix);
        }
        process.announce(sink);
        let track = Track { pid: process.pid, ..track };
        let shown = match name {
            Some(name) => short(name, LONGEST_SPACE),
            None if pid == tid => "main".to_owned(),
            None => format!("thread {tid}"),
        };
        sink.track(track, process.uuid, &shown, true);
        let thread =
            Thread { track, process: index, off_cpu: None, busy: false, open: Vec::new(), latest_ns: 0 };
        let index = self.threads.len();
        self.threads.push(thread);
        self.by_thread.insert((pid, tid), index);
        Some(index)
    }

    /// The track next to a thread's own that shows its time off the CPU.
    pub fn off_cpu(&mut self, sink: &mut impl Sink, index: usize, tid: u32) -> Option<Track> {
        if let Some(track) = self.threads.get(index)?.off_cpu {
            return Some(track);
        }
        let (uuid, fresh) = (self.uuid(), self.tids.fresh());
        let thread = self.threads.get_mut(index)?;
        let track = Track { uuid, pid: thread.track.pid, tid: fresh };
        thread.off_cpu = Some(track);
        sink.track(track, thread.track.uuid, &format!("thread {tid} off the CPU"), false);
        Some(track)
    }

    /// The lane of some GPU work: a track of its process, one more where work in the stream overlaps.
    pub fn stream(
        &mut self,
        sink: &mut impl Sink,
        key: StreamKey,
        from_ns: u64,
        to_ns: u64,
    ) -> Option<Track> {
        let (number, known) = self.streams.place(key, from_ns, to_ns)?;
        if known.is_some() {
            return known;
        }
        let index = self.process(key.pid);
        let (uuid, tid) = (self.uuid(), self.tids.fresh());
        let process = self.processes.get_mut(index)?;
        process.announce(sink);
        let track = Track { uuid, pid: process.pid, tid };
        sink.track(track, process.uuid, &self.streams.name(key), false);
        self.streams.made(key, number, track);
        Some(track)
    }

    /// Number of records of GPU work for which there was no lane.
    pub fn left_out_work(&self) -> u64 {
        self.streams.left_out
    }

    pub fn lane(&mut self, sink: &mut impl Sink, lane: Lane) -> Track {
        if let Some(track) = self.lanes.get(&lane) {
            return *track;
        }
        let fits = !matches!(&lane, Lane::Interrupt(_, name) if name.len() > LONGEST_SPACE);
        let lane = if self.lanes.len() < MOST_LANES && fits { lane } else { Lane::More };
        if let Some(track) = self.lanes.get(&lane) {
            return *track;
        }
        let (parent, pid) = self.group(sink);
        let track = Track { uuid: self.uuid(), pid, tid: self.tids.fresh() };
        sink.track(track, parent, &lane.name(), false);
        self.lanes.insert(lane, track);
        track
    }

    /// The group that represents the machine: the parent of the lanes.
    fn group(&mut self, sink: &mut impl Sink) -> (u64, u32) {
        if let Some(group) = self.group {
            return group;
        }
        let name = format!("GPU driver and recording{}", self.suffix);
        let process = Process { uuid: self.uuid(), pid: self.pids.fresh(), name, ..Process::default() };
        sink.process(&process);
        *self.group.insert((process.uuid, process.pid))
    }

    /// A program started in a process, or replaced the previous one.
    pub fn exec(&mut self, sink: &mut impl Sink, pid: u32, command: &[String], rank: Option<u32>) {
        let index = self.process(pid);
        if self.is_shared(index) {
            return;
        }
        let Some(process) = self.processes.get_mut(index) else { return };
        process.name = title(command, rank) + &self.suffix;
        process.command = keep(&mut self.commands, command);
        process.rank = rank;
        process.exit_ns = None;
        if process.announced {
            sink.process(process);
        }
    }

    /// A child has its parent's program until it calls exec.
    pub fn fork(&mut self, pid: u32, child: u32) {
        let parent = self.process(pid);
        let Some(parent) = self.processes.get(parent) else { return };
        let (name, command, rank) = (parent.name.clone(), parent.command.clone(), parent.rank);
        let child = self.process(child);
        if self.is_shared(child) {
            return;
        }
        let Some(child) = self.processes.get_mut(child) else { return };
        child.exit_ns = None;
        if !child.announced && child.command.is_empty() {
            (child.name, child.command, child.rank) = (name, keep(&mut self.commands, &command), rank);
        }
    }

    /// The counter of a space, with the live bytes in it.
    pub fn space(&mut self, sink: &mut impl Sink, process: usize, space: &str) -> Option<(u32, &mut Space)> {
        let known = self.processes.get(process)?.spaces.iter().position(|known| *known.space == *space);
        let known = match known {
            Some(known) => known,
            None => {
                let uuid = self.uuid();
                let process = self.processes.get_mut(process)?;
                if process.spaces.len() >= MOST_SPACES || space.len() > LONGEST_SPACE {
                    return None;
                }
                let name = format!("live memory: {space}");
                sink.counter_track(uuid, process, &name);
                process.spaces.reserve_exact(1);
                process.spaces.push(Space { space: space.into(), name, uuid, live: 0 });
                process.spaces.len() - 1
            }
        };
        let process = self.processes.get_mut(process)?;
        Some((process.pid, process.spaces.get_mut(known)?))
    }

    /// Sets the counters of an exited process to zero: its exit has no lines for frees.
    pub fn spaces_to_zero(&mut self, sink: &mut impl Sink, process: usize, ts_ns: u64) {
        let Some(process) = self.processes.get_mut(process) else { return };
        for space in process.spaces.iter_mut().filter(|space| space.live > 0) {
            space.live = 0;
            sink.counter(ts_ns, space, process.pid);
        }
    }
}

/// Beyond the limit on commands only the name is kept.
fn keep(room: &mut BytesLeft<COMMANDS>, command: &[String]) -> Vec<String> {
    let kept = room.take(command.iter().map(|word| EACH + word.len()).sum());
    if kept { command.to_vec() } else { Vec::new() }
}

fn title(command: &[String], rank: Option<u32>) -> String {
    let mut title = command.join(" ");
    if title.chars().count() > LONGEST_NAME {
        title = title.chars().take(LONGEST_NAME - 1).chain(['…']).collect();
    }
    match rank {
        Some(rank) => format!("{title} [rank {rank}]"),
        None => title,
    }
}
