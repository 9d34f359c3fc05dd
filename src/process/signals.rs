//! Signals to gpurec as values, and what each one means.
//!
//! In: SIGINT, SIGTERM, SIGHUP, SIGQUIT. Out: which, from whom, the how many-th; the manners are a pure
//! function. After the second the signals have their default effect again, so a third really kills.

use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `from_terminal`: typed at the terminal, which sends it to the whole foreground group, the launched
/// command included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Interrupt { from_terminal: bool },
    Quit { from_terminal: bool },
    Hangup { from_terminal: bool },
    Terminate,
}

impl Signal {
    pub fn number(self) -> i32 {
        match self {
            Signal::Interrupt { .. } => libc::SIGINT,
            Signal::Quit { .. } => libc::SIGQUIT,
            Signal::Hangup { .. } => libc::SIGHUP,
            Signal::Terminate => libc::SIGTERM,
        }
    }

    fn reached_the_command(self) -> bool {
        match self {
            Signal::Interrupt { from_terminal }
            | Signal::Quit { from_terminal }
            | Signal::Hangup { from_terminal } => from_terminal,
            Signal::Terminate => false,
        }
    }

    fn new(number: i32, code: i32) -> Option<Signal> {
        // The terminal's signals come from the kernel; kill() and its kind say who sent them.
        let from_terminal = code == libc::SI_KERNEL;
        match number {
            libc::SIGINT => Some(Signal::Interrupt { from_terminal }),
            libc::SIGQUIT => Some(Signal::Quit { from_terminal }),
            libc::SIGHUP => Some(Signal::Hangup { from_terminal }),
            libc::SIGTERM => Some(Signal::Terminate),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Launch,
    Attach,
}

/// What becomes of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Continue,
    /// Detach, drain, finish the file; do not wait for the target.
    End,
    /// The same without draining.
    EndNow,
    /// Leave at once. The signal itself does this: the default effect is back by then.
    Abandon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The signal to pass on to the launched command, which has not had it.
    pub forward: Option<i32>,
    pub recording: Recording,
}

/// `count` is 1 for the first signal.
pub fn on_signal(mode: Mode, count: u32, signal: Signal) -> Action {
    let forward = match mode {
        Mode::Launch if count <= 2 && !signal.reached_the_command() => Some(signal.number()),
        _ => None,
    };
    let recording = match (mode, count) {
        (Mode::Launch, 0 | 1) => Recording::Continue,
        (Mode::Launch, 2) | (Mode::Attach, 0 | 1) => Recording::End,
        (Mode::Attach, 2) => Recording::EndNow,
        _ => Recording::Abandon,
    };
    Action { forward, recording }
}

/// What our caller had blocked and what they had ignored, signal N at bit N - 1: the command shall have the same.
/// Found before main, for Rust's start-up ignores SIGPIPE, and the C library takes signals for its threads.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static IGNORED: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_signals;

/// The bytes of the kernel's own set of signals.
const KERNEL_SET: usize = 8;

/// The kernel's own sigaction, in which the handler comes first. The C library would not tell of its own signals.
type KernelAction = [usize; 4];

extern "C" fn look_at_signals() {
    let mut mask = 0u64;
    let nothing = std::ptr::null::<u64>();
    // SAFETY: asks only, and fills eight bytes of our own.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, KERNEL_SET);
    }
    BLOCKED.store(mask, Ordering::Relaxed);
    let mut set = 0;
    for signal in 1..=64 {
        let mut action: KernelAction = [0; 4];
        let nothing = std::ptr::null::<KernelAction>();
        // SAFETY: asks only, and fills what is large enough for every architecture's.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, nothing, &raw mut action, KERNEL_SET);
        }
        let [handler, ..] = action;
        set |= u64::from(handler == libc::SIG_IGN) << (signal - 1);
    }
    IGNORED.store(set, Ordering::Relaxed);
}

/// For the child: every signal as our caller had it. No allocation, no locks.
pub(super) fn restore() {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for signal in 1..=64 {
        let was_ignored = ignored >> (signal - 1) & 1 == 1;
        let action: KernelAction = [if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL }, 0, 0, 0];
        let nothing = std::ptr::null_mut::<KernelAction>();
        // SAFETY: no handler of ours; those that cannot be set are refused.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, nothing, KERNEL_SET);
        }
    }
    let mask = BLOCKED.load(Ordering::Relaxed);
    let nothing = std::ptr::null_mut::<u64>();
    // SAFETY: eight bytes of our own stack.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, nothing, KERNEL_SET);
    }
}

/// INT and TERM end a recording of processes that run already, also where they were ignored at the start: a script's `&`
/// does that, and the script could not end the recording.
pub fn let_in() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Holds the signals back from their default effect.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    set: SigSet,
    count: u32,
}

impl Signals {
    /// Call before any thread starts: threads inherit what is blocked. A signal that our caller had
    /// ignored (nohup, a shell's `&`) stays ignored.
    pub fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Number::SIGINT, Number::SIGTERM, Number::SIGHUP, Number::SIGQUIT] {
            if !ignored(signal) {
                set.add(signal);
            }
        }
        set.thread_block()?;
        // A trace beyond RLIMIT_FSIZE is an error to be told (EFBIG), not to die of. Blocked and not
        // ignored: what is ignored the command would ignore too.
        SigSet::from(Number::SIGXFSZ).thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd, set, count: 0 })
    }

    /// The next signal and its count, if one is waiting. The second one restores the default effect, in
    /// the calling thread; that is enough, since a signal to the process takes any thread that lets it in.
    pub fn read(&mut self) -> io::Result<Option<(u32, Signal)>> {
        while let Some(info) = self.fd.read_signal()? {
            let Some(signal) = Signal::new(info.ssi_signo as i32, info.ssi_code) else {
                continue;
            };
            self.count += 1;
            if self.count == 2 {
                self.set.thread_unblock()?;
            }
            return Ok(Some((self.count, signal)));
        }
        Ok(None)
    }

    /// Read in a thread of its own, which no long detach can hold up.
    pub fn watch(mut self, mut act: impl FnMut(u32, Signal) + Send + 'static) -> io::Result<()> {
        let set = self.set;
        let body = move || {
            while wait_readable(self.fd.as_fd()).is_ok() {
                if let Ok(Some((count, signal))) = self.read() {
                    act(count, signal);
                    if count >= 2 {
                        break;
                    }
                }
            }
            // This is the one thread that lets the signals in: it must not end.
            loop {
                std::thread::park();
            }
        };
        let builder = std::thread::Builder::new().name("signals".into());
        builder.spawn(body).map(drop).inspect_err(|_| {
            // Nobody reads them then: they have their default effect.
            let _ = set.thread_unblock();
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn ignored(signal: Number) -> bool {
    // SAFETY: only asks; the struct is ours to fill.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut poll, 1, -1) } > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
