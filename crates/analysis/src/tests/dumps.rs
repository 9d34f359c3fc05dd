//! Figures of a dump of the flight recorder: what it carries is held, and was not made in its period.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Adds a carried allocation, with its own `stack` if there is one.
fn carried(s: &mut Script, ptr: u64, size: u64, total: u64, stack: Option<u64>) -> u64 {
    let memory = Memory {
        pid: 100,
        tid: 100,
        begin: None,
        on: Where::default(),
        name: "cuMemAlloc_v2".into(),
        op: Op::Alloc,
        space: "device".into(),
        ptr,
        size: Some(size),
        total_allocated: Some(total),
        earlier: false,
        missed: false,
        runtime: false,
        carried: true,
        stack,
    };
    s.push(SECOND, Body::Memory(memory))
}

fn dump() -> (Vec<u8>, u64) {
    let mut s = Script::new();
    let exec = Exec { pid: 100, tid: 100, command: vec!["train".into()], ..Exec::default() };
    s.push(0, Body::Process(Process::Exec(exec)));
    let first = carried(&mut s, 0x1000, 100, 100, None);
    let frame = Frame::Python { function: "load".into(), file: "train.py".into(), line: Some(8) };
    s.push(0, Body::Stack(Stack { stack: 7, pid: 100, frames: vec![frame], cut: false }));
    carried(&mut s, 0x2000, 1000, 1100, Some(7));
    // The period begins 10 s after the recording.
    s.push(8 * SECOND, Body::Suspend(Suspend { slept_ns: 1 }));
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x3000, 10, 1110);
    s.memory("cuMemFree_v2", Op::Free, "device", 0x1000, 100, 1010);
    s.push(SECOND, Body::Suspend(Suspend { slept_ns: 1 }));
    let dump = Dump {
        number: 1,
        event: "exit".into(),
        because: "process 100 was killed by SIGSEGV".into(),
        from_ns: 10 * SECOND,
        suppressed: 0,
    };
    let finish =
        Finish { complete: true, events: s.lines.len() as u64, dump: Some(dump), ..Finish::default() };
    s.push(0, Body::Finish(Box::new(finish)));
    for line in &mut s.lines {
        if let Body::Memory(memory) = &mut line.body {
            memory.on.device = Some(0);
        }
    }
    let mut writer = LineWriter::new(Vec::new());
    s.lines.iter().for_each(|line| writer.write(line).unwrap());
    (writer.into_inner().unwrap(), first)
}

#[test]
fn what_is_carried_is_held_and_not_made_in_the_period() {
    let figures = of_file(&dump().0);
    assert!(figures.complete, "{:?}", figures.incomplete_because);
    assert!((SECOND..2 * SECOND).contains(&figures.duration_ns), "{}", figures.duration_ns);
    let memory = &figures.memory;
    assert_eq!((memory.allocations, memory.allocated_bytes), (1, 10), "in the period");
    assert_eq!((memory.frees, memory.freed_bytes), (1, 100));
    assert_eq!((memory.held.count, memory.held.bytes), (2, 1010));
    let largest = &memory.held.largest[0];
    assert_eq!((largest.size, largest.site.as_deref()), (1000, Some("train.py:8 load")));
    assert_eq!(largest.age_ns, figures.duration_ns + 10 * SECOND - 2 * SECOND, "since it was made");
    assert_eq!((figures.devices[0].allocations, figures.devices[0].held_bytes), (1, 1010));
    assert_eq!(figures.processes[0].peak_device_bytes, 1110);
    assert!(figures.notes[0].contains("killed by SIGSEGV"), "{:?}", figures.notes);
    assert!(figures.unknown.is_empty(), "{:?}", figures.unknown);
}

/// Carried lines keep their times, so a part of a dump that begins later has none of them.
#[test]
fn a_part_of_a_dump_has_the_carried_only_from_the_beginning() {
    let text = dump().0;
    let of = |from_ns: Option<u64>| {
        let only = Only { from_ns, ..Only::default() };
        let (mut reader, mut summary) = (Reader::new(&text[..]), Summary::new());
        let mut sieve = only::Sieve::new(&only);
        while let Some(line) = reader.next().unwrap() {
            if !matches!(sieve.line(&line).unwrap(), only::Selection::No) {
                summary.add(&line);
            }
        }
        summary.finish(11 * SECOND).memory.held.bytes
    };
    assert_eq!((of(None), of(Some(10 * SECOND))), (1010, 10));
}
