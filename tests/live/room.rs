//! The environment in which one test runs.
//! In: a test's body.
//! Out: the body ran alone, in a folder of its own, and left nothing: no process (stopped, guarding or running), no
//! file in TMPDIR. A process is ours if its environment or command line names the room's folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::needs;

/// Names the room in the environment of every program that is started in it.
pub const TAG: &str = "LIVE_ROOM";

/// Long enough for a slow machine to do anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Recordings on one machine disturb each other's timing.
static ALONE: Mutex<()> = Mutex::new(());

pub struct Room {
    pub dir: PathBuf,
    pub next: AtomicU32,
}

/// Runs a test that needs root and BPF.
pub fn live(body: impl FnOnce(&Room)) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !needs::root_and_bpf() {
        return;
    }
    let room = Room::new();
    take_interrupts();
    let result = catch_unwind(AssertUnwindSafe(|| body(&room)));
    let left = room.left_behind();
    room.clear();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
    assert!(left.is_empty(), "left behind: {left:#?}");
}

/// A shell makes what it starts with `&` ignore interrupts, and nohup makes it ignore the end of the terminal; every
/// program that a test starts would inherit that.
fn take_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: the default handler is no function of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The same with the folder of NVIDIA's libraries.
pub fn live_nvidia(body: impl FnOnce(&Room, &Path)) {
    if let Some(libraries) = needs::nvidia() {
        live(|room| body(room, &libraries));
    }
}

/// Waits for a condition; panics if it is never true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(within(PATIENCE, &mut is_so), "waited {PATIENCE:?} in vain: {what}");
}

/// How many times slower than a real machine this one is, where its processors are emulated: GPUREC_SLOW.
pub fn slow() -> u32 {
    std::env::var("GPUREC_SLOW").map_or(1, |factor| factor.parse().expect("GPUREC_SLOW"))
}

/// The one place that enforces a time limit.
pub fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let limit = limit * slow();
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}

impl Room {
    fn new() -> Room {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("live-{}-{count}-", std::process::id()));
        let room = Room { dir, next: AtomicU32::new(0) };
        for (folder, mode) in [("", 0o755), ("tmp", 0o1777), ("cwd", 0o755)] {
            let path = room.dir.join(folder);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        room
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path as an argument.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    pub fn cwd(&self) -> PathBuf {
        self.dir.join("cwd")
    }

    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Builds fixtures/programs/SOURCE. `flags` come after the source.
    pub fn compile(&self, source: &str, out: &str, flags: &[&str]) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/programs").join(source);
        let out = self.path(out);
        let built = Command::new("cc")
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&out)
            .arg(source)
            .args(flags)
            .arg("-ldl")
            .output()
            .expect("a C compiler, cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        out.to_str().unwrap().to_owned()
    }

    /// Waits for the header: the recorder writes and flushes it once everything is hooked.
    pub fn wait_until_recording(&self, file: &str) {
        eventually("the header", || fs::read(file).is_ok_and(|bytes| bytes.contains(&b'\n')));
    }

    /// The current processes of this room, with their states.
    pub fn processes(&self) -> Vec<Process> {
        let own = std::process::id();
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid != own && self.owns(*pid)).filter_map(Process::of).collect()
    }

    fn owns(&self, pid: u32) -> bool {
        let name = self.dir.as_os_str().as_encoded_bytes();
        ["environ", "cmdline"].iter().any(|file| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            memchr::memmem::find(&bytes, name).is_some()
        })
    }

    /// What the test should have ended or removed. Guardians and the like get a moment to end.
    fn left_behind(&self) -> Vec<String> {
        within(Duration::from_secs(5), || self.processes().is_empty());
        let mut left: Vec<String> = self.processes().iter().map(|p| format!("{p:?}")).collect();
        let files = fs::read_dir(self.tmp()).unwrap().flatten();
        left.extend(files.map(|entry| entry.path().display().to_string()));
        left
    }

    /// Kills what is left, by its number, so that one failure stays one.
    fn clear(&self) {
        for process in self.processes() {
            let pid = nix::unistd::Pid::from_raw(process.pid as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    /// As in /proc/PID/stat: R, S, T for stopped…
    pub state: char,
}

impl Process {
    pub fn of(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        Some(Process { pid, name, state: tail.trim_start().chars().next()? })
    }
}
