//! `report leaks`: allocations that were never freed, like bcc's memleak: grouped, then one by one. It separates leaks
//! (see `growth`) from memory that is merely held.
//!
//! Memory use grows with the allocations that are live at one time. When a process exits, only sums and its largest
//! allocations stay.

use std::collections::HashMap;

use super::output::Report;
use super::{ReportConfig, Told, View};
use crate::Figures;
use crate::Summary;
use crate::by_process::ByProcess;
use crate::growth::{Group as Kind, Made, Moment};
use crate::memory::{Names, PROCESSES};
use crate::table::{Cell, Column, Table, data, number, size, text};
use crate::text::{duration, plural};
use gpurec_trace::bounds::{MOST_LIVE, entry};
use gpurec_trace::{Body, Line, Memory, Op, Process};

const GROUPS: &[Column] = &[
    number("Bytes", "bytes"),
    number("Count", "count"),
    number("Each", "each_bytes"),
    number("Oldest age (s)", "oldest_ns"),
    number("Newest (s)", "newest_ns").minor(),
    number("PID", "pid"),
    text("Space", "space"),
    text("Allocated by", "function"),
    data("kind"),
];

const SINGLE: &[Column] = &[
    number("Address", "ptr"),
    number("Bytes", "bytes"),
    number("Age (s)", "age_ns"),
    number("PID", "pid"),
    text("Space", "space"),
    text("Allocated by", "function"),
    number("Event", "begin"),
    text("Live", "live"),
    data("kind"),
];

/// Limits on distinct groups, and on listed allocations.
const MOST_GROUPS: usize = 65_536;
const MOST_LISTED: usize = 10_000;

/// Memory of another process is not a leak of this one.
const NOT_ITS_OWN: &str = "ipc";

pub fn make(config: &ReportConfig) -> Box<dyn View> {
    let older_ns = config.older_than.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    Box::new(Leaks { older_ns, ..Leaks::default() })
}

#[derive(Default)]
struct Leaks {
    older_ns: u64,
    /// Used only for a trace without events.
    summary: Summary,
    names: Names,
    /// By address and space: the same number may be an address and a handle.
    live: ByProcess<(u64, u8), Live>,
    made: HashMap<u32, Made>,
    /// Number of groups in `made`.
    groups: usize,
    event: u64,
    gone: Gone,
}

/// A live allocation; `function` is an index.
#[derive(Clone, Copy, Default)]
struct Live {
    size: Option<u64>,
    since_ns: u64,
    begin: u64,
    launches: u64,
    function: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    function: u32,
    space: u8,
    size: Option<u64>,
    leaks: bool,
}

#[derive(Clone, Default)]
struct Group {
    count: u64,
    oldest_ns: u64,
    newest_ns: u64,
}

#[derive(Clone, Copy)]
struct Leak {
    pid: u32,
    ptr: u64,
    space: u8,
    age_ns: u64,
    at_exit: bool,
    leaks: bool,
    live: Live,
}

/// A number of allocations and their bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    bytes: u64,
}

/// Allocations that were never freed and are old enough.
#[derive(Default)]
struct Gone {
    groups: HashMap<Key, Group>,
    more_groups: u64,
    largest: Vec<Leak>,
    all: Sum,
    leaks: Sum,
    younger: u64,
    /// Allocations made while the table of live ones was full.
    unfollowed: u64,
}

impl View for Leaks {
    fn line(&mut self, line: &Line) {
        if !matches!(line.body, Body::Finish(_)) {
            self.event = line.event_id;
        }
        match &line.body {
            Body::Memory(memory) => self.memory(line.ts_ns, memory),
            Body::Begin(begin) if begin.launch.is_some() => {
                if let Some(made) = self.made.get_mut(&begin.pid) {
                    made.launched(line.ts_ns);
                }
            }
            Body::Process(Process::Exit(exit)) => self.over(line.ts_ns, exit.pid, true),
            Body::Process(Process::Exec(exec)) => self.over(line.ts_ns, exec.pid, true),
            Body::Header(_) | Body::Finish(_) => self.summary.add(line),
            _ => {}
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        for pid in self.live.pids() {
            self.over(told.last_ns, pid, false);
        }
        self.gone.report(self.older_ns, &self.names)
    }

    fn of_figures(&mut self, _: &Figures, told: &Told) -> Option<Report> {
        Some(self.stored(told))
    }
}

impl Leaks {
    fn memory(&mut self, ts_ns: u64, memory: &Memory) {
        if memory.space == NOT_ITS_OWN {
            return;
        }
        let at = (memory.ptr, self.names.space(&memory.space));
        if memory.op == Op::Free {
            self.live.remove(memory.pid, &at);
            return;
        }
        let function = self.names.function(&memory.name);
        let mut live =
            Live { size: memory.size, since_ns: ts_ns, begin: memory.begin, launches: 0, function };
        let room = self.live.has(memory.pid) || self.live.processes() < PROCESSES;
        if room {
            let made = self.made.entry(memory.pid).or_default();
            live.launches = made.add(live.group(at.1), ts_ns, memory.begin, &mut self.groups).launches;
        }
        match self.live.entry(memory.pid, at, if room { MOST_LIVE } else { 0 }) {
            Some(known) => *known = live,
            None => self.gone.unfollowed += 1,
        }
    }

