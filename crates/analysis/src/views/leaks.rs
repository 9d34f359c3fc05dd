//! `report leaks`: allocations that were never freed, like bcc's memleak: grouped, then one by one. It separates leaks
//! (see `growth`) from memory that is merely held.
//!
//! Memory use grows with the allocations that are live at one time. When a process exits, only sums and its largest
//! allocations stay.

use super::*;
use crate::memory::{self, Leftover, LiveAllocation, Names, PROCESSES};
use gpurec_trace::bounds::MOST_LIVE;

pub const KIND: Kind =
    kind::<Leaks>("leaks", "what was never freed: what leaks, what is held (--older-than, --top)")
        .table("groups", 10)
        .figures(&[LEAKS, shows("memory.held", "how much was held at exit", &["held_count", "held_bytes"])]);

/// Limits on distinct groups, and on listed allocations.
const MOST_GROUPS: usize = 65_536;
const MOST_LISTED: usize = 10_000;
/// Number of call sites that the text lists in words.
const SITES: usize = 5;

#[derive(Default)]
struct Leaks {
    memories: memory::Memories,
    gone: Leftovers,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    function: u32,
    space: u8,
    size: u64,
    leaks: bool,
    site: Option<Site>,
}

#[derive(Clone, Default)]
struct Group {
    count: u64,
    oldest_ns: u64,
    newest_ns: u64,
}

/// Allocations that were never freed and are old enough.
#[derive(Default)]
struct Leftovers {
    older_ns: u64,
    groups: HashMap<Key, Group>,
    more_groups: u64,
    /// Each with whether it leaks.
    largest: Vec<(Leftover, bool)>,
    all: Total,
    leaks: Total,
    younger: u64,
}

impl View for Leaks {
    fn configure(&mut self, config: &ReportConfig) {
        let older = config.older_than.unwrap_or_default();
        self.gone.older_ns = u64::try_from(older.as_nanos()).unwrap_or(u64::MAX);
    }

    fn line(&mut self, line: &Line, context: &Context) {
        if !matches!(line.body, Body::Finish(_)) {
            self.memories.at(line.event_id);
        }
        match &line.body {
            Body::Memory(memory) => self.memories.add(line.ts_ns, memory, None, &context.stacks),
            Body::Begin(begin) if begin.launch.is_some() => self.memories.launched(begin.pid, line.ts_ns),
            Body::Process(Process::Exit(exit)) => self.close(line.ts_ns, exit.pid, true),
            Body::Process(Process::Exec(exec)) => self.close(line.ts_ns, exec.pid, true),
            _ => {}
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        for pid in self.memories.pids() {
            self.close(context.last_ns, pid, false);
        }
        self.gone.report(&self.memories, context.rows)
    }

    /// Reports the largest allocations that the summary kept.
    fn of_figures(&mut self, figures: &Figures, _: &Context) -> Option<Report> {
        let figures = &figures.memory;
        let hidden = figures.held.count.saturating_sub(figures.held.largest.len() as u64);
        let names = &mut self.memories.names;
        for leak in &figures.held.largest {
            let function = names.function(&leak.function);
            let site = leak.site.as_deref().and_then(|text| names.site_of_text(text));
            let left = Leftover {
                pid: leak.pid,
                ptr: u64::from_str_radix(leak.ptr.trim_start_matches("0x"), 16).unwrap_or(0),
                space: names.space(&leak.space),
                live: LiveAllocation {
                    size: leak.size,
                    begin: leak.begin,
                    function,
                    site,
                    ..LiveAllocation::default()
                },
                at_ns: leak.age_ns,
                at_exit: leak.at_exit,
            };
            self.gone.add(left, figures.leaks.largest.contains(leak), names);
        }
        let mut report = self.gone.report(&self.memories, usize::MAX);
        report.words_if(hidden > 0, format!("{hidden} smaller ones are not in the summary of this trace."));
        Some(report)
    }
}

impl Leaks {
    /// Closes a process, at its exit or at the end of the recording.
    fn close(&mut self, at_ns: u64, pid: u32, at_exit: bool) {
        for (left, leaks) in self.memories.close(pid, at_ns, at_exit) {
            self.gone.add(left, leaks, &self.memories.names);
        }
    }
}

impl Leftovers {
    fn add(&mut self, left: Leftover, leaks: bool, names: &Names) {
        let age_ns = left.age_ns();
        if age_ns < self.older_ns {
            self.younger += 1;
            return;
        }
        let Leftover { pid, space, live: LiveAllocation { function, size, site, .. }, .. } = left;
        self.all.add(size);
        if leaks {
            self.leaks.add(size);
        }
        match entry(&mut self.groups, Key { pid, function, space, size, leaks, site }, MOST_GROUPS) {
            Some(group) => {
                group.newest_ns = if group.count == 0 { age_ns } else { group.newest_ns.min(age_ns) };
                group.oldest_ns = group.oldest_ns.max(age_ns);
                group.count += 1;
            }
            None => self.more_groups += 1,
        }
        self.largest.push((left, leaks));
        if self.largest.len() >= 2 * MOST_LISTED {
            self.sort(names);
        }
    }

