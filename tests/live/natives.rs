//! `--stacks` against the truth in native programs: C, C++ and Rust, however they are built.
//! In: fixtures/programs/unwound.c, unwound.cc and natives.rs, which print backtrace() of their own stack at each call of
//! CUDA; gdb at a breakpoint in the function.
//! Out: the trace has the same calls at the same places of the same files. A stack that is marked as cut may lack outer
//! ones; how many lack some is bounded, and printed.
//! Not here: names and lines (src/stacks/native/tests.rs), Python frames.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::needs;
use crate::room::{Room, live};
use crate::trace::text_of;

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
const ROUNDS: &str = "4";

/// A program with its calls on stacks that gpurec cuts in each round, once it has learnt the rules: one that is deeper
/// than 64 frames, one beyond a signal handler, and one that ends in a coroutine, whose first function has no rule.
struct Program<'a> {
    source: &'a str,
    cut: usize,
}

const C: Program = Program { source: "unwound.c", cut: 3 };
const CPP: Program = Program { source: "unwound.cc", cut: 0 };
const RUST: Program = Program { source: "natives.rs", cut: 0 };

/// A file, and a place in it as the file counts addresses.
type Place = (String, u64);

/// By the number of the call, which is the size that it asks for; innermost first.
type Stacks = BTreeMap<u64, Vec<Place>>;

/// Reads the lines `calls` and `module` of fixtures/programs/natives.h.
fn printed(text: &str, calls: &str) -> Stacks {
    let number = |word: &str| u64::from_str_radix(word, 16).unwrap();
    let rest =
        |kind: &'static str| text.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '));
    let modules: Vec<(u64, u64, u64, String)> = rest("module")
        .map(|line| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            (number(words[0]), number(words[1]), number(words[2]), real(words[3]))
        })
        .collect();
    let place = |word: &str| {
        let address = number(word);
        let contains = |module: &&(u64, u64, u64, String)| (module.1..module.2).contains(&(address - 1));
        let (base, .., path) =
            modules.iter().find(contains).unwrap_or_else(|| panic!("{word}: {modules:x?}"));
        (path.clone(), address - base)
    };
    let prefix: &'static str = if calls == "gdb" { "gdb" } else { "calls" };
    rest(prefix)
        .map(|line| {
            let (size, addresses) = line.split_once(' ').unwrap();
            (size.parse().unwrap(), addresses.split(' ').map(place).collect())
        })
        .collect()
}

fn real(path: &str) -> String {
    fs::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.to_str().unwrap().to_owned())
}

/// What the trace has, and whether it is cut.
fn recorded(file: &str) -> BTreeMap<u64, (Vec<Place>, bool)> {
    let (mut stacks, mut calls) = (Vec::new(), BTreeMap::new());
    for line in text_of(file.as_ref()).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["type"] == "stack" {
            let frames = line["frames"].as_array().unwrap().iter();
            let places = frames.map(|frame| {
                let offset = frame["offset"].as_str().unwrap().trim_start_matches("0x");
                (real(frame["module"].as_str().unwrap()), u64::from_str_radix(offset, 16).unwrap())
            });
            stacks.push((places.collect(), line["cut"] == true));
        }
        let args = &line["args"];
        let Some(size) = args["bytesize"].as_u64().or(args["size"].as_u64()) else { continue };
        if line["phase"] == "B" && ["cuMemAlloc_v2", "cudaMalloc"].iter().any(|name| line["name"] == *name) {
            let stack = line["stack"].as_u64().unwrap_or_else(|| panic!("no stack: {line}"));
            calls.insert(size, stacks[stack as usize].clone());
        }
    }
    calls
}

/// Builds a program. `own`: it has its own CUDA function, as with a static runtime.
fn build(room: &Room, source: &str, compiler: &str, flags: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/programs");
    let out = room.text(&format!("native-{}", room.number()));
    let run = |command: &mut Command| {
        let built = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(built.status.success(), "{command:?}: {}", String::from_utf8_lossy(&built.stderr));
    };
    let c = ["-DCALLS", "-pthread", "-w"];
    if source.ends_with(".rs") {
        let object = format!("{out}.o");
        run(Command::new("cc").args(c).args(["-O2", "-c", "-o", &object]).arg(folder.join("natives.c")));
        let words = ["--edition", "2024", "-C", "strip=debuginfo", "-C", &format!("link-arg={object}"), "-o"];
        run(Command::new("rustc").args(words).arg(&out).args(flags).arg(folder.join(source)));
    } else {
        run(Command::new(compiler).args(c).args(flags).arg("-o").arg(&out).arg(folder.join(source)));
    }
    out
}

