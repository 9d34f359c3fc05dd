//! Text about the activity of nvidia.ko: one block for every recording with --kernel, then further sections only if
//! they have content.

use super::driver_figures::{DriverSeen, KernelSpace, RequestSeen, SlowCall, SlowRequest};
use super::figures::Figures;
use super::text::{Page, clean, duration, micros, millis, percent, plural, seconds};

const TOP_REQUESTS: usize = 25;
const TOP: usize = 15;
const UVM_IOCTL: &str = "nvidia_uvm_ioctl";

pub fn kernel_space(page: &mut Page, figures: &Figures) {
    let Some(kernel) = &figures.kernel_space else { return };
    page.section("KERNEL SPACE (nvidia.ko):");
    page.line(&format!("  IOCTL calls: {}", kernel.ioctls));
    page.line(&format!("  Total IOCTL time: {} ms", millis(kernel.ioctl_ns)));
    page.line(&format!("  Scheduler calls: {}", kernel.scheduler_calls));
    let counts = [
        ("IOCTL calls that failed", kernel.failed_ioctls),
        ("Xid errors", kernel.xid_count),
        ("Returns without a call", kernel.unmatched_ends),
    ];
    for (what, count) in counts {
        if count > 0 {
            page.line(&format!("  {what}: {count}"));
        }
    }
}

pub fn sections(page: &mut Page, figures: &Figures) {
    let Some(kernel) = &figures.kernel_space else { return };
    xids(page, kernel);
    requests(page, kernel);
    slowest(page, kernel);
    functions(page, kernel);
    uvm(page, kernel);
    interrupts(page, kernel);
    tracepoints(page, kernel);
    off_cpu(page, figures, kernel);
    hooks(page, kernel);
}

fn xids(page: &mut Page, kernel: &KernelSpace) {
    if kernel.xid_count == 0 {
        return;
    }
    page.section(&format!("Errors that the driver reported (Xid): {}", kernel.xid_count));
    for xid in kernel.xids.iter().take(TOP) {
        let process = if xid.pid > 0 { format!(", pid {}", xid.pid) } else { String::new() };
        let words = format!(
            "{} s  Xid {} on {}{process}: {}",
            seconds(xid.ts_ns),
            xid.xid,
            clean(&xid.device),
            clean(xid.message.trim())
        );
        page.wrapped("  ", &words);
    }
    page.more(usize::try_from(kernel.xid_count).unwrap_or(usize::MAX), TOP, "Xids");
}

fn requests(page: &mut Page, kernel: &KernelSpace) {
    if kernel.requests.is_empty() {
        return;
    }
    page.section("ioctls by request:");
    let waits = kernel.requests.iter().any(|request| request.off_cpu_ns > 0);
    page.line(&request_line(
        "Total (us)",
        "Calls",
        "Avg (us)",
        "Max (us)",
        waits.then_some("Off CPU (us)"),
        "Request",
    ));
    for r in kernel.requests.iter().take(TOP_REQUESTS) {
        let off_cpu = waits.then(|| micros(r.off_cpu_ns));
        page.line(&request_line(
            &micros(r.total_ns),
            &r.calls.to_string(),
            &micros(r.avg_ns),
            &micros(r.max_ns),
            off_cpu.as_deref(),
            &what_request(r),
        ));
    }
    let total = kernel.requests.len() + usize::try_from(kernel.more_requests).unwrap_or(0);
    if let Some(rest) = kernel.requests.get(TOP_REQUESTS..)
        && !rest.is_empty()
    {
        let ns = rest.iter().fold(0u64, |sum, r| sum.saturating_add(r.total_ns));
        let least = if kernel.more_requests > 0 { "at least " } else { "" };
        page.line(&format!("  and {} more requests, {least}{}", total - TOP_REQUESTS, duration(ns)));
    }
    if kernel.unknown_ioctls > 0 {
        page.wrapped("  ", &format!(
            "{} without a name: the request, RM command or class is not known here and shown as a number.",
            plural(kernel.unknown_ioctls, "ioctl")
        ));
    }
}

