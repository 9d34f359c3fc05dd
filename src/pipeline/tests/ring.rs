//! A ring that the test fills: the records read, where reading stops, and the room given back.

use super::super::made_ring::MadeRing;
use super::Random;
use crate::ring::{Ring, Stopped};

const SIZE: usize = 8192;

fn read(ring: &mut Ring) -> (Vec<Vec<u8>>, Stopped) {
    let mut records = Vec::new();
    let stopped = ring.read(usize::MAX, |bytes| records.push(bytes.to_vec()));
    (records, stopped)
}

#[test]
fn an_empty_ring_is_drained() {
    for start in [0, 8, SIZE as u64 - 8, 1 << 40] {
        let fake = MadeRing::new(SIZE, start).unwrap();
        let mut ring = fake.map().unwrap();
        assert_eq!(read(&mut ring), (vec![], Stopped::Drained));
        assert_eq!((fake.consumed(), ring.level().waiting()), (start, 0));
    }
}

#[test]
fn records_come_in_order_with_their_own_lengths() {
    let mut fake = MadeRing::new(SIZE, 0).unwrap();
    let mut ring = fake.map().unwrap();
    let records: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 40, 88, 4128].iter().map(|n| vec![*n as u8; *n]).collect();
    for record in &records {
        fake.put(record);
    }
    assert_eq!(ring.level().waiting() as u64, fake.produced());
    assert_eq!(read(&mut ring), (records, Stopped::Drained));
    assert_eq!(fake.consumed(), fake.produced());
    assert_eq!(ring.level().waiting(), 0);
}

#[test]
fn a_record_across_the_end_is_whole() {
    // The header in the last 8 bytes, the record split in the middle, the record's end at the ring's end.
    for before_end in [8, 16, 48, 96] {
        let mut fake = MadeRing::new(SIZE, 3 * SIZE as u64 - before_end).unwrap();
        let mut ring = fake.map().unwrap();
        let record: Vec<u8> = (0..88).collect();
        fake.put(&record);
        fake.put(b"after");
        assert_eq!(read(&mut ring), (vec![record, b"after".to_vec()], Stopped::Drained));
    }
}

#[test]
fn reading_stops_before_an_unfinished_record() {
    let mut fake = MadeRing::new(SIZE, 0).unwrap();
    let mut ring = fake.map().unwrap();
    fake.put(b"first");
    let at = fake.put_unfinished(b"busy");
    fake.put(b"behind");
    assert_eq!(read(&mut ring), (vec![b"first".to_vec()], Stopped::Busy));
    assert_eq!(fake.consumed(), at);
    assert_eq!(read(&mut ring), (vec![], Stopped::Busy));
    assert_eq!(ring.level().waiting() as u64, fake.produced() - at);
    fake.finish(at, 4);
    assert_eq!(read(&mut ring), (vec![b"busy".to_vec(), b"behind".to_vec()], Stopped::Drained));
}

/// The next header's place holds a record of the previous lap with its header, and next to it bytes that a target
/// could write to imitate a header.
#[test]
fn what_an_earlier_record_left_is_no_header() {
    let mut fake = MadeRing::new(SIZE, 0).unwrap();
    let mut ring = fake.map().unwrap();
    let forged: Vec<u8> =
        (0..SIZE as u64 - 8).step_by(8).flat_map(|at| (at << 16 | 8).to_ne_bytes()).collect();
    fake.put(&forged[..forged.len() - 8]);
    read(&mut ring);
    for length in [8, 0, 100] {
        let at = fake.take_room(length);
        assert_eq!(read(&mut ring), (vec![], Stopped::Busy));
        assert_eq!(fake.consumed(), at);
        fake.finish(at, length);
        assert_eq!(read(&mut ring).1, Stopped::Drained);
    }
    // The previous lap's header at exactly the same place.
    while !fake.produced().is_multiple_of(SIZE as u64) {
        let left = SIZE as u64 - fake.produced() % SIZE as u64;
        fake.put(&vec![1; (left.min(64) - 8) as usize]);
        read(&mut ring);
    }
    fake.put(b"same place");
    read(&mut ring);
    fake.put(&vec![2; SIZE - 32]);
    read(&mut ring);
    fake.take_room(10);
    assert_eq!(read(&mut ring), (vec![], Stopped::Busy));
}

