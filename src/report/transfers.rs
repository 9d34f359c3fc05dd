//! `transfer` lines to figures.

use std::collections::BTreeMap;

use super::figures::{DirectionSeen, Finding, TransferFigures};
use crate::trace::Transfer;

/// A pageable copy smaller than this is not worth pinning for.
const SMALL: u64 = 64 << 10;

/// Pageable copies of less than this in all are not worth a word.
const WORTH: u64 = 16 << 20;

/// How many directions are told apart (there are seven), and how long their names are.
const DIRECTIONS: usize = 64;
const LONGEST: usize = 64;
const OTHERS: &str = "(others)";

#[derive(Default)]
pub struct Transfers {
    by_direction: BTreeMap<Box<str>, DirectionSeen>,
    pageable: Pageable,
    figures: TransferFigures,
}

#[derive(Default)]
struct Pageable {
    count: u64,
    bytes: u64,
    ns: u64,
}

impl Transfers {
    /// `ns` is how long the call took, if that is known.
    pub fn add(&mut self, transfer: &Transfer, ns: u64) {
        let known = self.by_direction.contains_key(transfer.direction.as_ref());
        let fits = self.by_direction.len() < DIRECTIONS && transfer.direction.len() < LONGEST;
        let direction = if known || fits { transfer.direction.as_ref() } else { OTHERS };
        if !self.by_direction.contains_key(direction) {
            let seen = DirectionSeen { direction: direction.to_owned(), ..DirectionSeen::default() };
            self.by_direction.insert(direction.into(), seen);
        }
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
                self.pageable.count += 1;
                self.pageable.bytes = self.pageable.bytes.saturating_add(size);
                self.pageable.ns = self.pageable.ns.saturating_add(ns);
            }
        }
        // Sets too: the figures are those of the `transfer` lines.
        self.figures.count += 1;
        self.figures.bytes = self.figures.bytes.saturating_add(size);
    }

    pub fn finish(&self) -> TransferFigures {
        let mut figures = self.figures.clone();
        figures.by_direction = self.by_direction.values().cloned().collect();
        figures.by_direction.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.direction.cmp(&b.direction)));
        figures
    }

    pub fn findings(&self) -> Option<Finding> {
        let Pageable { count, bytes, ns } = self.pageable;
        (bytes >= WORTH).then(|| Finding {
            what: format!("copies of {bytes} bytes between the device and pageable host memory"),
            times: count,
            cost_ns: Some(ns),
            advice: "allocate the host's side with cudaHostAlloc, pin it with cudaHostRegister, or in PyTorch with pin_memory=True".to_owned(),
        })
    }
}
