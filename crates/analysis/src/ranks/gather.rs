//! Reads the traces of a job side by side, in step by time, so that few collectives are open at once. In: files. Out: the
//! report. Not here: what a line means (follow.rs), and how the report is shown.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use super::arrival::{IN_JOB, Who};
use super::clocks::{HostClock, clocks};
use super::documents::{self, is_document};
use super::domain::{Domains, Shift};
use super::follow::Follower;
use super::hangs::{Describe, Hang, Standing, hangs};
use super::matching::{Matcher, Mismatch};
use super::missing::Missing;
use super::names::Names;
use super::odd::{ByRank, differences, retain_known, slow_kernels};
use super::process::{InCall, Last};
use super::report::{MismatchFound, RankState, Report};
use super::stragglers::Stragglers;
use crate::only::Only;
use crate::ui;
use crate::units::plural;
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::{Body, ReadError};

/// Nanoseconds that the first round reads.
const FIRST_ROUND_NS: i64 = 100_000_000;
const SPOOL: &str = "the finished collectives cannot be kept in the folder for temporary files (TMPDIR)";
/// A round with more arrivals than this is followed by a shorter one, and one with fewer by a longer one.
const MANY: usize = 32_768;
const FEW: usize = 8_192;
/// Limit on bytes of the reasons and Xids of all ranks, each of which has those of its trace, and on those of hangs.
const TEXTS: usize = 16 << 20;
/// The most jobs that a note names.
const SHOWN_JOBS: usize = 4;

/// The traces of a folder, or else the documents in it, in the order of their names; a file stands for itself.
pub fn files_of(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let named = || ui::name(path);
        let is_trace = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")
        };
        let entries = std::fs::read_dir(path).with_context(named)?;
        let all = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let (traces, others): (Vec<PathBuf>, Vec<PathBuf>) = all.partition(|path| is_trace(path));
        let mut found = regular(path, traces);
        if found.is_empty() {
            found = regular(path, others.into_iter().filter(|path| is_document(path)).collect());
        }
        if found.is_empty() {
            bail!(
                "{}: the folder has no trace (.jsonl or .jsonl.zst); name the folder that has those of the ranks",
                named()
            );
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// Those that are regular files, and links to such. Others may have put a FIFO there, or a link to a device, which never
/// ends.
fn regular(folder: &Path, files: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_regular = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|about| about.is_file());
    let (found, odd): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(is_regular);
    if let Some(first) = odd.first() {
        let first = first.file_name().map(|name| ui::name(Path::new(name))).unwrap_or_default();
        let more = match odd.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        ui::say(&format!("{}: {first}{more} left out, since only regular files are read", ui::name(folder)));
    }
    found
}

/// Reads the traces. An error: none can be read.
pub fn gather(files: &[PathBuf], only: &Only) -> Result<Report> {
    if files.iter().any(|file| is_document(file)) {
        return documents::gather(files, only);
    }
    gather_traces(files, only)
}

/// The same of files that are traces, whatever their names.
pub fn gather_traces(files: &[PathBuf], only: &Only) -> Result<Report> {
    let names = Names::default();
    let mut report = Report::default();
    let mut domains = Domains::default();
    let mut followers = Vec::new();
    for file in files {
        match open(file, followers.len() as u32, &mut domains, &names, only) {
            Ok(follower) => followers.push(follower),
            Err(error) => {
                report.notes.push(format!("{}: {error}; it is left out", ui::name(file)));
                report.unread += 1;
            }
        }
    }
    if followers.is_empty() {
        bail!("{}", report.notes.first().cloned().unwrap_or_else(|| "there is no trace to read".to_owned()));
    }
    let of_trace: Vec<usize> = followers.iter().map(|follower| follower.seen.shift.domain).collect();
    let (followers, matcher, clocks) = follow(followers, &mut domains, &names)?;
    report.clocks = clocks;
    finish(report, &followers, matcher, &of_trace, &names)
}

