//! What a space of memory holds by call site, now and when it held most.
//!
//! In: allocations and frees, and when there was a new peak. Out: the sites at the peak. Nothing is kept until an
//! allocation has a call site. Not here: how much is held altogether.

use super::*;
use gpurec_trace::bounds::MOST_LIVE;
use gpurec_trace::hash::Map;

/// Live allocations that are followed, in all spaces together.
#[derive(Default)]
pub struct Room {
    taken: usize,
}

#[derive(Default)]
pub struct Held {
    live: Map<u64, (Option<Site>, u64)>,
    now: Map<Option<Site>, Total>,
    /// What was added and taken since the peak: bytes and allocations. A new peak clears it, so that a peak costs no
    /// more than the changes before it.
    since: Map<Option<Site>, (i64, i64)>,
}

impl Held {
    pub fn alloc(&mut self, room: &mut Room, ptr: u64, size: u64, site: Option<Site>) {
        if self.live.is_empty() && site.is_none() {
            return;
        }
        self.free(room, ptr);
        if room.taken >= MOST_LIVE {
            return;
        }
        room.taken += 1;
        self.live.insert(ptr, (site, size));
        self.now.entry(site).or_default().add(size);
        self.changed(site, size, 1);
    }

    /// The size of the allocation, if it was followed.
    pub fn free(&mut self, room: &mut Room, ptr: u64) -> Option<u64> {
        let (site, size) = self.live.remove(&ptr)?;
        room.taken -= 1;
        if let Some(total) = self.now.get_mut(&site) {
            total.count -= 1;
            total.sum = total.sum.saturating_sub(size);
        }
        self.changed(site, size, -1);
        Some(size)
    }

    fn changed(&mut self, site: Option<Site>, size: u64, sign: i64) {
        let (bytes, count) = self.since.entry(site).or_default();
        *bytes = bytes.saturating_add(signed(size).saturating_mul(sign));
        *count += sign;
    }

    /// There was never as much as now.
    pub fn peaked(&mut self) {
        self.since.clear();
    }

    /// The process ended.
    pub fn clear(&mut self, room: &mut Room) {
        room.taken -= self.live.len();
        self.live.clear();
        for (site, total) in std::mem::take(&mut self.now) {
            let (bytes, count) = self.since.entry(site).or_default();
            *bytes = bytes.saturating_sub(signed(total.sum));
            *count -= signed(total.count);
        }
    }

    /// What each site held at the peak, the most first.
    pub fn at_peak(&self) -> Vec<(Option<Site>, Total)> {
        let sites: HashSet<Option<Site>> = self.now.keys().chain(self.since.keys()).copied().collect();
        let of = |site: &Option<Site>| {
            let now = self.now.get(site).copied().unwrap_or_default();
            let (bytes, count) = self.since.get(site).copied().unwrap_or_default();
            let before = |now: u64, since: i64| u64::try_from(signed(now).saturating_sub(since)).unwrap_or(0);
            Total { sum: before(now.sum, bytes), count: before(now.count, count) }
        };
        let mut all: Vec<(Option<Site>, Total)> = sites.iter().map(|site| (*site, of(site))).collect();
        all.retain(|(_, total)| total.count > 0);
        all.sort_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
        all
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sites_at_the_peak_are_those_of_that_time() {
        let site = |n: u32| Site::new(n);
        let (mut room, mut held) = (Room::default(), Held::default());
        held.alloc(&mut room, 1, 100, None);
        assert_eq!(room.taken, 0, "nothing is kept without a site");
        held.alloc(&mut room, 2, 10, site(1));
        held.alloc(&mut room, 3, 20, site(2));
        held.alloc(&mut room, 4, 5, None);
        held.peaked();
        let at_peak = [(site(2), 20, 1), (site(1), 10, 1), (None, 5, 1)];
        let shown = |held: &Held| -> Vec<(Option<Site>, u64, u64)> {
            held.at_peak().into_iter().map(|(site, total)| (site, total.sum, total.count)).collect()
        };
        held.free(&mut room, 3);
        held.alloc(&mut room, 5, 7, site(3));
        assert_eq!(shown(&held), at_peak);
        held.clear(&mut room);
        assert_eq!((shown(&held), room.taken), (at_peak.to_vec(), 0));
        held.alloc(&mut room, 6, 1000, site(3));
        held.peaked();
        assert_eq!(shown(&held), [(site(3), 1000, 1)]);
    }
}
