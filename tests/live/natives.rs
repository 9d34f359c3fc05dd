//! `--stacks` against the truth in native programs: C, C++ and Rust, however they are built.
//! In: fixtures/programs/unwound.c, unwound.cc, natives.rs and unwound_hidden.c, which print backtrace() of their own stack at each
//! call; gdb at a breakpoint there; ends.c and swap.c, which have no time for gpurec.
//! Out: the trace has the same calls at the same places of the same files. A stack that is marked as cut may lack outer
//! ones; how many lack some is bounded, and printed.
//! Not here: names and lines (src/stacks/native/tests.rs), Python frames.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::needs;
use crate::room::{Room, live};
use crate::trace::text_of;

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
const RUNTIME: &str = concat!(env!("OUT_DIR"), "/demo/libcudart.so.13");
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
fn printed(text: &str, calls: &'static str) -> Stacks {
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
        let (base, .., path) = modules.iter().find(contains)?;
        Some((path.clone(), address - base))
    };
    // gdb continues past a coroutine's first function, into its data.
    let stack = |line: &str| {
        let (size, addresses) = line.split_once(' ').unwrap();
        (size.parse().unwrap(), addresses.split(' ').map_while(place).collect())
    };
    rest(calls).map(stack).collect()
}

fn real(path: &str) -> String {
    fs::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.to_str().unwrap().to_owned())
}

/// The second argument and the stack of each call that has one, in order.
fn calls(file: &str) -> Vec<(u64, Value)> {
    let (mut stacks, mut calls) = (Vec::new(), Vec::new());
    for line in text_of(file.as_ref()).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let args = &line["args"];
        if let Some(stack) = line["stack"].as_u64().filter(|_| line["phase"] == "B") {
            let size = args["bytesize"].as_u64().or(args["size"].as_u64());
            let stack: &Value = &stacks[stack as usize];
            calls.push((size.unwrap_or_else(|| hex(&args["arg1"])), stack.clone()));
        }
        if line["type"] == "stack" {
            stacks.push(line);
        }
    }
    calls
}

fn hex(text: &Value) -> u64 {
    u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn frames(stack: &Value) -> impl Iterator<Item = &Value> {
    stack["frames"].as_array().unwrap().iter()
}

/// What the trace has, and whether it is cut.
fn recorded(file: &str) -> BTreeMap<u64, (Vec<Place>, bool)> {
    let place = |frame: &Value| (real(frame["module"].as_str().unwrap()), hex(&frame["offset"]));
    let stack = |stack: &Value| (frames(stack).map(place).collect(), stack["cut"] == true);
    calls(file).iter().map(|(size, of)| (*size, stack(of))).collect()
}

/// Beside cargo: sudo may leave it out of PATH.
fn rustc() -> PathBuf {
    let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| "rustc".into())
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
        run(Command::new(rustc()).args(words).arg(&out).args(flags).arg(folder.join(source)));
    } else {
        run(Command::new(compiler).args(c).args(flags).arg("-o").arg(&out).arg(folder.join(source)));
    }
    out
}

/// The program alone, in gdb, with a breakpoint at the jump into the function: of functions without an unwind table gdb
/// does not find every caller.
fn in_gdb(room: &Room, program: &str) -> Stacks {
    let script = room.text("stacks.gdb");
    fs::write(&script, SCRIPT).unwrap();
    let mut gdb = room.command("gdb");
    gdb.args(["-batch", "-nx", "-x", &script, "--args", program, "1", LIBRARY]);
    let text = room.run(gdb).exited(0).text();
    printed(&text, "gdb")
}

const SCRIPT: &str = "
set backtrace past-main on
set backtrace past-entry on
set debuginfod enabled off
handle SIGUSR1 nostop noprint pass
python
class Stop(gdb.Breakpoint):
    def stop(self):
        frame, found = gdb.newest_frame().older(), []
        while frame is not None:
            if frame.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME):
                found.append('%x' % frame.pc())
            frame = frame.older()
        print('gdb', int(gdb.parse_and_eval('$rsi')), *found, flush=True)
        return False
Stop('*snapshot_calls')
end
run
";

/// How many stacks are cut depends on how soon gpurec's processes run: three times in a row they are late only if
/// something is wrong. `record` compares what it has recorded, and returns how many are cut, and the most that may be.
fn is_seldom_cut(what: &str, mut record: impl FnMut() -> (usize, usize)) {
    let all: Vec<(usize, usize)> = (0..3).map(|_| record()).take_while(|(cut, most)| cut > most).collect();
    assert!(all.len() < 3, "{what}: cut, and the most that may be: {all:?}");
}

