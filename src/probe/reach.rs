//! Whose calls the hooks see. In: files with the places in them, and the processes that map
//! them. Out: links. As long as one process of those traced has hooks at all, they are for it
//! alone, and whoever else uses the same files pays nothing. When a second one needs them, or
//! the first forks, there are hooks for everybody too, and who is traced is decided in BPF.
//!
//! The first hooks stay then: removing them would lose the returns of calls under way. Both
//! see the first process's calls, and one of them tells (`is_told_already` in bpf/cuda.bpf.c).
//!
//! What may not be done here: decide which functions are hooked, or stop anybody.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, MapFlags, Object};

use super::attach::{self, ANYONE, Place};
use super::objects::{Base, Rung};
use super::wire;
use crate::target::proc;

pub struct Reach {
    base: Rc<Base>,
    rung: Rung,
    cuda: Rc<Object>,
    may_sleep: bool,
    whose: Whose,
    held: Vec<Held>,
    links: Vec<Link>,
    state: wire::State,
}

enum Whose {
    Everybodys,
    /// Nothing is hooked yet.
    Nobodys,
    Of(Owner),
    /// With the programs of what is hooked for everybody.
    EverybodysSince(Object),
}

/// The process that the hooks are for.
struct Owner {
    pid: u32,
    pidfd: OwnedFd,
    links: Vec<Link>,
}

/// A file that was hooked.
struct Held {
    key: (u64, u64),
    file: File,
    places: Vec<Place>,
    /// For the owner that there is now.
    attached: bool,
}

impl Reach {
    pub fn new(base: Rc<Base>, rung: Rung, cuda: Rc<Object>, may_sleep: bool, narrow: bool) -> Reach {
        let state = wire::State { phase: wire::RECORDING, kernel: 0, only: 0, may_pause: 0 };
        let whose = if narrow { Whose::Nobodys } else { Whose::Everybodys };
        Reach { base, rung, cuda, may_sleep, whose, held: Vec::new(), links: Vec::new(), state }
    }

    /// Hooks a file that the process has mapped: all places or none.
    pub fn attach(&mut self, pid: u32, key: (u64, u64), file: &File, places: Vec<Place>) -> Result<()> {
        if matches!(self.whose, Whose::Everybodys) {
            self.links.extend(attach::attach(&self.cuda, self.rung, file, &places, ANYONE)?);
            return Ok(());
        }
        self.be_for(pid)?;
        let file = file.try_clone().context("too many open files")?;
        let mut held = Held { key, file, places, attached: false };
        self.attach_held(&mut held)?;
        self.held.push(held);
        Ok(())
    }

    /// The process has mapped a file that was hooked before, perhaps for another one.
    pub fn also_for(&mut self, pid: u32, key: (u64, u64)) -> Result<()> {
        if !self.held.iter().any(|held| held.key == key) {
            return Ok(());
        }
        self.be_for(pid)?;
        let mut all = std::mem::take(&mut self.held);
        let mut wanted = all.iter_mut().filter(|held| held.key == key && !held.attached);
        let done = wanted.try_for_each(|held| self.attach_held(held));
        self.held = all;
        done
    }

    /// The process that needs not stop for this file again, while others do; 0: nobody does.
    pub fn only(&self, key: (u64, u64)) -> u32 {
        match &self.whose {
            Whose::Of(owner) if self.held.iter().any(|held| held.key == key) => owner.pid,
            _ => 0,
        }
    }

    /// One process is not enough any more: everybody's calls are seen from here on.
    pub fn widen(&mut self) -> Result<()> {
        let links = match &mut self.whose {
            Whose::Everybodys | Whose::EverybodysSince(_) => return Ok(()),
            Whose::Nobodys => Vec::new(),
            Whose::Of(owner) => std::mem::take(&mut owner.links),
        };
        self.links.extend(links);
        let more = self.base.load_cuda(self.rung, self.may_sleep, wire::EVERYBODY_SINCE, Some(&self.cuda))?;
        self.whose = Whose::EverybodysSince(more);
        let mut all = std::mem::take(&mut self.held);
        let done = all.iter_mut().try_for_each(|held| self.attach_held(held));
        self.held = all;
        self.tell()?;
        done
    }

    /// Somebody is there who lets go whom --lossless pauses.
    pub fn allow_pauses(&mut self) -> Result<()> {
        self.state.may_pause = 1;
        self.tell()
    }

    /// From here on also what lies beneath the calls is recorded, or no more. Nobody is paused but
    /// while a recording goes on.
    pub fn set_phase(&mut self, phase: u32) -> Result<()> {
        let may_pause = (phase == wire::RECORDING).into();
        self.state = wire::State { phase, kernel: 1, may_pause, ..self.state };
        self.tell()
    }

    pub fn links(&self) -> usize {
        let owned = match &self.whose {
            Whose::Of(owner) => owner.links.len(),
            _ => 0,
        };
        self.links.len() + owned
    }

    /// Every link, to be removed.
    pub fn take_links(&mut self) -> Vec<Link> {
        let mut links = std::mem::take(&mut self.links);
        if let Whose::Of(owner) = &mut self.whose {
            links.append(&mut owner.links);
        }
        links
    }

    /// For a person: whose calls pay for the hooks.
    pub fn sentence(&self) -> String {
        match &self.whose {
            Whose::Of(owner) => format!("the hooks are in process {} alone", owner.pid),
            Whose::Nobodys => "no process needed hooks".to_owned(),
            Whose::Everybodys | Whose::EverybodysSince(_) => {
                "the hooks are in every process that uses the same libraries".to_owned()
            }
        }
    }

    /// After this the hooks see the process, or everybody.
    fn be_for(&mut self, pid: u32) -> Result<()> {
        match &mut self.whose {
            Whose::Everybodys | Whose::EverybodysSince(_) => return Ok(()),
            Whose::Of(owner) if owner.pid == pid && !owner.ended() => return Ok(()),
            Whose::Of(owner) if !owner.ended() => return self.widen(),
            Whose::Of(owner) => attach::detach_aside(std::mem::take(&mut owner.links)),
            Whose::Nobodys => {}
        }
        self.held.iter_mut().for_each(|held| held.attached = false);
        let pidfd = match proc::pidfd_open(pid) {
            // The kernel would know the process by its first thread, which is gone.
            Ok(pidfd) if proc::stat(pid).is_ok_and(|stat| !stat.ended()) => pidfd,
            _ => return self.widen(),
        };
        self.whose = Whose::Of(Owner { pid, pidfd, links: Vec::new() });
        self.tell()
    }

    fn attach_held(&mut self, held: &mut Held) -> Result<()> {
        match &mut self.whose {
            Whose::Of(owner) => {
                let links =
                    attach::attach(&self.cuda, self.rung, &held.file, &held.places, owner.pid as i32)?;
                owner.links.extend(links);
            }
            Whose::EverybodysSince(more) => {
                self.links.extend(attach::attach(more, self.rung, &held.file, &held.places, ANYONE)?);
            }
            Whose::Everybodys | Whose::Nobodys => {}
        }
        held.attached = true;
        Ok(())
    }

    /// The programs what they must know.
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
