//! Outputs that fail while a trace is written to them: what gpurec says, its status, and that the command runs on.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Command;

use crate::disorder::X;
use crate::room::{Room, eventually, live};
use crate::run::Done;

/// Records a burst into `file`, by a shell line in which `$@` is the recording.
fn burst(room: &Room, x: &X, shell: &str, file: &str) -> Done {
    let script = format!("{} leaf 60000 && echo finished; exit 6", x.program);
    let lib = x.lib();
    let gpurec = env!("CARGO_BIN_EXE_gpurec");
    let mut command = room.command("sh");
    command.args(["-c", shell, "sh", gpurec, "--lib", &lib, "-o", file, "--", "sh", "-c", &script]);
    room.run(command)
}

/// The recording failed and says why; the command ended by itself.
#[track_caller]
fn failed(done: &Done, why: &str) {
    done.exited(125).said(why).said("NOT complete");
    // gpurec does not know what it did not record.
    assert!(!done.stderr.contains("No CUDA library was loaded"), "{}", done.stderr);
    assert_eq!(done.text(), "finished\n");
}

#[test]
fn a_device_without_room() {
    live(|room| {
        let x = X::new(room);
        failed(&burst(room, &x, "\"$@\"", "/dev/full"), "No space left");
        // The target does not wait for a writer that has failed.
        failed(
            &burst(room, &x, "gpurec=$1; shift; \"$gpurec\" --lossless --ring 1 \"$@\"", "/dev/full"),
            "No space left",
        );
    });
}

/// If SIGXFSZ were not blocked, gpurec would die without a word.
#[test]
fn a_file_beyond_its_limit() {
    live(|room| {
        let (x, file) = (X::new(room), room.text("t.jsonl"));
        failed(&burst(room, &x, "ulimit -f 1000; \"$@\"", &file), "File too large");
        let done = room.run(room.gpurec(&["summary", &file]));
        done.exited(0);
        assert!(done.text().contains("NOT complete"), "{}", done.text());
    });
}

#[test]
fn a_command_dies_of_its_own_limit_as_ever() {
    live(|room| {
        let file = room.text("t.jsonl");
        let script = format!("ulimit -f 8; exec head -c 100000 /dev/zero >{}", room.text("zeroes"));
        let done = room.run(room.gpurec(&["-o", &file, "--", "sh", "-c", &script]));
        done.exited(128 + libc::SIGXFSZ);
    });
}

#[test]
fn a_pipe_whose_reader_leaves() {
    live(|room| {
        let (x, pipe) = (X::new(room), room.text("pipe"));
        nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let head = File::create(room.path("head")).unwrap();
        let mut reader = Command::new("head").args(["-n", "3", &pipe]).stdout(head).spawn().unwrap();
        failed(&burst(room, &x, "\"$@\"", &pipe), "Broken pipe");
        reader.wait().unwrap();
    });
}

/// A terminal whose other side is gone gives EIO, as a broken disk does.
#[test]
fn an_output_that_breaks() {
    live(|room| {
        let x = X::new(room);
        let pair = nix::pty::openpty(None, None).unwrap();
        for side in [&pair.master, &pair.slave] {
            nix::fcntl::fcntl(side, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).unwrap();
        }
        let name = nix::unistd::ttyname(&pair.slave).unwrap();
        let (lib, go) = (x.lib(), room.text("go"));
        let script = format!(
            "echo ready; while [ ! -e {go} ]; do sleep 0.01; done; {} leaf 60000 && echo finished; exit 6",
            x.program
        );
        let mut words = vec!["--lib", &lib, "-o", name.to_str().unwrap(), "--", "sh", "-c"];
        words.push(&script);
        let mut recording = room.start_unchecked(room.gpurec(&words));
        recording.wait_for_stdout("ready");
        let other: OwnedFd = pair.master;
        drop((other, pair.slave));
        std::fs::write(&go, "").unwrap();
        eventually("its end", || !recording.is_running());
        let done = recording.done();
        done.exited(125).said("Input/output error");
        assert_eq!(done.text(), "ready\nfinished\n");
    });
}
