//! Text about the activity of nvidia.ko: one block for every recording with --kernel, then further sections only if
//! they have content.

use super::driver_figures::{DriverFigures, KernelSpace, RequestFigures, SlowCall};
use super::figures::{Figures, Function};
use super::page::Page;
use super::units::{duration, micros, millis, percent, plural, seconds};
use crate::ui::clean;

const TOP_REQUESTS: usize = 25;
const TOP: usize = 15;
const UVM_IOCTL: &str = "nvidia_uvm_ioctl";

pub fn kernel_space(page: &mut Page, figures: &Figures) {
    let Some(kernel) = &figures.kernel_space else { return };
    page.section("KERNEL SPACE (nvidia.ko):");
    page.line(&format!("  IOCTL calls: {}", kernel.ioctls));
    page.line(&format!("  Total IOCTL time: {} ms", millis(kernel.ioctl_ns)));
    page.line(&format!("  Scheduler calls: {}", kernel.scheduler_calls));
    page.counts(&[
        ("IOCTL calls that failed", kernel.failed_ioctls),
        ("Xid errors", kernel.xid_count),
        ("Returns without a call", kernel.unmatched_ends),
    ]);
}

pub fn sections(page: &mut Page, figures: &Figures) {
    xids(page, figures);
    let Some(kernel) = &figures.kernel_space else { return };
    requests(page, kernel);
    slowest(page, kernel);
    functions(page, kernel);
    if !kernel.interrupts.is_empty() {
        page.section("Interrupts of the driver:");
        page.line(HEAD);
        page.list(&kernel.interrupts, TOP, 0, "interrupts", timed);
    }
    if !kernel.tracepoints.is_empty() {
        page.section("Tracepoints:");
        let line = |seen: &DriverFigures| format!("  {:>9}  {}", seen.calls, clean(&seen.name));
        page.list(&kernel.tracepoints, TOP, 0, "tracepoints", line);
    }
    off_cpu(page, figures, kernel);
    if !kernel.hooks.is_empty() {
        let by_backend = kernel.hooks.iter();
        let words: Vec<_> = by_backend.map(|(backend, n)| format!("{n} by {}", clean(backend))).collect();
        page.section(&format!("Hooks in the kernel: {}", words.join(", ")));
    }
}

fn xids(page: &mut Page, figures: &Figures) {
    let Some((count, xids)) = figures.xids().filter(|(count, _)| *count > 0) else { return };
    page.section(&format!("Errors that the driver reported (Xid): {count}"));
    for xid in xids.iter().take(TOP) {
        let process = if xid.pid > 0 { format!(", pid {}", xid.pid) } else { String::new() };
        let (at, device, message) = (seconds(xid.ts_ns), clean(&xid.device), clean(xid.message.trim()));
        page.note(&format!("{at} s  Xid {} on {device}{process}: {message}", xid.xid));
    }
    page.more(count as usize, TOP, "Xids");
}

fn requests(page: &mut Page, kernel: &KernelSpace) {
    if kernel.requests.is_empty() {
        return;
    }
    page.section("ioctls by request:");
    let waits = kernel.requests.iter().any(|request| request.off_cpu_ns > 0);
    let off_cpu = if waits { "   Off CPU (us)" } else { "" };
    page.line(&format!("{COLUMNS}{off_cpu}  Request"));
    for r in kernel.requests.iter().take(TOP_REQUESTS) {
        let off_cpu = if waits { format!("  {:>13}", micros(r.off_cpu_ns)) } else { String::new() };
        page.line(&format!("{}{off_cpu}  {}", times(r.total_ns, r.calls, r.avg_ns, r.max_ns), request(r)));
    }
    if let Some(rest @ [_, ..]) = kernel.requests.get(TOP_REQUESTS..) {
        let time = duration(sum(rest, |r| r.total_ns));
        let least = if kernel.more_requests > 0 { "at least " } else { "" };
        let count = rest.len() as u64 + kernel.more_requests;
        page.line(&format!("  and {count} more requests, {least}{time}"));
    }
    if kernel.unknown_ioctls > 0 {
        page.note(&format!(
            "{} without a name: gpurec does not know the request, RM command or class, and shows its number.",
            plural(kernel.unknown_ioctls, "ioctl")
        ));
    }
}

fn sum<'a, T: 'a>(all: impl IntoIterator<Item = &'a T>, of: impl Fn(&T) -> u64) -> u64 {
    all.into_iter().map(of).fold(0, u64::saturating_add)
}

const COLUMNS: &str = "     Total (us)     Calls      Avg (us)      Max (us)";
const HEAD: &str = "     Total (us)     Calls      Avg (us)      Max (us)  Name";

fn times(total_ns: u64, calls: u64, avg_ns: u64, max_ns: u64) -> String {
    format!("  {:>13}  {calls:>8}  {:>12}  {:>12}", micros(total_ns), micros(avg_ns), micros(max_ns))
}

fn with_detail(name: &str, detail: &Option<String>) -> String {
    let detail = detail.as_deref().map(|detail| format!(" {}", clean(detail))).unwrap_or_default();
    format!("{}{detail}", clean(name))
}