#[test]
fn what_comes_while_reading_is_left_for_the_next_time() {
    let mut fake = MadeRing::new(SIZE, 0).unwrap();
    let mut ring = fake.map().unwrap();
    fake.put(b"one");
    let mut seen = 0;
    let stopped = ring.read(usize::MAX, |_| {
        seen += 1;
        fake.put(b"meanwhile");
    });
    assert_eq!((seen, stopped), (1, Stopped::Drained));
    assert_eq!(read(&mut ring), (vec![b"meanwhile".to_vec()], Stopped::Drained));
}

#[test]
fn no_more_is_read_than_is_wanted() {
    let mut fake = MadeRing::new(SIZE, 0).unwrap();
    let mut ring = fake.map().unwrap();
    for text in [b"a", b"b", b"c"] {
        fake.put(text);
    }
    let mut seen = Vec::new();
    assert_eq!(ring.read(2, |bytes| seen.extend_from_slice(bytes)), Stopped::Many);
    assert_eq!(ring.read(2, |bytes| seen.extend_from_slice(bytes)), Stopped::Drained);
    assert_eq!(seen, b"abc");
    fake.put(b"d");
    assert_eq!(ring.read(1, |_| ()), Stopped::Drained, "that was all");
}

#[test]
fn room_is_given_back_while_a_long_backlog_is_read() {
    let mut fake = MadeRing::new(256 << 10, 0).unwrap();
    let mut ring = fake.map().unwrap();
    for _ in 0..50 {
        fake.put(&[7; 4000]);
    }
    let mut most_kept = 0;
    let mut read = 0;
    ring.read(usize::MAX, |bytes| {
        most_kept = most_kept.max(read - fake.consumed());
        read += bytes.len() as u64 + 8;
    });
    assert_eq!(read, 50 * 4008);
    // One step, and the record that crosses it.
    assert!(most_kept <= (64 << 10) + 4008, "{most_kept} bytes were read and not given back");
    assert!(most_kept > 32 << 10, "given back in far too small steps: {most_kept}");
    assert_eq!(fake.consumed(), fake.produced());
}

#[test]
fn a_file_too_short_for_a_ring_is_an_error() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let layout = crate::ring::Layout { near: SIZE, far: SIZE, secret: 0 };
    assert!(Ring::map(&null, layout, 0).is_err());
}

/// Random records, flags and reads, compared with a list of the records put in.
#[test]
fn everything_put_in_comes_out_once_and_in_order() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut fake = MadeRing::new(SIZE, random.below(4) * SIZE as u64 + random.below(1024) * 8).unwrap();
        let mut ring = fake.map().unwrap();
        // Records in the ring that were not read: position, bytes, whether it is finished.
        let mut inside: Vec<(u64, Vec<u8>, bool)> = Vec::new();
        for _ in 0..200 {
            match random.below(4) {
                0 => {
                    let busy = inside.iter().position(|(_, _, finished)| !finished);
                    let expected: Vec<Vec<u8>> = inside[..busy.unwrap_or(inside.len())]
                        .iter()
                        .map(|(_, bytes, _)| bytes.clone())
                        .collect();
                    let stopped = if busy.is_some() { Stopped::Busy } else { Stopped::Drained };
                    assert_eq!(read(&mut ring), (expected, stopped), "seed {seed}");
                    inside.drain(..busy.unwrap_or(inside.len()));
                    let at = inside.first().map_or(fake.produced(), |(at, _, _)| *at);
                    assert_eq!(fake.consumed(), at, "seed {seed}");
                }
                1 => {
                    let busy: Vec<usize> = (0..inside.len()).filter(|i| !inside[*i].2).collect();
                    if !busy.is_empty() {
                        let (at, bytes, finished) =
                            &mut inside[busy[random.below(busy.len() as u64) as usize]];
                        *finished = true;
                        fake.finish(*at, bytes.len());
                    }
                }
                _ => {
                    let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
                    if fake.has_room(bytes.len()) {
                        let at = fake.put_unfinished(&bytes);
                        let finished = random.below(3) > 0;
                        if finished {
                            fake.finish(at, bytes.len());
                        }
                        inside.push((at, bytes, finished));
                    }
                }
            }
        }
    }
}
