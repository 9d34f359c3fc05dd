//! Sections of the summary about memory, kernels, copies, devices, categories, the causes of errors, and possible
//! improvements.

use super::figures::{
    BEFORE, DirectionFigures, ErrorWindow, FailureCause, FailureKind, Figures, Leak, Leaks, OUTSIDE,
    ProcessFigures,
};
use super::page::Page;
use super::stacks::StackRow;
use super::table::{Cell, Table, long, number, text};
use super::units::{duration, megabytes, plural, rate, seconds, size};
use crate::ui::clean;

pub use super::units::bytes;

const TOP: usize = 10;
const TOP_KERNELS: usize = 20;
const TOP_KINDS: usize = 20;

pub fn peak(process: &ProcessFigures, figures: &Figures) -> String {
    let (all, runtime) = (process.peak_device_bytes, process.peak_runtime_bytes);
    if all == 0 || !figures.knows_peak(process) {
        return String::new();
    }
    let alone = match runtime {
        0 => String::new(),
        runtime if runtime == all => String::new(),
        runtime => format!(" ({} by the runtime alone)", megabytes(runtime)),
    };
    format!(", {} of device memory at its peak{alone}", megabytes(all))
}

/// Memory that was not freed, and separately the part that kept growing.
pub fn leaks(page: &mut Page, figures: &Figures) {
    let (held, leaks) = (&figures.memory.held, &figures.memory.leaks);
    if held.count == 0 {
        return;
    }
    let text = |of: &Leaks| format!("{} in {}", bytes(of.bytes), plural(of.count, "allocation"));
    let said = figures.said("memory.held", held.count, |_| text(held));
    let end = if figures.is_part { "the end of this part" } else { "exit" };
    page.section(&format!("Memory held at {end}: {said}"));
    let reason = figures.unknown.get("memory.held");
    if reason.is_none_or(|reason| reason == BEFORE || reason == OUTSIDE) {
        by_space(page, held, figures.is_part);
        largest(page, held);
    }
    let is_known = !figures.unknown.contains_key("memory.leaks");
    if leaks.count == 0 && is_known {
        return;
    }
    let said = figures.said("memory.leaks", leaks.count, |_| text(leaks));
    let growing = if is_known { ", more and more through the run" } else { "" };
    page.section(&format!("Leaks: {said}{growing}"));
    if is_known {
        largest(page, leaks);
    }
}

fn by_space(page: &mut Page, held: &Leaks, is_part: bool) {
    for space in &held.by_space {
        let when = match space.count - space.at_exit.min(space.count) {
            0 => "live at exit".to_owned(),
            n if n == space.count && is_part => "live when the part ended".to_owned(),
            n if n == space.count => "live when the recording ended".to_owned(),
            n => format!("{} live at exit, {n} when the recording ended", space.at_exit),
        };
        let words = format!("{} in {}, {when}", bytes(space.bytes), plural(space.count, "allocation"));
        page.wrapped(&format!("  {:<8} ", clean(&space.space)), &words);
    }
}

fn largest(page: &mut Page, leaks: &Leaks) {
    leaks.largest.iter().take(TOP).for_each(|leak| leak_row(page, leak));
    page.more(leaks.count as usize, TOP.min(leaks.largest.len()), "allocations");
}

pub(super) fn leak_row(page: &mut Page, leak: &Leak) {
    let Leak { ptr, size, pid, begin, .. } = leak;
    let (age, function) = (duration(leak.age_ns), clean(&leak.function));
    let site = leak.site.as_ref().map(|site| format!(", {}", clean(site))).unwrap_or_default();
    let words = format!("{size:>12} bytes, {age} old, by {function} in pid {pid} (event {begin}){site}");
    page.wrapped(&format!("  {ptr:>14}  "), &words);
}