/// `NV_ESC_RM_CONTROL NV2080_CTRL_CMD_… (3 x NV_ERR_NOT_SUPPORTED)`
fn request(r: &RequestFigures) -> String {
    let statuses = r.statuses.iter().take(3).map(|(status, count)| format!("{count} x {}", clean(status)));
    let statuses = statuses.collect::<Vec<_>>().join(", ");
    let statuses = match r.statuses.len() {
        0 => String::new(),
        1..=3 => format!("  ({statuses})"),
        _ => format!("  ({statuses}, …)"),
    };
    let family = if r.request.starts_with("0x") { format!("{} ", clean(&r.ioctl)) } else { String::new() };
    format!("{family}{}{statuses}", with_detail(&r.request, &r.detail))
}

fn slowest(page: &mut Page, kernel: &KernelSpace) {
    if !kernel.slowest.is_empty() {
        page.section("The slowest CUDA calls, and what took the time in the driver:");
    }
    kernel.slowest.iter().for_each(|call| slow_call(page, call));
}

fn slow_call(page: &mut Page, call: &SlowCall) {
    const SHOWN: usize = 5;
    let SlowCall { tid, begin, .. } = call;
    let off_cpu = match call.off_cpu_ns {
        0 => String::new(),
        ns => format!(", off the CPU for {}", duration(ns)),
    };
    let share = percent(call.kernel_ns.into(), call.duration_ns.into());
    let (time, in_driver) = (duration(call.duration_ns), duration(call.kernel_ns));
    let (function, at) = (clean(&call.function), seconds(call.ts_ns));
    page.note(&format!(
        "{time}  {function} at {at} s in tid {tid} (event {begin}): in the driver {in_driver} ({share}%){off_cpu}"
    ));
    let line = |ns, calls, name| format!("    {:>12}  {calls:>6} x  {name}", duration(ns));
    for r in call.requests.iter().take(SHOWN) {
        page.line(&line(r.total_ns, r.calls, with_detail(&r.request, &r.detail)));
    }
    let rest = call.requests.get(SHOWN..).unwrap_or_default();
    let calls = call.more_calls.saturating_add(sum(rest, |r| r.calls));
    let ns = call.more_ns.saturating_add(sum(rest, |r| r.total_ns));
    if calls > 0 {
        page.line(&line(ns, calls, "others".to_owned()));
    }
}

/// Functions of nvidia.ko, and those and the requests of nvidia-uvm.ko.
fn functions(page: &mut Page, kernel: &KernelSpace) {
    let (uvm, own): (Vec<&DriverFigures>, Vec<_>) = kernel.functions.iter().partition(|f| f.uvm);
    if !own.is_empty() {
        page.section("Driver functions by time:");
        page.line(HEAD);
        page.list(&own, TOP, kernel.more_functions, "functions", |seen| timed(seen));
        page.note("A function's time contains that of the functions it calls.");
    }
    let requests: Vec<&RequestFigures> = kernel.requests.iter().filter(|r| r.ioctl == UVM_IOCTL).collect();
    if uvm.is_empty() && requests.is_empty() {
        return;
    }
    let calls = plural(sum(requests.iter().copied(), |r| r.calls), "request");
    let time = duration(sum(requests.iter().copied(), |r| r.total_ns));
    page.section(&format!("UVM (nvidia-uvm.ko): {calls} in {time}"));
    page.line(HEAD);
    let line =
        |r: &&RequestFigures| format!("{}  {}", times(r.total_ns, r.calls, r.avg_ns, r.max_ns), request(r));
    page.list(&requests, TOP, 0, "requests", line);
    page.list(&uvm, TOP, 0, "functions", |seen| timed(seen));
}

fn timed(seen: &DriverFigures) -> String {
    let failed = if seen.failed > 0 { format!("  ({} failed)", seen.failed) } else { String::new() };
    let times = times(seen.total_ns, seen.calls, seen.avg_ns, seen.max_ns);
    format!("{times}  {}{failed}", clean(&seen.name))
}

fn off_cpu(page: &mut Page, figures: &Figures, kernel: &KernelSpace) {
    let off = &kernel.off_cpu;
    if off.count == 0 && off.outside_count == 0 {
        return;
    }
    let line =
        |count, ns, what: &str| format!("  {:>12}  {:>14}  {what}", duration(ns), plural(count, "time"));
    let (time, times) = (duration(off.total_ns), plural(off.count, "time"));
    page.section(&format!("Off the CPU inside CUDA calls: {time} in {times}"));
    for state in &off.by_state {
        page.line(&line(state.count, state.total_ns, &clean(&state.state)));
    }
    let all = figures.functions.iter();
    let mut by_function: Vec<(u64, &Function)> =
        all.filter_map(|f| Some((f.off_cpu_ns.filter(|ns| *ns > 0)?, f))).collect();
    by_function.sort_by_key(|(ns, f)| (std::cmp::Reverse(*ns), &f.name));
    page.list(&by_function, TOP, 0, "functions", |(ns, f)| {
        let share = percent((*ns).into(), f.total_ns.into());
        format!("  {:>12}  {share:>5} % of the time in {}", duration(*ns), clean(&f.name))
    });
    if off.outside_count > 0 {
        page.line(&line(off.outside_count, off.outside_ns, "in the driver, outside of CUDA calls"));
    }
}