fn request_line(total: &str, calls: &str, avg: &str, max: &str, off_cpu: Option<&str>, name: &str) -> String {
    let off_cpu = off_cpu.map(|ns| format!("  {ns:>13}")).unwrap_or_default();
    format!("  {total:>13}  {calls:>8}  {avg:>12}  {max:>12}{off_cpu}  {name}")
}

/// `NV_ESC_RM_CONTROL NV2080_CTRL_CMD_… (3 x NV_ERR_NOT_SUPPORTED)`
fn what_request(r: &RequestSeen) -> String {
    let detail = r.detail.as_deref().map(|detail| format!(" {}", clean(detail))).unwrap_or_default();
    let statuses: Vec<String> =
        r.statuses.iter().take(3).map(|(status, count)| format!("{count} x {}", clean(status))).collect();
    let more = if r.statuses.len() > 3 { ", …" } else { "" };
    let statuses =
        if statuses.is_empty() { String::new() } else { format!("  ({}{more})", statuses.join(", ")) };
    let family = if r.request.starts_with("0x") { format!("{} ", clean(&r.ioctl)) } else { String::new() };
    format!("{family}{}{detail}{statuses}", clean(&r.request))
}

fn slowest(page: &mut Page, kernel: &KernelSpace) {
    if kernel.slowest.is_empty() {
        return;
    }
    page.section("The slowest CUDA calls, and what took the time in the driver:");
    for call in &kernel.slowest {
        slow_call(page, call);
    }
}

fn slow_call(page: &mut Page, call: &SlowCall) {
    let share = percent(u128::from(call.kernel_ns), u128::from(call.duration_ns));
    let off_cpu = match call.off_cpu_ns {
        0 => String::new(),
        ns => format!(", off the CPU for {}", duration(ns)),
    };
    page.wrapped(
        "  ",
        &format!(
            "{}  {} at {} s in tid {} (event {}): in the driver {} ({share}%){off_cpu}",
            duration(call.duration_ns),
            clean(&call.function),
            seconds(call.ts_ns),
            call.tid,
            call.begin,
            duration(call.kernel_ns),
        ),
    );
    const SHOWN: usize = 5;
    for request in call.requests.iter().take(SHOWN) {
        page.line(&format!(
            "    {:>12}  {:>6} x  {}",
            duration(request.total_ns),
            request.calls,
            what_slow(request)
        ));
    }
    let rest = call.requests.get(SHOWN..).unwrap_or_default();
    let calls = rest.iter().fold(call.more_calls, |sum, r| sum.saturating_add(r.calls));
    let ns = rest.iter().fold(call.more_ns, |sum, r| sum.saturating_add(r.total_ns));
    if calls > 0 {
        page.line(&format!("    {:>12}  {calls:>6} x  others", duration(ns)));
    }
}

fn what_slow(request: &SlowRequest) -> String {
    let detail = request.detail.as_deref().map(|detail| format!(" {}", clean(detail))).unwrap_or_default();
    format!("{}{detail}", clean(&request.request))
}

fn functions(page: &mut Page, kernel: &KernelSpace) {
    let all: Vec<&DriverSeen> = kernel.functions.iter().filter(|f| !f.uvm).collect();
    if all.is_empty() {
        return;
    }
    page.section("Driver functions by time:");
    timed_head(page);
    timed(page, &all);
    let more = usize::try_from(kernel.more_functions).unwrap_or(0);
    page.more(all.len() + more, TOP.min(all.len()), "functions");
    page.wrapped("  ", "A function's time contains that of the functions it calls.");
}

