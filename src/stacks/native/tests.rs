//! Programs that print their registers, their stack and what backtrace() makes of it, at calls from many kinds of
//! frames. Every call must be found, and no other.

mod files;
pub mod program;
mod worker;

use super::*;
use program::{Program, Snapshot};

/// How a program is compiled, and how it is linked.
const OPTIMISED: [&str; 3] = ["-O0", "-O2", "-O3"];
const FRAME_POINTERS: [&str; 2] = ["-fno-omit-frame-pointer", "-fomit-frame-pointer"];
const LINKED: [&[&str]; 4] = [&["-pie", "-fPIE"], &["-no-pie"], &["-static"], &["-static-pie", "-fPIE"]];

fn addresses(unwound: &Unwound) -> Vec<u64> {
    unwound.calls.iter().map(|call| call.address).collect()
}

fn names(unwound: &Unwound) -> Vec<&str> {
    let frames = unwound.calls.iter().flat_map(|call| &call.frames);
    frames.map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
}

/// Compares each stack with the program's own. Returns the number of frames.
fn compare(source: &str, flags: &[&str]) -> usize {
    let program = Program::run(source, flags, &[]);
    let mut native = Native::default();
    let mut frames = 0;
    assert!(program.snapshots.len() > 4, "{flags:?}");
    for (at, snapshot) in program.snapshots.iter().enumerate() {
        let unwound = native.unwind(program.pid(), &snapshot.stack, &[]);
        assert_eq!(
            addresses(&unwound),
            snapshot.calls,
            "{source} {flags:?}, stack {at}: {:?}",
            names(&unwound)
        );
        assert_eq!(unwound.cut, None, "{source} {flags:?}, stack {at}: {:?}", names(&unwound));
        frames += unwound.calls.len();
    }
    frames
}

#[test]
fn each_call_of_a_program_is_found() {
    let frames = [
        compare("unwound.c", &["-O0", "-g", "-pie", "-fPIE"]),
        compare("unwound.c", &["-O2", "-fomit-frame-pointer", "-no-pie"]),
        compare("unwound.c", &["-O3", "-s", "-static-pie", "-fPIE"]),
        compare("unwound.cc", &["-O2"]),
    ];
    assert!(frames.iter().sum::<usize>() > 300, "{frames:?}");
}

#[test]
#[ignore = "builds 48 programs, a part of which the test above has: scripts/test --full"]
fn each_call_is_found_however_a_program_is_built() {
    let mut frames = 0;
    for source in ["unwound.c", "unwound.cc"] {
        for optimised in OPTIMISED {
            for pointers in FRAME_POINTERS {
                for linked in LINKED {
                    frames += compare(source, &[&[optimised, pointers], linked].concat());
                }
            }
        }
    }
    println!("{frames} frames");
}

#[test]
fn what_was_not_copied_is_cut() {
    let program = Program::run("unwound.c", &["-O1"], &["deep"]);
    let snapshot = &program.snapshots[0];
    let unwound = Native::default().unwind(program.pid(), &snapshot.stack, &[]);
    assert_eq!(unwound.cut, Some(Cut::Copied));
    let found = addresses(&unwound);
    assert!(found.len() > 50 && snapshot.calls.starts_with(&found), "{found:x?}");
}

#[test]
fn replaced_return_addresses_are_put_back() {
    let program = Program::run("unwound.c", &["-O2"], &[]);
    let mut native = Native::default();
    let mut unwind = |stack: &Stack| native.unwind(program.pid(), stack, &[]);
    let Snapshot { mut stack, calls } = program.snapshots[0].clone();
    let place = unwind(&stack).calls[1].sp - 8;
    let at = (place - stack.base) as usize;
    stack.bytes[at..at + 8].copy_from_slice(&0x7fff_ffff_e000_u64.to_le_bytes());
    let unknown = unwind(&stack);
    assert_eq!((addresses(&unknown), unknown.cut), (calls[..1].to_vec(), Some(Cut::NotCode)));
    stack.replaced = vec![(1, 2), (u64::MAX, 3), (place, calls[1])];
    let known = unwind(&stack);
    assert_eq!((addresses(&known), known.cut), (calls, None));
}

