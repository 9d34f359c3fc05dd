//! Formats figures as text: the parts that are always present, then each section only if it has content.

use std::collections::BTreeMap;

use super::budget::ForgoneFunction;
use super::figures::{Cost, Figures, Function, ProcessFigures};
pub(super) use super::page::Page;
use super::table::{Cell, Column, Table, number};
pub(super) use super::units::{duration, percent, plural, seconds};
use super::{driver_text, gpu, nsys, sections, units};
pub(super) use crate::ui::clean;
use gpurec_trace::InFlight;

const TOP_FUNCTIONS: usize = 20;
const TOP: usize = 10;

/// The summary, with prose and lists wrapped to `width`.
pub fn print(figures: &Figures, width: usize) -> String {
    let mut page = Page::new(width);
    page.line("=== TRACE SUMMARY ===");
    for section in [
        userspace,
        driver_text::kernel_space,
        sections::leaks,
        sections::kernels,
        sections::copies,
        sections::devices,
        gpu::text::sections,
        functions,
        sections::categories,
        sync,
        driver_text::sections,
        sections::failures,
        sections::error_windows,
        sections::findings,
        sections::stacks,
        in_flight,
        processes,
        libraries,
        not_hooked,
        lost,
        pauses,
        sleeps,
        budget,
        own_cost,
        recording,
    ] {
        section(&mut page, figures);
    }
    page.into_text()
}

fn userspace(page: &mut Page, figures: &Figures) {
    page.section("USERSPACE (libcuda.so, libcudart.so):");
    let (memory, transfers) = (&figures.memory, &figures.transfers);
    let count: fn(u64) -> String = |seen| seen.to_string();
    let graphs = ("Graph launches", "graph_launches", figures.graph_launches, count);
    let all = [
        ("Total CUDA API calls", "cuda_calls", figures.cuda_calls, count),
        ("Kernel launches", "kernel_launches", figures.kernel_launches, count),
        ("Memory allocations", "memory.allocations", memory.allocations, count),
        ("Total memory allocated", "memory.allocated_bytes", memory.allocated_bytes, units::bytes),
        ("Memory transfers", "transfers.count", transfers.count, count),
        ("Total data transferred", "transfers.bytes", transfers.bytes, units::bytes),
    ];
    for (what, figure, seen, text) in all.into_iter().chain((graphs.2 > 0).then_some(graphs)) {
        page.note(&format!("{what}: {}", figures.said(figure, seen, text)));
    }
    page.counts(&[
        ("Calls into other libraries", figures.other_calls),
        ("Calls left by an exception or longjmp", figures.unwound_calls),
        ("Returns without a call", figures.unmatched_ends),
    ]);
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
    let (top, rest) = figures.functions.split_at(TOP_FUNCTIONS.min(figures.functions.len()));
    let is_corrected = top.iter().any(|f| f.corrected_ns.is_some());
    let mut table = Table::new("functions", "functions", FUNCTIONS);
    for f in top {
        let mut cells = nsys::cells(f, total);
        let corrected = is_corrected.then(|| f.corrected_ns.unwrap_or(f.total_ns));
        cells.extend([corrected, f.kernel_ns].map(|ns| Cell::optional(ns, Cell::Micros)));
        table.row(cells);
    }
    page.table(&table);
    if !rest.is_empty() {
        let share = percent(sum(rest), total);
        let (more, all) = (rest.len(), figures.functions.len());
        page.note(&format!(
            "and {more} more functions, {share} % of the time: `gpurec report api --top {all}`"
        ));
    }
    if let Some(said) = unfinished(&figures.functions) {
        page.note(&said);
    }
    page.note(
        "Time (%) is of the sum of Total over all functions. A call made inside another counts in both, as cuLaunchKernel does inside cudaLaunchKernel, so the sum is more than the time spent. Med is within 1 %; of an even number of calls it is half way between the two in the middle, as in nsys, where `check` and `report latency` have the lower one (p50).",
    );
    if is_corrected {
        page.note("Corrected is Total less what recording the calls inside has added to it, and less the time for which gpurec had stopped the process (see the cost below).");
    }
    if figures.kernel_space.is_some() {
        page.note("Driver is the part of Total spent in nvidia.ko, asleep or at work. Work that libcuda submits through doorbells does not pass through it.");
    }
}

