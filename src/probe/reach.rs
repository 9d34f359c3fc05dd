//! The attach scope: which processes the hooks are for. In: files with their probe places, and the processes that map
//! them. Out: links. As long as only one traced process needs hooks, they are for it alone, and other processes that
//! use the same files pay nothing. When a second process needs them, or the first forks, hooks for all processes are
//! added, and BPF decides which process is traced.
//!
//! The first hooks then stay: removing them would lose the returns of calls in progress. Both see the first process's
//! calls, and one of them records the call (`is_told_already` in bpf/cuda.bpf.c).
//!
//! Not here: which functions are hooked; stopping a process.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::attach::{self, ANYONE, Place, Refused};
use super::objects::Base;
use super::shield::Hook;
use crate::files::FileId;
use crate::host::Backend;
use crate::process::{fds, proc};
use crate::wire;

pub struct Reach {
    base: Rc<Base>,
    backend: Backend,
    cuda: Rc<Object>,
    whose: Whose,
    held: Vec<Held>,
    state: wire::State,
}

enum Whose {
    Everybodys,
    /// Nothing is hooked yet.
    Nobodys,
    Of(Owner),
    /// Holds the programs of the hooks for all processes.
    EverybodysSince(Object),
}

/// The process that the hooks are for.
struct Owner {
    pid: u32,
    pidfd: OwnedFd,
}

/// A file that was hooked.
struct Held {
    key: FileId,
    file: File,
    places: Vec<Place>,
    /// For the present owner.
    attached: bool,
    links: Vec<Hook>,
}

impl Reach {
    pub fn new(base: Rc<Base>, backend: Backend, cuda: Rc<Object>, narrow: bool) -> Reach {
        let state = wire::State { phase: wire::RECORDING, kernel: 0, only: 0, may_pause: 0 };
        let whose = if narrow { Whose::Nobodys } else { Whose::Everybodys };
        Reach { base, backend, cuda, whose, held: Vec::new(), state }
    }

    /// Hooks a file that the process has mapped. Returns the places that Linux refused, if it accepted any.
    pub fn attach(
        &mut self,
        pid: u32,
        key: FileId,
        file: &File,
        mut places: Vec<Place>,
    ) -> Result<Vec<Refused>> {
        self.be_for(pid)?;
        let file = file.try_clone().with_context(fds::too_few)?;
        let (programs, whom) = self.programs();
        let (links, refused) =
            attach::attach_most(&self.base, programs, self.backend, &file, &places, whom)?.links();
        let mut index = 0..;
        places.retain(|_| index.next().is_some_and(|i| refused.iter().all(|one| one.index != i)));
        self.held.push(Held { key, file, places, attached: true, links });
        Ok(refused)
    }

    pub fn files(&self) -> Vec<(FileId, &File)> {
        self.held.iter().map(|held| (held.key, &held.file)).collect()
    }

    pub fn functions(&self) -> usize {
        self.held.iter().map(|held| held.places.len()).sum()
    }

    /// Forgets a file. Returns its links, which the caller removes.
    pub fn let_go(&mut self, key: FileId) -> Vec<Hook> {
        self.held.extract_if(.., |held| held.key == key).flat_map(|held| held.links).collect()
    }

    /// The process has mapped a file that was hooked before, perhaps for another process. Returns true if it was hooked
    /// anew.
    pub fn also_for(&mut self, pid: u32, key: FileId) -> Result<bool> {
        if !self.held.iter().any(|held| held.key == key) {
            return Ok(false);
        }
        let before = self.tells();
        self.be_for(pid)?;
        let mut all = std::mem::take(&mut self.held);
        let mut wanted: Vec<_> = all.iter_mut().filter(|held| held.key == key && !held.attached).collect();
        let anew = !wanted.is_empty() || self.tells() != before;
        let done = wanted.iter_mut().try_for_each(|held| self.attach_held(held));
        self.held = all;
        done.map(|()| anew)
    }

    /// The attach scope as numbers: none, all processes, or one process.
    fn tells(&self) -> (u8, u32) {
        match &self.whose {
            Whose::Nobodys => (0, 0),
            Whose::Everybodys | Whose::EverybodysSince(_) => (1, 0),
            Whose::Of(owner) => (2, owner.pid),
        }
    }

