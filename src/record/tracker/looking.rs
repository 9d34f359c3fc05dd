//! Examines the files that processes map. In: a record, or a process that runs already. Out: hooks in the files, a
//! message for the trace where hooking fails, and the process resumed, after two seconds in any case.

use std::io;
use std::os::fd::BorrowedFd;

use super::*;
use crate::files::{Event, Gone, Place, Unopened, Wants};
use crate::probe::LookOutcome;
use crate::stacks::python::Interpreter;
use gpurec_trace::Incomplete;

/// How long the end of a recording waits for files that are being examined.
const AT_THE_END: Duration = Duration::from_millis(200);

/// The most messages that name a file: a target could map thousands that cannot be opened.
const MOST_NAMED: usize = 16;

/// A question about a file, and the process it concerns.
#[derive(Clone)]
pub enum Job {
    /// A thread has mapped it.
    New(NewFile),
    /// A process that ran already has it mapped.
    Scan(u32, Mapping),
    /// Asks which libraries may be loaded (--all).
    Early(Early),
    /// A library found by `Early`, and the process through which it was found, or gpurec's own.
    Path(u32, String),
}

impl Job {
    /// The question for the helper processes: the thread through which they find the file, and where.
    fn ask(&self, again: bool) -> Ask {
        let (tid, place) = match self {
            Job::New(record) if record.head.flags & wire::PROGRAM != 0 => (record.head.tid, Place::Program),
            Job::New(record) => {
                let (address, inode, fd) = (record.address, record.file.inode, record.fd);
                (record.head.tid, Place::Mapped { address, inode, fd })
            }
            Job::Scan(pid, mapping) => (*pid, Place::Listed(mapping.clone())),
            Job::Path(pid, path) => (*pid, Place::Path(path.clone())),
            Job::Early(of) => return Ask::Early { of: *of },
        };
        Ask::File { tid, place, again }
    }

    fn pid(&self) -> u32 {
        match self {
            Job::New(record) => record.pid,
            Job::Scan(pid, _) => *pid,
            // No process has it mapped.
            Job::Early(_) | Job::Path(..) => 0,
        }
    }

    /// True if no process is known to map the file yet. If one does, the file is examined again.
    fn is_early(&self) -> bool {
        matches!(self, Job::Early(_) | Job::Path(..))
    }
}

impl Tracker {
    /// Hooks the libraries that a running process has mapped. `work` handles the answers that come later.
    pub fn scan(&mut self, pid: u32, probes: &mut Probes) -> io::Result<()> {
        let mapped = match self.files.ask_now(&Ask::Maps { pid }, self.patience) {
            Some(Found::Maps(Ok(mapped))) => Ok(mapped),
            Some(Found::Maps(Err(why)) | Found::Refused(why)) => Err(why),
            _ => {
                // Halving the wait bounds the total for a thousand processes that do not answer.
                self.patience /= 2;
                Err("it did not answer".to_owned())
            }
        };
        let mapped = mapped.map_err(|why| {
            if proc::lives(pid) {
                self.missed(Incomplete::MappingsUnread { pid, why: why.clone() });
            }
            io::Error::other(why)
        })?;
        for mapping in mapped {
            self.ask(Job::Scan(pid, mapping), probes);
        }
        Ok(())
    }

    /// With --all, gpurec stops no process. It hooks libraries that processes are about to load before they load
    /// them.
    pub fn look_early(&mut self, of: Early, probes: &mut Probes) {
        self.ask(Job::Early(of), probes);
    }

    pub(super) fn ask(&mut self, job: Job, probes: &mut Probes) {
        self.files.ask(job.ask(false), job);
        loop {
            self.work(probes);
            if !self.files.wait() {
                return;
            }
        }
    }

