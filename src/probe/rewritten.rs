//! Modified files: files that are written to while they have hooks. The hooks are at places of the old contents: in the
//! new contents they may be in the middle of an instruction, and the next process that maps the file would execute
//! that. (Package managers replace a library by another file, but `cp` writes into the existing one.)
//!
//! In: files, with their state before they were read. Out: the files that were written to since. A file is not watched
//! if Linux allows no more watches. Not seen: writes through a shared mapping, or from another computer.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::files::FileId;
use crate::files::Stamp;

pub struct ModifiedFiles {
    inotify: Option<Inotify>,
    watched: HashMap<WatchDescriptor, FileId>,
    /// Files that were written to and not yet forgotten.
    found: Vec<FileId>,
}

impl ModifiedFiles {
    pub fn new() -> ModifiedFiles {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        ModifiedFiles { inotify, watched: HashMap::new(), found: Vec::new() }
    }

    /// Readable when a file was written to.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Watches a file that was already read; `stamp` is from before that.
    pub fn watch(&mut self, key: FileId, file: &File, stamp: Stamp) {
        let Some(inotify) = &self.inotify else { return };
        // The file itself, even if its path now names another file.
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
                // The watch is already gone if its file is.
                let _ = inotify.rm_watch(watch);
            }
        }
        self.found.retain(|found| *found != key);
    }

    /// Was this file written to?
    pub fn is(&mut self, key: FileId) -> bool {
        self.look();
        self.found.contains(&key)
    }

    /// All files that were written to. The caller forgets them.
    pub fn all(&mut self) -> Vec<FileId> {
        self.look();
        self.found.clone()
    }

    fn look(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        while let Ok(events) = inotify.read_events() {
            for event in events {
                // Events of forgotten files may still arrive.
                if let Some(key) = self.watched.get(&event.wd).filter(|key| !self.found.contains(key)) {
                    self.found.push(*key);
                }
            }
        }
    }
}
