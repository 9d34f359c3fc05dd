//! The calls that have not returned, for the `end` line. In: calls. Out: as many as the line has room for, and the
//! number of the others.

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
