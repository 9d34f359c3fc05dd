//! Blocks of PyTorch's allocator, from their records to their lines.

use serde_json::{Value, json};

use super::super::decode::{Block, Item, What, decode};
use super::head;
use super::pair::{Story, call, returned};
use super::sink::lines_with;
use crate::wire;
use gpurec_trace::Op;

const NAMES: [&str; 3] = ["cublasSgemm_v2", "pytorch:malloc", "pytorch:free"];

/// A hit by thread 8 of process 7, whose arguments beyond the first `known` could not be read.
fn record(ts: u64, seq: u32, operation: u16, known: u16, sp: u64, arguments: [u64; 4]) -> Vec<u8> {
    let probe = if operation == wire::ALLOC { 2 } else { 3 };
    let head = head(wire::BLOCK, 0, ts, 8, seq, probe);
    wire::bytes(&wire::Block { head, pid: 7, operation, known, sp, stack: sp % 100, arguments }).to_vec()
}

fn alloc(ts: u64, seq: u32, sp: u64, ptr: u64, size: u64) -> Item {
    decode(&record(ts, seq, wire::ALLOC, 15, sp, [ptr, 1, size, 3])).unwrap()
}

fn free(ts: u64, seq: u32, sp: u64, ptr: u64) -> Item {
    decode(&record(ts, seq, wire::FREE, 1, sp, [ptr, 0, 0, 0])).unwrap()
}

#[test]
fn a_record_has_what_could_be_read() {
    let of = |known, arguments| match decode(&record(9, 5, wire::ALLOC, known, 900, arguments))?.what {
        What::Block(block) => Some(block),
        _ => None,
    };
    let Block { pid, probe, op, sp, stack, ptr, facts } = of(15, [0x100, 1, 512, u64::MAX]).unwrap();
    assert_eq!((pid, probe, op, sp, stack, ptr), (7, 2, Op::Alloc, 900, None, 0x100));
    assert_eq!((facts.device, facts.size, facts.stream), (Some(1), Some(512), Some(u64::MAX)));
    let facts = of(0b1001, [0x100, 1, 512, 3]).unwrap().facts;
    assert_eq!((facts.device, facts.size, facts.stream), (None, None, Some(3)));
    assert_eq!(of(15, [0x100, u64::MAX, 512, 3]).unwrap().facts.device, None, "no device has the ordinal -1");
    let What::Block(block) = alloc(9, 5, 877, 0x100, 1).what else { panic!("a block") };
    assert_eq!(block.stack, Some(77));
    assert_eq!(of(14, [0x100, 1, 512, 3]), None, "a block without an address is none");
    let bytes = record(9, 5, wire::ALLOC, 15, 900, [1; 4]);
    assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()));
    assert!([0, 3, u16::MAX].iter().all(|other| decode(&record(9, 5, *other, 15, 900, [1; 4])).is_none()));
}

#[test]
fn a_block_belongs_to_the_call_around_it() {
    let mut story = Story::default();
    story.feed(&alloc(5, 1, 850, 1, 1));
    story.feed(&call(10, 7, 8, 2, 1, 900, false));
    story.feed(&alloc(11, 3, 850, 2, 1));
    // On another stack, which is above: it is in no call that gpurec knows, and ends none.
    story.feed(&free(12, 4, 5000, 2));
    story.feed(&returned(13, 8, 5, 10, 0));
    story.feed(&free(14, 6, 850, 1));
    let reported = [
        "block in None",
        "begin 1 at 0 in None",
        "block in Some(1)",
        "block in None",
        "Returned(0) 1",
        "block in None",
    ];
    assert_eq!(story.take(), reported);
    assert_eq!((story.in_flight().len(), story.orphans()), (0, 0));
}

#[test]
fn a_block_counts_in_its_threads_numbers() {
    for (between, ended) in [(Some(alloc(11, 2, 850, 1, 1)), "Unwound 1"), (None, "Lost 1")] {
        let mut story = Story::default();
        story.feed(&call(10, 7, 8, 1, 1, 900, false));
        between.iter().for_each(|item| story.feed(item));
        story.feed(&call(12, 7, 8, 3, 1, 900, false));
        assert!(story.take().contains(&ended.to_owned()), "{ended}");
    }
}

#[test]
fn a_free_has_the_size_of_its_block() {
    let items = [
        alloc(2000, 1, 850, 0x100, 512),
        call(2500, 7, 8, 2, 1, 900, false),
        free(3000, 3, 850, 0x100),
        returned(3500, 8, 4, 2500, 0),
        free(4000, 5, 850, 0x100),
    ];
    let lines = lines_with("blocks", &NAMES, &items);
    let line = |id: u64, ts: f64, name: &str, op: &str| json!({ "event_id": id, "ts": ts, "type": "block", "name": name, "pid": 7, "tid": 8, "op": op, "ptr": "0x100" });
    let with = |mut line: Value, facts: Value| {
        line.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        line
    };
    let facts = json!({ "size": 512, "device": 1, "stream": "0x3" });
    assert_eq!(lines[0], with(line(1, 1e-6, "pytorch:malloc", "alloc"), facts.clone()));
    assert_eq!(lines[2], with(with(line(3, 2e-6, "pytorch:free", "free"), facts), json!({ "begin": 2 })));
    assert_eq!(lines[4], line(5, 3e-6, "pytorch:free", "free"), "no size: its alloc was not seen");
}
