//! Programs that differ from gpurec's own build: one with another C library (musl), and one without a loader.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::disorder::X;
use crate::needs;
use crate::room::{Room, live};
use crate::trace::Trace;

const DEMO: &str = concat!(env!("OUT_DIR"), "/demo/");
const FLAGS: [&str; 9] = [
    "-std=gnu11",
    "-O2",
    "-pthread",
    "-ffp-contract=off",
    "-Wl,--build-id=sha1",
    "-Wl,-z,noexecstack",
    "-Wl,--disable-new-dtags",
    "-Wl,-rpath,$ORIGIN",
    "-o",
];

fn has_musl() -> bool {
    needs::program("musl-gcc") || needs::skip("install musl-tools (apt-get install musl-tools)")
}

fn source(name: &str) -> String {
    format!("{}/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn c_files(folder: &str) -> Vec<String> {
    let files = fs::read_dir(source(&format!("cuda/{folder}"))).unwrap();
    let names = files.map(|file| file.unwrap().path().to_str().unwrap().to_owned());
    names.filter(|name| name.ends_with(".c")).collect()
}

fn build(compiler: &str, out: &Path, words: &[String]) {
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg(out).args(words);
    let built = command.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Builds a stand-in library as fixtures/cuda/build.rs does.
fn library(room: &Room, folder: &str, soname: &str, suffix: &str) {
    let mut words = c_files(folder);
    words.extend(c_files("common"));
    words.extend([format!("{DEMO}{folder}.S"), format!("-Wl,--version-script={DEMO}{folder}.map")]);
    words.extend([format!("-DSTANDIN_SUFFIX=\"{suffix}\""), format!("-Wl,-soname,{soname}")]);
    words.extend(["-fPIC", "-shared", "-fvisibility=hidden", "-ldl"].map(str::to_owned));
    build("musl-gcc", &room.path(soname), &words);
}

fn counted(room: &Room, suffix: &str) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(room.path(&format!("made{suffix}"))).expect("the library's own count");
    let all = text.lines().map(|line| line.split_once(' ').unwrap());
    all.map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The demo and its libraries: the trace has as many calls of each function as the libraries counted themselves.
#[test]
fn a_program_of_musl() {
    live(|room| {
        if !has_musl() {
            return;
        }
        library(room, "driver", "libcuda.so.1", ".cuda");
        library(room, "runtime", "libcudart.so.13", ".cudart");
        let program = room.path("program");
        let runtime = room.text("libcudart.so.13");
        build("musl-gcc", &program, &[c_files("program"), vec![runtime]].concat());
        let file = room.text("t.jsonl");
        let words = ["-o", &file, "--", program.to_str().unwrap(), "--loops", "4", "--threads", "2"];
        let mut command = room.gpurec(&words);
        command.env("STANDIN_COUNTS", room.path("made"));
        room.run(command).exited(0);
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        let mut recorded = BTreeMap::new();
        trace.calls.iter().for_each(|call| *recorded.entry(call.name.clone()).or_insert(0) += 1);
        let mut made = counted(room, ".cuda");
        made.extend(counted(room, ".cudart"));
        assert!(made.values().sum::<usize>() > 1000, "{made:?}");
        // The driver has written its counts before the runtime's last call comes: musl ends libraries in another order.
        made.insert("cuLibraryUnload".to_owned(), 1);
        assert_eq!(recorded, made);
    });
}

/// There is nothing to hook, and gpurec says so; it records what the program executes.
#[test]
fn a_program_without_a_loader() {
    live(|room| {
        if !has_musl() {
            return;
        }
        let x = X::new(room);
        for compiler in ["cc", "musl-gcc"] {
            let program = room.path(compiler);
            build(compiler, &program, &["-static".to_owned(), source("programs/static.c")]);
            let program = program.to_str().unwrap();
            let (done, trace) = room.record(&[], &[program]);
            done.exited(3).said("No CUDA library was loaded.");
            trace.is_whole().has_calls(&[]);
            let (done, trace) = room.record(&["--lib", &x.lib()], &[program, &x.program, "leaf", "9"]);
            done.exited(0);
            trace.is_whole().has_calls(&[("x_leaf", 9)]);
        }
    });
}
