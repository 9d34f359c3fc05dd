//! Handles files that traced processes map or execute, while BPF keeps those processes stopped. In: records of the
//! control ring. Out: hooks in the files, messages for the trace, and resumed processes. Nothing here may take long
//! or fail: the process resumes in every case. Helper processes examine the files (crate::files); `looking` acts on
//! their answers.

mod looking;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossbeam_channel::Sender;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::patterns::Libs;
use crate::clock::monotonic_ns;
use crate::files::FileId;
use crate::files::select::looks_like_cuda;
use crate::files::{Ask, Early, Files, Found, LATE, Pool};
use crate::pipeline::messages::{Message, MessageKind};
use crate::probe::pauses::Pauses;
use crate::probe::{Library, Probes, Pythons};
use crate::process::maps::Mapping;
use crate::process::{proc, stops};
use crate::wire::{self, FileKey, NewFile, Pulse};
use gpurec_trace::{Incomplete, Resumer};
use looking::Job;

/// The most libraries that -v lists.
const LISTED: usize = 1000;

/// With at most this number of hooked files, gpurec does not look for deleted ones.
const FEW_FILES: usize = 8;

/// A process that stays stopped this long, with no record about it, is resumed.
const OVERDUE: Duration = Duration::from_millis(200);

/// The longest time from the beginning of a record in BPF to its reading here.
const ON_ITS_WAY: u64 = 2_000_000_000;

/// How long to wait for the list of one process's mappings.
const A_MOMENT: Duration = Duration::from_millis(100);

pub struct Tracker {
    files: Pool<Job>,
    /// How long to wait for the mappings of a process that runs already.
    patience: Duration,
    /// Number of messages so far that name a file gpurec could not examine.
    named: usize,
    seen: MapHandle,
    stopped: MapHandle,
    going: MapHandle,
    targets: MapHandle,
    pythons: Pythons,
    pulse: MapHandle,
    rescued: MapHandle,
    messages: Sender<Message>,
    /// Processes that wait until the rings are empty (--lossless).
    pauses: Option<Arc<Pauses>>,
    /// Set with --all, where gpurec stops no process.
    everyone: bool,
    /// For each process that waits for several files: the threads whose files are done.
    handled: HashMap<u32, Vec<u32>>,
    /// When each process was stopped for its files.
    since: HashMap<u32, u64>,
    /// When each stopped thread was resumed.
    went_on: HashMap<u32, u64>,
    /// Stopped processes that have no work pending: which stop it was, and when the recorder first noticed it.
    overdue: HashMap<u32, (u64, Instant)>,
    /// What became of each --lib rule.
    pub libs: Libs,
    /// The first hooked libraries, for -v.
    pub libraries: Vec<Library>,
    /// BPF's keys of the hooked files.
    names: HashMap<FileId, FileKey>,
    /// When each file was hooked. Kept only with --all, which alone needs it.
    hooked_at: HashMap<FileId, (u64, PathBuf)>,
    /// The number of hooked files at which the recorder next looks for deleted ones.
    tidy_at: usize,
    pub files_examined: u64,
    /// Why stacks of some processes have no Python frames.
    pub no_python: BTreeSet<String>,
    /// The time after which BPF stops no process.
    ends: Cell<u64>,
}