    /// The process that need not be stopped for this file again, while others must; 0: none.
    pub fn only(&self, key: FileId) -> u32 {
        match &self.whose {
            Whose::Of(owner) if self.held.iter().any(|held| held.key == key) => owner.pid,
            _ => 0,
        }
    }

    /// Hooks for one process are no longer enough: from now on the hooks see the calls of all processes.
    pub fn widen(&mut self) -> Result<()> {
        if matches!(self.whose, Whose::Everybodys | Whose::EverybodysSince(_)) {
            return Ok(());
        }
        let more = self.base.load_cuda(self.backend, wire::EVERYBODY_SINCE, Some(&self.cuda))?;
        self.whose = Whose::EverybodysSince(more);
        let mut all = std::mem::take(&mut self.held);
        let done = all.iter_mut().try_for_each(|held| self.attach_held(held));
        self.held = all;
        self.tell()?;
        done
    }

    /// The recorder is ready to resume processes that --lossless pauses.
    pub fn allow_pauses(&mut self) -> Result<()> {
        self.state.may_pause = 1;
        self.tell()
    }

    /// Sets the phase; from now on Linux-side events are recorded too, as long as the phase allows it. Processes are
    /// paused only during a recording.
    pub fn set_phase(&mut self, phase: u32) -> Result<()> {
        let may_pause = (phase == wire::RECORDING).into();
        self.state = wire::State { phase, kernel: 1, may_pause, ..self.state };
        self.tell()
    }

    pub fn links(&self) -> usize {
        self.held.iter().map(|held| held.links.len()).sum()
    }

    /// Takes every link; the caller removes them.
    pub fn take_links(&mut self) -> Vec<Hook> {
        self.held.iter_mut().flat_map(|held| std::mem::take(&mut held.links)).collect()
    }

    /// A sentence for the user: whose calls pay for the hooks.
    pub fn sentence(&self) -> String {
        match &self.whose {
            Whose::Of(owner) => format!("the hooks are in process {} alone", owner.pid),
            Whose::Nobodys => "no process needed hooks".to_owned(),
            Whose::Everybodys | Whose::EverybodysSince(_) => {
                "the hooks are in every process that uses the same libraries".to_owned()
            }
        }
    }

    /// Afterwards the hooks see the process, or all processes.
    fn be_for(&mut self, pid: u32) -> Result<()> {
        match &mut self.whose {
            Whose::Everybodys | Whose::EverybodysSince(_) => return Ok(()),
            Whose::Of(owner) if owner.pid == pid && !owner.ended() => return Ok(()),
            Whose::Of(owner) if !owner.ended() => return self.widen(),
            Whose::Of(_) => attach::detach_aside(self.take_links()),
            Whose::Nobodys => {}
        }
        self.held.iter_mut().for_each(|held| held.attached = false);
        let pidfd = match proc::pidfd_open(pid) {
            // Linux would identify the process by its first thread, which is gone.
            Ok(pidfd) if proc::stat(pid).is_ok_and(|stat| !stat.ended()) => pidfd,
            _ => return self.widen(),
        };
        self.whose = Whose::Of(Owner { pid, pidfd });
        self.tell()
    }

    /// The programs to attach now, and the process to attach them for.
    fn programs(&self) -> (&Object, i32) {
        match &self.whose {
            Whose::Of(owner) => (&self.cuda, owner.pid as i32),
            Whose::EverybodysSince(more) => (more, ANYONE),
            Whose::Everybodys | Whose::Nobodys => (&self.cuda, ANYONE),
        }
    }

    fn attach_held(&self, held: &mut Held) -> Result<()> {
        self.base.still_here();
        let (programs, whom) = self.programs();
        held.links.extend(attach::attach(programs, self.backend, &held.file, &held.places, whom)?);
        held.attached = true;
        Ok(())
    }

    /// Publishes the attach scope to the BPF programs.
    fn tell(&mut self) -> Result<()> {
        self.state.only = match &self.whose {
            Whose::Of(owner) => owner.pid,
            _ => 0,
        };
        Ok(self.base.map("state")?.update(&0u32.to_ne_bytes(), wire::bytes(&self.state), MapFlags::ANY)?)
    }
}

impl Owner {
    fn ended(&self) -> bool {
        proc::pidfd_ended(self.pidfd.as_raw_fd(), 0)
    }
}
