//! Figures to text for a person: what is always said first, then each section
//! only where there is something to say.

use std::collections::BTreeMap;

use super::figures::{Cost, Figures, Function, ProcessSeen};
use super::{budget, driver_text, pauses, sections, sleeps};
pub(super) use crate::say::clean;
use crate::say::clean_lines;

const TOP_FUNCTIONS: usize = 20;
const TOP_PROCESSES: usize = 10;
const TOP_OTHERS: usize = 10;

/// The summary, with lines of prose and lists no wider than `width`.
pub fn print(figures: &Figures, width: usize) -> String {
    let mut page = Page::new(width);
    page.line("=== TRACE SUMMARY ===");
    userspace(&mut page, figures);
    driver_text::kernel_space(&mut page, figures);
    sections::leaks(&mut page, figures);
    sections::kernels(&mut page, figures);
    sections::copies(&mut page, figures);
    functions(&mut page, figures);
    sync(&mut page, figures);
    driver_text::sections(&mut page, figures);
    failures(&mut page, figures);
    sections::error_windows(&mut page, figures);
    sections::findings(&mut page, figures);
    in_flight(&mut page, figures);
    processes(&mut page, figures);
    libraries(&mut page, figures);
    not_hooked(&mut page, figures);
    lost(&mut page, figures);
    pauses::section(&mut page, figures);
    sleeps::section(&mut page, figures);
    budget::section(&mut page, figures);
    if let Some(cost) = &figures.cost {
        own_cost(&mut page, cost, figures.duration_ns);
    }
    recording(&mut page, figures);
    page.text
}

pub(super) struct Page {
    text: String,
    pub(super) width: usize,
}

impl Page {
    pub(super) fn new(width: usize) -> Page {
        Page { text: String::new(), width: width.max(40) }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// A line that is cut rather than broken.
    pub(super) fn cut(&mut self, line: &str) {
        let line = shortened(line, self.width);
        self.line(&line);
    }

    /// Its names are clean as a rule; what was forgotten is no command to a terminal either.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(&clean_lines(line));
        self.text.push('\n');
    }

    pub(super) fn section(&mut self, title: &str) {
        self.text.push('\n');
        self.line(title);
    }

