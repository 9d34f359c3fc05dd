//! Protects system calls from a SIGKILL that would interrupt them. A thread that has received SIGKILL cannot write to
//! another process's memory any more: a uprobe that it is removing at that moment stays, with its breakpoint, for the
//! life of the process that has it. So a separate process attaches and removes uprobes; it shares everything with
//! gpurec but does not die with it.
//! In: system calls. Out: the calls are made, even if gpurec is killed meanwhile.
//! Not allowed inside: anything but system calls. A lock (of the allocator, say) may be held by a thread that no longer
//! exists.

use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::Link;

use super::aside::without_signals;

/// Enough for a few system calls.
const STACK: usize = 64 << 10;

/// A hook that exists as long as this value.
#[derive(Debug)]
pub struct Hook(Option<Kind>);

#[derive(Debug)]
enum Kind {
    Multi(OwnedFd),
    /// libbpf also holds the event, which it closes first.
    Single(Link),
}

impl From<OwnedFd> for Hook {
    fn from(fd: OwnedFd) -> Hook {
        Hook(Some(Kind::Multi(fd)))
    }
}

impl From<Link> for Hook {
    fn from(link: Link) -> Hook {
        Hook(Some(Kind::Single(link)))
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        let last = match self.0.take() {
            Some(Kind::Multi(fd)) => Some(fd),
            // If no descriptor is free, the hook is closed with the link.
            Some(Kind::Single(link)) => link.as_fd().try_clone_to_owned().ok(),
            None => None,
        };
        let mut last = last.map(IntoRawFd::into_raw_fd);
        shielded(&mut || {
            if let Some(fd) = last.take() {
                // SAFETY: the hook was its only owner.
                unsafe { libc::close(fd) };
            }
        });
    }
}

impl AsRawFd for Hook {
    fn as_raw_fd(&self) -> i32 {
        match &self.0 {
            Some(Kind::Multi(fd)) => fd.as_raw_fd(),
            Some(Kind::Single(link)) => link.as_fd().as_raw_fd(),
            None => -1,
        }
    }
}

struct Job<'a> {
    work: &'a mut dyn FnMut(),
    done: bool,
}

/// Runs `work` again here if no process can be started, or if the process died: the work then continues where it
/// stopped.
pub fn shielded(work: &mut dyn FnMut()) {
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    let mut job = Job { work, done: false };
    // The process shares this thread's memory, including libc's thread data: CLONE_VFORK makes the thread wait for it.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    without_signals(|| {
        let top = stack.as_mut_ptr_range().end.cast();
        // SAFETY: the stack and the job outlive the process, which ends before clone returns; `run` makes only system
        // calls.
        let pid = unsafe { libc::clone(run, top, flags, (&raw mut job).cast()) };
        if pid > 0 {
            reap(pid);
        }
    });
    if !job.done {
        (job.work)();
    }
}

extern "C" fn run(job: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the job that `shielded` passes; it waits for this process.
    let job = unsafe { &mut *job.cast::<Job>() };
    // So that a SIGKILL for gpurec's process group does not reach it.
    // SAFETY: a system call without arguments.
    unsafe { libc::setsid() };
    (job.work)();
    job.done = true;
    0
}

/// The process sends no signal at its end, and no other code waits for such a child.
fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: a child of ours, and an int to fill.
    while unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_does_is_done_once_and_elsewhere() {
        let mut pids = Vec::with_capacity(2);
        // SAFETY: a system call without arguments.
        shielded(&mut || pids.push(unsafe { libc::syscall(libc::SYS_getpid) }));
        assert_eq!(pids.len(), 1);
        assert_ne!(pids[0], i64::from(std::process::id()));
    }

    #[test]
    fn many_threads_do_so_at_one_time() {
        let count = std::sync::atomic::AtomicU32::new(0);
        let one = |_| {
            shielded(&mut || {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| (0..20).for_each(one));
            }
        });
        assert_eq!(count.into_inner(), 64 * 20);
    }

    #[test]
    fn a_dropped_hook_is_closed() {
        let (read, write) = nix::unistd::pipe().unwrap();
        let hook = Hook::from(write);
        let number = hook.as_raw_fd();
        drop(hook);
        // SAFETY: only reads the flags of a descriptor number.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1);
        assert_eq!(nix::unistd::read(read, &mut [0]), Ok(0));
    }
}
