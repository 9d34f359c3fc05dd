//! Formats a comparison as text: totals, changed behaviour, times that differ, thresholds.

use super::Diff;
use super::order::{Change, Rank};
use super::rows::Side;
use crate::measure::{Unit, Value};
use crate::table::{Cell, Column, Table, long, megabytes, number, size};
use crate::text::{Page, clean, plural};
use gpurec_cuda as cuda;

const TOP_COUNTS: usize = 20;
const TOP_TIMES: usize = 10;
const TOP_SITES: usize = 10;

pub fn print(diff: &Diff, top: Option<usize>, width: usize) -> String {
    let mut page = Page::new(width);
    for ((name, file), gathered) in ["before", "after "].iter().zip(diff.files).zip(&diff.gathered) {
        page.line(&format!("{name}  {}", gathered.headline(file)));
    }
    for caveat in &diff.caveats {
        page.wrapped("  - ", &clean(caveat));
    }
    totals(&mut page, diff);
    counts(&mut page, diff, top.unwrap_or(TOP_COUNTS));
    if let Some(sites) = &diff.sites {
        sites.print(&mut page, top.unwrap_or(TOP_SITES));
    }
    times(&mut page, diff, top.unwrap_or(TOP_TIMES));
    thresholds(&mut page, diff);
    page.into_text()
}

fn totals(page: &mut Page, diff: &Diff) {
    page.line(&format!("\n  {:<18}{:>14}  {:>14}  {:>14}", "", "before", "after", "change"));
    for total in diff.totals.iter().filter(|total| total.always || total.changed()) {
        if let Some(reason) = &total.unknown {
            page.line(&format!("  {:<18}not known ({})", total.name, clean(reason)));
            continue;
        }
        let row = format!(
            "  {:<18}{:>14}  {:>14}  {:>14}  {}",
            total.name,
            short(total.before),
            short(total.after),
            difference(total.before, total.after),
            relative(total.before, total.after)
        );
        page.line(row.trim_end());
    }
}

/// A value short enough for a column.
fn short(value: Value) -> String {
    match (value.unit, value.floor().0) {
        (Unit::Bytes, 0x10_0000..) => megabytes(value.floor().0),
        (Unit::Bytes, n) => size(n),
        _ => value.to_string(),
    }
}

fn difference(before: Value, after: Value) -> String {
    let (a, b) = (before.floor().0, after.floor().0);
    if a == b {
        return String::new();
    }
    let sign = if b > a { '+' } else { '-' };
    format!("{sign}{}", short(Value::whole(a.abs_diff(b), before.unit)))
}

/// `+12.5 %`; `new` if there was nothing before.
fn relative(before: Value, after: Value) -> String {
    let (a, b) = (before.floor().0, after.floor().0);
    match (a, b) {
        _ if a == b => String::new(),
        (0, _) => "new".to_owned(),
        (_, 0) => "gone".to_owned(),
        _ => {
            let tenths = (u128::from(a.abs_diff(b)) * 1000 + u128::from(a) / 2) / u128::from(a);
            let sign = if b > a { '+' } else { '-' };
            match tenths {
                0 => format!("{sign}<0.1 %"),
                _ => format!("{sign}{}.{} %", tenths / 10, tenths % 10),
            }
        }
    }
}

fn counts(page: &mut Page, diff: &Diff, top: usize) {
    let changed: Vec<&Change> = diff.changes.changes.iter().filter(|c| c.rank != Rank::Times).collect();
    let scale = diff.changes.scale;
    page.line(match (changed.is_empty(), scale == 1.0) {
        (false, _) => "\nWhat changed, the most telling first:",
        (true, true) => "\nNo function or kernel was called more or less often, failed or moved other bytes.",
        (true, false) => {
            "\nNo function or kernel was called more or less often, failed or moved other bytes than the length of the runs explains."
        }
    });
    if scale != 1.0 {
        let words = format!(
            "The runs are of different length: most functions were called {scale:.2} times as often in the second. What that explains is not listed here."
        );
        page.wrapped("  ", &words);
    }
    if changed.is_empty() {
        return;
    }
    let mut table = Table::new("changes", "changes", CHANGES);
    for change in changed.iter().take(top) {
        let (before, after) = (&change.row.before, &change.row.after);
        let changed = |of: fn(&Side) -> u64, unit| {
            Cell::Text(difference(Value::whole(of(before), unit), Value::whole(of(after), unit)))
        };
        table.row(vec![
            Cell::Count(before.calls),
            Cell::Count(after.calls),
            changed(|side| side.calls, Unit::Count),
            Cell::Text(of_time(before)),
            Cell::Text(of_time(after)),
            changed(|side| side.bytes, Unit::Bytes),
            Cell::Text(format!("{}{}", "  ".repeat(change.depth.min(8)), named(change))),
        ]);
    }
    page.table(&table);
    page.more(changed.len(), top, "changes");
    page.wrapped(
        "  ",
        "An indented name follows from the one above it: that one calls it, launches it, or allocated what it frees.",
    );
}

