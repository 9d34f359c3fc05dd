use super::*;

/// The bytes of each kind's record in every version that gpurec reads: 12.0, 12.4, 12.6, 12.8, 13.0, 13.1, 13.3, 13.5.
const SIZES: [(u32, [usize; 8]); 8] = [
    (kind::KERNEL, [208, 208, 208, 208, 216, 224, 232, 248]),
    (kind::SERIAL_KERNEL, [208, 208, 208, 208, 216, 224, 232, 248]),
    (kind::COPY, [88, 88, 88, 96, 96, 96, 96, 112]),
    (kind::PEER_COPY, [96; 8]),
    (kind::SET, [88, 88, 88, 88, 88, 88, 88, 104]),
    (kind::GRAPH, [48, 56, 56, 56, 56, 56, 56, 56]),
    (kind::RUNTIME, [40; 8]),
    (kind::OVERHEAD, [40, 56, 56, 56, 56, 56, 56, 56]),
];

/// The bytes of each kind up to the end of the last field that is read.
fn least(kind: u32) -> usize {
    match kind {
        kind::KERNEL | kind::SERIAL_KERNEL => LONGEST,
        kind::COPY | kind::SET => 76,
        kind::PEER_COPY => 84,
        _ => 40,
    }
}

/// A record full of other values, in which a test sets fields.
struct Record(Vec<u8>);

impl Record {
    fn new(kind: u32, size: usize) -> Record {
        let noise = |at: usize| (at as u8).wrapping_mul(37) ^ 0xa5;
        Record((0..size).map(noise).collect()).u32(0, kind)
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Record {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u8(self, at: usize, value: u8) -> Record {
        self.put(at, &[value])
    }

    fn u16(self, at: usize, value: u16) -> Record {
        self.put(at, &value.to_ne_bytes())
    }

    fn u32(self, at: usize, value: u32) -> Record {
        self.put(at, &value.to_ne_bytes())
    }

    fn u64(self, at: usize, value: u64) -> Record {
        self.put(at, &value.to_ne_bytes())
    }
}

const WORK: Work = Work {
    start: 0x1122_3344_5566_7788,
    end: 0x1122_3344_5566_9999,
    device: 3,
    context: 5,
    stream: 7,
    correlation: 0x8765_4321,
    node: None,
    what: What::Set { bytes: 0 },
};

fn kernel(size: usize, kind: u32, node: Option<Node>) -> (Record, Activity) {
    let record = Record::new(kind, size).u16(6, 255).u64(16, WORK.start).u64(24, WORK.end);
    let record = record.u32(40, 3).u32(44, 5).u32(48, 7).u32(92, WORK.correlation);
    let sizes = [(52, 11), (56, 12), (60, 13), (64, 14), (68, 15), (72, 16), (76, 100), (80, 2000)];
    let record = sizes.iter().fold(record, |record, (at, value)| record.u32(*at, *value));
    let given = node.unwrap_or(Node { graph: 0, node: 99 });
    let record = record.u64(144, given.node).u32(156, given.graph);
    let what = What::Kernel { grid: [11, 12, 13], block: [14, 15, 16], registers: 255, shared: 2100 };
    (record, Activity::Work(Work { node, what, ..WORK }))
}

fn copied(kind: u32, size: usize, node: Option<Node>) -> (Record, Activity) {
    let record = Record::new(kind, size).u8(4, 2).u64(8, 1 << 40).u64(16, WORK.start).u64(24, WORK.end);
    let record = record.u32(32, 3).u32(36, 5).u32(40, 7);
    let is_peer = kind == kind::PEER_COPY;
    let (correlation, at_node, at_graph) = if is_peer { (60, 72, 80) } else { (44, 64, 72) };
    let given = node.unwrap_or(Node { graph: 0, node: 99 });
    let record =
        record.u32(correlation, WORK.correlation).u64(at_node, given.node).u32(at_graph, given.graph);
    let what = match kind {
        kind::SET => What::Set { bytes: 1 << 40 },
        kind::PEER_COPY => What::Copy { direction: Some(Direction::Peer), bytes: 1 << 40 },
        _ => What::Copy { direction: Some(Direction::DeviceToHost), bytes: 1 << 40 },
    };
    (record, Activity::Work(Work { node, what, ..WORK }))
}

fn made(kind: u32, size: usize, node: Option<Node>) -> (Record, Activity) {
    match kind {
        kind::KERNEL | kind::SERIAL_KERNEL => kernel(size, kind, node),
        kind::GRAPH => {
            let record =
                Record::new(kind, size).u32(4, WORK.correlation).u64(8, WORK.start).u64(16, WORK.end);
            let record = record.u32(24, 3).u32(28, 77).u32(32, 5).u32(36, 7);
            (record, Activity::Work(Work { what: What::Graph { graph: 77 }, ..WORK }))
        }
        kind::RUNTIME => {
            let record = Record::new(kind, size).u32(4, 211).u64(8, 1000).u64(16, 2000).u32(24, 1);
            let record = record.u32(28, 4242).u32(32, WORK.correlation).u32(36, 700);
            let (function, tid, status) = (211, 4242, 700);
            let correlation = WORK.correlation;
            let api = Api { is_driver: false, function, start: 1000, end: 2000, tid, correlation, status };
            (record, Activity::Api(api))
        }
        kind::OVERHEAD => {
            let record = Record::new(kind, size).u32(4, 0x40000).u64(24, 1000).u64(32, 2000);
            (record, Activity::Overhead(Overhead { kind: 0x40000, start: 1000, end: 2000 }))
        }
        _ => copied(kind, size, node),
    }
}

#[test]
fn every_layout_is_read_alike() {
    let node = Node { graph: 6, node: 0x1_0000_0002 };
    for (kind, sizes) in SIZES {
        for size in sizes {
            for node in [None, Some(node)] {
                let (Record(bytes), expected) = made(kind, size, node);
                assert_eq!(decode(&bytes), Some(expected), "kind {kind}, {size} bytes");
            }
        }
    }
}

#[test]
fn a_part_of_a_record_is_no_record() {
    for (kind, sizes) in SIZES {
        let (Record(bytes), expected) = made(kind, sizes[0], None);
        let least = least(kind);
        for length in 0..bytes.len() {
            let expected = Some(&expected).filter(|_| length >= least);
            assert_eq!(decode(&bytes[..length]).as_ref(), expected, "kind {kind}, {length} bytes");
        }
    }
}

#[test]
fn other_kinds_are_left_out() {
    let known: Vec<u32> = SIZES.iter().map(|(kind, _)| *kind).chain([kind::DRIVER]).collect();
    for kind in (0..100).chain([u32::MAX]) {
        let (Record(bytes), _) = made(kind, 248, None);
        assert_eq!(decode(&bytes).is_some(), known.contains(&kind), "kind {kind}");
    }
}

#[test]
fn copies_have_a_direction_where_cupti_knows_it() {
    let names = (0..12).map(|kind| {
        let (record, _) = made(kind::COPY, 88, None);
        match decode(&record.u8(4, kind).0) {
            Some(Activity::Work(Work { what: What::Copy { direction, .. }, .. })) => {
                direction.map_or("", Direction::name)
            }
            other => panic!("{other:?}"),
        }
    });
    let expected = ["", "H2D", "D2H", "H2D", "D2H", "D2D", "D2D", "D2D", "D2D", "H2H", "P2P", ""];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}
