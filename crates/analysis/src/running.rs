//! The figures of a recording in progress, which `--interval` prints in the words of the summary. The recording thread
//! calls this, so it copies only what it shows.

use std::time::SystemTime;

use super::activity::{Activity, LONG, columns};
use super::figures::Figures;
use super::page::Page;
use super::sections;
use super::summary::Summary;
use super::units::{decimal, duration, plural};
use crate::ui::clean;
use gpurec_trace::time;

/// Number of allocations and kernels listed, and of processes.
const LISTED: usize = 10;
const PROCESSES: usize = 20;

/// Progress of the recording.
pub struct Now {
    pub at_ns: u64,
    pub wall: SystemTime,
    pub events: u64,
    /// Events since the last report, and the time since then.
    pub new_events: u64,
    pub passed_ns: u64,
    pub lost: u64,
    /// Number of earlier reports that could not be shown.
    pub skipped: u64,
}

impl Summary {
    /// Rates and processes since the last report; then memory held, launches by kernel, copies by direction, failures,
    /// and calls that do not return.
    pub fn running(&self, now: &Now, activity: &Activity, width: usize) -> String {
        let mut page = Page::new(width);
        let rate = u128::from(now.new_events) * 1_000_000_000 / u128::from(now.passed_ns.max(1));
        let (at, events) = (decimal(now.at_ns / 1_000_000, 3), plural(now.events, "event"));
        page.line(&format!("=== gpurec at {at} s: {events}, {rate} a second, {} lost ===", now.lost));
        if now.skipped > 0 {
            let said = plural(now.skipped, "report");
            page.line(&format!("{said} before this one could not be shown: standard error was too slow"));
        }
        rates(&mut page, now, activity);
        self.held(&mut page, now.at_ns);
        let mut figures = Figures { transfers: self.transfers.finish(), ..Figures::default() };
        (figures.kernels, figures.more_kernels) = self.kernels.finish();
        if figures.kernels.is_empty() {
            page.section("Launches by kernel: none");
        }
        sections::kernels(&mut page, &figures);
        if figures.transfers.by_direction.is_empty() {
            page.section("Copies by direction: none");
        }
        sections::copies(&mut page, &figures);
        figures.failures = self.failures.finish(std::iter::empty(), &|site| self.stacks.text(site));
        sections::failures(&mut page, &figures);
        self.still_open(&mut page, now.at_ns);
        page.line("");
        page.into_text()
    }

    /// Lists only outermost calls: their time includes that of nested ones.
    fn still_open(&self, page: &mut Page, at_ns: u64) {
        let Some(until) = at_ns.checked_sub(LONG) else { return };
        let open = self.open_since(until);
        if open.is_empty() {
            return;
        }
        page.section(&format!("Calls open for a second or longer: {}", open.len()));
        page.list(&open, LISTED, 0, "calls", |(ts_ns, name, pid, tid)| {
            let time = duration(at_ns.saturating_sub(*ts_ns));
            format!("  pid {pid} tid {tid}: {} for {time}, unfinished", clean(name))
        });
    }

    fn held(&self, page: &mut Page, at_ns: u64) {
        let held = self.memories.held(at_ns, LISTED);
        let but = if self.some_ran_before() { ", without memory from before the recording" } else { "" };
        page.section(&match held.count {
            0 => format!("Memory held: none{but}"),
            n => format!("Memory held: {} in {}{but}", sections::bytes(held.bytes), plural(n, "allocation")),
        });
        for leak in &held.largest {
            sections::leak_row(page, leak);
        }
        page.more(held.count as usize, held.largest.len(), "allocations");
        if held.gone > 0 {
            let (bytes, count) = (sections::bytes(held.gone_bytes), plural(held.gone, "allocation"));
            page.line(&format!("  and {bytes} that {count} left when their processes ended"));
        }
    }
}

/// The wall clock, the rates of the interval, and a row for each process, the busiest first.
fn rates(page: &mut Page, now: &Now, activity: &Activity) {
    let rates = columns::rates(&activity.total, activity.passed_ns);
    let failed = plural(activity.total.failed, "failed call");
    let interval = decimal(activity.passed_ns / 1_000_000, 3);
    page.line(&format!("{}, in {interval} s: {rates}, {failed}", time::rfc3339(now.wall)));
    if activity.rows.is_empty() {
        return;
    }
    let mut rows: Vec<_> = activity.rows.iter().collect();
    columns::sort(&mut rows, columns::by_launches(), false);
    let more = rows.len().saturating_sub(PROCESSES);
    rows.truncate(PROCESSES);
    page.line("");
    page.table(&columns::processes(&rows));
    if more > 0 {
        page.line(&format!("  and {}", plural(more as u64, "more process")));
    }
}
