//! Sections about memory, kernels, copies, the causes of errors, and possible improvements.

use super::figures::{DirectionSeen, ErrorWindow, FailureKind, Figures, Leak, Leaks, ProcessSeen};
use super::table::{Cell, Column, Table, long, megabytes, number, size};
use super::text::{Page, TOP_FUNCTIONS, clean, duration, plural, seconds};
use super::unknown::{BEFORE, OUTSIDE};

const TOP: usize = 10;
const TOP_KERNELS: usize = 20;

/// `524288000 bytes (500.00 MB)`, in units of 2^20 bytes.
pub fn bytes(count: u64) -> String {
    format!("{count} bytes ({})", megabytes(count))
}

pub fn peak(process: &ProcessSeen, figures: &Figures) -> String {
    if !figures.knows_peak(process) {
        return String::new();
    }
    match (process.peak_device_bytes, process.peak_runtime_bytes) {
        (0, _) => String::new(),
        (all, runtime) if runtime == 0 || runtime == all => {
            format!(", {} of device memory at its peak", megabytes(all))
        }
        (all, runtime) => format!(
            ", {} of device memory at its peak ({} by the runtime alone)",
            megabytes(all),
            megabytes(runtime)
        ),
    }
}

/// Memory that was not freed, and separately the part that kept growing.
pub fn leaks(page: &mut Page, figures: &Figures) {
    let held = &figures.memory.held;
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
    let leaks = &figures.memory.leaks;
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
    for leak in leaks.largest.iter().take(TOP) {
        leak_row(page, leak);
    }
    page.more(leaks.count as usize, TOP.min(leaks.largest.len()), "allocations");
}

pub(super) fn leak_row(page: &mut Page, leak: &Leak) {
    let words = format!(
        "{:>12} bytes, {} old, by {} in pid {} (event {})",
        leak.size,
        duration(leak.age_ns),
        clean(&leak.function),
        leak.pid,
        leak.begin
    );
    page.wrapped(&format!("  {:>14}  ", leak.ptr), &words);
}

const KERNELS: &[Column] =
    &[number("Launches", "launches"), number("Grid", "grid"), number("Block", "block"), long("Name", "name")];

pub fn kernels(page: &mut Page, figures: &Figures) {
    if figures.kernels.is_empty() {
        return;
    }
    page.section("Launches by kernel:");
    let mut table = Table::new("kernels", "kernels", KERNELS);
    for kernel in figures.kernels.iter().take(TOP_KERNELS) {
        let shapes = if kernel.shapes > 1 { "*" } else { "" };
        table.row(vec![
            Cell::Count(kernel.launches),
            Cell::Text(format!("{}{shapes}", dims(kernel.grid))),
            Cell::Text(dims(kernel.block)),
            Cell::Kernel(kernel.name.clone()),
        ]);
    }
    page.table(&table);
    page.more(figures.kernels.len() + figures.more_kernels as usize, TOP_KERNELS, "kernels");
    if figures.kernels.iter().take(TOP_KERNELS).any(|kernel| kernel.shapes > 1) {
        page.line("  * the most frequent of several shapes");
    }
    if figures.unnamed_launches > 0 {
        let launches = plural(figures.unnamed_launches, "launch");
        page.line(&format!("  {launches} shown by address: gpurec had no time to look for their names"));
    }
}

fn dims(of: Option<[u32; 3]>) -> String {
    of.map_or_else(|| "?".to_owned(), |[x, y, z]| format!("{x}x{y}x{z}"))
}

pub fn copies(page: &mut Page, figures: &Figures) {
    let directions = &figures.transfers.by_direction;
    if directions.is_empty() {
        return;
    }
    page.section("Copies by direction:");
    for seen in directions {
        let first = format!("  {:<8}{:>9}  ", clean(&seen.direction), seen.count);
        let words = format!(
            "{}{}{}{}",
            if seen.partial { "at least " } else { "" },
            bytes(seen.bytes),
            bandwidth(seen),
            pageable(seen)
        );
        page.wrapped(&first, &words);
    }
}

fn bandwidth(seen: &DirectionSeen) -> String {
    let rate = (u128::from(seen.waited_bytes) * 1_000_000_000).checked_div(u128::from(seen.waited_ns));
    match rate {
        None => String::new(),
        Some(rate) => {
            let hundredths = (rate + 5_000_000) / 10_000_000;
            format!(
                ", {} synchronous at {}.{:02} GB/s",
                seen.waited_count,
                hundredths / 100,
                hundredths % 100
            )
        }
    }
}

