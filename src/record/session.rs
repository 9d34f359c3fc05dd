//! One recording from start to end, in a fixed order. The output is open before anything is hooked. The hooks are in
//! place, and root's rights given up, before the command runs. No process stays stopped. At the end, the hooks are
//! gone before the last records are read.

mod goodbye;
mod recorder;
mod serving;
mod targets;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::dumps::Dumps;
use super::live::Live;
use super::patterns::{self, Libs};
use super::place::Place;
use super::screen::{self, Screen};
use super::status::Status;
use super::target::{attached, command, environment, refuse_lib_for_others, refuse_root_for_others};
use super::tracker::Tracker;
use super::{Config, Target, devices, guarded, header, lane};
use crate::clock::{Reading, monotonic_ns};
use crate::files::{Ask, Early, Files, Side};
use crate::nvml::{Nvml, Sampling};
use crate::output::Output;
use crate::output::series::Series;
use crate::overhead::Governor;
use crate::pipeline::gpu::Gpu;
use crate::pipeline::handoff::{self, Destination, Handoff, Writer};
use crate::pipeline::messages::{Message, MessageKind};
use crate::pipeline::observer::Rows;
use crate::pipeline::sink::Lines;
use crate::pipeline::worker::{Outcome, State, Worker};
use crate::probe::control::Control;
use crate::probe::pauses::Pauses;
use crate::probe::{LossCounters, Probe, Probes, RuleTable, rings};
use crate::process::attach::{self, AttachedProcess};
use crate::process::fds;
use crate::process::guardian::Guardian;
use crate::process::identity;
use crate::process::job::Job;
use crate::process::launch::{self, GatedCommand, RunningCommand};
use crate::process::proc;
use crate::process::rights;
use crate::process::signals::{self, Mode, Recording, Signals, on_signal};
use crate::ring::Ring;
use crate::serve::top::View;
use crate::serve::{metrics, ready, top};
use gpurec_analysis as analysis;
use gpurec_cuda as cuda;
use recorder::{Recorder, Sources, prepared, start_recorder, status};

/// How often the recorder wakes when nothing happens, in ms.
const TICK: u16 = 100;

/// How long each process may take to prepare.
const PREPARATION: Duration = Duration::from_secs(5);

/// How long open calls may still return when a recording ends.
const LAST_RETURNS: Duration = Duration::from_millis(5);

/// Exit status after a signal to end while the command still runs: 128 + SIGINT, as in a shell.
const INTERRUPTED: u8 = 130;

/// The operation that failed. Linux reports only the reason.
const MAPS: &str = "gpurec cannot use its own BPF maps";
const THREAD: &str = "gpurec cannot start a thread";

struct Session<'a> {
    config: &'a Config,
    probes: Probes,
    tracker: Tracker,
    messages: Sender<Message>,
    /// Set with --budget.
    governor: Option<Governor>,
    control: Control,
    /// The trace's file. None: the trace is a descriptor of the caller's, or none is written.
    path: Option<PathBuf>,
    /// With --last.
    dumps: Option<Dumps>,
    targets: Targets,
    /// Standard error during the recording: everything that is written to it passes through here.
    screen: Screen,
    /// Of `gpurec top`.
    view: Option<View>,
}

/// The processes whose end ends the recording.
enum Targets {
    Command(RunningCommand),
    Pids(Vec<AttachedProcess>),
    All,
}

#[derive(PartialEq)]
enum EndCause {
    TargetEnded,
    Duration,
    Signal,
    SignalNow,
    WriteFailed,
}

