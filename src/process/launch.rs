//! Starts the command and holds it at a gate until the recording is ready.
//!
//! In: the command line, an identity, an environment. Out: a child that has become the user and has found its program;
//! then the running program and its exit status.

use super::Pid;
use super::child::{ChildPlan, Pointers, SHELL, Stage, WORD_LEN, Word};
use super::identity::Identity;
use super::limits::Limits;
use super::proc::{self, Env, numbers_in, wait_for_child};
use super::rights::as_caller;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use std::ffi::{CString, NulError, OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Default)]
pub struct Launch {
    pub command: Vec<OsString>,
    /// None: keep gpurec's own identity.
    pub identity: Option<Identity>,
    pub env: Env,
    /// None: the limits that gpurec was started with.
    pub limits: Option<Limits>,
    /// Descriptors from 3 on that the command inherits (see [`inherited_fds`]); all others are closed.
    pub keep_fds: Vec<RawFd>,
    /// Redirects the command's standard output to gpurec's standard error, because another program reads gpurec's
    /// standard output.
    pub stdout_to_stderr: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("{0}: command not found; check the spelling, or give the path of the file")]
    NotFound(String),
    #[error("{name}: cannot be run: {why}")]
    CannotRun { name: String, why: String },
    #[error("gpurec could not start the command: {0}")]
    Internal(String),
}

impl LaunchError {
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound(_) => 127,
            LaunchError::CannotRun { .. } => 126,
            LaunchError::Internal(_) => 125,
        }
    }
}

