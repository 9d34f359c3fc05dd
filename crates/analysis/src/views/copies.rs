//! `report copies`: copies and sets. A copy has a bandwidth only if the call waited for it.

use std::collections::BTreeMap;

use super::output::Report;
use super::{ReportConfig, Told, View, nothing};
use crate::Summary;
use crate::figures::Figures;
use crate::table::{Cell, Column, Table, data, number, size, text};
use gpurec_trace::bounds::LONGEST_NAME;
use gpurec_trace::{Body, Line, Transfer};

const DIRECTIONS: &[Column] = &[
    text("Direction", "direction"),
    number("Bytes", "bytes"),
    number("Count", "count"),
    number("Avg", "avg_bytes"),
    number("Min", "min_bytes").minor(),
    number("Max", "max_bytes").minor(),
    number("Waited for", "waited_count"),
    data("waited_bytes"),
    number("Waited (ms)", "waited_ns"),
    number("GB/s", "bytes_per_sec").vital(),
    number("Pageable", "pageable_count").vital(),
    number("Pageable bytes", "pageable_bytes"),
    data("partial"),
];

const SIZES: &[Column] = &[
    text("Size", "size"),
    data("from_bytes"),
    number("Count", "count"),
    number("Bytes", "bytes"),
    text("Share of the bytes", "bytes_percent"),
];

const CALLS: &[Column] = &[
    number("Bytes", "bytes"),
    number("Count", "count"),
    text("Direction", "direction"),
    text("Call", "name"),
];

/// Limit on distinct pairs of a function and a direction.
const MOST: usize = 4096;
/// Longest name of a direction, in bytes.
const LONGEST: usize = 64;
const OTHERS: &str = "(others)";

/// Each size class is 2^CLASS_BITS times the one before: 4 kB, 64 kB, 1 MB…
const CLASS_BITS: u32 = 4;

pub fn make(_: &ReportConfig) -> Box<dyn View> {
    Box::new(Copies::default())
}

#[derive(Default)]
struct Copies {
    summary: Summary,
    range: BTreeMap<Box<str>, (u64, u64)>,
    by_class: BTreeMap<u32, (u64, u64)>,
    by_call: BTreeMap<(Box<str>, Box<str>), (u64, u64)>,
}

impl View for Copies {
    fn line(&mut self, line: &Line) {
        self.summary.add(line);
        if let Body::Transfer(transfer) = &line.body {
            self.add(transfer);
        }
    }

    fn finish(&mut self, told: &Told) -> Report {
        let figures = self.summary.of_file(&told.notes);
        if figures.transfers.by_direction.is_empty() {
            return nothing("Nothing was copied or set in this trace.");
        }
        let mut report = Report::default();
        report.fact("count", figures.transfers.count);
        report.fact("bytes", figures.transfers.bytes);
        self.directions(&mut report, &figures);
        self.classes(&mut report);
        self.calls(&mut report);
        report
    }
}

impl Copies {
    fn add(&mut self, transfer: &Transfer) {
        let size = transfer.size;
        let direction = if transfer.direction.len() < LONGEST { transfer.direction.as_ref() } else { OTHERS };
        if let Some((least, most)) = self.range.get_mut(direction) {
            (*least, *most) = ((*least).min(size), (*most).max(size));
        } else if self.range.len() < MOST {
            self.range.insert(direction.into(), (size, size));
        }
        let class = self.by_class.entry(class_of(size)).or_default();
        *class = (class.0 + 1, class.1.saturating_add(size));
        let mut key: (Box<str>, Box<str>) = (transfer.name.as_ref().into(), direction.into());
        let fits = self.by_call.len() < MOST && key.0.len() <= LONGEST_NAME;
        if !fits && !self.by_call.contains_key(&key) {
            key = (OTHERS.into(), OTHERS.into());
        }
        let call = self.by_call.entry(key).or_default();
        *call = (call.0 + 1, call.1.saturating_add(size));
    }

