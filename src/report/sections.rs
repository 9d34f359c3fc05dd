//! The sections about memory, kernels, copies, the causes of errors, and what
//! to try.

use super::figures::{DirectionSeen, ErrorWindow, Figures, Leak, ProcessSeen};
use super::text::{Page, clean, duration, plural, seconds, shortened};

const TOP: usize = 10;
const TOP_KERNELS: usize = 20;

/// `524288000 bytes (500.00 MB)`, of 2^20 bytes.
pub fn bytes(count: u64) -> String {
    format!("{count} bytes ({})", megabytes(count))
}

fn megabytes(count: u64) -> String {
    let hundredths = (u128::from(count) * 100 + (1 << 19)) >> 20;
    format!("{}.{:02} MB", hundredths / 100, hundredths % 100)
}

pub fn peak(process: &ProcessSeen) -> String {
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

pub fn leaks(page: &mut Page, figures: &Figures) {
    let leaks = &figures.memory.leaks;
    if leaks.count == 0 {
        return;
    }
    page.section(&format!("Leaks: {} in {}", bytes(leaks.bytes), plural(leaks.count, "allocation")));
    for space in &leaks.by_space {
        let when = match space.count - space.at_exit.min(space.count) {
            0 => "live at exit".to_owned(),
            n if n == space.count => "live when the recording ended".to_owned(),
            n => format!("{} live at exit, {n} when the recording ended", space.at_exit),
        };
        page.line(&format!(
            "  {:<8} {} in {}, {when}",
            clean(&space.space),
            bytes(space.bytes),
            plural(space.count, "allocation")
        ));
    }
    for leak in leaks.largest.iter().take(TOP) {
        let line = shortened(&one_leak(leak), page.width);
        page.line(&line);
    }
    page.more(leaks.count as usize, TOP.min(leaks.largest.len()), "allocations");
}

pub(super) fn one_leak(leak: &Leak) -> String {
    format!(
        "  {:>14}  {:>12} bytes, {} old, by {} in pid {} (event {})",
        leak.ptr,
        leak.size,
        duration(leak.age_ns),
        clean(&leak.function),
        leak.pid,
        leak.begin
    )
}

pub fn kernels(page: &mut Page, figures: &Figures) {
    if figures.kernels.is_empty() {
        return;
    }
    page.section("Launches by kernel:");
    page.line(&format!("  {:>9}  {:>16}  {:>14}  Name", "Launches", "Grid", "Block"));
    for kernel in figures.kernels.iter().take(TOP_KERNELS) {
        let line = format!(
            "  {:>9}  {:>16}  {:>14}  {}",
            kernel.launches,
            format!("{}{}", dims(kernel.grid), if kernel.shapes > 1 { "*" } else { "" }),
            dims(kernel.block),
            clean(&kernel.name)
        );
        let line = shortened(&line, page.width.max(100));
        page.line(&line);
    }
    page.more(figures.kernels.len() + figures.more_kernels as usize, TOP_KERNELS, "kernels");
    if figures.kernels.iter().take(TOP_KERNELS).any(|kernel| kernel.shapes > 1) {
        page.line("  * the most frequent of several shapes");
    }
    if figures.unnamed_launches > 0 {
        let launches = plural_launches(figures.unnamed_launches);
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
        page.line(&format!(
            "  {:<8}{:>9}  {}{}{}{}",
            clean(&seen.direction),
            seen.count,
            if seen.partial { "at least " } else { "" },
            bytes(seen.bytes),
            bandwidth(seen),
            pageable(seen)
        ));
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
            None => "the beginning: no synchronisation had succeeded".to_owned(),
        };
        page.wrapped("  ", &format!("{} since {since}{}", plural_launches(window.launches), hint(window)));
        for kernel in window.kernels.iter().take(TOP) {
            let line =
                shortened(&format!("  {:>9} x  {}", kernel.launches, clean(&kernel.kernel)), page.width);
            page.line(&line);
        }
        page.more(window.kernels.len(), TOP, "kernels");
    }
    page.more(figures.error_windows.len(), TOP, "first failures");
}

fn plural_launches(count: u64) -> String {
    match count {
        1 => "1 launch".to_owned(),
        n => format!("{n} launches"),
    }
}

fn hint(window: &ErrorWindow) -> &'static str {
    match window.asynchronous && window.launches > 0 {
        true => "; the cause is most likely one of them",
        false => "",
    }
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
