//! A program gets a CUDA library in a way that a recorder may overlook: as a file that looks like one seen before, by a
//! mapping that becomes executable later, or in a child that shares its memory.
//! In: programs/unseen.c.
//! Out: every call is recorded, or the trace is not complete and says why; the program runs on.

use std::fs::File;
use std::process::Command;

use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::needs::{backends, skip};
use crate::room::{Room, live};
use crate::trace::Trace;

const CALL: &str = "cuDriverGetVersion";
/// How often programs/unseen.c calls it at a place.
const CALLS: u64 = 500;

struct UnseenProgram {
    program: String,
    library: String,
}

impl UnseenProgram {
    fn new(room: &Room) -> UnseenProgram {
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("few.c", "libcuda.so.1", &flags);
        UnseenProgram { program: room.compile("unseen.c", "unseen", &[]), library }
    }

    /// Records each of these ways by every backend.
    fn record(&self, room: &Room, ways: &[&str], in_overlay: bool, made: u64) {
        let all = ways.iter().flat_map(|way| backends().into_iter().map(move |backend| (*way, backend)));
        let missed: Vec<String> =
            all.filter_map(|(way, backend)| self.missed(room, way, backend, in_overlay, made)).collect();
        assert!(missed.is_empty(), "complete in spite of: {missed:#?}");
    }

    /// Returns what is missing in a trace that claims to be complete. `in_overlay`: the program writes its file in an
    /// overlay.
    fn missed(&self, room: &Room, way: &str, backend: &str, in_overlay: bool, made: u64) -> Option<String> {
        let number = room.number();
        let (trace, file) = (room.text(&format!("{number}.jsonl")), room.text(&format!("file-{number}")));
        let file = if in_overlay { format!("{}/file-{number}", overlay(room)) } else { file };
        let words = ["--backend", backend, "-o", &trace, "--", &self.program, way, &self.library, &file];
        let gpurec = room.gpurec(&words);
        let done = room.run(if in_overlay { with_overlay(room, &gpurec) } else { gpurec });
        done.exited(0);
        if done.text() != "called\n" {
            skip(&format!("this kernel or file system has no way {way:?}"));
            return None;
        }
        let trace = Trace::checked(room, &trace);
        let (recorded, why) = (trace.by(backend).named(CALL).len() as u64, trace.reasons());
        let said = format!("{way} by {backend}: {recorded} of {made} calls, incomplete because {why:?}");
        println!("{said}");
        assert!(recorded <= made, "{said}");
        (recorded < made && trace.complete()).then_some(said)
    }
}

/// Where `with_overlay` mounts it.
pub fn overlay(room: &Room) -> String {
    room.text("overlay/merged")
}

/// Runs the command with an overlay mounted at `overlay`, in a mount namespace of its own, so that it ends with the
/// command.
pub fn with_overlay(room: &Room, command: &Command) -> Command {
    let script = "mkdir -p $0/lower $0/upper $0/work $0/merged && \
                  mount -t overlay -o lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work overlay $0/merged && \
                  exec \"$@\"";
    let mut within = room.command("unshare");
    within.args(["-m", "sh", "-c", script, &room.text("overlay")]);
    within.arg(command.get_program()).args(command.get_args());
    within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    within
}

/// If the test's own files are in an overlay, as in a container, no other can be mounted.
pub fn has_overlay(room: &Room) -> bool {
    let tried = room.run(with_overlay(room, &Command::new("true")));
    tried.status.success() || skip(&format!("no overlay can be mounted here: {}", tried.stderr.trim()))
}

#[test]
fn a_library_with_the_number_of_another_file_in_an_overlay() {
    live(|room| {
        if has_overlay(room) {
            UnseenProgram::new(room).record(room, &["same-number"], true, CALLS);
        }
    });
}

#[test]
fn a_library_with_the_number_of_another_file() {
    live(|room| UnseenProgram::new(room).record(room, &["same-number"], false, CALLS));
}

