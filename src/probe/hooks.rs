//! The hooks of each file, attached in bulk. In: a file with its probe places. Out: links. The hooks are in every
//! process that maps the file; BPF decides which process is traced.
//! Not here: which functions are hooked; hooks that --budget removes one by one (levers).

use std::collections::HashMap;
use std::fs::File;

use anyhow::{Context, Result};
use libbpf_rs::Object;

use super::attach::{self, Place, Refused};
use super::objects::Base;
use super::shield::Hook;
use crate::files::FileId;
use crate::host::Backend;
use crate::process::fds;

#[derive(Default)]
pub struct Hooks(HashMap<FileId, HookedFile>);

struct HookedFile {
    file: File,
    functions: usize,
    links: Vec<Hook>,
}

impl Hooks {
    /// Hooks a file. Returns the places that Linux refused, if it accepted any.
    pub fn attach(
        &mut self,
        base: &Base,
        cuda: &Object,
        backend: Backend,
        key: FileId,
        file: &File,
        places: &[Place],
    ) -> Result<Vec<Refused>> {
        let file = file.try_clone().with_context(fds::too_few)?;
        let (links, refused) = attach::attach_most(base, cuda, backend, &file, places)?.links();
        let functions = places.len() - refused.len();
        self.0.insert(key, HookedFile { file, functions, links });
        Ok(refused)
    }

    pub fn files(&self) -> Vec<(FileId, &File)> {
        self.0.iter().map(|(key, hooked)| (*key, &hooked.file)).collect()
    }

    pub fn functions(&self) -> usize {
        self.0.values().map(|hooked| hooked.functions).sum()
    }

    pub fn links(&self) -> usize {
        self.0.values().map(|hooked| hooked.links.len()).sum()
    }

    /// Forgets a file. Returns its links, which the caller removes.
    pub fn forget(&mut self, key: FileId) -> Vec<Hook> {
        self.0.remove(&key).map_or_else(Vec::new, |hooked| hooked.links)
    }

    /// Takes every link; the caller removes them.
    pub fn take_links(&mut self) -> Vec<Hook> {
        self.0.values_mut().flat_map(|hooked| std::mem::take(&mut hooked.links)).collect()
    }
}
