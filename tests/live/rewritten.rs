//! Libraries that change while gpurec works on them: replaced by another file, or written to. A hook at a place of the
//! old file may be in the middle of an instruction of the new one.

use std::fs::{self, OpenOptions};
use std::io::Write;

use crate::disorder::X;
use crate::refuse::Call;
use crate::refused::{HOOKS, place_of};
use crate::room::{Room, live};
use crate::trace::Trace;
use crate::unharmed::OddPrograms;

/// The same library with all of its code elsewhere.
fn moved(room: &Room) -> Vec<u8> {
    let flags = ["-O1", "-falign-functions=512", "-shared", "-fPIC", "-Wl,-soname,libx.so.1"];
    fs::read(room.compile("libx.c", "moved", &flags)).unwrap()
}

/// Writes into the existing file, as `cp` does.
fn write_into(path: &str, bytes: &[u8]) {
    OpenOptions::new().write(true).truncate(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Records `x leaf 9`, and runs `meanwhile` between gpurec's reading of the library and its hooking.
fn with_meanwhile(room: &Room, x: &X, backend: &str, mut meanwhile: impl FnMut() + Send + 'static) -> Trace {
    let place = place_of(room, x, "x_leaf");
    let file = room.text(&format!("{}.jsonl", room.number()));
    let (lib, mut before) = (x.lib(), true);
    let words = ["--backend", backend, "--lib", &lib, "-o", &file, "--", &x.program, "leaf", "9"];
    let rule = move |call: &Call| {
        if before && call.places().contains(&place) {
            before = false;
            meanwhile();
        }
        None
    };
    room.start_refusing(room.gpurec(&words), &HOOKS, rule).done().exited(0);
    assert!(fs::exists(&file).unwrap());
    Trace::checked(room, &file)
}

/// gpurec hooks the file that it read, whichever file has the name by then.
#[test]
fn a_library_that_is_replaced_while_it_is_hooked() {
    live(|room| {
        for backend in crate::needs::backends() {
            let (x, other) = (X::new(room), room.text("other"));
            fs::write(&other, moved(room)).unwrap();
            let library = x.library.clone();
            let trace = with_meanwhile(room, &x, backend, move || fs::rename(&other, &library).unwrap());
            trace.is_whole().by(backend).has_calls(&[("x_leaf", 9)]);
            // The other file is another library.
            let (done, trace) =
                room.record(&["--backend", backend, "--lib", &x.lib()], &[&x.program, "leaf", "5"]);
            done.exited(0);
            trace.is_whole().has_calls(&[("x_leaf", 5)]);
        }
    });
}

/// Writes the same content, so that the program is none the worse: it runs on without hooks, and gpurec says so.
#[test]
fn a_library_that_is_written_to_while_it_is_hooked() {
    live(|room| {
        for backend in crate::needs::backends() {
            let x = X::new(room);
            let (library, bytes) = (x.library.clone(), fs::read(&x.library).unwrap());
            let again =
                move || OpenOptions::new().write(true).open(&library).unwrap().write_all(&bytes).unwrap();
            let trace = with_meanwhile(room, &x, backend, again);
            trace.by(backend).has_calls(&[]);
            assert_eq!(trace.codes()[0], "not_hooked", "{:?}", trace.reasons());
            assert_eq!(trace.process_events("library")[0]["not_hooked"][0]["code"], "file_changed");
        }
    });
}

/// gpurec records the next process that loads it from its first call, by hooks at the new places.
#[test]
fn a_library_that_is_written_to_between_two_processes() {
    live(|room| {
        for backend in crate::needs::backends() {
            let (x, new) = (X::new(room), moved(room));
            let (file, go, lib) =
                (room.text(&format!("{backend}.jsonl")), room.text(&format!("go-{backend}")), x.lib());
            let script = format!(
                "{0} leaf 9; echo first; until [ -e {go} ]; do sleep 0.01; done; {0} leaf 7; echo $?; {0} down 3 4; echo $?",
                x.program
            );
            let words = ["--backend", backend, "--lib", &lib, "-o", &file, "--", "sh", "-c", &script];
            let mut recording = room.start(room.gpurec(&words));
            recording.wait_for_stdout("first");
            write_into(&x.library, &new);
            // The recorder notices at once, but this test is not about that race.
            std::thread::sleep(std::time::Duration::from_millis(if crate::needs::is_single(backend) {
                3000
            } else {
                300
            }));
            fs::write(&go, "").unwrap();
            assert_eq!(recording.done().exited(0).text(), "first\n0\n0\n");
            let trace = Trace::checked(room, &file);
            trace.is_whole().by(backend).has_calls(&[("x_leaf", 16), ("x_down", 12)]);
            assert_eq!(trace.process_events("library").len(), 2);
        }
    });
}

/// Writes the same content. gpurec removes the hooks and says what that misses; the process runs on.
#[test]
fn a_library_that_is_written_to_while_it_is_loaded() {
    live(|room| {
        for backend in crate::needs::backends() {
            let odd = OddPrograms::new(room);
            let [file, first, last] =
                ["t.jsonl", "first", "last"].map(|name| room.text(&format!("{backend}-{name}")));
            let (copy, lib) = (&odd.copies[0], format!("{}:x_*", odd.copies[0]));
            fs::write(&first, "").unwrap();
            let options = ["--backend", backend, "--lib", &lib, "-o", &file, "--"];
            let words = [&options[..], &[&odd.program, "stay", &first, &last, copy]].concat();
            let mut recording = room.start(room.gpurec(&words));
            recording.wait_for_stdout("opened");
            let bytes = fs::read(copy).unwrap();
            OpenOptions::new().write(true).open(copy).unwrap().write_all(&bytes).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(if crate::needs::is_single(backend) {
                3000
            } else {
                300
            }));
            fs::write(&last, "").unwrap();
            recording.done().exited(0);
            let trace = Trace::checked(room, &file);
            assert_eq!(trace.by(backend).codes()[0], "file_changed", "{:?}", trace.reasons());
        }
    });
}
