//! The rings of the processes that record their GPU's work. In: rings, as processes connect; calls come through the sink.
//! Out: `gpu` lines, each when all calls before its record have been read; the account in the `end` line.
//!
//! A record is staged with the time at which it was read. When the records of the hooks are complete up to that time, the
//! call that submitted the work is known, and mostly its end too.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::account::{self, Ended};
use super::sink::Lines;
use crate::clock::monotonic_ns;
use crate::gpu::cupti::{self, Activity};
use crate::gpu::door::{Answer, Connected, Rings, Seat};
use crate::gpu::join::Program;
use crate::gpu::lane::launches;
use crate::gpu::names::{Left, Names};
use crate::gpu::overhead::Overheads;
use crate::gpu::ring::{Facts, Record, Ring, Stopped, state};
use gpurec_trace::{GpuAccount, GpuSource};

/// The most staged records. Beyond them the rings are left alone, which have room of their own.
const MOST_STAGED: usize = 1 << 17;
/// The most records read from one ring before the next ring's turn: few, so that they are written while in the cache.
const PART: usize = 2 << 10;
/// How long after a program's end its account is closed. Work waits half that time for the record of its call.
const CLOSED_AFTER_NS: u64 = 10_000_000_000;
/// How often the worker looks whether processes have ended.
const LOOK_NS: u64 = 100_000_000;

struct Staged {
    at: u64,
    pid: u32,
    /// When the process connected.
    since: u64,
    name: Option<Arc<str>>,
    activity: Activity,
}

struct Process {
    pid: u32,
    since: u64,
    ring: Ring,
    end: OwnedFd,
    _seat: Seat,
    /// When the worker noticed that the process has ended.
    gone: Option<u64>,
    names: Names,
    is_told: bool,
    /// It has ended, or runs another program: what is in the ring is all that comes.
    has_ended: bool,
    is_read: bool,
    /// Another client gets CUPTI's records.
    was_taken: bool,
}

impl Process {
    fn ended(&self, facts: Facts, is_broken: bool) -> Ended {
        let Process { pid, since, has_ended, was_taken, .. } = *self;
        Ended { pid, since, program: None, facts, has_ended, is_broken, was_taken }
    }
}

/// Prints one sentence for the user: why the GPU work of a process is not recorded.
pub type Say = Box<dyn Fn(&str) + Send>;

pub struct Gpu {
    rings: Rings,
    say: Say,
    told: Vec<(u32, i32)>,
    /// A message has reported another client of CUPTI.
    is_taken_told: bool,
    looked: u64,
    processes: Vec<Process>,
    /// The first `settled` of them have their program.
    ended: Vec<Ended>,
    settled: usize,
    staged: VecDeque<Staged>,
    overheads: Overheads,
    names_left: Left,
}

impl Gpu {
    pub fn new(rings: Rings, say: Say) -> Gpu {
        Gpu {
            rings,
            say,
            told: Vec::new(),
            is_taken_told: false,
            looked: 0,
            processes: Vec::new(),
            ended: Vec::new(),
            settled: 0,
            staged: VecDeque::new(),
            overheads: Overheads::default(),
            names_left: Left::default(),
        }
    }

    /// Takes new rings. Call this before the hooks' rings are read: a process connects before its first work.
    pub fn meet(&mut self, lines: &mut Lines) {
        for answer in self.rings.come().collect::<Vec<_>>() {
            match answer {
                Answer::Ring(connected) => self.take(connected, lines),
                Answer::Refused(pid, refusal) => {
                    let why = refusal.why();
                    (self.say)(&format!("the GPU's work in process {pid} is not recorded: {why}"));
                }
            }
        }
        self.give_way(lines);
        for (pid, at) in lines.gpu_gone.drain(..) {
            let gone = self.processes.iter_mut().filter(|known| known.pid == pid && known.since < at);
            gone.for_each(|known| known.has_ended = true);
        }
        self.look();
    }

