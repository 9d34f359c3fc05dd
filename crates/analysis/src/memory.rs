//! Turns `memory` lines into figures: allocations and frees, live memory, and sizes that are allocated again and again.

mod loops;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::figures::{Finding, Leak, LeakSpace, Leaks, MemoryFigures, OTHERS, SpaceFigures};
use super::growth::{Allocation, Group, Moment};
use super::stacks::{Site, Stacks};
use gpurec_trace::bounds::{Entries, MOST_LIVE, entry};
use gpurec_trace::hash::Map;
use gpurec_trace::{Memory, Op};
use loops::Loops;

/// Number of leaks that the figures list.
const LISTED: usize = 100;

/// Limits on distinct spaces (there are seven) and on functions that allocate. The others share one index.
const SPACES: usize = 31;
const FUNCTIONS: usize = 65_536;

/// Limits on processes whose memory is followed, and on the length of a space's name.
pub const PROCESSES: usize = 65_536;
const LONGEST_SPACE: usize = 64;
/// Limit on bytes of function names.
const FUNCTION_NAMES: usize = 4 << 20;

/// Memory of another process is not a leak of this one.
const NOT_ITS_OWN: &str = "ipc";

/// The spaces that `torch.cuda.max_memory_reserved()` counts.
const RESERVED: [&str; 2] = ["device", "virtual"];

#[derive(Default)]
pub struct Memories {
    pub names: Names,
    /// By index of the space.
    by_space: BTreeMap<u8, SpaceFigures>,
    /// Boxed, since up to half of a table is free.
    processes: Map<u32, Box<Holding>>,
    /// In the spaces of RESERVED, and the part that came through the runtime.
    peaks: Map<u32, u64>,
    runtime_peaks: Map<u32, u64>,
    gone: LeftoverSums,
    loops: Loops,
    /// Number of allocations in `processes`, and of their groups.
    live: usize,
    groups: usize,
    /// The last line.
    event: u64,
    /// Number of allocations that found the table full.
    pub unfollowed: u64,
    /// Number of frees of memory from before the recording.
    pub earlier_frees: u64,
}

/// Names of spaces and functions, to which each allocation refers by index.
#[derive(Default)]
pub struct Names {
    spaces: Entries<Arc<str>, SPACES, { SPACES * 2 * LONGEST_SPACE }>,
    functions: Entries<Arc<str>, FUNCTIONS, FUNCTION_NAMES>,
    /// The texts of call sites, of which there are as many as distinct frames.
    sites: Map<Site, Box<str>>,
}

/// What one process holds. The key includes the space, since the same number may be an address and a handle.
#[derive(Default)]
struct Holding {
    live: Map<(u64, u8), LiveAllocation>,
    made: Allocation,
    reserved: [u64; RESERVED.len()],
    /// The part that came through the runtime, by pointer.
    by_runtime: Map<u64, u64>,
    runtime_live: u64,
}

/// What all processes together hold now.
#[derive(Default)]
pub struct LiveTotals {
    pub count: u64,
    pub bytes: u64,
    /// Among equals the oldest comes first.
    pub largest: Vec<Leak>,
    /// Held by processes that have exited.
    pub gone: u64,
    pub gone_bytes: u64,
}

#[derive(Clone, Copy, Default)]
pub struct LiveAllocation {
    /// 0 if it is not known.
    pub size: u64,
    pub since_ns: u64,
    pub begin: u64,
    pub launches: u64,
    pub function: u32,
    /// The call site, if the recording has stacks.
    pub site: Option<Site>,
}

/// An allocation that was live at the end of its process, or of the recording.
#[derive(Clone, Copy)]
pub struct Leftover {
    pub pid: u32,
    pub ptr: u64,
    pub space: u8,
    pub live: LiveAllocation,
    pub at_ns: u64,
    pub at_exit: bool,
}

/// Allocations that were left, and the leaks among them.
#[derive(Clone, Default)]
struct LeftoverSums {
    held: Sum,
    leaks: Sum,
}

/// The largest allocations, and the sum of each space, by index.
#[derive(Clone, Default)]
struct Sum {
    by_space: BTreeMap<u8, LeakSpace>,
    largest: Vec<Leftover>,
}