    /// Closes a process, at its exit or at the end of the recording.
    fn over(&mut self, at_ns: u64, pid: u32, at_exit: bool) {
        let made = self.made.remove(&pid).unwrap_or_default();
        self.groups -= made.groups();
        let left: Vec<((u64, u8), Live)> = self.live.ended(pid).into_iter().collect();
        let live = left.iter().map(|((_, space), live)| (live.group(*space), live.began()));
        let growing = made.growing(live, at_ns, self.event);
        for ((ptr, space), live) in left {
            let age_ns = at_ns.saturating_sub(live.since_ns);
            let leaks = growing.contains(&live.group(space));
            let leak = Leak { pid, ptr, space, age_ns, at_exit, leaks, live };
            self.gone.add(self.older_ns, leak, &self.names);
        }
    }

    /// Reports the largest allocations that the summary kept, for a trace without events.
    fn stored(&mut self, told: &Told) -> Report {
        let memory = self.summary.of_file(&told.notes).memory;
        let hidden = memory.held.count.saturating_sub(memory.held.largest.len() as u64);
        for leak in memory.held.largest {
            let leaks = memory.leaks.largest.contains(&leak);
            let live = Live {
                size: Some(leak.size),
                since_ns: 0,
                function: self.names.function(&leak.function),
                begin: leak.begin,
                launches: 0,
            };
            let digits = leak.ptr.strip_prefix("0x").unwrap_or(&leak.ptr);
            let ptr = u64::from_str_radix(digits, 16).unwrap_or(0);
            let space = self.names.space(&leak.space);
            let leak =
                Leak { pid: leak.pid, ptr, space, age_ns: leak.age_ns, at_exit: leak.at_exit, leaks, live };
            self.gone.add(self.older_ns, leak, &self.names);
        }
        let mut report = self.gone.report(self.older_ns, &self.names);
        if hidden > 0 {
            report.words(format!("{hidden} smaller ones are not in the summary of this trace."));
        }
        report
    }
}

impl Gone {
    fn add(&mut self, older_ns: u64, leak: Leak, names: &Names) {
        if leak.age_ns < older_ns {
            self.younger += 1;
            return;
        }
        self.all.add(&leak);
        if leak.leaks {
            self.leaks.add(&leak);
        }
        self.group(&leak);
        self.largest.push(leak);
        if self.largest.len() >= 2 * MOST_LISTED {
            self.sort(names);
        }
    }

    fn group(&mut self, leak: &Leak) {
        let Leak { pid, space, age_ns, leaks, live: Live { function, size, .. }, .. } = *leak;
        let key = Key { pid, function, space, size, leaks };
        let Some(group) = entry(&mut self.groups, key, MOST_GROUPS) else {
            self.more_groups += 1;
            return;
        };
        group.newest_ns = if group.count == 0 { age_ns } else { group.newest_ns.min(age_ns) };
        group.oldest_ns = group.oldest_ns.max(age_ns);
        group.count += 1;
    }

    /// Sorts by size, largest first; among equals the oldest comes first.
    fn sort(&mut self, names: &Names) {
        let size = |leak: &Leak| std::cmp::Reverse(leak.live.size);
        self.largest.sort_by_cached_key(|leak| {
            (size(leak), leak.live.begin, leak.pid, leak.ptr, names.of_space(leak.space).to_owned())
        });
        self.largest.truncate(MOST_LISTED);
    }

