//! Pairing against the model: the sink receives only true events, whatever the program does.

use std::collections::HashMap;

use super::super::decode::{Captured, Item};
use super::super::pair::{Open, Outcome, Pairing, Sink};
use super::model::{Fate, Model, Truth, Weather, pieces_of};

#[derive(Debug)]
enum PairEvent {
    Begin(Open, Captured),
    End(u64, Open, Outcome, Box<[u8]>),
    Died(u64, Open),
}

/// Keeps the events until the judge checks them.
#[derive(Default)]
struct Log {
    events: Vec<PairEvent>,
    next: u64,
}

impl Sink for Log {
    fn begin(&mut self, call: &Open, captured: &Captured) -> u64 {
        self.events.push(PairEvent::Begin(*call, captured.clone()));
        self.next += 1;
        self.next
    }
    fn end(&mut self, ts: u64, call: &Open, outcome: Outcome, pieces: &[u8]) {
        self.events.push(PairEvent::End(ts, *call, outcome, pieces.into()));
    }
    fn died(&mut self, ts: u64, call: &Open) {
        self.events.push(PairEvent::Died(ts, *call));
    }
    fn process(&mut self, _: &Item) {}
    fn instant(&mut self, _: &Item, _: Option<&Open>) {}
}

/// Checks each event against the model.
struct Judge {
    place: String,
    model: Model,
    pairing: Pairing,
    log: Log,
    begins: u64,
    /// The calls that a reader of the trace takes for open, by tid: (begin's time, begin's id).
    open: HashMap<u32, Vec<(u64, u64)>>,
    outcomes: [u64; 4],
}

impl Judge {
    fn new(seed: u64, weather: Weather) -> Judge {
        Judge {
            place: format!("seed {seed}"),
            model: Model::new(seed, weather),
            pairing: Pairing::default(),
            log: Log::default(),
            begins: 0,
            open: HashMap::new(),
            outcomes: [0; 4],
        }
    }

    fn play(&mut self, steps: u64) {
        for _ in 0..steps {
            self.model.step();
            for item in std::mem::take(&mut self.model.items) {
                self.pairing.feed(&item, &mut self.log);
                for event in std::mem::take(&mut self.log.events) {
                    self.judge(&event, &item);
                }
            }
        }
        self.judge_end();
    }

    fn truth(&self, begin: u64) -> &Truth {
        &self.model.calls[&begin]
    }

    fn judge(&mut self, event: &PairEvent, item: &Item) {
        match event {
            PairEvent::Begin(call, captured) => self.began(call, captured),
            PairEvent::End(ts, call, outcome, pieces) => {
                assert_eq!(*ts, item.ts, "{}", self.place);
                self.ended(*ts, call, *outcome, pieces);
            }
            PairEvent::Died(ts, call) => {
                assert_eq!(*ts, item.ts, "{}", self.place);
                self.close(call);
                let lost_return = self.truth(call.ts).fate == Fate::ReturnLost;
                let unwound = self.truth(call.ts).fate == Fate::Unwound;
                let died = matches!(self.truth(call.ts).fate, Fate::Died { .. });
                assert!(died || lost_return || unwound, "{}: not dead: {call:?}", self.place);
                self.outcomes[3] += 1;
            }
        }
    }

    fn began(&mut self, call: &Open, captured: &Captured) {
        let place = &self.place;
        let truth = &self.model.calls[&call.ts];
        assert_eq!((call.pid, call.tid, call.probe), (truth.pid, truth.tid, truth.probe), "{place}");
        assert_eq!(captured, &Captured::registers(truth.args), "{place}");
        let open = self.open.entry(call.tid).or_default();
        assert_eq!(call.depth as usize, open.len(), "{place}: depth");
        assert_eq!(call.parent, open.last().map(|(_, id)| *id), "{place}: parent");
        // Every call that really encloses this one is among the open ones. Others are there only while no event shows
        // that they are gone.
        let mut around = 0;
        for (begin, _) in open.iter() {
            let other = &self.model.calls[begin];
            assert_eq!(other.thread, truth.thread, "{place}: nested in a call of another thread");
            around += u32::from(other.fate == Fate::Running);
            let hidden = if truth.chained { other.sp >= truth.sp } else { other.sp > truth.sp };
            assert!(hidden, "{place}: a call whose frame is gone is still open");
        }
        assert_eq!(around, truth.depth, "{place}: a call around it was closed");
        if let Some((begin, _)) =
            open.last().filter(|(begin, _)| self.model.calls[begin].fate == Fate::Running)
        {
            assert_eq!(Some(*begin), truth.parent, "{place}: the wrong parent");
        }
        self.begins += 1;
        open.push((call.ts, self.begins));
    }

