//! The code between fork and exec. The parent may have threads, so nothing here allocates, locks or panics: it makes
//! system calls on memory that was prepared before the fork, and sends one word back on a socket.

use super::Pid;
use super::fds::{close_all_except, restore_limit};
use super::identity::Identity;
use super::limits::Limits;
use super::rights::take_on;
use super::signals;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::sys::stat::stat;
use nix::unistd::{AccessFlags, access, getppid};
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

/// The stage that the child has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Stage {
    Ready = 1,
    Identity = 2,
    Lookup = 3,
    Exec = 4,
}

/// The child's message to its parent: `index` is the candidate that was found or that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub stage: Stage,
    pub errno: i32,
    pub index: u32,
}

pub(super) const WORD_LEN: usize = 12;

impl Word {
    pub fn encode(self) -> [u8; WORD_LEN] {
        let fields = [self.stage as u32, self.errno as u32, self.index].map(u32::to_ne_bytes);
        fields.as_flattened().try_into().unwrap_or_default()
    }

    pub fn decode(bytes: &[u8; WORD_LEN]) -> Option<Word> {
        let (fields, _) = bytes.as_chunks::<4>();
        let fields: [[u8; 4]; 3] = fields.try_into().ok()?;
        let [stage, errno, index] = fields.map(u32::from_ne_bytes);
        let stages = [Stage::Ready, Stage::Identity, Stage::Lookup, Stage::Exec];
        let stage = stages.into_iter().find(|known| *known as u32 == stage)?;
        Some(Word { stage, errno: errno as i32, index })
    }
}

/// An array of C strings ended by a null pointer, and the strings it points to.
pub(super) struct Pointers {
    // Keeps the strings alive for the pointers.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Pointers {
    pub fn new(strings: Vec<CString>) -> Pointers {
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Pointers { _strings: strings, pointers }
    }
}

pub(super) const SHELL: &CStr = c"/bin/sh";

/// Everything that the child needs, prepared before the fork.
pub(super) struct ChildPlan {
    pub candidates: Vec<CString>,
    pub argv: Pointers,
    /// The same arguments for `/bin/sh FILE ARG...`; slot 1 gets the file.
    pub shell_argv: Pointers,
    pub envp: Pointers,
    pub limits: Option<Limits>,
    /// The user to become.
    pub user: Option<Identity>,
    /// Sorted; includes the socket to the parent.
    pub keep: Vec<RawFd>,
    pub stdout_to_stderr: bool,
    pub socket: RawFd,
    pub parent: Pid,
}

impl ChildPlan {
    /// The child's whole run: become the user, find the program, wait at the gate, execute it.
    pub fn run(&mut self) -> ! {
        let found = match self.become_ready() {
            Ok(found) => found,
            Err(word) => self.give_up(word),
        };
        // Dies with the parent while it waits. This comes after the change of user, which clears the setting; if the
        // parent died before this call, the gate is closed.
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        self.say(Word { stage: Stage::Ready, errno: 0, index: found });
        let orphan = getppid().as_raw() as Pid != self.parent;
        if orphan || !self.wait_at_gate() {
            // SAFETY: ends this process without running the parent's exit handlers.
            unsafe { libc::_exit(125) };
        }
        // From here on the program no longer dies with gpurec.
        let _ = prctl::set_pdeathsig(None);
        let word = self.exec();
        self.give_up(word)
    }

    /// Only looks the program up, with the user's rights.
    pub fn look_up(&mut self) -> ! {
        let word = match self.become_ready() {
            Ok(index) => Word { stage: Stage::Ready, errno: 0, index },
            Err(word) => word,
        };
        self.give_up(word)
    }

    fn become_ready(&self) -> Result<u32, Word> {
        close_all_except(&self.keep);
        if self.stdout_to_stderr {
            // SAFETY: plain integers. Rust's start-up opens either descriptor if it was closed.
            unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
        }
        restore_limit();
        // Do this before the rights to raise limits are dropped.
        if let Some(limits) = &self.limits {
            limits.take_on();
        }
        // Signals that gpurec's caller ignored (nohup, a shell's `&`) or blocked stay so, as they would without gpurec.
        signals::restore();
        if let Some(user) = &self.user {
            take_on(user).map_err(|errno| Word { stage: Stage::Identity, errno: errno as i32, index: 0 })?;
        }
        self.find()
    }

    /// The first candidate that this user may execute, in execvp's order.
    fn find(&self) -> Result<u32, Word> {
        let mut failure = Word { stage: Stage::Lookup, errno: libc::ENOENT, index: 0 };
        for (index, path) in (0u32..).zip(&self.candidates) {
            match may_execute(path) {
                Ok(()) => return Ok(index),
                Err(Errno::EACCES) if failure.errno == libc::ENOENT => {
                    failure = Word { errno: libc::EACCES, index, ..failure };
                }
                Err(_) => {}
            }
        }
        Err(failure)
    }

    /// Returns only if nothing could be executed.
    fn exec(&mut self) -> Word {
        let mut failure = Word { stage: Stage::Exec, errno: libc::ENOENT, index: 0 };
        for (index, path) in (0u32..).zip(&self.candidates) {
            let mut errno = execve(path, &self.argv, &self.envp);
            if errno == Errno::ENOEXEC {
                // A script whose first line names no interpreter.
                if let Some(slot) = self.shell_argv.pointers.get_mut(1) {
                    *slot = path.as_ptr();
                }
                errno = execve(SHELL, &self.shell_argv, &self.envp);
            }
            match errno {
                Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT => {
                    // For an existing file, ENOENT means that its interpreter is missing: report this file.
                    if failure.errno == libc::ENOENT && may_execute(path).is_ok() {
                        failure.index = index;
                    }
                }
                Errno::EACCES => failure = Word { stage: Stage::Exec, errno: libc::EACCES, index },
                errno => return Word { stage: Stage::Exec, errno: errno as i32, index },
            }
        }
        failure
    }

    fn wait_at_gate(&self) -> bool {
        loop {
            match recv(self.socket, &mut [0u8], MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                received => return received == Ok(1),
            }
        }
    }

    fn say(&self, word: Word) {
        // An empty socket takes all twelve bytes at once; if the parent is gone, no process reads them.
        let _ = send(self.socket, &word.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    fn give_up(&self, word: Word) -> ! {
        self.say(word);
        // SAFETY: as above.
        unsafe { libc::_exit(125) }
    }
}

fn execve(path: &CStr, argv: &Pointers, envp: &Pointers) -> Errno {
    // SAFETY: a C string and two arrays of them ended by null, all alive.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), envp.pointers.as_ptr()) };
    Errno::last()
}

/// Checks with the real ids, which are the user's by now. On a directory the execute bit means "searchable", so only
/// regular files pass.
fn may_execute(path: &CStr) -> nix::Result<()> {
    if stat(path)?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::EACCES);
    }
    access(path, AccessFlags::X_OK)
}
