//! The user's terminal while a view covers it. In: standard input and output. Out: raw mode and the alternate screen;
//! afterwards the terminal as it was. If gpurec is killed, or the terminal takes nothing when the view ends, the
//! guardian restores the terminal: a flag in shared memory tells it whether that is still to be done. No write here
//! waits for the terminal longer than the caller says. Not here: what is drawn, and which keys there are.

use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Switches to the alternate screen, hides the cursor and clears the screen.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H";
/// Resets the style, shows the cursor and switches to the previous screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// How long the end of a view waits for a terminal that takes nothing (Ctrl-S, a frozen ssh), before it leaves the rest
/// to the guardian.
const BRIEFLY: Duration = Duration::from_millis(300);

/// The time between two attempts to write.
const LOOK: Duration = Duration::from_millis(20);

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

pub struct Terminal {
    input: OwnedFd,
    /// Does not block.
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
        Terminal::of(nix::unistd::dup(io::stdin())?, io::stdout().as_fd()).map(Some)
    }

    fn of(input: OwnedFd, output: BorrowedFd) -> io::Result<Terminal> {
        let output = without_waiting(output)?;
        let original = modes(input.as_raw_fd())?;
        let mut raw = original;
        // SAFETY: changes the structure, nothing else.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new page at an address that Linux chooses.
        let page = unsafe { mmap_anonymous(None, PAGE, rights, MapFlags::MAP_SHARED)? };
        // SAFETY: the page is zero, is never unmapped, and is used only as this.
        let is_covered = unsafe { page.cast::<AtomicBool>().as_ref() };
        fcntl(&input, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(Terminal { input, output, original, raw, is_covered })
    }

    /// Writes as much as the terminal takes at once.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        from_the_background(|| write_now(self.output.as_fd(), bytes))
    }

    /// The descriptors that the guardian needs.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.input.as_raw_fd(), self.output.as_raw_fd()]
    }

    pub fn is_covered(&self) -> bool {
        self.is_covered.load(Ordering::SeqCst)
    }

    /// Set while the view covers the terminal, or its end has not been shown yet.
    pub fn covered(&self) -> &'static AtomicBool {
        self.is_covered
    }

    /// Returns what to write first.
    pub fn cover(&self) -> io::Result<&'static [u8]> {
        self.is_covered.store(true, Ordering::SeqCst);
        from_the_background(|| set_modes(self.input.as_raw_fd(), &self.raw))?;
        Ok(ENTER)
    }

    /// Restores the terminal as it was before `cover`; a second call does nothing.
    pub fn uncover(&self) {
        self.uncover_within(BRIEFLY);
    }

    /// The same with another time for a terminal that takes nothing. Modes that another program has set since then
    /// stay: a shell sets its own as soon as its job has ended.
    pub fn uncover_within(&self, time: Duration) {
        if !self.is_covered.swap(false, Ordering::SeqCst) {
            return;
        }
        let _ = from_the_background(|| {
            let input = self.input.as_raw_fd();
            if modes(input).is_ok_and(|now| are_same(&now, &self.raw)) {
                // This does not wait for output that the terminal has not taken.
                set_modes(input, &self.original)?;
            }
            if !write_within(self.output.as_fd(), LEAVE, time)? {
                self.is_covered.store(true, Ordering::SeqCst);
            }
            Ok(())
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

/// Another descriptor for a terminal, whose writes do not wait. O_NONBLOCK cannot be set for the given descriptor,
/// because the shell that started gpurec shares that setting.
pub fn without_waiting(terminal: BorrowedFd) -> io::Result<OwnedFd> {
    let access = OFlag::from_bits_truncate(fcntl(terminal, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let flags = access | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    Ok(open(path.as_str(), flags, nix::sys::stat::Mode::empty())?)
}

/// Writes as much as the file takes at once.
fn write_now(fd: BorrowedFd, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() || !is_writable(fd, Duration::ZERO) {
        return Ok(0);
    }
    match nix::unistd::write(fd, bytes) {
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
        written => Ok(written?),
    }
}

/// False if the file has not taken everything within this time.
fn write_within(fd: BorrowedFd, mut bytes: &[u8], time: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    while !bytes.is_empty() {
        match write_now(fd, bytes)? {
            0 if begun.elapsed() >= time => return Ok(false),
            // `poll` can promise room for one byte where a line feed needs two.
            0 => std::thread::sleep(LOOK),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(true)
}

/// True if a write succeeds or fails at once. Waits for that at most this long.
pub fn is_writable(fd: BorrowedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    let within = PollTimeout::try_from(within).unwrap_or(PollTimeout::ZERO);
    matches!(poll(&mut fds, within), Ok(ready) if ready > 0)
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

    use nix::sys::termios::{FlowArg, tcflow};

    use super::*;

    #[test]
    fn the_terminal_is_given_back_once() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let slave = pty.slave.try_clone().unwrap();
        let terminal = Terminal::of(pty.slave.try_clone().unwrap(), pty.slave.as_fd()).unwrap();
        drop(pty.slave);
        let now = || modes(slave.as_raw_fd()).unwrap();
        let original = now();
        for another_program in [false, true] {
            let enter = terminal.cover().unwrap();
            assert_eq!(terminal.write(enter).unwrap(), enter.len());
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

    #[test]
    fn a_terminal_that_takes_nothing_is_given_back_later() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let terminal = Terminal::of(pty.slave.try_clone().unwrap(), pty.slave.as_fd()).unwrap();
        let flags = OFlag::from_bits_truncate(fcntl(&pty.slave, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "the shell's own descriptor blocks as before");
        let original = modes(pty.slave.as_raw_fd()).unwrap();
        terminal.cover().unwrap();
        tcflow(&pty.slave, FlowArg::TCOOFF).unwrap();
        assert_eq!(terminal.write(b"a screen").unwrap(), 0);
        terminal.uncover();
        // The modes are given back at once. The guardian does the rest.
        assert!(are_same(&modes(pty.slave.as_raw_fd()).unwrap(), &original) && terminal.is_covered());
        tcflow(&pty.slave, FlowArg::TCOON).unwrap();
        terminal.uncover_within(Duration::from_secs(60));
        assert!(!terminal.is_covered());
    }

    /// As the guardian does it after its minute.
    #[test]
    fn a_terminal_that_takes_nothing_for_long_is_left_as_it_is() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let terminal = Terminal::of(pty.slave.try_clone().unwrap(), pty.slave.as_fd()).unwrap();
        let enter = terminal.cover().unwrap();
        assert_eq!(terminal.write(enter).unwrap(), enter.len());
        tcflow(&pty.slave, FlowArg::TCOOFF).unwrap();
        // With a wait that has no end, the test would have none.
        terminal.uncover_within(3 * LOOK);
        assert!(terminal.is_covered());
        tcflow(&pty.slave, FlowArg::TCOON).unwrap();
        drop((pty.slave, terminal));
        let mut written = Vec::new();
        let _ = std::fs::File::from(pty.master).read_to_end(&mut written);
        assert_eq!(written, ENTER, "nothing comes later");
    }
}