    /// A process has one ring, its last. The one before is of an earlier program in it, or has been given up.
    fn take(&mut self, Connected { pid, at, ring, end, seat }: Connected, lines: &mut Lines) {
        lines.gpu.watch_at(pid, at);
        self.processes.iter_mut().filter(|known| known.pid == pid).for_each(|known| known.has_ended = true);
        self.processes.push(Process {
            pid,
            since: at,
            ring,
            end,
            _seat: seat,
            gone: None,
            names: Names::default(),
            is_told: false,
            has_ended: false,
            is_read: false,
            was_taken: false,
        });
    }

    /// Asks Linux which processes have ended: the record of an end may be lost, or come before the ring.
    fn look(&mut self) {
        let now = monotonic_ns();
        if now.saturating_sub(self.looked) < LOOK_NS {
            return;
        }
        self.looked = now;
        let mut ends: Vec<PollFd> =
            self.processes.iter().map(|one| PollFd::new(one.end.as_fd(), PollFlags::POLLIN)).collect();
        let _ = poll(&mut ends, PollTimeout::ZERO);
        let has_ended: Vec<bool> = ends.iter().map(|end| end.any() == Some(true)).collect();
        for (process, _) in self.processes.iter_mut().zip(has_ended).filter(|(_, has_ended)| *has_ended) {
            process.gone.get_or_insert(now);
        }
    }

    /// What the hooks recorded of these processes has been read: nothing more of them comes.
    fn end_gone(&mut self, complete_to: u64, lines: &mut Lines) {
        let is_over = |one: &&mut Process| !one.has_ended && one.gone.is_some_and(|at| at < complete_to);
        for process in self.processes.iter_mut().filter(is_over) {
            process.has_ended = true;
            lines.gpu.has_ended(process.pid, process.since, process.gone.unwrap_or(complete_to));
        }
    }

    /// Another client has begun to get the records of a process. The library's own calls come before it is on.
    fn give_way(&mut self, lines: &mut Lines) {
        for (pid, at) in lines.tapping.taken.drain(..) {
            for process in
                self.processes.iter_mut().filter(|process| process.pid == pid && !process.was_taken)
            {
                let since = process.ring.facts().since;
                if since != 0 && at > since {
                    process.was_taken = true;
                    // Nor does the library ask for records at the process's exit.
                    process.ring.stop();
                    // Once: the account at the end has all of them, and a job may start such processes without end.
                    if !std::mem::replace(&mut self.is_taken_told, true) {
                        (self.say)(&format!(
                            "another client of CUPTI in process {pid}, such as torch.profiler, gets its records from here on: gpurec records no more of its GPU's work, nor of further processes with such a client"
                        ));
                    }
                }
            }
        }
    }

    /// Reads the rings. Returns true if there was much to do.
    pub fn read(&mut self) -> bool {
        let mut is_busy = false;
        let now = monotonic_ns();
        for process in &mut self.processes {
            if self.staged.len() >= MOST_STAGED {
                return true;
            }
            if process.has_ended {
                // Its children may still have the ring.
                process.ring.close();
            }
            let (ring, names, staged) = (&mut process.ring, &mut process.names, &mut self.staged);
            let (pid, since) = (process.pid, process.since);
            let stopped = ring.read(PART, &mut |record| match record {
                Record::Name { hash, name } => names.add(hash, name, &mut self.names_left),
                Record::Activity { name, bytes } => {
                    if let Some(activity) = cupti::decode(bytes) {
                        staged.push_back(Staged { at: now, pid, since, name: names.get(name), activity });
                    }
                }
            });
            is_busy |= stopped == Stopped::Many;
            // What is half written when the process has ended never comes.
            process.is_read = process.has_ended && stopped != Stopped::Many;
            if !process.is_told && process.ring.facts().state != state::STARTING {
                process.is_told = true;
                tell(&self.say, &mut self.told, process.pid, &process.ring.facts());
            }
            if process.is_read || stopped == Stopped::Broken {
                process.is_read = true;
                process.names.forget(&mut self.names_left);
                self.ended.push(process.ended(process.ring.facts(), stopped == Stopped::Broken));
            }
        }
        self.processes.retain(|process| !process.is_read);
        is_busy
    }

