//! Names of code that a process makes at run time, from /tmp/perf-PID.map. In: a process. Out: the name at an address.
//! Another user may write a file of that name, so it counts only if it is a regular file of the process' own user.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::bounded;
use crate::process::maps::{reopen, root_of};
use crate::process::{Pid, proc};

/// The largest map that is read, the functions that are kept, and the bytes of their names.
const MOST_BYTES: u64 = 64 << 20;
const MOST_FUNCTIONS: usize = 1 << 18;
const MOST_NAMES: usize = 16 << 20;
/// A map grows as the process runs. It is read again once PART times as much time has passed as the last reading took.
const PART: u32 = 20;
const LEAST: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Jit {
    /// By address, without overlaps.
    functions: Vec<Function>,
    /// Length and time of last change.
    stamp: Option<(u64, i64, i64)>,
    next: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    end: u64,
    name: String,
}

impl Jit {
    pub fn name(&mut self, pid: Pid, address: u64) -> Option<&str> {
        if self.next.is_none_or(|next| Instant::now() >= next) {
            let before = Instant::now();
            // A map that cannot be read leaves the functions that are known.
            let _ = self.read(pid);
            self.next = Some(Instant::now() + (before.elapsed() * PART).max(LEAST));
        }
        let after = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (address < function.end).then_some(function.name.as_str())
    }

    fn read(&mut self, pid: Pid) -> Option<()> {
        // Its number in its own namespace.
        let numbers = proc::status_field(pid, "NSpid").ok()?;
        let number: Pid = numbers.split_ascii_whitespace().next_back()?.parse().ok()?;
        let root = root_of(pid).ok()?;
        let found = find(root.folder(), &format!("tmp/perf-{number}.map"))?;
        let meta = found.metadata().ok()?;
        let is_own = proc::effective_uid(pid).is_ok_and(|uid| uid == meta.uid());
        if !meta.is_file() || !is_own {
            return None;
        }
        let stamp = (meta.len(), meta.mtime(), meta.mtime_nsec());
        if self.stamp != Some(stamp) {
            let mut bytes = Vec::new();
            reopen(&found).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
            self.functions = parse(&bytes);
            self.stamp = Some(stamp);
        }
        Some(())
    }
}

/// Without opening the file, and without leaving the folder by a link or by `..`.
fn find(root: impl AsFd, path: &str) -> Option<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found: OwnedFd = openat2(root, Path::new(path), how).ok()?;
    Some(File::from(found))
}

/// Each line is `START SIZE name`, in hexadecimal. A later line replaces all that it overlaps: the memory was used anew.
fn parse(bytes: &[u8]) -> Vec<Function> {
    let mut known: BTreeMap<u64, Function> = BTreeMap::new();
    let mut left = MOST_NAMES;
    for line in bytes.rsplit(|byte| *byte == b'\n') {
        let Some(function) = parse_line(line) else { continue };
        let before = known.range(..function.end).next_back();
        if before.is_some_and(|(_, later)| later.end > function.start) {
            continue;
        }
        let Some(rest) = left.checked_sub(function.name.len()) else { break };
        left = rest;
        if known.len() >= MOST_FUNCTIONS {
            break;
        }
        known.insert(function.start, function);
    }
    known.into_values().collect()
}

fn parse_line(line: &[u8]) -> Option<Function> {
    let text = std::str::from_utf8(line.get(..8192).unwrap_or(line)).ok()?;
    let mut words = text.splitn(3, ' ');
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok();
    let (start, size) = (hex(words.next()?)?, hex(words.next()?)?);
    let name = words.next()?.trim();
    if name.is_empty() || size == 0 {
        return None;
    }
    Some(Function { start, end: start.checked_add(size)?, name: bounded(name.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lines_replace_earlier_ones() {
        let map =
            b"1000 100 first\n2000 10 second one\nbad\n1000 80 again\n-1 5 x\n1040 10 inner\n3000 0 none\n";
        let all = parse(map);
        let short: Vec<_> = all.iter().map(|f| (f.start, f.end, f.name.as_str())).collect();
        assert_eq!(short, [(0x1040, 0x1050, "inner"), (0x2000, 0x2010, "second one")]);
    }
}
