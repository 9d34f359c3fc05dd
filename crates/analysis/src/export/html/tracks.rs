//! The tracks and counters of the page. In: processes, tracks and live memory as the walk names them. Out: their tables,
//! with a bounded number of points. Not here: events.

use serde_json::{Value, json};

use super::super::sink::{Process, Space, Track};
use gpurec_trace::hash::Map;

/// Limits on tracks and counters, and on points of a counter.
const TRACKS: usize = 8192;
const COUNTERS: usize = 1024;
const POINTS: usize = 4096;

#[derive(Default)]
pub struct PageTracks {
    processes: Vec<Value>,
    by_process: Map<u64, usize>,
    tracks: Vec<PageTrack>,
    by_uuid: Map<u64, usize>,
}

struct PageTrack {
    uuid: u64,
    /// The process of a thread or a stream, or the thread whose time off the CPU it is.
    parent: u64,
    name: String,
    is_thread: bool,
    /// Calls that are open.
    open: u32,
}

impl PageTracks {
    pub fn process(&mut self, process: &Process) {
        let about = json!({
            "id": process.uuid,
            "pid": process.pid,
            "name": process.name,
            "rank": process.rank,
        });
        let known = self.by_process.get(&process.uuid).copied();
        if let Some(known) = known.and_then(|at| self.processes.get_mut(at)) {
            *known = about;
        } else if self.processes.len() < TRACKS {
            self.by_process.insert(process.uuid, self.processes.len());
            self.processes.push(about);
        }
    }

    pub fn track(&mut self, track: Track, parent: u64, name: &str, is_thread: bool) {
        if self.tracks.len() < TRACKS {
            self.by_uuid.insert(track.uuid, self.tracks.len());
            self.tracks.push(PageTrack {
                uuid: track.uuid,
                parent,
                name: name.to_owned(),
                is_thread,
                open: 0,
            });
        }
    }

    /// The number of a track; that of all tracks beyond the limit is the limit.
    pub fn number(&self, uuid: u64) -> usize {
        self.by_uuid.get(&uuid).copied().unwrap_or(TRACKS)
    }

    /// A call begins. Returns its depth.
    pub fn enter(&mut self, number: usize) -> u32 {
        let Some(track) = self.tracks.get_mut(number) else { return 0 };
        track.open += 1;
        track.open - 1
    }

    pub fn leave(&mut self, number: usize) {
        if let Some(track) = self.tracks.get_mut(number) {
            track.open = track.open.saturating_sub(1);
        }
    }

    pub fn processes(&self) -> &[Value] {
        &self.processes
    }

    pub fn all(&self) -> Vec<Value> {
        let track = |track: &PageTrack| {
            json!({
                "id": track.uuid,
                "parent": track.parent,
                "name": track.name,
                "thread": track.is_thread,
            })
        };
        self.tracks.iter().map(track).collect()
    }
}

#[derive(Default)]
pub struct Counters {
    all: Vec<Counter>,
    by_uuid: Map<u64, usize>,
}

struct Counter {
    process: u64,
    name: String,
    /// Times, with the value from then on and the highest one until the next.
    points: Vec<(u64, u64, u64)>,
    /// Changes closer than this to a point are in it.
    apart_ns: u64,
}

impl Counters {
    pub fn track(&mut self, uuid: u64, process: &Process, name: &str) {
        if self.all.len() < COUNTERS {
            self.by_uuid.insert(uuid, self.all.len());
            let name = name.to_owned();
            self.all.push(Counter { process: process.uuid, name, points: Vec::new(), apart_ns: 0 });
        }
    }

    pub fn add(&mut self, ts_ns: u64, space: &Space) {
        let counter = self.by_uuid.get(&space.uuid).and_then(|at| self.all.get_mut(*at));
        if let Some(counter) = counter {
            counter.add((ts_ns, space.live, space.live));
            while counter.points.len() > 2 * POINTS {
                counter.fewer();
            }
        }
    }

    pub fn page(&self) -> Vec<Value> {
        let counter = |it: &Counter| json!({ "process": it.process, "name": it.name, "points": it.points });
        self.all.iter().map(counter).collect()
    }
}

impl Counter {
    fn add(&mut self, point: (u64, u64, u64)) {
        match self.points.last_mut() {
            Some(last) if point.0.saturating_sub(last.0) < self.apart_ns => {
                (last.1, last.2) = (point.1, last.2.max(point.2));
            }
            _ => self.points.push(point),
        }
    }

    fn fewer(&mut self) {
        self.apart_ns = self.apart_ns.saturating_mul(2).max(1024);
        let points = std::mem::take(&mut self.points);
        points.into_iter().for_each(|point| self.add(point));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_keeps_its_peak_and_its_last_value_in_few_points() {
        let mut counters = Counters::default();
        let mut space = Space { space: "device".into(), name: "n".to_owned(), uuid: 3, live: 0 };
        counters.track(3, &Process::default(), "n");
        for n in 0..100_000u64 {
            space.live = if n == 77_777 { 1 << 40 } else { n };
            counters.add(n * 1000, &space);
        }
        let page = counters.page();
        let points = page[0]["points"].as_array().expect("points");
        assert!(points.len() <= 2 * POINTS && points.len() > POINTS / 2, "{}", points.len());
        assert!(points.iter().any(|point| point[2] == json!(1u64 << 40)));
        assert_eq!(points.last().expect("one")[1], 99_999);
    }

    #[test]
    fn calls_have_the_depth_of_what_is_open() {
        let mut tracks = PageTracks::default();
        tracks.track(Track { uuid: 9, pid: 1, tid: 1 }, 1, "main", true);
        let number = tracks.number(9);
        assert_eq!((tracks.enter(number), tracks.enter(number)), (0, 1));
        tracks.leave(number);
        assert_eq!((tracks.enter(number), tracks.number(10)), (1, TRACKS));
    }

    #[test]
    fn tracks_and_counters_are_bounded() {
        let mut tracks = PageTracks::default();
        let mut counters = Counters::default();
        let all = TRACKS as u64 + 9;
        for uuid in 0..all {
            tracks.process(&Process { uuid, ..Process::default() });
            tracks.track(Track { uuid, pid: 1, tid: 1 }, 0, "t", true);
            counters.track(uuid, &Process::default(), "n");
            let space = Space { space: "device".into(), name: "n".to_owned(), uuid, live: 1 };
            counters.add(1, &space);
        }
        assert_eq!(
            [tracks.processes().len(), tracks.all().len(), counters.page().len()],
            [TRACKS, TRACKS, COUNTERS]
        );
        assert_eq!([tracks.number(all - 1), tracks.number(all - 9)], [TRACKS; 2], "they share a row");
    }
}