const CHANGES: &[Column] = &[
    number("Calls", "before"),
    number("after", "after"),
    number("change", "change"),
    number("Time", "time_before"),
    number("after", "time_after"),
    number("Bytes", "bytes"),
    long("Name", "name"),
];

const TIMES: &[Column] = &[
    number("Calls", "calls"),
    number("Time", "before"),
    number("after", "after"),
    number("change", "change"),
    number("Median", "median_before"),
    number("after", "median_after"),
    long("Name", "name"),
];

fn of_time(side: &Side) -> String {
    if side.timed == 0 { "-".to_owned() } else { brief(side.total_ns) }
}

/// With one decimal, for a narrow column.
fn brief(ns: u64) -> String {
    let tenths = |unit: u64| {
        let n = (u128::from(ns) * 10 + u128::from(unit) / 2) / u128::from(unit);
        format!("{}.{}", n / 10, n % 10)
    };
    match ns {
        0..999_950 => format!("{} us", tenths(1_000)),
        999_950..999_950_000 => format!("{} ms", tenths(1_000_000)),
        _ => format!("{} s", tenths(1_000_000_000)),
    }
}

fn named(change: &Change) -> String {
    let row = &change.row;
    let mut name = clean(if row.is_kernel { cuda::kernel_text(&row.name) } else { &row.name });
    if row.is_kernel {
        name = format!("kernel {name}");
    }
    let (before, after) = (row.before.errors, row.after.errors);
    if before != after {
        name.push_str(&format!(" ({before} failed, after {after})"));
    }
    let lost = row.before.lost + row.after.lost;
    if lost > 0 {
        name.push_str(&format!(" ({} lost)", plural(lost, "event")));
    }
    name
}

fn times(page: &mut Page, diff: &Diff, top: usize) {
    let changed: Vec<&Change> = diff.changes.changes.iter().filter(|c| c.rank == Rank::Times).collect();
    if changed.is_empty() {
        return;
    }
    page.line(if diff.changes.scale == 1.0 {
        "\nTimes, where the calls are the same:"
    } else {
        "\nTimes, where only the length of the runs changed the calls (change: for the same number of calls):"
    });
    let mut table = Table::new("times", "functions and kernels", TIMES);
    for change in changed.iter().take(top) {
        let (before, after) = (&change.row.before, &change.row.after);
        let is_known = |side: &Side| !change.row.is_kernel && side.timed > 0;
        let median = |side: &Side| {
            if is_known(side) { Cell::Text(brief(side.typical_ns)) } else { Cell::from("-") }
        };
        let sign = if change.slower < 0.0 { '-' } else { '+' };
        table.row(vec![
            Cell::Count(after.calls),
            Cell::Text(of_time(before)),
            Cell::Text(of_time(after)),
            Cell::Text(format!("{sign}{}", brief(change.slower.abs() as u64))),
            median(before),
            median(after),
            Cell::Text(named(change)),
        ]);
    }
    page.table(&table);
    page.more(changed.len(), top, "functions and kernels");
    page.wrapped(
        "  ",
        "Times differ between any two runs: trust a difference that shows in several, and in the median too.",
    );
}

fn thresholds(page: &mut Page, diff: &Diff) {
    if diff.verdicts.is_empty() {
        return;
    }
    page.line("\nThresholds:");
    let longest = diff.verdicts.iter().map(|v| clean(&v.text).chars().count()).max().unwrap_or(0).min(48);
    for verdict in &diff.verdicts {
        let shown = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let percent = match (verdict.before, verdict.after) {
            (Some(before), Some(after)) => relative(before, after),
            _ => String::new(),
        };
        let (before, after) = (shown(verdict.before), shown(verdict.after));
        let line = format!("{:<longest$}  {before} -> {after}  {percent}", clean(&verdict.text));
        verdict.verdict.print(page, &line, &verdict.because);
    }
}
