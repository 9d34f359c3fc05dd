//! Programs that would fill the recorder's memory, or its trace.

use std::fs;
use std::path::{Path, PathBuf};

use crate::figures::figure;
use crate::room::{Room, live};
use crate::trace::Trace;

/// In KiB, without the rings.
const MOST: u64 = 300 << 10;

/// Records the program with its library, and returns the trace. Thread numbers are reused and not all calls without an
/// end are listed, so the nesting of calls is not checked.
fn record(room: &Room, options: &[&str], words: &[&str]) -> Trace {
    let library = room.compile("bounds.c", "libcudart.so.12", &["-DLIBRARY", "-shared", "-fPIC"]);
    let folder = room.dir.to_str().unwrap().to_owned();
    let program = room.compile("bounds.c", "bounds", &[&library, &format!("-Wl,-rpath,{folder}")]);
    let file = room.text("t.jsonl");
    let words = [options, &["-o", &file, "--", &program], words].concat();
    most_under(room, &words);
    Trace::parsed(&fs::read_to_string(file).unwrap())
}

fn most_under(room: &Room, words: &[&str]) {
    let mut recording = room.start(room.gpurec(words));
    let most = recording.most_memory();
    recording.done().exited(0);
    println!("{} MiB", most >> 10);
    assert!(most > 0 && most < MOST, "{} MiB of its own", most >> 10);
}

/// A recorder that kept each name would keep it for as long as the process lives.
#[test]
fn two_hundred_thousand_long_kernel_names() {
    live(|room| {
        let trace = record(room, &["--summary-only", "--lossless"], &["names", "200000"]);
        assert_eq!((trace.complete(), trace.lost()), (false, 0));
        assert_eq!(trace.codes(), ["table_full"], "{:?}", trace.reasons());
        assert_eq!(*figure(&trace.end["summary"], "cuda_calls"), 200_000);
    });
}

/// The names of launched kernels are in the tables of the recorder, and in its summary.
#[test]
fn two_hundred_thousand_launches_of_long_kernel_names() {
    live(|room| {
        let trace = record(room, &["--summary-only", "--lossless"], &["launches", "200000"]);
        assert_eq!((trace.complete(), trace.lost()), (false, 0));
        assert_eq!(trace.codes(), ["table_full"], "{:?}", trace.reasons());
        assert_eq!(*figure(&trace.end["summary"], "kernel_launches"), 200_000);
    });
}

/// The `end` line lists these calls, up to a limit.
#[test]
fn threads_without_end_that_die_in_calls() {
    live(|room| {
        let trace = record(room, &["--lossless"], &["die", "60000"]);
        let listed = trace.end["in_flight"].as_array().unwrap().len();
        assert!((15_000..60_000).contains(&listed), "{listed}");
        let more = format!("{} more calls", 60_000 - listed);
        assert!(trace.reason("in_flight").starts_with(&more), "{:?}", trace.reasons());
        let said = room.run(room.gpurec(&["summary", &room.text("t.jsonl")]));
        said.exited(0);
        assert!(!said.stderr.contains("killed") && !said.text().contains("killed"), "{}", said.stderr);
    });
}

const SYMBOLS: u64 = 65_500;

/// Each symbol's name begins this many bytes after the one before, and they end together.
const APART: u64 = 20;
const TOGETHER: u64 = 200;

/// A library of three megabytes whose symbols share the bytes of long names.
fn library_of_shared_names() -> Vec<u8> {
    let put = |bytes: &mut Vec<u8>, at: u64, value: &[u8]| {
        let at = at as usize;
        bytes.resize(bytes.len().max(at + value.len()), 0);
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    let mut bytes = Vec::new();
    let (symbols, names) = (0x1000, 0x1000 + (SYMBOLS + 1) * 24);
    let soname_at = APART * SYMBOLS + 64;
    let code = (names + soname_at + 64).next_multiple_of(0x1000);
    let length = code + SYMBOLS * 2 + 64;
    let soname = b"libcuda.so.1\0";
    let text_size = soname_at + soname.len() as u64;
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &[3, 0, 0x3e, 0, 1]);
    put(&mut bytes, 32, &64u64.to_le_bytes());
    put(&mut bytes, 52, &[64, 0, 56, 0, 2, 0, 64]);
    let mut segment = |at: u64, words: [u64; 7]| {
        for (i, word) in words.iter().enumerate() {
            put(&mut bytes, at + i as u64 * 8, &word.to_le_bytes());
        }
    };
    // A loaded segment that is executed, and the dynamic section.
    segment(64, [1 | 5 << 32, 0, 0, 0, length, length, 0x1000]);
    segment(120, [2 | 4 << 32, 0x800, 0x800, 0x800, 7 * 16, 7 * 16, 8]);
    let hash = 0x900;
    let entries = [(14, soname_at), (5, names), (10, text_size), (6, symbols), (11, 24), (4, hash), (0, 0)];
    for (i, (tag, value)) in entries.iter().enumerate() {
        put(&mut bytes, 0x800 + i as u64 * 16, &u64::to_le_bytes(*tag));
        put(&mut bytes, 0x808 + i as u64 * 16, &value.to_le_bytes());
    }
    put(&mut bytes, hash, &1u32.to_le_bytes());
    put(&mut bytes, hash + 4, &(SYMBOLS as u32 + 1).to_le_bytes());
    put(&mut bytes, names + soname_at, soname);
    for i in 0..SYMBOLS {
        let (at, name) = (symbols + (i + 1) * 24, APART * i);
        let last = i % TOGETHER == TOGETHER - 1 || i == SYMBOLS - 1;
        put(&mut bytes, names + name, format!("cu{i:017}{}", if last { '\0' } else { '_' }).as_bytes());
        put(&mut bytes, at, &(name as u32).to_le_bytes());
        put(&mut bytes, at + 4, &[0x12, 0, 1, 0]);
        put(&mut bytes, at + 8, &(code + 2 * i).to_le_bytes());
        put(&mut bytes, at + 16, &2u64.to_le_bytes());
    }
    put(&mut bytes, code, &[0x90, 0xc3].repeat(SYMBOLS as usize));
    put(&mut bytes, length - 1, &[0]);
    bytes
}

