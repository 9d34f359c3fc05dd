//! The rights that gpurec uses. In: the user who called it. Out: the calling thread, or a temporary one, with that
//! user's rights instead of root's; and a recorder that keeps only the rights that recording needs.
//!
//! gpurec opens files that the user names (-o, a trace, a budget, a library) with that user's rights, so that a sudo
//! rule for gpurec alone opens nothing that they could not open themselves. Changing the user id alone is not enough:
//! for /proc/sys Linux checks the effective id, and CAP_SYS_PTRACE leads through /proc/PID/cwd past folders that the
//! user cannot enter. Uses bare system calls, because the C library's wrappers change every thread.

use std::io;

use nix::errno::Errno;
use nix::sys::prctl;

use super::capabilities::{self as caps, Set};
use super::identity::{self, Identity};

/// Switches the calling thread to this user for good. Safe between fork and exec.
pub(super) fn take_on(user: &Identity) -> nix::Result<()> {
    change_ids(user)?;
    if user.uid == 0 {
        return Ok(());
    }
    // The change of user clears most capabilities, but not the inheritable ones, and none under unusual secure bits.
    // The bounding set stays, because sudo must still work in programs that the user runs.
    caps::keep(Set::NONE)?;
    // SAFETY: plain integers; these calls must fail, or the user's program could become root again.
    let regained = unsafe {
        libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
            || (user.gid != 0 && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0)
    };
    if regained { Err(Errno::EPERM) } else { Ok(()) }
}

/// Only root can change them; any other user has these ids already.
fn change_ids(user: &Identity) -> nix::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let Identity { uid, gid, groups, .. } = user;
    // SAFETY: a list of that many group ids, and plain integers.
    unsafe {
        Errno::result(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        Errno::result(libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid))?;
        Errno::result(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid)).map(drop)
    }
}

/// Runs `body` with the rights of `user`, in a temporary thread that has them. For root it runs `body` directly.
pub fn as_caller<T: Send>(user: &Identity, body: impl FnOnce() -> T + Send) -> io::Result<T> {
    if user.uid == 0 {
        return Ok(body());
    }
    std::thread::scope(|scope| {
        let work = || Ok(take_on(user).map(|()| body())?);
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `body` with the caller's own rights, in a process that is the caller with additional capabilities. For root it
/// runs `body` directly.
pub fn as_oneself<T>(body: impl FnOnce() -> T) -> io::Result<T> {
    if nix::unistd::geteuid().is_root() { Ok(body()) } else { caps::without(body) }
}

/// For commands that need no root rights: makes the process the caller from here on. Call this while it has one thread.
pub fn become_caller() -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() && caps::permitted()?.is_empty() {
        return Ok(());
    }
    Ok(take_on(&identity::invoking_user())?)
}

/// Features of a recording that need additional rights.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    /// Hooks nvidia.ko.
    pub kernel: bool,
    /// Hooks functions one by one.
    pub single_uprobes: bool,
    /// Makes files while it records. If the caller is root, other users' folders are allowed too.
    pub makes_files: bool,
}

/// The capabilities that a recording needs after its command has been forked and its files are open.
fn needed(recording: Recording) -> Set {
    let mut set = Set::of(&[
        // To hook libraries that are loaded later.
        caps::BPF,
        caps::PERFMON,
        // To read recorded processes: their mappings and the mapped files, including deleted ones.
        caps::SYS_PTRACE,
        caps::DAC_READ_SEARCH,
        caps::CHECKPOINT_RESTORE,
        // To resume other users' processes, and to pass signals on to a command that runs as another user.
        caps::KILL,
        // To give the recorder a higher priority than the processes it records.
        caps::SYS_NICE,
    ]);
    if recording.kernel {
        // A driver module may be loaded later: its addresses, its types (Linux gives their ids only to SYS_ADMIN), and
        // tracefs if it is not mounted.
        set = set.or(Set::of(&[caps::SYSLOG, caps::SYS_ADMIN]));
    }
    if recording.single_uprobes {
        // Linux accepts PERFMON for a multi-uprobe link, but not for a single uprobe.
        set = set.or(Set::of(&[caps::SYS_ADMIN]));
    }
    set
}

/// The recorder gives up root: from here on it is the caller with only the capabilities that recording needs, and
/// programs that it might execute get none. Call this while the command waits at its gate and before the recorder
/// starts a thread, because threads inherit the rights.
pub fn keep_what_recording_needs(user: &Identity, recording: Recording) -> io::Result<()> {
    let have = caps::permitted()?;
    let mut kept = have.and(needed(recording));
    if recording.makes_files && user.uid == 0 {
        kept = kept.or(have.and(Set::of(&[caps::DAC_OVERRIDE])));
    }
    if !kept.has(caps::BPF) || !kept.has(caps::PERFMON) {
        // CAP_SYS_ADMIN replaces both.
        kept = kept.or(have.and(Set::of(&[caps::SYS_ADMIN])));
    }
    give_up(user, kept)
}

/// The process that reads targets' files (crate::files) becomes the caller too, with the capabilities that finding
/// those files needs.
pub fn keep_what_reading_needs(user: &Identity) -> io::Result<()> {
    let needed = Set::of(&[caps::SYS_PTRACE, caps::DAC_READ_SEARCH, caps::CHECKPOINT_RESTORE]);
    give_up(user, caps::permitted()?.and(needed))
}

/// For the process that queries NVML: it becomes the caller without any capability, and so do programs that it
/// executes.
pub fn keep_nothing(user: &Identity) -> io::Result<()> {
    give_up(user, Set::NONE)
}

fn give_up(user: &Identity, kept: Set) -> io::Result<()> {
    caps::bound(kept);
    let _ = prctl::set_no_new_privs();
    let _ = prctl::set_keepcaps(true);
    let changed = if user.uid != 0 { change_ids(user) } else { Ok(()) };
    let _ = prctl::set_keepcaps(false);
    // Prevents the user's other processes from inspecting or tracing this one.
    let _ = prctl::set_dumpable(false);
    Ok(changed.and_then(|()| caps::keep(kept))?)
}

/// The guardian keeps the capabilities that it needs to resume processes and, where Linux requires one, to read the BPF
/// maps. It stays root if gpurec was root: a user who can kill gpurec must not be able to kill the process that undoes
/// gpurec's stops.
pub(super) fn keep_what_guarding_needs() {
    let Ok(have) = caps::permitted() else { return };
    let kept = have.and(Set::of(&[caps::KILL, caps::BPF]));
    caps::bound(kept);
    let _ = prctl::set_no_new_privs();
    let _ = caps::keep(kept);
}
