//! `memory` lines to figures: what was allocated and freed, what is still
//! live, and sizes that are allocated again and again.

use std::collections::{BTreeMap, HashMap};

use super::figures::{Finding, Leak, LeakSpace, Leaks, MemoryFigures, SpaceSeen};
use crate::trace::{Memory, Op};

/// How many leaks the figures list.
const LISTED: usize = 100;

/// How many sizes are watched for loops.
const SIZES: usize = 65_536;

/// A size given back and allocated again at least so often is a loop.
const AGAIN: u64 = 10;

/// How many loops are told.
const LOOPS: usize = 5;

/// Memory of another process is no leak of this one.
const NOT_ITS_OWN: &str = "ipc";

/// What `torch.cuda.max_memory_reserved()` counts.
const RESERVED: [&str; 2] = ["device", "virtual"];

#[derive(Default)]
pub struct Memories {
    by_space: BTreeMap<Box<str>, SpaceSeen>,
    processes: HashMap<u32, Holding>,
    peaks: BTreeMap<u32, u64>,
    runtime_peaks: BTreeMap<u32, u64>,
    gone: Gone,
    loops: HashMap<(u32, Box<str>, u64), Loop>,
    figures: MemoryFigures,
}

/// What one process holds, by space and pointer.
#[derive(Default)]
struct Holding {
    live: HashMap<u64, Vec<Live>>,
    reserved: [u64; RESERVED.len()],
    /// Of it what was asked for through the runtime, by pointer.
    by_runtime: HashMap<u64, u64>,
    runtime_live: u64,
}

#[derive(Clone)]
struct Live {
    space: Box<str>,
    size: u64,
    since_ns: u64,
    function: Box<str>,
    begin: u64,
}

/// What was live when its process ended.
#[derive(Clone, Default)]
struct Gone {
    by_space: BTreeMap<Box<str>, LeakSpace>,
    largest: Vec<Leak>,
}

/// What happens to one size in one space.
#[derive(Default)]
struct Loop {
    function: Box<str>,
    /// Given back and not allocated again yet.
    free: u64,
    again: u64,
    ns: u64,
}

impl Memories {
    /// `ns` is how long the call took, if that is known.
    pub fn add(&mut self, ts_ns: u64, memory: &Memory, ns: u64) {
        let size = memory.size.unwrap_or(0);
        let space = memory.space.as_ref();
        if !self.by_space.contains_key(space) {
            self.by_space.insert(space.into(), SpaceSeen { space: space.to_owned(), ..SpaceSeen::default() });
        }
        let Some(seen) = self.by_space.get_mut(space) else { return };
        match memory.op {
            Op::Alloc => {
                seen.allocations += 1;
                seen.allocated_bytes = seen.allocated_bytes.saturating_add(size);
                self.figures.allocations += 1;
                self.figures.allocated_bytes = self.figures.allocated_bytes.saturating_add(size);
            }
            Op::Free => {
                seen.frees += 1;
                seen.freed_bytes = seen.freed_bytes.saturating_add(size);
                self.figures.frees += 1;
                self.figures.freed_bytes = self.figures.freed_bytes.saturating_add(size);
            }
        }
        self.processes.entry(memory.pid).or_default().add(ts_ns, memory, size);
        self.reserved(memory);
        self.through_runtime(memory, size);
        if space != "pool" && size > 0 {
            self.looped(memory, size, ns);
        }
    }

    fn reserved(&mut self, memory: &Memory) {
        let Some(holding) = self.processes.get_mut(&memory.pid) else { return };
        for (space, live) in RESERVED.iter().zip(&mut holding.reserved) {
            if *space == memory.space {
                *live = memory.total_allocated;
                let sum = holding.reserved.iter().fold(0u64, |sum, live| sum.saturating_add(*live));
                let peak = self.peaks.entry(memory.pid).or_default();
                *peak = sum.max(*peak);
                return;
            }
        }
    }

    fn through_runtime(&mut self, memory: &Memory, size: u64) {
        let Some(holding) = self.processes.get_mut(&memory.pid) else { return };
        if !RESERVED.contains(&memory.space.as_ref()) {
            return;
        }
        if let Some(before) = holding.by_runtime.remove(&memory.ptr) {
            holding.runtime_live = holding.runtime_live.saturating_sub(before);
        }
        if memory.op == Op::Alloc && memory.runtime {
            holding.by_runtime.insert(memory.ptr, size);
            holding.runtime_live = holding.runtime_live.saturating_add(size);
            let peak = self.runtime_peaks.entry(memory.pid).or_default();
            *peak = holding.runtime_live.max(*peak);
        }
    }

