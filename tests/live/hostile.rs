//! Names, files and libraries made to break a recorder.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::room::{live, live_nvidia};
use crate::trace::Trace;

#[test]
fn arguments_of_any_bytes() {
    live(|room| {
        let file = room.text("t.jsonl");
        let words: [&[u8]; 7] =
            [b"true", b"a\"b'c", b"new\nline\ttab", b"\xff\xfe\x80", b"\\u0041\\", b"", b"\x1b[31m\x01\x7f"];
        let mut command = room.gpurec(&["-o", &file, "--live", "--"]);
        command.args(words.iter().map(|word| OsStr::from_bytes(word)));
        let done = room.run(command);
        done.exited(0);
        assert!(!done.stderr.contains('\x1b'), "no escape reaches the terminal");
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        let expected: Vec<String> =
            words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        assert_eq!(trace.header["command"], serde_json::json!(expected));
        assert_eq!(trace.process_events("exec")[0]["command"], serde_json::json!(expected));
    });
}

#[test]
fn a_program_whose_file_has_an_odd_name() {
    live(|room| {
        let odd = room.dir.join(OsStr::from_bytes(b"ev\"il\n\xff) R 1"));
        fs::copy("/bin/sleep", &odd).unwrap();
        let file = room.text("t.jsonl");
        let mut command = room.gpurec(&["-o", &file, "--live", "--"]);
        command.arg(&odd).arg("0.1");
        room.run(command).exited(0);
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        assert_eq!(trace.header["command"][0], odd.to_string_lossy().as_ref());
    });
}

#[test]
fn a_long_command_line_is_cut_and_the_rest_is_whole() {
    live(|room| {
        let long = "y".repeat(100_000);
        let (done, trace) = room.record(&[], &["true", &long, "end"]);
        done.exited(0);
        trace.is_whole();
        assert_eq!(trace.header["command"][2], "end");
        let command = trace.process_events("exec")[0]["command"].as_array().unwrap();
        assert!(command[1].as_str().unwrap().starts_with("yyyy"));
    });
}

/// Maps the files, each called libcuda.so.1 in a folder of its own; returns what the trace says of each.
fn mapped(room: &crate::room::Room, contents: &[Vec<u8>]) -> Vec<serde_json::Value> {
    let program = room.compile("maps.c", "maps", &[]);
    let files: Vec<String> = contents
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            fs::create_dir(room.path(&format!("lib-{i}"))).unwrap();
            let path = room.text(&format!("lib-{i}/libcuda.so.1"));
            fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    let words: Vec<&str> = std::iter::once(&program).chain(&files).map(String::as_str).collect();
    let (done, trace) = room.record(&[], &words);
    done.exited(0);
    assert_eq!(done.text(), format!("mapped {}\n", files.len()));
    let libraries = trace.process_events("library");
    let said = |file: &String| {
        let mut said = libraries.iter().filter(|line| line["path"] == file.as_str());
        let first = said.next().unwrap_or_else(|| panic!("nothing is said of {file}: {libraries:?}"));
        (*first).clone()
    };
    files.iter().map(said).collect()
}

fn has_reason(library: &serde_json::Value) -> bool {
    library["not_hooked"].as_array().unwrap().iter().any(|one| one["reason"].as_str().unwrap().len() > 5)
}

#[test]
fn garbage_that_is_called_libcuda() {
    live(|room| {
        let mut random = 1u64;
        let mut noise = |length: usize| -> Vec<u8> {
            let mut next = || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 56) as u8
            };
            (0..length).map(|_| next()).collect()
        };
        let elf = |bytes: Vec<u8>| {
            [&b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0"[..], &bytes].concat()
        };
        let contents = [
            b"\x7fELF".to_vec(),
            elf(noise(40)),
            elf(noise(5000)),
            elf(vec![0xff; 5000]),
            elf(vec![0; 5000]),
        ];
        for library in mapped(room, &contents) {
            assert_eq!(library["functions"], 0, "{library}");
            assert!(has_reason(&library), "{library}");
        }
    });
}

#[test]
fn truncated_copies_of_the_real_libcuda() {
    live_nvidia(|room, libraries| {
        let real = fs::read(libraries.join("libcuda.so.1")).unwrap();
        let length = real.len();
        let cuts = [16, 64, 65, 200, 1000, 4096, 30_000, 100_000, length / 2, length - 1];
        let contents: Vec<Vec<u8>> = cuts.iter().map(|cut| real[..*cut].to_vec()).collect();
        for (cut, library) in cuts.iter().zip(mapped(room, &contents)) {
            let functions = library["functions"].as_u64().unwrap();
            assert!(functions > 0 || has_reason(&library), "cut at {cut}: {library}");
        }
    });
}

#[test]
fn what_is_no_elf_file_and_called_libcuda() {
    live(|room| {
        let contents = [b"#!/bin/sh\n".to_vec(), b"\x7f".to_vec(), vec![0; 5000], vec![0xcc; 5000]];
        for library in mapped(room, &contents) {
            assert_eq!(library["functions"], 0, "{library}");
            assert!(has_reason(&library), "{library}");
        }
    });
}