    /// Sorts by size, largest first; among equals the oldest comes first.
    fn sort(&mut self, names: &Names) {
        self.largest.sort_by_cached_key(|(left, _)| {
            let size = std::cmp::Reverse(left.live.size);
            (size, left.live.begin, left.pid, left.ptr, names.of_space(left.space).to_owned())
        });
        self.largest.truncate(MOST_LISTED);
    }

    /// `most` limits the rows of each table.
    fn report(&mut self, memories: &memory::Memories, most: usize) -> Report {
        let names = &memories.names;
        self.sort(names);
        let mut report = Report::default();
        report.facts([
            ("count", self.leaks.count),
            ("bytes", self.leaks.sum),
            ("held_count", self.all.count),
            ("held_bytes", self.all.sum),
            ("younger", self.younger),
        ]);
        let older = positive(self.older_ns).map(|ns| format!(" for {} and longer", duration(ns)));
        let older = older.unwrap_or_default();
        let total = |count: u64, bytes: u64| format!("{} in {}", size(bytes), plural(count, "allocation"));
        let is_empty = self.all.count == 0;
        if is_empty {
            report.title(format!("Nothing was left allocated{older}."));
        }
        if self.leaks.count > 0 {
            let leaks = total(self.leaks.count, self.leaks.sum);
            report.title(format!("Leaks{older}: {leaks}, by where they come from"));
            self.grouped(&mut report, names, (true, most));
            self.sites(&mut report, names);
        }
        let held = self.all.count.saturating_sub(self.leaks.count);
        if held > 0 {
            let held = total(held, self.all.sum.saturating_sub(self.leaks.sum));
            let none = if self.leaks.count == 0 { "; nothing leaks" } else { "" };
            report.title(format!("Held at exit{older}: {held}, by where they come from{none}"));
        }
        if held > 0 || is_empty {
            self.grouped(&mut report, names, (false, most));
        }
        if !is_empty {
            report.title("The largest");
        }
        self.single(&mut report, names, most);
        report.words_if(
            self.younger > 0,
            format!("{} younger than that are left out.", plural(self.younger, "allocation")),
        );
        report.words_if(
            memories.unfollowed > 0,
            format!(
                "{} beyond {MOST_LIVE} live ones, or in more than {PROCESSES} processes, were not followed.",
                plural(memories.unfollowed, "allocation")
            ),
        );
        report.words_if(
            !is_empty,
            "A leak is a group of which there are more and more through the run. What is held was made once or did not grow: buffers, caches and pools, which the end of the process frees.",
        );
        report
    }

