//! The data behind a record: stack words and pieces of memory, both as BPF writes them and malformed.

use super::super::decode::{Captured, What, decode, late_pieces, pieces};
use super::super::pair::Pairing;
use super::sink::Folder;
use super::{Random, call_record, head};
use crate::probe::Probe;
use crate::wire;
use gpurec_cuda::raw::Piece;

/// A piece in the layout of a record.
fn piece(state: u16, bytes: &[u8]) -> Vec<u8> {
    let head = wire::Piece { state, length: bytes.len() as u16, late: 0 };
    let mut piece = [wire::bytes(&head), bytes].concat();
    piece.resize(piece.len().next_multiple_of(8), 0);
    piece
}

/// The piece at the return for the entry's read number `index`.
fn late(index: u32, bytes: &[u8]) -> Vec<u8> {
    let mut late = piece(wire::PIECE_READ, bytes);
    late[4..8].copy_from_slice(&(index + 1).to_ne_bytes());
    late
}

/// A call with these stack words in front of its pieces.
fn call(words: &[u64], pieces: &[u8], args: [u64; 6]) -> Vec<u8> {
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let payload = (stack.len() + pieces.len()) as u16;
    let head = head(wire::CALL, 0, 1000, 2, 1, 1);
    let call = wire::Call { head, pid: 2, payload, words: words.len() as u16, sp: 5, args };
    [wire::bytes(&call), &stack, pieces].concat()
}

/// A return is built in the buffer of a call: its pieces start behind the size of a call.
fn a_return(pieces: &[u8], value: u64) -> Vec<u8> {
    let head = head(wire::RETURN, 0, 2000, 2, 2, 1);
    let ret = wire::Return { head, begin: 1000, value, payload: pieces.len() as u32, pad: 0 };
    let mut bytes = wire::bytes(&ret).to_vec();
    bytes.resize(size_of::<wire::Call>(), 0xaa);
    [&bytes, pieces].concat()
}

fn captured(record: &[u8]) -> Captured {
    match decode(record).map(|item| item.what) {
        Some(What::Call { captured, .. }) => captured,
        other => panic!("{other:?}"),
    }
}

fn read(bytes: &[u8]) -> Piece<'_> {
    Piece::Bytes { bytes, cut: false }
}

fn cut(bytes: &[u8]) -> Piece<'_> {
    Piece::Bytes { bytes, cut: true }
}

#[test]
fn a_call_has_its_words_and_pieces() {
    let all = [
        piece(wire::PIECE_READ, b"seven b"),
        piece(wire::PIECE_NULL, b""),
        piece(2, b""),
        piece(wire::PIECE_CUT, b"a text of more than eight"),
        piece(wire::PIECE_READ, b""),
    ]
    .concat();
    let found = captured(&call(&[1, u64::MAX, 3], &all, [6; 6]));
    assert_eq!(found.args, [6; 6]);
    assert_eq!(found.payload().stack().collect::<Vec<_>>(), [1, u64::MAX, 3]);
    let expected =
        [read(b"seven b"), Piece::Null, Piece::Unreadable, cut(b"a text of more than eight"), read(b"")];
    assert_eq!(found.pieces().collect::<Vec<_>>(), expected);
}

#[test]
fn a_return_has_its_pieces() {
    let all = [piece(wire::PIECE_READ, &[9; 8]), piece(wire::PIECE_NULL, b"")].concat();
    let Some(What::Return { begin: 1000, value: 7, pieces: found, .. }) =
        decode(&a_return(&all, 7)).map(|item| item.what)
    else {
        panic!("no return")
    };
    assert_eq!(pieces(&found).collect::<Vec<_>>(), [read(&[9; 8]), Piece::Null]);
}

#[test]
fn a_call_without_more_has_none() {
    let found = captured(&call_record(1, 2, 3, 4, 5));
    assert_eq!((found.payload().stack().count(), found.pieces().count()), (0, 0));
}

/// A record whose end is missing is rejected: half of its pieces would look like all of them.
#[test]
fn a_record_with_less_behind_it_than_it_says_is_none() {
    let all = [piece(wire::PIECE_READ, b"text"), piece(wire::PIECE_CUT, &[1; 100])].concat();
    for record in [call(&[1, 2], &all, [0; 6]), a_return(&all, 0)] {
        assert!(decode(&record).is_some());
        for length in 0..record.len() {
            assert_eq!(decode(&record[..length]), None, "{length} of {}", record.len());
        }
        let longer = [&record[..], &[0xff; 100]].concat();
        assert_eq!(decode(&longer), decode(&record), "what the ring has behind it does not matter");
    }
}

