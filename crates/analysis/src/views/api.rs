//! `report api`: CUDA functions by time. The columns are those of nsys's cuda_api_sum plus `Self`, the time of a call
//! without the calls made inside it. A trace has both API levels and nsys only the outer one.

use super::calls::unfinished as unfinished_calls;
use super::*;
use crate::nsys;
use crate::text::unfinished;

pub const KIND: Kind = kind::<Api>("api", "CUDA functions by time, in the columns of nsys's cuda_api_sum")
    .table("functions", 40)
    .of_summary()
    .figures(&[CALLS]);

const COLUMNS: &[Column] = &nsys::columns::<4, 13>([
    number("Self (us)", "self_ns"),
    number("Driver (us)", "driver_ns"),
    number("Off CPU (us)", "off_cpu_ns"),
    number("Unfinished", "unfinished"),
]);

#[derive(Default)]
struct Api;

impl View for Api {
    fn finish(&mut self, context: &Context) -> Report {
        let figures = context.figures();
        if figures.functions.is_empty() {
            return nothing("There is no CUDA call in this trace.");
        }
        let own = context
            .only_figures()
            .is_none()
            .then(|| context.summary.own_ns(&unfinished_calls(&context.summary.open, context)));
        let mut report = Report::default();
        let total: u128 = figures.functions.iter().map(|f| u128::from(f.total_ns)).sum();
        let in_calls = own.as_ref().map(|own| own.values().fold(0u64, |sum, ns| sum.saturating_add(*ns)));
        let time = in_calls.map(|ns| format!(", {} in all", duration(ns))).unwrap_or_default();
        let timed: u64 = figures.functions.iter().map(|f| f.calls).sum();
        let others = (figures.cuda_calls + figures.other_calls).saturating_sub(timed);
        let time = if others > 0 { format!("{time}; of {others} more the time is not known") } else { time };
        report.title(format!(
            "CUDA functions by time: {} of {}{time}",
            plural(timed, "call"),
            plural(figures.functions.len() as u64, "function"),
        ));
        report.fact("in_calls_ns", in_calls);
        let mut table = Table::new("functions", "functions", COLUMNS);
        for f in figures.functions.iter().take(context.rows) {
            let own_ns = own.as_ref().and_then(|own| own.get(f.name.as_str()).copied());
            let mut cells = nsys::cells(f, total);
            cells.extend(
                [own_ns, f.kernel_ns, f.off_cpu_ns.and_then(positive)].map(|ns| ns.map(Cell::Micros).into()),
            );
            cells.push(Cell::some(f.unfinished));
            table.row(cells);
        }
        table.more(figures.functions.len().saturating_sub(context.rows) as u64);
        report.table(table);
        if let Some(unfinished) = unfinished(&figures.functions) {
            report.words(unfinished);
        }
        report.words(
            "Time (%) is of the sum of Total. A call made inside another, as cuLaunchKernel inside cudaLaunchKernel, is in the time of both; Self counts it once. Med is within 1 %; of an even number of calls it is half way between the two in the middle, as in nsys, where `check` and `report latency` have the lower one (p50).",
        );
        report.words_if(
            figures.kernel_space.is_some(),
            "Driver is the time in nvidia.ko, Off CPU that without a CPU, there or elsewhere.",
        );
        report
    }
}
