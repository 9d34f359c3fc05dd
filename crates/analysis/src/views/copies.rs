//! `report copies`: copies and sets. A copy has a bandwidth only if the call waited for it.

use std::collections::BTreeMap;

use super::*;
use crate::figures::{DirectionFigures, TransferFigures};
use gpurec_trace::bounds::LONGEST_NAME;

pub const KIND: Kind =
    kind::<Copies>("copies", "copies and sets by direction: bytes, bandwidth, pageable memory")
        .table("directions", 20)
        .of_summary()
        .figures(&[shows("transfers.bytes", "how much was copied", &["count", "bytes"])]);

/// Limit on distinct pairs of a function and a direction.
const MOST: usize = 4096;
/// Longest name of a direction, in bytes.
const LONGEST: usize = 64;
const OTHERS: &str = "(others)";

/// Each size class is 2^CLASS_BITS times the one before: 4 kB, 64 kB, 1 MB…
const CLASS_BITS: u32 = 4;

/// A function, a direction, and the call site if it is known.
type Key = (Box<str>, Box<str>, Option<Site>);

#[derive(Default)]
struct Copies {
    range: BTreeMap<Box<str>, (u64, u64)>,
    by_class: BTreeMap<u32, Total>,
    by_call: BTreeMap<Key, Total>,
}

impl View for Copies {
    fn line(&mut self, line: &Line, context: &Context) {
        if let Body::Transfer(transfer) = &line.body {
            self.add(transfer, context.stacks.site_of(transfer.begin));
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        let transfers = &context.figures().transfers;
        if transfers.by_direction.is_empty() {
            return nothing("Nothing was copied or set in this trace.");
        }
        let mut report = Report::default();
        report.facts([("count", transfers.count), ("bytes", transfers.bytes)]);
        self.directions(&mut report, transfers);
        self.classes(&mut report);
        self.calls(&mut report, &context.stacks);
        report
    }
}

impl Copies {
    fn add(&mut self, transfer: &Transfer, site: Option<Site>) {
        let size = transfer.size;
        let direction = if transfer.direction.len() < LONGEST { transfer.direction.as_ref() } else { OTHERS };
        if let Some((least, most)) = self.range.get_mut(direction) {
            (*least, *most) = ((*least).min(size), (*most).max(size));
        } else if self.range.len() < MOST {
            self.range.insert(direction.into(), (size, size));
        }
        self.by_class.entry(class_of(size)).or_default().add(size);
        let mut key: Key = (transfer.name.as_ref().into(), direction.into(), site);
        let fits = self.by_call.len() < MOST && key.0.len() <= LONGEST_NAME;
        if !fits && !self.by_call.contains_key(&key) {
            key = (OTHERS.into(), OTHERS.into(), None);
        }
        self.by_call.entry(key).or_default().add(size);
    }

    fn directions(&self, report: &mut Report, transfers: &TransferFigures) {
        let what = if transfers.count == 1 { "copy or set" } else { "copies and sets" };
        report.title(format!("{} {what}, {}, by direction", transfers.count, size(transfers.bytes)));
        let directions = &transfers.by_direction;
        let range = |seen: &DirectionFigures| self.range.get(seen.direction.as_str());
        let rate = |seen: &DirectionFigures| {
            let rate = u128::from(seen.waited_bytes) * 1_000_000_000;
            u64::try_from(rate.checked_div(seen.waited_ns.into())?).ok()
        };
        report.table(
            Listing::new("directions", "directions", directions)
                .cell(text("Direction", "direction"), |seen| &seen.direction)
                .bytes(number("Bytes", "bytes"), |seen| seen.bytes)
                .count(number("Count", "count"), |seen| seen.count)
                .bytes(number("Avg", "avg_bytes"), |seen| seen.bytes.checked_div(seen.count))
                .bytes(number("Min", "min_bytes").minor(), |seen| range(seen).map(|range| range.0))
                .bytes(number("Max", "max_bytes").minor(), |seen| range(seen).map(|range| range.1))
                .count(number("Waited for", "waited_count"), |seen| positive(seen.waited_count))
                .bytes(data("waited_bytes"), |seen| seen.waited_bytes)
                .millis(number("Waited (ms)", "waited_ns"), |seen| {
                    (seen.waited_count > 0).then_some(seen.waited_ns)
                })
                .cell(number("GB/s", "bytes_per_sec").vital(), |seen| rate(seen).map(Cell::Rate))
                .count(number("Pageable", "pageable_count").vital(), |seen| positive(seen.pageable_count))
                .bytes(number("Pageable bytes", "pageable_bytes"), |seen| {
                    (seen.pageable_count > 0).then_some(seen.pageable_bytes)
                })
                .count(data("partial"), |seen| u32::from(seen.partial)),
        );
        report.words_if(
            directions.iter().any(|seen| seen.waited_count > 0),
            "GB/s (of 10^9 bytes) is of the copies that the call waited for: when an asynchronous one ended is not known.",
        );
        report.words_if(
            directions.iter().any(|seen| seen.pageable_count > 0),
            "Pageable: with host memory that is not pinned, which is copied twice and holds the call up.",
        );
        report.words_if(
            directions.iter().any(|seen| seen.partial),
            "Some lists of sizes were too long to be read whole: there were more bytes than these.",
        );
    }

    fn classes(&self, report: &mut Report) {
        let all: u64 = self.by_class.values().fold(0, |sum, class| sum.saturating_add(class.sum));
        let name = |class: u32| {
            let (from, to) = bounds(class);
            let upper = to.map_or_else(|| "and more".to_owned(), |to| format!("to {}", whole_size(to)));
            Cell::Text(format!("{} {upper}", whole_size(from)))
        };
        report.section(
            "By size",
            Listing::new("sizes", "sizes", &self.by_class)
                .cell(text("Size", "size"), |(class, _)| name(**class))
                .bytes(data("from_bytes"), |(class, _)| bounds(**class).0)
                .count(number("Count", "count"), |(_, total)| total.count)
                .bytes(number("Bytes", "bytes"), |(_, total)| total.sum)
                .bar(text("Share of the bytes", "bytes_percent"), 30, |(_, total)| (total.sum, all))
                .whole(),
        );
    }

    fn calls(&self, report: &mut Report, stacks: &Stacks) {
        let mut all: Vec<_> = self.by_call.iter().collect();
        all.sort_by(|(a, x), (b, y)| (y, *a).cmp(&(x, *b)));
        report.section(
            "By call",
            Listing::new("calls", "calls", all)
                .bytes(number("Bytes", "bytes"), |(_, total)| total.sum)
                .count(number("Count", "count"), |(_, total)| total.count)
                .cell(text("Direction", "direction"), |((_, direction, _), _)| direction)
                .cell(text("Call", "name"), |((name, ..), _)| name)
                .cell(long("Call site", "call_site"), |((_, _, site), _)| site.map(|site| stacks.text(site))),
        );
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