/// For each trace, how its times become those of its host's clock; and the clocks of all hosts. An error: a trace
/// cannot be read.
pub fn clocks_of(files: &[PathBuf], only: &Only) -> Result<(Vec<Shift>, Vec<HostClock>)> {
    let names = Names::default();
    let mut domains = Domains::default();
    let mut followers = Vec::new();
    for (file, trace) in files.iter().zip(0..) {
        followers.push(open(file, trace, &mut domains, &names, only).with_context(|| ui::name(file))?);
    }
    let shifts = followers.iter().map(|follower| follower.seen.shift).collect();
    let (_, _, clocks) = follow(followers, &mut domains, &names)?;
    Ok((shifts, clocks))
}

/// Reads the traces to their ends.
fn follow<'a>(
    followers: Vec<Follower<'a>>,
    domains: &mut Domains,
    names: &Names,
) -> Result<(Vec<Follower<'a>>, Matcher, Vec<HostClock>)> {
    let of_trace = followers.iter().map(|follower| follower.seen.shift.domain).collect();
    let mut matcher = Matcher::new(names.clone(), of_trace);
    // The host of the first trace is the reference.
    let start_ns = followers.first().map_or(0, |follower| follower.seen.end_ns());
    let mut followers: Vec<Mutex<Follower>> = followers.into_iter().map(Mutex::new).collect();
    read(&mut followers, &mut matcher, domains)?;
    matcher.finish().context(SPOOL)?;
    let followers =
        followers.into_iter().map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
    let clocks = clocks(&domains.0, &matcher.bounds, start_ns);
    Ok((followers, matcher, clocks))
}

fn open<'a>(
    file: &Path,
    trace: u32,
    domains: &mut Domains,
    names: &Names,
    only: &'a Only,
) -> Result<Follower<'a>, ReadError> {
    let mut input = gpurec_trace::open(file)?;
    let Some(line) = input.next()? else { return Err(ReadError::Empty) };
    let header = match &line.body {
        Body::Header(header) => (**header).clone(),
        _ => gpurec_trace::Header { host: ui::name(file), ..Default::default() },
    };
    let has_gpu = crate::recent::announces(&line);
    let shift = domains.shift(&header);
    Ok(Follower::new(file.to_owned(), trace, input, shift, names.clone(), only, has_gpu))
}

/// Advances all traces in rounds.
fn read(followers: &mut [Mutex<Follower>], matcher: &mut Matcher, domains: &mut Domains) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(followers.len());
    let mut window_ns = FIRST_ROUND_NS;
    loop {
        let reached = followers.iter_mut().map(|it| own(it).seen.reached_ns()).min().unwrap_or(i64::MAX);
        if reached == i64::MAX {
            return Ok(());
        }
        round(followers, reached.saturating_add(window_ns), threads);
        let mut count = 0;
        for (trace, follower) in followers.iter_mut().enumerate() {
            let seen = &mut own(follower).seen;
            domains.reading(seen.shift.domain, seen.ntp.take());
            count += seen.arrivals.len();
            for arrival in seen.arrivals.drain(..) {
                matcher.add(arrival).context(SPOOL)?;
            }
            if seen.is_over {
                matcher.over(trace as u32);
            }
        }
        matcher.round().context(SPOOL)?;
        window_ns = next_window(window_ns, count);
    }
}

/// Grows without a limit: where times are far apart, each would take a round, and a round visits all communicators.
fn next_window(ns: i64, arrivals: usize) -> i64 {
    match arrivals {
        count if count > MANY => (ns / 2).max(1_000_000),
        count if count < FEW => ns.saturating_mul(2),
        _ => ns,
    }
}

fn own<'a, 'b>(follower: &'a mut Mutex<Follower<'b>>) -> &'a mut Follower<'b> {
    follower.get_mut().unwrap_or_else(PoisonError::into_inner)
}

fn round(followers: &[Mutex<Follower>], until_ns: i64, threads: usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(follower) = followers.get(next.fetch_add(1, Relaxed)) {
            follower.lock().unwrap_or_else(PoisonError::into_inner).advance(until_ns);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| _ = scope.spawn(work));
        work();
    });
}

