//! Decodes every kind of record from its bytes, and rejects bytes that are no record.

use super::super::decode::{Captured, Item, Origin, What, decode};
use super::{Random, call_record, head, return_record};
use crate::wire;

fn exec(length: u32, flags: u16, argv: &[u8]) -> Vec<u8> {
    let mut command = [0xaa; 4096];
    command[..argv.len()].copy_from_slice(argv);
    let head = head(wire::EXEC, flags, 9, 5, 0, 0);
    wire::bytes(&wire::Exec { head, pid: 4, length, command }).to_vec()
}

fn one_of_each() -> Vec<Vec<u8>> {
    let fork = wire::Fork { head: head(wire::FORK, 0, 7, 5, 0, 0), pid: 4, child: 99 };
    let exit = wire::Exit { head: head(wire::EXIT, 0, 8, 5, 0, 0), pid: 4, status: -1 };
    vec![
        call_record(1, 2, 3, 4, 5),
        return_record(1, 2, 3, 4, 5, 6),
        wire::bytes(&fork).to_vec(),
        exec(3, 0, b"ls\0"),
        wire::bytes(&exit).to_vec(),
        wire::bytes(&mapped()).to_vec(),
        unwind(1),
    ]
}

fn mapped() -> wire::Mapped {
    let file = wire::FileKey { inode: 7, device: 8 << 20 | 1, generation: 2, changed: 3, size: 4 };
    let head = head(wire::MAPPED, 0, 9, 5, 0, 0);
    wire::Mapped { head, pid: 4, number: 6, start: 0x1000, end: 0x2000, offset: 0x100, file }
}

/// With the five registers and 16 bytes of the stack.
fn unwind(has_registers: u64) -> Vec<u8> {
    let head = head(wire::UNWIND, 0, 9, 5, 0, 0);
    let record = wire::Unwind { head, pid: 4, size: 16, seed: 1, ip: 2, sp: 3, bp: 4, has_registers };
    let words = [10u64, 11, 12, 13, 14, 15, 16];
    [wire::bytes(&record), &words.map(u64::to_ne_bytes).concat()].concat()
}

#[test]
fn a_mapping_and_a_copied_stack() {
    let Some(Item { what: What::Mapped(found), .. }) = decode(wire::bytes(&mapped())) else { panic!() };
    assert_eq!((found.pid, found.number, found.what.file.device), (4, 6, (8, 1)));
    assert_eq!((found.what.start, found.what.end, found.what.offset), (0x1000, 0x2000, 0x100));
    for (has_registers, others) in [(0, None), (1, Some([10, 11, 12, 13, 14]))] {
        let Some(Item { what: What::Unwind(found), .. }) = decode(&unwind(has_registers)) else { panic!() };
        assert_eq!((found.ip, found.sp, found.bp, found.others), (2, 3, 4, others));
        assert_eq!(*found.bytes, *[15u64, 16].map(u64::to_ne_bytes).concat());
    }
}

#[test]
fn a_call() {
    for flags in [0, wire::CHAINED, wire::CHAINED | wire::PROCESS_ENDED] {
        let head = head(wire::CALL, flags, u64::MAX, 12, u32::MAX, 77);
        let args = [u64::MAX, 0, 1 << 63, 3, 4, 5];
        let call = wire::Call { head, pid: 11, payload: 0, words: 0, sp: 0x7fff_0000, args };
        let bytes = wire::bytes(&call).to_vec();
        let chained = flags & wire::CHAINED != 0;
        let what = What::Call {
            pid: 11,
            probe: 77,
            chained,
            sp: 0x7fff_0000,
            captured: Captured::registers(args),
            origin: Origin::default(),
            stack: None,
        };
        assert_eq!(decode(&bytes), Some(Item { ts: u64::MAX, tid: 12, seq: u32::MAX, what }));
    }
}

#[test]
fn a_return() {
    let what = What::Return {
        probe: 4,
        begin: 5,
        value: u64::MAX,
        pieces: Box::default(),
        origin: Origin::default(),
    };
    let item = Item { ts: 1, tid: 2, seq: 3, what };
    assert_eq!(decode(&return_record(1, 2, 3, 4, 5, u64::MAX)), Some(item));
}

#[test]
fn a_fork_and_both_exits() {
    let fork = wire::Fork { head: head(wire::FORK, 0, 7, 5, 0, 0), pid: 4, child: 99 };
    let item = Item { ts: 7, tid: 5, seq: 0, what: What::Fork { pid: 4, child: 99 } };
    assert_eq!(decode(wire::bytes(&fork)), Some(item));
    for (process, left_calls, flags) in
        [(false, false, 0), (true, false, wire::PROCESS_ENDED), (false, true, wire::LEFT_CALLS)]
    {
        let exit = wire::Exit { head: head(wire::EXIT, flags, 8, 5, 0, 0), pid: 4, status: 0x100 };
        let what = What::Exit { pid: 4, status: 0x100, process, left_calls };
        assert_eq!(decode(wire::bytes(&exit)), Some(Item { ts: 8, tid: 5, seq: 0, what }));
    }
}

#[test]
fn an_exec_has_as_much_of_the_command_as_it_says() {
    let cases = [(0, wire::CUT, &b""[..]), (3, 0, b"ls\0"), (6, 0, b"ls\0-l\0"), (4096, 0, &[b'x'; 4096])];
    for (length, flags, argv) in cases {
        let decoded = decode(&exec(length, flags, argv));
        let what = What::Exec { pid: 4, old_tid: 0, command: argv.into(), cut: flags == wire::CUT };
        assert_eq!(decoded, Some(Item { ts: 9, tid: 5, seq: 0, what }));
    }
}

#[test]
fn an_exec_longer_than_its_array_is_none() {
    for length in [4097, 1 << 16, i32::MAX as u32, u32::MAX] {
        assert_eq!(decode(&exec(length, 0, b"")), None);
    }
}

#[test]
fn truncated_records_are_none() {
    for record in one_of_each() {
        assert!(decode(&record).is_some());
        for length in 0..record.len() {
            assert_eq!(decode(&record[..length]), None, "{length} of {} bytes", record.len());
        }
    }
}

#[test]
fn what_follows_a_record_does_not_matter() {
    for record in one_of_each() {
        let longer = [&record[..], &[0xff; 100]].concat();
        assert_eq!(decode(&longer), decode(&record));
    }
}

#[test]
fn unknown_kinds_are_none() {
    for kind in [0, 6, 13, 255, u16::MAX] {
        let mut bytes = vec![0; 5000];
        bytes[16..18].copy_from_slice(&u16::to_ne_bytes(kind));
        assert_eq!(decode(&bytes), None, "kind {kind}");
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random::new(1);
    let mut decoded = 0;
    for _ in 0..20_000 {
        let length = match random.below(3) {
            0 => random.below(30),
            1 => random.below(100),
            _ => 4000 + random.below(200),
        };
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        if bytes.len() > 18 && random.percent(90) {
            bytes[16..18].copy_from_slice(&(random.below(8) as u16).to_ne_bytes());
        }
        if bytes.len() > 31 && random.percent(50) {
            bytes[30..32].fill(0);
        }
        decoded += usize::from(decode(&bytes).is_some());
    }
    assert!(decoded > 1000, "only {decoded} of the random records were records");
}
