//! The budget's loop: reads the cost per thread, asks the policy, changes the hooks, and reports to the trace. In:
//! the hooks, the clock. Out: functions given up and taken back, a message for each change. It runs in the recorder's
//! own thread, between two checks for stopped processes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam_channel::Sender;

use super::policy::{Decision, Hits, Policy};
use super::rank;
use crate::clock::monotonic_ns;
use crate::pipeline::messages::{Message, MessageKind};
use crate::probe::Probes;
use crate::probe::overhead_control::{self, OverheadControl, STACKS};
use crate::wire::{Spender, Spent, StackSpent};
use gpurec_trace::{Action, Budget, Level, Why};

/// How often the counters are read: while a thread is near its budget, and while none is. A hot loop runs unchecked for
/// at most that time.
const LOOK: Duration = Duration::from_millis(20);
const CALM_LOOK: Duration = Duration::from_millis(50);
/// Counters of a thread without calls for this number of intervals are removed.
const IDLE: u32 = 50;

pub struct Governor {
    policy: Policy,
    messages: Sender<Message>,
    /// Counters by thread and function, as at the interval's beginning, and the number of intervals without a call.
    before: HashMap<(u32, u32), (Spent, u32)>,
    /// The same of stacks, by thread.
    stacks_before: HashMap<u32, (StackSpent, u32)>,
    since_ns: u64,
    looked_ns: u64,
    is_calm: bool,
    /// A hook could not be changed: no more changes are made.
    broken: bool,
    /// Functions that are given up and still hooked, until their open calls have returned.
    draining: Vec<u32>,
}

impl Governor {
    pub fn new(percent: f64, messages: Sender<Message>) -> Governor {
        let now = monotonic_ns();
        Governor {
            policy: Policy::new(percent, rank::class),
            messages,
            before: HashMap::new(),
            stacks_before: HashMap::new(),
            since_ns: now,
            looked_ns: now,
            is_calm: false,
            broken: false,
            draining: Vec::new(),
        }
    }

    /// Time until the next reading.
    pub fn rest(&self) -> Duration {
        let look = if self.is_calm { CALM_LOOK } else { LOOK };
        look.saturating_sub(Duration::from_nanos(monotonic_ns().saturating_sub(self.looked_ns)))
    }

    /// Returns an error once. The governor does nothing after it.
    pub fn look(&mut self, probes: &mut Probes) -> Result<()> {
        if self.broken || !self.rest().is_zero() {
            return Ok(());
        }
        let looked = self.look_now(probes);
        self.broken = looked.is_err();
        looked
    }

    fn look_now(&mut self, probes: &mut Probes) -> Result<()> {
        let overhead = overhead_of(probes)?;
        let reading = monotonic_ns();
        let (spent, stacks) = (overhead.spent()?, overhead.stacks_spent()?);
        let now = monotonic_ns();
        self.looked_ns = now;
        let is_drained = |function: &mut u32| !has_open_calls(*function, overhead, &spent);
        let drained: Vec<u32> = self.draining.extract_if(.., is_drained).collect();
        overhead.unhook(&drained);
        let elapsed = now.saturating_sub(self.since_ns);
        let hits = [self.hits(&spent), self.hits_of_stacks(&stacks)].concat();
        for hit in &hits {
            if let (false, Some(name)) = (self.policy.knows(hit.function), overhead.name(hit.function)) {
                self.policy.add(hit.function, name, overhead.cost(hit.function) as f64);
            }
        }
        if !self.policy.is_due(elapsed, &hits) {
            return Ok(());
        }
        let decisions = self.policy.decide(now, elapsed, &hits);
        self.is_calm =
            decisions.is_empty() && self.draining.is_empty() && self.policy.is_calm(elapsed, &hits);
        self.begin_interval(&spent, overhead);
        self.begin_interval_of_stacks(&stacks, overhead);
        // Hits from here on belong to the next interval, also those while hooks are changed, which takes a while. If
        // the interval began after that, a few hits would look like a storm.
        self.since_ns = reading;
        decisions.iter().try_for_each(|decision| self.carry_out(probes, decision))
    }

    /// Called before the hooks are removed: reports the functions that are still given up.
    pub fn finish(&self, probes: &mut Probes, ts: u64) {
        let Some(overhead) = probes.overhead() else { return };
        for function in self.policy.given_up() {
            self.report(overhead, ts, Action::End, function, [Level::Unhooked; 2], None);
        }
    }