impl Tracker {
    pub fn new(
        probes: &Probes,
        files: Files,
        messages: Sender<Message>,
        pauses: Option<Arc<Pauses>>,
    ) -> Result<Tracker> {
        let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&probes.base.map(name)?)?) };
        Ok(Tracker {
            files: Pool::new(files),
            patience: LATE,
            named: 0,
            seen: map("seen")?,
            stopped: map("stopped")?,
            going: map("going")?,
            targets: map("targets")?,
            pythons: Pythons::new(&probes.base)?,
            pulse: map("pulse")?,
            rescued: map("rescued")?,
            messages,
            pauses,
            everyone: probes.base.is_for_everyone(),
            handled: HashMap::new(),
            since: HashMap::new(),
            went_on: HashMap::new(),
            overdue: HashMap::new(),
            libs: Libs::default(),
            libraries: Vec::new(),
            names: HashMap::new(),
            hooked_at: HashMap::new(),
            tidy_at: FEW_FILES,
            files_examined: 0,
            no_python: BTreeSet::new(),
            ends: Cell::new(u64::MAX),
        })
    }

    pub fn add_target(&self, pid: u32) -> Result<()> {
        Ok(self.targets.update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// Recorded processes that still run, with their names.
    pub fn still_there(&self) -> Vec<(u32, String)> {
        let named = |pid| Some((pid, proc::stat(pid).ok().filter(|stat| !stat.ended())?.comm));
        let mut there: Vec<_> = pids_of(&self.targets).into_iter().filter_map(named).collect();
        there.sort();
        there
    }

    /// Writes the heartbeat. It tells BPF that the recorder is alive and resumes stopped processes, or, at the end of
    /// the recording, that BPF must not stop any.
    pub fn beat(&self, stop_allowed: bool) -> Result<()> {
        let now = monotonic_ns();
        self.ends.set(if stop_allowed { u64::MAX } else { now });
        let pulse = Pulse { alive_ns: now, stop_allowed: stop_allowed.into() };
        Ok(self.pulse.update(&0u32.to_ne_bytes(), wire::bytes(&pulse), MapFlags::ANY)?)
    }

    pub fn new_file(&mut self, record: &NewFile, probes: &mut Probes) {
        if record.head.flags & (wire::CHANGEABLE | wire::NO_HOOKS) == wire::CHANGEABLE {
            self.missed(Incomplete::Changeable { pid: record.pid, name: name_of(record) });
            if record.address == 0 {
                return;
            }
        }
        // A thread that maps another file must have been resumed since the file for which it was stopped.
        let tid = record.head.tid;
        let waits = self.handled.get(&record.pid).is_some_and(|handled| handled.contains(&tid))
            || self.is_stopped_for_a_look(|pending| pending.head.tid == tid);
        if waits || self.went_on.get(&tid).is_some_and(|ts| record.head.ts < *ts) {
            self.missed(looking(Resumer::Other));
        }
        self.ask(Job::New(*record), probes);
    }

    /// True if BPF should have stopped the process, so that no call is missed. BPF stops none with --all, nor after
    /// the recording ends.
    fn is_to_be_seen(&self, record: &NewFile) -> bool {
        !self.everyone && record.head.ts < self.ends.get()
    }

    /// Reports that the process ran while its file was hooked.
    fn came_late(&self, record: &NewFile, path: &Path, only_blocks: bool) {
        let path = path.display().to_string();
        self.missed(match record.head.flags & wire::WATCHED {
            _ if only_blocks => Incomplete::BlocksLate { path },
            0 => Incomplete::HookedLate { path },
            _ => Incomplete::HookedLateWatched { path },
        });
    }

    /// With --all: reports a file that was mapped before its hooks were in place, because its process may have made
    /// calls by then.
    fn report_mapped_before(&self, record: &NewFile, key: Option<FileId>, only_blocks: bool) {
        if let Some((since, path)) = key.and_then(|key| self.hooked_at.get(&key))
            && record.head.ts < *since
        {
            let (pid, path) = (record.pid, path.display().to_string());
            let comm = proc::stat(pid).map(|stat| format!(" ({})", stat.comm)).unwrap_or_default();
            self.missed(match only_blocks {
                true => Incomplete::BlocksLate { path },
                false => Incomplete::MappedBefore { pid, comm, path },
            });
        }
    }

    /// With --all: reports a file that was gone before gpurec could examine it, because its process ended or unmapped
    /// it. Its name may show that it was a CUDA library. If it does not, the file matters only if the process used
    /// CUDA.
    fn report_not_examined(&self, record: &NewFile) {
        let (name, pid) = (name_of(record), record.pid);
        if looks_like_cuda(Path::new(&name)) {
            self.missed(Incomplete::Gone { pid, name });
        } else {
            self.send(0, pid, MessageKind::NotExamined);
        }
    }

    /// How the process was resumed before its file was done, if it was.
    fn resumed(&self, record: &NewFile) -> Option<Resumer> {
        if self.is_rescued(record) {
            return Some(Resumer::Guardian);
        }
        (!stops::holds(record.head.tid)).then_some(Resumer::Other)
    }

    /// True if the guardian resumed the process: it resumes all that were stopped before `rescued_at`.
    fn is_rescued(&self, record: &NewFile) -> bool {
        record.head.ts < self.rescued_at()
    }

    fn rescued_at(&self) -> u64 {
        word(&self.rescued, 0).unwrap_or(0)
    }

    fn missed(&self, why: Incomplete) {
        self.send(0, 0, MessageKind::Missed(why.into()));
    }

    /// This fails only if the worker has ended: then the recording is over.
    fn send(&self, ts: u64, pid: u32, what: MessageKind) {
        let _ = self.messages.send(Message { ts, pid, what });
    }

    /// Removes the hooks of files that are deleted and that no process maps. Without this, a process that loads one
    /// temporary library after another, or a library that is replaced again and again, would make the hooks pile up.
    pub fn tidy(&mut self, probes: &mut Probes) {
        if probes.files() < self.tidy_at {
            return;
        }
        let deleted = probes.deleted();
        // This comes first: if a process maps one of these files from now on, BPF reports it and gpurec examines the
        // file again.
        for name in deleted.iter().filter_map(|id| self.names.get(id)) {
            let _ = self.seen.delete(wire::bytes(name));
        }
        let still = if deleted.is_empty() { Some(HashSet::new()) } else { self.mapped_inodes() };
        if let Some(still) = still {
            for id in deleted.into_iter().filter(|(_, inode)| !still.contains(inode)) {
                self.names.remove(&id);
                self.hooked_at.remove(&id);
                probes.detach_file(id);
            }
        }
        // Looks again only after the number of hooked files has doubled.
        self.tidy_at = FEW_FILES.max(2 * probes.files());
    }

    /// The inodes of all executable files that traced processes map. None if a process does not answer.
    fn mapped_inodes(&mut self) -> Option<HashSet<u64>> {
        let (mut asked, mut inodes) = (HashSet::new(), HashSet::new());
        loop {
            let processes = if self.everyone { proc::all_processes() } else { pids_of(&self.targets) };
            // A process that was forked meanwhile may still map what its parent has unmapped.
            let new: Vec<u32> = processes.into_iter().filter(|pid| asked.insert(*pid)).collect();
            if new.is_empty() {
                return Some(inodes);
            }
            for pid in new {
                match self.files.ask_now(&Ask::Maps { pid }, A_MOMENT) {
                    Some(Found::Maps(Ok(files))) => inodes.extend(files.iter().map(|file| file.inode)),
                    _ if proc::lives(pid) => return None,
                    _ => {}
                }
            }
        }
    }

    /// A write to a file removes its hooks. Calls of processes that have the file mapped are missed from then on. If
    /// a process maps the file later, BPF reports it and gpurec examines the file again.
    pub fn follow_rewritten(&mut self, probes: &mut Probes) {
        let rewritten = probes.take_rewritten();
        if rewritten.is_empty() {
            return;
        }
        for id in &rewritten {
            self.hooked_at.remove(id);
            self.names.remove(id).iter().for_each(|name| _ = self.seen.delete(wire::bytes(name)));
        }
        let mapped = self.mapped_inodes();
        if rewritten.iter().any(|(_, inode)| mapped.as_ref().is_none_or(|mapped| mapped.contains(inode))) {
            self.missed(Incomplete::Rewritten);
        }
    }

    /// The file is done: resumes a process that was stopped for it, if it waits for no other file.
    fn resume_after(&mut self, record: &NewFile) {
        if record.head.flags & wire::STOPPED == 0 {
            return;
        }
        let pid = record.pid;
        let since = self.since.entry(pid).or_insert(record.head.ts);
        *since = record.head.ts.min(*since);
        let handled = self.handled.entry(pid).or_default();
        handled.push(record.head.tid);
        if handled.len() as u64 >= self.waiting_for(pid) {
            // The work may have taken longer than the heartbeat lasts, and the process may map its next library at
            // once.
            if self.ends.get() == u64::MAX {
                let _ = self.beat(true);
            }
            let now = monotonic_ns();
            let handled = self.handled.remove(&pid).unwrap_or_default();
            self.went_on.extend(handled.into_iter().map(|tid| (tid, now)));
            self.resume(pid, self.is_rescued(record));
        }
    }

    /// If `rescued` is set and the process is not in the map of stopped processes, the guardian has resumed it, and
    /// any present stop is not gpurec's.
    fn resume(&mut self, pid: u32, rescued: bool) {
        let key = pid.to_ne_bytes();
        self.report_stop(pid);
        // If gpurec dies right after this, the guardian finds the process in `going` and resumes it.
        let _ = self.going.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY);
        let ours = self.stopped.delete(&key).is_ok();
        if ours || !rescued {
            stops::go_on(pid);
        }
        let _ = self.going.delete(&key);
    }

    /// Sends the stop to the worker before the process resumes, so that it arrives before the ends of the calls that
    /// the stop interrupted.
    fn report_stop(&mut self, pid: u32) {
        let known = self.since.remove(&pid);
        let of_map = || Some((self.stop_of(pid)? >> wire::STOP_COUNT) * 1_000_000);
        let Some(from) = known.or_else(of_map) else { return };
        let rescued = self.rescued_at();
        // The guardian resumed the process if it acted after this stop began.
        let ts = if rescued > from { rescued } else { monotonic_ns() };
        self.send(ts, pid, MessageKind::Stopped { from });
    }

    fn waiting_for(&self, pid: u32) -> u64 {
        self.stop_of(pid).map_or(0, |stop| stop & ((1 << wire::STOP_COUNT) - 1))
    }

    /// The time of the stop, and the number of files that it waits for (bpf/following.h).
    fn stop_of(&self, pid: u32) -> Option<u64> {
        word(&self.stopped, pid)
    }

    /// Called when the control ring is empty. A process that is still in the same stop after OVERDUE was overlooked:
    /// it is resumed.
    pub fn release_overdue(&mut self, at_once: bool) {
        // The worker resumes these processes when it empties the rings; at the end it is done here.
        if let (Some(pauses), true) = (&self.pauses, at_once) {
            pauses.resume_all(&mut |pause| {
                self.send(pause.to, pause.pid, MessageKind::Stopped { from: pause.from });
            });
        }
        let (now, ts) = (Instant::now(), monotonic_ns());
        self.went_on.retain(|_, since| ts.saturating_sub(*since) < ON_ITS_WAY);
        let stopped = pids_of(&self.stopped);
        self.overdue.retain(|pid, _| stopped.contains(pid));
        for pid in stopped {
            let Some(stop) = self.stop_of(pid).map(|stop| stop >> wire::STOP_COUNT) else { continue };
            if !at_once && self.is_stopped_for_a_look(|pending| pending.pid == pid) {
                // A late answer about this file is reported as late.
                self.overdue.remove(&pid);
                continue;
            }
            let seen = self.overdue.entry(pid).or_insert((stop, now));
            if seen.0 != stop {
                *seen = (stop, now);
            }
            let overdue = now - seen.1 > OVERDUE;
            if overdue || at_once {
                self.overdue.remove(&pid);
                self.handled.remove(&pid);
                self.resume(pid, false);
            }
            if overdue && !at_once && proc::lives(pid) {
                self.missed(Incomplete::Overdue { pid });
            }
        }
    }
}

fn name_of(record: &NewFile) -> String {
    let name: Vec<u8> = record.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}

/// A file was being examined when its process was resumed.
fn looking(by: Resumer) -> Incomplete {
    Incomplete::Resumed { what: "a file that a process mapped was being examined".to_owned(), by }
}

fn word(map: &MapHandle, key: u32) -> Option<u64> {
    let value = map.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok()??;
    Some(u64::from_ne_bytes(value.try_into().ok()?))
}

/// The processes in a map. The guardian uses this too.
pub fn pids_of(map: &MapHandle) -> Vec<u32> {
    map.keys().filter_map(|key| Some(u32::from_ne_bytes(key.try_into().ok()?))).collect()
}
