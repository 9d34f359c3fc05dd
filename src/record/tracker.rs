//! What must be done while a process waits: a new executable file was mapped or executed.
//! In: records of the control ring. Out: hooks in what the file holds, a message for the
//! trace, and the process let go.
//! Nothing here may take long or fail: whatever happens, the process goes on. What a file holds, others find out
//! (crate::files); what follows from that is in `looking`.

mod looking;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossbeam_channel::Sender;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::files::{Ask, Files, Found, LATE, Pool};
use crate::pipeline::worker::{Message, Told, monotonic_ns};
use crate::probe::pauses::Pauses;
use crate::probe::wire::{self, FileKey, NewFile, Pulse};
use crate::probe::{FileId, Library, Probes};
use crate::target::maps::Mapping;
use crate::target::{proc, stops};
use looking::Job;

/// Libraries that are listed with -v.
const LISTED: usize = 1000;

/// So many files with hooks are no burden, gone or not.
const FEW_FILES: usize = 8;

/// So long a stopped process is waited for that nothing was heard of.
const OVERDUE: Duration = Duration::from_millis(200);

/// So long it may take a record from being begun to being read.
const ON_ITS_WAY: u64 = 2_000_000_000;

/// So long what one process has mapped is waited for.
const A_MOMENT: Duration = Duration::from_millis(100);

const REWRITTEN: &str = "a library was written to while a process had it loaded, and gpurec removed its hooks: that process's calls were not seen from then on";

/// Why a process was not stopped.
const WATCHED: &str =
    "it was not stopped, for its shell or debugger would have taken that for a stop of its own";

/// As `fg` does with a job that gpurec has stopped.
const LET_GO: &str =
    "when somebody else let its process go on (SIGCONT): its first calls may not have been seen";

const RESCUED: &str = "when gpurec's guardian resumed its process, because the recorder itself did not run for some seconds (stopped, or without a processor): its first calls may not have been seen";

