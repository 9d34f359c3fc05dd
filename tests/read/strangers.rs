//! Folders in which others have made names: FIFOs, devices, links; and files that gpurec writes at the same time.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::{Folder, gpurec, trace};

/// Ends what would wait for ever.
fn run(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_folder_with_a_fifo_and_a_device_is_read_without_them() {
    let folder = Folder::new();
    fs::copy(trace("demo.jsonl.zst"), folder.file("rank0.jsonl.zst")).unwrap();
    mkfifo(folder.file("a.jsonl").as_str(), Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", folder.file("b.jsonl")).unwrap();
    fs::create_dir(folder.file("c.jsonl")).unwrap();
    let given = folder.0.to_str().unwrap();
    for words in [&["ranks", given][..], &["check", "--assert", "ranks.missing==0", given]] {
        let output = run(gpurec(words));
        let text = said(&output);
        assert!(output.status.code().is_some_and(|code| code <= 1), "{output:?}");
        assert!(text.contains(".jsonl and 2 more left out"), "{text}");
    }
    // Without a trace it looks for documents, which may be a FIFO too.
    fs::remove_file(folder.file("rank0.jsonl.zst")).unwrap();
    mkfifo(folder.file("d.json").as_str(), Mode::S_IRWXU).unwrap();
    for words in [&["ranks", given][..], &["check", "--assert", "ranks.missing==0", given]] {
        let output = run(gpurec(words));
        assert_eq!(output.status.code(), Some(125), "{output:?}");
    }
    // A FIFO that the user names is read.
    let line = format!("{} summary <(cat {})", env!("CARGO_BIN_EXE_gpurec"), trace("torch_h200.jsonl"));
    let mut bash = Command::new("bash");
    bash.args(["-c", &line]);
    let output = run(bash);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn an_export_does_not_destroy_a_trace_that_is_being_recorded() {
    let folder = Folder::new();
    let text = "a recording\n".repeat(1000);
    for name in ["t.jsonl", "t.jsonl.zst"] {
        fs::write(folder.file(name), &text).unwrap();
        // As a recorder does it.
        let file = File::options().write(true).open(folder.file(name)).unwrap();
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        for format in ["chrome", "csv", "html"] {
            let words = ["export", "--format", format, "-o", &folder.file(name), &trace("torch_h200.jsonl")];
            let output = run(gpurec(&words));
            assert!(!output.status.success() && said(&output).contains("is writing it"), "{output:?}");
            assert_eq!(fs::read_to_string(folder.file(name)).unwrap(), text, "{format}");
        }
        drop(lock);
        let words = ["export", "--format", "csv", "-o", &folder.file(name), &trace("torch_h200.jsonl")];
        assert!(run(gpurec(&words)).status.success());
        assert!(!fs::read(folder.file(name)).unwrap().starts_with(b"a recording"));
    }
}

#[test]
fn a_dataset_with_a_link_or_a_fifo() {
    let folder = Folder::new();
    let (dataset, elsewhere) = (folder.file("dataset"), folder.file("elsewhere"));
    let words = ["export", "--format", "parquet", "-o", &dataset, &trace("torch_h200.jsonl")];
    fs::create_dir_all(&elsewhere).unwrap();
    let partition = || {
        let mut path = folder.0.join("dataset/meta");
        while let Some(below) = fs::read_dir(&path).unwrap().flatten().find(|it| it.path().is_dir()) {
            path = below.path();
        }
        path
    };
    assert!(run(gpurec(&words)).status.success());
    mkfifo(&partition().join("part-9.parquet"), Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", partition().join("part-8.parquet")).unwrap();
    assert!(run(gpurec(&words)).status.success(), "other names in a partition do no harm");
    let parts = fs::read_dir(partition()).unwrap().count();
    assert_eq!(parts, 3, "the part was replaced");
    // In place of a table, and of a partition.
    for place in [folder.0.join("dataset/calls"), partition()] {
        fs::remove_dir_all(&place).unwrap();
        symlink(&elsewhere, &place).unwrap();
        let output = run(gpurec(&words));
        assert!(!output.status.success() && said(&output).contains("is a symbolic link"), "{output:?}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{}", place.display());
        fs::remove_file(&place).unwrap();
        assert!(run(gpurec(&words)).status.success());
    }
}