    /// Words broken into lines, the first with `first` before it and the
    /// others indented as far.
    pub(super) fn wrapped(&mut self, first: &str, words: &str) {
        let indent = " ".repeat(first.len());
        let mut line = first.to_string();
        let mut empty = true;
        for word in words.split(' ') {
            if !empty && line.chars().count() + 1 + word.chars().count() > self.width {
                self.line(&line);
                line = indent.clone();
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(&line);
    }

    pub(super) fn more(&mut self, total: usize, shown: usize, what: &str) {
        if total > shown {
            self.line(&format!("  and {} more {what}", total - shown));
        }
    }
}

fn userspace(page: &mut Page, figures: &Figures) {
    page.section("USERSPACE (libcuda.so, libcudart.so):");
    page.line(&format!("  Total CUDA API calls: {}", figures.cuda_calls));
    page.line(&format!("  Kernel launches: {}", figures.kernel_launches));
    let (memory, transfers) = (&figures.memory, &figures.transfers);
    page.line(&format!("  Memory allocations: {}", memory.allocations));
    page.line(&format!("  Total memory allocated: {}", sections::bytes(memory.allocated_bytes)));
    page.line(&format!("  Memory transfers: {}", transfers.count));
    page.line(&format!("  Total data transferred: {}", sections::bytes(transfers.bytes)));
    let counts = [
        ("Graph launches", figures.graph_launches),
        ("Calls into other libraries", figures.other_calls),
        ("Calls left by an exception or longjmp", figures.unwound_calls),
        ("Returns without a call", figures.unmatched_ends),
    ];
    for (what, count) in counts {
        if count > 0 {
            page.line(&format!("  {what}: {count}"));
        }
    }
    let hooked = figures.libraries.iter().any(|l| l.functions > 0);
    if figures.cuda_calls == 0 && !hooked {
        let refused = figures.libraries.iter().any(|l| !l.not_hooked.is_empty());
        page.line(match figures.libraries.is_empty() {
            true => "  No CUDA library was loaded.",
            false if refused => "  CUDA libraries were loaded, but no function of theirs was hooked: \"Not hooked\" says why.",
            false => "  CUDA libraries were loaded, but no function of theirs was hooked: look at --only, --skip and --api.",
        });
    }
}

fn functions(page: &mut Page, figures: &Figures) {
    if figures.functions.is_empty() {
        return;
    }
    let sum = |functions: &[Function]| -> u128 { functions.iter().map(|f| u128::from(f.total_ns)).sum() };
    let total = sum(&figures.functions);
    page.section("Top functions by time:");
    let with_kernel = figures.kernel_space.is_some();
    let is_corrected = figures.functions.iter().take(TOP_FUNCTIONS).any(|f| f.corrected_ns.is_some());
    page.line(&format!(
        "  {:>8}  {:>15}  {:>9}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}{}{}  Name",
        "Time (%)",
        "Total Time (us)",
        "Num Calls",
        "Avg (us)",
        "Med (us)",
        "Min (us)",
        "Max (us)",
        "StdDev (us)",
        if is_corrected { format!("  {:>14}", "Corrected (us)") } else { String::new() },
        if with_kernel { format!("  {:>15}", "Driver (us)") } else { String::new() },
    ));
    for f in figures.functions.iter().take(TOP_FUNCTIONS) {
        page.line(&format!(
            "  {:>8}  {:>15}  {:>9}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}{}{}  {}",
            percent(u128::from(f.total_ns), total),
            micros(f.total_ns),
            f.calls,
            micros(f.avg_ns),
            micros(f.med_ns),
            micros(f.min_ns),
            micros(f.max_ns),
            micros(f.stddev_ns),
            match is_corrected {
                true => format!("  {:>14}", micros(f.corrected_ns.unwrap_or(f.total_ns))),
                false => String::new(),
            },
            f.kernel_ns.map(|ns| format!("  {:>15}", micros(ns))).unwrap_or_default(),
            clean(&f.name),
        ));
    }
    if let Some(rest) = figures.functions.get(TOP_FUNCTIONS..)
        && !rest.is_empty()
    {
        let share = percent(sum(rest), total);
        page.line(&format!("  and {} more functions, {share} % of the time", rest.len()));
    }
    page.wrapped(
        "  ",
        "Time (%) is of the sum of Total Time over all functions. A call made inside another counts in both, as cuLaunchKernel does inside cudaLaunchKernel, so the sum is more than the time spent. Med is within 1 %.",
    );
    if is_corrected {
        page.wrapped(
            "  ",
            "Corrected is Total Time less what recording the calls inside has added to it (see the cost below).",
        );
    }
    if with_kernel {
        page.wrapped(
            "  ",
            "Driver is how much of Total Time was in nvidia.ko, asleep or at work. What the GPU is given through its doorbells never comes there.",
        );
    }
}

fn sync(page: &mut Page, figures: &Figures) {
    let sync = &figures.sync;
    if sync.calls == 0 {
        return;
    }
    page.section(&format!(
        "Time blocked in synchronisation: {} in {}",
        duration(sync.total_ns),
        plural(sync.calls, "call")
    ));
    for f in sync.by_function.iter().take(TOP_OTHERS) {
        page.line(&format!(
            "  {:>12}  {:>9}  {}",
            duration(f.total_ns),
            plural(f.calls, "call"),
            clean(&f.name)
        ));
    }
    page.more(sync.by_function.len(), TOP_OTHERS, "functions");
}

fn failures(page: &mut Page, figures: &Figures) {
    let failures = &figures.failures;
    let Some(first) = &failures.first else {
        return;
    };
    page.section(&format!(
        "Failed calls: {}, the first at {} s in pid {} tid {}",
        failures.calls,
        seconds(first.ts_ns),
        first.pid,
        first.tid
    ));
    for kind in failures.by_error.iter().take(TOP_FUNCTIONS) {
        let code = kind.code.map(|c| c.to_string()).unwrap_or_default();
        page.line(&format!(
            "  {:>6} x  {:>3} {}  {} ({})",
            kind.count,
            code,
            clean(&kind.error),
            clean(&kind.function),
            clean(&kind.api)
        ));
    }
    page.more(failures.by_error.len(), TOP_FUNCTIONS, "kinds");
}

fn in_flight(page: &mut Page, figures: &Figures) {
    if figures.in_flight.is_empty() {
        return;
    }
    page.section(&format!("Calls in flight at the end: {}", figures.in_flight.len()));
    for call in figures.in_flight.iter().take(TOP_FUNCTIONS) {
        page.line(&format!(
            "  pid {} tid {}: {} for {}{}",
            call.pid,
            call.tid,
            clean(&call.name),
            duration(call.duration_ns),
            if call.died { ", when its process ended" } else { "" }
        ));
    }
    page.more(figures.in_flight.len(), TOP_FUNCTIONS, "calls");
}

fn processes(page: &mut Page, figures: &Figures) {
    if figures.processes.is_empty() {
        return;
    }
    let total = figures.processes.len() + figures.more_processes as usize;
    page.section(&format!("Processes: {total}"));
    for process in figures.processes.iter().take(TOP_PROCESSES) {
        let line = format!(
            "  pid {}: {}{}{}{}  {}",
            process.pid,
            plural(process.calls, "call"),
            sections::peak(process),
            process.rank.map(|r| format!(", rank {r}")).unwrap_or_default(),
            ending(process),
            clean(&process.command.join(" "))
        );
        let line = shortened(line.trim_end(), page.width);
        page.line(&line);
    }
    page.more(total, TOP_PROCESSES, "processes");
}

fn ending(process: &ProcessSeen) -> String {
    match (&process.signal, process.status) {
        (Some(signal), _) => format!(", killed by {}", clean(signal)),
        (None, Some(status)) => format!(", exit status {status}"),
        (None, None) => String::new(),
    }
}

fn libraries(page: &mut Page, figures: &Figures) {
    let hooked = figures.libraries.iter().filter(|l| l.functions > 0);
    let hooked: Vec<_> = hooked.collect();
    if hooked.is_empty() {
        return;
    }
    page.section("Libraries hooked:");
    for library in hooked.iter().take(TOP_OTHERS) {
        page.line(&format!("  {}  {}", clean(&library.path), plural(library.functions, "function")));
    }
    page.more(hooked.len() + figures.more_libraries as usize, hooked.len().min(TOP_OTHERS), "libraries");
}

/// By reason, since one reason often holds for many libraries.
fn not_hooked(page: &mut Page, figures: &Figures) {
    let of_libraries = figures.libraries.iter().map(|l| (&l.path, &l.not_hooked));
    let mut by_reason: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (place, refused) in of_libraries.chain(figures.refused.iter()) {
        for hook in refused {
            by_reason.entry(&hook.reason).or_default().entry(place).or_default().push(&hook.name);
        }
    }
    if by_reason.is_empty() {
        return;
    }
    let mut by_reason: Vec<_> = by_reason.into_iter().collect();
    let count = |places: &BTreeMap<&str, Vec<&str>>| places.values().map(Vec::len).sum::<usize>();
    by_reason.sort_by_key(|(_, places)| std::cmp::Reverse(count(places)));
    page.section("Not hooked:");
    let more = by_reason.get(TOP_FUNCTIONS..).unwrap_or_default();
    let more_hooks: usize = more.iter().map(|(_, places)| count(places)).sum();
    for (reason, places) in by_reason.iter().take(TOP_FUNCTIONS) {
        let mut words: Vec<String> =
            places.iter().take(TOP_OTHERS).map(|(place, names)| refused_in(place, names)).collect();
        if places.len() > words.len() {
            words.push(format!("and in {} more", places.len() - words.len()));
        }
        page.wrapped("  ", &format!("{}: {}", words.join("; "), clean(reason)));
    }
    if more_hooks > 0 {
        let line = format!("and {more_hooks} more for {} other reasons, which the trace has", more.len());
        page.wrapped("  ", &line);
    }
}

fn refused_in(place: &str, names: &[&str]) -> String {
    // Hooks in the kernel are few and chosen by name; a library's functions are many.
    let most = if place == "kernel" { 8 } else { 3 };
    let place = if place == "kernel" { "the kernel" } else { place };
    let shown = clean(&names.get(..most).unwrap_or(names).join(", "));
    match names.len() {
        n if n > most => format!("{n} in {} ({shown}, …)", clean(place)),
        _ => format!("{shown} in {}", clean(place)),
    }
}

fn lost(page: &mut Page, figures: &Figures) {
    if figures.lost == 0 {
        return;
    }
    page.section(&format!("Events lost: {}", figures.lost));
    let mut probes: Vec<(&String, &u64)> = figures.lost_by_probe.iter().collect();
    probes.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (probe, count) in probes.iter().take(TOP_OTHERS) {
        page.line(&format!("  {count:>9}  {}", clean(probe)));
    }
    page.more(probes.len(), TOP_OTHERS, "probes");
}

fn own_cost(page: &mut Page, cost: &Cost, recording_ns: u64) {
    page.section(&format!(
        "gpurec's own cost: {} in {}, at {} ns a call as measured at the start",
        duration(cost.total_ns),
        plural(cost.calls, "call"),
        cost.ns_per_call
    ));
    for thread in &cost.threads {
        page.line(&format!(
            "  pid {} tid {}: {}, {} % of the recording, {}",
            thread.pid,
            thread.tid,
            duration(thread.cost_ns),
            percent(u128::from(thread.cost_ns), u128::from(recording_ns)),
            plural(thread.calls, "call")
        ));
    }
    if cost.more_threads > 0 {
        page.line(&format!("  and {} more threads", cost.more_threads));
    }
}

fn recording(page: &mut Page, figures: &Figures) {
    let state = if figures.complete { "complete" } else { "NOT complete:" };
    page.section(&format!("Recording: {}, {state}", duration(figures.duration_ns)));
    for sentence in figures.incomplete_because.iter().chain(&figures.notes) {
        page.wrapped("  - ", &clean(sentence));
    }
}

pub(super) fn shortened(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_string();
    }
    let mut short: String = line.chars().take(width.saturating_sub(3)).collect();
    short.push_str("...");
    short
}

pub(super) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// With three decimals, in the unit that suits it.
pub(super) fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", micros(ns)),
        1_000_000..1_000_000_000 => format!("{} ms", micros(ns / 1000)),
        _ => format!("{} s", micros(ns / 1_000_000)),
    }
}

/// With one decimal, from integers.
pub(super) fn percent(part: u128, whole: u128) -> String {
    match (part * 1000 + whole / 2).checked_div(whole) {
        Some(permille) => format!("{}.{}", permille / 10, permille % 10),
        None => "0.0".to_string(),
    }
}
