//! The ring of `--gpu`. A process that fills it as fast as it can waits, with --lossless, for room while a recorder
//! reads, and it continues when the recorder is killed. A process that connects as often as it can has one ring. The
//! library is where no other user can exchange it, and other hosts keep theirs.
//! In: the programs of the benchmark, which deliver records as CUPTI does, and hostile ones. Out: the account, and the
//! process's own end.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::room::{Room, eventually, live};
use crate::run::{Done, Started};
use crate::trace::Trace;
use crate::user::as_user;

/// The records of two seconds. The ring has room for a seventh of them.
const PAIRS: u64 = 1_000_000;
const A_SECOND: &str = "1e6";

fn program(room: &Room) -> String {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcupti.so.13"];
    let library = room.compile("bench/cupti.c", "libcupti.so.13", &flags);
    let folder = format!("-Wl,-rpath,{}", room.path("").display());
    room.compile("bench/lane.c", "lane", &[&library, &folder])
}

/// Waits for a record, stops the recorder, and returns when the ring is full.
fn stopped<'a>(room: &'a Room, program: &str, file: &str, options: &[&str]) -> Started<'a> {
    let words = ["-q", "--gpu", "-o", file, "--", program, &PAIRS.to_string(), A_SECOND];
    let recording = room.start(room.gpurec(&[options, &words].concat()));
    eventually("a record", || fs::read_to_string(file).is_ok_and(|text| text.contains("\"type\":\"gpu\"")));
    recording.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(1));
    recording
}

#[test]
fn with_lossless_no_record_is_without_room() {
    live(|room| {
        let program = program(room);
        for lossless in [true, false] {
            let file = room.text(&format!("{lossless}.jsonl"));
            let recording = stopped(room, &program, &file, if lossless { &["--lossless"] } else { &[] });
            recording.signal(Signal::SIGCONT);
            recording.done().exited(0);
            let trace = Trace::checked(room, &file);
            let account = &trace.end["gpu"];
            let [delivered, dropped] = ["delivered", "dropped"].map(|key| account[key].as_u64().unwrap());
            let lines = trace.of_type("gpu").count() as u64;
            assert_eq!(
                (lines, delivered == PAIRS, dropped == 0),
                (delivered, lossless, lossless),
                "{account}"
            );
        }
    });
}

#[test]
fn a_process_that_waits_for_a_recorder_continues_when_that_is_killed() {
    live(|room| {
        let program = program(room);
        let file = room.text("t.jsonl");
        let recording = stopped(room, &program, &file, &["--lossless"]);
        let stdout = recording.stdout_file();
        assert_eq!(fs::read_to_string(&stdout).unwrap(), "", "it waits");
        let killed = Instant::now();
        recording.kill();
        eventually("the process's own end", || room.processes().is_empty());
        assert!(!fs::read_to_string(&stdout).unwrap().is_empty(), "it has delivered all records");
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        // A killed gpurec leaves its folder, and the next one removes it.
        room.run(room.gpurec(&["-q", "--gpu", "-o", &file, "--", &program, "1", "1e6"])).exited(0);
    });
}

/// What a program does that connects to the socket of --gpu as often as it likes.
fn connects(room: &Room, how: &str, count: &str, answers: usize, check: impl FnOnce(u32, &str)) -> Done {
    let program = room.compile("connects.c", "connects", &[]);
    let (file, until) = (room.text("connects.jsonl"), room.text(&format!("until-{how}")));
    let recording = room.start(room.gpurec(&["--gpu", "-o", &file, "--", &program, how, count, &until]));
    let stdout = recording.stdout_file();
    let said = || fs::read_to_string(&stdout).unwrap_or_default();
    eventually("all answers", || said().len() >= answers);
    check(recording.pid(), said().trim());
    fs::write(until, "").unwrap();
    let done = recording.done();
    Trace::checked(room, &file).is_whole();
    done
}

/// The number of rings that the recorder has.
fn rings(recorder: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{recorder}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("memfd:gpurec-gpu")).count()
}

#[test]
fn a_process_has_one_ring_however_often_it_connects() {
    live(|room| {
        let done = connects(room, "again", "600", 3, |recorder, said| {
            // The last one is its child's.
            assert_eq!(said, "33");
            eventually("one ring", || rings(recorder) == 1);
        });
        done.exited(0).said("it has asked for more than 32 rings");
    });
}

#[test]
fn rings_are_bounded_in_number() {
    live(|room| {
        let done = connects(room, "many", "300", 300, |recorder, said| {
            assert_eq!(said.matches('+').count(), 256);
            assert_eq!(rings(recorder), 256);
        });
        done.exited(0).said("256 processes are recorded already");
    });
}

#[test]
fn the_rings_of_processes_that_end_at_once_are_released() {
    live(|room| {
        let done = connects(room, "quick", "1200", 2, |recorder, said| {
            assert_eq!(said, "0");
            eventually("no ring", || rings(recorder) == 0);
        });
        done.exited(0);
    });
}

