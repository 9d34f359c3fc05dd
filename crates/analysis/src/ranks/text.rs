//! The report of `gpurec ranks` for a terminal. In: the report. Out: text: what is wrong first. Not here: any figure that
//! JSON does not have.

use std::collections::BTreeMap;

use super::clocks::HostClock;
use super::hangs::{Hang, InFlight};
use super::missing::listed;
use super::report::{MismatchFound, RankState, Report};
use super::stragglers::{Cause, Collectives, Straggler};
use crate::page::Page;
use crate::table::{Cell, Column, Table, long, number, text};
use crate::ui::clean;
use crate::units::{duration, plural};

/// Limits on the lines of each section; JSON has all.
const TOP: usize = 10;

pub fn print(report: &Report, width: usize) -> String {
    let mut page = Page::new(width);
    page.line(&headline(report));
    for section in
        [completeness, hangs, mismatches, stragglers, collectives, kernels, differences, clocks, notes]
    {
        section(&mut page, report);
    }
    page.into_text()
}

fn headline(report: &Report) -> String {
    let hosts: std::collections::BTreeSet<&str> = report.ranks.iter().map(|it| it.host.as_str()).collect();
    let job = report.job.as_ref().map(|job| format!(" {}", clean(job))).unwrap_or_default();
    let ranks = plural(report.count(), "rank");
    if report.unknown.contains_key("collectives") {
        return format!("Job{job}: {ranks}, from documents of summary --json");
    }
    let hosts = plural(hosts.len() as u64, "host");
    let collectives = plural(report.collectives.iter().map(|it| it.count).sum(), "collective");
    format!("Job{job}: {ranks} on {hosts}, {collectives} matched")
}

/// `3`, or `?` where a trace does not have it.
fn shown(rank: Option<u32>) -> String {
    rank.map_or("?".to_owned(), |rank| rank.to_string())
}

fn completeness(page: &mut Page, report: &Report) {
    if !report.missing.is_empty() {
        let (count, ranks) = (report.missing.count(), report.missing.text());
        page.wrapped("  ", &format!("No trace of {}: {ranks}", plural(count, "rank")));
    }
    let cut: Vec<&RankState> = report.ranks.iter().filter(|it| !it.complete).collect();
    if cut.is_empty() {
        page.note("All traces are complete.");
        return;
    }
    page.section(&format!("Traces that are NOT complete: {} of {}", cut.len(), report.ranks.len()));
    page.list(&cut, TOP, 0, "traces", |it| {
        let reason = it.reasons.first().map_or("it has no end line", String::as_str);
        format!("  rank {} ({}): {}", shown(it.rank), clean(&it.file), clean(reason))
    });
}

fn hangs(page: &mut Page, report: &Report) {
    for hang in report.hangs.iter().take(TOP) {
        one_hang(page, hang);
    }
    page.more(report.hangs.len(), TOP.min(report.hangs.len()), "communicators that stand still");
    let xids: Vec<String> = report
        .ranks
        .iter()
        .flat_map(|it| it.xids.iter().map(|xid| format!("  {}: {}", clean(&it.host), clean(xid))))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    if !xids.is_empty() {
        page.section("Errors that the driver reported:");
        page.list(&xids, TOP, 0, "errors", String::clone);
    }
}

fn one_hang(page: &mut Page, hang: &Hang) {
    let missing: Vec<u32> = hang.missing.iter().copied().flatten().collect();
    let (comm, op, time) = (clean(&hang.comm), clean(&hang.op), duration(hang.stood_ns));
    let who = if missing.len() == 1 { "rank" } else { "ranks" };
    let came = |it: &InFlight| it.is_missing && it.last.as_ref().is_some_and(|last| last.seq == hang.seq);
    let did = if hang.in_flight.iter().any(came) { "called something else as" } else { "did not call" };
    page.section(&format!(
        "HANG: {who} {} {did} {op} number {} of communicator {comm}, in which others waited for {time}:",
        listed(&missing),
        hang.seq
    ));
    let (missing, others): (Vec<&InFlight>, Vec<&InFlight>) =
        hang.in_flight.iter().partition(|it| it.is_missing);
    for rank in missing.iter().take(TOP) {
        page.wrapped("  ", &is_in(rank));
    }
    // The others are mostly in the same call.
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for rank in others {
        let called = rank.last.as_ref().map_or(String::new(), |last| at(&last.site));
        let place = format!("called it{called}, and are {}", calls(rank));
        match groups.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ranks)) => ranks.extend(rank.rank),
            None => groups.push((place, rank.rank.into_iter().collect())),
        }
    }
    for (place, mut ranks) in groups.into_iter().take(TOP) {
        ranks.sort_unstable();
        page.wrapped("  ", &format!("ranks {} {place}", listed(&ranks)));
    }
    if !hang.unknown.is_empty() {
        let ranks: Vec<u32> = hang.unknown.iter().copied().flatten().collect();
        page.note(&format!("The traces of ranks {} end before that.", listed(&ranks)));
    }
}