#[test]
fn more_words_than_bytes_are_as_many_as_there_are() {
    for (words, payload, expected) in [(3, 16, 2), (u16::MAX, 16, 2), (2, 15, 1), (1, 7, 0), (u16::MAX, 0, 0)]
    {
        let head = head(wire::CALL, 0, 1, 2, 3, 4);
        let call = wire::Call { head, pid: 2, payload, words, sp: 5, args: [0; 6] };
        let record = [wire::bytes(&call), &[1; 16]].concat();
        let found = captured(&record);
        assert_eq!(found.payload().stack().count(), expected, "{words} words in {payload} bytes");
        assert_eq!(found.pieces().count(), 0);
    }
}

#[test]
fn the_largest_sizes_are_taken_or_refused() {
    for payload in [u32::MAX, u32::MAX - 87, 1 << 31, 1 << 16] {
        let mut record = a_return(&piece(wire::PIECE_READ, &[1; 64]), 0);
        record[40..44].copy_from_slice(&payload.to_ne_bytes());
        assert_eq!(decode(&record), None, "{payload}");
    }
    let most = piece(wire::PIECE_READ, &vec![7; 65_500]);
    let found = captured(&call(&[], &most, [0; 6]));
    assert_eq!(found.pieces().collect::<Vec<_>>(), [read(&[7; 65_500])]);
}

#[test]
fn what_is_no_piece_ends_them() {
    let good = piece(wire::PIECE_READ, b"good");
    for length in [5, 8, 9, 4096, u16::MAX] {
        let bad = wire::Piece { state: wire::PIECE_READ, length, late: 0 };
        let bytes = [&good[..], wire::bytes(&bad), b"four"].concat();
        assert_eq!(pieces(&bytes).collect::<Vec<_>>(), [read(b"good")], "a length of {length}");
    }
    for rest in 0..8 {
        let bytes = [&good[..], &[0; 8][..rest]].concat();
        assert_eq!(pieces(&bytes).count(), 1, "{rest} bytes behind");
    }
    // The last piece needs no padding.
    let bytes = &good[..good.len() - 4];
    assert_eq!(pieces(bytes).collect::<Vec<_>>(), [read(b"good")]);
    assert_eq!(pieces(&[]).count(), 0);
}

#[test]
fn an_unknown_state_is_unreadable() {
    for state in [2, 4, 5, 0x100, u16::MAX] {
        assert_eq!(pieces(&piece(state, b"text")).collect::<Vec<_>>(), [Piece::Unreadable]);
    }
}

#[test]
fn late_pieces_stand_beside_the_planned_ones() {
    let all = [piece(wire::PIECE_READ, b"planned"), late(2, b"name"), late(u32::MAX - 1, b"")].concat();
    assert_eq!(pieces(&all).collect::<Vec<_>>(), [read(b"planned")]);
    let late: Vec<_> = late_pieces(&all).collect();
    assert_eq!(late, [(2, read(b"name")), (u32::MAX as usize - 1, read(b""))]);
}

#[test]
fn an_argument_that_could_be_read_at_the_return_alone() {
    let unread = piece(2, b"");
    let lines = lines_of(
        "late",
        "cuModuleGetFunction",
        [
            &call(&[], &unread, [0x10, 0x20, 0x30, 0, 0, 0]),
            &a_return(&[piece(wire::PIECE_READ, &0x77u64.to_ne_bytes()), late(0, b"gemm\0")].concat(), 0),
        ],
    );
    let of = |phase: &str| lines.iter().find(|line| line["phase"] == phase).unwrap().clone();
    let (begin, end) = (of("B"), of("E"));
    assert_eq!(begin["args"]["name"], serde_json::Value::Null);
    assert_eq!(begin["args"]["unreadable"], serde_json::json!(["name"]));
    assert_eq!(end["args"], serde_json::json!({"name": "gemm"}));
    assert_eq!(end["out"]["hfunc"], "0x77");
}