    fn hits(&self, spent: &[(Spender, Spent)]) -> Vec<Hits> {
        let hits = |(who, now): &(Spender, Spent)| {
            let before = self.before.get(&(who.tid, who.probe)).map_or(0, |(before, _)| before.entered);
            let count = now.entered.saturating_sub(before);
            Hits { pid: now.pid, tid: who.tid, function: who.probe, count, ns: None }
        };
        // Probe 0 belongs to the calibration.
        spent.iter().filter(|(who, _)| who.probe != 0).map(hits).collect()
    }

    fn hits_of_stacks(&self, spent: &[(u32, StackSpent)]) -> Vec<Hits> {
        let hits = |(tid, now): &(u32, StackSpent)| {
            let before = self.stacks_before.get(tid).map(|(before, _)| *before).unwrap_or_default();
            let ns = Some(now.ns.saturating_sub(before.ns));
            let count = now.count.wrapping_sub(before.count).into();
            Hits { pid: now.pid, tid: *tid, function: STACKS, count, ns }
        };
        spent.iter().map(hits).collect()
    }

    fn begin_interval_of_stacks(&mut self, spent: &[(u32, StackSpent)], overhead: &OverheadControl) {
        let mut before = HashMap::with_capacity(spent.len());
        for (tid, now) in spent {
            let idle = match self.stacks_before.get(tid) {
                Some((known, idle)) if known.count == now.count => idle + 1,
                _ => 0,
            };
            if idle > IDLE {
                overhead.forget_stacks(*tid);
            } else {
                before.insert(*tid, (*now, idle));
            }
        }
        self.stacks_before = before;
    }

    fn begin_interval(&mut self, spent: &[(Spender, Spent)], overhead: &OverheadControl) {
        let mut before = HashMap::with_capacity(spent.len());
        for (who, now) in spent {
            let key = (who.tid, who.probe);
            let idle = match self.before.get(&key) {
                Some((known, idle)) if known.entered == now.entered => idle + 1,
                _ => 0,
            };
            // An entry with an open call is kept, because it shows that the call is open. A thread that was killed in
            // it does not return.
            let is_over =
                || now.returned >= now.entered || idle % IDLE == 1 && !overhead_control::lives(now, who);
            if idle > IDLE && is_over() {
                overhead.forget(who);
            } else {
                before.insert(key, (*now, idle));
            }
        }
        self.before = before;
    }

    fn carry_out(&mut self, probes: &mut Probes, decision: &Decision) -> Result<()> {
        let Decision { function, to, why } = *decision;
        let (action, before) = match to {
            _ if function == STACKS => {
                let on = to == Level::Recorded;
                overhead_of(probes)?.take_stacks(on)?;
                if on { (Action::TakeBack, Level::Unhooked) } else { (Action::GiveUp, Level::Recorded) }
            }
            Level::Recorded => {
                self.draining.retain(|draining| *draining != function);
                probes.record_again(function)?;
                (Action::TakeBack, Level::Unhooked)
            }
            _ => {
                overhead_of(probes)?.give_up(function)?;
                self.draining.push(function);
                (Action::GiveUp, Level::Recorded)
            }
        };
        let now = monotonic_ns();
        self.policy.done(now, decision);
        self.report(overhead_of(probes)?, now, action, function, [before, to], why);
        Ok(())
    }

    fn report(
        &self,
        overhead: &OverheadControl,
        ts: u64,
        action: Action,
        probe: u32,
        [before, level]: [Level; 2],
        why: Option<Why>,
    ) {
        let function = overhead.name(probe).unwrap_or("?").to_owned();
        let line = Budget { action, function, probe, level, before, counted: 0, why };
        let _ = self.messages.send(Message { ts, pid: 0, what: MessageKind::Budget(line) });
    }
}

fn overhead_of(probes: &mut Probes) -> Result<&mut OverheadControl> {
    probes.overhead().context("the hooks were made without a budget")
}

/// True if recorded calls of the function have not returned: without the hook, their ends would be missing.
fn has_open_calls(function: u32, overhead: &OverheadControl, spent: &[(Spender, Spent)]) -> bool {
    let under_way = |(who, spent): &(Spender, Spent)| match spent.entered.saturating_sub(spent.returned) {
        open if open > 0 && who.probe == function && overhead_control::lives(spent, who) => open,
        _ => 0,
    };
    let open: u64 = spent.iter().map(under_way).sum();
    open > overhead.lost(function)
}
