//! A virtual machine that runs a script.
//! In: a Linux version, a driver module, a script.
//! Out: what the script wrote, in a folder that is removed with the value.
//! Not here: which Linux it is and how it boots; see scripts/vm.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seconds for a machine. The longest script takes 400 while another machine runs beside it.
const LIMIT: &str = "1200";

#[derive(Clone, Copy)]
pub struct Machine {
    pub kernel: &'static str,
    driver: &'static str,
    options: &'static str,
    words: &'static str,
    type_information: bool,
}

impl Machine {
    pub const fn of(kernel: &'static str) -> Machine {
        Machine { kernel, driver: "open", options: "", words: "", type_information: true }
    }
    /// Builds the driver module as most distributions do: without BTF.
    pub const fn without_type_information(self) -> Machine {
        Machine { type_information: false, ..self }
    }
    pub const fn with_driver(self, driver: &'static str, options: &'static str) -> Machine {
        Machine { driver, options, ..self }
    }
    /// Appends words to Linux's command line.
    pub const fn with_words(self, words: &'static str) -> Machine {
        Machine { words, ..self }
    }

    /// GPUREC_TEST_KERNEL selects one Linux version of several.
    fn is_wanted(&self) -> bool {
        std::env::var("GPUREC_TEST_KERNEL").map_or(true, |kernel| kernel == self.kernel)
    }

    /// None, with a message, if this computer cannot run it; also None if another Linux version is selected.
    pub fn visit(&self, script: &str) -> Option<Visit> {
        if !self.is_wanted() {
            return None;
        }
        if !has_emulator() {
            skip(
                "qemu-system-x86_64 is missing: scripts/vm --kernel 6.12 --prepare installs and fetches what is needed",
            );
            return None;
        }
        let folder = tempdir();
        let (files, out) = (folder.join("files"), folder.join("out"));
        put_programs(&files);
        let path = folder.join("script");
        fs::write(&path, script).unwrap();
        let mut command = Command::new(root().join("scripts/vm"));
        command.args(["--kernel", self.kernel, "--driver", self.driver, "--timeout", LIMIT]);
        command.args(["--binary", env!("CARGO_BIN_EXE_gpurec")]).arg("--script").arg(&path);
        command.arg("--files").arg(&files).arg("--out").arg(&out);
        for (name, value) in [("--options", self.options), ("--append", self.words)] {
            if !value.is_empty() {
                command.args([name, value]);
            }
        }
        if !self.type_information {
            command.arg("--no-btf");
        }
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let visit = Visit { machine: *self, status: done.status.code().unwrap_or(-1), folder };
        assert!(visit.text("dmesg.txt").len() > 1, "{visit}: {said}");
        assert_ne!(visit.status, 124, "{visit}: it took longer than {LIMIT} s");
        assert_eq!(visit.text("complaints.txt"), "", "{visit}: the kernel complained, see dmesg");
        Some(visit)
    }
}

pub struct Visit {
    machine: Machine,
    pub status: i32,
    folder: PathBuf,
}

impl Visit {
    /// A file that the script wrote; empty if it did not.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("out").join(name)).unwrap_or_default())
            .into_owned()
    }

    /// Names of files that the script wrote, without their ending.
    pub fn names(&self, begin: &str, ending: &str) -> Vec<String> {
        let files = fs::read_dir(self.folder.join("out")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
        names
            .filter_map(|name| Some(name.strip_suffix(ending)?.to_owned()))
            .filter(|name| name.starts_with(begin))
            .collect()
    }
}

impl fmt::Display for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, driver, options, words, type_information } = self.machine;
        write!(f, "Linux {kernel}, driver {driver} {options} {words} BTF {type_information}")
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A failed test keeps the folder for inspection.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Returns whether the harness runs the tests that it usually ignores too.
pub fn every_test() -> bool {
    std::env::args().any(|word| word == "--include-ignored" || word == "--ignored")
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tempdir() -> PathBuf {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("gpurec-vm-test-{}-{number}", std::process::id()));
    fs::create_dir_all(folder.join("files")).unwrap();
    folder
}

/// Copies the demo's program and libraries as the build script left them, and the programs of the tests.
fn put_programs(files: &Path) {
    let demo = Path::new(env!("OUT_DIR")).join("demo");
    for name in ["libcuda.so.1", "libcudart.so.13", "program"] {
        fs::copy(demo.join(name), files.join(name))
            .unwrap_or_else(|e| panic!("{}/{name}: {e}", demo.display()));
    }
    for name in ["ioctls", "cost"] {
        let source = root().join(format!("fixtures/programs/{name}.c"));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        assert!(compiler.arg(files.join(name)).arg(source).status().unwrap().success());
    }
    fs::write(files.join("work.sh"), include_str!("guest/work.sh")).unwrap();
}

fn has_emulator() -> bool {
    Command::new("qemu-system-x86_64").arg("--version").output().is_ok_and(|done| done.status.success())
}

fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} was skipped under CI: {why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
