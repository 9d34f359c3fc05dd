//! Turns `transfer` lines into figures.

use std::sync::Arc;

use super::figures::{DirectionFigures, Finding, OTHERS, TransferFigures};
use super::stacks::{Places, Site, Stacks};
use gpurec_trace::Transfer;
use gpurec_trace::bounds::{Entries, entry};
use gpurec_trace::hash::Map;

/// Pinning does not pay off for a pageable copy below this size.
const SMALL: u64 = 64 << 10;

/// A finding needs at least this total of pageable bytes, and copies that take a hundredth of the recording.
const WORTH: u64 = 16 << 20;
const SHARE: u64 = 100;

/// Data that is loaded once need not be pinned: copies count if they follow launches that follow other copies, at least
/// this number of times.
const ROUNDS: u64 = 10;

/// Limit on distinct processes.
const PROCESSES: usize = 65_536;

/// Limits on distinct directions (there are seven) and on the length of their names.
const DIRECTIONS: usize = 64;
const LONGEST: usize = 64;

#[derive(Default)]
pub struct Transfers {
    by_direction: Entries<DirectionFigures, DIRECTIONS, { DIRECTIONS * 2 * LONGEST }>,
    pageable: Map<u32, Pageable>,
    /// The sum of those of folded processes that repeat.
    gone: Pageable,
}

/// Pageable copies of one process.
#[derive(Default)]
struct Pageable {
    /// Launches before the last copy, and the number of times that new launches came in between.
    launches: Option<u64>,
    rounds: u64,
    count: u64,
    bytes: u64,
    ns: u64,
    sites: Places,
}

impl Transfers {
    /// `ns` is the duration of the call, if known; `launches` is the number of launches of the process so far.
    pub fn add(&mut self, transfer: &Transfer, ns: u64, launches: u64, site: Option<Site>) {
        let name = Some(transfer.direction.as_ref()).filter(|name| name.len() < LONGEST);
        let new = |name: Option<Arc<str>>| {
            let direction = name.as_deref().unwrap_or(OTHERS).to_owned();
            DirectionFigures { direction, ..DirectionFigures::default() }
        };
        let direction = self.by_direction.number(name, new, |_, _| true);
        let Some(seen) = self.by_direction.get_mut(direction) else { return };
        let size = transfer.size;
        seen.count += 1;
        seen.bytes = seen.bytes.saturating_add(size);
        seen.partial |= transfer.partial;
        if let Some(ns) = transfer.duration_ns {
            seen.waited_count += 1;
            seen.waited_bytes = seen.waited_bytes.saturating_add(size);
            seen.waited_ns = seen.waited_ns.saturating_add(ns);
        }
        if transfer.pageable {
            seen.pageable_count += 1;
            seen.pageable_bytes = seen.pageable_bytes.saturating_add(size);
            if size >= SMALL {
                self.pageable(transfer.pid, size, ns, launches, site);
            }
        }
    }

    fn pageable(&mut self, pid: u32, size: u64, ns: u64, launches: u64, site: Option<Site>) {
        let Some(seen) = entry(&mut self.pageable, pid, PROCESSES) else { return };
        seen.rounds += u64::from(seen.launches.replace(launches).is_some_and(|before| launches > before));
        if seen.rounds > 0 {
            seen.count += 1;
            seen.bytes = seen.bytes.saturating_add(size);
            seen.ns = seen.ns.saturating_add(ns);
            seen.sites.add(site);
        }
    }

    /// The process ended, and has no figures of its own any more.
    pub fn fold(&mut self, pid: u32) {
        if let Some(seen) = self.pageable.remove(&pid).filter(|seen| seen.rounds >= ROUNDS) {
            let gone = &mut self.gone;
            gone.rounds = gone.rounds.saturating_add(seen.rounds);
            gone.count += seen.count;
            gone.bytes = gone.bytes.saturating_add(seen.bytes);
            gone.ns = gone.ns.saturating_add(seen.ns);
            gone.sites.merge(&seen.sites);
        }
    }

    pub fn finish(&self) -> TransferFigures {
        let mut by_direction: Vec<DirectionFigures> = self.by_direction.iter().cloned().collect();
        by_direction.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.direction.cmp(&b.direction)));
        // Includes sets: these are the figures of the `transfer` lines.
        let count = by_direction.iter().map(|seen| seen.count).sum();
        let bytes = by_direction.iter().map(|seen| seen.bytes).fold(0, u64::saturating_add);
        TransferFigures { count, bytes, by_direction }
    }

    /// Findings for a recording of `whole_ns`.
    pub fn findings(&self, whole_ns: u64, stacks: &Stacks) -> Option<Finding> {
        let again = || self.pageable.values().chain([&self.gone]).filter(|seen| seen.rounds >= ROUNDS);
        let bytes = again().map(|seen| seen.bytes).fold(0, u64::saturating_add);
        let ns = again().map(|seen| seen.ns).fold(0, u64::saturating_add);
        let mut sites = Places::default();
        again().for_each(|seen| sites.merge(&seen.sites));
        (bytes >= WORTH && ns >= whole_ns / SHARE).then(|| {
            Finding::new(
                format!("copies of {bytes} bytes between the device and pageable host memory, again and again"),
                again().map(|seen| seen.count).sum(),
                Some(ns),
                "allocate the host's side with cudaHostAlloc, pin it with cudaHostRegister, or in PyTorch with pin_memory=True",
            )
            .at(&sites, |site| stacks.text(site))
        })
    }
}
