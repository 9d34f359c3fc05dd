//! The hooks of each file. In: a file with its probe places. Out: links, attached in bulk or, with --budget, for each
//! function, so that it can be unhooked alone. The hooks are in every process that maps the file; BPF decides which
//! process is traced.
//! Not here: which functions are hooked.

use std::collections::{HashMap, HashSet};
use std::fs::File;

use anyhow::{Context, Result};

use super::attach::{self, Place, Programs, RefusedPlace};
use super::objects::Base;
use super::shield::Hook;
use crate::files::FileId;
use crate::process::fds;

#[derive(Default)]
pub struct Hooks {
    files: HashMap<FileId, HookedFile>,
    /// Set if each function has links of its own; these probes have none now, in any file.
    unhooked: Option<HashSet<u32>>,
}

struct HookedFile {
    file: File,
    parts: Vec<Part>,
}

/// Places that were attached together.
struct Part {
    places: Vec<Place>,
    /// Static probes of PyTorch's allocator, not functions.
    is_of_blocks: bool,
    /// Empty while its function is unhooked.
    links: Vec<Hook>,
}

impl Hooks {
    pub fn of_each_function() -> Hooks {
        Hooks { unhooked: Some(HashSet::new()), ..Hooks::default() }
    }

    /// Hooks places of a file, which may have hooks at others. Returns the places that Linux refused, if it accepted
    /// any.
    pub fn attach(
        &mut self,
        base: &Base,
        programs: &Programs,
        key: FileId,
        file: &File,
        places: &[Place],
    ) -> Result<Vec<RefusedPlace>> {
        let file = file.try_clone().with_context(fds::too_few)?;
        let unhooked = self.unhooked.as_ref();
        let each = unhooked.is_some() || programs.is_single();
        let parts = attach::attach_parts(places.len(), each, &mut |part| {
            // One by one they may take a minute.
            base.still_here();
            match unhooked.is_some_and(|all| all.contains(&places[part.start].probe())) {
                true => Ok(Vec::new()),
                false => attach::attach(programs, &file, &places[part]),
            }
        })?;
        let is_of_blocks = programs.are_of_blocks();
        let taken = parts.taken.into_iter();
        let taken = taken.map(|(part, links)| Part { places: places[part].to_vec(), is_of_blocks, links });
        self.files.entry(key).or_insert_with(|| HookedFile { file, parts: Vec::new() }).parts.extend(taken);
        Ok(parts.refused)
    }

    pub fn files(&self) -> impl Iterator<Item = (FileId, &File)> {
        self.files.iter().map(|(key, hooked)| (*key, &hooked.file))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.files.values().flat_map(|hooked| &hooked.parts)
    }

    /// Number of hooked functions.
    pub fn functions(&self) -> usize {
        self.parts().filter(|part| !part.links.is_empty()).map(|part| part.places.len()).sum()
    }

    pub fn links(&self) -> usize {
        self.parts().map(|part| part.links.len()).sum()
    }

    /// Forgets a file. Returns its links, which the caller removes.
    pub fn forget(&mut self, key: FileId) -> Vec<Hook> {
        self.files.remove(&key).into_iter().flat_map(|file| file.parts).flat_map(|part| part.links).collect()
    }

    /// Takes every link; the caller removes them.
    pub fn take_links(&mut self) -> Vec<Hook> {
        self.files.drain().flat_map(|(_, file)| file.parts).flat_map(|part| part.links).collect()
    }

    /// Takes the links of some functions, which are not hooked in new files either until `hook_again`.
    pub fn unhook(&mut self, probes: &[u32]) -> Vec<Hook> {
        self.unhooked.iter_mut().for_each(|unhooked| unhooked.extend(probes));
        let all = self.files.values_mut().flat_map(|hooked| &mut hooked.parts);
        let parts = all.filter(|part| part.places.iter().any(|place| probes.contains(&place.probe())));
        parts.flat_map(|part| std::mem::take(&mut part.links)).collect()
    }

    pub fn hook_again(&mut self, calls: &Programs, blocks: Option<&Programs>, probe: u32) -> Result<()> {
        for HookedFile { file, parts } in self.files.values_mut() {
            let own =
                |part: &&mut Part| part.links.is_empty() && part.places.iter().any(|p| p.probe() == probe);
            for part in parts.iter_mut().filter(own) {
                let programs = if part.is_of_blocks { blocks } else { Some(calls) };
                let programs = programs.context("the program of blocks is not loaded")?;
                part.links = attach::attach(programs, file, &part.places)?;
            }
        }
        self.unhooked.iter_mut().for_each(|unhooked| _ = unhooked.remove(&probe));
        Ok(())
    }
}
