//! A disk that fills up while a trace is written to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::disorder::X;
use crate::room::live;

/// A file system of 1 MiB, or of another size; removed at the end.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    pub fn new(at: PathBuf) -> SmallDisk {
        SmallDisk::of(at, "size=1m")
    }

    pub fn of(at: PathBuf, size: &str) -> SmallDisk {
        std::fs::create_dir(&at).unwrap();
        let options = Some(size);
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("live-test"), &at, Some("tmpfs"), flags, options).expect("mounting a tmpfs");
        SmallDisk(at)
    }
}

impl SmallDisk {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_command() {
    live(|room| {
        let x = X::new(room);
        let disk = SmallDisk::new(room.path("disk"));
        let file = disk.0.join("t.jsonl").to_str().unwrap().to_owned();
        let script = format!("{} leaf 100000 && echo finished; exit 6", x.program);
        let lib = x.lib();
        let done = room.run(room.gpurec(&["--lib", &lib, "-o", &file, "--", "sh", "-c", &script]));
        done.exited(125).said("No space left");
        assert_eq!(done.text(), "finished\n");

        // What could be written can be read, and says that it is not complete.
        let done = room.run(room.gpurec(&["summary", "--json", &file]));
        let figures: serde_json::Value = serde_json::from_slice(&done.exited(0).stdout).unwrap();
        assert_eq!(figures["complete"], false);
        assert!(figures["other_calls"].as_u64().unwrap() > 1000, "{figures}");
    });
}

#[test]
fn a_disk_that_is_full_from_the_beginning() {
    live(|room| {
        let disk = SmallDisk::new(room.path("disk"));
        let fill = "cat /dev/zero >filler 2>/dev/null; [ -s filler ]";
        let filled = Command::new("sh").args(["-c", fill]).current_dir(&disk.0).status();
        assert!(filled.unwrap().success());
        let file = disk.0.join("t.jsonl").to_str().unwrap().to_owned();
        let done = room.run(room.gpurec(&["-o", &file, "--", "sh", "-c", "echo finished; exit 6"]));
        done.exited(125).said("No space left");
    });
}