impl Memories {
    /// Sets the number of the current line, which measures progress of the recording.
    pub fn at(&mut self, event: u64) {
        self.event = event;
    }

    /// `ns` is the duration of the call, 0 if it is not known. None: do not look for loops, which take much memory.
    pub fn add(&mut self, ts_ns: u64, memory: &Memory, ns: Option<u64>, stacks: &Stacks) {
        let size = memory.size.unwrap_or(0);
        let space = self.names.space(&memory.space);
        let names = &self.names;
        let seen = self.by_space.entry(space).or_insert_with(|| {
            let space = names.of_space(space).to_owned();
            SpaceFigures { space, ..SpaceFigures::default() }
        });
        let (count, bytes) = match memory.op {
            Op::Alloc => (&mut seen.allocations, &mut seen.allocated_bytes),
            Op::Free => (&mut seen.frees, &mut seen.freed_bytes),
        };
        // A carried allocation was made before the period of the dump.
        if !memory.carried {
            *count += 1;
            *bytes = bytes.saturating_add(size);
        }
        self.earlier_frees += u64::from(memory.op == Op::Free && memory.earlier);
        let function = if memory.op == Op::Alloc { self.names.function(&memory.name) } else { 0 };
        let site = stacks.site_of_memory(memory);
        if let Some(site) = site {
            self.names.site(site, stacks);
        }
        let begin = memory.begin.unwrap_or(self.event);
        let live = LiveAllocation { size, since_ns: ts_ns, begin, launches: 0, function, site };
        self.follow(memory, space, live);
        self.reserved(memory, size);
        if let Some(ns) = ns
            && memory.space != "pool"
            && size > 0
            && !memory.carried
        {
            self.loops.add(memory, (space, size), (function, site), ns);
        }
    }

    fn follow(&mut self, memory: &Memory, space: u8, mut live: LiveAllocation) {
        let is_own = memory.space != NOT_ITS_OWN;
        let followed = is_own && memory.op == Op::Alloc;
        let Some(holding) = entry(&mut self.processes, memory.pid, PROCESSES) else {
            self.unfollowed += u64::from(followed);
            return;
        };
        let at = (memory.ptr, space);
        if followed {
            let began = holding.made.add(live.group(space), live.since_ns, live.begin, &mut self.groups);
            live.launches = began.launches;
        }
        if !followed {
            let freed = holding.live.remove(&at).filter(|_| is_own);
            self.live -= usize::from(freed.is_some());
        } else if let Some(before) = holding.live.get_mut(&at) {
            *before = live;
        } else if self.live < MOST_LIVE {
            holding.live.insert(at, live);
            self.live += 1;
        } else {
            self.unfollowed += 1;
        }
    }

    fn reserved(&mut self, memory: &Memory, size: u64) {
        let Some(holding) = self.processes.get_mut(&memory.pid) else { return };
        let reserved = RESERVED.iter().zip(&mut holding.reserved);
        let Some((_, live)) = reserved.into_iter().find(|(space, _)| **space == memory.space) else { return };
        *live = memory.after(*live);
        let sum = holding.reserved.iter().copied().fold(0, u64::saturating_add);
        raise(&mut self.peaks, memory.pid, sum);
        if let Some(before) = holding.by_runtime.remove(&memory.ptr) {
            holding.runtime_live = holding.runtime_live.saturating_sub(before);
        }
        if memory.op == Op::Alloc && memory.runtime && holding.by_runtime.len() < holding.live.len() {
            holding.by_runtime.insert(memory.ptr, size);
            holding.runtime_live = holding.runtime_live.saturating_add(size);
            raise(&mut self.runtime_peaks, memory.pid, holding.runtime_live);
        }
    }

    /// Records that the process launches a kernel or a graph.
    pub fn launched(&mut self, pid: u32, ts_ns: u64) {
        if let Some(holding) = self.processes.get_mut(&pid) {
            holding.made.launched(ts_ns);
        }
    }

    /// Records that the process exited, or called exec.
    pub fn ended(&mut self, pid: u32, ts_ns: u64) {
        if let Some(holding) = self.remove(pid) {
            self.gone.add(&self.names, pid, &holding, (ts_ns, self.event), true);
        }
    }

    fn remove(&mut self, pid: u32) -> Option<Holding> {
        let holding = self.processes.remove(&pid)?;
        self.live -= holding.live.len();
        self.groups -= holding.made.groups();
        Some(*holding)
    }

