//! Which file an address of a process belongs to. In: a process and an address. Out: the row and the frames of the
//! address. The request says where code was when the stack was taken. For other addresses it reads the mappings as they
//! are now, and opens each file once, through its mapping: a list that is out of date leads to no file, and is read
//! again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::jit::Jit;
use super::module::{Key, Modules};
use super::opened::{OpenedFile, OpenedFiles};
use super::rows::Row;
use super::unwind::Lookup;
use super::{Cut, Frame, bounded};
use crate::process::Pid;
use crate::process::maps::{self, Executable, Mapping};
use crate::stacks::Mapped;

/// The processes that are remembered, and the bytes of their mappings.
const MOST_PROCESSES: usize = 64;
const MOST_MAPPINGS: usize = 32 << 20;
/// The mappings are read again for an unknown address, but no more than half of the time: a request waits at most this
/// long for it.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Processes {
    known: HashMap<Pid, Process>,
}

struct Process {
    memory: Arc<Executable>,
    /// When they were read, and how long that took.
    read: Instant,
    took: Duration,
    jit: Jit,
}

/// What one request sees of a process.
pub struct Memory<'p> {
    pid: Pid,
    process: &'p mut Process,
    given: &'p [Mapped],
    files: &'p mut OpenedFiles,
    /// By the start of the mapping. None: it cannot be opened.
    opened: HashMap<u64, Option<Opened>>,
    /// The mappings were read during this request.
    is_new: bool,
}

struct Opened {
    file: Arc<OpenedFile>,
    /// What of the file is where.
    start: u64,
    offset: u64,
}

enum Place {
    /// In a mapping that the request gives; its file, if that could be opened.
    Given(Option<Opened>),
    /// The start of the file's mapping.
    File(u64),
    /// Memory without a file.
    Other,
    Nowhere,
}

impl Processes {
    pub fn request<'p>(
        &'p mut self,
        pid: Pid,
        given: &'p [Mapped],
        files: &'p mut OpenedFiles,
    ) -> Memory<'p> {
        let held = self.known.values().map(|process| process.memory.held()).sum::<usize>();
        if !self.known.contains_key(&pid) && self.known.len() >= MOST_PROCESSES || held > MOST_MAPPINGS {
            self.known.clear();
        }
        let is_new = !self.known.contains_key(&pid);
        let process = self.known.entry(pid).or_insert_with(|| Process::read(pid));
        Memory { pid, process, given, files, opened: HashMap::new(), is_new }
    }
}

impl Process {
    fn read(pid: Pid) -> Process {
        let before = Instant::now();
        let memory = Arc::new(maps::executable_memory(pid).unwrap_or_default());
        let read = Instant::now();
        Process { memory, read, took: read - before, jit: Jit::default() }
    }
}

