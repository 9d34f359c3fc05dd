//! The reading itself, in a worker process: everything here can block for as long as another program chooses. In: a
//! request. Out: an answer; each file's symbols are read only once.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::mount::{self, Server};
use super::{Answer, Ask, Early, Found, Place, Stamp, Unopened, Wants};
use crate::files::FileId;
use crate::files::select::Selection;
use crate::host::early;
use crate::process::maps::{self, Found as Mapped, Mapping};
use crate::process::proc;
use crate::stacks::native::{self, Native};
use crate::stacks::python;
use gpurec_elf::{self as elf, Kind};
use gpurec_trace::HookError;
use gpurec_trace::bounds::BytesLeft;

/// Limit for all files together: a program could map one large file after another.
const MOST_SYMBOLS: usize = 72 << 20;
/// Bytes of each symbol without its name.
const EACH: usize = 48;
/// A process's mappings are read again once PART times as much time has passed as the last reading took.
const PART: u32 = 20;
/// The number of processes whose mappings are cached, and the bytes of all of them.
const MOST_PROCESSES: usize = 64;
const MOST_MAPPINGS: usize = 32 << 20;

type Say<'a> = &'a mut dyn FnMut(&Answer, Option<RawFd>) -> io::Result<()>;

pub struct Looker<'a> {
    selection: &'a Selection,
    /// Files that this worker has reported to the recorder.
    reported: HashSet<FileId>,
    symbols: HashMap<FileId, Vec<elf::Symbol>>,
    room: BytesLeft<MOST_SYMBOLS>,
    mappings: HashMap<u32, Mappings>,
    native: Native,
}

/// The mappings of one process.
struct Mappings {
    list: Vec<Mapping>,
    read: Instant,
    took: Duration,
}

impl<'a> Looker<'a> {
    pub fn new(selection: &'a Selection) -> Looker<'a> {
        Looker {
            selection,
            reported: HashSet::new(),
            symbols: HashMap::new(),
            room: BytesLeft::default(),
            mappings: HashMap::new(),
            native: Native::default(),
        }
    }

    pub fn answer(&mut self, ask: Ask, say: Say) -> io::Result<()> {
        let found = match ask {
            Ask::File { tid, place, again } => self.file(tid, &place, again, say)?,
            Ask::Maps { pid } => Found::Maps(maps::executable_files(pid).map_err(|error| error.to_string())),
            Ask::Early { of } => Found::Early(self.early(of)),
            Ask::Symbol { pid, address } => Found::Symbol(self.symbol(pid, address)),
            Ask::Mapped { all } => {
                Found::Opened(all.iter().map(|(pid, mapped)| self.native.open(*pid, mapped)).collect())
            }
            Ask::Code { pid } => Found::Code(native::code(pid)),
            Ask::Prepare { pid } => {
                self.native.prepare(pid);
                Found::Prepared
            }
            Ask::Unwind { pid, stack, mapped } => Found::Unwound(self.native.unwind(pid, &stack, &mapped)),
            Ask::Frames { pid, addresses, mapped } => {
                Found::Frames(self.native.frames(pid, &addresses, &mapped))
            }
            Ask::Job { pid } => Found::Job(proc::job_of(pid)),
            Ask::Process { pid } => Found::Process(proc::about(pid).ok().map(Box::new)),
        };
        let handle = match &found {
            Found::Wants(wants) => wants.handle.as_ref().map(AsRawFd::as_raw_fd),
            _ => None,
        };
        // `found` keeps the descriptor open.
        say(&Answer::Found(found), handle)
    }

    /// Leaves out names that are not valid text: those libraries are found when they are mapped.
    fn early(&self, of: Early) -> Vec<String> {
        let paths = match of {
            Early::Linker => early::of_linker(&self.selection.lib_paths()),
            Early::Process(pid) => match maps::executable_files(pid) {
                Ok(mapped) if early::is_interpreter(&mapped) => early::of_interpreter(pid, &mapped),
                _ => Vec::new(),
            },
        };
        paths.into_iter().filter_map(|path| path.into_os_string().into_string().ok()).collect()
    }

    fn file(&mut self, tid: u32, place: &Place, again: bool, say: Say) -> io::Result<Found> {
        let (mapped, path) = match find(tid, place, say) {
            Ok(found) => found,
            // Anonymous memory that became executable.
            Err(error) if place.is_any_file() && error.kind() == io::ErrorKind::NotFound => {
                return Ok(Found::Nothing);
            }
            Err(error) => {
                let unmapped = matches!(place, Place::Listed(mapping) if is_gone(tid, mapping));
                return Ok(Found::NotOpened(Unopened::new(&error, unmapped)));
            }
        };
        let key = key(&mapped);
        if !again && self.reported.contains(&key) {
            return Ok(Found::Known(key));
        }
        let found = match mapped.open() {
            Ok(file) => self.examine(tid, mapped, &file, path),
            Err(error) => Found::NotOpened(Unopened::new(&error, false)),
        };
        if matches!(found, Found::Wants(_)) {
            self.reported.insert(key);
        }
        Ok(found)
    }

    fn examine(&self, tid: u32, mapped: Mapped, file: &File, path: PathBuf) -> Found {
        let stamp = file.metadata().ok().filter(Metadata::is_file).map(|meta| Stamp::of(&meta));
        let mut image = match self.selection.examine(file, &path) {
            Ok(Some(image)) => image,
            Ok(None) if self.selection.stacks => return self.interpreter(file),
            Ok(None) => return Found::Nothing,
            Err(why) => return Found::NotHooked { path, reason: why.into() },
        };
        // Linux will read the pages of the hooks, and finds them in memory: the search for probe sites has read them.
        let stamp = match mount::server_of(&mapped.handle, tid) {
            Server::None => stamp,
            Server::Roots => None,
            Server::Users if image.kind == Kind::Allocator => {
                image = image.without_hooks(&HookError::UserFileSystem);
                None
            }
            Server::Users => return Found::NotHooked { path, reason: HookError::UserFileSystem.into() },
        };
        let key = key(&mapped);
        Found::Wants(Box::new(Wants { key, path, image, handle: Some(mapped.handle), stamp }))
    }

    fn interpreter(&self, file: &File) -> Found {
        match python::interpreter(file) {
            Ok(Some(interpreter)) => Found::Python(Box::new(interpreter)),
            Ok(None) => Found::Nothing,
            Err(why) => Found::NoPython(why),
        }
    }

    fn symbol(&mut self, pid: u32, address: u64) -> Option<String> {
        let mapping = self.mapping(pid, address)?;
        let offset = address - mapping.start + mapping.offset;
        // Opened through the mapping, as it is now.
        let found = maps::find_mapped(pid, &mapping).ok()?;
        let symbols = self.symbols_of(&found)?;
        let at = symbols.binary_search_by_key(&offset, |symbol| symbol.offset).ok()?;
        symbols.get(at).map(|symbol| symbol.name.clone())
    }

    /// A process may have tens of thousands of mappings, and as many addresses may be in none of them.
    fn mapping(&mut self, pid: u32, address: u64) -> Option<Mapping> {
        if let Some(known) = self.mappings.get(&pid) {
            let found = known.find(address);
            if found.is_some() || known.read.elapsed() < known.took * PART {
                return found;
            }
        }
        let read = Instant::now();
        let list = maps::executable_mappings(pid).unwrap_or_default();
        let mappings = Mappings { list, read, took: read.elapsed() };
        let held = self.mappings.values().map(|known| maps::held(&known.list)).sum::<usize>();
        if self.mappings.len() >= MOST_PROCESSES || held > MOST_MAPPINGS {
            self.mappings.clear();
        }
        let found = mappings.find(address);
        self.mappings.insert(pid, mappings);
        found
    }

    fn symbols_of(&mut self, found: &Mapped) -> Option<&Vec<elf::Symbol>> {
        let key = key(found);
        if !self.symbols.contains_key(&key) {
            let symbols = elf::function_symbols(&found.open().ok()?);
            let bytes = EACH + symbols.iter().map(|symbol| EACH + symbol.name.len()).sum::<usize>();
            let symbols = if self.room.take(bytes) { symbols } else { Vec::new() };
            self.symbols.insert(key, symbols);
        }
        self.symbols.get(&key)
    }
}

impl Mappings {
    /// Mappings are in address order, as Linux lists them.
    fn find(&self, address: u64) -> Option<Mapping> {
        let after = self.list.partition_point(|mapping| mapping.start <= address);
        self.list.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end).cloned()
    }
}