pub fn kernels(page: &mut Page, figures: &Figures) {
    let kernels = figures.kernels.get(..TOP_KERNELS).unwrap_or(&figures.kernels);
    if kernels.is_empty() {
        return;
    }
    let dims = |of: Option<[u32; 3]>| of.map_or_else(|| "?".to_owned(), |[x, y, z]| format!("{x}x{y}x{z}"));
    let star = |shapes| if shapes > 1 { "*" } else { "" };
    page.section("Launches by kernel:");
    page.table(&Table::of(
        "kernels",
        kernels,
        &[
            (number("Launches", "launches"), &|kernel| Cell::Count(kernel.launches)),
            (number("Grid", "grid"), &|k| Cell::Text(format!("{}{}", dims(k.grid), star(k.shapes)))),
            (number("Block", "block"), &|kernel| Cell::Text(dims(kernel.block))),
            (long("Name", "name"), &|kernel| Cell::Kernel(kernel.name.clone())),
        ],
    ));
    page.more(figures.kernels.len() + figures.more_kernels as usize, TOP_KERNELS, "kernels");
    if kernels.iter().any(|kernel| kernel.shapes > 1) {
        page.line("  * the most frequent of several shapes");
    }
    if figures.unnamed_launches > 0 {
        let launches = plural(figures.unnamed_launches, "launch");
        page.line(&format!(
            "  gpurec ran out of time to look up the kernel of {launches}: their lines show its address"
        ));
    }
}

pub fn copies(page: &mut Page, figures: &Figures) {
    if figures.transfers.by_direction.is_empty() {
        return;
    }
    page.section("Copies by direction:");
    for seen in &figures.transfers.by_direction {
        let least = if seen.partial { "at least " } else { "" };
        let pageable = match seen.pageable_count {
            0 => String::new(),
            n => format!(", {n} with pageable memory"),
        };
        let words = format!("{least}{}{}{pageable}", bytes(seen.bytes), bandwidth(seen));
        page.wrapped(&format!("  {:<8}{:>9}  ", clean(&seen.direction), seen.count), &words);
    }
}

fn bandwidth(seen: &DirectionFigures) -> String {
    let per_second = (u128::from(seen.waited_bytes) * 1_000_000_000).checked_div(seen.waited_ns.into());
    per_second.map_or_else(String::new, |per_second| {
        format!(", {} synchronous at {} GB/s", seen.waited_count, rate(per_second))
    })
}

pub fn devices(page: &mut Page, figures: &Figures) {
    if figures.devices.iter().filter(|seen| seen.device.is_some()).count() < 2 {
        return;
    }
    page.section("By device, as each process numbers them:");
    let known = |key: &str, cell: fn(u64) -> Cell, figure: u64| {
        if figures.unknown.contains_key(&format!("devices.{key}")) { "?".into() } else { cell(figure) }
    };
    let (count, size) = (Cell::Count, Cell::Bytes);
    page.table(&Table::of(
        "devices",
        &figures.devices,
        &[
            (number("Device", "device"), &|seen| {
                seen.device.map_or("not known".into(), |device| Cell::Count(device.into()))
            }),
            (number("Processes", "processes"), &|seen| count(seen.processes)),
            (number("Launches", "launches"), &|seen| known("launches", count, seen.launches)),
            (number("Graph launches", ""), &|seen| known("graph_launches", count, seen.graph_launches)),
            (number("Allocated", ""), &|seen| known("allocated_bytes", size, seen.allocated_bytes)),
            (number("Peak", ""), &|seen| known("peak_bytes", size, seen.peak_bytes)),
            (number("Held at end", ""), &|seen| known("held_bytes", size, seen.held_bytes)),
            (number("Transfers", ""), &|seen| known("transfers", count, seen.transfers)),
            (number("Transferred", ""), &|seen| known("transferred_bytes", size, seen.transferred_bytes)),
        ],
    ));
    let of_devices = figures.unknown.iter().filter(|(key, _)| key.starts_with("devices."));
    let mut reasons: Vec<&String> = of_devices.map(|(_, reason)| reason).collect();
    reasons.dedup();
    for reason in reasons {
        page.wrapped("  ? ", &format!("not known ({reason})"));
    }
}