pub fn run(config: &Config) -> Result<u8> {
    refuse_root_for_others(config)?;
    if !matches!(config.target, Target::Command(_)) {
        signals::let_in();
    }
    let user = identity::invoking_user();
    refuse_lib_for_others(config, &user)?;
    let place = Place::of(config, &user)?;
    patterns::check(&config.selection, &user)?;
    // Started first, before gpurec has threads, and descriptors that the new process would inherit.
    let files = Files::start(&user, &config.selection)
        .context("gpurec cannot start the process that reads other processes' files")?;
    let mut user_env = environment(config, &user);
    let mut nvml = devices::start(config, &user, &user_env);
    let metrics = metrics::open(&config.metrics, &user)?;
    // The slow part of making the rings runs while `host::ready` checks the machine, whose errors are reported first.
    let begun = config.settings().and_then(|settings| Ok((rings::begin(settings.ring)?, settings)));
    let plan = crate::host::ready()?;
    let (making, settings) = begun?;
    fds::raise_limit();
    let has_rank = Job::within(&user_env).rank.is_some();
    let mut lane = lane::prepare(config, &user, &mut user_env);
    // These errors come before anything is set up: a command that does not exist, a process that cannot be recorded,
    // a file that cannot be written.
    let launch = command(config, &user, user_env, place.descriptor())?;
    let attached = attached(config, &user)?;
    let mut probes = Probes::load(&settings, making, &plan, config.backend)?;
    let loss = LossCounters::new(&probes.base).context(MAPS)?;
    let pauses = Pauses::new(&probes.base).context(MAPS)?.map(Arc::new);
    let series = config.flight.map(|_| place.series(&user)).transpose()?;
    let output = if series.is_some() { None } else { place.open(config, &user)? };
    // Before any thread starts, so that every thread has them blocked.
    let mut signals = Signals::block().context("gpurec cannot block signals")?;
    let mut dumps = Dumps::prepare(config)?;
    let terminal = top::terminal(config.top.as_ref())?;
    let stderr = screen::stderr().context("gpurec cannot use its standard error")?;
    let guardian = guarded::start(&probes, terminal.as_deref())?;
    let (messages, receiver) = unbounded();
    if let Some(choice) = &config.kernel {
        let hooked = probes.hook_kernel(choice, &mut |probes| send_names(&messages, probes));
        // Metrics are served even if Xids cannot be hooked.
        hooked.or_else(|error| if choice.xids_only { Ok(()) } else { Err(error) })?;
    }
    dumps.as_ref().map(|dumps| dumps.check(&probes)).transpose()?;
    let mut tracker = Tracker::new(&probes, files.clone(), messages.clone(), pauses.clone()).context(MAPS)?;
    tracker.libs = Libs::of(&config.selection);
    let rings = probes.rings()?;
    let control = Control::open(&probes.base).context(MAPS)?;
    let stacks_side = config.stacks.as_ref().map(|_| prepared(&files, &attached));
    devices::baseline(config, nvml.as_mut(), &probes.base);
    let start = Reading::now();
    tracker.beat(true).context(MAPS)?;
    probes.follow_processes()?;
    let gated = launch.as_ref().map(launch::start).transpose()?;
    let recording = rights::Recording {
        // The tracepoint of Xids needs no more rights than other hooks.
        kernel: config.kernel.as_ref().is_some_and(|choice| !choice.xids_only),
        single_uprobes: probes.backend.is_single(),
        makes_files: series.is_some(),
    };
    rights::keep_what_recording_needs(&user, recording).context(concat!(
        "gpurec cannot give up root's rights; report this with the output of `gpurec doctor` at ",
        env!("CARGO_PKG_REPOSITORY"),
        "/issues"
    ))?;
    dumps.iter_mut().for_each(|dumps| dumps.listen(&user, config.quiet));
    let path = output.as_ref().and_then(|o| o.path.clone());
    let status = status(config, output.as_ref());
    let has_status = status.is_some();
    let screen = Screen::start(stderr, status, terminal.is_some()).context(THREAD)?;
    let targets = Targets::All;
    let (governor, view) = (None, None);
    let mut session =
        Session { config, probes, tracker, messages, governor, control, path, dumps, targets, screen, view };
    session.take_targets(gated.as_ref(), &attached)?;
    let gpu = lane
        .as_mut()
        .map(|lane| lane::serve(lane, &session.probes.base, session.screen.voice(), session.config.quiet));
    session.settle(&signals)?;
    session.probes.begin_kernel().context(MAPS)?;
    session.governor = config.budget.map(|percent| Governor::new(percent, session.messages.clone()));
    let header = header::header(config, &session.probes, &user, start);
    let serving = session.serve(metrics, &start)?;
    let gpu = gpu.transpose()?;
    let view = session.show(terminal)?;
    let recorder = start_recorder(
        (output, series),
        Sources { rings, receiver, loss, pauses, files, stacks_side, gpu, has_rank, nvml, serving, view },
        start.monotonic,
        &session,
        has_status,
        header,
    )?;
    // The start may have taken longer than the heartbeat lasts, and BPF must be able to stop the program at once.
    session.tracker.beat(true).context(MAPS)?;
    session.targets = match gated {
        Some(gated) => Targets::Command(gated.go()?),
        None if attached.is_empty() => Targets::All,
        None => Targets::Pids(attached),
    };
    session.report_ready();
    let why = session.wait(&recorder, &mut signals)?;
    // Ends the view, and so restores the terminal, before the hooks are removed, which may take long.
    session.view = None;
    // A slow detach or a slow disk may block this thread from here on: signals get a thread of their own.
    let leave = session.watch_signals(signals, &why, recorder.state.clone())?;
    let ended = session.end(recorder, &why, guardian)?;
    session.say_goodbye(&ended, &why, &leave);
    Ok(session.exit_status(&ended, &why, &leave))
}