#[test]
fn functions_files_and_lines_are_those_of_addr2line() {
    for (source, flags) in [("unwound.c", "-O2"), ("unwound.c", "-O0"), ("unwound.cc", "-O2")] {
        let program = Program::run(source, &[flags, "-g", "-no-pie"], &[]);
        let mut native = Native::default();
        let mut compared = 0;
        for snapshot in &program.snapshots {
            for call in native.unwind(program.pid(), &snapshot.stack, &[]).calls {
                let own = call.frames[0].module.as_deref() == program.path().to_str();
                if !own || call.frames.iter().any(|frame| frame.line.is_none()) {
                    continue;
                }
                assert_eq!(call.frames[0].offset, call.address);
                let (ours, theirs) = (program::shown(&call.frames), program.addr2line(call.address - 1));
                // addr2line names lambdas by their symbol.
                let lines = |of: &[String]| {
                    let names = of.iter().filter(|_| source.ends_with(".c")).cloned();
                    let places =
                        of.iter().filter_map(|one| one.rsplit_once(' ')).map(|(_, place)| place.to_owned());
                    names.chain(places).collect::<Vec<_>>()
                };
                assert_eq!(lines(&ours), lines(&theirs), "{source} {flags}");
                compared += call.frames.len();
            }
        }
        assert!(compared > 20, "{source} {flags}: {compared}");
    }
}

#[test]
fn without_debug_information_there_are_symbols() {
    let program = Program::run("unwound.c", &["-O2", "-no-pie"], &[]);
    let snapshot = &program.snapshots[0];
    let unwound = Native::default().unwind(program.pid(), &snapshot.stack, &[]);
    let found = names(&unwound);
    assert_eq!((found[0], found[1], *found.last().unwrap()), ("plain", "shapes", "_start"));
    let frame = &unwound.calls[0].frames[0];
    assert_eq!(frame.build_id.as_deref(), program.build_id().as_deref());
    assert_eq!((&frame.file, frame.line, frame.inlined), (&None, None, false));
    // The same by known addresses.
    let frames = Native::default().frames(program.pid(), &[snapshot.calls[0], 5, snapshot.calls[1]], &[]);
    assert_eq!(frames[0], unwound.calls[0].frames);
    assert_eq!(frames[1], [Frame { offset: 5, ..Frame::default() }]);
    assert_eq!(frames[2], unwound.calls[1].frames);
}

#[test]
fn a_stripped_program_has_places_only() {
    let program = Program::run("unwound.c", &["-O2", "-s", "-no-pie"], &[]);
    let unwound = Native::default().unwind(program.pid(), &program.snapshots[0].stack, &[]);
    let frame = &unwound.calls[0].frames[0];
    assert_eq!(frame.function, None);
    assert_eq!(frame.module.as_deref(), program.path().to_str());
    assert_eq!((frame.offset, frame.build_id.clone()), (unwound.calls[0].address, program.build_id()));
}

#[test]
fn packed_symbols_name_functions() {
    let program = Program::packed("unwound.c", &["-O2", "-no-pie"]);
    let unwound = Native::default().unwind(program.pid(), &program.snapshots[0].stack, &[]);
    assert_eq!(names(&unwound)[..2], ["plain", "shapes"]);
}

#[test]
fn code_made_at_run_time_is_named_by_its_own_user() {
    let program = Program::run("unwound.c", &["-O2"], &["jit"]);
    let stack = &program.snapshots[0].stack;
    let unnamed = Native::default().unwind(program.pid(), stack, &[]);
    assert_eq!((unnamed.calls.len(), unnamed.cut), (1, Some(Cut::NoTable)));
    assert_eq!(unnamed.calls[0].frames[0].function, None);
    let map = program.perf_map(&format!("{:x} 8 saxpy [tier 1]\n", program.made()));
    let named = Native::default().unwind(program.pid(), stack, &[]);
    assert_eq!(names(&named)[..3], ["saxpy [tier 1]", "run_made", "main"]);
    assert_eq!(named.cut, None);
    // A map of another user.
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(map.path(), Some(4242), None).unwrap();
        assert_eq!(Native::default().unwind(program.pid(), stack, &[]), unnamed);
    }
}

#[test]
fn stacks_that_make_no_sense_end() {
    let program = Program::run("unwound.c", &["-O2"], &[]);
    let mut native = Native::default();
    let good = &program.snapshots[2].stack;
    for seed in 1..200u64 {
        let mut stack = good.clone();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in &mut stack.bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
            if state >> 56 < seed {
                *byte = (state >> 48) as u8;
            }
        }
        stack.registers.bp ^= state & 0xff;
        stack.registers.sp = stack.registers.sp.wrapping_add(state & 0x18);
        assert!(native.unwind(program.pid(), &stack, &[]).calls.len() <= MOST_CALLS);
    }
    // Outside of the copy.
    let mut stack = good.clone();
    stack.registers.sp = 0x1000;
    assert_eq!(native.unwind(program.pid(), &stack, &[]).cut, Some(Cut::Copied));
    assert_eq!(native.unwind(0, good, &[]).cut, Some(Cut::NotCode));
}
