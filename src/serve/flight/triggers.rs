//! The events of `--dump-on`. In: the lines of a recording, failed calls, calls that are open, signals, the time. Out:
//! when a dump is due, and why. There is at most one dump for signals and one for other events in each `GAP`: the first
//! of them in it waits for its end, further ones are only counted. While a dump is not written yet, none is due: a
//! machine that has no time for dumps does not pile them up, and the recording can end. Pure. Not here: `gpurec dump`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::pipeline::observer::{Alarms, Cause};
use gpurec_analysis::is_shutdown;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::entry;
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, End, ExitStatus, InFlight, Level, Line, Process, Retval, signal_name};

/// The least time between two dumps for events.
pub const GAP: Duration = Duration::from_secs(10);
/// The most processes that are followed.
const MOST: usize = 65_536;

/// What to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub error: bool,
    pub xid: bool,
    pub hang: Option<Duration>,
    pub exit: bool,
    /// SIGUSR1.
    pub signal: bool,
}

impl Events {
    pub const NAMES: &str = "error, xid, hang=SECS, exit, signal";
}

/// Events of which at most one in each gap has a dump.
#[derive(Default)]
struct Paced {
    gap_ns: u64,
    next_ns: u64,
    waiting: Option<Cause>,
    /// Events since the last dump that get none of their own.
    suppressed: u64,
}

impl Paced {
    fn add(&mut self, cause: Cause) {
        if self.waiting.is_some() {
            self.suppressed += 1;
        } else {
            self.waiting = Some(cause);
        }
    }

    fn due(&mut self, now_ns: u64) -> Option<(Cause, u64)> {
        if now_ns < self.next_ns {
            return None;
        }
        let cause = self.waiting.take()?;
        self.next_ns = now_ns.saturating_add(self.gap_ns);
        Some((cause, std::mem::take(&mut self.suppressed)))
    }

    fn left(&self) -> u64 {
        self.suppressed + u64::from(self.waiting.is_some())
    }
}

#[derive(Default)]
pub struct Triggers {
    on: Events,
    events: Paced,
    /// Apart from the others, so that a signal has its dump soon, whatever happens in the programs.
    signals: Paced,
    now_ns: u64,
    /// The last dump is not written yet.
    is_busy: Arc<AtomicBool>,
    /// Processes that made calls, with the time of the last launch; none once a pause after it was reported.
    launched: Map<u32, Option<u64>>,
    /// Launching functions that `--budget` does not record: launches may go unseen.
    unseen: HashSet<String>,
    /// Open calls that were reported.
    reported: HashSet<u64>,
}

impl Triggers {
    pub fn new(on: Events, gap: Duration) -> Triggers {
        let paced = || Paced { gap_ns: nanos(gap), ..Paced::default() };
        Triggers { on, events: paced(), signals: paced(), ..Triggers::default() }
    }

    fn report(&mut self, event: &'static str, because: String) {
        self.events.add(Cause::new(event, because));
    }

    fn process(&mut self, process: &Process) {
        match process {
            Process::Exit(exit) => {
                let used = self.launched.remove(&exit.pid).is_some();
                if used && self.on.exit && exit.status != ExitStatus::Code(0) {
                    let how = match exit.status {
                        ExitStatus::Code(code) => format!("ended with status {code}"),
                        ExitStatus::Signal(number) => format!("was killed by {}", signal_name(number)),
                    };
                    self.report("exit", format!("process {} {how}", exit.pid));
                }
            }
            Process::Exec(exec) => _ = self.launched.remove(&exec.pid),
            _ => {}
        }
    }

    /// Reports the processes that no longer launch.
    fn idle(&mut self, now_ns: u64, most_ns: u64) {
        if !self.unseen.is_empty() {
            return;
        }
        let mut idle: Vec<u32> = Vec::new();
        for (pid, last) in &mut self.launched {
            if last.is_some_and(|last| now_ns.saturating_sub(last) >= most_ns) {
                *last = None;
                idle.push(*pid);
            }
        }
        idle.sort_unstable();
        for pid in idle {
            let seconds = most_ns / 1_000_000_000;
            self.report("hang", format!("process {pid} has launched nothing for {seconds} s"));
        }
    }
}

