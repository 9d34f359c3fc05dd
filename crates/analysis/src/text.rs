//! Formats figures as text: the parts that are always present, then each section only if it has content.

use std::collections::BTreeMap;

use super::figures::{Cost, Figures, Function, ProcessSeen};
use super::prose::wrapped;
use super::shorten::middle_cut;
use super::table::{Cell, Column, Table, number};
use super::{budget, categories, devices, driver_text, nsys, pauses, sections, sleeps};
pub(super) use crate::ui::clean;
use crate::ui::clean_lines;

pub(super) const TOP_FUNCTIONS: usize = 20;
const TOP_PROCESSES: usize = 10;
const TOP_OTHERS: usize = 10;

/// The summary, with prose and lists wrapped to `width`.
pub fn print(figures: &Figures, width: usize) -> String {
    let mut page = Page::new(width);
    page.line("=== TRACE SUMMARY ===");
    userspace(&mut page, figures);
    driver_text::kernel_space(&mut page, figures);
    sections::leaks(&mut page, figures);
    sections::kernels(&mut page, figures);
    sections::copies(&mut page, figures);
    devices::section(&mut page, figures);
    functions(&mut page, figures);
    categories::section(&mut page, figures);
    sync(&mut page, figures);
    driver_text::sections(&mut page, figures);
    sections::failures(&mut page, figures);
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
        own_cost(&mut page, cost, figures);
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

    pub(super) fn table(&mut self, table: &Table) {
        for line in table.text(self.width) {
            self.line(&line);
        }
    }

    /// Names are already escaped; this catches any that the code missed, so that none controls the terminal.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(&clean_lines(line));
        self.text.push('\n');
    }

    pub(super) fn section(&mut self, title: &str) {
        self.text.push('\n');
        self.wrapped("", title);
    }

    /// Wraps words into lines: the first begins with `first`, the others have the same indentation.
    pub(super) fn wrapped(&mut self, first: &str, words: &str) {
        self.text.push_str(&clean_lines(&wrapped(first, words, self.width)));
    }

    /// A line that ends with a command. Only the command is cut, and only if it does not fit on a line of its own.
    fn with_command(&mut self, line: &str, command: &str) {
        const INDENT: usize = 5;
        if line.chars().count() + 2 + command.chars().count() <= self.width || command.is_empty() {
            return self.line(format!("{line}  {command}").trim_end());
        }
        self.wrapped("  ", line.trim_start());
        let command = middle_cut(command, self.width - INDENT);
        self.line(&format!("{:INDENT$}{command}", ""));
    }

    pub(super) fn more(&mut self, total: usize, shown: usize, what: &str) {
        if total > shown {
            self.line(&format!("  and {} more {what}", total - shown));
        }
    }
}