/// The rank of a process: that of its environment, else that in its largest communicator.
fn ranks_of(followers: &[Follower]) -> BTreeMap<Who, u32> {
    let mut ranks = BTreeMap::new();
    for (trace, follower) in followers.iter().enumerate() {
        for (pid, process) in &follower.seen.processes {
            let known = process.comms.values().filter(|last| last.rank < IN_JOB);
            let largest = known.max_by_key(|last| (last.nranks, last.rank));
            if let Some(rank) = process.rank.or(largest.map(|last| last.rank)) {
                ranks.insert(Who { trace: trace as u32, pid: *pid }, rank);
            }
        }
    }
    ranks
}

fn finish(
    mut report: Report,
    followers: &[Follower],
    matcher: Matcher,
    of_trace: &[usize],
    names: &Names,
) -> Result<Report> {
    let ranks = ranks_of(followers);
    let rank = |who: Who| ranks.get(&who).copied();
    notes(&mut report, followers, &matcher, &rank);
    states(&mut report, followers, &matcher, &rank);
    report.partial = matcher.partial;
    report.more_mismatches = matcher.more_mismatches;
    report.mismatches = matcher.mismatches.iter().map(|it| mismatch(it, names, &rank)).collect();
    let unclear;
    (report.hangs, unclear) = standing(&report.clocks, followers, &matcher, of_trace, names, &rank);
    if let Some(comm) = unclear.filter(|_| report.hangs.is_empty()) {
        let why = format!(
            "all ranks with a trace wait in communicator {}; only the missing traces of its other ranks can show which rank they wait for",
            names.text(comm)
        );
        report.unknown.insert("hangs", why);
    }
    sums(&mut report, followers, &matcher, names, &rank);
    let clocks = std::mem::take(&mut report.clocks);
    let mut stragglers = Stragglers::new(&clocks, of_trace, names);
    let spool = matcher.into_spool();
    spool.each(|rows| stragglers.add(rows)).context("the finished collectives cannot be read back")?;
    (report.stragglers, report.collectives, report.skew) = stragglers.finish(rank);
    report.clocks = clocks;
    Ok(report)
}

fn notes(report: &mut Report, followers: &[Follower], matcher: &Matcher, rank: &impl Fn(Who) -> Option<u32>) {
    let file = |who: &Who| followers.get(who.trace as usize).map(|it| ui::name(&it.file)).unwrap_or_default();
    for (duplicate, kept) in &matcher.duplicates {
        let number = rank(*kept).map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
        let place = format!("{} (pid {})", file(kept), kept.pid);
        report.notes.push(format!(
            "{number} is there twice: {place} counts, and {} (pid {}) is left out",
            file(duplicate),
            duplicate.pid
        ));
    }
    let unmatched: u64 = followers.iter().map(|it| it.seen.unmatched).sum();
    if unmatched > 0 {
        report.notes.push(format!(
            "{unmatched} collectives, sends or receives have no communicator, number or rank: the recording began after the communicator was made, or the program never asked for the rank in one that was split. They are in no figure"
        ));
    }
    let left_out = matcher.left_out + followers.iter().map(|it| it.seen.left_out).sum::<u64>();
    if left_out > 0 {
        report.notes.push(format!(
            "there are more communicators, or ranks in them, than gpurec follows: {left_out} collectives, sends or receives of the others are in no figure"
        ));
    }
    for follower in followers {
        if let Some(error) = &follower.error {
            report.notes.push(format!("{}: {error}; it is read up to there", ui::name(&follower.file)));
        }
    }
}

/// The processes that are ranks: those with collectives, or if a trace has none, those with a rank.
fn members(follower: &Follower) -> Vec<u32> {
    let processes = &follower.seen.processes;
    let mut pids: Vec<u32> =
        processes.iter().filter(|(_, it)| !it.comms.is_empty()).map(|(pid, _)| *pid).collect();
    if pids.is_empty() {
        let mut first = BTreeMap::new();
        for (pid, process) in processes.iter().filter(|(_, it)| it.rank.is_some()) {
            let known = first.entry(process.rank).or_insert(*pid);
            *known = (*known).min(*pid);
        }
        pids = first.into_values().collect();
    }
    pids.sort_unstable();
    pids
}

