//! Files that recorded processes have mapped as code. In: a process and one of its mappings. Out: the file, also after
//! the process has ended, if any process was asked for it before.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::module::Key;
use crate::process::Pid;
use crate::process::maps;
use crate::stacks::{Mapped, MappedFile};

/// The most files that are kept open.
const MOST: usize = 256;

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
        let mapping = maps::executable_mapping_at(pid, mapped.start).ok()??;
        if (mapping.inode, mapping.dev) != (mapped.file.inode, mapped.file.device) {
            return None;
        }
        let found = maps::find_mapped(pid, &mapping).ok()?;
        let (file, key) = (found.open().ok()?, Key::of(&found.meta));
        let opened = Arc::new(OpenedFile { file, key, path: mapping.path });
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(mapped.file, opened.clone());
        Some(opened)
    }
}
