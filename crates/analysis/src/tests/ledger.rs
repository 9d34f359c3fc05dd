//! Compares the figures of memory with a map that computes them in the simplest way: programs allocate, free, free
//! twice, leave memory behind or free it by exiting.

use std::collections::BTreeMap;

use super::*;

const SPACES: [&str; 5] = ["device", "managed", "host", "virtual", "ipc"];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

#[derive(Clone, Copy)]
struct Selection {
    size: u64,
    begin: u64,
    at_ns: u64,
}

/// The simplest possible bookkeeping.
#[derive(Default)]
struct Model {
    /// By process, space and pointer.
    live: BTreeMap<(u32, usize, u64), Selection>,
    gone: Vec<((u32, usize, u64), Selection, u64)>,
    /// By space: allocations, their bytes, frees, their bytes.
    sums: [[u64; 4]; SPACES.len()],
    peaks: BTreeMap<u32, u64>,
}

impl Model {
    fn alloc(&mut self, key: (u32, usize, u64), kept: Selection) {
        let [count, bytes, ..] = &mut self.sums[key.1];
        (*count, *bytes) = (*count + 1, *bytes + kept.size);
        self.live.insert(key, kept);
        let counts = |space: usize| matches!(SPACES[space], "device" | "virtual");
        if counts(key.1) {
            let of_process = self.live.iter().filter(|((pid, space, _), _)| *pid == key.0 && counts(*space));
            let sum: u64 = of_process.map(|(_, kept)| kept.size).sum();
            let peak = self.peaks.entry(key.0).or_default();
            *peak = sum.max(*peak);
        }
    }

    fn free(&mut self, key: (u32, usize, u64), size: u64) {
        let [.., count, bytes] = &mut self.sums[key.1];
        (*count, *bytes) = (*count + 1, *bytes + size);
        self.live.remove(&key);
    }

    fn total(&self, pid: u32, space: usize) -> u64 {
        self.live.iter().filter(|((p, s, _), _)| (*p, *s) == (pid, space)).map(|(_, kept)| kept.size).sum()
    }

    fn exit(&mut self, pid: u32, at_ns: u64) {
        let ended: Vec<_> = self.live.keys().filter(|key| key.0 == pid).copied().collect();
        for key in ended {
            self.gone.extend(self.live.remove(&key).map(|kept| (key, kept, at_ns)));
        }
    }
}

/// One recording, and its expected result.
fn play(random: &mut Random) -> (Script, Model) {
    let (mut script, mut model) = (Script::new(), Model::default());
    for step in 0..random.below(400) {
        let pid = 100 + random.below(3) as u32;
        let space = random.below(5) as usize;
        let key = (pid, space, 0x1000 * (1 + random.below(10)));
        let at_ns = script.ns + 10;
        let mut memory = Memory {
            name: "cuMemAlloc_v2".into(),
            pid,
            tid: pid,
            begin: Some(10_000 + step),
            on: Where::default(),
            op: Op::Alloc,
            space: SPACES[space].into(),
            ptr: key.2,
            size: Some(1 + random.below(1 << 30)),
            total_allocated: Some(0),
            earlier: false,
            missed: false,
            runtime: false,
            carried: false,
            stack: None,
        };
        match random.below(20) {
            0 => {
                model.exit(pid, at_ns);
                let status = ExitStatus::Code(0);
                script.push(10, Body::Process(Process::Exit(Exit { pid, tid: pid, status })));
                continue;
            }
            // If an address is returned again, its free was not seen.
            1..=10 => {
                let (size, begin) = (memory.size.unwrap(), memory.begin.unwrap());
                model.alloc(key, Selection { size, begin, at_ns });
            }
            _ => {
                let size = model.live.get(&key).map(|kept| kept.size);
                (memory.op, memory.size) = (Op::Free, size);
                model.free(key, size.unwrap_or(0));
            }
        }
        memory.total_allocated = Some(model.total(pid, space));
        script.push(10, Body::Memory(memory));
    }
    (script, model)
}

#[test]
fn memory_is_what_a_simple_ledger_says() {
    let mut random = Random(0x9e37_79b9);
    let mut leaks = 0;
    for round in 0..400 {
        let (script, mut model) = play(&mut random);
        let mut summary = Summary::new();
        script.lines.iter().for_each(|line| summary.add(line));
        let end = script.ns + 5;
        let figures = summary.finish(end).memory;
        for pid in 100..103 {
            assert_eq!(summary.memories.peak_of(pid), model.peaks.get(&pid).copied().unwrap_or(0), "{round}");
        }
        let sum = |at: usize| model.sums.iter().map(|sums| sums[at]).sum::<u64>();
        let all = [figures.allocations, figures.allocated_bytes, figures.frees, figures.freed_bytes];
        assert_eq!(all, [sum(0), sum(1), sum(2), sum(3)], "round {round}");
        for seen in &figures.by_space {
            let space = SPACES.iter().position(|name| *name == seen.space).unwrap();
            let of_space = [seen.allocations, seen.allocated_bytes, seen.frees, seen.freed_bytes];
            assert_eq!(of_space, model.sums[space], "round {round}: {}", seen.space);
        }
        let at_exit = model.gone.len();
        (100..103).for_each(|pid| model.exit(pid, end));
        let mut left: Vec<_> = model.gone.drain(..).enumerate().collect();
        // Memory of another process is not a leak of this one.
        left.retain(|(_, ((_, space, _), ..))| SPACES[*space] != "ipc");
        left.sort_by_key(|(_, (_, kept, _))| (std::cmp::Reverse(kept.size), kept.begin));
        let expected: Vec<figures::Leak> = left
            .iter()
            .map(|(at, ((pid, space, ptr), kept, gone_ns))| figures::Leak {
                site: None,
                pid: *pid,
                space: SPACES[*space].to_owned(),
                ptr: format!("{ptr:#x}"),
                size: kept.size,
                age_ns: gone_ns - kept.at_ns,
                function: "cuMemAlloc_v2".to_owned(),
                begin: kept.begin,
                at_exit: *at < at_exit,
            })
            .collect();
        let bytes: u64 = expected.iter().map(|leak| leak.size).sum();
        assert_eq!((figures.held.count, figures.held.bytes), (expected.len() as u64, bytes), "round {round}");
        assert_eq!(figures.held.largest[..], expected[..expected.len().min(100)], "round {round}");
        leaks += expected.len();
    }
    assert!(leaks > 4000, "only {leaks} leaks");
}
