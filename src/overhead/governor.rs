//! The budget's loop: reads the cost per thread, asks the policy, changes the hooks, and reports to the trace. In:
//! the hooks, the clock. Out: changed levels, a message for each change. It runs in the recorder's own thread,
//! between two checks for stopped processes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use crossbeam_channel::Sender;

use super::policy::{Costs, Decision, Hits, Policy, is_less};
use super::rank;
use crate::clock::monotonic_ns;
use crate::pipeline::messages::{Message, Told};
use crate::probe::Probes;
use crate::probe::levers::{self, Levers};
use crate::wire::{Spender, Spent};
use gpurec_trace::{Action, Budget, Level, Why};

/// How often the counters are read. A hot loop runs unchecked for at most this long.
const LOOK: Duration = Duration::from_millis(20);
/// Counters of a thread without calls for this number of intervals are removed.
const IDLE: u32 = 50;

pub struct Governor {
    policy: Policy,
    messages: Sender<Message>,
    /// Counters by thread and function, as at the interval's beginning.
    before: HashMap<(u32, u32), Seen>,
    since_ns: u64,
    looked_ns: u64,
    /// A hook could not be changed: no more changes are made.
    broken: bool,
    /// Every function that was ever given up.
    given_up: HashMap<u32, GivenUp>,
}

struct Seen {
    spent: Spent,
    idle: u32,
}

struct GivenUp {
    function: String,
    level: Level,
    /// Counted calls that trace lines have reported.
    told: u64,
}

impl Governor {
    pub fn new(percent: f64, probes: &Probes, messages: Sender<Message>) -> Option<Governor> {
        probes.levers()?;
        let now = monotonic_ns();
        Some(Governor {
            policy: Policy::new(percent, rank::class),
            messages,
            before: HashMap::new(),
            since_ns: now,
            looked_ns: now,
            broken: false,
            given_up: HashMap::new(),
        })
    }

    /// Time until the next reading.
    pub fn rest(&self) -> Duration {
        LOOK.saturating_sub(Duration::from_nanos(monotonic_ns().saturating_sub(self.looked_ns)))
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
        let levers = levers_of(probes)?;
        let reading = monotonic_ns();
        let spent = levers.spent()?;
        let now = monotonic_ns();
        self.looked_ns = now;
        let elapsed = now.saturating_sub(self.since_ns);
        let hits = self.hits(&spent);
        for hit in &hits {
            if let (false, Some(name)) = (self.policy.knows(hit.function), levers.name(hit.function)) {
                let (recorded, counted) = levers.cost(hit.function);
                let costs = Costs { recorded_ns: recorded as f64, counted_ns: counted as f64 };
                self.policy.add(hit.function, name, costs);
            }
        }
        if !self.policy.is_due(elapsed, &hits) {
            return Ok(());
        }
        let decisions = self.policy.decide(now, elapsed, &hits);
        self.begin_interval(&spent, levers);
        // Hits from here on belong to the next interval, also those while hooks are changed, which takes a while. If
        // the interval began after that, a few hits would look like a storm.
        self.since_ns = reading;
        self.carry_out(probes, decisions, &spent)
    }

    /// Called when the hooks are gone: reports the calls counted since the last lines.
    pub fn finish(&mut self, probes: &mut Probes, ts: u64) {
        let Some(levers) = probes.levers_mut() else { return };
        let mut all: Vec<(u32, GivenUp)> = self.given_up.drain().collect();
        all.sort_by_key(|(id, _)| *id);
        for (probe, given) in all {
            let counted = levers.counted(probe) - given.told;
            if given.level == Level::Recorded && counted == 0 {
                continue;
            }
            let (function, level, before) = (given.function, given.level, given.level);
            let line = Budget { action: Action::End, function, probe, level, before, counted, why: None };
            let _ = self.messages.send(Message { ts, pid: 0, what: Told::Budget(line) });
        }
    }