impl Memory<'_> {
    pub fn row(&mut self, modules: &mut Modules, address: u64) -> Lookup {
        let row = |opened: Option<&Opened>, modules: &mut Modules| {
            opened.map_or(Lookup::Ends(Cut::NotOpened), |opened| opened.row(modules, address))
        };
        match self.place(address) {
            Place::Nowhere => Lookup::NotCode,
            Place::Given(opened) => row(opened.as_ref(), modules),
            Place::File(start) => row(self.opened.get(&start).and_then(Option::as_ref), modules),
            Place::Other => match self.process.jit.name(self.pid, address) {
                // Virtual machines keep the frame pointer. Python's trampolines do not.
                Some(name) if !name.starts_with("py::") => Lookup::Row(Arc::new(Row::of_frame_pointer())),
                _ => Lookup::Ends(Cut::NoTable),
            },
        }
    }

    /// The functions at an address, innermost first, at least one. `exact`: it is not the address behind a call.
    pub fn frames(&mut self, modules: &mut Modules, address: u64, exact: bool) -> Vec<Frame> {
        let look_up = if exact { address } else { address.wrapping_sub(1) };
        let unnamed = Frame { offset: address, ..Frame::default() };
        match self.place(look_up) {
            Place::Given(Some(opened)) => opened.frames(modules, look_up, address.wrapping_sub(look_up)),
            Place::File(start) => match self.opened.get(&start) {
                Some(Some(opened)) => opened.frames(modules, look_up, address.wrapping_sub(look_up)),
                _ => {
                    let mapping = self.process.memory.files.iter().find(|mapping| mapping.start == start);
                    vec![Frame { module: mapping.map(|mapping| shown(&mapping.path)), ..unnamed }]
                }
            },
            Place::Other => {
                let name = self.process.jit.name(self.pid, look_up);
                vec![Frame { function: name.map(str::to_owned), ..unnamed }]
            }
            Place::Given(None) | Place::Nowhere => vec![unnamed],
        }
    }

    fn place(&mut self, address: u64) -> Place {
        if let Some(given) = self.given.iter().find(|given| given.contains(address)) {
            let file = self.files.open(self.pid, given);
            return Place::Given(file.map(|file| Opened { file, start: given.start, offset: given.offset }));
        }
        let place = self.listed(address);
        let is_old = match &place {
            Place::File(start) => matches!(self.opened.get(start), Some(None)),
            Place::Given(_) | Place::Other => false,
            Place::Nowhere => true,
        };
        if !is_old || self.is_new {
            return place;
        }
        self.is_new = true;
        let wait = self.process.took.saturating_sub(self.process.read.elapsed());
        std::thread::sleep(wait.min(LONGEST_WAIT));
        let jit = std::mem::take(&mut self.process.jit);
        *self.process = Process { jit, ..Process::read(self.pid) };
        self.opened.clear();
        self.listed(address)
    }

    fn listed(&mut self, address: u64) -> Place {
        let memory = self.process.memory.clone();
        if let Some(mapping) = memory.file_at(address) {
            let open = || Opened::new(self.pid, mapping);
            self.opened.entry(mapping.start).or_insert_with(open);
            return Place::File(mapping.start);
        }
        if memory.is_other(address) { Place::Other } else { Place::Nowhere }
    }
}

impl Opened {
    fn new(pid: Pid, mapping: &Mapping) -> Option<Opened> {
        let found = maps::find_still_mapped(pid, mapping).ok()?;
        let (file, key) = (found.open().ok()?, Key::of(&found.meta));
        let file = Arc::new(OpenedFile { file, key, path: mapping.path.clone() });
        Some(Opened { file, start: mapping.start, offset: mapping.offset })
    }

    fn offset(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.start)?.checked_add(self.offset)
    }

    fn row(&self, modules: &mut Modules, address: u64) -> Lookup {
        let offset = self.offset(address);
        let file = &self.file.file;
        let row = modules.ask(self.file.key, file, |module| module.row(file, module.address(offset?)?));
        row.map_or(Lookup::Ends(Cut::NoTable), Lookup::Row)
    }

    /// `behind`: how far the address that is shown is behind the one that is looked up.
    fn frames(&self, modules: &mut Modules, look_up: u64, behind: u64) -> Vec<Frame> {
        let offset = self.offset(look_up);
        let known = modules.ask(self.file.key, &self.file.file, |module| {
            let at = module.address(offset?)?;
            Some((at, module.frames(&self.file.file, at)))
        });
        // Of a file that cannot be read, the place in the file.
        let at = known.as_ref().map(|(at, _)| *at);
        let mut frames = known.map_or_else(|| vec![Frame::default()], |(_, frames)| frames.to_vec());
        let path = shown(&self.file.path);
        for frame in &mut frames {
            frame.offset = at.or(offset).unwrap_or(look_up).wrapping_add(behind);
            frame.module = Some(path.clone());
        }
        frames
    }
}

fn shown(path: &Path) -> String {
    bounded(path.to_string_lossy().into_owned())
}