struct RecordingEnd {
    outcome: Outcome,
    write_error: Option<io::Error>,
}

impl Session<'_> {
    /// Runs until the recording is over. Resumes stopped processes and forwards signals.
    fn wait(&mut self, recorder: &Recorder, signals: &mut Signals) -> Result<EndCause> {
        let deadline = self.config.duration.map(|duration| Instant::now() + duration);
        let tick = Duration::from_millis(TICK.into());
        let mut ticked = None;
        loop {
            // --budget wakes this thread more often than its housekeeping needs.
            let is_tick = ticked.is_none_or(|at: Instant| at.elapsed() >= tick);
            if is_tick {
                // If this fails, BPF stops no more processes, and calls that this misses are reported.
                let _ = self.tracker.beat(true);
            }
            self.sleep(deadline, signals)?;
            self.tracker.work(&mut self.probes);
            if self.handle_control() == 0 && is_tick {
                self.tracker.release_overdue(false);
                ticked = Some(Instant::now());
            }
            self.tracker.follow_rewritten(&mut self.probes);
            self.tracker.tidy(&mut self.probes);
            self.govern();
            if is_tick {
                self.follow_modules();
            }
            self.ask_for_dumps();
            if let Some(why) = self.handle_signals(signals)? {
                return Ok(why);
            }
            if self.target_ended() {
                return Ok(EndCause::TargetEnded);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(EndCause::Duration);
            }
            if self.view.as_ref().is_some_and(View::is_over) {
                return Ok(EndCause::Signal);
            }
            if recorder.writer.as_ref().is_some_and(Writer::has_failed) || recorder.worker.is_finished() {
                return Ok(EndCause::WriteFailed);
            }
        }
    }

    /// Reports to systemd that the recording has begun. If that fails, the recording continues.
    fn report_ready(&mut self) {
        if matches!(self.targets, Targets::Command(_)) {
            return;
        }
        if let Err(error) = ready::report() {
            self.screen
                .line(&format!("gpurec cannot report to systemd that it is ready: NOTIFY_SOCKET: {error}"));
        }
    }

    fn ask_for_dumps(&mut self) {
        for cause in self.dumps.iter_mut().flat_map(Dumps::asked) {
            let _ =
                self.messages.send(Message { ts: monotonic_ns(), pid: 0, what: MessageKind::Dump(cause) });
        }
    }

    fn govern(&mut self) {
        let Some(governor) = &mut self.governor else { return };
        if let Err(error) = governor.look(&mut self.probes) {
            self.screen.line(&format!("gpurec can no longer keep to --budget: {error:#}"));
        }
    }

    fn follow_modules(&mut self) {
        let messages = &self.messages;
        match self.probes.refresh_kernel(&mut |probes| send_names(messages, probes)) {
            Ok(None) => {}
            Ok(Some(change)) => {
                let what = MessageKind::Module(change);
                let _ = self.messages.send(Message { ts: monotonic_ns(), pid: 0, what });
            }
            // The recording continues without these hooks.
            Err(error) if !self.config.quiet => {
                self.screen.line(&format!(
                    "gpurec cannot hook an nvidia module that was loaded or unloaded just now: {error:#}"
                ));
            }
            Err(_) => {}
        }
    }

    fn sleep(&self, deadline: Option<Instant>, signals: &Signals) -> Result<()> {
        let left = deadline.map_or(u16::MAX, |deadline| {
            (deadline.saturating_duration_since(Instant::now()).as_millis() as u16).saturating_add(1)
        });
        let fds = [self.control.fd(), signals.as_fd()].into_iter();
        let fds = fds.chain(self.probes.rewritten_fd()).chain(self.tracker.fds()).chain(self.ends());
        let fds = fds.chain(self.dumps.iter().flat_map(Dumps::fds));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let rest = self.governor.as_ref().map_or(TICK, |governor| governor.rest().as_millis() as u16 + 1);
        match poll(&mut fds, PollTimeout::from(left.min(rest))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(anyhow!("poll: {errno}")),
        }
    }

    fn ends(&self) -> Vec<BorrowedFd<'_>> {
        match &self.targets {
            Targets::Command(running) => vec![running.as_fd()],
            // A process that has ended would wake the poll forever.
            Targets::Pids(pids) => pids
                .iter()
                .map(|one| &one.pidfd)
                .filter(|fd: &&OwnedFd| !proc::pidfd_ended(fd.as_raw_fd(), 0))
                .map(AsFd::as_fd)
                .collect(),
            Targets::All => Vec::new(),
        }
    }

    fn target_ended(&mut self) -> bool {
        match &mut self.targets {
            Targets::Command(running) => running.wait_for(0).is_some(),
            Targets::Pids(pids) => pids.iter().all(|one| proc::pidfd_ended(one.pidfd.as_raw_fd(), 0)),
            Targets::All => false,
        }
    }

    fn handle_control(&mut self) -> usize {
        let records = self.control.take();
        for record in &records {
            self.tracker.new_file(record, &mut self.probes);
        }
        records.len()
    }

    fn handle_signals(&mut self, signals: &mut Signals) -> Result<Option<EndCause>> {
        let mode = if matches!(self.targets, Targets::Command(_)) { Mode::Launch } else { Mode::Attach };
        while let Some((count, signal)) = signals.read()? {
            let action = on_signal(mode, count, signal);
            if let (Some(number), Targets::Command(running)) = (action.forward, &self.targets) {
                let _ = running.signal(number);
            }
            match action.recording {
                Recording::Continue => {}
                Recording::End => return Ok(Some(EndCause::Signal)),
                Recording::EndNow | Recording::Abandon => return Ok(Some(EndCause::SignalNow)),
            }
        }
        Ok(None)
    }

    /// Handles signals while the recording ends. A command that still runs gets them. The rings are left unread if
    /// there is no command to forward the signal to, or at the second signal. The result is true once a signal has asked
    /// gpurec to end without waiting.
    fn watch_signals(
        &mut self,
        signals: Signals,
        why: &EndCause,
        state: Arc<State>,
    ) -> Result<Arc<AtomicBool>> {
        let by_signal = matches!(why, EndCause::Signal | EndCause::SignalNow);
        let leave = Arc::new(AtomicBool::new(by_signal));
        let flag = leave.clone();
        let command = match &self.targets {
            Targets::Command(running) if *why != EndCause::TargetEnded => {
                Some(running.as_fd().try_clone_to_owned()?)
            }
            _ => None,
        };
        let watched = signals.watch(move |count, signal| {
            let action = on_signal(Mode::Launch, count, signal);
            if let (Some(number), Some(command)) = (action.forward, &command) {
                let _ = proc::pidfd_signal(command.as_raw_fd(), number);
            }
            if command.is_none() || count >= 2 {
                state.stop();
                flag.store(true, Ordering::Release);
            }
        });
        // The recording still ends in order.
        if let (Err(error), false) = (watched, self.config.quiet) {
            self.screen.line(&format!("{THREAD} for signals ({error}): the next signal ends gpurec at once"));
        }
        Ok(leave)
    }

    /// Ends the recording: stops no more processes, resumes those that are stopped, detaches, drains the rings,
    /// writes the end.
    fn end(&mut self, recorder: Recorder, why: &EndCause, guardian: Guardian) -> Result<RecordingEnd> {
        // BPF stops no process from here on. Stopped processes resume before the hooks are removed, which can take
        // long.
        self.tracker.beat(false).context(MAPS)?;
        self.probes.returns_only().context(MAPS)?;
        self.handle_control();
        self.tracker.finish(&mut self.probes);
        self.tracker.release_overdue(true);
        std::thread::sleep(LAST_RETURNS);
        self.probes.silence().context(MAPS)?;
        let clock = crate::host::clock::now();
        let cut = clock.monotonic_ns;
        recorder.state.cut(cut);
        let _ = self.messages.send(Message::clock(clock));
        recorder.sampling.iter().for_each(Sampling::last);
        if let Some(long) = self.probes.slow_stop().filter(|t| t.as_secs() >= 2 && !self.config.quiet) {
            self.screen.line(&format!(
                "removing the hooks one by one takes about {} s (Linux 6.6 and newer removes them at once)",
                long.as_secs()
            ));
        }
        self.probes.missed().into_iter().for_each(|missed| drop(self.messages.send(Message::missed(missed))));
        if let Some(governor) = &self.governor {
            governor.finish(&mut self.probes, cut);
        }
        let attached = self.probes.attached();
        let took = self.probes.detach();
        if self.config.verbose {
            self.screen.line(&format!("detached {attached} functions in {:.1} ms", took.as_secs_f64() * 1e3));
        }
        // A BPF program that was still running may have stopped a process.
        self.handle_control();
        self.tracker.finish(&mut self.probes);
        self.tracker.release_overdue(true);
        for missed in self.tracker.libs.missed() {
            let _ = self.messages.send(Message::missed(missed));
        }
        drop(recorder.sampling);
        guardian.dismiss(self.probes.take_process_links());
        match why {
            EndCause::SignalNow => recorder.state.stop(),
            _ => recorder.state.drain(),
        }
        let worker = recorder.worker.join();
        let mut outcome = worker.map_err(|_| anyhow!("gpurec's worker thread panicked"))?;
        recorder.pusher.into_iter().for_each(metrics::Pusher::finish);
        let reader_left =
            |error: &io::Error| self.path.is_none() && error.kind() == io::ErrorKind::BrokenPipe;
        let mut write_error = recorder.writer.and_then(|writer| writer.join().err());
        if let Some(error) = &write_error {
            outcome.figures.not_written(error);
        }
        // After the file, because a terminal may be slow.
        self.screen.finish();
        outcome.hint.iter().filter(|_| !self.config.quiet).for_each(|hint| crate::ui::say(hint));
        if write_error.as_ref().is_some_and(reader_left) {
            // The reader closed gpurec's standard output. As for any filter, this is no error.
            (write_error, outcome.failed) = (None, None);
        }
        Ok(RecordingEnd { outcome, write_error })
    }

    fn exit_status(&mut self, ended: &RecordingEnd, why: &EndCause, leave: &AtomicBool) -> u8 {
        let failed = ended.write_error.is_some() || ended.outcome.failed.is_some();
        let status = match (&mut self.targets, why) {
            (Targets::Command(_), EndCause::Signal | EndCause::SignalNow) => INTERRUPTED,
            (Targets::Command(running), _) => wait_for_command(running, leave),
            _ => 0,
        };
        if failed { gpurec_analysis::FAILED } else { status }
    }
}

/// Waits for the command, as its caller would, after the recording has ended.
fn wait_for_command(running: &mut RunningCommand, leave: &AtomicBool) -> u8 {
    loop {
        if let Some(exit) = running.wait_for(100) {
            return exit.code();
        }
        if leave.load(Ordering::Acquire) {
            return INTERRUPTED;
        }
    }
}

/// Sends the names of probes to the worker before one of them can be hit.
fn send_names(messages: &Sender<Message>, probes: &[Probe]) {
    // This fails only if the worker has ended.
    let _ = messages.send(Message { ts: 0, pid: 0, what: MessageKind::Names(probes.to_vec()) });
}
