//! The traces of a made-up job, one for each rank or each host. In: bodies of lines with their true times, rank by rank.
//! Out: lines in the order of a recorder, on the host's own clocks. Not here: what the ranks do.

use std::collections::VecDeque;
use std::io::{self, Write};

use gpurec_trace::{Body, Clock, Finish, Header, Line, LineWriter, Ntp};

/// When the jobs begin, in nanoseconds since 1970.
const START_NS: i64 = 1_790_000_000_000_000_000;
/// How far back a line may refer.
const REMEMBERED: usize = 1 << 14;
const CLOCK_EVERY_NS: i64 = 10_000_000_000;

/// The clocks of one host.
#[derive(Clone, Debug)]
pub struct HostClock {
    pub host: String,
    pub boot_id: String,
    /// CLOCK_MONOTONIC at the true time 0.
    pub monotonic_ns: i64,
    /// CLOCK_REALTIME less the true time, at the true time 0.
    pub offset_ns: i64,
    pub drift_ppm: f64,
    pub ntp: Option<Ntp>,
}

impl HostClock {
    /// How far the host's clocks have run at that true time.
    fn ran(&self, true_ns: i64) -> i64 {
        true_ns + (true_ns as f64 * self.drift_ppm * 1e-6).round() as i64
    }

    pub fn realtime(&self, true_ns: i64) -> i64 {
        START_NS + self.offset_ns + self.ran(true_ns)
    }

    fn reading(&self, true_ns: i64) -> Clock {
        Clock {
            monotonic_ns: self.monotonic_ns.saturating_add(self.ran(true_ns)) as u64,
            realtime_ns: self.realtime(true_ns) as u64,
            error_ns: 60,
            boot_id: Some(self.boot_id.clone()),
            ntp: self.ntp,
            ptp: None,
        }
    }
}

/// A line that is not written yet.
struct Pending {
    /// When the recorder gets it, in true time.
    at_ns: i64,
    /// The time of the line; earlier than `at_ns` for GPU work.
    ts_ns: i64,
    slot: usize,
    /// Its number among the lines of the rank.
    local: u64,
    body: Body<'static>,
}

/// The event_ids of the last lines of one rank. The ranks number their lines from 0, each on its own.
#[derive(Default)]
struct Numbers {
    first: u64,
    ids: VecDeque<u64>,
}

impl Numbers {
    fn number(&mut self) -> u64 {
        if self.ids.len() >= REMEMBERED {
            self.ids.pop_front();
            self.first += 1;
        }
        self.ids.push_back(0);
        self.first + self.ids.len() as u64 - 1
    }

    fn wrote(&mut self, local: u64, id: u64) {
        let at = local.checked_sub(self.first).and_then(|at| self.ids.get_mut(at as usize));
        if let Some(known) = at {
            *known = id;
        }
    }

    fn id(&self, local: u64) -> u64 {
        let at = local.checked_sub(self.first).and_then(|at| self.ids.get(at as usize));
        at.copied().unwrap_or(0)
    }
}

pub struct TraceFile<W: Write> {
    out: LineWriter<W>,
    clock: HostClock,
    start_ns: i64,
    next_clock_ns: i64,
    last_ns: i64,
    next_id: u64,
    pending: Vec<Pending>,
    ranks: Vec<Numbers>,
}

impl<W: Write> TraceFile<W> {
    /// A recording that begins at that true time.
    pub fn new(out: W, clock: HostClock, start_ns: i64, ranks: usize, gpu: bool) -> io::Result<TraceFile<W>> {
        let mut file = TraceFile {
            out: LineWriter::new(out),
            start_ns,
            next_clock_ns: start_ns + CLOCK_EVERY_NS,
            last_ns: start_ns,
            next_id: 0,
            pending: Vec::new(),
            ranks: (0..ranks).map(|_| Numbers::default()).collect(),
            clock,
        };
        let real = std::time::Duration::from_nanos(file.clock.realtime(start_ns) as u64);
        let header = Header {
            schema: 1,
            version: "0.1.0".to_owned(),
            start: gpurec_trace::time::rfc3339(std::time::SystemTime::UNIX_EPOCH + real),
            host: file.clock.host.clone(),
            kernel: "6.12.0".to_owned(),
            command: Some(vec!["python3".to_owned(), "train.py".to_owned()]),
            user: "user".to_owned(),
            options: if gpu { serde_json::json!({ "gpu": "nodes" }) } else { serde_json::json!({}) },
            ns_per_call: Some(1000),
            clock: Some(file.clock.reading(start_ns)),
            ..Header::default()
        };
        file.write(start_ns, Body::Header(Box::new(header)))?;
        Ok(file)
    }

