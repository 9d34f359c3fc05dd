//! The calls that have not returned, for the `end` line. In: calls. Out: as many as the line has room for, and the
//! number of the others.

use super::{Lines, NO_LINE};
use crate::pipeline::pair::Open;
use gpurec_trace::InFlight;
use gpurec_trace::bounds::BytesLeft;

/// The most bytes of calls that the `end` line lists: some twenty thousand calls.
const UNRETURNED: usize = 3 << 20;
/// Bytes of each call, without its name.
const EACH: usize = 128;

/// Calls that have not returned: as many as the `end` line lists, and the number of the others.
#[derive(Default)]
pub(super) struct Unreturned {
    pub(super) list: Vec<InFlight>,
    left: BytesLeft<UNRETURNED>,
    pub(super) more: u64,
}

impl Unreturned {
    pub(super) fn add(&mut self, call: InFlight) {
        if self.left.take(EACH + call.name.len()) {
            self.list.push(call);
        } else {
            self.more += 1;
        }
    }
}

impl Lines {
    /// Calls that began and did not return: those whose thread ended, and those still open; and the number of further
    /// ones.
    pub fn in_flight(&mut self, open: &[Open]) -> (Vec<InFlight>, u64) {
        let mut all = std::mem::take(&mut self.died);
        let open = open.iter().filter(|call| call.id != NO_LINE);
        open.for_each(|call| all.add(self.one_in_flight(self.last, call, false)));
        (all.list, all.more)
    }

    pub(super) fn one_in_flight(&self, ts: u64, call: &Open, died: bool) -> InFlight {
        InFlight {
            pid: call.pid,
            tid: call.tid,
            name: self.probe_name(call.probe).to_owned(),
            begin: call.id,
            duration_ns: ts.saturating_sub(call.ts),
            died,
        }
    }
}