    fn hits(&self, spent: &[(Spender, Spent)]) -> Vec<Hits> {
        let hits = |(who, now): &(Spender, Spent)| {
            let before = self.before.get(&(who.tid, who.probe)).map(|seen| seen.spent);
            let (recorded, counted) = before.map_or((0, 0), |spent| (spent.entered, spent.counted));
            Hits {
                pid: now.pid,
                tid: who.tid,
                function: who.probe,
                recorded: now.entered.saturating_sub(recorded),
                counted: now.counted.saturating_sub(counted),
            }
        };
        // Probe 0 belongs to the calibration.
        spent.iter().filter(|(who, _)| who.probe != 0).map(hits).collect()
    }

    fn begin_interval(&mut self, spent: &[(Spender, Spent)], levers: &Levers) {
        let mut before = HashMap::with_capacity(spent.len());
        for (who, now) in spent {
            let key = (who.tid, who.probe);
            let total = now.entered + now.counted;
            let idle = match self.before.get(&key) {
                Some(seen) if seen.spent.entered + seen.spent.counted == total => seen.idle + 1,
                _ => 0,
            };
            // An entry with an open call is kept, because it shows that the call is open.
            if idle > IDLE && now.returned >= now.entered {
                levers.forget(who);
            } else {
                before.insert(key, Seen { spent: *now, idle });
            }
        }
        self.before = before;
    }

    fn carry_out(
        &mut self,
        probes: &mut Probes,
        decisions: Vec<Decision>,
        spent: &[(Spender, Spent)],
    ) -> Result<()> {
        let levers = levers_of(probes)?;
        let ready = |d: &Decision| d.to != Level::Unhooked || !has_open_calls(d.function, levers, spent);
        let decisions: Vec<Decision> = decisions.into_iter().filter(ready).collect();
        let (mut done, mut failed, mut unhooked) = (Vec::new(), Ok(()), Vec::new());
        for decision in decisions {
            let function = decision.function;
            failed = match (decision.from, decision.to) {
                (_, Level::Unhooked) => {
                    unhooked.push(function);
                    Ok(())
                }
                // BPF still counts it only, as before it was unhooked.
                (Level::Unhooked, _) => probes.hook_again(function),
                (_, to) => levers_of(probes)?.count_only(function, to == Level::Counted),
            };
            if failed.is_err() {
                break;
            }
            self.policy.done(monotonic_ns(), &decision);
            done.push(decision);
        }
        let levers = levers_of(probes)?;
        levers.unhook(&unhooked);
        let ts = monotonic_ns();
        for decision in &done {
            self.tell(levers, decision, ts);
        }
        failed
    }

    fn tell(&mut self, levers: &Levers, decision: &Decision, ts: u64) {
        let Decision { function: probe, from: before, to: level, why } = *decision;
        let function = levers.name(probe).unwrap_or("?").to_owned();
        let new = || GivenUp { function: function.clone(), level, told: 0 };
        let given = self.given_up.entry(probe).or_insert_with(new);
        let now = levers.counted(probe);
        let counted = now - given.told;
        (given.level, given.told) = (level, now);
        let action = if is_less(level, before) { Action::GiveUp } else { Action::TakeBack };
        let why = Some(why).filter(|why: &Why| why.pid != 0);
        let line = Budget { action, function, probe, level, before, counted, why };
        let _ = self.messages.send(Message { ts, pid: 0, what: Told::Budget(line) });
    }
}

fn levers_of(probes: &mut Probes) -> Result<&mut Levers> {
    probes.levers_mut().ok_or_else(|| anyhow!("the hooks were made without a budget"))
}

/// True if recorded calls of the function have not returned: without the hook, their ends would be missing.
fn has_open_calls(function: u32, levers: &Levers, spent: &[(Spender, Spent)]) -> bool {
    let mut open = 0;
    for (who, spent) in spent.iter().filter(|(who, _)| who.probe == function) {
        let under_way = spent.entered.saturating_sub(spent.returned);
        if under_way > 0 && levers::lives(spent, who) {
            open += under_way;
        }
    }
    open > levers.lost(function)
}