/// Another host shares the folder for temporary files: its sockets do not answer here.
#[test]
fn the_folders_of_other_hosts_stay() {
    live(|room| {
        let other = room.tmp().join("gpurec-gpu-other-01234567-abcdef");
        fs::create_dir(&other).unwrap();
        drop(UnixListener::bind(other.join("gpu")).unwrap());
        let mut command = room.gpurec(&["-q", "--gpu", "-o", "t.jsonl", "--", "true"]);
        command.env_remove("XDG_RUNTIME_DIR");
        room.run(command).exited(0);
        assert!(other.join("gpu").exists());
        fs::remove_dir_all(other).unwrap();
    });
}

#[test]
fn without_the_library_the_figures_of_the_gpu_are_not_known() {
    live(|room| {
        let (program, file) = (crate::gpu::program(room, "gpu.c"), room.text("t.jsonl"));
        let script = r#"rm -r "${CUDA_INJECTION64_PATH%/*}"; exec "$0" 1 1 50"#;
        let done = room.run(room.gpurec(&["--gpu", "-o", &file, "--", "sh", "-c", script, &program]));
        done.exited(0).said("GPU busy: not known (launches of processes in which gpurec's library is not");
        let trace = Trace::checked(room, &file);
        let (account, gpu) = (&trace.end["gpu"], &trace.end["summary"]["gpu"]);
        assert_eq!(account["reasons"][0]["code"], "no_lane");
        assert!(account["launches"].as_u64() > Some(0));
        assert_eq!(account["reasons"][0]["count"], account["launches"]);
        let figures = "busy_ns idle_ns time_ns kernel_count copy_count set_count graph_count waited_gaps";
        for figure in figures.split(' ') {
            assert!(gpu[figure].is_null(), "{figure}: {gpu}");
        }
        for assertion in ["gpu.busy<1h", "gpu.kernels>=0", "gpu.queue.p99<1h"] {
            room.run(room.gpurec(&["check", "--assert", assertion, &file])).exited(1);
        }
    });
}

/// A folder of root's in a folder of another user, who may exchange it.
#[test]
fn a_library_that_root_loads_is_where_no_other_user_can_exchange_it() {
    live(|room| {
        let theirs = room.path("theirs");
        fs::create_dir_all(theirs.join("tmp")).unwrap();
        chown(&theirs, Some(65534), None).unwrap();
        symlink(room.tmp(), room.path("link")).unwrap();
        let good = room.tmp();
        for (runtime, tmp, place) in [
            (&theirs, theirs.join("tmp"), Path::new("/tmp")),
            (&theirs.join("tmp"), good.clone(), &good),
            (&theirs, room.path("link"), &good),
            (&room.cwd(), good.clone(), &room.cwd()),
        ] {
            let start = |words: &[&str]| {
                let mut command = room.gpurec(words);
                command.env("XDG_RUNTIME_DIR", runtime).env("TMPDIR", &tmp);
                room.run(command)
            };
            let file = room.text("place.jsonl");
            let show = ["-q", "--gpu", "-o", &file, "--", "sh", "-c", "echo $CUDA_INJECTION64_PATH"];
            let done = start(&show);
            let library = PathBuf::from(done.exited(0).text().trim());
            assert_eq!(library.parent().and_then(Path::parent), Some(place), "{}", library.display());
            start(&["demo", "-o", &file, "--", "--loops", "1"]).exited(0);
            let program =
                Trace::checked(room, &file).header["command"][0].as_str().map(PathBuf::from).unwrap();
            assert_eq!(program.parent().and_then(Path::parent), Some(place), "{}", program.display());
        }
    });
}

/// Programs cannot be executed in /tmp, in a mount namespace of the recording's own, and there is no other place.
#[test]
fn where_no_place_is_left_the_user_reads_why() {
    live(|room| {
        let apart = |words: &[&str]| {
            let mount = "mount --bind /tmp /tmp && mount -o remount,bind,noexec /tmp && exec \"$@\"";
            let mut command = room.command("unshare");
            command.args(["-m", "sh", "-c", mount, "sh", env!("CARGO_BIN_EXE_gpurec")]).args(words);
            command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
            room.run(command)
        };
        let (file, why) = (room.text("none.jsonl"), "/tmp: mounted with noexec");
        apart(&["--gpu", "-o", &file, "--", "true"]).exited(0).said(why).said("set TMPDIR");
        assert_eq!(Trace::checked(room, &file).of_type("gpu").count(), 0);
        apart(&["demo", "-o", &file]).exited(125).said(why).one_sentence();
    });
}

#[test]
fn a_users_own_runtime_folder_is_good_through_sudo() {
    as_user(|room, user| {
        let script = "echo $CUDA_INJECTION64_PATH";
        let line = format!(
            "mkdir -m 700 run; sudo XDG_RUNTIME_DIR=$HOME/run $GPUREC -q --gpu -o t.jsonl -- sh -c '{script}'"
        );
        let done = user.types(room, &line);
        let library = done.exited(0).text().trim().to_owned();
        assert!(library.starts_with(&format!("{}/run/gpurec-gpu-", user.home.display())), "{library}");
    });
}
