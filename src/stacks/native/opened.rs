//! Files that recorded processes have mapped as code. In: a process and one of its mappings. Out: the file, also after
//! the process has ended, if any process was asked for it before.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::module::Key;
use crate::process::Pid;
use crate::process::maps::{self, Found, Mapping};
use crate::stacks::{Mapped, MappedFile};

/// The most files that are kept open.
const MOST: usize = 768;

pub struct OpenedFile {
    pub file: File,
    pub key: Key,
    pub path: PathBuf,
}

#[derive(Default)]
pub struct OpenedFiles {
    known: HashMap<MappedFile, Arc<OpenedFile>>,
}

impl OpenedFiles {
    pub fn open(&mut self, pid: Pid, mapped: &Mapped) -> Option<Arc<OpenedFile>> {
        if let Some(known) = self.known.get(&mapped.file) {
            return Some(known.clone());
        }
        let opened = Arc::new(at_once(pid, mapped).or_else(|| by_list(pid, mapped))?);
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(mapped.file, opened.clone());
        Some(opened)
    }
}

/// The list of mappings is long, and a process that starts has a new one again and again.
fn at_once(pid: Pid, mapped: &Mapped) -> Option<OpenedFile> {
    let (path, deleted) = maps::path_of_mapping(pid, mapped.start, mapped.end).ok()?;
    let Mapped { start, end, offset, file } = *mapped;
    let mapping = Mapping { start, end, offset, dev: file.device, inode: file.inode, path, deleted };
    opened(maps::find_still_mapped(pid, &mapping).ok()?, mapping.path)
}

/// Linux may have split the mapping, or joined it with another.
fn by_list(pid: Pid, mapped: &Mapped) -> Option<OpenedFile> {
    let mapping = maps::executable_mapping_at(pid, mapped.start).ok()??;
    if (mapping.inode, mapping.dev) != (mapped.file.inode, mapped.file.device) {
        return None;
    }
    opened(maps::find_mapped(pid, &mapping).ok()?, mapping.path)
}

fn opened(found: Found, path: PathBuf) -> Option<OpenedFile> {
    Some(OpenedFile { file: found.open().ok()?, key: Key::of(&found.meta), path })
}