    fn grouped(&self, report: &mut Report, names: &Names, (leaks, most): (bool, usize)) {
        let mut groups: Vec<(&Key, &Group)> =
            self.groups.iter().filter(|(key, _)| key.leaks == leaks).collect();
        let bytes = |key: &Key, group: &Group| key.size.saturating_mul(group.count);
        let name = |key: &Key| {
            (key.pid, names.of_function(key.function), names.of_space(key.space), key.size, key.site)
        };
        groups
            .sort_by(|(a, x), (b, y)| (bytes(b, y), y.count, name(a)).cmp(&(bytes(a, x), x.count, name(b))));
        report.table(
            Listing::at_most(most, "groups", "groups", groups)
                .bytes(number("Bytes", "bytes"), |(key, group)| positive(bytes(key, group)))
                .count(number("Count", "count"), |(_, group)| group.count)
                .bytes(number("Each", "each_bytes"), |(key, _)| positive(key.size))
                .at(number("Oldest age (s)", "oldest_ns"), |(_, group)| group.oldest_ns)
                .at(number("Newest (s)", "newest_ns").minor(), |(_, group)| group.newest_ns)
                .count(number("PID", "pid"), |(key, _)| key.pid)
                .cell(text("Space", "space"), |(key, _)| names.of_space(key.space))
                .cell(text("Allocated by", "function"), |(key, _)| names.of_function(key.function))
                .cell(long("Call site", "call_site"), |(key, _)| key.site.map(|site| names.of_site(site)))
                .cell(data("kind"), |_| if leaks { "leak" } else { "held" })
                .more(if leaks { 0 } else { self.more_groups }),
        );
    }

    /// The leaks by call site and function, of all sizes together.
    fn sites(&self, report: &mut Report, names: &Names) {
        let mut sites: HashMap<(Site, u32), Total> = HashMap::new();
        for (key, group) in self.groups.iter().filter(|(key, _)| key.leaks) {
            let Some(site) = key.site else { continue };
            let total = sites.entry((site, key.function)).or_default();
            total.count += group.count;
            total.sum = total.sum.saturating_add(key.size.saturating_mul(group.count));
        }
        let mut sites: Vec<_> = sites.into_iter().collect();
        let name = |key: &(Site, u32)| (names.of_site(key.0), names.of_function(key.1));
        sites.sort_by(|(a, x), (b, y)| (y, name(a)).cmp(&(x, name(b))));
        let said = sites.iter().take(SITES).map(|((site, function), total)| {
            let (site, function) = (clean(names.of_site(*site)), clean(names.of_function(*function)));
            let allocations = plural(total.count, "allocation");
            format!("  {} in {allocations}, {site} → {function}", size(total.sum))
        });
        report.lines(said.collect());
        report.data(
            Listing::new("sites", "call sites", &sites)
                .bytes(data("bytes"), |(_, total)| total.sum)
                .count(data("count"), |(_, total)| total.count)
                .cell(data("call_site"), |((site, _), _)| names.of_site(*site))
                .cell(data("function"), |((_, function), _)| names.of_function(*function)),
        );
    }

    fn single(&self, report: &mut Report, names: &Names, most: usize) {
        report.table(
            Listing::at_most(most, "allocations", "allocations", &self.largest)
                .cell(number("Address", "ptr"), |(left, _)| format!("{:#x}", left.ptr))
                .bytes(number("Bytes", "bytes"), |(left, _)| positive(left.live.size))
                .at(number("Age (s)", "age_ns"), |(left, _)| left.age_ns())
                .count(number("PID", "pid"), |(left, _)| left.pid)
                .cell(text("Space", "space"), |(left, _)| names.of_space(left.space))
                .cell(text("Allocated by", "function"), |(left, _)| names.of_function(left.live.function))
                .cell(long("Call site", "call_site"), |(left, _)| {
                    left.live.site.map(|site| names.of_site(site))
                })
                .count(number("Event", "begin"), |(left, _)| left.live.begin)
                .cell(text("Live", "live"), |(left, _)| if left.at_exit { "at exit" } else { "at the end" })
                .cell(data("kind"), |(_, leaks)| if *leaks { "leak" } else { "held" })
                .more(self.all.count.saturating_sub(self.largest.len() as u64)),
        );
    }
}