impl Alarms for Triggers {
    fn line(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) if self.on.exit || self.on.hang.is_some() => {
                if let Some(last) = entry(&mut self.launched, begin.pid, MOST)
                    && begin.launch.is_some()
                {
                    *last = Some(line.ts_ns);
                }
            }
            Body::Process(process) => self.process(process),
            Body::Xid(xid) if self.on.xid => {
                self.report("xid", format!("the driver reported Xid {} on {}", xid.xid, xid.device));
            }
            Body::Budget(budget) if launches(&budget.function) => {
                if budget.level == Level::Recorded {
                    self.unseen.remove(&budget.function);
                    // Launches went unseen until now.
                    self.launched.values_mut().for_each(|last| *last = None);
                } else {
                    self.unseen.insert(budget.function.clone());
                }
            }
            _ => {}
        }
    }

    fn failed(&mut self, end: &End) {
        let Some(error) = end.error.as_deref().filter(|error| self.on.error && !is_shutdown(error)) else {
            return;
        };
        let code = match end.retval {
            Some(Retval::Number(code)) => format!(" ({code})"),
            _ => String::new(),
        };
        self.report("error", format!("{} failed with {error}{code} in process {}", end.name, end.pid));
    }

    fn look(&mut self, now_ns: u64, open: &mut dyn Iterator<Item = InFlight>) {
        self.now_ns = now_ns;
        let Some(most_ns) = self.on.hang.map(nanos) else { return };
        let mut reported = HashSet::new();
        for call in open.filter(|call| call.duration_ns >= most_ns) {
            reported.insert(call.begin);
            if !self.reported.contains(&call.begin) {
                let (seconds, name) = (call.duration_ns / 1_000_000_000, &call.name);
                self.report("hang", format!("{name} of process {} has been open for {seconds} s", call.pid));
            }
        }
        self.reported = reported;
        self.idle(now_ns, most_ns);
    }

    fn signalled(&mut self, cause: Cause) {
        self.signals.add(cause);
    }

    fn due(&mut self, now_ns: u64) -> Option<(Cause, u64)> {
        if self.is_busy.load(Ordering::Acquire) {
            return None;
        }
        let (mut cause, suppressed) = self.signals.due(now_ns).or_else(|| self.events.due(now_ns))?;
        let until_written = Busy::new(&self.is_busy);
        cause.reply = Some(Box::new(move |_| drop(until_written)));
        Some((cause, suppressed))
    }

    fn left(&self) -> u64 {
        self.signals.left() + self.events.left()
    }
}

