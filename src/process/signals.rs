//! Signals to gpurec as values, and the reaction to each.
//!
//! In: SIGINT, SIGTERM, SIGHUP, SIGQUIT. Out: the signal, its sender and its count; the reaction is a pure function.
//! After the second signal the default effects are restored, so a third one kills gpurec.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `from_terminal`: typed at the terminal, which sends it to the whole foreground process group, including the launched
/// command.
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
        use Signal::{Hangup, Interrupt, Quit};
        matches!(
            self,
            Interrupt { from_terminal: true } | Quit { from_terminal: true } | Hangup { from_terminal: true }
        )
    }

    fn new(number: i32, code: i32) -> Option<Signal> {
        // The terminal's signals come from Linux itself; kill() and its like name their sender.
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

/// What a signal does to the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Continue,
    /// Detach, drain, finish the file; do not wait for the target.
    End,
    /// The same without draining.
    EndNow,
    /// End at once. The signal itself does this, because its default effect is restored by then.
    Abandon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The signal to pass on to the launched command, if it has not received it already.
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

/// The signals that gpurec's caller had blocked and ignored, signal N at bit N - 1; the command inherits the same. Read
/// before main, because Rust's start-up ignores SIGPIPE and the C library uses signals for its threads.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static IGNORED: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_signals;

/// The size in bytes of the signal set in system calls.
const KERNEL_SET: usize = 8;

/// The sigaction of the system call, which starts with the handler. The C library's function hides the signals that it
/// uses itself.
type KernelAction = [usize; 4];

extern "C" fn look_at_signals() {
    let mut mask = 0u64;
    let nothing = std::ptr::null::<u64>();
    // SAFETY: reads only, and fills eight bytes of our own.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, KERNEL_SET);
    }
    BLOCKED.store(mask, Ordering::Relaxed);
    let mut set = 0;
    for signal in 1..=64 {
        let mut action: KernelAction = [0; 4];
        let nothing = std::ptr::null::<KernelAction>();
        // SAFETY: reads only, and fills a buffer that is large enough on every architecture.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, nothing, &raw mut action, KERNEL_SET);
        }
        let [handler, ..] = action;
        set |= u64::from(handler == libc::SIG_IGN) << (signal - 1);
    }
    IGNORED.store(set, Ordering::Relaxed);
}

/// For the child: resets every signal to what gpurec's caller had. No allocation, no locks.
pub(super) fn restore() {
    for signal in 1..=64 {
        let action: KernelAction = [if is_ignored(signal) { libc::SIG_IGN } else { libc::SIG_DFL }, 0, 0, 0];
        let nothing = std::ptr::null_mut::<KernelAction>();
        // SAFETY: installs no handler; Linux refuses signals that cannot be set.
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

/// Makes INT and TERM end a recording of running processes even if they were ignored at the start: a script's `&`
/// ignores them, and then the script could not end the recording.
pub fn let_in() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        IGNORED.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
        // SAFETY: installs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Blocks the default effect of these signals.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    set: SigSet,
    count: u32,
}

impl Signals {
    /// Call this before any thread starts, because threads inherit the blocked set. A signal that gpurec's caller had
    /// ignored (nohup, a shell's `&`) stays ignored.
    pub fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Number::SIGINT, Number::SIGTERM, Number::SIGHUP, Number::SIGQUIT] {
            if !is_ignored(signal as i32) {
                set.add(signal);
            }
        }
        set.thread_block()?;
        // A trace beyond RLIMIT_FSIZE must be an error to report (EFBIG), not a fatal signal. The signal is blocked
        // rather than ignored, because the command would inherit an ignored signal.
        SigSet::from(Number::SIGXFSZ).thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd, set, count: 0 })
    }

    /// The next pending signal and its count. The second signal restores the default effect in the calling thread. That
    /// is enough, because Linux delivers a signal for the process to any thread that does not block it.
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

    /// Reads signals in a thread of its own, so that a long detach does not delay them.
    pub fn watch(mut self, mut act: impl FnMut(u32, Signal) + Send + 'static) -> io::Result<()> {
        let set = self.set;
        let body = move || {
            let wait = |signals: &Signals| {
                poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
            };
            while let Ok(_) | Err(Errno::EINTR) = wait(&self) {
                if let Ok(Some((count, signal))) = self.read() {
                    act(count, signal);
                    if count >= 2 {
                        break;
                    }
                }
            }
            // Only this thread has the signals unblocked, so it must not end.
            loop {
                std::thread::park();
            }
        };
        let builder = std::thread::Builder::new().name("signals".into());
        builder.spawn(body).map(drop).inspect_err(|_| {
            // No thread reads the signals, so restore their default effect.
            let _ = set.thread_unblock();
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// SIGUSR1, which asks the flight recorder for a dump. It does not end a recording, so it is not one of `Signals`.
#[derive(Debug)]
pub struct DumpSignal(SignalFd);

impl DumpSignal {
    /// Call this before any thread starts, because threads inherit the blocked set.
    pub fn block() -> io::Result<DumpSignal> {
        let set = SigSet::from(Number::SIGUSR1);
        set.thread_block()?;
        Ok(DumpSignal(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The PID of the sender, if the signal has arrived. Signals that arrive together count as one.
    pub fn take(&mut self) -> Option<u32> {
        self.0.read_signal().ok().flatten().map(|info| info.ssi_pid)
    }
}

impl AsFd for DumpSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    IGNORED.load(Ordering::Relaxed) >> (signal - 1) & 1 == 1
}
