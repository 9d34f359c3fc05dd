//! Files that somebody writes to while they have hooks. The hooks are at places of what a file was: in what it has become
//! they may be in the midst of an instruction, and whoever maps it next would run into that. (A library is replaced by
//! another file, as package managers do it; but `cp` writes into the one that is there.)
//!
//! In: files, with what they were before they were read. Out: which of them were written to since. Where the kernel allows no more watches a
//! file is not watched. Not seen: who writes by a shared mapping, or on another computer.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::files::FileId;
use crate::files::Stamp;

pub struct Rewritten {
    inotify: Option<Inotify>,
    watched: HashMap<WatchDescriptor, FileId>,
    /// Those that were written to, not told yet.
    found: Vec<FileId>,
}

impl Rewritten {
    pub fn new() -> Rewritten {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        Rewritten { inotify, watched: HashMap::new(), found: Vec::new() }
    }

    /// Readable when a file was written to.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// A file that was read already; `stamp` is from before that.
    pub fn watch(&mut self, key: FileId, file: &File, stamp: Stamp) {
        let Some(inotify) = &self.inotify else { return };
        // The file itself, whatever its path has become.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        if let Ok(watch) = inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY) {
            self.watched.insert(watch, key);
        }
        if file.metadata().is_ok_and(|now| Stamp::of(&now) != stamp) {
            self.found.push(key);
        }
    }

    pub fn forget(&mut self, key: FileId) {
        for (watch, _) in self.watched.extract_if(|_, watched| *watched == key) {
            if let Some(inotify) = &self.inotify {
                // It is gone with its file, too.
                let _ = inotify.rm_watch(watch);
            }
        }
        self.found.retain(|found| *found != key);
    }

    /// Was this one written to?
    pub fn is(&mut self, key: FileId) -> bool {
        self.look();
        self.found.contains(&key)
    }

    /// All that were written to. They are to be forgotten.
    pub fn all(&mut self) -> Vec<FileId> {
        self.look();
        self.found.clone()
    }

    fn look(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        while let Ok(events) = inotify.read_events() {
            for event in events {
                // What was forgotten may still be told.
                if let Some(key) = self.watched.get(&event.wd).filter(|key| !self.found.contains(key)) {
                    self.found.push(*key);
                }
            }
        }
    }
}