fn key(mapped: &Mapped) -> FileId {
    (mapped.meta.dev(), mapped.meta.ino())
}

fn is_gone(pid: u32, mapping: &Mapping) -> bool {
    let now = maps::executable_mapping_at(pid, mapping.start);
    !now.is_ok_and(|now| now.is_some_and(|m| m.start == mapping.start && m.inode == mapping.inode))
}

/// The process opened the file, so it is found through the process and no path is followed. Uses the thread that opened
/// it, because the first thread may have ended.
fn find(tid: u32, place: &Place, say: Say) -> io::Result<(Mapped, PathBuf)> {
    match place {
        Place::Program => {
            let path = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
            announce(&path, say)?;
            Ok((maps::find_exe(tid)?, path))
        }
        Place::Listed(mapping) => find_listed(tid, mapping, say),
        Place::Path(path) => {
            // The path as the process sees it.
            let shown = path.strip_prefix(&format!("/proc/{tid}/root")).unwrap_or(path);
            announce(Path::new(shown), say)?;
            Ok((maps::find_named(tid, Path::new(path))?, shown.into()))
        }
        Place::Mapped { address, inode, fd } => {
            // The mapping decides; the descriptor may have been closed since.
            let mapped = mapping_at(tid, *address, *inode).and_then(|m| find_listed(tid, &m, say));
            mapped.or_else(|error| {
                let path = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).unwrap_or_default();
                let found = maps::find_fd(tid, *fd);
                // Read after the file was found, because by now the descriptor may refer to another file.
                let is_other = maps::inode_of_fd(tid, *fd).is_some_and(|now| now != *inode);
                match found {
                    Ok(found) if !is_other => Ok((found, path)),
                    Err(why) if !is_other && why.kind() != io::ErrorKind::NotFound => Err(why),
                    _ => Err(error),
                }
            })
        }
    }
}

fn find_listed(tid: u32, mapping: &Mapping, say: Say) -> io::Result<(Mapped, PathBuf)> {
    // A file system without a device may have a server.
    if mapping.dev.0 == 0 {
        announce(&mapping.path, say)?;
    }
    Ok((maps::find_mapped(tid, mapping)?, mapping.path.clone()))
}

/// Sends the path first, so that the recorder can name the file if no answer follows.
fn announce(path: &Path, say: Say) -> io::Result<()> {
    say(&Answer::Opening(path.to_owned()), None)
}

fn mapping_at(pid: u32, address: u64, inode: u64) -> io::Result<Mapping> {
    maps::executable_mapping_at(pid, address)?
        .filter(|m| m.inode == inode || inode == 0)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}
