//! The tables of what processes do. In: rows. Out: tables, which `top`, its plain output and `--interval` show. Each
//! column is defined once, with the value by which it sorts.

use std::cmp::{Ordering, Reverse};

use super::{Activity, Counts, Detail, KernelRow, Row, SiteRow, ThreadRow};
use crate::table::{Cell, Column, Table, long, number, text};
use crate::units::{duration, per_second, plural, short_size};

/// Characters of a container's id that are shown, as by docker ps.
const CONTAINER: usize = 12;
/// Characters of a user's name.
const USER: usize = 8;

/// A column of the table of processes.
pub struct ProcessColumn {
    pub head: &'static str,
    column: Column,
    cell: fn(&Row) -> Cell,
    /// The larger row comes first.
    order: fn(&Row, &Row) -> Ordering,
}

/// Makes `PROCESS`. Each line: title, kind, key in JSON, properties; cell; order.
macro_rules! columns {
    ($($head:literal $make:ident $key:literal $(. $more:ident ($($arg:literal)?))*, $cell:expr, $order:expr;)*) => {
        pub const PROCESS: &[ProcessColumn] = &[$(ProcessColumn {
            head: $head,
            column: $make($head, $key)$(.$more($($arg)?))*,
            cell: $cell,
            order: $order,
        }),*];
    };
}

columns! {
    "PID" number "pid" .vital() .at_least(7), |row| Cell::Count(row.pid.into()), |a, b| b.pid.cmp(&a.pid);
    "USER" text "user" .at_least(8), |row| Cell::optional(row.user.as_deref(), user), |a, b| b.user.cmp(&a.user);
    "CONTAINER" text "container" .minor(), |row| Cell::optional(row.container.as_deref(), container),
        |a, b| b.container.cmp(&a.container);
    "RANK" number "rank" .minor(), |row| Cell::optional(row.rank, |rank| Cell::Count(rank.into())),
        |a, b| b.rank.cmp(&a.rank);
    "GPU" text "devices", |row| Cell::from(Some(row.gpus()).filter(|gpus| !gpus.is_empty())),
        |a, b| b.gpus().cmp(&a.gpus());
    "HELD" number "held_bytes" .vital() .at_least(8), |row| held(row), |a, b| held_bytes(a).cmp(&held_bytes(b));
    "NVML" number "nvml_bytes" .at_least(7), |row| Cell::optional(row.nvml_bytes(), Cell::Short),
        |a, b| a.nvml_bytes().cmp(&b.nvml_bytes());
    "LAUNCH/s" number "launches_per_sec" .vital(), |row| Cell::PerSecond(row.new.all_launches(), row.passed_ns),
        |a, b| a.new.all_launches().cmp(&b.new.all_launches());
    "COPY/s" number "copied_bytes_per_sec" .vital(), |row| Cell::PerSecond(row.new.copied, row.passed_ns),
        |a, b| a.new.copied.cmp(&b.new.copied);
    "SYNC%" number "sync_share" .at_least(5), |row| share(row.sync_ns, row.passed_ns),
        |a, b| a.sync_ns.cmp(&b.sync_ns);
    "CUDA%" number "call_share" .at_least(5), |row| share(row.call_ns, row.passed_ns),
        |a, b| a.call_ns.cmp(&b.call_ns);
    "OVH%" number "overhead_share" .minor() .at_least(4), |row| share(row.cost_ns, row.passed_ns),
        |a, b| a.cost_ns.cmp(&b.cost_ns);
    "FAIL" number "failed" .at_least(4), |row| Cell::Count(row.failed_calls()),
        |a, b| a.failed_calls().cmp(&b.failed_calls());
    "COMMAND" long "comm" .at_least(8), |row| Cell::from(&row.comm), |a, b| b.comm.cmp(&a.comm);
}

/// The column by which processes are sorted initially.
pub fn by_launches() -> usize {
    PROCESS.iter().position(|column| column.head == "LAUNCH/s").unwrap_or(0)
}

/// Sorts by a column; equal rows by process number.
pub fn sort(rows: &mut [&Row], column: usize, reverse: bool) {
    let Some(column) = PROCESS.get(column) else { return };
    rows.sort_by(|a, b| {
        let order = (column.order)(b, a);
        (if reverse { order.reverse() } else { order }).then(a.pid.cmp(&b.pid))
    });
}

/// The processes, in this order.
pub fn processes(rows: &[&Row]) -> Table {
    let columns: Vec<Column> = PROCESS.iter().map(|column| column.column).collect();
    let mut table = Table::new("processes", "processes", &columns).dense();
    rows.iter().for_each(|row| table.row(PROCESS.iter().map(|column| (column.cell)(row)).collect()));
    table
}

