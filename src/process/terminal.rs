//! The user's terminal while a view covers it. In: standard input and output. Out: raw mode and the alternate screen;
//! afterwards the terminal as it was. If gpurec is killed, the guardian restores the terminal: a flag in shared memory
//! tells it whether that is still to be done. Not here: what is drawn, and which keys there are.

use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Switches to the alternate screen, hides the cursor and clears the screen.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H";
/// Resets the style, shows the cursor and switches to the previous screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

pub struct Terminal {
    input: OwnedFd,
    output: OwnedFd,
    original: libc::termios,
    raw: libc::termios,
    /// The view covers the terminal. Shared with the guardian.
    is_covered: &'static AtomicBool,
}

impl Terminal {
    /// None if standard input or output is no terminal, if the terminal cannot move its cursor, or if gpurec is a
    /// background job. Call this before the guardian starts.
    pub fn open() -> io::Result<Option<Terminal>> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if is_dumb || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        // If this fails, the terminal is not gpurec's controlling terminal, and gpurec is not a background job of it.
        let foreground = nix::unistd::tcgetpgrp(io::stdin());
        if foreground.is_ok_and(|group| group != nix::unistd::getpgrp()) {
            return Ok(None);
        }
        Terminal::of(nix::unistd::dup(io::stdin())?, nix::unistd::dup(io::stdout())?).map(Some)
    }

    fn of(input: OwnedFd, output: OwnedFd) -> io::Result<Terminal> {
        let original = modes(input.as_raw_fd())?;
        let mut raw = original;
        // SAFETY: changes the structure, nothing else.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new page at an address that Linux chooses.
        let page = unsafe { mmap_anonymous(None, PAGE, rights, MapFlags::MAP_SHARED)? };
        // SAFETY: the page is zero, is never unmapped, and is used only as this.
        let is_covered = unsafe { page.cast::<AtomicBool>().as_ref() };
        for fd in [&input, &output] {
            let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
            nix::fcntl::fcntl(fd, flags)?;
        }
        Ok(Terminal { input, output, original, raw, is_covered })
    }

    /// What to draw on.
    pub fn output(&self) -> io::Result<std::fs::File> {
        Ok(self.output.try_clone()?.into())
    }

    /// The descriptors that the guardian needs.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.input.as_raw_fd(), self.output.as_raw_fd()]
    }

    pub fn is_covered(&self) -> bool {
        self.is_covered.load(Ordering::SeqCst)
    }

    pub fn cover(&self) -> io::Result<()> {
        self.is_covered.store(true, Ordering::SeqCst);
        from_the_background(|| {
            set_modes(self.input.as_raw_fd(), &self.raw)?;
            self.output()?.write_all(ENTER)
        })
    }

    /// Restores the terminal as it was before `cover`; a second call does nothing. Modes that another program has set
    /// since then stay: a shell sets its own as soon as its job has ended.
    pub fn uncover(&self) {
        if !self.is_covered.swap(false, Ordering::SeqCst) {
            return;
        }
        let _ = from_the_background(|| {
            let _ = self.output().and_then(|mut output| output.write_all(LEAVE));
            let input = self.input.as_raw_fd();
            match modes(input)? {
                now if are_same(&now, &self.raw) => set_modes(input, &self.original),
                _ => Ok(()),
            }
        });
    }

    /// A panic in any thread uncovers the terminal before its message is printed.
    pub fn uncover_at_panic(self: &Arc<Self>) {
        let (terminal, before) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            terminal.uncover();
            before(info);
        }));
    }
}

/// Blocks SIGTTOU during `act`. If the process that waited for gpurec is gone, gpurec may be in the background, and
/// Linux would stop it when it changes the terminal.
fn from_the_background<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let set = SigSet::from(Signal::SIGTTOU);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = act();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}

fn modes(fd: RawFd) -> io::Result<libc::termios> {
    let mut modes = MaybeUninit::uninit();
    // SAFETY: fills the structure, or fails.
    match unsafe { libc::tcgetattr(fd, modes.as_mut_ptr()) } {
        // SAFETY: it is filled.
        0 => Ok(unsafe { modes.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_modes(fd: RawFd, modes: &libc::termios) -> io::Result<()> {
    // SAFETY: reads the structure.
    match unsafe { libc::tcsetattr(fd, libc::TCSANOW, modes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn are_same(a: &libc::termios, b: &libc::termios) -> bool {
    let flags = |modes: &libc::termios| (modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag);
    flags(a) == flags(b) && a.c_cc == b.c_cc
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_terminal_is_given_back_once() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let slave = pty.slave.try_clone().unwrap();
        let terminal = Terminal::of(pty.slave.try_clone().unwrap(), pty.slave).unwrap();
        let now = || modes(slave.as_raw_fd()).unwrap();
        let original = now();
        for another_program in [false, true] {
            terminal.cover().unwrap();
            assert!(terminal.is_covered() && now().c_lflag & (libc::ICANON | libc::ECHO | libc::ISIG) == 0);
            if another_program {
                let changed = libc::termios { c_lflag: original.c_lflag & !libc::ECHO, ..original };
                set_modes(slave.as_raw_fd(), &changed).unwrap();
            }
            terminal.uncover();
            let has_echo = now().c_lflag & libc::ECHO != 0;
            assert_eq!((are_same(&now(), &original), has_echo), (!another_program, !another_program));
            set_modes(slave.as_raw_fd(), &original).unwrap();
            terminal.uncover();
            assert!(!terminal.is_covered());
        }
        drop((slave, terminal));
        let mut written = Vec::new();
        // It ends with EIO, because no process has the other side open.
        let _ = std::fs::File::from(pty.master).read_to_end(&mut written);
        assert_eq!(written, [ENTER, LEAVE, ENTER, LEAVE].concat());
    }
}
