//! Measures the pipeline without BPF: made rings, the worker, the file. In: how many calls of what, in how many rings.
//! Out: lines of calls a second. `scripts/bench sustained` runs it (`gpurec replay`, which --help does not list).

pub(super) mod work;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use crossbeam_channel::unbounded;
use nix::sys::resource::{UsageWho, getrusage};

use super::handoff;
use super::made_ring::MadeRing;
use super::messages::{Message, MessageKind};
use super::sink::Lines;
use super::worker::{State, Worker};
use crate::output;
use crate::probe::LossCounters;
use gpurec_trace::Header;

pub use work::Work;

pub struct Plan {
    pub work: Work,
    /// Of all rings together.
    pub calls: u64,
    /// One for each rank.
    pub rings: u32,
    pub threads: usize,
    pub output: PathBuf,
}

/// When the made records begin, in ns of CLOCK_MONOTONIC.
const START: u64 = 1_000_000_000;
const LOOK: Duration = Duration::from_millis(10);

pub fn run(plan: &Plan) -> Result<()> {
    let mut rings = Vec::new();
    for rank in 0..plan.rings {
        let bytes = work::of_rank(plan.work, rank, plan.calls / u64::from(plan.rings.max(1)), START);
        let mut ring = MadeRing::new((bytes.len() + 1).next_power_of_two().max(65536), 0)?;
        ring.fill(&bytes)?;
        rings.push(ring);
    }
    let mapped = rings.iter().map(MadeRing::map).collect::<io::Result<Vec<_>>>()?;
    let output = output::open(Some(&plan.output), SystemTime::now(), Default::default())?;
    let (sender, messages) = unbounded();
    let names = Message { ts: START, pid: 0, what: MessageKind::Names(work::probes()) };
    sender.send(names).ok().context("the pipeline ended before it had the probes")?;
    let state = Arc::new(State::default());
    state.drain();
    let (held, cpu, began) = (held()?, cpu()?, Instant::now());
    let (handoff, writer) = handoff::start(Box::new(output))?;
    let lines = Lines::new(Some(handoff.lines()), None, START).with_threads(plan.threads);
    let worker = Worker::new(mapped, lines, messages, LossCounters::none(), state);
    let worker = std::thread::Builder::new()
        .name("gpurec-work".into())
        .spawn(move || worker.run(Header::default()))?;
    let mut peak = held;
    while !worker.is_finished() {
        std::thread::sleep(LOOK);
        peak = peak.max(self::held()?);
    }
    let outcome = worker.join().ok().context("the worker panicked")?;
    writer.join()?;
    let (wall, cpu) = (began.elapsed().as_secs_f64(), self::cpu()? - cpu);
    outcome.failed.map_or(Ok(()), Err)?;
    let lines = 2 * outcome.figures.cuda_calls;
    let speed = lines as f64 / wall / 1e6;
    let peak = (peak - held) >> 20;
    writeln!(
        io::stdout(),
        "{lines} lines of calls in {wall:.3} s: {speed:.2} M lines/s, CPU {cpu:.3} s, at most {peak} MiB besides the rings"
    )?;
    Ok(())
}

/// The time of all threads on a CPU.
fn cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let all = [usage.user_time(), usage.system_time()];
    Ok(all.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum())
}

/// Bytes of memory, without the rings, which are shared.
fn held() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or_default();
    Ok(kib << 10)
}