    /// Writes what was read up to a time at which the hooks' records are complete.
    pub fn release(&mut self, complete_to: u64, lines: &mut Lines) {
        // Taken out while lines are written, which does not need it.
        let mut join = std::mem::take(&mut lines.gpu);
        while self.staged.front().is_some_and(|staged| staged.at < complete_to)
            && let Some(Staged { at, pid, since, name, activity }) = self.staged.pop_front()
        {
            let program = join.program_at(pid, since);
            let each = &mut |joined| lines.gpu_line(joined, GpuSource::Lane);
            match activity {
                Activity::Api(api) => {
                    let is_launch = launches(api.is_driver, api.function);
                    join.api(program, &api, is_launch, each);
                }
                Activity::Work(work) => join.work(at, program, work, name, each),
                Activity::Overhead(overhead) => self.overheads.add(&overhead),
            }
        }
        lines.gpu = join;
        if self.staged.is_empty() {
            // An empty queue starts again at the front of its buffer, which is in the cache.
            self.staged.clear();
        }
        lines.gpu_expire(monotonic_ns(), false, GpuSource::Lane);
        // Now, because the join later forgets the ends of programs.
        while let Some(one) = self.ended.get_mut(self.settled).filter(|one| one.since < complete_to) {
            one.program = Some(lines.gpu.program_at(one.pid, one.since));
            self.settled += 1;
        }
        self.end_gone(complete_to, lines);
        self.close_accounts(complete_to, lines);
    }

    /// Adds the accounts of ended programs to the totals and drops the programs: a recorder may see millions in weeks.
    fn close_accounts(&mut self, complete_to: u64, lines: &mut Lines) {
        let (processes, ended) = (&self.processes, &self.ended);
        let is_open = |program: Program, at: u64| {
            processes.iter().any(|one| one.pid == program.pid && one.since < at)
                || ended.iter().any(|one| one.pid == program.pid && one.program.is_none())
        };
        let until = complete_to.saturating_sub(CLOSED_AFTER_NS);
        for (program, own) in lines.close_gpu_accounts(until, is_open, GpuSource::Lane) {
            lines.gpu_totals.add(&own, &account::of(&self.ended, program), true);
        }
        // Those of closed programs, and those that came when their process had ended.
        self.ended.retain(|one| one.program.is_none_or(|program| lines.gpu.knows(program)));
        self.settled = self.ended.iter().take_while(|one| one.program.is_some()).count();
    }

    /// The account of the recording so far.
    pub fn so_far(&self, lines: &Lines) -> GpuAccount {
        let mut all = self.ended.clone();
        all.extend(self.processes.iter().map(|process| Ended {
            program: Some(lines.gpu.program_at(process.pid, process.since)),
            ..process.ended(process.ring.facts(), false)
        }));
        GpuAccount { overhead: self.overheads.figures(), ..account_of(&all, lines, true) }
    }

    /// The end of the recording: everything that the rings have.
    pub fn finish(&mut self, lines: &mut Lines) -> GpuAccount {
        self.meet(lines);
        // A process that runs on may write faster than this reads.
        self.processes.iter_mut().for_each(|process| process.ring.close());
        while self.read() {
            self.release(u64::MAX, lines);
        }
        self.release(u64::MAX, lines);
        lines.gpu_expire(0, true, GpuSource::Lane);
        for process in self.processes.drain(..) {
            let facts = process.ring.facts();
            self.ended.push(process.ended(facts, false));
        }
        self.release(u64::MAX, lines);
        self.so_far(lines)
    }
}

/// The account of what the tap has seen so far, where no library was loaded.
pub fn tapped(lines: &Lines) -> Option<GpuAccount> {
    lines.gpu.everyone.then_some(()).or((lines.tapping.records > 0).then_some(()))?;
    Some(account_of(&[], lines, false))
}

fn account_of(ended: &[Ended], lines: &Lines, is_lane: bool) -> GpuAccount {
    let of_tap = [("unread", lines.tapping.unread), ("other_clock", lines.tapping.other_clock)];
    lines.gpu_totals.account(ended, &lines.gpu, of_tap, is_lane)
}

