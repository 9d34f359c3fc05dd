//! The lanes of streams. In: GPU work, late and in any order. Out: for each piece of work the lane in which it overlaps
//! no other, since readers of exports nest what overlaps. Work in a stream runs one after another, except inside graphs:
//! so nearly every stream has one lane. Not here: how a lane is written.

use std::collections::VecDeque;

use super::sink::Track;
use crate::gpu::StreamKey;
use gpurec_trace::hash::Map;

/// Limits on all lanes, on those of one stream, and on the work of a lane that is kept to find room among it.
const MOST_LANES: usize = 16_384;
const LANES_EACH: usize = 32;
const KEPT: usize = 1024;

#[derive(Default)]
pub struct Streams {
    by_key: Map<StreamKey, Vec<StreamLane>>,
    lanes: usize,
    /// The context of each process and device that came first: the names of its streams need no context.
    contexts: Map<(u32, u32), u32>,
    /// Work for which there was no lane.
    pub left_out: u64,
}

#[derive(Default)]
struct StreamLane {
    track: Option<Track>,
    /// Begins and ends, in order.
    kept: VecDeque<(u64, u64)>,
    /// The end of what is no longer kept.
    since_ns: u64,
}

impl Streams {
    /// The lane for some work: its number in the stream, and its track if it has one already.
    pub fn place(&mut self, key: StreamKey, from_ns: u64, to_ns: u64) -> Option<(usize, Option<Track>)> {
        let has_room = self.lanes < MOST_LANES;
        if !has_room && !self.by_key.contains_key(&key) {
            self.left_out += 1;
            return None;
        }
        let lanes = self.by_key.entry(key).or_default();
        for (number, lane) in lanes.iter_mut().enumerate() {
            if lane.takes(from_ns, to_ns) {
                return Some((number, lane.track));
            }
        }
        if lanes.len() >= LANES_EACH || !has_room {
            self.left_out += 1;
            return None;
        }
        self.lanes += 1;
        let mut lane = StreamLane::default();
        lane.takes(from_ns, to_ns);
        lanes.push(lane);
        Some((lanes.len() - 1, None))
    }

    pub fn made(&mut self, key: StreamKey, number: usize, track: Track) {
        if let Some(lane) = self.by_key.get_mut(&key).and_then(|lanes| lanes.get_mut(number)) {
            lane.track = Some(track);
        }
    }

    /// `GPU 0 stream 7`: equal for all lanes of a stream, so that Perfetto shows them as one track.
    pub fn name(&mut self, key: StreamKey) -> String {
        let StreamKey { device, pid, context, stream } = key;
        let first = *self.contexts.entry((pid, device)).or_insert(context);
        let of = if context == first { String::new() } else { format!(" (context {context})") };
        format!("GPU {device} stream {stream}{of}")
    }
}

impl StreamLane {
    /// Puts work into the lane if that is free then.
    fn takes(&mut self, from_ns: u64, to_ns: u64) -> bool {
        let at = self.kept.partition_point(|(from, _)| *from <= from_ns);
        let before = at.checked_sub(1).and_then(|at| self.kept.get(at)).map_or(self.since_ns, |(_, to)| *to);
        // What follows was written before: at the same time its begin would come before this end.
        let is_free = before <= from_ns && self.kept.get(at).is_none_or(|(from, _)| to_ns < *from);
        if is_free {
            self.kept.insert(at, (from_ns, to_ns));
            if self.kept.len() > KEPT
                && let Some((_, to)) = self.kept.pop_front()
            {
                self.since_ns = to;
            }
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stream: u32) -> StreamKey {
        StreamKey { device: 0, pid: 1, context: 1, stream }
    }

    #[test]
    fn work_in_one_lane_never_overlaps() {
        let mut streams = Streams::default();
        let mut lane = |from, to| streams.place(key(7), from, to).map(|(number, _)| number);
        assert_eq!([lane(10, 20), lane(20, 30), lane(40, 50)], [Some(0); 3]);
        assert_eq!((lane(32, 35), lane(45, 60)), (Some(0), Some(1)), "late, and at the same time");
        assert_eq!(
            (lane(36, 40), lane(36, 40)),
            (Some(1), Some(2)),
            "its end would come after the next begin"
        );
        assert_eq!((lane(50, 50), lane(50, 55)), (Some(0), Some(0)));
        let mut other = Streams::default();
        assert!((0..LANES_EACH + 1).filter_map(|_| other.place(key(7), 0, 9)).count() == LANES_EACH);
        assert_eq!((other.left_out, other.place(key(8), 0, 9).is_some()), (1, true));
        let names = [other.name(key(7)), other.name(StreamKey { context: 2, ..key(7) })];
        assert_eq!(names, ["GPU 0 stream 7", "GPU 0 stream 7 (context 2)"]);
    }

    #[test]
    fn a_lane_keeps_a_bounded_part() {
        let mut lane = StreamLane::default();
        (0..2000).for_each(|n| assert!(lane.takes(10 * n, 10 * n + 5)));
        assert!(lane.kept.len() == KEPT && !lane.takes(7, 8) && lane.takes(19_986, 19_987));
    }
}
