//! Files that processes execute, and what was learnt of them. In: an open file. Out: rows and frames of its addresses,
//! each worked out once. The files that were used least recently are forgotten first.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::lines::Lines;
use super::rows::{self, Entries, Row};
use super::symbols::Symbols;
use super::{Frame, demangle};
use gpurec_elf::Object;

/// The memory that all files take together. A worker has 512 MiB.
const MOST_HELD: usize = 224 << 20;
const MOST_MODULES: usize = 1024;
/// The memory that the rows and frames of one file take.
const MOST_LEARNT: usize = 32 << 20;
/// What a file, a row or a frame takes besides its text.
const EACH: usize = 256;

/// A file as it is now: it becomes another when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u64; 3], [i64; 2]);

impl Key {
    pub fn of(meta: &Metadata) -> Key {
        Key([meta.dev(), meta.ino(), meta.size()], [meta.ctime(), meta.ctime_nsec()])
    }
}

#[derive(Default)]
pub struct Modules {
    known: HashMap<Key, Module>,
    held: usize,
    /// Questions so far.
    now: u64,
}

impl Modules {
    /// Asks the file's module, which is read if it is new.
    pub fn ask<T>(&mut self, key: Key, file: &File, question: impl FnOnce(&mut Module) -> T) -> T {
        self.now += 1;
        let module = self.known.entry(key).or_insert_with(|| Module::read(file));
        let answer = question(module);
        module.used = self.now;
        self.held = self.held.saturating_sub(module.counted) + module.held();
        module.counted = module.held();
        self.make_room(key);
        answer
    }

    fn make_room(&mut self, keep: Key) {
        while self.held > MOST_HELD || self.known.len() > MOST_MODULES {
            let others = self.known.iter().filter(|(key, _)| **key != keep);
            let Some(oldest) = others.min_by_key(|(_, module)| module.used).map(|(key, _)| *key) else {
                return;
            };
            let counted = self.known.remove(&oldest).map_or(0, |module| module.counted);
            self.held = self.held.saturating_sub(counted);
        }
    }
}

pub struct Module {
    /// None: it is no file that can be read.
    object: Option<Object>,
    rows: HashMap<u64, Option<Arc<Row>>>,
    frames: HashMap<u64, Arc<[Frame]>>,
    entries: Option<Entries>,
    symbols: Option<Symbols>,
    lines: Option<Option<Lines>>,
    /// The memory of rows and frames.
    learnt: usize,
    /// All of its memory, as it was last counted.
    counted: usize,
    used: u64,
}

impl Module {
    pub fn read(file: &File) -> Module {
        Module {
            object: Object::read(file).ok(),
            rows: HashMap::new(),
            frames: HashMap::new(),
            entries: None,
            symbols: None,
            lines: None,
            learnt: 0,
            counted: 0,
            used: 0,
        }
    }

    /// The address of a byte of the file, as the file counts addresses.
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.object.as_ref()?.address_of(offset)
    }

    /// How to find the caller of code at an address. None: the file does not say.
    pub fn row(&mut self, file: &File, address: u64) -> Option<Arc<Row>> {
        if let Some(known) = self.rows.get(&address) {
            return known.clone();
        }
        let object = self.object.as_ref()?;
        let entries = self.entries.get_or_insert_with(|| match object.unwind_index {
            Some(_) => Entries::new(),
            None => rows::entries(object, file),
        });
        let row = rows::find(object, file, entries, address).map(Arc::new);
        self.learn(row.as_ref().map_or(0, |row| row.held()));
        self.rows.insert(address, row.clone());
        row
    }

    /// The functions at an address, innermost first, at least one; without the module's path and the offset.
    pub fn frames(&mut self, file: &File, address: u64) -> Arc<[Frame]> {
        if let Some(known) = self.frames.get(&address) {
            return known.clone();
        }
        let frames: Arc<[Frame]> = self.named(file, address).into();
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = frames.iter().map(|frame| EACH + text(&frame.function) + text(&frame.file));
        self.learn(bytes.sum());
        self.frames.insert(address, frames.clone());
        frames
    }

    /// Reads what takes long, before it is wanted.
    pub fn prepare(&mut self, file: &File) {
        if let Some(object) = &self.object {
            self.symbols.get_or_insert_with(|| Symbols::read(object, file));
        }
    }

    fn named(&mut self, file: &File, address: u64) -> Vec<Frame> {
        let Some(object) = &self.object else { return vec![Frame::default()] };
        let lines = self.lines.get_or_insert_with(|| Lines::read(object, file));
        let mut frames = lines.as_ref().map_or(Vec::new(), |lines| lines.frames(address));
        if frames.is_empty() {
            frames.push(Frame::default());
        }
        if let Some(called) = frames.last_mut().filter(|frame| frame.function.is_none()) {
            let symbols = self.symbols.get_or_insert_with(|| Symbols::read(object, file));
            called.function = symbols.name(file, address).map(|name| demangle::readable(&name));
        }
        for frame in &mut frames {
            frame.build_id.clone_from(&object.build_id);
        }
        frames
    }

    fn learn(&mut self, bytes: usize) {
        self.learnt += EACH + bytes;
        if self.learnt > MOST_LEARNT {
            (self.rows, self.frames) = (HashMap::new(), HashMap::new());
            self.learnt = EACH + bytes;
        }
    }

    fn held(&self) -> usize {
        let symbols = self.symbols.as_ref().map_or(0, Symbols::held);
        let lines = self.lines.iter().flatten().map(Lines::held).sum::<usize>();
        let entries = self.entries.as_ref().map_or(0, |all| all.len() * size_of::<(u64, u64)>());
        EACH + self.learnt + entries + symbols + lines
    }
}
