//! `report api`: CUDA functions by time. The columns are those of nsys's cuda_api_sum plus `Self`, the time of a call
//! without the calls made inside it. A trace has both API levels and nsys only the outer one.

use std::collections::HashMap;

use super::calls;
use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::figures::{Figures, Function};
use crate::table::{Cell, Column, Table, number};
use crate::text::{duration, plural, unfinished};
use crate::{Summary, nsys};
use gpurec_trace::Line;

const COLUMNS: &[Column] = &nsys::columns::<4, 13>([
    number("Self (us)", "self_ns"),
    number("Driver (us)", "driver_ns"),
    number("Off CPU (us)", "off_cpu_ns"),
    number("Unfinished", "unfinished"),
]);

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Api::default())
}

#[derive(Default)]
struct Api {
    summary: Summary,
}

impl View for Api {
    fn line(&mut self, line: &Line) {
        self.summary.add(line);
    }

    fn finish(&mut self, told: &Told) -> Report {
        let figures = self.summary.of_file(&told.notes);
        if figures.functions.is_empty() {
            return nothing("There is no CUDA call in this trace.");
        }
        let own = told
            .only_figures()
            .is_none()
            .then(|| self.summary.own_ns(&calls::unfinished(&self.summary.open, told)));
        report(&figures, own.as_ref())
    }
}

fn report(figures: &Figures, own: Option<&HashMap<&str, u64>>) -> Report {
    let mut report = Report::default();
    let total: u128 = figures.functions.iter().map(|f| u128::from(f.total_ns)).sum();
    let in_calls = own.map(|own| own.values().fold(0u64, |sum, ns| sum.saturating_add(*ns)));
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
    for f in &figures.functions {
        table.row(row(f, total, own));
    }
    report.table(table);
    if let Some(said) = unfinished(&figures.functions) {
        report.words(said);
    }
    report.words(
        "Time (%) is of the sum of Total. A call made inside another, as cuLaunchKernel inside cudaLaunchKernel, is in the time of both; Self counts it once. Med is within 1 %; of an even number of calls it is half way between the two in the middle, as in nsys, where `check` and `report latency` have the lower one (p50).",
    );
    if figures.kernel_space.is_some() {
        report.words("Driver is the time in nvidia.ko, Off CPU that without a CPU, there or elsewhere.");
    }
    report
}

fn row(f: &Function, total: u128, own: Option<&HashMap<&str, u64>>) -> Vec<Cell> {
    let mut cells = nsys::cells(f, total);
    cells.extend([
        Cell::optional(own.and_then(|own| own.get(f.name.as_str()).copied()), Cell::Micros),
        Cell::optional(f.kernel_ns, Cell::Micros),
        Cell::optional(f.off_cpu_ns.filter(|ns| *ns > 0), Cell::Micros),
        Cell::some(f.unfinished),
    ]);
    cells
}