fn internal(what: &str, error: impl std::fmt::Display) -> LaunchError {
    LaunchError::Internal(format!("{what}: {error}"))
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// The exit status of gpurec: the command's own, or 128+N for signal N.
    pub fn code(self) -> u8 {
        match self {
            Exit::Code(code) => (code & 0xff) as u8,
            Exit::Signal(signal) => (128 + signal) as u8,
        }
    }

    fn from_wait(status: i32) -> Exit {
        if libc::WIFSIGNALED(status) {
            Exit::Signal(libc::WTERMSIG(status))
        } else {
            Exit::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// The descriptors from 3 on that gpurec's caller passed to it (`<(...)`, a job server's pipe). Call this at the very
/// start: descriptors that gpurec opens itself are close-on-exec, so the list leaves them out.
pub fn inherited_fds() -> Vec<RawFd> {
    let mut fds: Vec<RawFd> = numbers_in("/proc/self/fd");
    fds.retain(|fd| *fd >= 3 && passes_exec(*fd));
    fds
}

fn passes_exec(fd: RawFd) -> bool {
    // SAFETY: a query on a number that need not be open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Finds the command's file, with the PATH and the rights of the user who will run it.
pub fn resolve(
    command: &OsStr,
    path_env: Option<&OsStr>,
    identity: Option<&Identity>,
) -> Result<PathBuf, LaunchError> {
    let launch = Launch {
        command: vec![command.to_owned()],
        identity: identity.cloned(),
        env: path_env.map(|p| ("PATH".into(), p.to_owned())).into_iter().collect(),
        ..Launch::default()
    };
    let (pid, names, ours) = fork(&launch, ChildPlan::look_up)?;
    let word = read_word(&ours);
    // Wait for the child in every case, so that it does not stay as a zombie.
    reap(pid);
    match word.map_err(|e| internal("reading from the child", e))? {
        Some(Word { stage: Stage::Ready, index, .. }) => Ok(names.candidate(index)),
        Some(word) => Err(names.error(word)),
        None => Err(LaunchError::Internal("the process that looks for its program ended early".into())),
    }
}

/// Forks. The child becomes the user, finds its program, and waits. If the calling thread ends before it opens the
/// gate, the child ends too.
pub fn start(launch: &Launch) -> Result<GatedCommand, LaunchError> {
    let (pid, names, socket) = fork(launch, ChildPlan::run)?;
    // From here on an early return kills and reaps the child.
    let mut gated = GatedCommand { pid, socket, pidfd: None, names, found: 0, armed: true };
    match read_word(&gated.socket).map_err(|e| internal("reading from the child", e))? {
        Some(Word { stage: Stage::Ready, index, .. }) => gated.found = index,
        Some(word) => return Err(gated.names.error(word)),
        None => {
            let why = match gated.end() {
                Exit::Signal(signal) => format!("the process made for it was killed by signal {signal}"),
                Exit::Code(code) => format!("the process made for it ended with status {code}"),
            };
            return Err(LaunchError::Internal(why));
        }
    }
    gated.pidfd = Some(proc::pidfd_open(pid).map_err(|e| internal("pidfd_open", e))?);
    Ok(gated)
}

/// A child that waits at the gate. Dropped without a call of [`GatedCommand::go`], it ends and is reaped.
#[derive(Debug)]
pub struct GatedCommand {
    pid: Pid,
    socket: OwnedFd,
    pidfd: Option<OwnedFd>,
    names: Names,
    found: u32,
    armed: bool,
}

impl GatedCommand {
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The file that will be executed.
    #[cfg(test)]
    pub fn program(&self) -> PathBuf {
        self.names.candidate(self.found)
    }

    /// Opens the gate and waits until the program runs or has failed to start.
    pub fn go(mut self) -> Result<RunningCommand, LaunchError> {
        // If the child was killed at the gate, the socket is closed; wait() reports how it ended.
        let _ = send(self.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL);
        let word = read_word(&self.socket).map_err(|e| internal("waiting for the command to start", e))?;
        if let Some(word) = word {
            return Err(self.names.error(word));
        }
        let pidfd = self.pidfd.take().ok_or_else(|| LaunchError::Internal("no pidfd".into()))?;
        self.armed = false;
        Ok(RunningCommand { pid: self.pid, pidfd, exit: None })
    }

    fn end(&mut self) -> Exit {
        self.armed = false;
        // The child may be stopped, and then the closed gate alone would not end it. It is not reaped yet, so its pid
        // cannot have been reused.
        // SAFETY: plain integers.
        unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGKILL) };
        reap(self.pid)
    }
}

impl Drop for GatedCommand {
    fn drop(&mut self) {
        if self.armed {
            self.end();
        }
    }
}

/// The running command. Dropping this value leaves the command running.
#[derive(Debug)]
pub struct RunningCommand {
    pid: Pid,
    pidfd: OwnedFd,
    exit: Option<Exit>,
}

impl RunningCommand {
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the command has ended.
    pub fn wait(&mut self) -> Exit {
        let pid = self.pid;
        *self.exit.get_or_insert_with(|| reap(pid))
    }

    /// The exit status, if the command ends within `timeout_ms` (0: if it has ended already).
    pub fn wait_for(&mut self, timeout_ms: i32) -> Option<Exit> {
        if self.exit.is_none() && !proc::pidfd_ended(self.pidfd.as_raw_fd(), timeout_ms) {
            return None;
        }
        Some(self.wait())
    }

    /// Passes a signal on; has no effect once the command has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        proc::pidfd_signal(self.pidfd.as_raw_fd(), signal)
    }
}

/// Readable once the command has ended.
impl AsFd for RunningCommand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn reap(pid: Pid) -> Exit {
    // ECHILD: SIGCHLD is ignored, so Linux reaped the child and the status is lost.
    wait_for_child(pid, 0).map_or(Exit::Code(125), Exit::from_wait)
}

/// Returns the child, and the parent's end of the socket pair.
fn fork(launch: &Launch, run: fn(&mut ChildPlan) -> !) -> Result<(Pid, Names, OwnedFd), LaunchError> {
    let (mut prepared, names, [ours, _theirs]) = prepare(launch)?;
    // SAFETY: the child runs only `run`, which keeps to async-signal-safe calls, and ends there.
    match unsafe { libc::fork() } {
        0 => run(&mut prepared),
        pid if pid > 0 => Ok((pid as Pid, names, ours)),
        _ => Err(internal("fork", io::Error::last_os_error())),
    }
}

/// None: the other end is closed.
fn read_word(socket: &OwnedFd) -> io::Result<Option<Word>> {
    let mut bytes = [0u8; WORD_LEN];
    loop {
        return match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_WAITALL) {
            Err(Errno::EINTR) => continue,
            // The child ended before it read our byte: the socket is closed in this case too.
            Ok(0) | Err(Errno::ECONNRESET) => Ok(None),
            Ok(WORD_LEN) => {
                Word::decode(&bytes).map(Some).ok_or_else(|| io::Error::other("a malformed word"))
            }
            Ok(_) => Err(io::Error::other("half a word")),
            Err(errno) => Err(errno.into()),
        };
    }
}

