//! Checks ordering and pairing.
//! In: what threads on several CPUs do, whether a real program can do it or not.
//! Out: panics unless no record is lost, time never goes back, calls nest and every end has its begin. A return that
//! ends no call must be one that the pairing reports: an orphan, or the return of a call older than its thread.

use std::collections::HashMap;
use std::task::Poll;

use arbitrary::{Arbitrary, Unstructured};

use gpurec::pipeline::decode::{Captured, Item, Origin, What};
use gpurec::pipeline::order::Order;
use gpurec::pipeline::pair::{Open, Outcome, Pairing, Sink};
use gpurec::wire;

const RINGS: usize = 3;
const THREADS: u32 = 6;

#[derive(Arbitrary, Debug)]
struct Step {
    ring: u8,
    thread: u8,
    /// How far the clock advances, and how far the record's time is behind it.
    passes: u8,
    behind: u8,
    seq: Seq,
    what: Doing,
}

#[derive(Arbitrary, Debug)]
enum Seq {
    Next,
    Gap(u8),
    Back(u8),
    Any(u32),
}

#[derive(Arbitrary, Debug)]
enum Doing {
    Call {
        pid: u8,
        sp: u8,
        chained: bool,
        kernel: bool,
    },
    /// A return from a call that began; 0 is the newest.
    Return {
        of: u8,
        kernel: bool,
    },
    /// A return whose call may have begun at any time at all.
    Stray {
        begin: u64,
        kernel: bool,
    },
    Instant,
    Fork {
        child: u8,
    },
    Exec {
        old: u8,
    },
    Exit {
        process: bool,
    },
    /// The reader emptied the ring.
    Read,
    Release,
}

pub fn pair(data: &[u8]) {
    let mut bytes = Unstructured::new(data);
    let mut play = Play::default();
    while !bytes.is_empty() {
        let Ok(step) = bytes.arbitrary::<Step>() else { break };
        play.step(&step);
    }
    play.end();
}

struct Play {
    order: Order,
    clock: u64,
    /// The time up to which each ring has been reported as read.
    read_to: [u64; RINGS],
    pushed: u64,
    seqs: [u32; THREADS as usize],
    begins: Vec<u64>,
    judge: Judge,
}

impl Default for Play {
    fn default() -> Play {
        Play {
            order: Order::new(RINGS),
            clock: 1000,
            read_to: [0; RINGS],
            pushed: 0,
            seqs: [0; THREADS as usize],
            begins: Vec::new(),
            judge: Judge::default(),
        }
    }
}

impl Play {
    fn step(&mut self, step: &Step) {
        let ring = usize::from(step.ring) % RINGS;
        let tid = u32::from(step.thread) % THREADS;
        self.clock += u64::from(step.passes % 8);
        // No new record is older than what was read.
        let ts = (self.clock - u64::from(step.behind % 32)).max(self.read_to[ring]);
        let pid = u32::from(step.thread) % 3;
        let origin = |kernel| Origin { kernel, ..Origin::default() };
        let what = match step.what {
            Doing::Call { pid, sp, chained, kernel } => {
                self.begins.push(ts);
                let (pid, sp) = (u32::from(pid % 4), u64::from(sp));
                What::Call {
                    pid,
                    probe: 1,
                    chained,
                    sp,
                    captured: Captured::default(),
                    origin: origin(kernel),
                    stack: None,
                }
            }
            Doing::Return { of, kernel } => {
                let at = self.begins.len().checked_sub(1 + usize::from(of));
                let begin = at.and_then(|at| self.begins.get(at)).copied().unwrap_or(0);
                self.returned(begin, kernel)
            }
            Doing::Stray { begin, kernel } => self.returned(begin, kernel),
            Doing::Instant => {
                What::Instant { pid, probe: 1, cpu: 0, duration: 0, args: [0; 6], pieces: Box::default() }
            }
            Doing::Fork { child } => What::Fork { pid, child: child.into() },
            Doing::Exec { old } => {
                What::Exec { pid, old_tid: u32::from(old) % THREADS, command: Box::default(), cut: false }
            }
            Doing::Exit { process } => What::Exit { pid, status: 0, process, left_calls: !process },
            Doing::Read => {
                let time = self.clock.saturating_sub(32).max(self.read_to[ring]);
                self.read_to[ring] = time;
                self.order.complete(ring, time);
                return;
            }
            Doing::Release => {
                let judge = &mut self.judge;
                self.order.release(&mut |item| {
                    judge.take(item);
                    Poll::Ready(())
                });
                return;
            }
        };
        let seq = self.seq(tid, &step.seq);
        self.pushed += 1;
        self.order.queue(ring).push(Item { ts, tid, seq, what });
    }

