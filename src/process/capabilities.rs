//! Linux capabilities. In: those of the calling thread. Out: sets, names, and a thread with fewer of them. Uses bare
//! system calls: a set belongs to one thread. The child uses them between fork and exec too, so functions that drop
//! capabilities neither allocate nor lock. Not here: which capabilities are needed, and when they are dropped.

use std::io;

use nix::errno::Errno;

/// The number from linux/capability.h, and the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(u32, &'static str);

pub const DAC_OVERRIDE: Cap = Cap(1, "CAP_DAC_OVERRIDE");
pub const DAC_READ_SEARCH: Cap = Cap(2, "CAP_DAC_READ_SEARCH");
pub const KILL: Cap = Cap(5, "CAP_KILL");
pub const SYS_PTRACE: Cap = Cap(19, "CAP_SYS_PTRACE");
pub const SYS_ADMIN: Cap = Cap(21, "CAP_SYS_ADMIN");
pub const SYS_NICE: Cap = Cap(23, "CAP_SYS_NICE");
pub const SYSLOG: Cap = Cap(34, "CAP_SYSLOG");
pub const PERFMON: Cap = Cap(38, "CAP_PERFMON");
pub const BPF: Cap = Cap(39, "CAP_BPF");
pub const CHECKPOINT_RESTORE: Cap = Cap(40, "CAP_CHECKPOINT_RESTORE");

impl Cap {
    pub fn name(self) -> &'static str {
        self.1
    }
}

/// Sixty-four bits, one for each capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u64);

impl Set {
    pub const NONE: Set = Set(0);

    pub fn of(caps: &[Cap]) -> Set {
        Set(caps.iter().fold(0, |bits, cap| bits | 1 << cap.0))
    }

    pub fn has(self, cap: Cap) -> bool {
        self.0 >> cap.0 & 1 == 1
    }

    pub fn and(self, other: Set) -> Set {
        Set(self.0 & other.0)
    }

    pub fn or(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3: sixty-four capabilities in two halves. Process 0 is the calling thread.
const HEADER: Header = Header { version: 0x2008_0522, pid: 0 };

/// The capabilities of the calling thread that are in force.
pub fn effective() -> io::Result<Set> {
    Ok(get()?.0)
}

pub fn permitted() -> io::Result<Set> {
    Ok(get()?.1)
}

fn get() -> io::Result<(Set, Set)> {
    let mut header = HEADER;
    let mut halves = [Half::default(); 2];
    // SAFETY: the header, and the two halves that version 3 fills.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    let [low, high] = halves;
    let whole = |low: u32, high: u32| Set(u64::from(low) | u64::from(high) << 32);
    Ok((whole(low.effective, high.effective), whole(low.permitted, high.permitted)))
}

/// Gives the calling thread exactly these capabilities; programs that it executes inherit none.
pub fn keep(set: Set) -> nix::Result<()> {
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    put(set, set)
}

/// Runs `body` with none of the calling thread's capabilities in force, and restores them afterwards.
pub fn without<T>(body: impl FnOnce() -> T) -> io::Result<T> {
    let (effective, permitted) = get()?;
    put(Set::NONE, permitted)?;
    let done = body();
    put(effective, permitted)?;
    Ok(done)
}

fn put(effective: Set, permitted: Set) -> nix::Result<()> {
    let half = |shift: u32| Half {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: 0,
    };
    let (header, halves) = (HEADER, [half(0), half(32)]);
    // SAFETY: the header, and the two halves that version 3 reads.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) }).map(drop)
}

/// Prevents programs that the calling thread executes from now on from having other capabilities. A thread without
/// CAP_SETPCAP cannot do this, so its caller must ensure it in another way.
pub fn bound(set: Set) {
    for cap in 0..64 {
        // SAFETY: plain integers; Linux refuses a number that it does not know.
        unsafe {
            if set.0 >> cap & 1 == 0 && libc::prctl(libc::PR_CAPBSET_READ, cap, 0, 0, 0) == 1 {
                libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0);
            }
        }
    }
}