    fn ended(&mut self, ts: u64, call: &Open, outcome: Outcome, pieces: &[u8]) {
        self.close(call);
        let truth = self.truth(call.ts);
        let lost_since = self.model.losses_of(truth.thread) > truth.losses;
        let place = format!("{}: {outcome:?}, but {:?}: {call:?}", self.place, truth.fate);
        assert!(pieces.is_empty() || matches!(outcome, Outcome::Returned(_)), "{place}");
        match outcome {
            Outcome::Returned(value) => {
                assert_eq!(truth.fate, Fate::Returned { at: ts, value }, "{place}");
                assert_eq!(pieces, &*pieces_of(value), "{place}");
            }
            Outcome::Unwound => assert_eq!(truth.fate, Fate::Unwound, "{place}"),
            Outcome::Lost => {
                assert!(matches!(truth.fate, Fate::ReturnLost | Fate::Unwound), "{place}");
                assert!(lost_since, "{place}: nothing was lost");
            }
        }
        self.outcomes[match outcome {
            Outcome::Returned(_) => 0,
            Outcome::Unwound => 1,
            Outcome::Lost => 2,
        }] += 1;
    }

    fn close(&mut self, call: &Open) {
        let top = self.open.get_mut(&call.tid).and_then(Vec::pop);
        assert_eq!(top, Some((call.ts, call.id)), "{}: does not nest", self.place);
    }

    fn judge_end(&self) {
        let place = &self.place;
        assert_eq!(self.pairing.orphans, 0, "{place}: orphans");
        let in_flight = self.pairing.in_flight();
        assert!(in_flight.is_sorted_by_key(|call| call.ts), "{place}");
        let mut named: Vec<u64> = in_flight.iter().map(|call| call.ts).collect();
        let mut open: Vec<u64> = self.open.values().flatten().map(|(ts, _)| *ts).collect();
        open.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, open, "{place}: neither ended nor in flight");
        for (begin, truth) in &self.model.calls {
            let is_open = open.contains(begin);
            match truth.fate {
                Fate::Running => assert!(is_open, "{place}: a running call is not in flight"),
                Fate::Returned { .. } => assert!(!is_open, "{place}: a returned call is in flight"),
                Fate::Died { reported: true } => assert!(!is_open, "{place}: a dead call is in flight"),
                Fate::Died { reported: false } | Fate::ReturnLost | Fate::Unwound => {}
            }
        }
        assert_eq!(self.begins as usize, self.model.calls.len(), "{place}: begins");
    }
}

/// Plays many programs. Returns the numbers of calls that returned, were unwound, were lost, and died.
fn play(weather: Weather) -> [u64; 4] {
    let mut outcomes = [0; 4];
    for frames in [false, true] {
        for seed in 0..300 {
            let mut judge = Judge::new(seed, Weather { frames, ..weather });
            judge.place = format!("seed {seed}, frames {frames}");
            judge.play(400);
            for (sum, one) in outcomes.iter_mut().zip(judge.outcomes) {
                *sum += one;
            }
        }
    }
    outcomes
}

#[test]
fn plain_calls() {
    let [returned, others @ ..] = play(Weather::default());
    assert!(returned > 10_000);
    assert_eq!(others, [0; 3]);
}

#[test]
fn tail_calls_and_longjmp() {
    let [_, unwound, lost, died] = play(Weather { tail_calls: true, longjmp: true, ..Weather::default() });
    assert!(unwound > 1000);
    assert_eq!((lost, died), (0, 0));
}

#[test]
fn losses() {
    let [_, unwound, lost, _] = play(Weather { lost_calls: 10, lost_returns: 10, ..Weather::default() });
    assert_eq!(unwound, 0);
    assert!(lost > 1000);
}

#[test]
fn losses_with_tail_calls_and_longjmp() {
    let weather = Weather { lost_calls: 8, lost_returns: 8, ..Weather::default() };
    let [_, unwound, lost, _] = play(Weather { tail_calls: true, longjmp: true, ..weather });
    assert!(unwound > 500 && lost > 500);
}

#[test]
fn threads_and_processes_end_and_numbers_come_again() {
    let weather = Weather { ends: true, execs: true, longjmp: true, tail_calls: true, ..Weather::default() };
    let [.., lost, died] = play(weather);
    assert!(died > 500 && lost == 0);
}

#[test]
fn numbers_come_again_without_an_exit_record() {
    let [.., died] = play(Weather { ends: true, lost_exits: 50, ..Weather::default() });
    assert!(died > 500);
}

#[test]
fn forks_inside_calls() {
    play(Weather { forks: true, ..Weather::default() });
}

#[test]
fn forks_inside_calls_with_longjmp_and_tail_calls() {
    let weather = Weather { forks: true, longjmp: true, tail_calls: true, ..Weather::default() };
    let [.., lost, _] = play(weather);
    assert_eq!(lost, 0);
}

#[test]
fn the_count_of_hits_begins_again_at_zero() {
    let before = u32::MAX - 20;
    let [.., lost, died] = play(Weather { hits_before: before, ..Weather::default() });
    assert_eq!((lost, died), (0, 0));
    play(Weather {
        hits_before: before,
        lost_calls: 8,
        lost_returns: 8,
        longjmp: true,
        ..Weather::default()
    });
}

#[test]
fn everything_at_once() {
    play(Weather {
        lost_calls: 5,
        lost_returns: 5,
        longjmp: true,
        tail_calls: true,
        forks: true,
        ends: true,
        execs: true,
        ..Weather::default()
    });
}
