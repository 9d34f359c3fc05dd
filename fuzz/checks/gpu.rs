//! Reads the ring of the library that `--gpu` injects, and joins what it says with calls.
//! In: bytes that a process writes into the ring, and where it says that they end.
//! Out: panics unless reading ends, bytes after a CUPTI record change nothing in it, and each work comes out once at most.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use gpurec::gpu::cupti::{Activity, LONGEST, decode};
use gpurec::gpu::join::Join;
use gpurec::gpu::lane::launches;
use gpurec::gpu::ring::{Record, Ring, Stopped, Wanted};

/// Offsets in the ring (crates/inject/src/shape.rs).
const HEAD: u64 = 64;
const DATA: u64 = 4096;

const PID: u32 = 7;

pub fn gpu(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<8>() else { return };
    let (mut ring, fd) = Ring::make(Wanted::default()).unwrap();
    let file = File::from(fd);
    file.write_all_at(bytes, DATA).unwrap();
    // The process says where its records end: mostly where they do.
    let head = match u64::from_ne_bytes(*head) {
        0 => bytes.len() as u64 / 8 * 8,
        head => head,
    };
    file.write_all_at(&head.to_ne_bytes(), HEAD).unwrap();
    let mut play = Play::default();
    play.join.watch(PID);
    for id in 0..16u64 {
        play.join.begin(PID, id as u32 % 3, id * 100, id, id % 2 == 0);
        play.join.end(PID, id as u32 % 3, id * 100 + 50, id, id % 5 != 0);
    }
    let records = bytes.len() / 8 + 2;
    let mut stopped = Stopped::Many;
    for _ in 0..records {
        stopped = ring.read(1, &mut |record| play.record(record));
        if stopped != Stopped::Many {
            break;
        }
    }
    assert_ne!(stopped, Stopped::Many, "the ring has more records than it has room for");
    play.end();
    let _ = ring.facts();
}

#[derive(Default)]
struct Play {
    join: Join,
    /// By correlation: works that went in, and that came out.
    works: BTreeMap<u32, (u64, u64)>,
}

impl Play {
    fn record(&mut self, record: Record) {
        let Record::Activity { bytes, .. } = record else { return };
        let activity = decode(bytes);
        let longer = [bytes, &[0xff; 40]].concat();
        match &activity {
            Some(activity) => assert_eq!(decode(&longer).as_ref(), Some(activity)),
            None => assert!(bytes.len() < LONGEST || decode(&longer).is_none()),
        }
        let of = self.join.program_at(PID, 0);
        let works = &mut self.works;
        let mut each =
            |joined: gpurec::gpu::join::Joined| works.entry(joined.work.correlation).or_default().1 += 1;
        match activity {
            Some(Activity::Api(api)) => {
                let is_launch = launches(api.is_driver, api.function);
                self.join.api(of, &api, is_launch, &mut each);
            }
            Some(Activity::Work(work)) => {
                let correlation = work.correlation;
                self.join.work(0, of, work, None, &mut each);
                self.works.entry(correlation).or_default().0 += 1;
            }
            _ => {}
        }
    }

    fn end(mut self) {
        let works = &mut self.works;
        self.join.expire(0, true, &mut |joined| works.entry(joined.work.correlation).or_default().1 += 1);
        for (correlation, (went, came)) in &self.works {
            assert!(came <= went, "{came} of {went} with number {correlation}");
        }
        let account = self.join.account(self.join.program_at(PID, 0));
        let all: u64 = self.works.values().map(|(went, _)| went).sum();
        assert!(account.delivered + account.untimed + account.unfinished <= all, "{account:?}");
    }
}