fn bytes_of(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + size_of::<String>()).sum()
}

fn states(
    report: &mut Report,
    followers: &[Follower],
    matcher: &Matcher,
    rank: &impl Fn(Who) -> Option<u32>,
) {
    let mut world = 0;
    let mut seen_ranks = BTreeSet::new();
    let (mut jobs, mut without) = (BTreeSet::new(), 0);
    let mut texts: BytesLeft<TEXTS> = BytesLeft::default();
    for (trace, follower) in followers.iter().enumerate() {
        let seen = &follower.seen;
        world = world.max(seen.world_size.unwrap_or(0));
        report.job = report.job.take().or(seen.job.clone());
        jobs.extend(seen.job.clone());
        let mut reasons = follower.notes().sentences();
        reasons.extend(seen.reasons.iter().cloned());
        let complete = seen.complete == Some(true) && follower.error.is_none() && follower.notes().is_whole();
        let members = members(follower);
        without += u64::from(members.is_empty());
        for pid in members {
            let who = Who { trace: trace as u32, pid };
            let process = seen.processes.get(&pid);
            let sizes = process.into_iter().flat_map(|it| it.comms.values()).filter_map(|last| last.nranks);
            world = world.max(sizes.max().unwrap_or(0));
            let number = rank(who);
            let is_duplicate = matcher.duplicates.contains_key(&who);
            if !is_duplicate {
                seen_ranks.extend(number);
            }
            report.ranks.push(RankState {
                rank: number,
                host: report.clocks.get(seen.shift.domain).map(|it| it.host.clone()).unwrap_or_default(),
                file: follower.file.display().to_string(),
                pid,
                complete,
                reasons: if texts.take(bytes_of(&reasons)) { reasons.clone() } else { Vec::new() },
                xids: if texts.take(bytes_of(&seen.xids)) { seen.xids.clone() } else { Vec::new() },
                is_duplicate,
            });
        }
    }
    if jobs.len() > 1 {
        let names: Vec<String> = jobs.iter().take(SHOWN_JOBS).map(|job| ui::clean(job)).collect();
        let more = if jobs.len() > SHOWN_JOBS { ", …" } else { "" };
        report.notes.push(format!(
            "the traces are of {} jobs ({}{more}): all figures are of these together, and a rank may be there more than once; name the traces of one job",
            jobs.len(),
            names.join(", ")
        ));
    }
    if without > 0 && !report.ranks.is_empty() {
        report.notes.push(format!(
            "{} no process with a rank: nothing of them is in these figures, except the clocks",
            if without == 1 { "1 trace has".to_owned() } else { format!("{without} traces have") }
        ));
    }
    report.ranks.sort_by(|a, b| (a.rank, &a.file, a.pid).cmp(&(b.rank, &b.file, b.pid)));
    let world = u64::from(world).max(seen_ranks.last().map_or(0, |rank| u64::from(*rank) + 1));
    report.missing = Missing::of(&seen_ranks, world);
}

fn mismatch(it: &Mismatch, names: &Names, rank: &impl Fn(Who) -> Option<u32>) -> MismatchFound {
    let mut values: Vec<_> = it.values.iter().map(|(who, value)| (rank(*who), value.clone())).collect();
    values.sort();
    let known = it.sites.iter().filter(|(_, site)| *site != 0);
    let mut sites: Vec<_> = known.map(|(who, site)| (rank(*who), names.text(*site))).collect();
    sites.sort();
    MismatchFound {
        comm: names.text(it.key.comm),
        seq: it.key.seq,
        peers: (!it.key.is_collective()).then_some((it.key.from, it.key.to)),
        field: it.field,
        values,
        sites,
    }
}