/// A note about unfinished calls, if there are any.
pub(super) fn unfinished(functions: &[Function]) -> Option<String> {
    let open: Vec<&Function> = functions.iter().filter(|f| f.unfinished > 0).collect();
    let names = open.iter().take(TOP).map(|f| format!("{} {}", f.unfinished, clean(&f.name)));
    let names = names.collect::<Vec<_>>().join(", ");
    let more = if open.len() > TOP { " and others" } else { "" };
    (!open.is_empty()).then(|| format!("Unfinished, with their time so far: {names}{more}."))
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
    page.list(&sync.by_function, TOP, 0, "functions", |f| {
        let (time, calls, name) = (duration(f.total_ns), plural(f.calls, "call"), clean(&f.name));
        format!("  {time:>12}  {calls:>9}  {name}{}", of_them_unfinished(f.unfinished))
    });
    let sum = sync.by_function.iter().map(|f| f.total_ns).fold(0, u64::saturating_add);
    if sum > sync.total_ns {
        page.note(
            "Of a call that waits inside another one, the sum has the inner; time by category has the outer.",
        );
    }
}

fn in_flight(page: &mut Page, figures: &Figures) {
    if figures.in_flight.is_empty() {
        return;
    }
    page.section(&format!("Calls in flight at the end: {}", figures.in_flight.len()));
    page.list(&figures.in_flight, TOP_FUNCTIONS, 0, "calls", |call| {
        let InFlight { pid, tid, .. } = call;
        let (name, time) = (clean(&call.name), duration(call.duration_ns));
        let end = if call.died { ", when its process ended" } else { "" };
        format!("  pid {pid} tid {tid}: {name} for {time}{end}")
    });
}

fn processes(page: &mut Page, figures: &Figures) {
    if figures.processes.is_empty() {
        return;
    }
    let total = figures.processes.len() + figures.more_processes as usize;
    page.section(&format!("Processes: {total}"));
    for process in figures.processes.iter().take(TOP) {
        let (calls, peak) = (plural(process.calls, "call"), sections::peak(process, figures));
        let rank = process.rank.map(|r| format!(", rank {r}")).unwrap_or_default();
        let line = format!("  pid {}: {calls}{peak}{rank}{}", process.pid, ending(process));
        page.with_command(&line, &clean(&process.command.join(" ")));
    }
    page.more(total, TOP, "processes");
}

fn ending(process: &ProcessFigures) -> String {
    match (&process.signal, process.status) {
        (Some(signal), _) => format!(", killed by {}", clean(signal)),
        (None, Some(status)) => format!(", exit status {status}"),
        (None, None) => String::new(),
    }
}

fn libraries(page: &mut Page, figures: &Figures) {
    let hooked: Vec<_> = figures.libraries.iter().filter(|l| l.functions > 0).collect();
    if hooked.is_empty() {
        return;
    }
    page.section("Libraries hooked:");
    page.list(&hooked, TOP, figures.more_libraries, "libraries", |library| {
        format!("  {}  {}", clean(&library.path), plural(library.functions, "function"))
    });
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
    let (top, more) = by_reason.split_at(TOP_FUNCTIONS.min(by_reason.len()));
    for (reason, places) in top {
        let refused = places.iter().take(TOP).map(|(place, names)| refused_in(place, names));
        let more = places.len().checked_sub(TOP + 1).map(|more| format!("and in {} more", more + 1));
        let words: Vec<String> = refused.chain(more).collect();
        page.note(&format!("{}: {}", words.join("; "), clean(reason)));
    }
    if !more.is_empty() {
        let hooks: usize = more.iter().map(|(_, places)| count(places)).sum();
        page.note(&format!("and {hooks} more for {} other reasons, which the trace has", more.len()));
    }
}

fn refused_in(place: &str, names: &[&str]) -> String {
    // Hooks in nvidia.ko are few and chosen by name; a library has many functions.
    let (place, most) = if place == "kernel" { ("the kernel", 8) } else { (place, 3) };
    let (place, shown) = (clean(place), clean(&names.get(..most).unwrap_or(names).join(", ")));
    match names.len() {
        n if n > most => format!("{n} in {place} ({shown}, …)"),
        _ => format!("{shown} in {place}"),
    }
}

fn lost(page: &mut Page, figures: &Figures) {
    if figures.lost == 0 {
        return;
    }
    page.section(&format!("Events lost: {}", figures.lost));
    let mut probes: Vec<(&String, &u64)> = figures.lost_by_probe.iter().collect();
    probes.sort_by_key(|(probe, count)| (std::cmp::Reverse(**count), *probe));
    page.list(&probes, TOP, 0, "probes", |(probe, count)| format!("  {count:>9}  {}", clean(probe)));
}

