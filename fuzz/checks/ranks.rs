//! Reads the traces of a job side by side.
//! In: a choice, and up to four traces, apart by bytes 0xff.
//! Out: panics unless a report or an error comes whatever the traces, each rank of a straggler is one of the job, errors of
//! clocks are no less than 0, and percentiles rise.

use std::cell::RefCell;
use std::path::PathBuf;

use super::{Scratch, choice};
use gpurec_analysis::only::Only;
use gpurec_analysis::ranks::{RanksConfig, gather, ranks as print};

const MOST: usize = 4;

pub fn ranks(data: &[u8]) {
    thread_local!(static TRACES: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) });
    let (how, text) = choice(data);
    TRACES.with_borrow_mut(|scratches| {
        let mut files = Vec::new();
        for (at, trace) in text.split(|byte| *byte == 0xff).take(MOST).enumerate() {
            if scratches.len() <= at {
                scratches.push(Scratch::new());
            }
            scratches[at].fill(trace);
            files.push(scratches[at].path.clone());
        }
        let only = match how % 4 {
            // Lines are then read whole.
            0 => Only { from_ns: Some(0), ..Only::default() },
            1 => Only { ranks: vec![0, 1], to_ns: Some(1 << 30), ..Only::default() },
            _ => Only::default(),
        };
        examine(&files, &only);
        if how >= 192 {
            let config = RanksConfig { files, write_clocks: None, json: how % 2 == 0, only };
            if let Err(error) = print(&config) {
                assert!(!error.to_string().is_empty());
            }
        }
    });
}

fn examine(files: &[PathBuf], only: &Only) {
    let report = match gather(files, only) {
        Ok(report) => report,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let known = |rank: Option<u32>| report.ranks.iter().any(|it| it.rank == rank);
    assert!(report.stragglers.iter().all(|it| known(it.rank)), "{:?}", report.stragglers);
    assert!(report.clocks.iter().all(|it| it.error_ns.is_none_or(|ns| ns >= 0.0)), "{:?}", report.clocks);
    let (middle, most) = (report.skew_ns(50_000), report.skew_ns(99_000));
    assert!(middle <= most && most.is_none_or(|ns| ns <= report.skew.max_ns), "{middle:?} {most:?}");
    let json = report.json();
    assert_eq!(json["ranks"].as_array().map(Vec::len), Some(report.ranks.len()));
}
