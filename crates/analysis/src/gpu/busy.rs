//! The time in which a GPU works: the union of intervals that come late, overlap, and come in any order.
//!
//! In: intervals, each with what it was. Out: the same as spans that do not touch, in the order of time, so that what
//! lies between them is idle. Memory is bounded: where too many spans wait for earlier ones, the older half is settled,
//! and an interval that comes later still counts only from there on. `late` is the number of those.

/// The most spans that wait for earlier ones. A span is a time without a pause, however many kernels it has.
pub const MOST_WAITING: usize = 1 << 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<T> {
    pub from_ns: u64,
    pub to_ns: u64,
    /// What began first, and what ended last.
    pub first: T,
    pub last: T,
}

#[derive(Clone, Debug)]
pub struct Busy<T> {
    waiting: Vec<Span<T>>,
    /// The end of the spans that are settled.
    settled_ns: u64,
    late: u64,
}

impl<T> Default for Busy<T> {
    fn default() -> Self {
        Busy { waiting: Vec::new(), settled_ns: 0, late: 0 }
    }
}

impl<T: Copy> Busy<T> {
    /// Adds an interval. Where more than `most` spans wait, `settle` gets the older half of them.
    pub fn add(&mut self, from_ns: u64, to_ns: u64, what: T, most: usize, settle: impl FnMut(Span<T>)) {
        let to_ns = to_ns.max(from_ns);
        self.late += u64::from(from_ns < self.settled_ns);
        if to_ns < self.settled_ns {
            return;
        }
        let from_ns = from_ns.max(self.settled_ns);
        // The usual case, without a new span: work begins while the work before it still runs.
        if let Some(before) = self.waiting.last_mut()
            && (before.from_ns..=before.to_ns).contains(&from_ns)
            && (from_ns > before.from_ns || to_ns >= before.to_ns)
        {
            if to_ns >= before.to_ns {
                (before.to_ns, before.last) = (to_ns, what);
            }
            return;
        }
        self.waiting.push(Span { from_ns, to_ns, first: what, last: what });
        if self.waiting.len() > most.max(1) {
            merge(&mut self.waiting);
            let settled = self.waiting.len().saturating_sub(most / 2);
            self.settle_first(settled, settle);
        }
    }

    /// Settles the spans that begin before `ns`.
    pub fn settle_before(&mut self, ns: u64, settle: impl FnMut(Span<T>)) {
        merge(&mut self.waiting);
        let settled = self.waiting.partition_point(|span| span.from_ns < ns);
        self.settle_first(settled, settle);
    }

    fn settle_first(&mut self, count: usize, settle: impl FnMut(Span<T>)) {
        let last = count.checked_sub(1).and_then(|last| self.waiting.get(last));
        self.settled_ns = last.map_or(self.settled_ns, |last| last.to_ns);
        self.waiting.drain(..count.min(self.waiting.len())).for_each(settle);
    }

    /// All spans that are not settled, as if no interval followed.
    pub fn rest(&self) -> Vec<Span<T>> {
        let mut rest = self.waiting.clone();
        merge(&mut rest);
        rest
    }

    /// The time of all spans that are not settled. Merges them in place, so that the next call costs little.
    pub fn waiting_ns(&mut self) -> u64 {
        merge(&mut self.waiting);
        self.waiting.iter().map(|span| span.to_ns - span.from_ns).fold(0, u64::saturating_add)
    }

    /// The number of intervals that came too late to be counted whole.
    pub fn late(&self) -> u64 {
        self.late
    }
}

/// Sorts the spans and joins those that touch.
fn merge<T: Copy>(spans: &mut Vec<Span<T>>) {
    spans.sort_by_key(|span| (span.from_ns, span.to_ns));
    let mut joined: usize = 0;
    for at in 1..spans.len() {
        let next = spans[at];
        let known = &mut spans[joined];
        if next.from_ns > known.to_ns {
            joined += 1;
            spans[joined] = next;
        } else if next.to_ns >= known.to_ns {
            known.to_ns = next.to_ns;
            known.last = next.last;
        }
    }
    spans.truncate(joined + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(busy: &Busy<u32>) -> Vec<(u64, u64, u32, u32)> {
        busy.rest().iter().map(|span| (span.from_ns, span.to_ns, span.first, span.last)).collect()
    }

    #[test]
    fn intervals_in_any_order_become_spans() {
        let mut busy = Busy::default();
        let none = |span: Span<u32>| panic!("{span:?}");
        for (what, (from, to)) in
            [(50, 60), (10, 20), (15, 30), (30, 40), (52, 55), (70, 70)].iter().enumerate()
        {
            busy.add(*from, *to, what as u32, 100, none);
        }
        assert_eq!(spans(&busy), [(10, 40, 1, 3), (50, 60, 0, 0), (70, 70, 5, 5)]);
        assert_eq!(busy.waiting_ns(), 40);
        busy.add(35, 52, 6, 100, none);
        assert_eq!((busy.waiting_ns(), busy.waiting_ns()), (50, 50));
    }

    #[test]
    fn a_bounded_number_of_spans_waits() {
        let (mut busy, mut settled) = (Busy::default(), Vec::new());
        for n in (0..1000u64).rev() {
            busy.add(1000 + 10 * n, 1005 + 10 * n, n as u32, 2000, |_| panic!("they fit"));
        }
        for n in 0..1000u64 {
            busy.add(20_000 + 10 * n, 20_005 + 10 * n, 0, 1500, |span| settled.push(span.from_ns));
            assert!(busy.waiting.len() <= 1500);
        }
        assert!(settled.is_sorted() && settled.len() >= 500, "{}", settled.len());
        assert_eq!(settled.len() + busy.rest().len(), 2000);
        assert_eq!(busy.late(), 0);
        let end = busy.settled_ns;
        busy.add(3, 4, 0, 1500, |_| {});
        busy.add(end - 1, end + 2, 7, 1500, |_| {});
        assert_eq!(
            (busy.late(), busy.rest()[0].from_ns),
            (2, end),
            "what came too late counts from there on"
        );
        busy.settle_before(u64::MAX, |span| settled.push(span.from_ns));
        assert!(settled.is_sorted() && busy.rest().is_empty());
    }
}