/// Closes the accounts of ended programs where no library was loaded and the tap alone has records.
pub fn close_tapped(complete_to: u64, lines: &mut Lines) {
    let until = complete_to.saturating_sub(CLOSED_AFTER_NS);
    for (_, own) in lines.close_gpu_accounts(until, |_, _| false, GpuSource::Tap) {
        lines.gpu_totals.add(&own, &[], false);
    }
}

fn tell(say: &Say, told: &mut Vec<(u32, i32)>, pid: u32, facts: &Facts) {
    let reason = (facts.step, facts.result);
    if facts.state == state::OFF && !told.contains(&reason) && told.len() < 16 {
        told.push(reason);
        say(&format!("the GPU's work in process {pid} is not recorded: {}", crate::gpu::refusal::why(facts)));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, socket,
    };
    use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;
    use crate::gpu::door;
    use crate::gpu::ring::Wanted;

    #[test]
    fn the_ring_of_a_process_that_ended_at_once_is_released() {
        released(false);
        released(true);
    }

    /// A job may start such processes without end.
    #[test]
    fn that_another_client_gets_the_records_is_told_once() {
        let listening =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None).unwrap();
        bind(listening.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        listen(&listening, Backlog::new(4).unwrap()).unwrap();
        let rings = door::open(listening, Wanted::default(), 0, |_| true).unwrap();
        let (to, said) = std::sync::mpsc::channel();
        let mut gpu = Gpu::new(rings, Box::new(move |text| to.send(text.to_owned()).unwrap()));
        let mut lines = Lines::new(None, None, 0);
        for pid in [7, 8, 9] {
            let (ring, fd) = Ring::make(Wanted::default()).unwrap();
            ring.begins_at(1);
            gpu.take(Connected { pid, at: 0, ring, end: fd, seat: Arc::new(()) }, &mut lines);
            lines.tapping.taken.push((pid, 5));
            gpu.give_way(&mut lines);
        }
        assert!(gpu.processes.iter().all(|process| process.was_taken));
        let said: Vec<String> = said.try_iter().collect();
        assert!(said.len() == 1 && said[0].contains("in process 7"), "{said:?}");
    }

    /// The process has ended when its ring is made. `later`: the record of its end comes after the ring. Otherwise there
    /// is no such record.
    fn released(later: bool) {
        let make = |flags| socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let (listening, own) = (make(SockFlag::SOCK_NONBLOCK), make(SockFlag::empty()));
        // Linux chooses a name.
        bind(listening.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        let address: UnixAddr = getsockname(listening.as_raw_fd()).unwrap();
        listen(&listening, Backlog::new(4).unwrap()).unwrap();
        // SAFETY: the child makes two system calls.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let connected = connect(own.as_raw_fd(), &address).is_ok();
                // SAFETY: it does not return.
                unsafe { libc::_exit(connected.into()) }
            }
            ForkResult::Parent { child } => child,
        };
        waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let ended = monotonic_ns();
        let rings = door::open(listening, Wanted::default(), 0, |_| true).unwrap();
        let mut gpu = Gpu::new(rings, Box::new(|_| {}));
        let mut lines = Lines::new(None, None, 0);
        lines.gpu.everyone = true;
        let (mut came, begun) = (false, std::time::Instant::now());
        while !came || !gpu.processes.is_empty() {
            gpu.meet(&mut lines);
            if !came && !gpu.processes.is_empty() {
                came = true;
                if later {
                    lines.gpu.ended(child.as_raw() as u32, ended);
                }
            }
            gpu.release(monotonic_ns(), &mut lines);
            gpu.read();
            assert!(begun.elapsed().as_secs() < 60, "{came}");
        }
        // Its account is closed later.
        gpu.release(monotonic_ns() + 2 * CLOSED_AFTER_NS, &mut lines);
        assert_eq!((gpu.ended.len(), lines.gpu.programs().count()), (0, 0));
        waitpid(child, None).unwrap();
    }
}