#[test]
fn a_plain_file_that_becomes_a_library() {
    let ways = ["overwritten", "overwritten-at-once"];
    live(|room| UnseenProgram::new(room).record(room, &ways, false, CALLS));
}

#[test]
fn children_that_share_the_memory_of_their_parent() {
    live(|room| UnseenProgram::new(room).record(room, &["children"], false, 3 * CALLS));
}

#[test]
fn a_mapping_that_becomes_executable() {
    let ways = ["mprotect", "pkey_mprotect", "partly", "personality", "moved", "grown"];
    live(|room| UnseenProgram::new(room).record(room, &ways, false, CALLS));
}

/// Linux puts its breakpoints into private mappings that are not writable.
#[test]
fn code_that_the_kernel_puts_no_hook_into() {
    live(|room| UnseenProgram::new(room).record(room, &["shared", "writable"], false, CALLS));
}

/// Nothing else shows that the file has become a library: the mapping of its code is as it was.
#[test]
fn a_file_that_is_filled_through_a_shared_mapping() {
    let ways = ["filled", "filled-by-an-old-mapping"];
    live(|room| UnseenProgram::new(room).record(room, &ways, false, CALLS));
}

/// Another process, which is not recorded, has the file mapped so when a second recorded process maps it as code.
#[test]
fn a_file_that_another_process_can_change_after_it_was_examined() {
    live(|room| {
        let unseen = UnseenProgram::new(room);
        let (go, file) = (room.text("go"), room.text("t.jsonl"));
        let opened = format!("{} opened {}", unseen.program, unseen.library);
        let script = format!("{opened}; until [ -e {go} ]; do sleep 0.01; done; {opened}");
        let mut recording = room.start(room.gpurec(&["-o", &file, "--", "sh", "-c", &script]));
        recording.wait_for_stdout("called");
        let library = File::options().read(true).write(true).open(&unseen.library).unwrap();
        let length = std::num::NonZeroUsize::new(4096).unwrap();
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: nothing reads or writes this memory.
        unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &library, 0) }.unwrap();
        std::fs::write(go, "").unwrap();
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        trace.has_calls(&[(CALL, 2 * CALLS)]);
        assert_eq!(trace.codes(), ["not_examined"], "{:?}", trace.reasons());
    });
}

/// Code that is made at run time is no library, although it changes in the same way.
#[test]
fn code_that_is_made_at_run_time() {
    live(|room| {
        let (made, file) = (UnseenProgram::new(room), room.text("made"));
        let (done, trace) = room.record(&[], &[&made.program, "made-code", &made.library, &file]);
        assert_eq!(done.exited(0).text(), "called\n");
        trace.is_whole().has_calls(&[(CALL, CALLS)]);
    });
}

/// Functions that have no hook, because it would see no call or too many.
#[test]
fn functions_whose_calls_no_hook_sees_once() {
    live(|room| {
        let program = room.compile("unseen.c", "unseen", &[]);
        for (kind, code) in [
            ("WRITABLE", "no_probe"),
            ("UNTYPED", "not_a_function"),
            ("LOOP", "no_probe"),
            ("RELOCATED", "no_probe"),
        ] {
            let kind = format!("-D{kind}");
            let flags = [&kind, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-z,notext"];
            let library = room.compile("code.c", &format!("lib{kind}.so"), &flags);
            for backend in backends() {
                let (done, trace) = room.record(&["--backend", backend], &[&program, "opened", &library]);
                assert_eq!(done.exited(0).text(), "called\n");
                trace.by(backend).has_calls(&[]);
                assert_eq!(trace.codes(), ["not_hooked"], "{kind}: {:?}", trace.reasons());
                let refused = &trace.process_events("library")[0]["not_hooked"][0];
                assert_eq!((refused["name"].as_str(), refused["code"].as_str()), (Some(CALL), Some(code)));
            }
        }
    });
}