#[test]
#[ignore = "slow, and much as two_hundred_thousand_long_kernel_names: scripts/test --full"]
fn eight_libraries_whose_functions_share_long_names() {
    live(|room| {
        let program = room.compile("maps.c", "maps", &[]);
        let library = library_of_shared_names();
        assert!(library.len() < 3 << 20);
        let mut files = Vec::new();
        for i in 0..8 {
            fs::create_dir(room.path(&format!("lib-{i}"))).unwrap();
            files.push(room.text(&format!("lib-{i}/libcuda.so.1")));
            fs::write(&files[i], &library).unwrap();
        }
        let file = room.text("t.jsonl");
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        most_under(room, &[&["-o", &file, "--", &program], &files[..]].concat());
        let trace = Trace::checked(room, &file);
        assert!(!trace.complete());
        let size = fs::metadata(&file).unwrap().len();
        assert!(size < 4 << 20, "a trace of {size} bytes");
        let libraries = trace.process_events("library");
        let told = libraries.iter().filter(|line| line["path"] == files[0]).count();
        assert!(told > 0, "{libraries:?}");
        let text = libraries[0].to_string();
        assert!(text.contains("more functions)") && text.contains("narrow the pattern"), "{:.2000}", text);
    });
}

/// The length of what /proc says of a process is up to the process: gigabytes here.
#[test]
#[ignore = "slow, and much as two_hundred_thousand_long_kernel_names: scripts/test --full"]
fn a_process_of_which_the_kernel_tells_gigabytes() {
    live(|room| {
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("few.c", "libcuda.so.1", &flags);
        let program = room.compile("wide.c", "wide", &[]);
        fs::create_dir(room.path("deep")).unwrap();
        // gpurec reads the environment when it writes the process's start: of several processes most have changed it by
        // then.
        for (what, how, times) in [("environ", "30".to_owned(), 6), ("maps", room.text("deep"), 1)] {
            let file = room.text(&format!("{what}.jsonl"));
            let script = format!("for i in $(seq {times}); do \"$@\" || exit; done");
            let words = ["-o", &file, "--", "sh", "-c", &script, "sh", &program, what, &how, &library];
            let mut recording = room.start(room.gpurec(&words));
            let mut most = 0;
            while recording.is_running() {
                most = readers_memory(room).max(most);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let done = recording.done();
            println!("{what}: {} MiB, {}", most >> 10, done.exited(0).text());
            assert!(most > 0 && most < MOST, "{what}: {} MiB in gpurec-files", most >> 10);
            // Linux may take more than two seconds to produce the text.
            let trace = Trace::checked(room, &file);
            let calls = trace.named("cuDriverGetVersion").len();
            let not_here = done.text().contains("not here");
            assert!(calls == 10 * times || !trace.complete() || not_here, "{what}: {calls} calls");
        }
    });
}

/// Returns the memory of this test's gpurec-files processes together, in KiB. Other processes read nothing long.
fn readers_memory(room: &Room) -> u64 {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let text = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let readers = entries.filter(|path| text(path, "comm") == "gpurec-files\n");
    let ours = readers.filter(|path| text(path, "cmdline").contains(room.dir.to_str().unwrap()));
    let held = |path: PathBuf| -> Option<u64> {
        let status = text(&path, "status");
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        own.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    ours.filter_map(held).sum()
}