fn standing(
    clocks: &[HostClock],
    followers: &[Follower],
    matcher: &Matcher,
    of_trace: &[usize],
    names: &Names,
    rank: &impl Fn(Who) -> Option<u32>,
) -> (Vec<Hang>, Option<u32>) {
    let mut comms: BTreeMap<u32, Vec<Standing>> = BTreeMap::new();
    for (trace, follower) in followers.iter().enumerate() {
        let clock = of_trace.get(trace).and_then(|domain| clocks.get(*domain));
        let corrected = |ns: i64| clock.map_or(ns, |clock| clock.corrected(ns));
        let mut standing = follower.seen.open_collectives();
        let mut processes: Vec<_> = follower.seen.processes.iter().collect();
        processes.sort_by_key(|(pid, _)| **pid);
        for (pid, process) in processes {
            let who = Who { trace: trace as u32, pid: *pid };
            if matcher.duplicates.contains_key(&who) {
                continue;
            }
            let mut all: BTreeMap<u32, Last> =
                process.comms.iter().map(|(comm, last)| (*comm, *last)).collect();
            all.extend(standing.remove(pid).unwrap_or_default());
            for (comm, last) in &all {
                comms.entry(*comm).or_default().push(Standing {
                    who,
                    rank: rank(who),
                    last: *last,
                    end_ns: corrected(follower.seen.end_ns()),
                    enqueued_ns: corrected(last.enqueued_ns),
                    ended: process.ended.clone(),
                });
            }
        }
    }
    let of = |who: Who| followers.get(who.trace as usize);
    let open: Vec<_> = followers.iter().map(|follower| follower.seen.open_calls()).collect();
    let left = RefCell::new(BytesLeft::<TEXTS>::default());
    let in_calls = |who: Who| {
        let calls = open.get(who.trace as usize).and_then(|open| open.get(&who.pid));
        let (Some(calls), Some(follower)) = (calls, of(who)) else { return Vec::new() };
        let found = follower.seen.in_calls(calls, names);
        let texts = found.iter().flat_map(|it| it.calls.iter().chain(&it.request).chain(&it.site));
        let bytes = texts.map(|text| text.len() + size_of::<InCall>()).sum();
        if left.borrow_mut().take(bytes) { found } else { Vec::new() }
    };
    hangs(
        comms,
        &Describe {
            name: &|number| names.text(number),
            in_calls: &in_calls,
            xids: &|who| {
                let xids = of(who).map(|it| it.seen.xids.clone()).unwrap_or_default();
                if left.borrow_mut().take(bytes_of(&xids)) { xids } else { Vec::new() }
            },
        },
    )
}

fn sums(
    report: &mut Report,
    followers: &[Follower],
    matcher: &Matcher,
    names: &Names,
    rank: &impl Fn(Who) -> Option<u32>,
) {
    let (mut calls, mut kernels, mut not_all) = (ByRank::new(), ByRank::new(), BTreeSet::new());
    for (trace, follower) in followers.iter().enumerate() {
        for pid in members(follower) {
            let who = Who { trace: trace as u32, pid };
            let (Some(number), Some(process)) = (rank(who), follower.seen.processes.get(&pid)) else {
                continue;
            };
            if matcher.duplicates.contains_key(&who) {
                continue;
            }
            let add = |to: &mut ByRank, of: &gpurec_trace::hash::Map<u32, super::process::Sum>| {
                let to = to.entry(Some(number)).or_default();
                to.extend(of.iter().map(|(name, sum)| (names.shared(*name), *sum)));
            };
            add(&mut calls, &process.calls);
            if process.has_more_calls {
                not_all.insert(Some(number));
            }
            if !process.kernels.is_empty() {
                add(&mut kernels, &process.kernels);
            }
        }
    }
    if !not_all.is_empty() {
        report.notes.push(format!(
            "{} called more functions than gpurec keeps: differences are shown only of functions that are known of every rank",
            plural(not_all.len() as u64, "rank")
        ));
        retain_known(&mut calls, &not_all);
    }
    (report.differences, report.slow_kernels) = (differences(&calls), slow_kernels(&kernels));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_far_apart_take_few_rounds() {
        let far = (0..64).fold(FIRST_ROUND_NS, |ns, _| next_window(ns, 0));
        assert_eq!(far, i64::MAX);
        assert_eq!((next_window(far, MANY), next_window(1_000_000, MANY + 1)), (far, 1_000_000));
    }
}