#[test]
fn random_bytes_are_never_more_than_there_are() {
    let mut random = Random::new(3);
    let mut found = 0;
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.below(120)).map(|_| random.next() as u8).collect();
        for at in (3..bytes.len()).step_by(8).filter(|_| random.percent(70)).collect::<Vec<_>>() {
            bytes[at] = 0;
            bytes[at - 1] %= 24;
        }
        let late = late_pieces(&bytes).map(|(_, piece)| piece);
        let all: Vec<_> = pieces(&bytes).chain(late).collect();
        let held: usize =
            all.iter().map(|p| if let Piece::Bytes { bytes, .. } = p { bytes.len() } else { 0 }).sum();
        assert!(held + 8 * all.len() <= bytes.len());
        found += all.len();
        let words = random.next() as u16 % 20;
        let head = head(wire::CALL, 0, 1, 2, 3, 4);
        let call = wire::Call { head, pid: 2, payload: bytes.len() as u16, words, sp: 5, args: [0; 6] };
        let record = [wire::bytes(&call), &bytes[..]].concat();
        let whole = captured(&record);
        assert!(whole.payload().stack().count() <= usize::from(words));
        whole.pieces().for_each(drop);
    }
    assert!(found > 10_000, "only {found} pieces");
}

/// The lines of a call and its return with these records, through the whole pipeline.
fn lines_of(name: &str, function: &str, records: [&[u8]; 2]) -> Vec<serde_json::Value> {
    let folder = Folder::new(name);
    let (mut lines, writer) = folder.lines(1000);
    let signature = gpurec_cuda::signature(function, None);
    assert!(signature.is_some());
    lines.add_probes(&[Probe { id: 1, name: function.to_owned(), signature, beneath: None }]);
    let mut pairing = Pairing::default();
    for record in records {
        pairing.feed(&decode(record).unwrap(), &mut lines);
    }
    lines.flush();
    drop(lines);
    writer.join().unwrap();
    let mut calls = folder.read();
    calls.retain(|line| line["type"] == "userspace");
    calls
}

#[test]
fn pieces_become_named_arguments_and_results() {
    let entry = call(&[], &piece(wire::PIECE_READ, b"kernel\0"), [0x7000, 0x10, 0x20, 9, 9, 9]);
    let exit = a_return(&piece(wire::PIECE_READ, &0x55_u64.to_ne_bytes()), 0);
    let lines = lines_of("pieces", "cuModuleGetFunction", [&entry, &exit]);
    assert_eq!(lines[0]["args"], serde_json::json!({"hfunc": "0x7000", "hmod": "0x10", "name": "kernel"}));
    assert_eq!(lines[1]["out"], serde_json::json!({"hfunc": "0x55"}));
}

#[test]
fn what_could_not_be_read_is_null_and_named() {
    let entry = call(&[], &piece(2, b""), [0x7000, 0x10, 0x20, 9, 9, 9]);
    let exit = a_return(&piece(2, b""), 0);
    let lines = lines_of("unreadable", "cuModuleGetFunction", [&entry, &exit]);
    let args = serde_json::json!({"hfunc": "0x7000", "hmod": "0x10", "name": null, "unreadable": ["name"]});
    assert_eq!(lines[0]["args"], args);
    assert_eq!(lines[1]["out"], serde_json::json!({"hfunc": null, "unreadable": ["hfunc"]}));
    // The pieces and the stack words are missing.
    let lines = lines_of("missing", "cuModuleGetFunction", [&call(&[], &[], [1; 6]), &a_return(&[], 0)]);
    assert_eq!(lines[0]["args"]["unreadable"], serde_json::json!(["name"]));
    assert_eq!(lines[1].get("out"), None, "{}", lines[1]);
    let lines = lines_of("stack", "cuLaunchKernel", [&call(&[3], &[], [1; 6]), &a_return(&[], 0)]);
    let args = &lines[0]["args"];
    assert_eq!((&args["blockDimZ"], &args["hStream"]), (&3.into(), &serde_json::Value::Null), "{args}");
    let expected = serde_json::json!(["sharedMemBytes", "hStream", "kernelParams", "extra"]);
    assert_eq!(args["unreadable"], expected, "{args}");
}

#[test]
fn hostile_pieces_make_valid_lines() {
    let mut random = Random::new(9);
    for round in 0..200 {
        let function = ["cuModuleGetFunction", "cuLaunchKernelEx", "cuMemcpyBatchAsync", "cuMemcpy2D_v2"];
        let function = function[random.below(4) as usize];
        let mut noise = |most: u64| -> Vec<u8> {
            let mut all = Vec::new();
            for _ in 0..random.below(6) {
                let bytes: Vec<u8> = (0..random.below(most)).map(|_| random.next() as u8).collect();
                all.extend(piece(random.below(5) as u16, &bytes));
            }
            all
        };
        let entry = call(&[1; 4], &noise(600), [round; 6]);
        let exit = a_return(&noise(40), 0);
        let lines = lines_of(&format!("hostile-{round}"), function, [&entry, &exit]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[1]["begin"], lines[0]["event_id"]);
    }
}