fn is_in(rank: &InFlight) -> String {
    let mut said = format!("rank {} is {}", shown(rank.rank), calls(rank));
    if let Some(longest) = rank.threads.iter().map(|it| it.for_ns).max() {
        said += &format!(", for {}", duration(longest));
    }
    if let Some(last) = &rank.last {
        let before = duration(last.before_end_ns);
        said += &format!(
            "; its last call in this communicator was {} number {}{}, {before} before its end",
            clean(&last.op),
            last.seq,
            at(&last.site)
        );
    } else {
        said += "; it has called no collective of this communicator";
    }
    said
}

fn calls(rank: &InFlight) -> String {
    let one = |thread: &super::hangs::Thread| {
        let mut said = thread.calls.iter().map(|call| clean(call)).collect::<Vec<_>>().join(" > ");
        if let Some(request) = &thread.request {
            said += &format!(" in {}", clean(request));
        }
        said + &at(&thread.site)
    };
    let all: Vec<String> = rank.threads.iter().map(one).collect();
    match (&rank.process, all.is_empty()) {
        (Some(ended), true) => clean(ended),
        (Some(ended), false) => format!("{}, while in {}", clean(ended), all.join("; ")),
        (None, true) => "in no recorded call".to_owned(),
        (None, false) => format!("in {}", all.join("; ")),
    }
}

fn at(site: &Option<String>) -> String {
    site.as_ref().map_or(String::new(), |site| format!(" at {}", clean(site)))
}

fn mismatches(page: &mut Page, report: &Report) {
    if report.mismatches.is_empty() {
        return;
    }
    let total = report.mismatches.len() as u64 + report.more_mismatches;
    page.section(&format!("MISMATCHES: {} called with different arguments:", plural(total, "collective")));
    page.list(&report.mismatches, TOP, report.more_mismatches, "mismatches", |it| format!("  {}", odd(it)));
}

fn odd(it: &MismatchFound) -> String {
    let mut groups: Vec<(&Option<String>, Vec<u32>, Option<String>)> = Vec::new();
    for (rank, value) in &it.values {
        match groups.iter_mut().find(|(known, ..)| *known == value) {
            Some((_, ranks, _)) => ranks.extend(*rank),
            None => {
                let site = it.sites.iter().find(|(of, _)| of == rank).map(|(_, site)| site.clone());
                groups.push((value, rank.iter().copied().collect(), site));
            }
        }
    }
    groups.sort_by_key(|(_, ranks, _)| ranks.len());
    let value = |value: &Option<String>| value.as_ref().map_or("none".to_owned(), |text| clean(text));
    let parts: Vec<String> = groups
        .iter()
        .map(|(it, ranks, site)| format!("{} on rank {}{}", value(it), listed(ranks), at(site)))
        .collect();
    let (comm, seq) = (clean(&it.comm), it.seq);
    let what = it.peers.map_or(String::new(), |(from, to)| format!(" from {from} to {to}"));
    format!("{} of number {seq}{what} in {comm}: {}", it.field, parts.join(", "))
}

const STRAGGLERS: &[Column] = &[
    number("Rank", "rank").vital(),
    number("Last at", "collectives"),
    number("Cost (ms)", "cost_ns").vital(),
    text("Arrival", "arrival"),
    long("Why", "causes"),
];

fn stragglers(page: &mut Page, report: &Report) {
    if report.stragglers.is_empty() {
        return;
    }
    let skew = |percentile| duration(report.skew_ns(percentile).unwrap_or(0));
    page.section(&format!(
        "Stragglers: who came last. Ranks arrive {} apart (median), {} at the 99th percentile:",
        skew(50_000),
        skew(99_000)
    ));
    let mut table = Table::new("stragglers", "stragglers", STRAGGLERS);
    for it in report.stragglers.iter().take(TOP) {
        table.row(vec![
            Cell::from(shown(it.rank)),
            Cell::Count(it.collectives),
            Cell::Millis(it.cost_ns),
            Cell::from(it.arrival),
            Cell::from(why(it)),
        ]);
    }
    page.table(&table);
    page.more(report.stragglers.len(), TOP.min(report.stragglers.len()), "ranks");
    page.note(
        "Cost is the time that the other ranks waited, in all. Arrival: gpu is the start of the kernel on the GPU, enqueue the call on the host.",
    );
}

fn why(it: &Straggler) -> String {
    it.causes.iter().take(2).map(cause).collect::<Vec<_>>().join("; ")
}

fn cause(it: &Cause) -> String {
    let mut said = match it.kind {
        "call" => it.name.clone().unwrap_or_default(),
        "own_code" => "own code, in no recorded call".to_owned(),
        "off_cpu" => "off the CPU".to_owned(),
        _ => "its GPU had other work".to_owned(),
    };
    if let Some(request) = &it.request {
        said += &format!(" in {request}");
    }
    if let Some(site) = it.site.as_ref().filter(|_| it.kind == "call") {
        said += &format!(" at {site}");
    }
    format!("{} longer: {said}", duration(it.excess_ns))
}

