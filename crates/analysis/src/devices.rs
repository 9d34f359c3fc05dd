//! Figures by device. In: launches, `memory` and `transfer` lines, each with its device. Out: launches, memory and
//! copies of each device, and one more row for those without a known device.
//!
//! Device numbers are those of the process: with CUDA_VISIBLE_DEVICES the same number is another GPU in another
//! process.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::by_process::ByProcess;
use gpurec_trace::{Memory, Op, Transfer};

/// Limit on distinct devices; activity on others counts as without a device.
const MOST: usize = 256;
/// Limit on pairs of a process and a device.
const FOLLOWED: usize = 65_536;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFigures {
    /// The number that its processes use. None: calls whose device is unknown.
    pub device: Option<u32>,
    /// Number of processes that used a device of this number.
    pub processes: u64,
    pub launches: u64,
    pub graph_launches: u64,
    /// Device memory only, without `host` and `ipc`.
    pub allocations: u64,
    pub allocated_bytes: u64,
    /// The largest number of bytes held at one time, by all processes together.
    pub peak_bytes: u64,
    /// Held when its process, or the recording, ended.
    pub held_bytes: u64,
    pub transfers: u64,
    pub transferred_bytes: u64,
}

#[derive(Default)]
struct Row {
    seen: DeviceFigures,
    pids: BTreeSet<u32>,
    live: u64,
}

#[derive(Default)]
pub struct Devices {
    rows: BTreeMap<Option<u32>, Row>,
    live: ByProcess<Option<u32>, u64>,
    followed: usize,
}

impl Devices {
    fn row(&mut self, pid: u32, device: Option<u32>) -> (Option<u32>, &mut Row) {
        let has_room = self.rows.len() < MOST || self.rows.contains_key(&device);
        let device = device.filter(|_| has_room);
        let row = self.rows.entry(device).or_default();
        row.seen.device = device;
        if self.followed < FOLLOWED && row.pids.insert(pid) {
            self.followed += 1;
            row.seen.processes += 1;
        }
        (device, row)
    }

    pub fn launched(&mut self, pid: u32, device: Option<u32>, is_graph: bool) {
        let (_, row) = self.row(pid, device);
        row.seen.graph_launches += u64::from(is_graph);
        row.seen.launches += u64::from(!is_graph);
    }

    pub fn memory(&mut self, memory: &Memory) {
        if matches!(memory.space.as_ref(), "host" | "ipc") || memory.earlier {
            return;
        }
        let size = memory.size.unwrap_or(0);
        let (device, row) = self.row(memory.pid, memory.on.device);
        match memory.op {
            Op::Alloc => {
                if !memory.carried {
                    row.seen.allocations += 1;
                    row.seen.allocated_bytes = row.seen.allocated_bytes.saturating_add(size);
                }
                row.live = row.live.saturating_add(size);
                row.seen.peak_bytes = row.seen.peak_bytes.max(row.live);
                if let Some(live) = self.live.entry(memory.pid, device, FOLLOWED) {
                    *live = live.saturating_add(size);
                }
            }
            Op::Free => {
                row.live = row.live.saturating_sub(size);
                if let Some(live) = self.live.get_mut(memory.pid, &device) {
                    *live = live.saturating_sub(size);
                }
            }
        }
    }

    pub fn moved(&mut self, transfer: &Transfer) {
        let (_, row) = self.row(transfer.pid, transfer.on.device);
        row.seen.transfers += 1;
        row.seen.transferred_bytes = row.seen.transferred_bytes.saturating_add(transfer.size);
    }

    /// The process ended, or became another program: what it held is held no more.
    pub fn ended(&mut self, pid: u32) {
        for (device, live) in self.live.ended(pid) {
            let Some(row) = self.rows.get_mut(&device) else { continue };
            row.live = row.live.saturating_sub(live);
            row.seen.held_bytes = row.seen.held_bytes.saturating_add(live);
        }
    }

    /// The process ended, and has no figures of its own any more.
    pub fn fold(&mut self, pid: u32) {
        for row in self.rows.values_mut() {
            self.followed -= usize::from(row.pids.remove(&pid));
        }
    }

    /// Known devices come first. Empty if no device is known.
    pub fn finish(&self) -> Vec<DeviceFigures> {
        let figures = |row: &Row| {
            let held_bytes = row.seen.held_bytes.saturating_add(row.live);
            DeviceFigures { held_bytes, ..row.seen.clone() }
        };
        let known = self.rows.iter().filter(|(device, _)| device.is_some());
        let mut all: Vec<DeviceFigures> = known.map(|(_, row)| figures(row)).collect();
        if !all.is_empty() {
            all.extend(self.rows.get(&None).map(figures));
        }
        all
    }
}