    fn returned(&self, begin: u64, kernel: bool) -> What {
        let origin = Origin { kernel, ..Origin::default() };
        What::Return { probe: 1, begin, value: begin ^ 5, pieces: Box::default(), origin }
    }

    fn seq(&mut self, tid: u32, seq: &Seq) -> u32 {
        let last = &mut self.seqs[tid as usize];
        *last = match *seq {
            Seq::Next => last.wrapping_add(1),
            Seq::Gap(by) => last.wrapping_add(2 + u32::from(by)),
            Seq::Back(by) => last.wrapping_sub(by.into()),
            Seq::Any(seq) => seq,
        };
        *last
    }

    fn end(mut self) {
        let judge = &mut self.judge;
        self.order.release_all(&mut |item| {
            judge.take(item);
            Poll::Ready(())
        });
        assert_eq!(judge.taken, self.pushed, "records went missing, or came twice");
        judge.end();
    }
}

/// What the pairing knows of a thread, computed here a second time and more simply.
#[derive(Clone, Copy)]
struct Known {
    pid: u32,
    seq: u32,
    since: u64,
    gaps: u32,
}

#[derive(Default)]
struct Judge {
    pairing: Pairing,
    taken: u64,
    last: u64,
    known: HashMap<u32, Known>,
    reported: Told,
}

/// A sink that keeps the calls that a reader of the trace takes for open.
#[derive(Default)]
struct Told {
    now: u64,
    next: u64,
    open: HashMap<u32, Vec<Begun>>,
    /// Gaps so far in the sequence of the current record's thread.
    gaps: u32,
    /// For a call: its stack pointer, and whether it was reached by a tail call.
    call: Option<(u64, bool)>,
    /// The thread known by this number ended, and no record said so.
    replaced: bool,
    /// For the current record: calls begun, ended by their return, ended otherwise.
    begun: u64,
    returned: Option<(u64, u64)>,
    closed: u64,
    instants: Vec<Option<u64>>,
}

/// A call that has not ended.
struct Begun {
    call: Open,
    gaps: u32,
    sp: u64,
}

impl Judge {
    fn take(&mut self, item: &Item) {
        assert!(item.ts >= self.last, "time went back from {} to {}", self.last, item.ts);
        (self.last, self.taken) = (item.ts, self.taken + 1);
        let gone = self.follow(item);
        let depth = |reported: &Told| reported.open.get(&item.tid).map_or(0, Vec::len);
        let (before, orphans) = (depth(&self.reported), self.pairing.orphans);
        let expected = self.expected(item, gone);
        self.reported =
            Told { now: item.ts, begun: 0, returned: None, closed: 0, ..std::mem::take(&mut self.reported) };
        self.reported.gaps = self.known.get(&item.tid).map_or(0, |known| known.gaps);
        self.reported.call = match item.what {
            What::Call { sp, chained, .. } => Some((sp, chained)),
            _ => None,
        };
        self.reported.replaced = gone;
        self.pairing.feed(item, &mut self.reported);
        let orphan = self.pairing.orphans - orphans;
        match item.what {
            What::Call { .. } => {
                assert_eq!((self.reported.begun, self.reported.returned, orphan), (1, None, 0))
            }
            What::Return { begin, value, .. } => {
                let returned = (expected == Expected::Ends).then_some((begin, value));
                assert_eq!((self.reported.begun, self.reported.returned), (0, returned), "{item:?}");
                assert_eq!(orphan, u64::from(expected == Expected::Orphan), "{item:?}");
                if matches!(expected, Expected::Orphan) && !gone {
                    assert_eq!(depth(&self.reported), before, "a return of nothing closed something");
                }
                if expected == Expected::Inherited {
                    assert_eq!(depth(&self.reported), 0, "a child is in no call of its parent's");
                }
            }
            _ => assert_eq!((self.reported.begun, self.reported.returned, orphan), (0, None, 0)),
        }
        if let What::Instant { .. } = item.what {
            let top =
                self.reported.open.get(&item.tid).and_then(|open| open.last()).map(|begun| begun.call.id);
            assert_eq!(self.reported.instants.pop(), Some(top.filter(|_| item.tid != 0)));
        }
        if matches!(item.what, What::Exit { .. } | What::Exec { .. }) {
            assert_eq!(depth(&self.reported), 0, "what is gone is in no call");
        }
    }