/// A dump that is not written yet. Dropped when it is, or when there will be none.
pub(super) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(super) fn new(flag: &Arc<AtomicBool>) -> Busy {
        flag.store(true, Ordering::Release);
        Busy(flag.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn launches(function: &str) -> bool {
    let traits = FunctionTraits::of(function);
    traits.is_kernel_launch() || traits.is_graph_launch()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_trace::{Begin, Budget, Exit, Launch, Xid};

    const SECOND: u64 = 1_000_000_000;

    fn all() -> Triggers {
        let on =
            Events { error: true, xid: true, hang: Some(Duration::from_secs(30)), exit: true, signal: false };
        Triggers::new(on, GAP)
    }

    fn begin(pid: u32, launches: bool) -> Body<'static> {
        Body::Begin(Begin {
            name: "cuLaunchKernel".into(),
            pid,
            tid: pid,
            depth: 0,
            parent: None,
            args: gpurec_trace::Args::default(),
            stack: None,
            launch: launches.then(Launch::default),
            no_return: None,
            carried: false,
        })
    }

    fn line(triggers: &mut Triggers, ts_ns: u64, body: Body) {
        triggers.line(&Line { event_id: 1, ts_ns, body });
    }

    fn due(triggers: &mut Triggers, now_ns: u64) -> Option<(&'static str, String, u64)> {
        triggers.due(now_ns).map(|(cause, suppressed)| (cause.event, cause.because, suppressed))
    }

    fn exits(triggers: &mut Triggers, pid: u32, status: ExitStatus) {
        line(triggers, 0, Body::Process(Process::Exit(Exit { pid, tid: pid, status })));
    }

    #[test]
    fn none_is_due_while_a_dump_is_being_written() {
        let mut triggers = all();
        let fails = |triggers: &mut Triggers, pid| {
            line(triggers, 0, begin(pid, false));
            exits(triggers, pid, ExitStatus::Code(1));
        };
        fails(&mut triggers, 1);
        let (cause, _) = triggers.due(1).unwrap();
        fails(&mut triggers, 2);
        fails(&mut triggers, 3);
        assert!(triggers.due(100 * SECOND).is_none());
        cause.reply.unwrap()(Ok("dump".into()));
        let (cause, suppressed) = triggers.due(100 * SECOND).unwrap();
        assert_eq!((&*cause.because, suppressed), ("process 2 ended with status 1", 1));
        // A request that gets lost holds nothing up.
        drop(cause);
        fails(&mut triggers, 4);
        assert!(triggers.due(200 * SECOND).is_some());
    }

    #[test]
    fn each_event_is_due_once() {
        let mut triggers = all();
        assert_eq!(due(&mut triggers, 0), None);
        let end = |error: &'static str| End {
            name: "cudaMalloc".into(),
            pid: 7,
            error: Some(error.into()),
            retval: Some(Retval::Number(2)),
            ..End::default()
        };
        triggers.failed(&end("cudaErrorCudartUnloading"));
        assert_eq!(due(&mut triggers, 0), None, "after the shutdown of the driver");
        triggers.failed(&end("cudaErrorMemoryAllocation"));
        let (event, because, _) = due(&mut triggers, 1).unwrap();
        assert_eq!(
            (event, &*because),
            ("error", "cudaMalloc failed with cudaErrorMemoryAllocation (2) in process 7")
        );
        assert_eq!(due(&mut triggers, 100 * SECOND), None);
        let xid = Xid { pid: 0, tid: 0, xid: 79, message: "".into(), device: "0000:01:00".into() };
        line(&mut triggers, 0, Body::Xid(xid));
        assert_eq!(due(&mut triggers, 100 * SECOND).unwrap().0, "xid");
        exits(&mut triggers, 8, ExitStatus::Code(1));
        line(&mut triggers, 0, begin(8, false));
        exits(&mut triggers, 8, ExitStatus::Code(0));
        assert_eq!(due(&mut triggers, 200 * SECOND), None, "of a process without calls, or that ended well");
        line(&mut triggers, 0, begin(8, false));
        exits(&mut triggers, 8, ExitStatus::Signal(11));
        assert_eq!(due(&mut triggers, 200 * SECOND).unwrap().1, "process 8 was killed by SIGSEGV");
    }

    #[test]
    fn a_gap_has_one_dump_and_the_first_event_waits_for_its_end() {
        let mut triggers = all();
        for pid in 1..5 {
            line(&mut triggers, 0, begin(pid, false));
        }
        exits(&mut triggers, 1, ExitStatus::Code(1));
        assert_eq!(due(&mut triggers, SECOND).unwrap().2, 0);
        (2..5).for_each(|pid| exits(&mut triggers, pid, ExitStatus::Code(1)));
        assert_eq!(due(&mut triggers, 10 * SECOND), None);
        let (_, because, suppressed) = due(&mut triggers, 11 * SECOND).unwrap();
        assert_eq!((&*because, suppressed), ("process 2 ended with status 1", 2));
        assert_eq!(due(&mut triggers, 100 * SECOND), None);
    }

    #[test]
    fn signals_share_dumps_of_their_own() {
        let mut triggers = all();
        let signal = |triggers: &mut Triggers| {
            triggers.signalled(Cause::new("signal", "process 5 sent SIGUSR1".to_owned()));
        };
        line(&mut triggers, 0, begin(1, false));
        exits(&mut triggers, 1, ExitStatus::Code(1));
        assert_eq!(due(&mut triggers, SECOND).unwrap().0, "exit");
        signal(&mut triggers);
        assert_eq!(due(&mut triggers, 2 * SECOND).unwrap().0, "signal", "it does not wait for other events");
        (0..50).for_each(|_| signal(&mut triggers));
        assert_eq!((due(&mut triggers, 11 * SECOND), triggers.left()), (None, 50));
        let (event, _, suppressed) = due(&mut triggers, 12 * SECOND).unwrap();
        assert_eq!((event, suppressed, triggers.left()), ("signal", 49, 0));
    }

    #[test]
    fn a_call_that_does_not_return_and_a_process_that_launches_no_more() {
        let mut triggers = all();
        let call = |begin, seconds| InFlight {
            pid: 3,
            tid: 3,
            name: "cuCtxSynchronize".into(),
            begin,
            duration_ns: seconds * SECOND,
            died: false,
        };
        triggers.look(40 * SECOND, &mut [call(1, 29), call(2, 30)].into_iter());
        let (event, because, _) = due(&mut triggers, 40 * SECOND).unwrap();
        assert_eq!((event, &*because), ("hang", "cuCtxSynchronize of process 3 has been open for 30 s"));
        triggers.look(60 * SECOND, &mut [call(2, 50)].into_iter());
        assert_eq!(due(&mut triggers, 60 * SECOND), None, "it is reported already");
        line(&mut triggers, 61 * SECOND, begin(4, true));
        line(&mut triggers, 62 * SECOND, begin(4, false));
        triggers.look(90 * SECOND, &mut std::iter::empty());
        assert_eq!(due(&mut triggers, 90 * SECOND), None);
        triggers.look(91 * SECOND, &mut std::iter::empty());
        assert_eq!(due(&mut triggers, 91 * SECOND).unwrap().1, "process 4 has launched nothing for 30 s");
        triggers.look(300 * SECOND, &mut std::iter::empty());
        assert_eq!(due(&mut triggers, 300 * SECOND), None);
        let budget = |level| {
            Body::Budget(Budget {
                action: gpurec_trace::Action::GiveUp,
                function: "cuLaunchKernel".into(),
                probe: 1,
                level,
                before: Level::Recorded,
                counted: 0,
                why: None,
            })
        };
        line(&mut triggers, 301 * SECOND, begin(4, true));
        line(&mut triggers, 302 * SECOND, budget(Level::Unhooked));
        triggers.look(400 * SECOND, &mut std::iter::empty());
        assert_eq!(due(&mut triggers, 400 * SECOND), None, "launches are not seen");
        line(&mut triggers, 500 * SECOND, budget(Level::Recorded));
        triggers.look(501 * SECOND, &mut std::iter::empty());
        assert_eq!(due(&mut triggers, 501 * SECOND), None, "nor is it known when the last was");
    }
}