    fn report(&mut self, older_ns: u64, names: &Names) -> Report {
        self.sort(names);
        let mut report = Report::default();
        report.fact("count", self.leaks.count);
        report.fact("bytes", self.leaks.bytes);
        report.fact("held_count", self.all.count);
        report.fact("held_bytes", self.all.bytes);
        report.fact("younger", self.younger);
        let older =
            if older_ns > 0 { format!(" for {} and longer", duration(older_ns)) } else { String::new() };
        if self.all.count == 0 {
            report.title(format!("Nothing was left allocated{older}."));
            self.grouped(&mut report, names, false);
            self.single(&mut report, names);
            self.younger(&mut report);
            return report;
        }
        let held = self.all.less(self.leaks);
        if self.leaks.count > 0 {
            report.title(format!("Leaks{older}: {}, by where they come from", self.leaks.text()));
            self.grouped(&mut report, names, true);
        }
        if held.count > 0 {
            let none = if self.leaks.count == 0 { "; nothing leaks" } else { "" };
            report.title(format!("Held at exit{older}: {}, by where they come from{none}", held.text()));
            self.grouped(&mut report, names, false);
        }
        report.title("The largest");
        self.single(&mut report, names);
        self.younger(&mut report);
        report.words(
            "A leak is a group of which there are more and more through the run. What is held was made once or did not grow: buffers, caches and pools, which the end of the process frees.",
        );
        report
    }

    fn younger(&self, report: &mut Report) {
        if self.younger > 0 {
            report.words(format!("{} younger than that are left out.", plural(self.younger, "allocation")));
        }
        if self.unfollowed > 0 {
            report.words(format!(
                "{} beyond {MOST_LIVE} live ones, or in more than {PROCESSES} processes, were not followed.",
                plural(self.unfollowed, "allocation")
            ));
        }
    }

    fn grouped(&self, report: &mut Report, names: &Names, leaks: bool) {
        let mut table = Table::new("groups", "groups", GROUPS);
        let mut groups: Vec<(&Key, &Group)> =
            self.groups.iter().filter(|(key, _)| key.leaks == leaks).collect();
        let bytes = |key: &Key, group: &Group| key.size.unwrap_or(0).saturating_mul(group.count);
        let name =
            |key: &Key| (key.pid, names.of_function(key.function), names.of_space(key.space), key.size);
        groups
            .sort_by(|(a, x), (b, y)| (bytes(b, y), y.count, name(a)).cmp(&(bytes(a, x), x.count, name(b))));
        for (key, group) in groups {
            table.row(vec![
                Cell::optional(key.size.map(|_| bytes(key, group)), Cell::Bytes),
                Cell::Count(group.count),
                Cell::optional(key.size, Cell::Bytes),
                Cell::At(group.oldest_ns),
                Cell::At(group.newest_ns),
                Cell::Count(key.pid.into()),
                names.of_space(key.space).into(),
                names.of_function(key.function).into(),
                kind(leaks),
            ]);
        }
        table.more(if leaks { 0 } else { self.more_groups });
        report.table(table);
    }

    fn single(&self, report: &mut Report, names: &Names) {
        let mut table = Table::new("allocations", "allocations", SINGLE);
        for leak in &self.largest {
            table.row(vec![
                Cell::Text(format!("{:#x}", leak.ptr)),
                Cell::optional(leak.live.size, Cell::Bytes),
                Cell::At(leak.age_ns),
                Cell::Count(leak.pid.into()),
                names.of_space(leak.space).into(),
                names.of_function(leak.live.function).into(),
                Cell::Count(leak.live.begin),
                if leak.at_exit { "at exit" } else { "at the end" }.into(),
                kind(leak.leaks),
            ]);
        }
        table.more(self.all.count.saturating_sub(self.largest.len() as u64));
        report.table(table);
    }
}

impl Live {
    fn group(&self, space: u8) -> Kind {
        Kind::of(self.function, space, self.size.unwrap_or(0))
    }

    fn began(&self) -> Moment {
        Moment { ns: self.since_ns, event: self.begin, launches: self.launches }
    }
}

impl Sum {
    fn add(&mut self, leak: &Leak) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(leak.live.size.unwrap_or(0));
    }

    fn less(self, other: Sum) -> Sum {
        Sum { count: self.count.saturating_sub(other.count), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    fn text(self) -> String {
        format!("{} in {}", size(self.bytes), plural(self.count, "allocation"))
    }
}

fn kind(leaks: bool) -> Cell {
    if leaks { "leak" } else { "held" }.into()
}
