//! Programs that a test starts.
//! In: words.
//! Out: an exit status and the output, within a time limit. Output goes through files, so no program waits for a full
//! pipe.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::figures;
use crate::room::{Room, TAG, eventually, within};
use crate::trace::Trace;

/// No single recording here takes longer, however slow the machine.
const LIMIT: Duration = Duration::from_secs(150);

pub struct Started<'a> {
    room: &'a Room,
    /// The trace that it writes, if it is a recording.
    recording: Option<Recording>,
    child: Child,
    line: String,
    out: PathBuf,
    err: PathBuf,
}

pub struct Done {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    line: String,
}

impl Room {
    /// A command with the room's environment; its output is set by `start`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.cwd()).env(TAG, &self.dir).env("TMPDIR", self.tmp());
        // The suite itself may run under sudo; its programs are root's own.
        for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND", "DOAS_USER", "PKEXEC_UID", "RANK"] {
            command.env_remove(name);
        }
        command
    }

    pub fn gpurec<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_gpurec"));
        command.args(words);
        command
    }

    pub fn start(&self, command: Command) -> Started<'_> {
        let recording = Recording::of(self, &command);
        Started { recording, ..self.start_unchecked(command) }
    }

    /// Starts a recording whose output is no file that could be read again.
    pub fn start_unchecked(&self, mut command: Command) -> Started<'_> {
        let number = self.number();
        let (out, err) = (self.path(&format!("out-{number}")), self.path(&format!("err-{number}")));
        let line = format!("{command:?}");
        command.stdin(std::process::Stdio::null());
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        Started { room: self, recording: None, child, line, out, err }
    }

    pub fn run(&self, command: Command) -> Done {
        self.start(command).done()
    }

    /// `gpurec OPTIONS -o FILE -- COMMAND`, its trace read and checked.
    pub fn record(&self, options: &[&str], words: &[&str]) -> (Done, Trace) {
        let file = self.text(&format!("trace-{}.jsonl", self.number()));
        let words = [options, &["-o", &file, "--"], words].concat();
        let done = self.run(self.gpurec(&words));
        let trace = Trace::checked(self, &file);
        (done, trace)
    }

    /// Starts a program for a test to attach to.
    pub fn target(&self, words: &[&str]) -> Started<'_> {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        self.start(command)
    }
}

impl Started<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// The most memory of its own, in KiB, until it has ended: without the rings, which belong to Linux.
    pub fn most_memory(&mut self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let mut most = 0;
        while self.is_running() {
            let status = fs::read_to_string(&path).unwrap_or_default();
            let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kib = own.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse().ok());
            most = kib.unwrap_or(0).max(most);
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap()).into_owned()
    }

    /// Standard output's file: processes that this one left may write to it after it has ended.
    pub fn stdout_file(&self) -> PathBuf {
        self.out.clone()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }

    pub fn wait_for_stdout(&mut self, text: &str) {
        eventually(&format!("{text:?} on the standard output of {}", self.line), || {
            let said = self.stdout().contains(text);
            assert!(said || self.is_running(), "{} ended: {}", self.line, self.stderr());
            said
        });
    }

    pub fn done(mut self) -> Done {
        if !within(LIMIT, || !self.is_running()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!("{} did not end in {LIMIT:?}: {}", self.line, self.stderr());
        }
        let status = self.child.wait().unwrap();
        let (stdout, stderr) = (fs::read(&self.out).unwrap(), self.stderr());
        let done = Done { status, stdout, stderr, line: self.line };
        if let Some(recording) = &self.recording {
            recording.check(self.room, &done);
        }
        done
    }

    pub fn kill(self) -> Done {
        self.signal(Signal::SIGKILL);
        self.done()
    }
}

/// With these options gpurec writes no trace unless -o is given.
const NO_TRACE: [&str; 3] = ["--summary-only", "--metrics", "--otlp"];

/// What a started gpurec must write.
struct Recording {
    /// None: nothing, or its standard output.
    file: Option<PathBuf>,
    on_stdout: bool,
    quiet: bool,
}

impl Recording {
    fn of(room: &Room, command: &Command) -> Option<Recording> {
        const NO_RECORDING: [&str; 12] = [
            "top",
            "summary",
            "timeline",
            "report",
            "export",
            "diff",
            "check",
            "ranks",
            "probes",
            "doctor",
            "completions",
            "man",
        ];
        if command.get_program() != env!("CARGO_BIN_EXE_gpurec") {
            return None;
        }
        let words: Vec<&str> = command
            .get_args()
            .map(|word| word.to_str().unwrap_or(""))
            .take_while(|word| *word != "--")
            .collect();
        // Each dump has its own figures.
        let dumps = words.contains(&"--last") || words.first() == Some(&"dump");
        if dumps || words.first().is_some_and(|first| NO_RECORDING.contains(first)) {
            return None;
        }
        let given = words.iter().position(|word| *word == "-o").and_then(|at| words.get(at + 1));
        let on_stdout = given == Some(&"-");
        let file = match given {
            Some(path) => Some(room.cwd().join(path)).filter(|_| !on_stdout),
            None if words.iter().any(|word| NO_TRACE.contains(word)) => None,
            None => Some(room.cwd().join("traces/latest")),
        };
        Some(Recording { file, on_stdout, quiet: words.contains(&"-q") })
    }

    /// Checks, for every recording, that its printed figures equal those of its file. Left out are recordings that were
    /// killed on purpose (SIGKILL: they print nothing, and their file has no end), those that failed (125 and its like:
    /// they recorded nothing, or could not write it, and a full disk has only a part), and those without a trace
    /// (`NO_TRACE`).
    fn check(&self, room: &Room, done: &Done) {
        let failed = done.status.code().is_some_and(|code| [2, 125, 126, 127].contains(&code));
        let said = figures::printed(&done.stderr).is_some();
        if done.status.signal() == Some(libc::SIGKILL) || done.status.code() == Some(125) || (failed && !said)
        {
            return;
        }
        assert!(self.quiet || said, "{} printed no summary:\n{}", done.line, done.stderr);
        let file = match &self.file {
            Some(file) => file.clone(),
            None if self.on_stdout => trace_in(room, done),
            None => return,
        };
        let file = file.to_str().expect("a name of ours");
        if self.quiet {
            figures::stored_is_read(room, file);
        } else {
            figures::printed_is_read(room, file, &done.stderr);
        }
    }
}

/// Extracts the trace that was written to standard output, between the command's own lines.
fn trace_in(room: &Room, done: &Done) -> PathBuf {
    let path = room.path(&format!("stdout-{}.jsonl", room.number()));
    let text = done.text();
    let lines = text.lines().filter(|line| line.starts_with("{\"event_id\":"));
    let trace: String = lines.flat_map(|line| [line, "\n"]).collect();
    fs::write(&path, trace).unwrap();
    path
}

impl Done {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[track_caller]
    pub fn exited(&self, code: i32) -> &Done {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{} (signal {:?}) said:\n{}",
            self.line,
            self.status.signal(),
            self.stderr
        );
        self
    }

    /// Asserts that standard error contains these words.
    #[track_caller]
    pub fn said(&self, words: &str) -> &Done {
        assert!(self.stderr.contains(words), "{} did not say {words:?} but:\n{}", self.line, self.stderr);
        self
    }

    /// Asserts that standard error is one line, as an error should be: what, why, what to do.
    #[track_caller]
    pub fn one_sentence(&self) -> &Done {
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("gpurec: "), "{}", self.stderr);
        self
    }
}