const COLLECTIVES: &[Column] = &[
    text("Operation", "op"),
    number("Count", "count"),
    number("Ranks", "ranks"),
    number("Waiting (ms)", "wait_ns").vital(),
    number("Transferring (ms)", "transfer_ns").vital(),
    text("Communicator", "comm"),
];

fn collectives(page: &mut Page, report: &Report) {
    if report.collectives.is_empty() {
        return;
    }
    page.section("Collectives, by the time that ranks waited for the last:");
    let mut table = Table::new("collectives", "collectives", COLLECTIVES);
    for Collectives { comm, op, count, wait_ns, transfer_ns, ranks } in report.collectives.iter().take(TOP) {
        table.row(vec![
            Cell::from(op),
            Cell::Count(*count),
            Cell::Count(*ranks),
            Cell::Millis(*wait_ns),
            Cell::optional(*transfer_ns, Cell::Millis),
            Cell::from(comm),
        ]);
    }
    page.table(&table);
    page.more(report.collectives.len(), TOP.min(report.collectives.len()), "rows");
    page.note("Waiting and transferring are sums over the ranks: up to the last arrival, and from it to each rank's end.");
}

const KERNELS: &[Column] = &[
    number("Rank", "rank").vital(),
    number("Count", "count"),
    number("Avg (us)", "avg_ns").vital(),
    number("Others (us)", "others_avg_ns").vital(),
    number("Excess (ms)", "excess_ns"),
    long("Kernel", "kernel"),
];

fn kernels(page: &mut Page, report: &Report) {
    if report.slow_kernels.is_empty() {
        return;
    }
    page.section("Kernels that take longer on the GPU of one rank (slow, or throttled):");
    let mut table = Table::new("slow_kernels", "kernels", KERNELS);
    for it in report.slow_kernels.iter().take(TOP) {
        table.row(vec![
            Cell::from(shown(it.rank)),
            Cell::Count(it.count),
            Cell::Micros(it.avg_ns),
            Cell::Micros(it.others_avg_ns),
            Cell::Millis(it.excess_ns),
            Cell::Kernel(it.kernel.clone()),
        ]);
    }
    page.table(&table);
    page.more(report.slow_kernels.len(), TOP.min(report.slow_kernels.len()), "rows");
}

const DIFFERENCES: &[Column] = &[
    number("Rank", "rank").vital(),
    number("Calls", "calls").vital(),
    number("Others", "others").vital(),
    number("Time (ms)", "time_ns"),
    text("Role", "role"),
    long("Function", "function"),
];

fn differences(page: &mut Page, report: &Report) {
    if report.differences.is_empty() {
        return;
    }
    page.section("Calls that one rank makes and the others do not, or not as often (their median):");
    let mut table = Table::new("differences", "differences", DIFFERENCES);
    for it in report.differences.iter().take(TOP) {
        table.row(vec![
            Cell::from(shown(it.rank)),
            Cell::Count(it.calls),
            Cell::Count(it.others),
            Cell::Millis(it.time_ns),
            Cell::from(it.role),
            Cell::from(&it.function),
        ]);
    }
    page.table(&table);
    page.more(report.differences.len(), TOP.min(report.differences.len()), "rows");
}

fn clocks(page: &mut Page, report: &Report) {
    if report.clocks.len() < 2 {
        return;
    }
    page.section("Clocks, against the first host:");
    let line = |it: &HostClock| {
        let host = clean(&it.host);
        if it.is_reference {
            return format!("  {host}: the reference");
        }
        let Some(error) = it.error_ns else {
            return format!("  {host}: not known (no collective with the reference, and no NTP)");
        };
        let (offset, error) = (it.offset_ns / 1e3, error / 1e3);
        match it.origin.name() {
            "collectives" => format!(
                "  {host}: {offset:+.1} us ± {error:.1} us, drift {:+.2} ppm, from {}",
                it.drift_ppm,
                plural(it.bounds, "bound")
            ),
            source => format!("  {host}: {offset:+.1} us ± {error:.1} us, from {source}"),
        }
    };
    page.list(&report.clocks, 4 * TOP, 0, "hosts", line);
    for it in report.clocks.iter().filter(|it| !it.said.is_empty()).take(TOP) {
        page.note(&format!("{}: {}", clean(&it.host), it.said.join("; ")));
    }
}

fn notes(page: &mut Page, report: &Report) {
    let mut notes = report.notes.clone();
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (figure, why) in &report.unknown {
        reasons.entry(why).or_default().push(figure);
    }
    notes.extend(reasons.iter().map(|(why, figures)| format!("not known: {} ({why})", figures.join(", "))));
    if report.partial > 0 {
        notes.push(format!(
            "{} did not end on all ranks, or have ranks without a trace: they are in no sum",
            plural(report.partial, "collective")
        ));
    }
    if notes.is_empty() {
        return;
    }
    page.section("Notes:");
    for note in notes.iter().take(2 * TOP) {
        page.wrapped("  - ", &clean(note));
    }
    page.more(notes.len(), notes.len().min(2 * TOP), "notes");
}
