//! Lines: of tables by hand, and of the standard library of every interpreter at hand, against what each says itself.

use std::process::Command;

use super::interpreters;
use crate::stacks::python::{Format, line};
use gpurec_trace::bytes::u32_at;

/// The lines of the first instructions, each two bytes long.
fn lines(format: Format, table: &[u8], count: i64) -> Vec<Option<u32>> {
    (0..count).map(|at| line(format, table, 10, 2 * at)).collect()
}

#[test]
fn a_lnotab_steps_forth_and_back() {
    let table = [0, 1, 4, 2, 2, 0xff, 255, 0, 1, 127, 0, 3];
    let near = lines(Format::Lnotab, &table, 5);
    assert_eq!(near, [Some(11), Some(11), Some(13), Some(12), Some(12)]);
    assert_eq!(line(Format::Lnotab, &table, 10, 261), Some(12));
    assert_eq!(line(Format::Lnotab, &table, 10, 262), Some(142));
    assert_eq!(line(Format::Lnotab, &table, 10, 1 << 40), Some(142));
    assert_eq!(line(Format::Lnotab, &[], 10, 0), Some(10));
}

#[test]
fn ranges_may_have_no_line() {
    let table = [2, 0, 4, 0x80, 0, 100, 2, 1, 2, 0xfe, 254, 0];
    let near = lines(Format::Ranges, &table, 6);
    assert_eq!(near, [Some(10), None, None, Some(111), Some(109), Some(109)]);
    assert_eq!(line(Format::Ranges, &table, 10, 263), Some(109));
    assert_eq!(line(Format::Ranges, &table, 10, 264), None);
}

#[test]
fn locations_have_sixteen_forms() {
    // Each by its number, for one or two instructions, with the bytes that belong to it.
    let entry = |form: u8, count: u8| 0x80 | form << 3 | (count - 1);
    let table = [
        entry(0, 1),
        0x12,
        entry(11, 2),
        5,
        6,
        entry(12, 1),
        5,
        6,
        entry(15, 1),
        entry(13, 1),
        0x40 | 0x07, // 67 lines back: 67 * 2 + 1, in pieces of six bits.
        0x02,
        entry(14, 1),
        0x40 | 0x10, // 1000 lines on: 2000.
        0x1f,
        1,
        2,
        3,
        entry(10, 1),
        1,
        1,
    ];
    let expected =
        [Some(10), Some(11), Some(11), Some(13), None, Some(13 - 67), Some(1013 - 67), Some(1013 - 67)];
    let found: Vec<_> = (0..9).map(|at| line(Format::Locations, &table, 10 + 100, 2 * at)).collect();
    let expected: Vec<_> =
        expected.iter().map(|line| line.map(|line: i32| (line + 100) as u32)).chain([None]).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_has_no_line_in_python_has_none_here() {
    for format in [Format::Lnotab, Format::Ranges, Format::Locations] {
        assert_eq!(line(format, &[], 7, -2), Some(7));
        assert_eq!(line(format, &[2, 0x80, 0x40], -7, -2), None);
    }
    // A number without an end, and one of more than 32 bits.
    assert_eq!(line(Format::Locations, &[0xe8, 0x42], 7, 0), Some(8));
    assert_eq!(line(Format::Locations, &[0xe8, 0x42, 0x40, 0x40, 0x40, 0x40, 0x40, 0x3f], 7, 0), Some(8));
    assert_eq!(line(Format::Locations, &[0x07], 7, 14), Some(7));
}

/// Compares the lines of `most` modules of the standard library; returns the version and the number of lines.
fn compare(command: &[String], most: u32) -> (u32, u64) {
    let output = Command::new(&command[0])
        .args(&command[1..])
        .args(["-c", include_str!("lines.py"), &most.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let said = output.stdout;
    let version = u32_at(&said, 0).unwrap();
    let (format, mut at, mut compared) = (Format::of(version), 4, 0);
    while at < said.len() {
        let [first, size, count] = [0, 4, 8].map(|word| u32_at(&said, at + word).unwrap());
        let table = &said[at + 12..][..size as usize];
        at += 12 + size as usize;
        for index in 0..count {
            let theirs = u32_at(&said, at).unwrap() as i32;
            let offset = if index == 0 { -1 } else { 2 * (i64::from(index) - 1) };
            let ours = line(format, table, first as i32, offset);
            let same = ours == u32::try_from(theirs).ok();
            assert!(same, "{version:x}: {ours:?}, not {theirs}, at {offset} of {table:?} from {first}");
            at += 4;
        }
        compared += u64::from(count);
    }
    (version, compared)
}

fn compare_all(most: u32) {
    for command in interpreters() {
        let (version, compared) = compare(&command, most);
        assert!(compared > 5_000, "{command:?}: {compared}");
        println!("Python {version:x}: {compared} lines compared");
    }
}

#[test]
fn lines_are_those_of_the_interpreter() {
    compare_all(40);
}

#[test]
#[ignore = "looks up every line of the standard library, which takes minutes: scripts/test --full"]
fn lines_of_the_whole_library_are_those_of_the_interpreter() {
    compare_all(u32::MAX >> 1);
}
