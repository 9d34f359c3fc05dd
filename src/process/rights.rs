//! Whose rights gpurec acts with. In: the person who called it. Out: the calling thread, or one made for a moment,
//! with that person's rights and not root's; and a recorder that kept only what recording needs.
//!
//! What a person names (-o, a trace, a budget, a library) is opened with that person's rights, so that sudo for
//! gpurec alone opens nothing that they could not open themselves. The user id alone would not do: the kernel asks
//! the effective one for /proc/sys, and CAP_SYS_PTRACE leads through /proc/PID/cwd past folders that are closed.
//! Bare system calls, since the C library's wrappers change every thread.

use std::io;

use super::capabilities::{self as caps, Set};
use super::identity::{self, Identity};

/// The rights to take on, in the form the kernel wants them.
#[derive(Debug)]
pub struct Rights {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Only root can change to them; anybody else already is who they are.
    change: bool,
}

impl Rights {
    pub fn of(identity: &Identity) -> Rights {
        Rights {
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups.clone(),
            change: nix::unistd::geteuid().is_root(),
        }
    }

    /// The calling thread becomes this person for good. Safe between fork and exec.
    pub(super) fn take_on(&self) -> Result<(), i32> {
        if self.change {
            self.change_ids()?;
        }
        if self.uid == 0 {
            return Ok(());
        }
        // The change of user clears most, but not what was inheritable, nor anything under odd secure bits. The
        // bounding set stays: the user's own sudo must still work in what they run.
        caps::keep(Set::NONE)?;
        // SAFETY: plain integers; these must fail, or the user's program could be root again.
        let regained = unsafe {
            libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
                || (self.gid != 0 && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0)
        };
        if regained { Err(libc::EPERM) } else { Ok(()) }
    }

    fn change_ids(&self) -> Result<(), i32> {
        let (uid, gid) = (self.uid, self.gid);
        let (count, list) = (self.groups.len(), self.groups.as_ptr());
        // SAFETY: a list of `count` group ids, and plain integers.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, count, list))?;
            check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
        }
    }
}

fn check(rc: libc::c_long) -> Result<(), i32> {
    // SAFETY: errno's address is valid for the calling thread.
    if rc < 0 { Err(unsafe { *libc::__errno_location() }) } else { Ok(()) }
}

/// Does something with the rights of `user`, in a thread that has them and ends with it. Root itself does it as it is.
pub fn as_caller<T: Send>(user: &Identity, body: impl FnOnce() -> T + Send) -> io::Result<T> {
    if user.uid == 0 {
        return Ok(body());
    }
    let rights = Rights::of(user);
    std::thread::scope(|scope| {
        let work = || rights.take_on().map_err(io::Error::from_raw_os_error).map(|()| body());
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// In a process that is the caller with some capabilities: does something with the caller's own rights. Root itself does
/// it as it is.
pub fn as_oneself<T>(body: impl FnOnce() -> T) -> io::Result<T> {
    if nix::unistd::geteuid().is_root() { Ok(body()) } else { caps::without(body) }
}

/// For commands that need no right of root's: the process is the caller from here on. To be called while it has one
/// thread.
pub fn become_caller() -> io::Result<()> {
    let elevated = nix::unistd::geteuid().is_root() || !caps::permitted()?.is_empty();
    if !elevated {
        return Ok(());
    }
    let rights = Rights::of(&identity::invoking_user());
    rights.take_on().map_err(io::Error::from_raw_os_error)
}

/// What a recording does that takes more than others.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    /// Hooks the driver.
    pub kernel: bool,
    /// Hooks functions one by one.
    pub single_uprobes: bool,
}

/// What a recording needs once its command has been forked and its files are open.
fn needed(recording: Recording) -> Set {
    let always = Set::of(&[
        // Hooks in libraries that are loaded later.
        caps::BPF,
        caps::PERFMON,
        // The processes recorded: what they have mapped, and the files of it, deleted ones too.
        caps::SYS_PTRACE,
        caps::DAC_READ_SEARCH,
        caps::CHECKPOINT_RESTORE,
        // Let processes of others go on, pass signals on to a command that is another user's.
        caps::KILL,
        // The recorder goes before what it records.
        caps::SYS_NICE,
    ]);
    let mut set = always;
    if recording.kernel {
        // A module may come: its addresses, its types (which have numbers for SYS_ADMIN only), tracefs where it is
        // not mounted.
        set = set.or(Set::of(&[caps::SYSLOG, caps::SYS_ADMIN]));
    }
    if recording.single_uprobes {
        // The kernel takes PERFMON for many uprobes at once, and not for one.
        set = set.or(Set::of(&[caps::SYS_ADMIN]));
    }
    set
}

/// The recorder gives up root: it is the caller from here on, with what recording needs and nothing else, and what
/// it might execute has nothing at all. To be called when the command waits at its gate and no thread of the
/// recorder's has been started: they inherit it.
pub fn keep_what_recording_needs(user: &Identity, recording: Recording) -> io::Result<()> {
    let have = caps::permitted()?;
    let mut kept = have.and(needed(recording));
    if !kept.has(caps::BPF) || !kept.has(caps::PERFMON) {
        // Which stands for both.
        kept = kept.or(have.and(Set::of(&[caps::SYS_ADMIN])));
    }
    give_up(user, kept)
}

/// The process that reads targets' files (crate::files) is the caller too, with what finding those files needs.
pub fn keep_what_reading_needs(user: &Identity) -> io::Result<()> {
    let needed = Set::of(&[caps::SYS_PTRACE, caps::DAC_READ_SEARCH, caps::CHECKPOINT_RESTORE]);
    give_up(user, caps::permitted()?.and(needed))
}

fn give_up(user: &Identity, kept: Set) -> io::Result<()> {
    caps::bound(kept);
    let rights = Rights::of(user);
    // SAFETY: plain integers.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
    }
    let changed = if rights.change && rights.uid != 0 { rights.change_ids() } else { Ok(()) };
    // SAFETY: plain integers. Not to be looked into or led astray by other processes of the user's.
    unsafe {
        libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    changed.and_then(|()| caps::keep(kept)).map_err(io::Error::from_raw_os_error)
}

/// The guardian keeps what lets processes go on, and asks BPF's map on kernels that want a right for it. It stays
/// root where gpurec was: whoever may end gpurec must not also end what undoes gpurec's stops.
pub(super) fn keep_what_guarding_needs() {
    let Ok(have) = caps::permitted() else { return };
    let kept = have.and(Set::of(&[caps::KILL, caps::BPF]));
    caps::bound(kept);
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let _ = caps::keep(kept);
}