fn pageable(seen: &DirectionSeen) -> String {
    match seen.pageable_count {
        0 => String::new(),
        n => format!(", {n} with pageable memory"),
    }
}

pub fn failures(page: &mut Page, figures: &Figures) {
    let failures = &figures.failures;
    if let Some(first) = &failures.first {
        page.section(&format!(
            "Failed calls: {}, the first at {} s in pid {} tid {}",
            figures.said("failures.calls", failures.calls, |calls| calls.to_string()),
            seconds(first.ts_ns),
            first.pid,
            first.tid
        ));
        failure_kinds(page, &failures.by_error);
    }
    if failures.handled > 0 {
        page.section(&format!(
            "Failures handled by the call around them: {}",
            figures.said("failures.handled", failures.handled, |calls| calls.to_string()),
        ));
        failure_kinds(page, &failures.handled_by_error);
    }
    if failures.shutdown > 0 {
        page.section(&format!(
            "Calls refused because the driver was shut down already, at the end of the process: {}",
            failures.shutdown
        ));
    }
}

fn failure_kinds(page: &mut Page, kinds: &[FailureKind]) {
    for kind in kinds.iter().take(TOP_FUNCTIONS) {
        let code = kind.code.map(|c| c.to_string()).unwrap_or_default();
        let asked = kind.asked_bytes.map(|bytes| format!(", asked for {bytes} bytes ({})", size(bytes)));
        let first = format!("  {:>6} x  {code:>3} ", kind.count);
        let words = format!(
            "{}  {} ({}){}",
            clean(&kind.error),
            clean(&kind.function),
            clean(&kind.api),
            asked.unwrap_or_default()
        );
        page.wrapped(&first, &words);
        if let Some(cause) = &kind.cause {
            let cause = format!("{} returned {}", clean(&cause.function), clean(&cause.error));
            page.wrapped("                ", &format!("because {cause}"));
        }
    }
    page.more(kinds.len(), TOP_FUNCTIONS, "kinds");
}

const WINDOW: &[Column] = &[number("Launches", "launches"), long("Name", "name")];

pub fn error_windows(page: &mut Page, figures: &Figures) {
    for window in figures.error_windows.iter().take(TOP) {
        let context =
            window.context.as_ref().map(|c| format!(" in context {}", clean(c))).unwrap_or_default();
        page.section(&format!(
            "First {}failure of pid {}{context}: {} {} at {} s (event {})",
            if window.asynchronous { "asynchronous " } else { "" },
            window.pid,
            clean(&window.function),
            clean(&window.error),
            seconds(window.ts_ns),
            window.begin
        ));
        let since = match &window.last_sync {
            Some(sync) => format!(
                "the last successful synchronisation before it, {} at {} s",
                clean(&sync.function),
                seconds(sync.ts_ns)
            ),
            None => "the beginning: no synchronisation had succeeded before it".to_owned(),
        };
        if let Some(cause) = &window.cause {
            let inside = format!("inside it {} returned {}", clean(&cause.function), clean(&cause.error));
            page.wrapped("  ", &inside);
        }
        let launches = match (window.launches, &window.last_sync) {
            (0, None) => "no launch before it".to_owned(),
            (0, Some(_)) => format!("no launch since {since}"),
            (n, _) => format!("{} since {since}{}", plural(n, "launch"), hint(window)),
        };
        page.wrapped("  ", &launches);
        let mut table = Table::new("kernels", "kernels", WINDOW);
        for kernel in window.kernels.iter().take(TOP) {
            table.row(vec![Cell::Count(kernel.launches), Cell::Kernel(kernel.kernel.clone())]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
        page.more(window.kernels.len(), TOP, "kernels");
    }
    page.more(figures.error_windows.len(), TOP, "first failures");
}

fn hint(window: &ErrorWindow) -> &'static str {
    let from_device = window.asynchronous && window.launches > 0;
    if from_device { "; the cause is most likely one of them" } else { "" }
}

pub fn findings(page: &mut Page, figures: &Figures) {
    if figures.findings.is_empty() {
        return;
    }
    page.section("What could be better:");
    for finding in &figures.findings {
        let cost = finding.cost_ns.map(|ns| format!(", {}", duration(ns))).unwrap_or_default();
        let line = format!(
            "{}: {}{cost}; try: {}",
            clean(&finding.what),
            plural(finding.times, "time"),
            clean(&finding.advice)
        );
        page.wrapped("  - ", &line);
    }
}