    /// Closes a process and returns what it held, each allocation with whether it leaks.
    pub fn close(&mut self, pid: u32, at_ns: u64, at_exit: bool) -> Vec<(Leftover, bool)> {
        let holding = self.remove(pid).unwrap_or_default();
        holding.judged(pid, (at_ns, self.event), at_exit).collect()
    }

    /// The processes that allocated or freed memory.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    pub fn peak_of(&self, pid: u32) -> u64 {
        self.peaks.get(&pid).copied().unwrap_or(0)
    }

    pub fn runtime_peak_of(&self, pid: u32) -> u64 {
        self.runtime_peaks.get(&pid).copied().unwrap_or(0)
    }

    /// The figures of a recording that ends at `at_ns`.
    pub fn finish(&self, at_ns: u64) -> MemoryFigures {
        let mut gone = self.gone.clone();
        let mut processes: Vec<_> = self.processes.iter().collect();
        processes.sort_by_key(|(pid, _)| **pid);
        for (pid, holding) in processes {
            gone.add(&self.names, *pid, holding, (at_ns, self.event), false);
        }
        let mut by_space: Vec<SpaceFigures> = self.by_space.values().cloned().collect();
        by_space.sort_by(|a, b| a.space.cmp(&b.space));
        let sum = |of: fn(&SpaceFigures) -> u64| by_space.iter().map(of).fold(0, u64::saturating_add);
        MemoryFigures {
            allocations: sum(|space| space.allocations),
            allocated_bytes: sum(|space| space.allocated_bytes),
            frees: sum(|space| space.frees),
            freed_bytes: sum(|space| space.freed_bytes),
            held: gone.held.figures(&self.names),
            leaks: gone.leaks.figures(&self.names),
            by_space,
        }
    }

    /// What is held at `at_ns`, with the `listed` largest allocations. Visits all allocations, but copies none.
    pub fn held(&self, at_ns: u64, listed: usize) -> LiveTotals {
        let by_space = || self.gone.held.by_space.values();
        let mut held = LiveTotals {
            gone: by_space().map(|space| space.count).sum(),
            gone_bytes: by_space().map(|space| space.bytes).fold(0, u64::saturating_add),
            ..LiveTotals::default()
        };
        let mut largest: Vec<Leftover> = Vec::new();
        for left in self.processes.iter().flat_map(|(pid, holding)| holding.left(*pid, at_ns, false)) {
            held.count += 1;
            held.bytes = held.bytes.saturating_add(left.live.size);
            largest.push(left);
            if largest.len() >= 2 * listed + 100 {
                keep_largest(&mut largest, listed);
            }
        }
        keep_largest(&mut largest, listed);
        held.largest = largest.iter().map(|left| left.leak(&self.names)).collect();
        held
    }

    /// `all_ns` is the time of all calls.
    pub fn findings(&self, all_ns: u64) -> Vec<Finding> {
        self.loops.findings(all_ns, &self.names)
    }

    /// The process ended, and has no figures of its own any more.
    pub fn fold(&mut self, pid: u32) {
        self.peaks.remove(&pid);
        self.runtime_peaks.remove(&pid);
        self.loops.fold(pid);
    }
}

fn raise(peaks: &mut Map<u32, u64>, pid: u32, live: u64) {
    if live > 0
        && let Some(peak) = entry(peaks, pid, PROCESSES)
    {
        *peak = live.max(*peak);
    }
}

impl Names {
    pub fn space(&mut self, name: &str) -> u8 {
        let name = Some(name).filter(|name| name.len() <= LONGEST_SPACE);
        // There are 32 at most.
        self.spaces.number(name, |name| name.unwrap_or_else(|| OTHERS.into()), |_, _| true) as u8
    }

    pub fn of_space(&self, space: u8) -> &str {
        self.spaces.get(usize::from(space)).map_or("?", |name| name)
    }

    pub fn function(&mut self, name: &str) -> u32 {
        self.functions.number(Some(name), |name| name.unwrap_or_else(|| OTHERS.into()), |_, _| true) as u32
    }

    /// Keeps the text of a call site.
    fn site(&mut self, site: Site, stacks: &Stacks) {
        self.sites.entry(site).or_insert_with(|| stacks.text(site).into());
    }

