//! The code between fork and exec. The parent may have threads, so nothing here allocates, locks or panics: it makes
//! system calls on memory that was prepared before the fork, and sends one word back on a socket.

use super::fds::{close_all_except, restore_limit};
use super::limits::Limits;
use super::rights::Rights;
use super::signals;
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

/// The stage that the child has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Stage {
    Ready = 1,
    Identity = 2,
    Directory = 3,
    Lookup = 4,
    Exec = 5,
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
        let mut bytes = [0; WORD_LEN];
        let (head, tail) = bytes.split_at_mut(4);
        let (middle, end) = tail.split_at_mut(4);
        head.copy_from_slice(&(self.stage as u32).to_ne_bytes());
        middle.copy_from_slice(&self.errno.to_ne_bytes());
        end.copy_from_slice(&self.index.to_ne_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; WORD_LEN]) -> Option<Word> {
        let (head, tail) = bytes.split_first_chunk::<4>()?;
        let (middle, end) = tail.split_first_chunk::<4>()?;
        let stage = match u32::from_ne_bytes(*head) {
            1 => Stage::Ready,
            2 => Stage::Identity,
            3 => Stage::Directory,
            4 => Stage::Lookup,
            5 => Stage::Exec,
            _ => return None,
        };
        Some(Word {
            stage,
            errno: i32::from_ne_bytes(*middle),
            index: u32::from_ne_bytes(*end.first_chunk::<4>()?),
        })
    }
}

/// An array of C strings ended by a null pointer, and the strings it points to.
struct Pointers {
    // Keeps the strings alive for the pointers.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Pointers {
    fn new(strings: Vec<CString>) -> Pointers {
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Pointers { _strings: strings, pointers }
    }
}

const SHELL: &CStr = c"/bin/sh";

/// Everything that the child needs, prepared before the fork.
pub(super) struct Prepared {
    candidates: Vec<CString>,
    argv: Pointers,
    /// The same arguments for `/bin/sh FILE ARG...`; slot 1 gets the file.
    shell_argv: Pointers,
    envp: Pointers,
    cwd: Option<CString>,
    limits: Option<Limits>,
    rights: Option<Rights>,
    /// Sorted; includes the socket to the parent.
    keep: Vec<RawFd>,
    stdout_to_stderr: bool,
    socket: RawFd,
    parent: libc::pid_t,
}

impl Prepared {
    #[allow(clippy::too_many_arguments)] // each once, from one place
    pub fn new(
        candidates: Vec<CString>,
        args: Vec<CString>,
        env: Vec<CString>,
        cwd: Option<CString>,
        limits: Option<Limits>,
        rights: Option<Rights>,
        socket: RawFd,
        keep: &[RawFd],
        stdout_to_stderr: bool,
    ) -> Prepared {
        let mut shell: Vec<CString> = vec![SHELL.to_owned(), CString::default()];
        shell.extend(args.iter().skip(1).cloned());
        let mut keep = keep.to_vec();
        keep.push(socket);
        keep.sort_unstable();
        Prepared {
            candidates,
            argv: Pointers::new(args),
            shell_argv: Pointers::new(shell),
            envp: Pointers::new(env),
            cwd,
            limits,
            rights,
            keep,
            stdout_to_stderr,
            socket,
            parent: std::process::id() as libc::pid_t,
        }
    }

    /// The child's whole run: become the user, find the program, wait at the gate, execute it.
    pub fn run(&mut self) -> ! {
        let found = match self.become_ready() {
            Ok(found) => found,
            Err(word) => self.give_up(word),
        };
        // Dies with the parent while it waits. This comes after the change of user, which clears the setting; if the
        // parent died before this call, the gate is closed.
        // SAFETY: plain integers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
        self.say(Word { stage: Stage::Ready, errno: 0, index: found });
        // SAFETY: no argument.
        let orphan = unsafe { libc::getppid() } != self.parent;
        if orphan || !self.wait_at_gate() {
            // SAFETY: ends this process without running the parent's exit handlers.
            unsafe { libc::_exit(125) };
        }
        // SAFETY: plain integers. From here on the program no longer dies with gpurec.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
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
        if let Some(rights) = &self.rights {
            rights.take_on().map_err(|errno| Word { stage: Stage::Identity, errno, index: 0 })?;
        }
        if let Some(cwd) = &self.cwd {
            // SAFETY: a valid C string.
            check(unsafe { libc::chdir(cwd.as_ptr()) }.into()).map_err(|errno| Word {
                stage: Stage::Directory,
                errno,
                index: 0,
            })?;
        }
        self.find()
    }

    /// The first candidate that this user may execute, in execvp's order.
    fn find(&self) -> Result<u32, Word> {
        let mut failure = Word { stage: Stage::Lookup, errno: libc::ENOENT, index: 0 };
        for (index, path) in (0u32..).zip(&self.candidates) {
            match may_execute(path) {
                Ok(()) => return Ok(index),
                Err(libc::EACCES) if failure.errno == libc::ENOENT => {
                    failure.errno = libc::EACCES;
                    failure.index = index;
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
            if errno == libc::ENOEXEC {
                // A script whose first line names no interpreter.
                if let Some(slot) = self.shell_argv.pointers.get_mut(1) {
                    *slot = path.as_ptr();
                }
                errno = execve(SHELL, &self.shell_argv, &self.envp);
            }
            match errno {
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {
                    // For an existing file, ENOENT means that its interpreter is missing: report this file.
                    if failure.errno == libc::ENOENT && may_execute(path).is_ok() {
                        failure.index = index;
                    }
                }
                libc::EACCES => {
                    failure.errno = errno;
                    failure.index = index;
                }
                _ => {
                    return Word { stage: Stage::Exec, errno, index };
                }
            }
        }
        failure
    }

    fn wait_at_gate(&self) -> bool {
        let mut byte = 0u8;
        loop {
            // SAFETY: one byte of our own stack.
            let n = unsafe { libc::recv(self.socket, (&raw mut byte).cast(), 1, 0) };
            match n {
                1 => return true,
                n if n < 0 && errno() == libc::EINTR => {}
                _ => return false,
            }
        }
    }

    fn say(&self, word: Word) {
        let bytes = word.encode();
        // SAFETY: our own bytes. An empty socket takes all twelve bytes at once; if the parent is gone, no process
        // reads them.
        unsafe { libc::send(self.socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    }

    fn give_up(&self, word: Word) -> ! {
        self.say(word);
        // SAFETY: as above.
        unsafe { libc::_exit(125) }
    }
}

fn errno() -> i32 {
    // SAFETY: errno's address is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

fn check(rc: libc::c_long) -> Result<(), i32> {
    if rc < 0 { Err(errno()) } else { Ok(()) }
}

fn execve(path: &CStr, argv: &Pointers, envp: &Pointers) -> i32 {
    // SAFETY: a C string and two arrays of them ended by null, all alive.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), envp.pointers.as_ptr()) };
    errno()
}

/// Checks with the real ids, which are the user's by now. On a directory the execute bit means "searchable", so only
/// regular files pass.
fn may_execute(path: &CStr) -> Result<(), i32> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a valid C string and room for a stat, read only when the call filled it.
    unsafe {
        check(libc::stat(path.as_ptr(), stat.as_mut_ptr()).into())?;
        if stat.assume_init().st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(libc::EACCES);
        }
        check(libc::access(path.as_ptr(), libc::X_OK).into())
    }
}