pub fn categories(page: &mut Page, figures: &Figures) {
    if figures.by_category.is_empty() {
        return;
    }
    let whole: u128 = figures.by_category.iter().map(|seen| u128::from(seen.total_ns)).sum();
    let calls = plural(figures.cuda_calls, "CUDA call");
    let rate = (u128::from(figures.cuda_calls) * 1_000_000_000).checked_div(figures.duration_ns.into());
    page.section(&match (figures.unknown.contains_key("cuda_calls"), rate) {
        (true, _) => format!("Time by category: {calls} seen"),
        (false, Some(rate)) => format!("Time by category: {calls}, {rate} a second"),
        (false, None) => format!("Time by category: {calls}"),
    });
    page.table(&Table::of(
        "categories",
        &figures.by_category,
        &[
            (text("Category", "category"), &|seen| Cell::Text(seen.category.clone())),
            (number("Total (ms)", "total_ns"), &|seen| Cell::Millis(seen.total_ns)),
            (number("(%)", "percent"), &|seen| Cell::Share(seen.total_ns.into(), whole)),
            (number("Calls", "calls"), &|seen| Cell::Count(seen.calls)),
        ],
    ));
    page.note("Outermost calls only: the time of a call includes that of the calls inside it.");
}

pub fn failures(page: &mut Page, figures: &Figures) {
    let failures = &figures.failures;
    let count = |calls: u64| calls.to_string();
    if let Some(first) = &failures.first {
        let said = figures.said("failures.calls", failures.calls, count);
        let (at, pid, tid) = (seconds(first.ts_ns), first.pid, first.tid);
        page.section(&format!("Failed calls: {said}, the first at {at} s in pid {pid} tid {tid}"));
        failure_kinds(page, &failures.by_error);
    }
    if failures.handled > 0 {
        let said = figures.said("failures.handled", failures.handled, count);
        page.section(&format!("Failures handled by the call around them: {said}"));
        failure_kinds(page, &failures.handled_by_error);
    }
    if failures.shutdown > 0 {
        page.section(&format!(
            "Calls refused because the driver was shut down already, at the end of the process: {}",
            failures.shutdown
        ));
    }
}

fn returned(cause: &FailureCause) -> String {
    format!("{} returned {}", clean(&cause.function), clean(&cause.error))
}

fn failure_kinds(page: &mut Page, kinds: &[FailureKind]) {
    for kind in kinds.iter().take(TOP_KINDS) {
        let code = kind.code.map(|c| c.to_string()).unwrap_or_default();
        let asked = kind.asked_bytes.map(|bytes| format!(", asked for {bytes} bytes ({})", size(bytes)));
        let (error, function, api) = (clean(&kind.error), clean(&kind.function), clean(&kind.api));
        let words = format!("{error}  {function} ({api}){}", asked.unwrap_or_default());
        page.wrapped(&format!("  {:>6} x  {code:>3} ", kind.count), &words);
        if let Some(cause) = &kind.cause {
            page.wrapped("                ", &format!("because {}", returned(cause)));
        }
    }
    page.more(kinds.len(), TOP_KINDS, "kinds");
}

pub fn error_windows(page: &mut Page, figures: &Figures) {
    figures.error_windows.iter().take(TOP).for_each(|window| error_window(page, window));
    page.more(figures.error_windows.len(), TOP, "first failures");
}