fn pauses(page: &mut Page, figures: &Figures) {
    let Some(pauses) = figures.pauses.filter(|pauses| pauses.count > 0) else { return };
    let (times, time) = (plural(pauses.count, "time"), duration(pauses.total_ns));
    page.section(&format!("Paused for --lossless: {times}, {time} in all"));
    page.note("Calls that were under way then, and gaps between calls, are longer by that.");
}

fn sleeps(page: &mut Page, figures: &Figures) {
    let Some(sleeps) = &figures.sleeps else { return };
    let (times, time) = (plural(sleeps.count, "time"), duration(sleeps.total_ns));
    page.section(&format!("The machine slept: {times}, {time} in all"));
    for sleep in &sleeps.first {
        page.line(&format!("  {} at {}", duration(sleep.slept_ns), seconds(sleep.at_ns)));
    }
    page.more(sleeps.count as usize, sleeps.first.len(), "times");
    page.note("The clock of a trace stands still meanwhile: that time is in no duration.");
}

fn budget(page: &mut Page, figures: &Figures) {
    const TOP: usize = 20;
    let Some(budget) = &figures.budget else { return };
    let functions = budget.functions.len() as u64;
    let functions = (functions > 0).then(|| plural(functions, "function"));
    let stacks = budget.stacks.as_ref().map(|_| "call stacks".to_owned());
    let what: Vec<String> = stacks.into_iter().chain(functions).collect();
    page.section(&format!("Given up for --budget {}: {}", clean(&budget.limit), what.join(", ")));
    page.line("  Not recorded for  Name");
    for function in budget.stacks.iter().chain(budget.functions.iter().take(TOP)) {
        page.line(&format!("  {:>16}  {}", duration(function.unhooked_ns), clean(&function.name)));
        if !function.unhooked.is_empty() {
            page.wrapped("    not recorded ", &periods(function));
        }
    }
    page.more(budget.functions.len(), TOP, "functions");
}

fn periods(function: &ForgoneFunction) -> String {
    let millis = |ns: u64| units::decimal(ns / 1_000_000, 3);
    let all =
        function.unhooked.iter().map(|p| format!("from {} to {} s", millis(p.from_ns), millis(p.to_ns)));
    let more =
        (function.more_periods > 0).then(|| format!("and {}", plural(function.more_periods, "more time")));
    all.chain(more).collect::<Vec<_>>().join(", ")
}

fn own_cost(page: &mut Page, figures: &Figures) {
    let Some(cost) = &figures.cost else { return };
    let Cost { ns_per_call, stepped_calls, .. } = cost;
    let (time, calls) = (duration(cost.calls_ns()), plural(cost.calls, "call"));
    let stepped = match cost.ns_per_stepped.filter(|_| *stepped_calls > 0) {
        Some(ns) => format!(", {ns} ns for {stepped_calls} that the kernel single-steps"),
        None => String::new(),
    };
    page.section(&format!(
        "gpurec's own cost: {time} in {calls}, at {ns_per_call} ns a call as measured at the start{stepped}"
    ));
    if let Some(ns) = cost.cold_ns.map(duration) {
        page.note(&format!(
            "Calls with cold caches, after other work, cost more: up to {ns} if all were such calls."
        ));
    }
    match cost.stops {
        Some(stops) if stops.count == 0 => {}
        Some(stops) => {
            let (time, stops) = (duration(stops.total_ns), plural(stops.count, "stop"));
            let lossless = if figures.pauses.is_some() { ", and for --lossless" } else { "" };
            page.note(&format!(
                "Besides, gpurec had stopped processes for {time} in {stops}: at a new library until it is hooked{lossless}."
            ));
        }
        None => page.note("This trace does not say for how long gpurec had stopped processes."),
    }
    page.list(&cost.threads, cost.threads.len(), cost.more_threads, "threads", |thread| {
        let (time, calls) = (duration(thread.cost_ns), plural(thread.calls, "call"));
        let share = percent(thread.cost_ns.into(), figures.duration_ns.into());
        format!("  pid {} tid {}: {time}, {share} % of the recording, {calls}", thread.pid, thread.tid)
    });
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
    let short: String = line.chars().take(width.saturating_sub(3)).collect();
    short + "..."
}
