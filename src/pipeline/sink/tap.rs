//! Clients of CUPTI in recorded processes, and the records that they are given (gpu/tap.rs). In: calls of libcupti. Out:
//! `gpu` lines with source `tap`; which process has such a client, and since when.

use std::sync::Arc;

use super::Lines;
use crate::clock::Reading;
use crate::gpu::clock::Clocks;
use crate::gpu::cupti::Activity;
use crate::gpu::join::{Account, Program};
use crate::gpu::lane::launches;
use crate::gpu::tap;
use crate::pipeline::decode::Captured;
use crate::pipeline::pair::Open;
use gpurec_cuda::semantics::kernel_name;
use gpurec_trace::GpuSource;
use gpurec_trace::hash::Map;

/// The id of a call that is no line: a record instead.
pub(super) const NO_LINE: u64 = u64::MAX;

/// How often the clocks are read.
const CLOCKS_NS: u64 = 10_000_000;
/// The most kernels' names that are kept, as the client has them.
const MOST_NAMES: usize = 1 << 16;

/// What a call of libcupti shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tapped {
    Record,
    /// Its caller becomes the client that gets records.
    TakesOver,
}

impl Tapped {
    pub(super) fn of(function: &str) -> Option<Tapped> {
        match function {
            function if tap::is_next(function) => Some(Tapped::Record),
            function if tap::takes_over(function) => Some(Tapped::TakesOver),
            _ => None,
        }
    }
}

pub struct Tapping {
    clocks: Clocks,
    names: Map<Box<[u8]>, Arc<str>>,
    /// Process and time of each call by which a client began to get records.
    pub taken: Vec<(u32, u64)>,
    /// Records that could not be read, and those with times of an unknown clock.
    pub unread: u64,
    pub other_clock: u64,
    pub records: u64,
}

impl Default for Tapping {
    fn default() -> Tapping {
        Tapping {
            clocks: Clocks::new(Reading::now()),
            names: Map::default(),
            taken: Vec::new(),
            unread: 0,
            other_clock: 0,
            records: 0,
        }
    }
}

impl Tapping {
    fn name(&mut self, name: &[u8]) -> Option<Arc<str>> {
        if name.is_empty() {
            return None;
        }
        if let Some(known) = self.names.get(name) {
            return Some(known.clone());
        }
        let readable: Arc<str> = kernel_name(name, name.len() >= tap::LONGEST_NAME).into();
        if self.names.len() < MOST_NAMES {
            self.names.insert(name.into(), readable.clone());
        }
        Some(readable)
    }

    /// On the clock of all other lines; a time that is 0 stays so. None: no clock fits.
    fn monotonic(&mut self, time: u64) -> Option<u64> {
        if time == 0 {
            return Some(0);
        }
        self.clocks.monotonic(time).or_else(|| {
            self.clocks.look(Reading::now());
            self.clocks.monotonic(time)
        })
    }
}

impl Lines {
    pub(super) fn tap(&mut self, what: Tapped, call: &Open, captured: &Captured) {
        match what {
            Tapped::TakesOver => {
                self.gpu.watch(call.pid);
                if self.gpu.everyone {
                    self.tapping.taken.push((call.pid, call.ts));
                }
            }
            Tapped::Record => match tap::record(captured.pieces()) {
                Ok(None) => {}
                Ok(Some((activity, name))) => self.tapped(call, activity, name),
                Err(()) => self.tapping.unread += 1,
            },
        }
    }

    fn tapped(&mut self, call: &Open, activity: Activity, name: &[u8]) {
        let (tapping, pid) = (&mut self.tapping, call.pid);
        if call.ts.saturating_sub(tapping.clocks.last().monotonic) > CLOCKS_NS {
            tapping.clocks.look(Reading::now());
        }
        let mut ready = Vec::new();
        let mut each = |joined| ready.push(joined);
        tapping.records += 1;
        self.gpu.watch(pid);
        let program = self.gpu.program_at(pid, call.ts);
        match activity {
            Activity::Api(mut api) => {
                let (start, end) = (tapping.monotonic(api.start), tapping.monotonic(api.end));
                let (Some(start), Some(end)) = (start, end) else { return tapping.other_clock += 1 };
                (api.start, api.end) = (start, end);
                self.gpu.api(program, &api, launches(api.is_driver, api.function), &mut each);
            }
            Activity::Work(mut work) => {
                let (start, end) = (tapping.monotonic(work.start), tapping.monotonic(work.end));
                let (Some(start), Some(end)) = (start, end) else { return tapping.other_clock += 1 };
                (work.start, work.end) = (start, end);
                let name = tapping.name(name);
                self.gpu.work(call.ts, program, work, name, &mut each);
            }
            Activity::Overhead(_) => {}
        }
        ready.into_iter().for_each(|joined| self.gpu_line(joined, GpuSource::Tap));
    }

    /// Closes the accounts of programs that ended before a time, and returns them.
    pub(in crate::pipeline) fn close_gpu_accounts(
        &mut self,
        before: u64,
        is_open: impl Fn(Program, u64) -> bool,
        source: GpuSource,
    ) -> Vec<(Program, Account)> {
        let mut late = Vec::new();
        let closed = self.gpu.close(before, is_open, &mut |joined| late.push(joined));
        late.into_iter().for_each(|joined| self.gpu_line(joined, source));
        closed
    }

    /// Writes work whose call has ended meanwhile, and work that has waited too long for its call or for its end.
    pub fn gpu_expire(&mut self, now: u64, everything: bool, source: GpuSource) {
        let mut late = Vec::new();
        self.gpu.expire(now, everything, &mut |joined| late.push(joined));
        late.into_iter().for_each(|joined| self.gpu_line(joined, source));
    }
}
