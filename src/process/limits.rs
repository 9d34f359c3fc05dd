//! The caller's resource limits. sudo gives a command other limits than its caller has: no core dumps, and settings of
//! its configuration and PAM. In: the user who called sudo. Out: the limits of the process that called it, for the
//! child to apply.

use super::identity::{self, Identity};
use super::proc;

/// Soft and hard, RLIMIT_CPU to RLIMIT_RTTIME.
const COUNT: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits([(u64, u64); COUNT]);

impl Limits {
    /// None: the process has ended, or does not run entirely as the caller; then another program may have changed its
    /// limits. The command then gets the limits that gpurec was started with.
    pub fn of_caller(user: &Identity) -> Option<Limits> {
        let pid = identity::calling_process()?;
        let is_theirs = || proc::uids(pid).is_ok_and(|uids| uids == [user.uid; 4]);
        let born = proc::stat(pid).ok()?.start_time;
        // Not prlimit(), which needs an additional right for another user's process.
        let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        // Check that the pid still belongs to the same process.
        let same = is_theirs() && proc::stat(pid).ok()?.start_time == born;
        Limits::parse(&text).filter(|_| same)
    }

    /// One line for each limit, in the order of their numbers. Names take 26 characters and may contain spaces.
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
            // SAFETY: valid limits. Without CAP_SYS_RESOURCE Linux refuses values above our own; then set the highest
            // allowed.
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