fn uvm(page: &mut Page, kernel: &KernelSpace) {
    let all: Vec<&DriverSeen> = kernel.functions.iter().filter(|f| f.uvm).collect();
    let requests: Vec<&RequestSeen> = kernel.requests.iter().filter(|r| r.ioctl == UVM_IOCTL).collect();
    if all.is_empty() && requests.is_empty() {
        return;
    }
    let calls = requests.iter().fold(0u64, |sum, r| sum.saturating_add(r.calls));
    let ns = requests.iter().fold(0u64, |sum, r| sum.saturating_add(r.total_ns));
    page.section(&format!("UVM (nvidia-uvm.ko): {} in {}", plural(calls, "request"), duration(ns)));
    timed_head(page);
    let of_request = |r: &&RequestSeen| DriverSeen {
        name: what_request(r),
        calls: r.calls,
        total_ns: r.total_ns,
        avg_ns: r.avg_ns,
        max_ns: r.max_ns,
        // The name column shows the statuses.
        ..DriverSeen::default()
    };
    let as_rows: Vec<DriverSeen> = requests.iter().map(of_request).collect();
    timed(page, &as_rows.iter().collect::<Vec<_>>());
    page.more(as_rows.len(), TOP, "requests");
    timed(page, &all);
    page.more(all.len(), TOP, "functions");
}

fn interrupts(page: &mut Page, kernel: &KernelSpace) {
    if kernel.interrupts.is_empty() {
        return;
    }
    page.section("Interrupts of the driver:");
    timed_head(page);
    timed(page, &kernel.interrupts.iter().collect::<Vec<_>>());
    page.more(kernel.interrupts.len(), TOP, "interrupts");
}

fn tracepoints(page: &mut Page, kernel: &KernelSpace) {
    if kernel.tracepoints.is_empty() {
        return;
    }
    page.section("Tracepoints:");
    for seen in kernel.tracepoints.iter().take(TOP) {
        page.line(&format!("  {:>9}  {}", seen.calls, clean(&seen.name)));
    }
    page.more(kernel.tracepoints.len(), TOP, "tracepoints");
}

fn timed_head(page: &mut Page) {
    page.line(&request_line("Total (us)", "Calls", "Avg (us)", "Max (us)", None, "Name"));
}

fn timed(page: &mut Page, all: &[&DriverSeen]) {
    for seen in all.iter().take(TOP) {
        let failed = if seen.failed > 0 { format!("  ({} failed)", seen.failed) } else { String::new() };
        let (total, avg, max) = (micros(seen.total_ns), micros(seen.avg_ns), micros(seen.max_ns));
        let name = format!("{}{failed}", clean(&seen.name));
        page.line(&request_line(&total, &seen.calls.to_string(), &avg, &max, None, &name));
    }
}

fn off_cpu(page: &mut Page, figures: &Figures, kernel: &KernelSpace) {
    let off = &kernel.off_cpu;
    if off.count == 0 && off.outside_count == 0 {
        return;
    }
    page.section(&format!(
        "Off the CPU inside CUDA calls: {} in {}",
        duration(off.total_ns),
        plural(off.count, "time")
    ));
    for state in &off.by_state {
        let times = plural(state.count, "time");
        page.line(&format!("  {:>12}  {times:>14}  {}", duration(state.total_ns), clean(&state.state)));
    }
    let mut by_function: Vec<(u64, u64, &str)> = figures
        .functions
        .iter()
        .filter_map(|f| Some((f.off_cpu_ns.filter(|ns| *ns > 0)?, f.total_ns, f.name.as_str())))
        .collect();
    by_function.sort_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(b.2)));
    for (ns, total_ns, name) in by_function.iter().take(TOP) {
        let share = percent(u128::from(*ns), u128::from(*total_ns));
        page.line(&format!("  {:>12}  {share:>5} % of the time in {}", duration(*ns), clean(name)));
    }
    page.more(by_function.len(), TOP, "functions");
    if off.outside_count > 0 {
        page.line(&format!(
            "  {:>12}  {:>14}  in the driver, outside of CUDA calls",
            duration(off.outside_ns),
            plural(off.outside_count, "time")
        ));
    }
}

fn hooks(page: &mut Page, kernel: &KernelSpace) {
    if kernel.hooks.is_empty() {
        return;
    }
    let words: Vec<String> =
        kernel.hooks.iter().map(|(backend, count)| format!("{count} by {}", clean(backend))).collect();
    page.section(&format!("Hooks in the kernel: {}", words.join(", ")));
}
