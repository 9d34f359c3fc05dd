//! What code processes have at which address. In: their executable mappings as BPF reports them, forks, execs and exits,
//! in order. Out: the file at an address, as it was at that time. For a process that was running before the recording, or
//! of which a report was lost, the caller passes the list of its mappings to `begin`. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The most mappings of one process, and of all.
const MOST_OF_ONE: usize = 8192;
const MOST: usize = 1 << 20;

/// A file as Linux identifies it, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MappedFile {
    pub inode: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    pub generation: u32,
    /// When it was last changed.
    pub changed: u64,
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    /// The place of `start` in the file.
    pub offset: u64,
    pub file: MappedFile,
}

impl Mapped {
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The mappings of one process.
#[derive(Clone, Default)]
struct Process {
    /// The number of the next report. None: any.
    next: Option<u32>,
    /// In the order of their addresses, without overlaps.
    list: Arc<Vec<Mapped>>,
}

#[derive(Default)]
pub struct Mappings {
    known: HashMap<u32, Process>,
    /// The mappings of all processes; a child's are counted as its own.
    count: usize,
}

impl Mappings {
    /// The process executes a new program.
    pub fn exec(&mut self, pid: u32) {
        self.exit(pid);
        self.known.insert(pid, Process { next: Some(0), ..Process::default() });
    }

    /// The mappings of a process as they are now, in order. Reports from before may follow: they do no harm.
    pub fn begin(&mut self, pid: u32, list: Vec<Mapped>) {
        self.exit(pid);
        if list.len() <= MOST_OF_ONE {
            self.count += list.len();
            self.known.insert(pid, Process { next: None, list: Arc::new(list) });
            self.bound();
        }
    }

    pub fn knows(&self, pid: u32) -> bool {
        self.known.contains_key(&pid)
    }

    pub fn fork(&mut self, parent: u32, child: u32) {
        self.exit(child);
        let Some(process) = self.known.get(&parent).cloned() else { return };
        self.count += process.list.len();
        self.known.insert(child, process);
        self.bound();
    }

    pub fn exit(&mut self, pid: u32) {
        let count = self.known.remove(&pid).map_or(0, |process| process.list.len());
        self.count -= count;
    }

    /// `number`: of the report, from 0 for each program that the process executes.
    pub fn add(&mut self, pid: u32, number: u32, mapped: Mapped) {
        let Some(process) = self.known.get_mut(&pid) else { return };
        let before = process.list.len();
        // A report was lost.
        if process.next.is_some_and(|next| number != next) || before >= MOST_OF_ONE {
            return self.exit(pid);
        }
        process.next = Some(number.wrapping_add(1));
        put(Arc::make_mut(&mut process.list), mapped);
        self.count = self.count - before + process.list.len();
        self.bound();
    }

    fn bound(&mut self) {
        if self.count > MOST {
            *self = Mappings::default();
        }
    }

    pub fn at(&self, pid: u32, address: u64) -> Option<&Mapped> {
        let list = &self.known.get(&pid)?.list;
        let after = list.partition_point(|mapped| mapped.start <= address);
        list.get(after.checked_sub(1)?).filter(|mapped| mapped.contains(address))
    }

    /// The mappings that contain any of these addresses.
    pub fn around(&self, pid: u32, addresses: impl Iterator<Item = u64>) -> Vec<Mapped> {
        let mut all: Vec<Mapped> = Vec::new();
        for address in addresses {
            // Neighbouring addresses are often in one.
            if all.last().is_some_and(|last| last.contains(address)) {
                continue;
            }
            if let Some(mapped) = self.at(pid, address)
                && !all.contains(mapped)
            {
                all.push(*mapped);
            }
        }
        all
    }
}

/// Replaces what the mapping overlaps.
fn put(list: &mut Vec<Mapped>, new: Mapped) {
    if new.start >= new.end {
        return;
    }
    let first = list.partition_point(|old| old.end <= new.start);
    let last = list.partition_point(|old| old.start < new.end);
    let left =
        list.get(first).filter(|old| old.start < new.start).map(|old| Mapped { end: new.start, ..*old });
    let right = last.checked_sub(1).and_then(|at| list.get(at)).filter(|old| old.end > new.end);
    let right = right.map(|old| Mapped {
        start: new.end,
        offset: old.offset.wrapping_add(new.end - old.start),
        ..*old
    });
    list.splice(first..last.max(first), left.into_iter().chain([new]).chain(right));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(start: u64, end: u64, inode: u64) -> Mapped {
        let file = MappedFile { inode, device: (8, 1), generation: 0, changed: 5, size: 6 };
        Mapped { start, end, offset: 0x100, file }
    }

    /// The inode and the place in the file.
    fn at(all: &Mappings, pid: u32, address: u64) -> Option<(u64, u64)> {
        let found = all.at(pid, address)?;
        Some((found.file.inode, address - found.start + found.offset))
    }

    #[test]
    fn a_later_mapping_replaces_what_it_overlaps() {
        let mut all = Mappings::default();
        all.add(1, 0, mapped(0x1000, 0x2000, 1));
        assert_eq!(at(&all, 1, 0x1000), None, "not known from its beginning");
        all.exec(1);
        all.add(1, 0, mapped(0x1000, 0x4000, 1));
        all.add(1, 1, mapped(0x8000, 0x9000, 2));
        all.add(1, 2, mapped(0x2000, 0x3000, 3));
        let found =
            [0xfff, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x4000, 0x8000].map(|address| at(&all, 1, address));
        let third = Some((1, 0x2100));
        assert_eq!(
            found,
            [None, Some((1, 0x10ff)), Some((3, 0x100)), Some((3, 0x10ff)), third, None, Some((2, 0x100))]
        );
        all.add(1, 3, mapped(0, 0x10000, 4));
        assert_eq!(all.around(1, [1, 2, 0x8000, 0x20000].into_iter()), [mapped(0, 0x10000, 4)]);
        assert_eq!(all.count, 1);
    }

    #[test]
    fn a_child_has_its_parents_until_it_executes_a_program() {
        let mut all = Mappings::default();
        all.exec(1);
        all.add(1, 0, mapped(0x1000, 0x2000, 1));
        all.fork(1, 2);
        all.add(2, 1, mapped(0x1000, 0x2000, 2));
        assert_eq!([at(&all, 1, 0x1000), at(&all, 2, 0x1000)], [Some((1, 0x100)), Some((2, 0x100))]);
        all.exec(2);
        assert_eq!(at(&all, 2, 0x1000), None);
        all.add(2, 0, mapped(0x5000, 0x6000, 3));
        assert_eq!(at(&all, 2, 0x5000), Some((3, 0x100)));
        // A report was lost.
        all.add(2, 2, mapped(0x7000, 0x8000, 3));
        assert_eq!([at(&all, 2, 0x5000), at(&all, 2, 0x7000)], [None, None]);
        all.exit(1);
        assert_eq!((at(&all, 1, 0x1000), all.count), (None, 0));
        // It was running before.
        all.begin(3, vec![mapped(0x1000, 0x2000, 1)]);
        all.add(3, 7, mapped(0x5000, 0x6000, 2));
        assert_eq!([at(&all, 3, 0x1000), at(&all, 3, 0x5000)], [Some((1, 0x100)), Some((2, 0x100))]);
        all.add(3, 9, mapped(0x5000, 0x6000, 2));
        assert!(!all.knows(3));
    }
}