/// What the child needs, and both ends of a socket pair: the gate's byte goes to the child, its words come back, and
/// close-on-exec reports that the program runs.
fn prepare(launch: &Launch) -> Result<(ChildPlan, Names, [OwnedFd; 2]), LaunchError> {
    let name = launch.command.first().ok_or_else(|| LaunchError::Internal("no command".into()))?;
    let path = launch.env.iter().find(|(key, _)| key == "PATH");
    let candidates = candidates(name, path.map(|(_, value)| value.as_os_str()));
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| internal("socketpair", io::Error::from(e)))?;
    let args = c_strings(launch.command.iter().map(|word| word.as_bytes().to_vec()))?;
    let shell_args = [SHELL.to_owned(), CString::default()].into_iter().chain(args.iter().skip(1).cloned());
    let env = launch.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let mut keep = launch.keep_fds.clone();
    keep.push(theirs.as_raw_fd());
    keep.sort_unstable();
    let prepared = ChildPlan {
        candidates: c_strings(candidates.iter().map(|path| path.as_os_str().as_bytes().to_vec()))?,
        shell_argv: Pointers::new(shell_args.collect()),
        argv: Pointers::new(args),
        envp: Pointers::new(c_strings(env)?),
        limits: launch.limits,
        user: launch.identity.clone(),
        keep,
        stdout_to_stderr: launch.stdout_to_stderr,
        socket: theirs.as_raw_fd(),
        parent: std::process::id(),
    };
    let command = name.to_string_lossy().into_owned();
    Ok((prepared, Names { command, user: launch.identity.clone(), candidates }, [ours, theirs]))
}

fn c_strings(texts: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, LaunchError> {
    let zero = |e: NulError| {
        LaunchError::Internal(format!("{:?} contains a zero byte", OsString::from_vec(e.into_vec())))
    };
    texts.map(|text| CString::new(text).map_err(zero)).collect()
}

/// The files that execvp would try, in the same order.
pub(super) fn candidates(name: &OsStr, path_env: Option<&OsStr>) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    // The C library's default when PATH is not set.
    let path = path_env.unwrap_or(OsStr::new("/bin:/usr/bin"));
    path.as_bytes()
        .split(|b| *b == b':')
        .map(|dir| match dir {
            // An empty element is the current directory.
            b"" => Path::new(".").join(name),
            dir => PathBuf::from(OsString::from_vec(dir.to_vec())).join(name),
        })
        .collect()
}

/// What error messages need: the command, the user and the candidates.
#[derive(Debug)]
struct Names {
    command: String,
    user: Option<Identity>,
    candidates: Vec<PathBuf>,
}

impl Names {
    fn candidate(&self, index: u32) -> PathBuf {
        let path = self.candidates.get(index as usize);
        path.cloned().unwrap_or_else(|| PathBuf::from(&self.command))
    }

    /// Uses the rights of the user that the command would run as: an error must not reveal the contents of folders that
    /// this user cannot read.
    fn look(&self, path: &Path) -> Option<Metadata> {
        let look = || std::fs::metadata(path).ok();
        match &self.user {
            Some(user) => as_caller(user, look).ok().flatten(),
            None => look(),
        }
    }

    fn error(&self, word: Word) -> LaunchError {
        let error = io::Error::from_raw_os_error(word.errno);
        let who = self.user.as_ref().map_or("this user", |user| user.user.as_str());
        let cannot = |why: String| LaunchError::CannotRun { name: self.command.clone(), why };
        match (word.stage, word.errno) {
            (Stage::Identity, _) => LaunchError::Internal(format!(
                "it cannot run as {who}: {error}; call gpurec as root itself, without sudo, to run it as root"
            )),
            (Stage::Lookup, libc::ENOENT) => LaunchError::NotFound(self.command.clone()),
            // The file was found before the gate opened and has been removed since.
            (Stage::Exec, libc::ENOENT) if self.look(&self.candidate(word.index)).is_none() => {
                LaunchError::NotFound(self.command.clone())
            }
            (_, libc::EACCES) => {
                let path = self.candidate(word.index);
                cannot(refusal(&path, self.look(&path), who))
            }
            (Stage::Exec, libc::ENOENT) => cannot(format!(
                "the interpreter that {} asks for (its #! line or ELF loader) is missing; install it",
                self.candidate(word.index).display()
            )),
            _ => cannot(error.to_string()),
        }
    }
}

/// Explains why an existing file could not be executed.
fn refusal(path: &Path, about: Option<Metadata>, who: &str) -> String {
    let shown = path.display();
    match about {
        Some(meta) if meta.is_dir() => format!("{shown} is a directory"),
        Some(meta) if !meta.is_file() => format!("{shown} is not a regular file"),
        Some(meta) if meta.permissions().mode() & 0o111 == 0 => {
            format!("{shown} is not executable; make it so with: chmod +x {shown}")
        }
        _ => {
            format!("{who} may not execute {shown}; check the permissions of the file and of its directories")
        }
    }
}