fn userspace(page: &mut Page, figures: &Figures) {
    page.section("USERSPACE (libcuda.so, libcudart.so):");
    let (memory, transfers) = (&figures.memory, &figures.transfers);
    let count = |seen: u64| seen.to_string();
    for (what, figure, seen, text) in [
        ("Total CUDA API calls", "cuda_calls", figures.cuda_calls, &count as &dyn Fn(u64) -> String),
        ("Kernel launches", "kernel_launches", figures.kernel_launches, &count),
        ("Memory allocations", "memory.allocations", memory.allocations, &count),
        ("Total memory allocated", "memory.allocated_bytes", memory.allocated_bytes, &sections::bytes),
        ("Memory transfers", "transfers.count", transfers.count, &count),
        ("Total data transferred", "transfers.bytes", transfers.bytes, &sections::bytes),
    ] {
        page.wrapped("  ", &format!("{what}: {}", figures.said(figure, seen, text)));
    }
    if figures.graph_launches > 0 {
        let said = figures.said("graph_launches", figures.graph_launches, count);
        page.wrapped("  ", &format!("Graph launches: {said}"));
    }
    let counts = [
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
    if figures.cuda_calls == 0 && figures.is_part {
        page.line("  No CUDA call in this part of the trace.");
    } else if figures.cuda_calls == 0 && !hooked {
        let refused = figures.libraries.iter().any(|l| !l.not_hooked.is_empty());
        page.line(match (figures.libraries.is_empty(), figures.complete, refused) {
            (true, false, _) => "  No CUDA library was seen, but the recording is not complete: the end of this summary says why.",
            (true, true, _) => "  No CUDA library was loaded.",
            (false, _, true) => "  CUDA libraries were loaded, but no function of theirs was hooked: \"Not hooked\" says why.",
            (false, _, false) => "  CUDA libraries were loaded, but no function of theirs was hooked: look at --only, --skip and --api.",
        });
    }
}

/// The columns of nsys's cuda_api_sum, and two more.
const FUNCTIONS: &[Column] =
    &nsys::columns::<2, 11>([number("Corrected (us)", "corrected_ns"), number("Driver (us)", "driver_ns")]);

fn functions(page: &mut Page, figures: &Figures) {
    if figures.functions.is_empty() {
        return;
    }
    let sum = |functions: &[Function]| -> u128 { functions.iter().map(|f| u128::from(f.total_ns)).sum() };
    let total = sum(&figures.functions);
    page.section("Top functions by time:");
    let with_kernel = figures.kernel_space.is_some();
    let is_corrected = figures.functions.iter().take(TOP_FUNCTIONS).any(|f| f.corrected_ns.is_some());
    let mut table = Table::new("functions", "functions", FUNCTIONS);
    for f in figures.functions.iter().take(TOP_FUNCTIONS) {
        let mut cells = nsys::cells(f, total);
        cells.extend([
            if is_corrected { Cell::Micros(f.corrected_ns.unwrap_or(f.total_ns)) } else { Cell::Missing },
            Cell::optional(f.kernel_ns, Cell::Micros),
        ]);
        table.row(cells);
    }
    page.table(&table);
    if let Some(rest) = figures.functions.get(TOP_FUNCTIONS..)
        && !rest.is_empty()
    {
        let share = percent(sum(rest), total);
        let (more, all) = (rest.len(), figures.functions.len());
        let words =
            format!("and {more} more functions, {share} % of the time: `gpurec report api --top {all}`");
        page.wrapped("  ", &words);
    }
    if let Some(said) = unfinished(&figures.functions) {
        page.wrapped("  ", &said);
    }
    page.wrapped(
        "  ",
        "Time (%) is of the sum of Total over all functions. A call made inside another counts in both, as cuLaunchKernel does inside cudaLaunchKernel, so the sum is more than the time spent. Med is within 1 %; of an even number of calls it is half way between the two in the middle, as in nsys, where `check` and `report latency` have the lower one (p50).",
    );
    if is_corrected {
        page.wrapped(
            "  ",
            "Corrected is Total less what recording the calls inside has added to it, and less the time for which gpurec had stopped the process (see the cost below).",
        );
    }
    if with_kernel {
        page.wrapped(
            "  ",
            "Driver is how much of Total was in nvidia.ko, asleep or at work. What the GPU is given through its doorbells never comes there.",
        );
    }
}

/// A note about unfinished calls, if there are any.
pub(super) fn unfinished(functions: &[Function]) -> Option<String> {
    let open: Vec<&Function> = functions.iter().filter(|f| f.unfinished > 0).collect();
    let names: Vec<String> =
        open.iter().take(TOP_OTHERS).map(|f| format!("{} {}", f.unfinished, clean(&f.name))).collect();
    let more = if open.len() > names.len() { " and others" } else { "" };
    (!open.is_empty()).then(|| format!("Unfinished, with their time so far: {}{more}.", names.join(", ")))
}

/// `, 1 of them unfinished`
pub(super) fn of_them_unfinished(count: u64) -> String {
    if count > 0 { format!(", {count} of them unfinished") } else { String::new() }
}

fn sync(page: &mut Page, figures: &Figures) {
    let sync = &figures.sync;
    if sync.calls == 0 {
        return;
    }
    let open = of_them_unfinished(sync.unfinished);
    let time = |ns| format!("{} in {}{open}", duration(ns), plural(sync.calls, "call"));
    let said = figures.said("sync.total_ns", sync.total_ns, time);
    page.section(&format!("Time blocked in synchronisation: {said}"));
    for f in sync.by_function.iter().take(TOP_OTHERS) {
        page.line(&format!(
            "  {:>12}  {:>9}  {}{}",
            duration(f.total_ns),
            plural(f.calls, "call"),
            clean(&f.name),
            of_them_unfinished(f.unfinished)
        ));
    }
    page.more(sync.by_function.len(), TOP_OTHERS, "functions");
    let sum = sync.by_function.iter().fold(0u64, |sum, f| sum.saturating_add(f.total_ns));
    if sum > sync.total_ns {
        page.wrapped(
            "  ",
            "Of a call that waits inside another one, the sum has the inner; time by category has the outer.",
        );
    }
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
            "  pid {}: {}{}{}{}",
            process.pid,
            plural(process.calls, "call"),
            sections::peak(process, figures),
            process.rank.map(|r| format!(", rank {r}")).unwrap_or_default(),
            ending(process),
        );
        page.with_command(&line, &clean(&process.command.join(" ")));
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

/// Grouped by reason, since one reason often applies to many libraries.
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
    // Hooks in nvidia.ko are few and chosen by name; a library has many functions.
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

fn own_cost(page: &mut Page, cost: &Cost, figures: &Figures) {
    page.section(&format!(
        "gpurec's own cost: {} in {}, at {} ns a call as measured at the start{}",
        duration(cost.calls_ns()),
        plural(cost.calls, "call"),
        cost.ns_per_call,
        match cost.ns_per_stepped.filter(|_| cost.stepped_calls > 0) {
            Some(ns) => format!(", {ns} ns for {} that the kernel single-steps", cost.stepped_calls),
            None => String::new(),
        }
    ));
    if let Some(ns) = cost.cold_ns {
        page.wrapped(
            "  ",
            &format!(
                "Calls that come seldom, after other work, cost more: up to {} if all of these did.",
                duration(ns)
            ),
        );
    }
    match cost.stops {
        Some(stops) if stops.count == 0 => {}
        Some(stops) => page.wrapped(
            "  ",
            &format!(
                "Besides, gpurec had stopped processes for {} in {}: at a new library until it is hooked{}.",
                duration(stops.total_ns),
                plural(stops.count, "stop"),
                if figures.pauses.is_some() { ", and for --lossless" } else { "" }
            ),
        ),
        None => page.wrapped("  ", "For how long gpurec had stopped processes, this trace does not say."),
    }
    for thread in &cost.threads {
        page.line(&format!(
            "  pid {} tid {}: {}, {} % of the recording, {}",
            thread.pid,
            thread.tid,
            duration(thread.cost_ns),
            percent(u128::from(thread.cost_ns), u128::from(figures.duration_ns)),
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

/// `1 call`, `2 calls`, `2 launches`, `2 processes`.
pub(super) fn plural(count: u64, what: &str) -> String {
    let more = if what.ends_with("ch") || what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { more })
}

pub(super) fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// With three decimals, rounded.
pub(super) fn millis(ns: u64) -> String {
    micros(ns.saturating_add(500) / 1000)
}

pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// With three decimals, in a suitable unit.
pub(super) fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", micros(ns)),
        1_000_000..1_000_000_000 => format!("{} ms", micros(ns / 1000)),
        _ => format!("{} s", micros(ns / 1_000_000)),
    }
}

/// With one decimal, computed from integers.
pub(super) fn percent(part: u128, whole: u128) -> String {
    match (part * 1000 + whole / 2).checked_div(whole) {
        Some(permille) => format!("{}.{}", permille / 10, permille % 10),
        None => "0.0".to_string(),
    }
}
