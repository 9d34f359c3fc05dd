//! Formats a comparison as text: totals, changed behaviour, times that differ, thresholds.

use super::Diff;
use super::order::{Change, Rank};
use super::rows::{Side, Total};
use super::thresholds::Verdict;
use crate::measure::{Unit, Value, wrapped};
use crate::table::{Cell, Column, Table, long, number};
use crate::text::{clean, duration, plural};
use gpurec_cuda as cuda;

const TOP_COUNTS: usize = 20;
const TOP_TIMES: usize = 10;

pub fn print(diff: &Diff, top: Option<usize>, width: usize) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        text.push_str(words);
        text.push('\n');
    };
    for ((name, file), gathered) in ["before", "after "].iter().zip(diff.files).zip(&diff.gathered) {
        let figures = &gathered.whole.figures;
        let state = if figures.complete { "complete" } else { "NOT complete" };
        line(&format!(
            "{name}  {}: {}, {}, {state}",
            clean(&file.display().to_string()),
            duration(figures.duration_ns),
            plural(figures.cuda_calls, "CUDA call")
        ));
    }
    for caveat in &diff.caveats {
        text.push_str(&wrapped("  - ", &clean(caveat), width));
    }
    totals(&mut text, diff);
    counts(&mut text, diff, top.unwrap_or(TOP_COUNTS), width);
    times(&mut text, diff, top.unwrap_or(TOP_TIMES), width);
    thresholds(&mut text, diff, width);
    text
}

fn totals(text: &mut String, diff: &Diff) {
    let shown: Vec<&Total> = diff.totals.iter().filter(|total| total.always || total.changed()).collect();
    text.push_str(&format!("\n  {:<18}{:>14}  {:>14}  {:>14}\n", "", "before", "after", "change"));
    for total in shown {
        if let Some(reason) = &total.unknown {
            text.push_str(&format!("  {:<18}not known ({})\n", total.name, clean(reason)));
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
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

/// A value short enough for a column.
fn short(value: Value) -> String {
    match (value.unit, value.floor().0) {
        (Unit::Bytes, n) => size(n),
        _ => value.to_string(),
    }
}

/// In units of 2^20 bytes, like the summary's MB.
fn size(bytes: u64) -> String {
    let hundredths = |shift: u32| {
        let n = (u128::from(bytes) * 100 + (1u128 << (shift - 1))) >> shift;
        format!("{}.{:02}", n / 100, n % 100)
    };
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} kB", hundredths(10)),
        _ => format!("{} MB", hundredths(20)),
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

fn counts(text: &mut String, diff: &Diff, top: usize, width: usize) {
    let changed: Vec<&Change> = diff.changes.changes.iter().filter(|c| c.rank != Rank::Times).collect();
    let scale = diff.changes.scale;
    text.push('\n');
    if changed.is_empty() {
        text.push_str("No function or kernel was called more or less often, failed or moved other bytes");
        text.push_str(if scale == 1.0 { ".\n" } else { " than the length of the runs explains.\n" });
    } else {
        text.push_str("What changed, the most telling first:\n");
    }
    if scale != 1.0 {
        let words = format!(
            "The runs are of different length: most functions were called {scale:.2} times as often in the second. What that explains is not listed here."
        );
        text.push_str(&wrapped("  ", &words, width));
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
    rows(text, &table, width);
    more(text, changed.len(), top, "changes");
    text.push_str(&wrapped(
        "  ",
        "A name that stands further in follows from the one above it: it is called inside it, launches it or gives back what it took.",
        width,
    ));
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

fn rows(text: &mut String, table: &Table, width: usize) {
    for line in table.text(width) {
        text.push_str(&line);
        text.push('\n');
    }
}

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

fn times(text: &mut String, diff: &Diff, top: usize, width: usize) {
    let changed: Vec<&Change> = diff.changes.changes.iter().filter(|c| c.rank == Rank::Times).collect();
    if changed.is_empty() {
        return;
    }
    text.push_str(match diff.changes.scale == 1.0 {
        true => "\nTimes, where the calls are the same:\n",
        false => {
            "\nTimes, where only the length of the runs changed the calls (change: for as many calls):\n"
        }
    });
    let mut table = Table::new("times", "functions and kernels", TIMES);
    for change in changed.iter().take(top) {
        let (before, after) = (&change.row.before, &change.row.after);
        let median = |side: &Side| match change.row.is_kernel || side.timed == 0 {
            true => Cell::from("-"),
            false => Cell::Text(brief(side.typical_ns)),
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
    rows(text, &table, width);
    more(text, changed.len(), top, "functions and kernels");
    text.push_str(&wrapped(
        "  ",
        "Times differ between any two runs; one that matters differs in several, and in the median too.",
        width,
    ));
}

fn more(text: &mut String, all: usize, shown: usize, what: &str) {
    if all > shown {
        text.push_str(&format!("  and {} more {what}\n", all - shown));
    }
}

fn thresholds(text: &mut String, diff: &Diff, width: usize) {
    if diff.verdicts.is_empty() {
        return;
    }
    text.push_str("\nThresholds:\n");
    let longest = diff.verdicts.iter().map(|v| clean(&v.text).chars().count()).max().unwrap_or(0).min(48);
    for verdict in &diff.verdicts {
        let shown = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let percent = match (verdict.before, verdict.after) {
            (Some(before), Some(after)) => relative(before, after),
            _ => String::new(),
        };
        let word = match Verdict::status(verdict) {
            0 => "pass",
            1 => "FAIL",
            _ => "ERROR",
        };
        let line = format!(
            "  {word:<5}  {:<longest$}  {} -> {}  {percent}",
            clean(&verdict.text),
            shown(verdict.before),
            shown(verdict.after)
        );
        text.push_str(line.trim_end());
        text.push('\n');
        for reason in &verdict.because {
            text.push_str(&wrapped("         ", &clean(reason), width));
        }
    }
}
