//! The lines that describe the running processes. In: process lines, in order. Out: for each live process the lines
//! that name it. A process that was forked has its parent's name, so its parent's lines stay with it. Pure; bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::kept::Kept;
use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Line, Process};

/// The most live processes. There are more only if records of process exits were lost: the older half is dropped.
const MOST: usize = 65_536;
/// The most ancestors of a process. A chain of processes that each fork and exit would otherwise grow without limit.
const DEEPEST: usize = 8;

#[derive(Clone, Default)]
pub struct Processes {
    live: Map<u32, Arc<Named>>,
}

/// A process, by the line that named it last.
struct Named {
    by: Kept,
    parent: Option<Arc<Named>>,
    depth: usize,
    /// Set when it has ended.
    exit: OnceLock<Kept>,
}

impl Processes {
    /// `text` is the line.
    pub fn add(&mut self, line: &Line, process: &Process, text: &[u8]) {
        match process {
            Process::Exec(exec) => self.name(exec.pid, Kept::new(line, text), None),
            Process::Found(found) => self.name(found.pid, Kept::new(line, text), None),
            Process::Fork(fork) => {
                let parent = self.live.get(&fork.pid).filter(|parent| parent.depth < DEEPEST).cloned();
                self.name(fork.child, Kept::new(line, text), parent);
            }
            Process::Exit(exit) => {
                if let Some(gone) = self.live.remove(&exit.pid) {
                    let _ = gone.exit.set(Kept::new(line, text));
                }
            }
            Process::Library(_) => {}
        }
    }

    pub fn runs(&self, pid: u32) -> bool {
        self.live.contains_key(&pid)
    }

    fn name(&mut self, pid: u32, by: Kept, parent: Option<Arc<Named>>) {
        if self.live.len() >= MOST && !self.live.contains_key(&pid) {
            self.drop_the_oldest();
        }
        let depth = parent.as_ref().map_or(0, |parent| parent.depth + 1);
        self.live.insert(pid, Arc::new(Named { by, parent, depth, exit: OnceLock::new() }));
    }

    fn drop_the_oldest(&mut self) {
        let mut ids: Vec<u64> = self.live.values().map(|named| named.by.id).collect();
        let middle = ids.len() / 2;
        let (_, middle, _) = ids.select_nth_unstable(middle);
        let from = *middle;
        self.live.retain(|_, named| named.by.id >= from);
    }

    /// The lines of the live processes and their parents, by event_id.
    pub fn lines(&self) -> BTreeMap<u64, Kept> {
        let mut all = BTreeMap::new();
        for named in self.live.values() {
            all.insert(named.by.id, named.by.clone());
            let mut parent = named.parent.as_ref();
            while let Some(one) = parent {
                all.insert(one.by.id, one.by.clone());
                all.extend(one.exit.get().map(|exit| (exit.id, exit.clone())));
                parent = one.parent.as_ref();
            }
        }
        all
    }
}

/// The process that ends at a line, or runs another program from there on: its memory and its calls are gone.
pub fn ended(body: &Body) -> Option<u32> {
    match body {
        Body::Process(Process::Exit(exit)) => Some(exit.pid),
        Body::Process(Process::Exec(exec)) => Some(exec.pid),
        _ => None,
    }
}