    fn looped(&mut self, memory: &Memory, size: u64, ns: u64) {
        let key = (memory.pid, Box::from(memory.space.as_ref()), size);
        if self.loops.len() >= SIZES && !self.loops.contains_key(&key) {
            return;
        }
        let seen = self.loops.entry(key).or_default();
        seen.ns = seen.ns.saturating_add(ns);
        match memory.op {
            Op::Free => seen.free += 1,
            Op::Alloc => {
                if seen.free > 0 {
                    seen.free -= 1;
                    seen.again += 1;
                }
                if seen.function.is_empty() {
                    seen.function = memory.name.as_ref().into();
                }
            }
        }
    }

    /// The process ended, or became another program.
    pub fn ended(&mut self, pid: u32, ts_ns: u64) {
        if let Some(holding) = self.processes.remove(&pid) {
            self.gone.add(pid, holding.live, ts_ns, true);
        }
    }

    pub fn peak_of(&self, pid: u32) -> u64 {
        self.peaks.get(&pid).copied().unwrap_or(0)
    }

    pub fn runtime_peak_of(&self, pid: u32) -> u64 {
        self.runtime_peaks.get(&pid).copied().unwrap_or(0)
    }

    /// Of a recording that ends at `at_ns`.
    pub fn finish(&self, at_ns: u64) -> MemoryFigures {
        let mut gone = self.gone.clone();
        let mut pids: Vec<&u32> = self.processes.keys().collect();
        pids.sort();
        for pid in pids {
            if let Some(holding) = self.processes.get(pid) {
                gone.add(*pid, holding.live.clone(), at_ns, false);
            }
        }
        let mut figures = self.figures.clone();
        figures.by_space = self.by_space.values().cloned().collect();
        figures.leaks = gone.figures();
        figures
    }

    /// The sizes that cost most by being given back and allocated again.
    pub fn findings(&self) -> Vec<Finding> {
        let mut loops: Vec<_> = self.loops.iter().filter(|(_, seen)| seen.again >= AGAIN).collect();
        loops.sort_by(|(a, x), (b, y)| (y.ns, y.again, *a).cmp(&(x.ns, x.again, *b)));
        let finding = |((pid, space, size), seen): (&(u32, Box<str>, u64), &Loop)| Finding {
            what: format!(
                "pid {pid} gives back {size} bytes of {space} memory and allocates them again ({})",
                seen.function
            ),
            times: seen.again,
            cost_ns: Some(seen.ns),
            advice: match space.as_ref() {
                "device" => "keep the buffer, or use cudaMallocAsync, whose pool keeps it",
                _ => "keep the buffer",
            }
            .to_owned(),
        };
        loops.into_iter().take(LOOPS).map(finding).collect()
    }
}

impl Holding {
    fn add(&mut self, ts_ns: u64, memory: &Memory, size: u64) {
        if memory.space == NOT_ITS_OWN {
            return;
        }
        let at = self.live.entry(memory.ptr).or_default();
        // One number may be an address and a handle.
        if let Some(index) = at.iter().position(|live| *live.space == *memory.space) {
            at.swap_remove(index);
        }
        match memory.op {
            Op::Alloc => at.push(Live {
                space: memory.space.as_ref().into(),
                size,
                since_ns: ts_ns,
                function: memory.name.as_ref().into(),
                begin: memory.begin,
            }),
            Op::Free if at.is_empty() => _ = self.live.remove(&memory.ptr),
            Op::Free => {}
        }
    }
}

impl Gone {
    fn add(&mut self, pid: u32, live: HashMap<u64, Vec<Live>>, at_ns: u64, at_exit: bool) {
        let all = live.into_iter().flat_map(|(ptr, at)| at.into_iter().map(move |live| (ptr, live)));
        for (ptr, live) in all {
            let space = self.by_space.entry(live.space.clone()).or_default();
            space.space = live.space.to_string();
            space.count += 1;
            space.bytes = space.bytes.saturating_add(live.size);
            space.at_exit += u64::from(at_exit);
            self.largest.push(Leak {
                pid,
                space: live.space.into(),
                ptr: format!("{ptr:#x}"),
                size: live.size,
                age_ns: at_ns.saturating_sub(live.since_ns),
                function: live.function.into(),
                begin: live.begin,
                at_exit,
            });
        }
        // The largest first, of equals the oldest.
        self.largest.sort_by(|a, b| (b.size, a.begin, a.pid).cmp(&(a.size, b.begin, b.pid)));
        self.largest.truncate(LISTED);
    }

    fn figures(self) -> Leaks {
        let by_space: Vec<LeakSpace> = self.by_space.into_values().collect();
        Leaks {
            count: by_space.iter().map(|s| s.count).sum(),
            bytes: by_space.iter().fold(0, |sum: u64, s| sum.saturating_add(s.bytes)),
            by_space,
            largest: self.largest,
        }
    }
}
