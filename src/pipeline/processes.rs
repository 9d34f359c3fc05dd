//! Tracks the processes of the lines. In: lines, and process events. Out: which process must be introduced before its
//! line, which processes are gpurec's own, and how a process was started and ended.

use std::collections::HashSet;

use super::decode::What;
use crate::process::job::Job;
use crate::process::proc;
use gpurec_trace::hash::Map;
use gpurec_trace::{self as trace, Body, Process};

/// The most processes to remember as known.
const MOST_KNOWN: usize = 1 << 20;

/// Number of processes that are recognised without a search.
const LAST: usize = 32;

#[derive(Default)]
pub struct Processes {
    /// Processes that a line has introduced, and those of the last lines, by the last bits of their pids.
    known: Map<u32, ()>,
    met: [u32; LAST],
    /// A process of a distributed job was seen.
    pub has_rank: bool,
    /// gpurec's own processes, which --all sees too.
    own: HashSet<u32>,
}

impl Processes {
    pub fn without(own: impl IntoIterator<Item = u32>) -> Processes {
        Processes { own: own.into_iter().collect(), ..Processes::default() }
    }

    /// True if no line has introduced the process yet. From now on it counts as introduced.
    pub fn is_new(&mut self, pid: u32) -> bool {
        let met = &mut self.met[pid as usize % LAST];
        if *met == pid || pid == 0 {
            return false;
        }
        *met = pid;
        if self.known.contains_key(&pid) {
            return false;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(pid, ()).is_none()
    }

    /// Notes a process event. After an exit, the pid may be reused.
    pub fn know(&mut self, process: &Process) {
        match process {
            Process::Exec(exec) => {
                self.has_rank |= exec.rank.is_some();
                self.known.insert(exec.pid, ());
            }
            Process::Fork(fork) => _ = self.known.insert(fork.child, ()),
            Process::Exit(exit) => {
                self.known.remove(&exit.pid);
                self.met = [0; LAST];
            }
            Process::Found(found) => self.has_rank |= found.rank.is_some(),
            Process::Library(_) => {}
        }
    }

    pub fn is_own(&mut self, what: &What) -> bool {
        if self.own.is_empty() {
            return false;
        }
        let pid = match what {
            What::Fork { pid, child } => {
                if self.own.contains(pid) {
                    self.own.insert(*child);
                }
                *pid
            }
            What::Exec { pid, .. } => *pid,
            What::Exit { pid, process, .. } => {
                return if *process { self.own.remove(pid) } else { self.own.contains(pid) };
            }
            _ => return false,
        };
        self.own.contains(&pid)
    }
}

/// The process of a line, for the kinds of lines that introduce one.
pub fn process_of(body: &Body) -> Option<u32> {
    match body {
        Body::Begin(begin) => Some(begin.pid),
        Body::Block(block) => Some(block.pid),
        Body::KernelBegin(begin) if begin.thread.is_none() => Some(begin.pid),
        Body::Process(Process::Fork(fork)) => Some(fork.pid),
        Body::Process(Process::Library(library)) => Some(library.pid),
        _ => None,
    }
}

/// The words of an argv as in memory. A cut one ends in `…`.
pub fn words(command: &[u8], cut: bool) -> Vec<String> {
    let mut words = proc::words(command);
    if cut {
        words.push("…".to_owned());
    }
    words
}

/// The line of a program that began.
pub fn exec(pid: u32, tid: u32, command: Vec<String>, job: Job) -> Process<'static> {
    let Job { rank, local_rank, world_size, name } = job;
    Process::Exec(trace::Exec { pid, tid, command, rank, local_rank, world_size, job: name })
}

pub fn exit_status(status: i32) -> trace::ExitStatus {
    if libc::WIFSIGNALED(status) {
        trace::ExitStatus::Signal(libc::WTERMSIG(status))
    } else {
        trace::ExitStatus::Code(libc::WEXITSTATUS(status))
    }
}
