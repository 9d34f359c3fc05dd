//! The rows of the timeline: one for each track and depth, with the slices in them. In: events as they end. Out: rows in
//! bounded size: when there are too many slices, short neighbours become one, and when there are too many details, those
//! of short events go. Not here: names, stacks, and how rows are written.

use std::collections::HashMap;

use super::slices::{Slice, coarsen};

/// Limits on rows, on slices of all rows, and on bytes of details.
const ROWS: usize = 8192;
const SLICES: usize = 1 << 20;
const DETAILS: usize = 24 << 20;
/// The longest details of one event.
const LONGEST_DETAILS: usize = 16 << 10;
/// The first resolution, and the ratio of the next.
const FIRST_NS: u64 = 256;
const RATIO: u64 = 4;

/// Depth of what has no begin and end.
pub const MARKS: u32 = u32::MAX;

pub struct Row {
    /// The number of its track.
    pub track: usize,
    pub depth: u32,
    pub slices: Vec<Slice>,
}

#[derive(Default)]
pub struct Rows {
    pub all: Vec<Row>,
    by_place: HashMap<(usize, u32), usize>,
    slices: usize,
    details: usize,
    /// Neighbours that together are shorter than this are one slice; 0: none are.
    pub below_ns: u64,
    /// Events shorter than this have no details.
    pub details_from_ns: u64,
    /// Number of events, and of those beyond the limit on rows.
    pub events: u64,
    pub left_out: u64,
    /// Rows of traces that have ended. A track belongs to one trace, so a row does too.
    ended: usize,
}

impl Rows {
    pub fn add(&mut self, track: usize, depth: u32, mut slice: Slice) {
        self.events += 1;
        let next = self.all.len();
        let row = match self.by_place.get(&(track, depth)) {
            Some(row) => *row,
            None if next < ROWS => {
                self.by_place.insert((track, depth), next);
                self.all.push(Row { track, depth, slices: Vec::new() });
                next
            }
            None => {
                self.left_out += 1;
                return;
            }
        };
        if slice.details.as_ref().is_some_and(|it| it.len() > LONGEST_DETAILS)
            || slice.length_ns() < self.details_from_ns
        {
            slice.details = None;
        }
        let Some(row) = self.all.get_mut(row) else { return };
        match row.slices.last_mut() {
            // A slice that comes in order joins its neighbour at once.
            Some(last) if last.from_ns <= slice.from_ns && last.takes(&slice, self.below_ns) => {
                self.details -= last.details_len();
                last.join(slice);
                return;
            }
            _ => {}
        }
        self.details += slice.details_len();
        self.slices += 1;
        row.slices.push(slice);
        if self.slices > 2 * SLICES {
            self.fewer_slices();
        }
        if self.details > 2 * DETAILS {
            self.fewer_details();
        }
    }

    fn fewer_slices(&mut self) {
        while self.slices > SLICES {
            self.below_ns = self.below_ns.saturating_mul(RATIO).max(FIRST_NS);
            self.sort();
            self.all.iter_mut().for_each(|row| coarsen(&mut row.slices, self.below_ns));
            self.count();
        }
    }

    fn fewer_details(&mut self) {
        while self.details > DETAILS {
            self.details_from_ns = self.details_from_ns.saturating_mul(2).max(FIRST_NS);
            let from_ns = self.details_from_ns;
            let short = |slice: &&mut Slice| slice.length_ns() < from_ns;
            let all = self.all.iter_mut().flat_map(|row| row.slices.iter_mut());
            all.filter(short).for_each(|slice| slice.details = None);
            self.count();
        }
    }

    fn count(&mut self) {
        self.slices = self.all.iter().map(|row| row.slices.len()).sum();
        self.details = self.all.iter().flat_map(|row| &row.slices).map(Slice::details_len).sum();
    }

    /// GPU work and spans in the driver come late.
    fn sort(&mut self) {
        for row in &mut self.all {
            if !row.slices.is_sorted_by_key(|slice| slice.from_ns) {
                row.slices.sort_by_key(|slice| slice.from_ns);
            }
        }
    }

    /// Replaces the numbers that stacks have in the trace that ended.
    pub fn renumber(&mut self, mut number: impl FnMut(u32) -> u32) {
        for row in self.all.iter_mut().skip(self.ended) {
            row.slices.iter_mut().for_each(|slice| slice.stack = number(slice.stack));
        }
        self.ended = self.all.len();
    }

    pub fn finish(&mut self) {
        self.fewer_slices();
        self.sort();
        if self.below_ns > 0 {
            self.all.iter_mut().for_each(|row| coarsen(&mut row.slices, self.below_ns));
        }
        self.count();
        self.fewer_details();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(from_ns: u64, length_ns: u64, details: usize) -> Slice {
        let details = (details > 0).then(|| "x".repeat(details).into());
        let (to_ns, events) = (from_ns + length_ns, 1);
        Slice {
            from_ns,
            to_ns,
            busy_ns: length_ns,
            longest_ns: length_ns,
            events,
            details,
            ..Slice::default()
        }
    }

    #[test]
    fn what_is_late_is_put_in_order_and_what_is_few_stays_as_it_is() {
        let mut rows = Rows::default();
        rows.add(0, 0, slice(30, 5, 3));
        rows.add(0, 0, slice(10, 5, LONGEST_DETAILS + 1));
        rows.add(0, MARKS, slice(10, 0, 0));
        rows.finish();
        assert_eq!(rows.all.len(), 2);
        assert_eq!(rows.all[0].slices, [slice(10, 5, 0), slice(30, 5, 3)]);
        assert_eq!((rows.below_ns, rows.details_from_ns, rows.events, rows.left_out), (0, 0, 3, 0));
    }

    #[test]
    fn slices_and_details_are_bounded_and_no_event_is_uncounted() {
        let mut rows = Rows::default();
        let events = 3 * SLICES as u64;
        for n in 0..events {
            rows.add(0, 0, slice(n * 1000, if n % 1000 == 0 { 900 } else { 100 }, 50));
        }
        rows.finish();
        let all = &rows.all[0].slices;
        assert!(all.len() <= SLICES && rows.below_ns > 0, "{} {}", all.len(), rows.below_ns);
        assert_eq!(all.iter().map(|slice| u64::from(slice.events)).sum::<u64>(), events);
        let bytes: usize = all.iter().filter_map(|slice| slice.details.as_ref()).map(|it| it.len()).sum();
        assert!(bytes <= DETAILS);
    }

    #[test]
    fn rows_are_bounded() {
        let mut rows = Rows::default();
        (0..ROWS + 5).for_each(|track| rows.add(track, 0, slice(0, 1, 0)));
        assert_eq!((rows.all.len(), rows.left_out), (ROWS, 5));
    }

    #[test]
    fn stacks_of_a_trace_are_renumbered_once() {
        let mut rows = Rows::default();
        rows.add(0, 0, Slice { stack: 1, ..slice(0, 1, 0) });
        rows.renumber(|stack| stack + 10);
        rows.add(1, 0, Slice { stack: 1, ..slice(0, 1, 0) });
        rows.renumber(|stack| stack + 20);
        assert_eq!([rows.all[0].slices[0].stack, rows.all[1].slices[0].stack], [11, 21]);
    }
}
