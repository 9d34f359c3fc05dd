//! The rows of the timeline as bytes. In: rows. Out: their slices as columns of numbers in LEB128, the details of all as
//! one text, and the plan by which `decode.mjs` reads both. Not here: what the slices are.

use serde_json::{Value, json};

use super::rows::Row;
use super::slices::{Slice, levels};

#[derive(Default)]
pub struct Packed {
    /// For each row: its track, its depth, and for each level its resolution and its number of slices.
    pub plan: Vec<Value>,
    pub slices: Vec<u8>,
    pub details: Vec<u8>,
}

impl Packed {
    pub fn of(rows: &[Row], whole_ns: u64) -> Packed {
        let mut packed = Packed::default();
        for row in rows {
            let coarser = levels(&row.slices, whole_ns);
            let plan = coarser.iter().map(|(below_ns, slices)| json!([below_ns, slices.len()]));
            let plan: Vec<Value> = std::iter::once(json!([0, row.slices.len()])).chain(plan).collect();
            packed.plan.push(json!([row.track, row.depth, plan]));
            packed.level(&row.slices);
            packed.own(&row.slices);
            coarser.iter().for_each(|(_, slices)| packed.level(slices));
        }
        packed
    }

    /// What slices of all levels have: columns, since those compress better.
    fn level(&mut self, slices: &[Slice]) {
        let mut before = 0;
        for slice in slices {
            number(&mut self.slices, slice.from_ns.saturating_sub(before));
            before = slice.from_ns;
        }
        slices.iter().for_each(|slice| number(&mut self.slices, slice.length_ns()));
        slices.iter().for_each(|slice| number(&mut self.slices, slice.name.into()));
        slices.iter().for_each(|slice| number(&mut self.slices, slice.events.into()));
        // That of a single event is its length.
        let joined = slices.iter().filter(|slice| slice.events > 1);
        joined.for_each(|slice| number(&mut self.slices, slice.busy_ns));
    }

    /// What only the finest level has.
    fn own(&mut self, slices: &[Slice]) {
        slices.iter().for_each(|slice| number(&mut self.slices, slice.stack.into()));
        slices.iter().for_each(|slice| number(&mut self.slices, slice.flow));
        for slice in slices {
            let details = slice.details.as_deref().unwrap_or_default();
            number(&mut self.slices, details.len() as u64);
            self.details.extend_from_slice(details.as_bytes());
        }
    }
}

fn number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_leb128() {
        let mut out = Vec::new();
        [0, 127, 128, 300, u64::MAX].into_iter().for_each(|n| number(&mut out, n));
        assert_eq!(out[..6], [0, 127, 0x80, 1, 0xac, 2]);
        assert_eq!(out.len(), 6 + 10);
    }

    #[test]
    fn a_row_is_columns() {
        let slice = |from_ns, name, details: Option<&str>| Slice {
            from_ns,
            to_ns: from_ns + 2,
            events: 1,
            name,
            stack: 3,
            flow: 4,
            details: details.map(Into::into),
            ..Slice::default()
        };
        let mut second = slice(15, 2, None);
        (second.events, second.busy_ns) = (5, 1);
        let row = Row { track: 6, depth: 0, slices: vec![slice(10, 1, Some("{}")), second] };
        let packed = Packed::of(&[row], 1000);
        assert_eq!(packed.plan, [json!([6, 0, [[0, 2]]])]);
        assert_eq!(packed.slices, [10, 5, 2, 2, 1, 2, 1, 5, 1, 3, 3, 4, 4, 2, 0]);
        assert_eq!(packed.details, b"{}");
    }
}
