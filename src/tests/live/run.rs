//! Programs started in a room. In: words. Out: an exit status and what was printed, within a limit.
//! Output goes through files, so nobody ever waits for a full pipe.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::room::{Room, TAG, eventually, within};
use crate::trace::Trace;

/// No single recording here takes longer, however slow the machine.
const LIMIT: Duration = Duration::from_secs(150);

pub struct Started {
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

    pub fn start(&self, mut command: Command) -> Started {
        let number = self.number();
        let (out, err) = (self.path(&format!("out-{number}")), self.path(&format!("err-{number}")));
        let line = format!("{command:?}");
        command.stdin(std::process::Stdio::null());
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        Started { child, line, out, err }
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

    /// A program as a test starts it to be attached to.
    pub fn target(&self, words: &[&str]) -> Started {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        self.start(command)
    }
}

impl Started {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap()).into_owned()
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
        Done { status, stdout: fs::read(&self.out).unwrap(), stderr: self.stderr(), line: self.line }
    }

    pub fn kill(self) -> Done {
        self.signal(Signal::SIGKILL);
        self.done()
    }
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

    /// Standard error holds these words.
    #[track_caller]
    pub fn said(&self, words: &str) -> &Done {
        assert!(self.stderr.contains(words), "{} did not say {words:?} but:\n{}", self.line, self.stderr);
        self
    }

    /// One line on standard error, as an error should be: what, why, what to do.
    #[track_caller]
    pub fn one_sentence(&self) -> &Done {
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("gpurec: "), "{}", self.stderr);
        self
    }
}