    /// These become readable when `work` has something to do.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.fds()
    }

    /// True while questions about files are open.
    pub fn is_looking(&self) -> bool {
        self.files.jobs().next().is_some()
    }

    pub(super) fn is_stopped_for_a_look(&self, is_it: impl Fn(&NewFile) -> bool) -> bool {
        self.files.jobs().any(|job| match job {
            Job::New(record) => record.head.flags & wire::STOPPED != 0 && is_it(record),
            _ => false,
        })
    }

    /// Acts on the answers that have arrived.
    pub fn work(&mut self, probes: &mut Probes) {
        for event in self.files.events() {
            match event {
                Event::Found { job, late, found } => self.found(job, late, found, probes),
                Event::Late(job, path) => {
                    if !self.may_be_late(&job) {
                        self.report_silent(&job, path);
                    }
                    if let Job::New(record) = &job {
                        // Other processes then need not wait for this file too.
                        self.mark_examined(record);
                        self.resume_after(record);
                    }
                }
                Event::Gone { job, late, path, why } => self.gone(&job, late, path, why),
            }
        }
    }

    /// At the end of the recording: hooks what the open questions find within AT_THE_END, then abandons the rest.
    pub fn finish(&mut self, probes: &mut Probes) {
        let began = Instant::now();
        while self.files.wait() || self.is_looking() && began.elapsed() < AT_THE_END {
            self.work(probes);
            std::thread::sleep(Duration::from_millis(1));
        }
        for (job, late) in self.files.abandon() {
            // A process that stayed stopped until now has made no call.
            let stopped = matches!(&job, Job::New(record) if record.head.flags & wire::STOPPED != 0);
            if !late && !stopped {
                self.report_unread(&job, None, "the recording ended first");
            } else if late && self.may_be_late(&job) {
                self.report_silent(&job, None);
            }
        }
    }

    /// True if the file's process should not have been stopped: then a late answer loses nothing.
    fn may_be_late(&self, job: &Job) -> bool {
        matches!(job, Job::New(record) if !self.is_to_be_seen(record))
    }

    fn report_silent(&mut self, job: &Job, path: Option<PathBuf>) {
        let path = match (job, path) {
            (Job::Scan(_, mapping), None) => Some(mapping.path.clone()),
            (_, path) => path,
        };
        let within = LATE.as_secs();
        self.report_unread(job, path, &format!("its file system did not answer within {within} s"));
    }

    /// Reports a file that could not be examined; without its name if there are many.
    fn report_unread(&mut self, job: &Job, path: Option<PathBuf>, why: &str) {
        if job.is_early() {
            return;
        }
        let pid = job.pid();
        self.libs.add_refused(path.as_deref());
        let path = path.filter(|_| self.named < MOST_NAMED);
        self.named += usize::from(path.is_some());
        let why = why.to_owned();
        self.missed(match path {
            Some(path) => Incomplete::NotExamined { path: path.display().to_string(), pid, why },
            None => Incomplete::FileNotExamined { why },
        });
    }

    fn gone(&mut self, job: &Job, late: bool, path: Option<PathBuf>, why: Gone) {
        // A late answer has been reported already, except where lateness loses nothing.
        if !late || self.may_be_late(job) {
            match why {
                Gone::Silent => self.report_silent(job, path),
                Gone::Ended => self.report_unread(job, path, "gpurec's process that examined it ended"),
            }
        }
        self.resume_unless(late, job);
    }

    fn resume_unless(&mut self, late: bool, job: &Job) {
        if let (Job::New(record), false) = (job, late) {
            self.resume_after(record);
        }
    }

    /// Acts on an answer about a file.
    fn found(&mut self, job: Job, late: bool, found: Found, probes: &mut Probes) {
        let pid = job.pid();
        let (hooked, key, path) = match found {
            // The file has no hooks any more, or they failed: it is examined again.
            Found::Known(key) if !probes.has(&key) && !late => return self.files.ask(job.ask(true), job),
            Found::Early(paths) => {
                let pid = match job {
                    Job::Early(Early::Process(pid)) => pid,
                    _ => std::process::id(),
                };
                // `work` handles the answers one by one.
                for job in paths.into_iter().map(|path| Job::Path(pid, path)) {
                    self.files.ask(job.ask(false), job);
                }
                return;
            }
            Found::Wants(wants) if job.is_early() && wants.image.is_empty() => return,
            Found::NotHooked { .. } if job.is_early() => return,
            Found::Known(key) => (false, Some(key), None),
            Found::Wants(wants) => {
                self.libs.add(&wants);
                let (key, path) = (wants.key, wants.path.clone());
                (self.look(pid, *wants, probes), Some(key), Some(path))
            }
            Found::NotHooked { path, reason } => {
                self.libs.add_refused(Some(&path));
                (self.report(monotonic_ns(), pid, LookOutcome::Failed { path, reason }), None, None)
            }
            Found::Python(interpreter) => {
                self.files_examined += 1;
                return self.has_python(&job, late, &interpreter);
            }
            Found::NotOpened(why) => {
                self.files_examined += 1;
                return self.not_opened(&job, late, &why);
            }
            Found::NoPython(why) => {
                if self.no_python.len() < MOST_NAMED {
                    self.no_python.insert(why);
                }
                (false, None, None)
            }
            Found::Refused(why) => {
                self.report_unread(&job, None, &why);
                return self.resume_unless(late, &job);
            }
            _ => (false, None, None),
        };
        self.files_examined += 1;
        if let Some(key) = key.filter(|_| hooked && self.everyone) {
            let path = path.clone().unwrap_or_else(|| PathBuf::from("a library"));
            self.hooked_at.entry(key).or_insert_with(|| (monotonic_ns(), path));
        }
        let Job::New(record) = job else { return };
        if let Some(key) = key.filter(|key| probes.has(key)) {
            self.names.insert(key, record.file);
        }
        let stopped = record.head.flags & wire::STOPPED != 0 && !late;
        let path = path.unwrap_or_else(|| PathBuf::from("a library"));
        let only_blocks = key.is_some_and(|key| probes.has_only_blocks(&key));
        self.report_mapped_before(&record, key, only_blocks);
        if hooked && !stopped && self.is_to_be_seen(&record) {
            self.came_late(&record, &path, only_blocks);
        } else if hooked
            && stopped
            && let Some(by) = self.resumed(&record)
        {
            self.missed(Incomplete::Resumed { what: format!("{} was being hooked", path.display()), by });
        }
        if record.head.flags & wire::NO_HOOKS != 0 && !only_blocks && key.is_some_and(|key| probes.has(&key))
        {
            self.missed(Incomplete::SharedCode { pid, path: path.display().to_string() });
        }
        if !late {
            self.mark_examined(&record);
            self.resume_after(&record);
        }
    }

    /// Marks the file as examined. If the map is full, the file is examined again, which costs only time.
    fn mark_examined(&self, record: &NewFile) {
        self.mark(record, &wire::Seen::default());
    }

    fn mark(&self, record: &NewFile, seen: &wire::Seen) {
        let no_hooks = u32::from(record.head.flags & wire::NO_HOOKS != 0);
        let seen = wire::Seen { no_hooks, ..*seen };
        let _ = self.seen.update(wire::bytes(&record.file), wire::bytes(&seen), MapFlags::ANY);
    }

    /// The file is a Python interpreter: its process's stacks have Python frames from now on.
    fn has_python(&mut self, job: &Job, late: bool, interpreter: &Interpreter) {
        let seen = self.pythons.seen(interpreter);
        match job {
            Job::New(record) => {
                self.pythons.set(record.pid, record.address, &seen);
                if !late {
                    self.mark(record, &seen);
                    self.resume_after(record);
                }
            }
            Job::Scan(pid, mapping) => {
                let segment = mapping.start.wrapping_sub(mapping.offset).wrapping_add(interpreter.offset);
                self.pythons.set(*pid, segment, &seen);
            }
            Job::Early(_) | Job::Path(..) => {}
        }
    }

    /// True if something was hooked.
    fn look(&mut self, pid: u32, wants: Wants, probes: &mut Probes) -> bool {
        let ts = monotonic_ns();
        let looked = probes.look(wants, &mut |library, probes| {
            self.send(ts, pid, MessageKind::Coming(library.clone(), probes.to_vec()));
        });
        self.report(ts, pid, looked)
    }

    /// Reports the result; `ts` is the time at which the library was announced to the worker. Returns true if
    /// something was hooked.
    fn report(&mut self, ts: u64, pid: u32, looked: LookOutcome) -> bool {
        let what = match looked {
            LookOutcome::Nothing => return false,
            LookOutcome::Hooked(library) => {
                if self.libraries.len() < LISTED {
                    self.libraries.push(Library { single_stepped: Vec::new(), ..library.clone() });
                }
                if library.beyond > 0 {
                    self.missed(Incomplete::TooManyFunctions);
                }
                if library.refused > 0 {
                    let (refused, all) = (library.refused, library.refused + library.functions);
                    let path = library.path.display().to_string();
                    self.missed(Incomplete::PartlyHooked { refused, all, path });
                }
                MessageKind::Hooked(library)
            }
            LookOutcome::Failed { path, reason } => MessageKind::Failed { path, reason },
        };
        let hooked = matches!(what, MessageKind::Hooked(_));
        self.send(ts, pid, what);
        hooked
    }

    /// Reports a file that could not be opened, if its calls may be missing. A process that has ended, or a file that
    /// is no longer mapped, needs no hooks.
    fn not_opened(&mut self, job: &Job, late: bool, why: &Unopened) {
        let ended = !proc::lives(job.pid());
        let record = match job {
            Job::New(record) => record,
            Job::Scan(_, mapping) => {
                if !ended && !why.unmapped && !why.no_library {
                    self.report_unread(job, Some(mapping.path.clone()), &why.said);
                }
                return;
            }
            Job::Early(_) | Job::Path(..) => return,
        };
        let stopped = record.head.flags & wire::STOPPED != 0 && !late;
        // If `next` stays true, the file is not marked as examined, and BPF asks again when another process maps it.
        let mut next = true;
        if !stopped && (ended || why.not_found) {
            if self.is_to_be_seen(record) {
                self.libs.add_refused(None);
                self.missed(if ended { Incomplete::Ended } else { Incomplete::Unmapped });
            } else if self.everyone {
                self.report_not_examined(record);
            }
        } else if let Some(by) = self.resumed(record).filter(|_| stopped) {
            self.libs.add_refused(None);
            self.missed(super::looking(by));
        } else {
            if !ended && !why.no_library && record.head.ts < self.ends.get() {
                self.libs.add_refused(None);
                self.missed(Incomplete::NotOpened { why: why.said.clone() });
            }
            next = ended;
        }
        if !late {
            if !next {
                self.mark_examined(record);
            }
            self.resume_after(record);
        }
    }
}
