//! The flight recorder's part of the sink. In: requests for dumps; calls that failed, or whose threads ended. Out:
//! requests and ended threads, passed to the destination of the lines in their place among the lines; failures, to the
//! alarms.

use super::{Lines, NO_LINE};
use crate::pipeline::observer::DumpRequest;
use crate::pipeline::pair::Open;
use crate::pipeline::stops::Recent;
use gpurec_trace::End;

impl Lines {
    /// Requests a dump of the lines so far.
    pub fn dump(&mut self, request: DumpRequest) {
        if let (Some(writer), None) = (&mut self.writer, &self.failed) {
            self.failed = writer.drained().and_then(|handoff| handoff.dump(request)).err();
        }
    }

    pub fn recent_stops(&self) -> Recent {
        self.stops.recent(self.start)
    }

    /// Reports a failed call that no recorded call encloses. `depth`: the number of calls around it.
    pub(super) fn failed(&mut self, depth: u32, end: &End) {
        if let Some(alarms) = self.alarms.as_mut().filter(|_| depth == 0 && end.error.is_some()) {
            alarms.failed(end);
        }
    }

    /// Passes on a call whose thread ended. A list of them, as for a whole trace, would grow for weeks; the flight
    /// recorder keeps each only as long as its lines.
    pub(super) fn died_unlisted(&mut self, call: &Open) {
        if let (Some(writer), None) = (&mut self.writer, &self.failed) {
            let before = self.written_ids;
            self.failed = writer.drained().and_then(|handoff| handoff.died(before, call.id)).err();
        }
    }

    /// Shows the open library calls to the flight recorder.
    pub fn look_for_hangs<'a>(&mut self, open: impl Iterator<Item = &'a Open>, now: u64) {
        let Some(mut alarms) = self.alarms.take() else { return };
        let is_call = |call: &&Open| {
            call.id != NO_LINE
                && self.probes.get(call.probe as usize).is_some_and(|facts| facts.beneath.is_none())
        };
        let mut open = open.filter(is_call).map(|call| self.one_in_flight(now, call, false));
        alarms.look(self.since_start(now), &mut open);
        self.alarms = Some(alarms);
    }
}