/// The program alone, in gdb, with a breakpoint in the function.
fn in_gdb(room: &Room, program: &str, function: &str) -> Stacks {
    let script = room.text("stacks.gdb");
    fs::write(&script, SCRIPT.replace("FUNCTION", function)).unwrap();
    let mut gdb = room.command("gdb");
    gdb.args(["-batch", "-nx", "-x", &script, "--args", program, "1", LIBRARY]);
    let text = room.run(gdb).exited(0).text();
    printed(&text, "gdb")
}

const SCRIPT: &str = "
set backtrace past-main on
set backtrace past-entry on
set breakpoint pending on
set debuginfod enabled off
handle SIGUSR1 nostop noprint pass
python
class Stop(gdb.Breakpoint):
    def stop(self):
        frame, found = gdb.newest_frame().older(), []
        while frame is not None:
            if frame.type() != gdb.INLINE_FRAME:
                found.append('%x' % frame.pc())
            frame = frame.older()
        print('gdb', int(gdb.parse_and_eval('$rsi')), *found, flush=True)
        return False
Stop('FUNCTION')
end
run
";

/// Records the program, and compares. Returns the number of stacks.
fn compare(room: &Room, program: &Program, path: &str, gdb: bool) -> usize {
    let file = room.text(&format!("trace-{}.jsonl", room.number()));
    let done = room.run(room.gpurec(&["--stacks", "-o", &file, "--", path, ROUNDS, LIBRARY]));
    let text = done.exited(0).text();
    let (truth, found) = (printed(&text, "calls"), recorded(&file));
    assert!(truth.keys().eq(found.keys()), "{path}: {} calls of {}", found.len(), truth.len());
    let mut truths = vec![truth];
    if gdb {
        let function = if text.contains(LIBRARY) { "cuMemAlloc_v2" } else { "cudaMalloc" };
        truths.push(in_gdb(room, path, function));
    }
    for truth in &truths {
        for (number, expected) in truth {
            let (stack, cut) = &found[number];
            let is_right = if *cut { expected.starts_with(stack) } else { expected == stack };
            assert!(is_right, "{path}, call {number}, cut {cut}: {stack:#x?} instead of {expected:#x?}");
        }
    }
    // After the first round gpurec knows the rules of all stacks in it.
    let round = truths[0].len() / ROUNDS.parse::<usize>().unwrap();
    let cut = found.range(round as u64 + 1..).filter(|(_, (_, cut))| *cut).count();
    println!("{path}: {} stacks, {cut} cut after the first of {ROUNDS} rounds", found.len());
    let at_the_end = 2;
    assert!(cut <= program.cut * 3 + at_the_end, "{path}: {cut} cut of {}", found.len());
    found.len()
}

fn each(programs: &[(&Program, &str, &[&str], bool)]) {
    live(|room| {
        for (program, compiler, flags, gdb) in programs {
            let path = build(room, program.source, compiler, flags);
            println!("{} {compiler} {flags:?}", program.source);
            compare(room, program, &path, *gdb);
        }
    });
}

/// gdb is slow, so it looks at one program here.
#[test]
fn native_frames_are_those_that_the_program_sees() {
    each(&[
        (&C, "cc", &["-O2"], needs::program("gdb") || needs::skip("install gdb")),
        (&C, "cc", &["-O0", "-DOWN", "-static"], false),
        (&CPP, "c++", &["-O3", "-fno-omit-frame-pointer"], false),
        (&RUST, "rustc", &["-O"], false),
    ]);
}

#[test]
#[ignore = "builds and records 53 programs, of which the test above has four: scripts/test --full"]
fn native_frames_are_right_however_a_program_is_built() {
    let linked: [&[&str]; 4] =
        [&["-pie", "-fPIE"], &["-no-pie"], &["-static", "-DOWN"], &["-static-pie", "-fPIE", "-DOWN"]];
    let mut all: Vec<(&Program, &str, Vec<&str>)> = Vec::new();
    for (program, compiler) in [(&C, "cc"), (&CPP, "c++")] {
        for optimised in ["-O0", "-O2", "-O3"] {
            for pointers in ["-fno-omit-frame-pointer", "-fomit-frame-pointer"] {
                for linked in linked {
                    all.push((program, compiler, [&[optimised, pointers], linked].concat()));
                }
            }
        }
    }
    for (program, compiler) in [(&C, "clang"), (&CPP, "clang++")] {
        all.push((program, compiler, vec!["-O2"]));
    }
    all.push((&RUST, "rustc", vec!["-C", "opt-level=0"]));
    all.push((&RUST, "rustc", vec!["-O", "-C", "force-frame-pointers=yes"]));
    all.push((&RUST, "rustc", vec!["-O", "-C", "panic=unwind", "-C", "lto=fat"]));
    let gdb = needs::program("gdb") || needs::skip("install gdb");
    let all: Vec<_> = all.iter().map(|(p, compiler, flags)| (*p, *compiler, &flags[..], gdb)).collect();
    each(&all);
}