    fn directions(&self, report: &mut Report, figures: &Figures) {
        let transfers = &figures.transfers;
        let what = if transfers.count == 1 { "copy or set" } else { "copies and sets" };
        report.title(format!("{} {what}, {}, by direction", transfers.count, size(transfers.bytes)));
        let mut table = Table::new("directions", "directions", DIRECTIONS);
        for seen in &transfers.by_direction {
            let range = self.range.get(seen.direction.as_str());
            let rate = u128::from(seen.waited_bytes) * 1_000_000_000;
            let rate = rate.checked_div(seen.waited_ns.into()).and_then(|rate| u64::try_from(rate).ok());
            table.row(vec![
                seen.direction.as_str().into(),
                Cell::Bytes(seen.bytes),
                Cell::Count(seen.count),
                Cell::optional(seen.bytes.checked_div(seen.count), Cell::Bytes),
                Cell::optional(range.map(|range| range.0), Cell::Bytes),
                Cell::optional(range.map(|range| range.1), Cell::Bytes),
                Cell::some(seen.waited_count),
                Cell::Bytes(seen.waited_bytes),
                if seen.waited_count > 0 { Cell::Millis(seen.waited_ns) } else { Cell::Missing },
                Cell::optional(rate, Cell::Rate),
                Cell::some(seen.pageable_count),
                if seen.pageable_count > 0 { Cell::Bytes(seen.pageable_bytes) } else { Cell::Missing },
                Cell::Count(u64::from(seen.partial)),
            ]);
        }
        report.table(table);
        let directions = &transfers.by_direction;
        if directions.iter().any(|seen| seen.waited_count > 0) {
            report.words(
                "GB/s (of 10^9 bytes) is of the copies that the call waited for: when an asynchronous one ended is not known.",
            );
        }
        if directions.iter().any(|seen| seen.pageable_count > 0) {
            report.words(
                "Pageable: with host memory that is not pinned, which is copied twice and holds the call up.",
            );
        }
        if directions.iter().any(|seen| seen.partial) {
            report.words(
                "Some lists of sizes were too long to be read whole: there were more bytes than these.",
            );
        }
    }

    fn classes(&self, report: &mut Report) {
        if self.by_class.is_empty() {
            return;
        }
        report.title("By size");
        let mut table = Table::new("sizes", "sizes", SIZES).whole();
        let all: u64 = self.by_class.values().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
        for (class, (count, bytes)) in &self.by_class {
            let (from, to) = bounds(*class);
            let upper = to.map_or_else(|| "and more".to_owned(), |to| format!("to {}", whole_size(to)));
            table.row(vec![
                Cell::Text(format!("{} {upper}", whole_size(from))),
                Cell::Bytes(from),
                Cell::Count(*count),
                Cell::Bytes(*bytes),
                Cell::Bar((*bytes).into(), all.into(), 30),
            ]);
        }
        report.table(table);
    }

    fn calls(&self, report: &mut Report) {
        if self.by_call.is_empty() {
            return;
        }
        report.title("By call");
        let mut table = Table::new("calls", "calls", CALLS);
        let mut all: Vec<_> = self.by_call.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y.1, y.0, *a).cmp(&(x.1, x.0, *b)));
        for ((name, direction), (count, bytes)) in all {
            let (direction, name) = (direction.as_ref().into(), name.as_ref().into());
            table.row(vec![Cell::Bytes(*bytes), Cell::Count(*count), direction, name]);
        }
        report.table(table);
    }
}

/// The size class: up to 4 kB, up to 64 kB, up to 1 MB…
fn class_of(size: u64) -> u32 {
    let over = size.max(1).ilog2().saturating_sub(12 - CLASS_BITS);
    if size < 1 << 12 { 0 } else { over / CLASS_BITS }
}

fn bounds(class: u32) -> (u64, Option<u64>) {
    let begin = |class: u32| if class == 0 { Some(0) } else { 1u64.checked_shl(8 + CLASS_BITS * class) };
    (begin(class).unwrap_or(0), begin(class + 1))
}

/// Without decimals: class bounds are whole numbers.
fn whole_size(bytes: u64) -> String {
    size(bytes).replace(".00", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_classes() {
        for (size, expected) in
            [(0, 0), (4095, 0), (4096, 1), (65_535, 1), (65_536, 2), (1 << 20, 3), (u64::MAX, 13)]
        {
            let class = class_of(size);
            assert_eq!(class, expected, "{size}");
            let (from, to) = bounds(class);
            assert!(from <= size && to.is_none_or(|to| size < to), "{size}: {from}..{to:?}");
        }
    }
}
