//! The trace does not depend on the number of threads that make its lines, nor on when they share them.

use std::fs;
use std::sync::Arc;

use crossbeam_channel::unbounded;

use super::super::made_ring::MadeRing;
use super::super::messages::{Message, MessageKind};
use super::super::pair::Pairing;
use super::super::replay::{Work, work};
use super::super::worker::{State, Worker};
use super::Random;
use super::model::{Model, Weather};
use super::sink::Folder;
use crate::probe::{LossCounters, Probe};
use gpurec_cuda as cuda;
use gpurec_trace::{Body, Finish, Header, Lost};

const START: u64 = 1000;
const ROUNDS: u64 = 30;
const NAMES: [&str; 4] = ["cuLaunchKernel", "cudaMalloc", "cuMemAlloc_v2", "cuMemFree_v2"];

fn probes() -> Vec<Probe> {
    let probe = |(id, name): (u32, &&str)| Probe {
        id,
        name: name.to_string(),
        signature: cuda::signature(name, Some(12)),
        beneath: None,
    };
    (1..).zip(&NAMES).map(probe).collect()
}

/// The trace of a random program. What happens to the lines on their way is as random, and does not depend on `threads`.
fn trace_of(seed: u64, threads: usize) -> String {
    let weather = Weather {
        lost_calls: 2 * (seed % 2),
        lost_returns: 2 * (seed % 3),
        longjmp: true,
        tail_calls: true,
        ends: !seed.is_multiple_of(4),
        forks: seed % 4 == 1,
        execs: seed % 4 == 2,
        ..Weather::default()
    };
    let mut model = Model::new(seed, weather);
    (0..4000).for_each(|_| model.step());
    let folder = Folder::new(&format!("threads-{seed}-{threads}"));
    let (lines, writer) = folder.lines(START);
    let mut lines = lines.with_threads(threads);
    lines.line(0, Body::Header(Box::default()));
    lines.add_probes(&probes());
    let (mut random, mut pairing) = (Random::new(seed), Pairing::default());
    lines.share(usize::MAX);
    for item in &model.items {
        match random.below(800) {
            0 => lines.share(0),
            1..4 => lines.share(usize::MAX),
            4 => lines.flush(),
            5 => _ = lines.line(0, Body::Lost(Lost { count: 1, by_probe: [("cuA".to_owned(), 1)].into() })),
            6 => _ = lines.summary().has_calls(1),
            7 => lines.stopped(1, item.ts, item.ts + 5),
            8 => lines.add_probes(&probes()),
            _ => {}
        }
        pairing.feed(item, &mut lines);
    }
    let end = lines.now_is(u64::MAX / 2);
    let summary = lines.summary().finish(end).to_json();
    let events = lines.written_so_far();
    lines.line(0, Body::Finish(Box::new(Finish { events, summary, ..Finish::default() })));
    lines.flush();
    assert!(lines.failed.is_none());
    drop(lines);
    writer.join().unwrap();
    fs::read_to_string(folder.trace()).unwrap()
}

#[test]
fn lines_do_not_depend_on_the_threads() {
    for seed in 0..ROUNDS {
        let one = trace_of(seed, 1);
        assert!(one.lines().count() > 3000, "seed {seed}: {}", one.lines().count());
        for threads in [2, 6] {
            assert!(one == trace_of(seed, threads), "seed {seed}: {threads} threads write another trace");
        }
    }
}

/// The trace of made rings, by the worker.
fn replayed(of: Work, rings: u32, threads: usize) -> String {
    let folder = Folder::new(&format!("replay-{of:?}-{rings}-{threads}"));
    let made: Vec<MadeRing> = (0..rings)
        .map(|rank| {
            let bytes = work::of_rank(of, rank, 40_000 / u64::from(rings), START);
            let mut ring = MadeRing::new(bytes.len().next_power_of_two().max(65536), 0).unwrap();
            ring.fill(&bytes).unwrap();
            ring
        })
        .collect();
    let (lines, writer) = folder.lines(START);
    let (sender, messages) = unbounded();
    sender.send(Message { ts: START, pid: 0, what: MessageKind::Names(work::probes()) }).unwrap();
    let state = Arc::new(State::default());
    state.cut(START + 1_000_000_000);
    state.drain();
    let mapped = made.iter().map(|ring| ring.map().unwrap()).collect();
    let worker = Worker::new(mapped, lines.with_threads(threads), messages, LossCounters::none(), state);
    let outcome = worker.run(Header::default());
    assert!(outcome.failed.is_none() && outcome.figures.complete);
    writer.join().unwrap();
    fs::read_to_string(folder.trace()).unwrap()
}

#[test]
fn a_replay_does_not_depend_on_the_threads() {
    for (of, rings) in [(Work::One, 1), (Work::Training, 8)] {
        let one = replayed(of, rings, 1);
        assert!(one.lines().count() > 80_000);
        for threads in [2, 6] {
            assert!(one == replayed(of, rings, threads), "{of:?}: {threads} threads write another trace");
        }
    }
}
