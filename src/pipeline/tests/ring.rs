//! A ring that a test fills: what is read, where reading stops, and what is given back.

use super::super::ring::Stopped;
use super::{BUSY, DISCARDED, FakeRing, Random};

const SIZE: usize = 8192;

fn read(ring: &mut super::Ring) -> (Vec<Vec<u8>>, Stopped) {
    let mut records = Vec::new();
    let stopped = ring.read(|bytes| records.push(bytes.to_vec()));
    (records, stopped)
}

#[test]
fn an_empty_ring_is_drained() {
    for start in [0, 8, SIZE as u64 - 8, 1 << 40] {
        let fake = FakeRing::new(SIZE, start);
        let mut ring = fake.map();
        assert_eq!(read(&mut ring), (vec![], Stopped::Drained));
        assert_eq!((fake.consumed(), ring.waiting()), (start, 0));
    }
}

#[test]
fn records_come_in_order_with_their_own_lengths() {
    let mut fake = FakeRing::new(SIZE, 0);
    let mut ring = fake.map();
    let records: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 40, 88, 4128].iter().map(|n| vec![*n as u8; *n]).collect();
    for record in &records {
        fake.put(record);
    }
    assert_eq!(ring.waiting() as u64, fake.produced());
    assert_eq!(read(&mut ring), (records, Stopped::Drained));
    assert_eq!(fake.consumed(), fake.produced());
    assert_eq!(ring.waiting(), 0);
}

#[test]
fn a_record_across_the_end_is_whole() {
    // The header as the last 8 bytes, the record torn in the middle, the record's end at the end.
    for before_end in [8, 16, 48, 96] {
        let mut fake = FakeRing::new(SIZE, 3 * SIZE as u64 - before_end);
        let mut ring = fake.map();
        let record: Vec<u8> = (0..88).collect();
        fake.put(&record);
        fake.put(b"after");
        assert_eq!(read(&mut ring), (vec![record, b"after".to_vec()], Stopped::Drained));
    }
}

#[test]
fn reading_stops_before_an_unfinished_record() {
    let mut fake = FakeRing::new(SIZE, 0);
    let mut ring = fake.map();
    fake.put(b"first");
    let at = fake.put_as(b"busy", BUSY);
    fake.put(b"behind");
    assert_eq!(read(&mut ring), (vec![b"first".to_vec()], Stopped::Busy));
    assert_eq!(fake.consumed(), at);
    assert_eq!(read(&mut ring), (vec![], Stopped::Busy));
    assert_eq!(ring.waiting() as u64, fake.produced() - at);
    fake.set_flags(at, 4, 0);
    assert_eq!(read(&mut ring), (vec![b"busy".to_vec(), b"behind".to_vec()], Stopped::Drained));
}

#[test]
fn discarded_records_are_passed_over() {
    let mut fake = FakeRing::new(SIZE, 0);
    let mut ring = fake.map();
    fake.put_as(&[1; 88], DISCARDED);
    fake.put(b"one");
    fake.put_as(&[2; 13], DISCARDED);
    assert_eq!(read(&mut ring), (vec![b"one".to_vec()], Stopped::Drained));
    assert_eq!(fake.consumed(), fake.produced());
    let at = fake.put_as(&[3; 21], BUSY | DISCARDED);
    assert_eq!(read(&mut ring), (vec![], Stopped::Busy));
    fake.set_flags(at, 21, DISCARDED);
    assert_eq!(read(&mut ring), (vec![], Stopped::Drained));
    assert_eq!(fake.consumed(), fake.produced());
}

#[test]
fn what_comes_while_reading_is_left_for_the_next_time() {
    let mut fake = FakeRing::new(SIZE, 0);
    let mut ring = fake.map();
    fake.put(b"one");
    let mut seen = 0;
    let stopped = ring.read(|_| {
        seen += 1;
        fake.put(b"meanwhile");
    });
    assert_eq!((seen, stopped), (1, Stopped::Drained));
    assert_eq!(read(&mut ring), (vec![b"meanwhile".to_vec()], Stopped::Drained));
}

#[test]
fn room_is_given_back_while_a_long_backlog_is_read() {
    let mut fake = FakeRing::new(256 << 10, 0);
    let mut ring = fake.map();
    for _ in 0..50 {
        fake.put(&[7; 4000]);
    }
    let mut most_kept = 0;
    let mut read = 0;
    ring.read(|bytes| {
        most_kept = most_kept.max(read - fake.consumed());
        read += bytes.len() as u64 + 8;
    });
    assert_eq!(read, 50 * 4008);
    // A step, and the record that crosses it.
    assert!(most_kept <= (64 << 10) + 4008, "{most_kept} bytes were read and not given back");
    assert!(most_kept > 32 << 10, "given back in far too small steps: {most_kept}");
    assert_eq!(fake.consumed(), fake.produced());
}

#[test]
fn a_file_too_short_for_a_ring_is_an_error() {
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(super::Ring::map(&null, SIZE).is_err());
}

/// Random records, flags and reads against a list of what was put in.
#[test]
fn everything_put_in_comes_out_once_and_in_order() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut fake = FakeRing::new(SIZE, random.below(4) * SIZE as u64 + random.below(1024) * 8);
        let mut ring = fake.map();
        // Position, bytes, flags: what is in the ring and was not read.
        let mut inside: Vec<(u64, Vec<u8>, u32)> = Vec::new();
        for _ in 0..200 {
            match random.below(4) {
                0 => {
                    let expected: Vec<Vec<u8>> = inside
                        .iter()
                        .take_while(|(_, _, flags)| flags & BUSY == 0)
                        .filter(|(_, _, flags)| *flags == 0)
                        .map(|(_, bytes, _)| bytes.clone())
                        .collect();
                    let busy = inside.iter().position(|(_, _, flags)| flags & BUSY != 0);
                    let stopped = if busy.is_some() { Stopped::Busy } else { Stopped::Drained };
                    assert_eq!(read(&mut ring), (expected, stopped), "seed {seed}");
                    inside.drain(..busy.unwrap_or(inside.len()));
                    let at = inside.first().map_or(fake.produced(), |(at, _, _)| *at);
                    assert_eq!(fake.consumed(), at, "seed {seed}");
                }
                1 => {
                    let busy: Vec<usize> = (0..inside.len()).filter(|i| inside[*i].2 & BUSY != 0).collect();
                    if !busy.is_empty() {
                        let (at, bytes, flags) = &mut inside[busy[random.below(busy.len() as u64) as usize]];
                        *flags &= !BUSY;
                        fake.set_flags(*at, bytes.len(), *flags);
                    }
                }
                _ => {
                    let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
                    let flags = [0, 0, 0, 0, BUSY, DISCARDED, BUSY | DISCARDED][random.below(7) as usize];
                    if fake.has_room(bytes.len()) {
                        inside.push((fake.put_as(&bytes, flags), bytes, flags));
                    }
                }
            }
        }
    }
}
