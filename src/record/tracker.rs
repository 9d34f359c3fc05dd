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

use super::patterns::Libs;
use crate::clock::monotonic_ns;
use crate::files::FileId;
use crate::files::select::looks_like_cuda;
use crate::files::{Ask, Early, Files, Found, LATE, Pool};
use crate::pipeline::messages::{Message, Told};
use crate::probe::pauses::Pauses;
use crate::probe::{Library, Probes};
use crate::process::maps::Mapping;
use crate::process::{proc, stops};
use crate::wire::{self, FileKey, NewFile, Pulse};
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

const NOT_STOPPED: &str = "--all stops no process";

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
    /// Since when processes are stopped for their files.
    since: HashMap<u32, u64>,
    /// When threads that had been stopped were let go.
    went_on: HashMap<u32, u64>,
    /// Processes found stopped with nothing left to do for them: by which of their stops, and when that was seen first.
    overdue: HashMap<u32, (u64, Instant)>,
    /// What was found of --lib.
    pub libs: Libs,
    /// The first of those hooked, for a person.
    pub libraries: Vec<Library>,
    /// What BPF calls files that have hooks.
    names: HashMap<FileId, FileKey>,
    /// Since when files have hooks. With --all: nobody else needs it.
    hooked_at: HashMap<FileId, (u64, PathBuf)>,
    /// When there are hooks in so many files, it is asked which of them are gone.
    tidy_at: usize,
    pub files_examined: u64,
    /// When nobody was to be stopped any more.
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
            ends: Cell::new(u64::MAX),
        })
    }

    pub fn add_target(&self, pid: u32) -> Result<()> {
        Ok(self.targets.update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// Processes of the recording that are still there, with their names.
    pub fn still_there(&self) -> Vec<(u32, String)> {
        let pids = pids_of(&self.targets).into_iter();
        let mut there: Vec<_> = pids
            .filter_map(|pid| Some((pid, proc::stat(pid).ok().filter(|stat| !stat.ended())?.comm)))
            .collect();
        there.sort();
        there
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
        let since = self.since.entry(record.pid).or_insert(record.head.ts);
        *since = record.head.ts.min(*since);
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

    /// With --all: was the file mapped before its hooks were there? Then its process may have made calls by then.
    fn tell_if_mapped_before(&self, record: &NewFile, key: Option<FileId>) {
        let Some((_, path)) =
            key.and_then(|key| self.hooked_at.get(&key)).filter(|(since, _)| record.head.ts < *since)
        else {
            return;
        };
        let pid = record.pid;
        let comm = proc::stat(pid).map(|stat| format!(" ({})", stat.comm)).unwrap_or_default();
        self.missed(format!(
            "process {pid}{comm} had mapped {} before gpurec could hook it, and {NOT_STOPPED}: its first calls may not have been seen",
            path.display()
        ));
    }

    /// With --all: a file of a process that has ended, or has let go of it. Its name may say what it was; if not, it
    /// matters if the process used CUDA.
    fn tell_unlooked(&self, record: &NewFile) {
        let name: Vec<u8> = record.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        let name = String::from_utf8_lossy(&name);
        let pid = record.pid;
        if looks_like_cuda(Path::new(&*name)) {
            self.missed(format!(
                "process {pid} had mapped {name}, which was gone before gpurec could look at it, and {NOT_STOPPED}: its calls were not seen"
            ));
        } else {
            let _ = self.messages.send(Message { ts: 0, pid, what: Told::Unlooked });
        }
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
        record.head.ts < self.rescued_at()
    }

    fn rescued_at(&self) -> u64 {
        let value = self.rescued.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_ne_bytes)
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
                self.hooked_at.remove(&id);
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
        rewritten.iter().for_each(|id| _ = self.hooked_at.remove(id));
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
    fn resume(&mut self, pid: u32, rescued: bool) {
        let key = pid.to_ne_bytes();
        self.tell_stop(pid);
        // The guardian finds it there if this is the last that we do.
        let _ = self.going.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY);
        let ours = self.stopped.delete(&key).is_ok();
        if ours || !rescued {
            stops::go_on(pid);
        }
        let _ = self.going.delete(&key);
    }

    /// Before the process is resumed: the worker knows of it when the calls end that it fell into.
    fn tell_stop(&mut self, pid: u32) {
        let known = self.since.remove(&pid);
        let of_map = || Some((self.stop_of(pid)? >> wire::STOP_COUNT) * 1_000_000);
        let Some(from) = known.or_else(of_map) else { return };
        let rescued = self.rescued_at();
        let now = monotonic_ns();
        // The guardian was first, if it resumed processes after this one was stopped.
        let ts = if rescued > from { rescued } else { now };
        let _ = self.messages.send(Message { ts, pid, what: Told::Stopped { from } });
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
            let messages = &self.messages;
            pauses.let_go(&mut |pause| {
                let what = Told::Stopped { from: pause.from };
                let _ = messages.send(Message { ts: pause.to, pid: pause.pid, what });
            });
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