    /// Adds a line of a rank. Returns the number by which later lines of the rank refer to it.
    pub fn add(&mut self, slot: usize, ts_ns: i64, body: Body<'static>) -> u64 {
        self.add_late(slot, ts_ns, ts_ns, body)
    }

    /// Adds a line that comes after its time.
    pub fn add_late(&mut self, slot: usize, ts_ns: i64, at_ns: i64, body: Body<'static>) -> u64 {
        let local = self.ranks.get_mut(slot).map_or(0, Numbers::number);
        self.pending.push(Pending { at_ns, ts_ns, slot, local, body });
        local
    }

    /// Writes the lines up to a time, after which no rank adds earlier ones.
    pub fn flush(&mut self, until_ns: i64) -> io::Result<()> {
        // The sort is stable, so the lines of one rank keep their order.
        self.pending.sort_by_key(|line| line.at_ns);
        let ready = self.pending.partition_point(|line| line.at_ns <= until_ns);
        let ready: Vec<Pending> = self.pending.drain(..ready).collect();
        for mut line in ready {
            while self.next_clock_ns <= line.at_ns {
                let at_ns = self.next_clock_ns;
                self.next_clock_ns += CLOCK_EVERY_NS;
                self.write(at_ns, Body::Clock(Box::new(self.clock.reading(at_ns))))?;
            }
            let id = self.next_id;
            if let Some(rank) = self.ranks.get_mut(line.slot) {
                refer(&mut line.body, |local| rank.id(local));
                rank.wrote(line.local, id);
            }
            self.write(line.ts_ns, line.body)?;
        }
        Ok(())
    }

    /// The end line; its calls in flight are those of `open`, with their ranks.
    pub fn finish(mut self, at_ns: i64, open: Vec<(usize, gpurec_trace::InFlight)>) -> io::Result<W> {
        self.flush(i64::MAX)?;
        let in_flight = open.into_iter().map(|(slot, mut call)| {
            call.begin = self.ranks.get(slot).map_or(0, |rank| rank.id(call.begin));
            call
        });
        let finish = Finish {
            events: self.next_id,
            in_flight: in_flight.collect(),
            complete: true,
            summary: serde_json::json!({}),
            ..Finish::default()
        };
        self.write(at_ns.max(self.last_ns), Body::Finish(Box::new(finish)))?;
        self.out.into_inner()
    }

    fn write(&mut self, true_ns: i64, body: Body<'static>) -> io::Result<()> {
        if !matches!(body, Body::Gpu(_)) {
            self.last_ns = true_ns;
        }
        let ts_ns = self.clock.ran(true_ns) - self.clock.ran(self.start_ns);
        let event_id = self.next_id;
        self.next_id += 1;
        self.out.write(&Line { event_id, ts_ns: ts_ns.max(0) as u64, body })
    }
}

/// Replaces the numbers of a rank's lines by their event_ids.
fn refer(body: &mut Body, id: impl Fn(u64) -> u64) {
    match body {
        Body::Begin(it) => it.parent = it.parent.map(id),
        Body::End(it) => it.begin = id(it.begin),
        Body::KernelBegin(it) => it.parent = it.parent.map(id),
        Body::KernelEnd(it) => it.begin = id(it.begin),
        Body::Memory(it) => it.begin = it.begin.map(id),
        Body::Collective(it) => it.begin = id(it.begin),
        Body::Gpu(it) => it.begin = it.begin.map(id),
        _ => {}
    }
}