pub struct Tracker {
    files: Pool<Job>,
    /// So long the mappings of a process that runs already are waited for.
    patience: Duration,
    /// Sentences that name a file which could not be looked at.
    named: usize,
    seen: MapHandle,
    stopped: MapHandle,
    going: MapHandle,
    targets: MapHandle,
    pulse: MapHandle,
    rescued: MapHandle,
    messages: Sender<Message>,
    /// Those that wait for the rings to be emptied.
    pauses: Option<Arc<Pauses>>,
    /// Nobody is stopped, and that is known.
    everyone: bool,
    /// Threads whose new files were dealt with, for each process that waits for several.
    handled: HashMap<u32, Vec<u32>>,
    /// When threads that had been stopped were let go.
    went_on: HashMap<u32, u64>,
    /// Processes found stopped with nothing left to do for them: by which of their stops, and when that was seen first.
    overdue: HashMap<u32, (u64, Instant)>,
    /// The first of those hooked, for a person.
    pub libraries: Vec<Library>,
    /// What BPF calls files that have hooks.
    names: HashMap<FileId, FileKey>,
    /// When there are hooks in so many files, it is asked which of them are gone.
    tidy_at: usize,
    pub files_examined: u64,
    pub stops: u64,
    /// When nobody was to be stopped any more.
    ends: Cell<u64>,
    pub stopped_for: Duration,
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
            pulse: map("pulse")?,
            rescued: map("rescued")?,
            messages,
            pauses,
            everyone: probes.base.is_for_everyone(),
            handled: HashMap::new(),
            went_on: HashMap::new(),
            overdue: HashMap::new(),
            libraries: Vec::new(),
            names: HashMap::new(),
            tidy_at: FEW_FILES,
            files_examined: 0,
            stops: 0,
            ends: Cell::new(u64::MAX),
            stopped_for: Duration::ZERO,
        })
    }

    pub fn add_target(&self, pid: u32) -> Result<()> {
        Ok(self.targets.update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// Tells BPF that somebody is here to let stopped processes go on; or, at the end, not.
    pub fn beat(&self, stop_allowed: bool) -> Result<()> {
        let now = monotonic_ns();
        self.ends.set(if stop_allowed { u64::MAX } else { now });
        let pulse = Pulse { alive_ns: now, stop_allowed: stop_allowed.into() };
        Ok(self.pulse.update(&0u32.to_ne_bytes(), wire::bytes(&pulse), MapFlags::ANY)?)
    }

    pub fn new_file(&mut self, record: &NewFile, probes: &mut Probes) {
        let stopped = record.head.flags & wire::STOPPED != 0;
        if record.head.flags & wire::ALONE != 0 {
            self.widen(record.pid, probes);
            if stopped && self.is_rescued(record) {
                self.missed(format!("process {} was being looked at {RESCUED}", record.pid));
            }
            if record.head.flags & wire::WATCHED != 0 {
                self.missed(format!(
                    "the first calls of process {} may not have been seen: {WATCHED}",
                    record.pid
                ));
            }
        } else {
            // A thread that maps something has gone on since it mapped what it was stopped for.
            let tid = record.head.tid;
            let waits = self.handled.get(&record.pid).is_some_and(|handled| handled.contains(&tid))
                || self.is_stopped_for_a_look(|pending| pending.head.tid == tid);
            if waits || self.went_on.get(&tid).is_some_and(|ts| record.head.ts < *ts) {
                self.missed(format!("a file that a process had mapped was being looked at {LET_GO}"));
            }
            return self.look_at(record, probes);
        }
        if stopped {
            self.is_done(record);
        }
    }

    /// Nothing is left to do for it.
    fn is_done(&mut self, record: &NewFile) {
        self.stops += 1;
        self.stopped_for += Duration::from_nanos(monotonic_ns().saturating_sub(record.head.ts));
        self.let_go(record);
    }

    /// Its process was to be stopped, so that no call is missed: nobody is under --all, nor when the recording ends.
    fn is_to_be_seen(&self, record: &NewFile) -> bool {
        !self.everyone && record.head.ts < self.ends.get()
    }

    /// The process went on while its file was hooked: that is told, and the next one that maps the file finds the hooks
    /// in place, and needs not stop.
    fn came_late(&mut self, record: &NewFile, path: &Path, probes: &mut Probes) {
        let mut why = format!(
            "{} could not be hooked before its process went on: its first calls may not have been seen",
            path.display()
        );
        if record.head.flags & wire::WATCHED != 0 {
            why.push_str(&format!(" ({WATCHED})"));
        }
        self.missed(why);
        self.widen(record.pid, probes);
    }

    /// How the process went on that was stopped for a file, if it did.
    fn resumed(&self, record: &NewFile) -> Option<&'static str> {
        if self.is_rescued(record) {
            return Some(RESCUED);
        }
        (!stops::holds(record.head.tid)).then_some(LET_GO)
    }

    /// The guardian has resumed every process that was stopped by then.
    fn is_rescued(&self, record: &NewFile) -> bool {
        let value = self.rescued.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let at = value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_ne_bytes);
        record.head.ts < at
    }

    fn missed(&self, why: String) {
        let _ = self.messages.send(Message { ts: 0, pid: 0, what: Told::Missed(why) });
    }

    /// A process needs hooks that are for one process now, and is not that one.
    fn widen(&mut self, pid: u32, probes: &mut Probes) {
        if let Err(error) = probes.widen() {
            let path = PathBuf::from(format!("(every library, for process {pid})"));
            let reason = format!("{error:#}");
            let _ =
                self.messages.send(Message { ts: monotonic_ns(), pid, what: Told::Failed { path, reason } });
        }
    }

    /// Removes the hooks of files that were deleted and are mapped by nobody: a process that loads one
    /// library after the other, or one that is replaced again and again, does not fill us up.
    pub fn tidy(&mut self, probes: &mut Probes) {
        if probes.files() < self.tidy_at {
            return;
        }
        let deleted = probes.deleted();
        // First: whoever maps one from here on is heard of, and its file is looked at again.
        for name in deleted.iter().filter_map(|id| self.names.get(id)) {
            let _ = self.seen.delete(wire::bytes(name));
        }
        let still = if deleted.is_empty() { Some(HashSet::new()) } else { self.mapped_by_anybody() };
        if let Some(still) = still {
            for id in deleted.into_iter().filter(|(_, inode)| !still.contains(inode)) {
                self.names.remove(&id);
                probes.let_go(id);
            }
        }
        // Not asked again before much has come.
        self.tidy_at = FEW_FILES.max(2 * probes.files());
    }

    /// The inodes of all files that traced processes execute; None if that cannot be known.
    fn mapped_by_anybody(&mut self) -> Option<HashSet<u64>> {
        let (mut asked, mut inodes) = (HashSet::new(), HashSet::new());
        loop {
            let processes = if self.everyone { proc::all_processes() } else { pids_of(&self.targets) };
            // One that was forked meanwhile may have what its parent has let go.
            let new: Vec<u32> = processes.into_iter().filter(|pid| asked.insert(*pid)).collect();
            if new.is_empty() {
                return Some(inodes);
            }
            for pid in new {
                match self.files.ask_now(&Ask::Maps { pid }, A_MOMENT) {
                    Some(Found::Maps(Ok(files))) => inodes.extend(files.iter().map(|file| file.inode)),
                    _ if proc::stat(pid).is_ok_and(|stat| !stat.ended()) => return None,
                    _ => {}
                }
            }
        }
    }

    /// Files that were written to have no hooks any more. Whoever has one mapped goes on without; whoever maps it from here
    /// on is heard of, and it is looked at again.
    pub fn follow_rewritten(&mut self, probes: &mut Probes) {
        let rewritten = probes.take_rewritten();
        if rewritten.is_empty() {
            return;
        }
        for name in rewritten.iter().filter_map(|id| self.names.remove(id)) {
            let _ = self.seen.delete(wire::bytes(&name));
        }
        let mapped = self.mapped_by_anybody();
        if rewritten.iter().any(|(_, inode)| mapped.as_ref().is_none_or(|mapped| mapped.contains(inode))) {
            self.missed(REWRITTEN.to_owned());
        }
    }

    fn let_go(&mut self, record: &NewFile) {
        let pid = record.pid;
        let handled = self.handled.entry(pid).or_default();
        // One that is told to be alone is another's child, or goes on to map its program.
        handled.push(if record.head.flags & wire::ALONE == 0 { record.head.tid } else { 0 });
        if handled.len() as u64 >= self.waiting_for(pid) {
            // What it was stopped for may have taken longer than BPF takes us to be alive, and its next library is near.
            if self.ends.get() == u64::MAX {
                let _ = self.beat(true);
            }
            let now = monotonic_ns();
            let handled = self.handled.remove(&pid).unwrap_or_default();
            self.went_on.extend(handled.into_iter().map(|tid| (tid, now)));
            self.resume(pid, self.is_rescued(record));
        }
    }

    /// `rescued`: if it is not among the stopped any more, the guardian has resumed it, and a stop that it is in now is
    /// another's.
    fn resume(&self, pid: u32, rescued: bool) {
        let key = pid.to_ne_bytes();
        // The guardian finds it there if this is the last that we do.
        let _ = self.going.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY);
        let ours = self.stopped.delete(&key).is_ok();
        if ours || !rescued {
            stops::go_on(pid);
        }
        let _ = self.going.delete(&key);
    }

    fn waiting_for(&self, pid: u32) -> u64 {
        self.stop_of(pid).map_or(0, |stop| stop & ((1 << wire::STOP_COUNT) - 1))
    }

    /// Since when, and for how many files: bpf/following.h.
    fn stop_of(&self, pid: u32) -> Option<u64> {
        let value = self.stopped.lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        Some(u64::from_ne_bytes(value.try_into().ok()?))
    }

    /// Called when the control ring is empty: whoever is still stopped by us after a while, and by that same stop, was
    /// missed, and is let go.
    pub fn release_overdue(&mut self, at_once: bool) {
        // Those are let go by whoever empties the rings, but at the end.
        if let (Some(pauses), true) = (&self.pauses, at_once) {
            pauses.let_go();
        }
        let (now, ts) = (Instant::now(), monotonic_ns());
        self.went_on.retain(|_, since| ts.saturating_sub(*since) < ON_ITS_WAY);
        let stopped = pids_of(&self.stopped);
        self.overdue.retain(|pid, _| stopped.contains(pid));
        for pid in stopped {
            let Some(stop) = self.stop_of(pid).map(|stop| stop >> wire::STOP_COUNT) else { continue };
            if !at_once && self.is_stopped_for_a_look(|pending| pending.pid == pid) {
                // What is late is told as such.
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
            if overdue && !at_once && proc::stat(pid).is_ok_and(|stat| !stat.ended()) {
                self.missed(format!(
                    "process {pid} was stopped for a file that it had mapped, and let go without a look at that: if it was a CUDA library, its first calls may not have been seen"
                ));
            }
        }
    }
}

/// The processes that a map has. Also what the guardian asks.
pub fn pids_of(map: &MapHandle) -> Vec<u32> {
    map.keys().filter_map(|key| Some(u32::from_ne_bytes(key.try_into().ok()?))).collect()
}
