//! The flight recorder's part in the lines. In: requests, calls that failed or died. Out: both to where the lines go,
//! each in its place among them.

use super::{Lines, NO_LINE};
use crate::pipeline::observer::DumpRequest;
use crate::pipeline::pair::Open;
use gpurec_trace::End;

impl Lines {
    /// Writes a dump of the lines so far.
    pub fn dump(&mut self, request: DumpRequest) {
        if let (Some(writer), None) = (&mut self.writer, &self.failed) {
            self.failed = writer.drained().and_then(|handoff| handoff.dump(request)).err();
        }
    }

    /// A call ended that `depth` calls enclose.
    pub(super) fn failed(&mut self, depth: u32, end: &End) {
        if let Some(alarms) = self.alarms.as_mut().filter(|_| depth == 0 && end.error.is_some()) {
            alarms.failed(end);
        }
    }

    /// A recording that may take weeks keeps no list of calls whose threads ended: the flight recorder does, for as long
    /// as it has their lines.
    pub(super) fn died_unlisted(&mut self, call: &Open) {
        if let (Some(writer), None) = (&mut self.writer, &self.failed) {
            let before = self.written_ids;
            self.failed = writer.drained().and_then(|handoff| handoff.died(before, call.id)).err();
        }
    }

    /// Lets the flight recorder look at the calls of libraries that are open.
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
