//! The sections of the summary about GPU work. In: figures. Out: lines of a page, only if there is something to say.

use super::figures::{GpuCopyFigures, GpuFigures, GpuKernelFigures};
use crate::figures::Figures;
use crate::nsys;
use crate::page::Page;
use crate::table::{Cell, Column, Table, data, number, text};
use crate::ui::clean;
use crate::units::{duration, percent, plural};
use gpurec_trace::{GpuAccount, GpuOverhead};

const TOP: usize = 10;
const TOP_KERNELS: usize = 20;
/// The figure's path.
const BUSY: &str = "gpu.busy_ns";

pub fn sections(page: &mut Page, figures: &Figures) {
    let is_recorded = |pid| figures.processes.iter().any(|process| process.pid == pid);
    super::nvml::section(page, &figures.nvml, &is_recorded);
    let Some(gpu) = &figures.gpu else { return };
    if !gpu.devices.is_empty() {
        busy(page, figures, gpu);
        kernels(page, gpu);
        queue(page, gpu);
        copies(page, gpu);
    }
    if let Some(account) = &gpu.account {
        if account.delivered == 0 && gpu.devices.is_empty() && figures.unknown.contains_key(BUSY) {
            page.section(&format!("GPU busy: {}", figures.said(BUSY, 0, |_| String::new())));
        }
        page.section(&counts(account));
        reasons(account).iter().for_each(|line| page.wrapped("  ", line));
        for (text, is_own) in [("CUPTI's own overhead", true), ("The driver's, by CUPTI's records", false)] {
            if let Some(overhead) = overhead(account, is_own) {
                page.section(&format!("{text}: {overhead}"));
            }
        }
    }
}

/// `812.345 ms, 81.2 % of the time from the first work to the last`
pub fn share(gpu: &GpuFigures) -> String {
    let whole = gpu.busy_ns.saturating_add(gpu.idle_ns);
    format!(
        "{}, {} % of the time from the first work to the last",
        duration(gpu.busy_ns),
        percent(gpu.busy_ns.into(), whole.into())
    )
}

fn busy(page: &mut Page, figures: &Figures, gpu: &GpuFigures) {
    let said = figures.said(BUSY, gpu.busy_ns, |_| share(gpu));
    page.section(&format!("GPU busy: {said} (`gpurec report gpu`, `gpurec report idle`)"));
    page.table(&devices(gpu));
    if gpu.streams.len() > 1 {
        let mut streams = streams(gpu);
        streams.limit(TOP);
        page.table(&streams);
    }
    notes(gpu).iter().for_each(|note| page.note(note));
}

/// What qualifies the figures.
pub fn notes(gpu: &GpuFigures) -> Vec<String> {
    let mut notes = Vec::new();
    if gpu.waited_gaps > 0 {
        notes.push(format!(
            "Of the idle time, {} in {} began while the host waited for the GPU.",
            duration(gpu.waited_gap_ns),
            plural(gpu.waited_gaps, "gap")
        ));
    }
    if gpu.late > 0 {
        let records = plural(gpu.late, "record");
        notes.push(format!("{records} came too late to be counted whole: the busy time is too low."));
    }
    notes
}

pub fn devices(gpu: &GpuFigures) -> Table {
    Table::of(
        "devices",
        &gpu.devices,
        &[
            (number("Device", "device").vital(), &|it| Cell::Count(it.device.into())),
            (number("Busy (ms)", "busy_ns"), &|it| Cell::Millis(it.busy_ns)),
            (number("(%)", "busy_percent"), &|it| {
                Cell::Share(it.busy_ns.into(), u128::from(it.busy_ns) + u128::from(it.idle_ns))
            }),
            (number("Idle (ms)", "idle_ns"), &|it| Cell::Millis(it.idle_ns)),
            (number("Gaps", "gaps"), &|it| Cell::Count(it.gaps)),
            (number("Longest (ms)", "longest_gap_ns"), &|it| Cell::Millis(it.longest_gap_ns)),
            (number("Only copies (ms)", "only_copies_ns"), &|it| Cell::Millis(it.only_copies_ns)),
            (number("Records", "work"), &|it| Cell::Count(it.work)),
            (data("time_ns"), &|it| Cell::Micros(it.time_ns)),
            (data("first_ns"), &|it| Cell::At(it.first_ns)),
            (data("last_ns"), &|it| Cell::At(it.last_ns)),
        ],
    )
}

pub fn streams(gpu: &GpuFigures) -> Table {
    let whole = |device: u32| {
        let of = gpu.devices.iter().find(|it| it.device == device);
        of.map_or(0, |it| u128::from(it.busy_ns) + u128::from(it.idle_ns))
    };
    let mut table = Table::of(
        "streams",
        &gpu.streams,
        &[
            (number("Device", "device").vital(), &|it| Cell::Count(it.device.into())),
            (number("PID", "pid"), &|it| Cell::Count(it.pid.into())),
            (number("Context", "context").minor(), &|it| Cell::Count(it.context.into())),
            (number("Stream", "stream").vital(), &|it| Cell::Count(it.stream.into())),
            (number("Time (ms)", "time_ns"), &|it| Cell::Millis(it.time_ns)),
            (number("(%)", "time_percent"), &|it| Cell::Share(it.time_ns.into(), whole(it.device))),
            (number("Records", "work"), &|it| Cell::Count(it.work)),
        ],
    );
    table.more(gpu.more_streams);
    table
}

