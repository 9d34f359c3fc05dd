//! Builds and runs programs of fixtures/programs that print their own stacks, and asks binutils about them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::Pid;
use crate::stacks::native::{Frame, Registers, Stack};

/// A stack, and the program's own list of return addresses.
#[derive(Clone)]
pub struct Snapshot {
    pub stack: Stack,
    pub calls: Vec<u64>,
}

/// A program that waits at its end. It ends when this is dropped.
pub struct Program {
    pub snapshots: Vec<Snapshot>,
    folder: Folder,
    child: Child,
    made: u64,
    /// Keeps it waiting.
    _input: ChildStdin,
}

pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpurec-native-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file that is removed when this is dropped.
pub struct Removed(PathBuf);

impl Removed {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn build(folder: &Folder, source: &str, flags: &[&str]) -> PathBuf {
    let path = folder.file("program");
    let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/programs").join(source);
    let identified = ["-pthread", "-w", "-Wl,--build-id=0x0123456789abcdef"];
    output(Command::new(compiler).args(identified).args(flags).arg(source).arg("-o").arg(&path));
    path
}

impl Program {
    pub fn run(source: &str, flags: &[&str], arguments: &[&str]) -> Program {
        let folder = Folder::new();
        build(&folder, source, flags);
        Program::started(folder, arguments)
    }

    /// Stripped, with its symbols in .gnu_debugdata, as Fedora has its programs.
    pub fn packed(source: &str, flags: &[&str]) -> Program {
        let folder = Folder::new();
        let path = build(&folder, source, flags);
        let [symbols, packed] = ["symbols", "symbols.xz"].map(|name| folder.file(name));
        output(Command::new("objcopy").args(["--only-keep-debug", "--strip-debug"]).arg(&path).arg(&symbols));
        output(Command::new("xz").arg(&symbols));
        output(Command::new("strip").arg(&path));
        let section = format!(".gnu_debugdata={}", packed.display());
        output(Command::new("objcopy").args(["--add-section", &section]).arg(&path));
        Program::started(folder, &[])
    }

    fn started(folder: Folder, arguments: &[&str]) -> Program {
        let mut command = Command::new(folder.file("program"));
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let (mut snapshots, mut made) = (Vec::<Snapshot>::new(), 0);
        let number = |word: &str| u64::from_str_radix(word, 16).unwrap();
        for line in lines.take_while(|line| line != "done") {
            let (kind, rest) = line.split_once(' ').unwrap();
            match kind {
                "registers" => {
                    let values: Vec<u64> = rest.split(' ').map(number).collect();
                    let [ip, sp, bp, rbx, r12, r13, r14, r15] = values[..] else { panic!("{line}") };
                    let registers = Registers { ip, sp, bp, others: Some([rbx, r12, r13, r14, r15]) };
                    let stack = Stack { registers, base: sp, ..Stack::default() };
                    snapshots.push(Snapshot { stack, calls: Vec::new() });
                }
                "stack" => {
                    let bytes = (0..rest.len()).step_by(2).map(|at| number(&rest[at..at + 2]) as u8);
                    snapshots.last_mut().unwrap().stack.bytes = bytes.collect();
                }
                "calls" => snapshots.last_mut().unwrap().calls = rest.split(' ').map(number).collect(),
                "made" => made = number(rest),
                _ => panic!("{line}"),
            }
        }
        Program { snapshots, folder, child, made, _input: input }
    }

    pub fn pid(&self) -> Pid {
        self.child.id()
    }

    pub fn path(&self) -> PathBuf {
        self.folder.file("program")
    }

    /// Where its code made at run time begins.
    pub fn made(&self) -> u64 {
        self.made
    }

    pub fn build_id(&self) -> Option<String> {
        Some("0123456789abcdef".to_owned())
    }

    pub fn perf_map(&self, text: &str) -> Removed {
        let path = PathBuf::from(format!("/tmp/perf-{}.map", self.pid()));
        std::fs::write(&path, text).unwrap();
        Removed(path)
    }

    /// The functions at an address, each as `function file:line`.
    pub fn addr2line(&self, address: u64) -> Vec<String> {
        let address = format!("{address:x}");
        let said =
            output(Command::new("addr2line").args(["-f", "-i", "-C", "-e"]).arg(self.path()).arg(address));
        let lines: Vec<&str> = said.lines().collect();
        let place =
            |place: &str| place.split(" (disc").next().unwrap().rsplit('/').next().unwrap().to_owned();
        lines.chunks(2).map(|two| format!("{} {}", without_parameters(two[0]), place(two[1]))).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the form of `addr2line`.
pub fn shown(frames: &[Frame]) -> Vec<String> {
    let name = |frame: &Frame| without_parameters(frame.function.as_deref().unwrap_or("?"));
    let file = |frame: &Frame| {
        let file = frame.file.as_deref().unwrap_or("?");
        file.rsplit('/').next().unwrap_or_default().to_owned()
    };
    frames.iter().map(|f| format!("{} {}:{}", name(f), file(f), f.line.unwrap_or(0))).collect()
}

/// Names of templates and lambdas are compared up to their first bracket: demanglers write the rest differently.
fn without_parameters(name: &str) -> String {
    name.split(['(', '<', '{']).next().unwrap_or_default().trim().to_owned()
}
