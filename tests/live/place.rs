//! Where a trace goes: letters of -o, files that another recording writes, descriptors inherited from a shell.

use std::fs;

use crate::disorder::X;
use crate::manners::refused;
use crate::room::{eventually, live};
use crate::trace::Trace;
use crate::user::as_user;

#[test]
fn a_second_recording_and_an_export_into_a_file_are_refused() {
    live(|room| {
        let (x, file, go) = (X::new(room), room.text("t.jsonl"), room.text("go"));
        let script =
            format!("{0} leaf 100; while [ ! -e {go} ]; do sleep 0.02; done; {0} leaf 100", x.program);
        let lib = x.lib();
        let first = room.start(room.gpurec(&["--lib", &lib, "-o", &file, "--", "sh", "-c", &script]));
        room.wait_until_recording(&file);
        let ran = format!("touch {}", room.text("ran"));
        refused(room, 125, &["-o", &file, "--", "sh", "-c", &ran], "is being written by another recording");
        let other = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/torch_h200.jsonl");
        let export = room.gpurec(&["export", "--format", "csv", "-o", &file, other]);
        room.run(export).exited(125).said("another gpurec is writing it").one_sentence();
        fs::write(&go, "").unwrap();
        first.done().exited(0);
        Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 200)]);
        // Neither the command, which runs on, nor the guardian of a killed recording keeps the file open.
        let script = format!("rm {go}; while [ ! -e {go} ]; do sleep 0.02; done");
        let killed = room.start(room.gpurec(&["-o", &file, "--", "sh", "-c", &script]));
        eventually("the second recording", || !fs::exists(&go).unwrap());
        killed.kill();
        room.run(room.gpurec(&["-o", &file, "--", "true"])).exited(0);
        fs::write(&go, "").unwrap();
        eventually("the command's own end", || room.processes().is_empty());
    });
}

#[test]
fn letters_of_a_name() {
    live(|room| {
        let mut command = room.gpurec(&["-q", "-o", "%h-%r-%%-%t.jsonl.zst", "--", "true"]);
        command.env("SLURM_PROCID", "7");
        let recording = room.start_unchecked(command);
        let pid = recording.pid();
        recording.done().exited(0);
        let names = |ends: &str| -> Vec<String> {
            let all = fs::read_dir(room.cwd()).unwrap().flatten();
            all.map(|entry| entry.file_name().into_string().unwrap()).filter(|n| n.ends_with(ends)).collect()
        };
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let [name] = &names(".jsonl.zst")[..] else { panic!("{:?}", names("")) };
        let stamp = name.strip_prefix(&format!("{}-7-%-", host.trim())).expect(name);
        assert_eq!(stamp.len(), "YYYYMMDD_HHMMSS.jsonl.zst".len(), "{name}");
        fs::remove_file(room.cwd().join(name)).unwrap();

        let recording = room.start_unchecked(room.gpurec(&["-q", "-o", "%p.jsonl", "--", "true"]));
        let name = format!("{}.jsonl", recording.pid());
        recording.done().exited(0);
        assert_ne!(name, format!("{pid}.jsonl"));
        fs::remove_file(room.cwd().join(name)).unwrap();

        let ran = format!("touch {}", room.text("ran"));
        for (name, why) in [
            ("x-%d.jsonl", "%h (host)"),
            ("x%", "%h (host)"),
            ("x-%r.jsonl", "OMPI_COMM_WORLD_RANK"),
            ("x.jsonl.gz", "use x.jsonl.zst"),
            ("x.xz", "use x.zst"),
        ] {
            refused(room, 2, &["-o", name, "--", "sh", "-c", &ran], why);
        }
        refused(room, 2, &["export", "--format", "csv", "-o", "x.gz"], "use x.zst");
    });
}

/// A shell gives such names to `>(...)`.
#[test]
fn a_descriptor_of_the_shell() {
    live(|room| {
        let (x, gpurec) = (X::new(room), env!("CARGO_BIN_EXE_gpurec"));
        let (record, got) = (format!("{gpurec} -q --lib {}", x.lib()), room.text("got"));
        for (number, line) in [
            format!("{record} -o >(cat >GOT) -- {} leaf 1000; wait $!", x.program),
            // The command does not inherit the descriptor.
            format!("exec 9> >(cat >GOT); {record} -o /dev/fd/9 -- sh -c '[ ! -e /proc/self/fd/9 ] && exec {} leaf 1000'; s=$?; exec 9>&-; wait $!; exit $s", x.program),
            format!("{record} -o /proc/self/fd/8 -- {} leaf 1000 8>GOT", x.program),
            format!("{record} -o /dev/stdout -- {} leaf 1000 >GOT", x.program),
        ]
        .iter()
        .enumerate()
        {
            let got = format!("{got}-{number}");
            let mut command = room.command("bash");
            command.args(["-c", &line.replace("GOT", &got)]);
            room.run(command).exited(0);
            let text = fs::read_to_string(&got).unwrap();
            Trace::parsed(&text).is_whole().has_calls(&[("x_leaf", 1000)]);
        }
        refused(room, 125, &["-o", "/dev/fd/77", "--", "true"], "is not open here; give -o a file or a FIFO");
        refused(room, 125, &["-o", "/dev/fd/0", "--", "true"], "is not open for writing");
    });
}

/// sudo closes what the shell opened, and does not pass on the variables of a job.
#[test]
fn a_descriptor_and_a_rank_through_sudo() {
    as_user(|room, user| {
        let line = "sudo $GPUREC -q -o >(cat >got) -- true; wait $!";
        user.types(room, line).exited(0);
        Trace::checked(room, user.home.join("got").to_str().unwrap()).is_whole();
        user.types(room, "export PMI_RANK=5; sudo $GPUREC -q -o run-%r.jsonl -- true").exited(0);
        user.owns(&user.home.join("run-5.jsonl"));
        // gpurec refuses its own descriptors, and descriptors that are no pipe of the caller's.
        for fd in 3..16 {
            let line = format!("exec 12>/dev/null; sudo $GPUREC -o /dev/fd/{fd} -- touch ran");
            user.types(room, &line).exited(125).said("sudo closes what its caller had open").one_sentence();
        }
        assert!(!user.home.join("ran").exists());
    });
}

#[test]
fn what_the_command_leaves_behind_is_named() {
    live(|room| {
        let go = room.text("go");
        let script = format!("(while [ ! -e {go} ]; do sleep 0.05; done) & exit 3");
        let done = room.run(room.gpurec(&["-o", &room.text("t.jsonl"), "--", "sh", "-c", &script]));
        done.exited(3).said("--pid PID").said(" (sh)");
        fs::write(&go, "").unwrap();
        eventually("the child's own end", || room.processes().is_empty());
        let done = room.run(room.gpurec(&["-o", &room.text("u.jsonl"), "--", "sh", "-c", "true & wait"]));
        assert!(!done.exited(0).stderr.contains("--pid PID"), "{}", done.stderr);
    });
}

#[test]
fn the_demo_with_options_before_it() {
    live(|room| {
        let file = room.text("t.jsonl");
        let done =
            room.run(room.gpurec(&["-o", &file, "--only", "cuMemAlloc", "demo", "--", "--loops", "1"]));
        done.exited(0);
        let trace = Trace::checked(room, &file);
        let names: Vec<_> = trace.counts().into_keys().collect();
        assert_eq!(names, ["cuMemAlloc_v2"], "a name without its version");
    });
}
