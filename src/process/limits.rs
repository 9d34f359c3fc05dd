//! The caller's resource limits. sudo gives a command others than its caller has: no core dumps, and what its
//! configuration and PAM say. In: who called it. Out: the limits of the process that did, for the child to take on.

use super::identity::{self, Identity};
use super::proc;

/// Soft and hard, RLIMIT_CPU to RLIMIT_RTTIME.
const COUNT: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits([(u64, u64); COUNT]);

impl Limits {
    /// None: the process is not there any more, or is not the caller's alone, whose limits no other program may have
    /// changed. Then the command has what gpurec was given.
    pub fn of_caller(user: &Identity) -> Option<Limits> {
        let pid = identity::calling_process()?;
        let is_theirs = || proc::uids(pid).is_ok_and(|uids| uids == [user.uid; 4]);
        let born = proc::stat(pid).ok()?.start_time;
        // Not by prlimit, which takes a right of its own for a process of another user.
        let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        // It is still the same process.
        let same = is_theirs() && proc::stat(pid).ok()?.start_time == born;
        Limits::parse(&text).filter(|_| same)
    }

    /// A line for each, in the order of their numbers; names take 26 characters and may hold spaces.
    pub(super) fn parse(text: &str) -> Option<Limits> {
        let number = |word: Option<&str>| match word? {
            "unlimited" => Some(libc::RLIM_INFINITY),
            word => word.parse().ok(),
        };
        let mut limits = Limits([(0, 0); COUNT]);
        let mut lines = text.lines().skip(1);
        for limit in &mut limits.0 {
            let mut words = lines.next()?.get(26..)?.split_ascii_whitespace();
            *limit = (number(words.next())?, number(words.next())?);
        }
        Some(limits)
    }

    /// For the child, while it is root. No allocation, no locks.
    pub(super) fn take_on(&self) {
        for (number, (soft, hard)) in (0..).zip(self.0) {
            let wanted = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            let mut have = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: valid limits. Without CAP_SYS_RESOURCE what is above ours is refused: then as much as we may have.
            unsafe {
                if libc::setrlimit(number, &wanted) != 0 && libc::getrlimit(number, &mut have) == 0 {
                    let most =
                        libc::rlimit { rlim_cur: soft.min(have.rlim_max), rlim_max: hard.min(have.rlim_max) };
                    libc::setrlimit(number, &most);
                }
            }
        }
    }
}
