//! What PyTorch hands out, beside what its process holds: a part of `report memory`.
//!
//! In: `block` lines, and how much the process holds. Out: a table of processes. Blocks lie in memory that the `memory`
//! lines count already, so they are never added to it.

use super::held::{Held, Room};
use super::*;
use gpurec_trace::bounds::MOST_LIVE;
use gpurec_trace::hash::Map;
use gpurec_trace::{Block, Op};

/// Limit on processes with blocks.
const MOST: usize = 65_536;

#[derive(Default)]
pub struct Blocks {
    processes: HashMap<u32, Process>,
    room: Room,
    live: usize,
    left_out: u64,
}

#[derive(Default)]
struct Process {
    /// A free shows only the address.
    live: Map<u64, u64>,
    now: u64,
    peak: u64,
    peak_ns: u64,
    /// What the process held of `device` and `virtual` at the peak.
    held: u64,
    handed_out: Total,
    taken_back: u64,
    by_site: Held,
}

impl Blocks {
    /// `held` is what the process holds of device and virtual memory now.
    pub fn add(&mut self, ts_ns: u64, block: &Block, held: u64, site: Option<Site>) {
        let Some(process) = entry(&mut self.processes, block.pid, MOST) else {
            self.left_out += 1;
            return;
        };
        let freed = process.live.remove(&block.ptr);
        self.live -= usize::from(freed.is_some());
        process.now = process.now.saturating_sub(freed.unwrap_or(0));
        process.by_site.free(&mut self.room, block.ptr);
        if block.op == Op::Free {
            process.taken_back += 1;
            return;
        }
        let size = block.size.unwrap_or(0);
        process.handed_out.add(size);
        if self.live >= MOST_LIVE {
            self.left_out += 1;
            return;
        }
        self.live += 1;
        process.live.insert(block.ptr, size);
        process.by_site.alloc(&mut self.room, block.ptr, size, site);
        process.now = process.now.saturating_add(size);
        if process.now > process.peak {
            (process.peak, process.peak_ns, process.held) = (process.now, ts_ns, held);
            process.by_site.peaked();
        }
    }

    pub fn ended(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            self.live -= process.live.len();
            process.live.clear();
            process.now = 0;
            process.by_site.clear(&mut self.room);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub fn report(&self, report: &mut Report, stacks: &Stacks) {
        let mut all: Vec<(&u32, &Process)> = self.processes.iter().collect();
        all.sort_by_key(|(pid, process)| (std::cmp::Reverse(process.peak), **pid));
        let has_rows = report.section(
            "What PyTorch handed out, when it was most",
            Listing::new("blocks", "processes", &all)
                .count(number("PID", "pid"), |(pid, _)| **pid)
                .bytes(number("Handed out", "peak_bytes"), |(_, process)| process.peak)
                .at(number("at (s)", "peak_at_ns"), |(_, process)| process.peak_ns)
                .bytes(number("Process held", "held_bytes"), |(_, process)| positive(process.held))
                .bytes(number("In reserve", "reserve_bytes"), |(_, process)| {
                    process.held.checked_sub(process.peak)
                })
                .bytes(number("In the end", "end_bytes"), |(_, process)| process.now)
                .count(number("Blocks", "blocks"), |(_, process)| process.handed_out.count)
                .bytes(number("Bytes", "blocks_bytes").minor(), |(_, process)| process.handed_out.sum)
                .count(number("Taken back", "taken_back").minor(), |(_, process)| process.taken_back),
        );
        report.words_if(
            has_rows,
            "Process held: its `device` and `virtual` memory at that time. In reserve: the part of it that was not handed out, which PyTorch keeps for later, or which other libraries allocated. Blocks are not in the figures above.",
        );
        report.words_if(
            self.left_out > 0,
            format!("{} beyond the limit were not followed.", plural(self.left_out, "block")),
        );
        let sites = all.iter().flat_map(|(pid, process)| {
            process.by_site.at_peak().into_iter().map(move |(site, total)| (**pid, site, total))
        });
        report.section(
            "What PyTorch handed out then, by call site",
            Listing::new("blocks_by_site", "call sites", sites)
                .bytes(number("Bytes", "bytes"), |(_, _, total)| total.sum)
                .count(number("Blocks", "blocks"), |(_, _, total)| total.count)
                .count(number("PID", "pid"), |(pid, _, _)| *pid)
                .cell(long("Call site", "call_site"), |(_, site, _)| site.map(|site| stacks.text(site))),
        );
    }
}