    /// A call site of which only the text is known, as in the figures of a recording without events.
    pub fn site_of_text(&mut self, text: &str) -> Option<Site> {
        let known = self.sites.iter().find(|(_, known)| ***known == *text).map(|(site, _)| *site);
        known.or_else(|| {
            let site = Site::new(u32::try_from(self.sites.len() + 1).ok()?)?;
            self.sites.insert(site, text.into());
            Some(site)
        })
    }

    pub fn of_site(&self, site: Site) -> &str {
        self.sites.get(&site).map_or("?", |text| text)
    }

    pub fn of_function(&self, function: u32) -> &str {
        self.functions.get(function as usize).map_or("?", |name| name)
    }
}

impl Holding {
    fn left(&self, pid: u32, at_ns: u64, at_exit: bool) -> impl Iterator<Item = Leftover> {
        self.live.iter().map(move |((ptr, space), live)| Leftover {
            pid,
            ptr: *ptr,
            space: *space,
            live: *live,
            at_ns,
            at_exit,
        })
    }

    /// Each allocation that is left, and whether it leaks. `end` is a time and the number of a line.
    fn judged(&self, pid: u32, end: (u64, u64), at_exit: bool) -> impl Iterator<Item = (Leftover, bool)> {
        let live = self.live.iter().map(|((_, space), live)| (live.group(*space), live.began()));
        let growing = self.made.growing(live, end.0, end.1);
        let left = self.left(pid, end.0, at_exit);
        left.map(move |left| (left, growing.contains(&left.live.group(left.space))))
    }
}

impl Leftover {
    pub fn age_ns(&self) -> u64 {
        self.at_ns.saturating_sub(self.live.since_ns)
    }

    fn leak(&self, names: &Names) -> Leak {
        Leak {
            pid: self.pid,
            space: names.of_space(self.space).to_owned(),
            ptr: format!("{:#x}", self.ptr),
            size: self.live.size,
            age_ns: self.age_ns(),
            function: names.of_function(self.live.function).to_owned(),
            site: self.live.site.map(|site| names.of_site(site).to_owned()),
            begin: self.live.begin,
            at_exit: self.at_exit,
        }
    }
}

/// Keeps the largest; among equals the oldest come first.
fn keep_largest(all: &mut Vec<Leftover>, listed: usize) {
    all.sort_by_key(|left| {
        (std::cmp::Reverse(left.live.size), left.live.begin, left.pid, left.ptr, left.space)
    });
    all.truncate(listed);
}

impl LeftoverSums {
    fn add(&mut self, names: &Names, pid: u32, holding: &Holding, end: (u64, u64), at_exit: bool) {
        for (left, leaks) in holding.judged(pid, end, at_exit) {
            if leaks {
                self.leaks.add(names, left);
            }
            self.held.add(names, left);
        }
    }
}

impl LiveAllocation {
    fn group(&self, space: u8) -> Group {
        Group::of(self.function, space, self.size, self.site)
    }

    fn began(&self) -> Moment {
        Moment { ns: self.since_ns, event: self.begin, launches: self.launches }
    }
}

impl Sum {
    fn add(&mut self, names: &Names, left: Leftover) {
        let space = self.by_space.entry(left.space).or_insert_with(|| {
            let space = names.of_space(left.space).to_owned();
            LeakSpace { space, ..LeakSpace::default() }
        });
        space.count += 1;
        space.bytes = space.bytes.saturating_add(left.live.size);
        space.at_exit += u64::from(left.at_exit);
        self.largest.push(left);
        if self.largest.len() >= 4 * LISTED {
            keep_largest(&mut self.largest, LISTED);
        }
    }

    fn figures(mut self, names: &Names) -> Leaks {
        keep_largest(&mut self.largest, LISTED);
        let mut by_space: Vec<LeakSpace> = self.by_space.into_values().collect();
        by_space.sort_by(|a, b| a.space.cmp(&b.space));
        Leaks {
            count: by_space.iter().map(|s| s.count).sum(),
            bytes: by_space.iter().fold(0, |sum: u64, s| sum.saturating_add(s.bytes)),
            by_space,
            largest: self.largest.iter().map(|left| left.leak(names)).collect(),
        }
    }
}