/// Compares what is recorded of a program with what it prints, and with gdb.
fn compare(room: &Room, program: &Program, path: &str, gdb: bool) {
    let in_gdb = gdb.then(|| in_gdb(room, path));
    is_seldom_cut(path, || {
        let file = room.text(&format!("trace-{}.jsonl", room.number()));
        let done = room.run(room.gpurec(&["--stacks", "-o", &file, "--", path, ROUNDS, LIBRARY]));
        let (truth, found) = (printed(&done.exited(0).text(), "calls"), recorded(&file));
        assert!(truth.keys().eq(found.keys()), "{path}: {} calls of {}", found.len(), truth.len());
        let round = truth.len() as u64 / ROUNDS.parse::<u64>().unwrap();
        // gdb ran one round.
        let by_gdb = in_gdb.iter().flatten().filter(|(number, _)| **number <= round);
        for (number, expected) in truth.iter().chain(by_gdb) {
            let (stack, cut) = &found[number];
            let is_right = if *cut { expected.starts_with(stack) } else { expected == stack };
            assert!(is_right, "{path}, call {number}, cut {cut}: {stack:#x?} instead of {expected:#x?}");
        }
        // After the first round gpurec knows the rules of all stacks in it, but not of those at the end.
        let cut = found.range(round + 1..).filter(|(_, (_, cut))| *cut).count();
        println!("{path}: {} stacks, {cut} cut after the first of {ROUNDS} rounds", found.len());
        (cut, program.cut * 3 + 2)
    });
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

/// `words`: the library and the function that the program calls. Inside other recorded calls it sees Linux's own return
/// addresses, so the truth is a run without gpurec.
fn compare_inside(
    room: &Room,
    backends: Vec<&str>,
    options: &[&str],
    path: &str,
    words: &[&str],
    prefix: &str,
) {
    let words = [&[path, "3"], words].concat();
    let mut alone = room.command(path);
    alone.args(&words[1..]).env("LD_LIBRARY_PATH", Path::new(LIBRARY).parent().unwrap());
    let truth = printed(&room.run(alone).exited(0).text(), "calls");
    for backend in backends {
        is_seldom_cut(backend, || {
            let file = room.text(&format!("trace-{}.jsonl", room.number()));
            let mut gpurec =
                room.gpurec(&[&["--backend", backend, "-o", &file], options, &["--"], &words].concat());
            gpurec.env("LD_LIBRARY_PATH", Path::new(LIBRARY).parent().unwrap());
            room.run(gpurec).exited(0);
            let found = recorded(&file);
            assert!(truth.keys().eq(found.keys()), "{backend}: {} calls of {}", found.len(), truth.len());
            for (number, (stack, cut)) in &found {
                let own = stack.iter().take_while(|(module, _)| module.ends_with(prefix)).count();
                let (stack, expected) = (&stack[own..], &truth[number][..]);
                let is_right = if *cut { expected.starts_with(stack) } else { expected == stack };
                assert!(is_right, "{backend}, {number}, cut {cut}: {stack:#x?} instead of {expected:#x?}");
            }
            let cut = found.values().filter(|(_, cut)| *cut).count();
            println!("{backend}: {cut} cut of {}", found.len());
            (cut, truth.len() / 3)
        });
    }
}

/// The runtime's calls are recorded, and stacks are those of the driver's calls inside them.
#[test]
fn replaced_return_addresses_are_the_original_ones() {
    live(|room| {
        let path = build(room, "unwound.cc", "c++", &["-O2"]);
        let options = ["--only", "cudaMalloc", "--only", "cuMemAlloc_v2", "--stacks=cuMemAlloc_v2"];
        compare_inside(room, needs::backends(), &options, &path, &[RUNTIME, "cudaMalloc"], "libcudart.so.13");
        let path = build(room, "unwound_hidden.c", "cc", &["-O2"]);
        let library = room.compile("libx.c", "libx.so.1", &["-shared", "-fPIC", "-Wl,-soname,libx.so.1"]);
        let lib = format!("{library}:x_*");
        let options = ["--only", "x_*", "--lib", &lib, "--stacks=x_leaf"];
        compare_inside(room, needs::every_backend(), &options, &path, &[&library, "x_leaf"], "none");
    });
}

#[test]
fn processes_that_end_at_once_have_named_stacks() {
    const TIMES: usize = 30;
    live(|room| {
        let path = room.compile("ends.c", "ends", &[]);
        is_seldom_cut("ends", || {
            let file = room.text("ends.jsonl");
            let words = ["--stacks", "-o", &file, "--", &path, LIBRARY, &TIMES.to_string()];
            room.run(room.gpurec(&words)).exited(0);
            let calls = calls(&file);
            assert_eq!(calls.len(), TIMES);
            let is_unknown = |frame: &Value| frame["module"] == "[unknown]";
            let unknown = calls.iter().filter(|(_, stack)| frames(stack).any(is_unknown)).count();
            let whole: Vec<&Value> =
                calls.iter().map(|(_, stack)| stack).filter(|s| s["cut"] != true).collect();
            println!("{unknown} of {TIMES} with unknown frames, {} whole", whole.len());
            for stack in &whole {
                let names = frames(stack).filter_map(|frame| frame["function"].as_str());
                let names: Vec<&str> = names.collect();
                assert!(names.starts_with(&["work", "main"]) && names.ends_with(&["_start"]), "{names:?}");
            }
            // The first process may be gone before its program's file has been opened.
            (unknown + TIMES - whole.len(), TIMES / 3)
        });
    });
}

/// Two libraries in turn at one address.
#[test]
fn a_library_that_replaces_another_has_its_own_names() {
    const TIMES: &str = "300";
    live(|room| {
        let path = room.compile("swap.c", "swap", &[]);
        let libraries = ["first", "second"].map(|name| {
            let define = format!("-DLIBRARY={name}");
            room.compile("swap.c", &format!("lib{name}.so"), &[&define, "-shared", "-fPIC"])
        });
        let file = room.text("swap.jsonl");
        let words = ["--stacks", "-o", &file, "--", &path, TIMES, LIBRARY, &libraries[0], &libraries[1]];
        let done = room.run(room.gpurec(&words));
        assert_eq!(done.exited(0).text(), "same\n");
        let calls = calls(&file);
        assert_eq!(calls.len().to_string(), TIMES);
        for (number, stack) in &calls {
            let name = if number % 2 == 1 { "first" } else { "second" };
            let frame = frames(stack).next().unwrap();
            assert_eq!(frame["function"], name, "call {number}: {frame}");
            assert!(frame["module"].as_str().unwrap().ends_with(&format!("/lib{name}.so")), "{frame}");
        }
    });
}