const KERNEL: &[Column] = &nsys::kernel_columns::<1, 10>([number("Delay (us)", "queued_med_ns")]);

/// The columns of nsys's cuda_gpu_kern_sum, and the median delay.
pub fn kernel_table(gpu: &GpuFigures) -> Table {
    let total = gpu.kernels.iter().map(|kernel| u128::from(kernel.total_ns)).sum();
    let mut table = Table::new("kernels", "kernels", KERNEL);
    for kernel in &gpu.kernels {
        table.row(nsys::kernel_cells(kernel, total, [Cell::optional(kernel.queued_med_ns, Cell::Micros)]));
    }
    table.more(gpu.more_kernels);
    table
}

fn kernels(page: &mut Page, gpu: &GpuFigures) {
    if gpu.kernels.is_empty() {
        return;
    }
    let sum = |sum: u64, kernel: &GpuKernelFigures| sum.saturating_add(kernel.total_ns);
    let time = duration(gpu.kernels.iter().fold(0, sum));
    let runs = plural(gpu.kernel_count, "run");
    page.section(&format!("Kernels by GPU time: {time} in {runs}"));
    let mut table = kernel_table(gpu);
    table.limit(TOP_KERNELS);
    page.table(&table);
}

/// `median 5.120 us, 99 % at most 20.480 us, at most 1.024 ms`
pub fn delay(gpu: &GpuFigures) -> Option<String> {
    let queue = gpu.queue.as_ref()?;
    let early = match queue.early {
        0 => String::new(),
        n => format!("; {n} started before their call had returned"),
    };
    let (p50, p99, max) = (duration(queue.p50_ns), duration(queue.p99_ns), duration(queue.max_ns));
    Some(format!("median {p50}, 99 % within {p99}, the longest {max}{early}"))
}

fn queue(page: &mut Page, gpu: &GpuFigures) {
    if let Some(delay) = delay(gpu) {
        page.section(&format!("Launch delay, from the return of the call to the start on the GPU: {delay}"));
    }
}

pub fn copy_table(copies: &[GpuCopyFigures]) -> Table {
    Table::of(
        "copies",
        copies,
        &[
            (text("Direction", "direction"), &|it| Cell::Text(it.direction.clone())),
            (number("Count", "count"), &|it| Cell::Count(it.count)),
            (number("Bytes", "bytes"), &|it| Cell::Bytes(it.bytes)),
            (number("GPU time (ms)", "total_ns"), &|it| Cell::Millis(it.total_ns)),
            (number("GB/s", "bytes_per_sec"), &|it| Cell::optional(it.rate(), Cell::Rate)),
        ],
    )
}

fn copies(page: &mut Page, gpu: &GpuFigures) {
    if gpu.copies.is_empty() {
        return;
    }
    page.section("Copies and sets on the GPU, asynchronous ones too:");
    page.table(&copy_table(&gpu.copies));
}

/// `GPU accounting: 42 launches recorded, 42 seen by CUPTI, 42 kernels delivered`
pub fn counts(account: &GpuAccount) -> String {
    let GpuAccount { launches, api, delivered, .. } = account;
    let agree =
        launches == api && api == delivered && [account.dropped, account.unmatched, account.before] == [0; 3];
    let agree = if agree { ": they agree" } else { "" };
    format!(
        "GPU accounting: {} recorded, {api} seen by CUPTI, {} delivered{agree}",
        plural(*launches, "launch"),
        plural(*delivered, "kernel")
    )
}

/// `3.210 ms in all threads together (flushing buffers 3.000 ms in 12, instrumentation 0.210 ms in 1)`
fn overhead(account: &GpuAccount, is_own: bool) -> Option<String> {
    let mut of: Vec<&GpuOverhead> = account.overhead.iter().filter(|it| it.is_own() == is_own).collect();
    of.sort_by_key(|it| std::cmp::Reverse(it.total_ns));
    let total_ns = of.iter().fold(0u64, |sum, it| sum.saturating_add(it.total_ns));
    let each = |it: &&GpuOverhead| format!("{} {} in {}", clean(it.text()), duration(it.total_ns), it.count);
    let kinds: Vec<String> = of.iter().map(each).collect();
    (!of.is_empty()).then(|| format!("{} in all threads together ({})", duration(total_ns), kinds.join(", ")))
}

/// Why the counts differ.
pub fn reasons(account: &GpuAccount) -> Vec<String> {
    let reasons = account.reasons.iter().filter(|reason| reason.count > 0);
    let mut lines: Vec<String> =
        reasons.map(|reason| format!("{}: {}", clean(reason.text()), reason.count)).collect();
    let known = |code: &str| account.reasons.iter().any(|reason| reason.code == code);
    for (count, code, text) in [
        (account.dropped, "dropped", "records that were dropped"),
        (account.unmatched, "unmatched", "records of work whose call is not known"),
        (account.before, "before", "records of work from before the recording"),
    ] {
        if count > 0 && !known(code) {
            lines.push(format!("{text}: {count}"));
        }
    }
    lines
}
