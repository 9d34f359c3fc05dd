//! What happened in one row of the timeline, in bounded number. In: events with begin and end. Out: slices, of which one
//! may stand for several short neighbours, and coarser levels of the same for a page that is zoomed out. Not here: which
//! rows there are, and how they are written.

/// From this number on a row has a coarser level, and a level must have at most half the slices of the one before it.
const ENOUGH: usize = 512;
/// The resolution of the first level, at least, and the ratio of two.
const FINEST_NS: u64 = 256;
const RATIO: u64 = 4;
/// A page is at least this many columns wide, so it needs no level with fewer pieces.
const COLUMNS: u64 = 512;

/// An event, or several that are too short to be drawn apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub from_ns: u64,
    pub to_ns: u64,
    /// The time of its events, without what lies between them.
    pub busy_ns: u64,
    pub longest_ns: u64,
    pub events: u32,
    /// The number of the name of its longest event.
    pub name: u32,
    /// One more than the number of its stack; 0: none, or several events.
    pub stack: u32,
    /// One more than the number of the call, of the call that submitted it if it is work on the GPU; 0: none.
    pub flow: u64,
    /// What the trace says about it, as JSON.
    pub details: Option<Box<str>>,
}

impl Slice {
    pub fn length_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }

    pub fn details_len(&self) -> usize {
        self.details.as_ref().map_or(0, |details| details.len())
    }

    /// A copy without what only the finest level has.
    fn bare(&self) -> Slice {
        Slice { stack: 0, flow: 0, details: None, ..*self }
    }

    /// Whether the next slice and this one are too short to be drawn apart.
    pub fn takes(&self, next: &Slice, below_ns: u64) -> bool {
        next.to_ns.max(self.to_ns).saturating_sub(self.from_ns) < below_ns
    }

    pub fn join(&mut self, other: Slice) {
        self.to_ns = self.to_ns.max(other.to_ns);
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
        self.events = self.events.saturating_add(other.events);
        if other.longest_ns > self.longest_ns {
            (self.longest_ns, self.name) = (other.longest_ns, other.name);
        }
        (self.stack, self.flow, self.details) = (0, 0, None);
    }
}

/// Joins neighbours that together are shorter than this.
pub fn coarsen(slices: &mut Vec<Slice>, below_ns: u64) {
    let mut kept: Vec<Slice> = Vec::new();
    for slice in slices.drain(..) {
        match kept.last_mut() {
            Some(last) if last.takes(&slice, below_ns) => last.join(slice),
            _ => kept.push(slice),
        }
    }
    *slices = kept;
}

/// The coarser levels of slices that are in order, each with its resolution.
pub fn levels(slices: &[Slice], whole_ns: u64) -> Vec<(u64, Vec<Slice>)> {
    let mut levels: Vec<(u64, Vec<Slice>)> = Vec::new();
    let mut below_ns = FINEST_NS;
    while below_ns < whole_ns / COLUMNS {
        let finer = levels.last().map_or(slices, |(_, slices)| slices);
        if finer.len() < ENOUGH {
            break;
        }
        let mut coarser = finer.iter().map(Slice::bare).collect();
        coarsen(&mut coarser, below_ns);
        if coarser.len() <= finer.len() / 2 {
            levels.push((below_ns, coarser));
        }
        below_ns *= RATIO;
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(from_ns: u64, to_ns: u64, name: u32) -> Slice {
        let length = to_ns - from_ns;
        Slice {
            from_ns,
            to_ns,
            busy_ns: length,
            longest_ns: length,
            events: 1,
            name,
            flow: 1,
            ..Slice::default()
        }
    }

    #[test]
    fn short_neighbours_join_and_long_ones_stay() {
        let mut slices = vec![slice(0, 10, 1), slice(20, 50, 2), slice(60, 90, 3), slice(200, 5000, 4)];
        coarsen(&mut slices, 100);
        let joined = Slice { events: 3, name: 2, busy_ns: 70, longest_ns: 30, flow: 0, ..slice(0, 90, 2) };
        assert_eq!(slices, [joined, slice(200, 5000, 4)]);
    }

    /// So the number of slices is bounded by the length of the recording, whatever happened in it.
    #[test]
    fn two_neighbours_are_never_shorter_than_the_resolution() {
        let mut slices: Vec<Slice> = (0..100_000).map(|n| slice(n * 7, n * 7 + n % 5, 0)).collect();
        coarsen(&mut slices, 1000);
        assert!(slices.len() as u64 <= 2 * 700_000 / 1000 + 1, "{}", slices.len());
        assert_eq!(slices.iter().map(|slice| u64::from(slice.events)).sum::<u64>(), 100_000);
        assert_eq!(slices.iter().map(|slice| slice.busy_ns).sum::<u64>(), 200_000);
    }

    #[test]
    fn each_level_is_much_coarser_and_loses_no_event() {
        let slices: Vec<Slice> = (0..100_000).map(|n| slice(n * 100, n * 100 + 50, 0)).collect();
        let levels = levels(&slices, 10_000_000);
        assert!(levels.len() >= 3, "{}", levels.len());
        let mut before = slices.len();
        for (_, level) in &levels {
            assert!(level.len() <= before / 2);
            assert_eq!(level.iter().map(|slice| u64::from(slice.events)).sum::<u64>(), 100_000);
            before = level.len();
        }
        assert!(super::levels(&slices[..100], 10_000_000).is_empty());
    }
}
