//! The processes of a recording and the libraries they load: their records, and the cleanup when a process ends.

use std::cmp::Reverse;

use super::{EACH, LISTED_PROCESSES, MOST, Summary};
use crate::figures::{Figures, LibraryFigures, ProcessFigures, truncate};
use gpurec_trace::{Exit, ExitStatus, Library, Line, Process, signal_name};

impl Summary {
    pub(super) fn process(&mut self, line: &Line, process: &Process) {
        self.measure_process(line.ts_ns, process);
        match process {
            Process::Exec(exec) => {
                self.begins(exec.pid);
                // exec ends its other threads and their calls.
                self.end_program(exec.pid, line.ts_ns, false);
                self.names(exec.pid, &exec.command, exec.rank);
            }
            Process::Found(found) => {
                self.comes_back(found.pid);
                let Some((pid, command, rank)) = process.named() else { return };
                self.names(pid, &command, rank);
            }
            Process::Fork(fork) => {
                self.begins(fork.child);
                let parent = self.known(fork.pid).map(|p| (p.command.clone(), p.rank));
                match parent {
                    Some((command, rank)) => self.names(fork.child, &command, rank),
                    None => _ = self.known(fork.child),
                }
            }
            Process::Exit(exit) => self.exit(line, exit),
            Process::Library(library) => self.library(library),
        }
    }

    fn begins(&mut self, pid: u32) {
        self.comes_back(pid);
        if self.begun.len() < MOST {
            self.begun.insert(pid);
        }
    }

    /// Keeps a command if there is room.
    fn names(&mut self, pid: u32, command: &[String], rank: Option<u32>) {
        let has_room = self.commands_left.take(command.iter().map(|word| EACH + word.len()).sum());
        if let Some(process) = self.known(pid) {
            let kept = if has_room { command.to_vec() } else { Vec::new() };
            let before = std::mem::replace(&mut process.command, kept);
            process.rank = rank;
            self.forgets(&before);
        }
    }

    fn exit(&mut self, line: &Line, exit: &Exit) {
        self.end_program(exit.pid, line.ts_ns, exit.status == ExitStatus::Code(0));
        if let Some(process) = self.known(exit.pid) {
            (process.status, process.signal) = match exit.status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(n) => (Some(n.saturating_add(128)), Some(signal_name(n))),
            };
        }
        self.has_ended(exit.pid);
    }

    /// The program of a process has ended.
    fn end_program(&mut self, pid: u32, ts_ns: u64, well: bool) {
        if self.open.died(pid, ts_ns) {
            self.settle_dead();
        }
        self.driver.open.died(pid, ts_ns);
        self.memories.ended(pid, ts_ns);
        self.devices.ended(pid);
        self.errors.ended(pid);
        self.habits.ended(pid, well);
    }

    fn known(&mut self, pid: u32) -> Option<&mut ProcessFigures> {
        if self.processes.len() >= MOST && !self.processes.contains_key(&pid) {
            self.figures.more_processes += 1;
            return None;
        }
        Some(self.processes.entry(pid).or_insert(ProcessFigures { pid, ..ProcessFigures::default() }))
    }

    fn library(&mut self, library: &Library) {
        // 0: no process had it mapped yet.
        if library.pid != 0 {
            self.known(library.pid);
        }
        self.single_stepped(library);
        let known = &mut self.figures.libraries;
        let key = (library.path.as_ref().into(), library.build_id.clone());
        let refused = library.not_hooked.iter().map(|one| EACH + one.name.len() + one.reason.len());
        let build_id = library.build_id.as_ref().map_or(0, String::len);
        let bytes = 2 * (EACH + library.path.len() + build_id) + refused.sum::<usize>();
        if let Some(at) = self.by_library.get(&key) {
            if let Some(seen) = known.get_mut(*at) {
                seen.functions = seen.functions.max(library.functions);
            }
        } else if !self.libraries_left.take(bytes) {
            self.figures.more_libraries += 1;
        } else {
            self.by_library.insert(key, known.len());
            known.push(LibraryFigures {
                path: library.path.to_string(),
                build_id: library.build_id.clone(),
                functions: library.functions,
                not_hooked: library.not_hooked.clone(),
            });
        }
    }

    /// Whether the process ran before the recording, which then knows only part of what it holds.
    pub(super) fn has_run_before(&self, pid: u32) -> bool {
        self.attaches && !self.begun.contains(&pid)
    }

    /// Whether at least one process did.
    pub(crate) fn some_ran_before(&self) -> bool {
        let ended = self.ended_processes.some_ran_before();
        ended || self.processes.keys().any(|pid| self.has_run_before(*pid))
    }

    /// Sorts processes by number of calls, largest first.
    pub(super) fn list_processes(&self, figures: &mut Figures) {
        let mut all = self.processes.clone();
        for ((pid, _), paid) in &self.calls_by_thread.by_key {
            let new = ProcessFigures { pid: *pid, ..ProcessFigures::default() };
            all.entry(*pid).or_insert(new).calls += paid.calls;
        }
        figures.processes = all.into_values().collect();
        figures.processes.sort_by_key(|process| (Reverse(process.calls), process.pid));
        figures.more_processes += truncate(&mut figures.processes, LISTED_PROCESSES);
        for process in &mut figures.processes {
            process.ran_before = self.has_run_before(process.pid);
            process.peak_device_bytes = self.memories.peak_of(process.pid);
            process.peak_runtime_bytes = self.memories.runtime_peak_of(process.pid);
        }
    }
}
