//! `report gpu`: what ran on the GPUs: each device and stream, kernels by GPU time, copies, the delay of launches, and
//! the account of it all. Of the summary's figures, in full.

use super::*;
use crate::figures::GpuFigures;
use crate::gpu::text;

pub const KIND: Kind =
    kind::<Gpus>("gpu", "what ran on the GPU: busy time, kernels by GPU time, streams, copies (--gpu)")
        .table("kernels", 25)
        .of_summary()
        .figures(&[shows(
            "gpu.busy_ns",
            "how long the GPU was busy",
            &[
                "busy_ns",
                "idle_ns",
                "time_ns",
                "kernel_count",
                "copy_count",
                "set_count",
                "graph_count",
                "waited_gaps",
                "waited_gap_ns",
            ],
        )]);

#[derive(Default)]
struct Gpus;

impl View for Gpus {
    fn finish(&mut self, context: &Context) -> Report {
        match &context.figures().gpu {
            Some(figures) => report(figures),
            None => nothing("There is no GPU work in this trace: record with --gpu."),
        }
    }
}

fn report(gpu: &GpuFigures) -> Report {
    let mut report = Report::default();
    report.facts([
        ("busy_ns", gpu.busy_ns),
        ("idle_ns", gpu.idle_ns),
        ("time_ns", gpu.time_ns),
        ("kernel_count", gpu.kernel_count),
        ("copy_count", gpu.copy_count),
        ("set_count", gpu.set_count),
        ("graph_count", gpu.graph_count),
        ("unmatched", gpu.unmatched),
        ("waited_gaps", gpu.waited_gaps),
        ("waited_gap_ns", gpu.waited_gap_ns),
        ("late", gpu.late),
    ]);
    if gpu.devices.is_empty() {
        report.title("No GPU work was delivered");
    } else {
        report.title(format!("GPU busy: {}", text::share(gpu)));
        report.table(text::devices(gpu));
    }
    text::notes(gpu).into_iter().for_each(|note| report.words(note));
    report.section("Kernels by GPU time", text::kernel_table(gpu));
    if let Some(delay) = text::delay(gpu) {
        report.title(format!("Launch delay, from the return of the call to the start on the GPU: {delay}"));
    }
    report.section("Streams, by CUPTI's numbers", text::streams(gpu));
    report.section("Copies and sets, asynchronous ones too", text::copy_table(&gpu.copies));
    if let Some(queue) = &gpu.queue {
        report.fact("queue", serde_json::to_value(queue).unwrap_or_default());
    }
    if let Some(account) = &gpu.account {
        report.fact("account", serde_json::to_value(account).unwrap_or_default());
        report.title(text::counts(account));
        text::reasons(account).into_iter().for_each(|line| report.words(line));
    }
    report
}