fn error_window(page: &mut Page, window: &ErrorWindow) {
    let ErrorWindow { pid, begin, .. } = window;
    let context = window.context.as_ref().map(|c| format!(" in context {}", clean(c))).unwrap_or_default();
    let asynchronous = if window.asynchronous { "asynchronous " } else { "" };
    let (function, error, at) = (clean(&window.function), clean(&window.error), seconds(window.ts_ns));
    page.section(&format!(
        "First {asynchronous}failure of pid {pid}{context}: {function} {error} at {at} s (event {begin})"
    ));
    if let Some(cause) = &window.cause {
        page.note(&format!("inside it {}", returned(cause)));
    }
    let since = match &window.last_sync {
        Some(sync) => {
            let (function, at) = (clean(&sync.function), seconds(sync.ts_ns));
            format!("the last successful synchronisation before it, {function} at {at} s")
        }
        None => "the beginning: no synchronisation had succeeded before it".to_owned(),
    };
    let hint = if window.asynchronous { "; the cause is most likely one of them" } else { "" };
    page.note(&match (window.launches, &window.last_sync) {
        (0, None) => "no launch before it".to_owned(),
        (0, Some(_)) => format!("no launch since {since}"),
        (n, _) => format!("{} since {since}{hint}", plural(n, "launch")),
    });
    if !window.kernels.is_empty() {
        page.table(&Table::of(
            "kernels",
            window.kernels.iter().take(TOP),
            &[
                (number("Launches", "launches"), &|kernel| Cell::Count(kernel.launches)),
                (long("Name", "name"), &|kernel| Cell::Kernel(kernel.kernel.clone())),
            ],
        ));
    }
    page.more(window.kernels.len(), TOP, "kernels");
}

/// The heaviest call sites of each role; `report stacks` has the stacks.
pub fn stacks(page: &mut Page, figures: &Figures) {
    let Some(stacks) = &figures.stacks else { return };
    let (calls, distinct) = (plural(stacks.calls, "call"), plural(stacks.stacks, "call stack"));
    page.section(&format!("Where calls come from: {calls} from {distinct} (`gpurec report stacks`)"));
    stacks.gaps().iter().for_each(|sentence| page.note(sentence));
    for role in &stacks.by_role {
        // Smaller stacks of the same site may not be in the list.
        let least = if role.stacks > role.top.len() as u64 { "at least " } else { "" };
        for row in by_site(&role.top).iter().take(SITES) {
            let bytes = if row.bytes > 0 { format!(", {}", size(row.bytes)) } else { String::new() };
            let time = if row.total_ns > 0 { format!(", {}", duration(row.total_ns)) } else { String::new() };
            let words = format!("{}: {least}{}{time}{bytes}", clean(&row.site), plural(row.calls, "call"));
            page.wrapped(&format!("  {:<7} ", role.role), &words);
        }
    }
}

/// The rows of one call site as one, in the order of its first.
fn by_site(rows: &[StackRow]) -> Vec<StackRow> {
    let mut sites: Vec<StackRow> = Vec::new();
    for row in rows.iter().filter(|row| !row.site.is_empty()) {
        match sites.iter_mut().find(|known| known.site == row.site) {
            Some(known) => {
                known.calls = known.calls.saturating_add(row.calls);
                known.total_ns = known.total_ns.saturating_add(row.total_ns);
                known.bytes = known.bytes.saturating_add(row.bytes);
            }
            None => sites.push(row.clone()),
        }
    }
    sites
}

/// Number of call sites of a role in the summary.
const SITES: usize = 3;

pub fn findings(page: &mut Page, figures: &Figures) {
    if figures.findings.is_empty() {
        return;
    }
    page.section("What could be better:");
    for finding in &figures.findings {
        let cost = finding.cost_ns.map(|ns| format!(", {}", duration(ns))).unwrap_or_default();
        let (what, times, advice) =
            (clean(&finding.what), plural(finding.times, "time"), clean(&finding.advice));
        let site =
            finding.site.as_ref().map(|site| format!(", most from {}", clean(site))).unwrap_or_default();
        page.wrapped("  - ", &format!("{what}: {times}{cost}{site}; try: {advice}"));
    }
}