    /// Returns whether the thread of this number must be another one than the thread known by it.
    fn follow(&mut self, item: &Item) -> bool {
        let (pid, origin) = match item.what {
            What::Call { pid, origin, .. } => (Some(pid), origin),
            What::Return { origin, .. } => (None, origin),
            What::Exec { old_tid, .. } => {
                self.known.remove(&item.tid);
                self.known.remove(&old_tid);
                return false;
            }
            What::Exit { pid, process, .. } => {
                self.known.remove(&item.tid);
                self.known.retain(|_, known| !process || known.pid != pid);
                return false;
            }
            _ => return false,
        };
        let went_back = |known: &Known| !origin.kernel && item.seq.wrapping_sub(known.seq) as i32 <= 0;
        let other = |known: &Known| went_back(known) || pid.is_some_and(|pid| pid != known.pid);
        let gone = self.known.get(&item.tid).is_some_and(other);
        if gone {
            self.known.remove(&item.tid);
        }
        if let Some(pid) = pid {
            let fresh = Known { pid, seq: 0, since: item.ts, gaps: 0 };
            self.known.entry(item.tid).or_insert(fresh);
        }
        if let Some(known) = self.known.get_mut(&item.tid).filter(|_| !origin.kernel) {
            known.gaps += u32::from(item.seq != known.seq.wrapping_add(1));
            known.seq = item.seq;
        }
        gone
    }

    fn expected(&self, item: &Item, gone: bool) -> Expected {
        let What::Return { begin, .. } = item.what else { return Expected::Nothing };
        match self.known.get(&item.tid) {
            None => Expected::Nothing,
            Some(known) if begin < known.since => Expected::Inherited,
            Some(_) if gone => Expected::Nothing,
            Some(_) => {
                let open = self.reported.open.get(&item.tid);
                let ends = open.is_some_and(|open| open.iter().any(|begun| begun.call.ts == begin));
                if ends { Expected::Ends } else { Expected::Orphan }
            }
        }
    }

    fn end(&self) {
        let in_flight = self.pairing.in_flight();
        assert!(in_flight.is_sorted_by_key(|call| call.ts));
        let mut left: Vec<u64> = in_flight.iter().map(|call| call.id).collect();
        let mut open: Vec<u64> = self.reported.open.values().flatten().map(|begun| begun.call.id).collect();
        left.sort_unstable();
        open.sort_unstable();
        assert_eq!(left, open, "calls that neither ended nor are in flight, or both");
    }
}

/// What a return should do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// No thread is known by its number.
    Nothing,
    Ends,
    Orphan,
    /// Its call is older than the thread: the parent made it.
    Inherited,
}

impl Told {
    /// Closes the innermost call of its thread.
    fn close(&mut self, call: &Open) -> u32 {
        let top = self.open.get_mut(&call.tid).and_then(Vec::pop).expect("an end without a begin");
        let Begun { call: begun, gaps, sp } = top;
        assert_eq!((begun.id, begun.ts, begun.depth), (call.id, call.ts, call.depth), "does not nest");
        if self.call.is_some() && !self.replaced {
            assert!(self.is_gone(sp), "a call is closed in which this one may be");
        }
        gaps
    }

    /// Returns whether the new call shows that the frame is gone.
    fn is_gone(&self, frame: u64) -> bool {
        self.call.is_some_and(|(sp, chained)| if chained { frame < sp } else { frame <= sp })
    }
}

impl Sink for Told {
    fn begin(&mut self, call: &Open, _: &Captured) -> u64 {
        let gone = self.open.get(&call.tid).is_some_and(|open| open.iter().any(|b| self.is_gone(b.sp)));
        assert!(!gone, "a call is open whose frame is gone");
        let sp = self.call.expect("only a call begins").0;
        let open = self.open.entry(call.tid).or_default();
        assert_eq!(call.depth as usize, open.len(), "depth");
        assert_eq!(call.parent, open.last().map(|outer| outer.call.id), "parent");
        assert_eq!(call.ts, self.now);
        (self.next, self.begun) = (self.next + 1, self.begun + 1);
        let mut call = *call;
        call.id = self.next;
        open.push(Begun { call, gaps: self.gaps, sp });
        call.id
    }

    fn end(&mut self, ts: u64, call: &Open, outcome: Outcome, _: &[u8]) {
        assert_eq!(ts, self.now);
        let gaps = self.close(call);
        // The BPF programs do not follow calls that are nested more deeply, and a call on the Linux side ends only by
        // its return.
        let may_be_unheard = call.origin.kernel || call.depth >= wire::MAX_FRAMES;
        match outcome {
            Outcome::Returned(value) => {
                assert_eq!(self.returned, None, "one return ends one call");
                self.returned = Some((call.ts, value));
            }
            Outcome::Unwound => {
                assert!(gaps == self.gaps && !may_be_unheard, "its return may be what was lost");
            }
            Outcome::Lost => assert!(gaps != self.gaps || may_be_unheard, "nothing was lost"),
        }
        self.closed += 1;
    }

    fn died(&mut self, ts: u64, call: &Open) {
        assert_eq!(ts, self.now);
        self.close(call);
        self.closed += 1;
    }

    fn process(&mut self, _: &Item) {}

    fn instant(&mut self, _: &Item, within: Option<&Open>) {
        self.instants.push(within.map(|call| call.id));
    }
}