pub fn threads(row: &Row) -> Table {
    const COLUMNS: &[Column] = &[
        number("TID", "tid").at_least(7),
        number("CALLS/s", "calls_per_sec"),
        number("SYNC%", "sync_share").at_least(5),
        number("CUDA%", "call_share").at_least(5),
        number("OVH%", "overhead_share").at_least(4),
        long("OPEN CALL", "open"),
    ];
    let mut all: Vec<&ThreadRow> = row.threads.iter().collect();
    all.sort_by_key(|thread| (Reverse((thread.calls, thread.call_ns)), thread.tid));
    let mut table = Table::new("threads", "threads", COLUMNS).dense();
    for thread in all {
        let of = |ns: u64| share(ns.min(row.passed_ns), row.passed_ns);
        table.row(vec![
            Cell::Count(thread.tid.into()),
            Cell::PerSecond(thread.calls, row.passed_ns),
            of(thread.sync_ns),
            of(thread.call_ns),
            of(thread.cost_ns),
            thread.open.as_ref().map(|(name, ns)| format!("{name} for {}", duration(*ns))).into(),
        ]);
    }
    table
}

pub fn kernels(detail: &Detail, passed_ns: u64) -> Table {
    const COLUMNS: &[Column] =
        &[number("LAUNCH/s", "launches_per_sec"), number("LAUNCHES", "launches"), long("KERNEL", "kernel")];
    let mut table = Table::new("kernels", "kernels", COLUMNS).dense();
    for KernelRow { name, launches, new } in &detail.kernels {
        let rate = Cell::optional(*new, |new| Cell::PerSecond(new, passed_ns));
        table.row(vec![rate, Cell::Count(*launches), Cell::Kernel(name.clone())]);
    }
    table
}

pub fn sites(detail: &Detail, passed_ns: u64) -> Table {
    const COLUMNS: &[Column] = &[
        number("CALLS/s", "calls_per_sec"),
        number("TIME%", "share").at_least(5),
        number("CALLS", "calls"),
        long("FUNCTION", "function"),
        long("CALL SITE", "site"),
    ];
    let mut table = Table::new("sites", "call sites", COLUMNS).dense();
    for SiteRow { site, function, times, new } in &detail.sites {
        table.row(vec![
            Cell::optional(*new, |new| Cell::PerSecond(new.calls, passed_ns)),
            Cell::optional(*new, |new| share(new.ns, passed_ns)),
            Cell::Count(times.calls),
            Cell::from(function),
            Cell::from(site),
        ]);
    }
    table
}

/// `12.3k launches/s, 1.20 GB/s copied, 3 failed calls, 512 MB held`.
pub fn total(activity: &Activity) -> String {
    let (held, unknown) = activity.held();
    let all = activity.rows.len() as u64;
    let held = match all - unknown {
        _ if unknown == 0 => format!("{} held", short_size(held)),
        0 => "memory held not known".to_owned(),
        known => format!("{} held by {known} of {all}", short_size(held)),
    };
    let failed = plural(activity.failed, "failed call");
    format!("{}, {failed}, {held}", rates(&activity.total, activity.passed_ns))
}

/// `12.3k launches/s, 1.20 GB/s copied`.
pub fn rates(new: &Counts, passed_ns: u64) -> String {
    let rate = |count| per_second(count, passed_ns);
    format!("{} launches/s, {} copied", rate(new.all_launches()), bytes_per_second(&rate(new.copied)))
}

/// Launches of graphs a second.
pub fn graphs(row: &Row) -> String {
    per_second(row.new.graph_launches, row.passed_ns)
}

/// `0 events lost`, or the number and the rate.
pub fn lost(activity: &Activity) -> String {
    let now = match activity.new_lost {
        0 => String::new(),
        new => format!(", {}/s now: the figures are too low", per_second(new, activity.passed_ns)),
    };
    format!("{} lost{now}", plural(activity.lost, "event"))
}

/// A call that has been open for long.
pub fn open_call((tid, name, ns): (u32, &str, u64)) -> String {
    format!("{} open for {} in thread {tid}", crate::ui::clean(name), duration(ns))
}

/// `1.20G` becomes `1.20 GB/s`.
fn bytes_per_second(rate: &str) -> String {
    let digits = rate.trim_end_matches(char::is_alphabetic);
    format!("{digits} {}B/s", rate.get(digits.len()..).unwrap_or_default())
}

/// A long name is cut, as by ps.
fn user(name: &str) -> Cell {
    match name.chars().count() {
        0..=USER => Cell::from(name),
        _ => Cell::Text(name.chars().take(USER - 1).chain(['+']).collect()),
    }
}

fn container(id: &str) -> Cell {
    Cell::Text(id.chars().take(CONTAINER).collect())
}

/// The memory that is known to be held.
fn held_bytes(row: &Row) -> Option<u64> {
    row.held_bytes().or(row.held_since_bytes())
}

/// With a plus if only the memory that was allocated since the recording began is known.
fn held(row: &Row) -> Cell {
    match (row.held_bytes(), row.held_since_bytes()) {
        (Some(bytes), _) => Cell::Short(bytes),
        (None, Some(bytes)) => Cell::Text(format!("+{}", short_size(bytes))),
        (None, None) => Cell::Text("?".to_owned()),
    }
}

fn share(part: u64, whole: u64) -> Cell {
    Cell::Share(part.into(), whole.into())
}
