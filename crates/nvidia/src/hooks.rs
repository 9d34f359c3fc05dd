//! The driver functions that gpurec knows by name: their purpose, which driver versions have them, what to read of a
//! call, and the values read by name and type.
//!
//! In: hooks.txt (which describes its format), registers and pieces of kernel memory. Out:
//! rows and named arguments. Not here: which functions the running driver has; probe::kernel finds that out.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;

use super::fields::{gpu_uuid, signed};
use super::names::{Names, class_value, engine_value};
use super::version::Version;
use gpurec_trace::bytes::little_endian;
use gpurec_trace::{Arg, List, Value, word};

#[cfg(test)]
#[path = "tests/hooks.rs"]
mod tests;

const TABLE: &str = include_str!("hooks.txt");

/// The most bytes of one piece of memory.
pub const MAX_PIECE: u16 = 128;
/// The most pieces at entry, and at exit.
pub const MAX_PIECES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Ioctl,
    Gsp,
    Memory,
    Context,
    Scheduler,
    #[serde(alias = "irq")]
    Interrupt,
    Uvm,
}

impl Group {
    pub const ALL: [Group; 7] = [
        Group::Ioctl,
        Group::Gsp,
        Group::Memory,
        Group::Context,
        Group::Scheduler,
        Group::Interrupt,
        Group::Uvm,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Group::Ioctl => "ioctl",
            Group::Gsp => "gsp",
            Group::Memory => "memory",
            Group::Context => "context",
            Group::Scheduler => "scheduler",
            Group::Interrupt => "interrupt",
            Group::Uvm => "uvm",
        }
    }

    /// `irq` is short for `interrupt`.
    pub fn from_name(name: &str) -> Option<Group> {
        word(name)
    }
}

/// The type of the return value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Returns {
    /// NV_STATUS: zero is success.
    Status,
    /// A negative errno, or a non-negative number.
    Errno,
    Bool,
    Pointer,
    Void,
    Number,
}

/// How the recorder treats a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Function,
    /// The driver's entry point for ioctls, decoded as an ioctl.
    Ioctl,
    /// open, close, mmap or poll of an nvidia file.
    File,
    /// The driver reports an error.
    Xid,
}

/// The registers in which a file operation gets its arguments.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Operation {
    /// A `struct file *`.
    pub file: Option<u8>,
    /// A `struct inode *`.
    pub inode: Option<u8>,
    /// For an ioctl: the command word and the user's pointer.
    pub cmd: Option<u8>,
    pub user: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The memory that argument register 0 to 5 points to.
    Register(u8),
    /// The memory that the 8 bytes at `offset` of an earlier piece point to.
    Inside { piece: u8, offset: u16 },
}

/// A piece of kernel memory to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    pub source: Source,
    pub size: u16,
}

#[derive(Clone, Debug)]
pub struct Hook {
    pub name: &'static str,
    pub group: Group,
    /// Hooked by `--kernel` without a list.
    pub on: bool,
    pub module: &'static str,
    /// Written with type `scheduler`, otherwise `kernel`.
    pub scheduler: bool,
    /// May run in an interrupt, in an arbitrary thread: recorded as an instant.
    pub top_half: bool,
    /// Part of nv-kernel.o, which has no ftrace entries: only an ordinary kprobe can hook it.
    pub core: bool,
    /// The proprietary driver has renamed it.
    pub open_only: bool,
    pub returns: Returns,
    pub role: Role,
    pub operation: Operation,
    /// Its name in the trace.
    pub line: &'static str,
    /// The tracepoint, `category:event`, that can replace it.
    pub tracepoint: Option<&'static str>,
    pub meaning: &'static str,
    args: Capture,
    out: Capture,
    /// The names of numbers in the running driver.
    driver: Arc<Names>,
}

/// What to read, and the place of each field in it.
#[derive(Clone, Debug, Default)]
struct Capture {
    fields: Vec<Field>,
    reads: Vec<Read>,
}

#[derive(Clone, Debug)]
struct Field {
    name: &'static str,
    kind: Kind,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Register(u8),
    Piece { piece: u8, offset: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Unsigned(u8),
    Signed,
    Bool,
    Hex(u8),
    Uuid,
    Text,
    Status,
    Command,
    Class,
    Engine,
}

/// The rows of drivers of this version, with that version's arguments. For an unknown version: every row, with the
/// arguments of the newest version.
pub fn table(version: Option<&str>) -> Vec<Hook> {
    let version = version.and_then(Version::parse);
    let driver = Names::of(version.unwrap_or(Version::NEWEST));
    rows().filter_map(|row| hook(&row, version, &driver)).flatten().collect()
}

/// Why a function that other documents mention does not exist.
pub fn folklore(name: &str) -> Option<&'static str> {
    TABLE
        .lines()
        .filter_map(|line| line.strip_prefix("folklore ")?.split_once(' '))
        .find_map(|(known, text)| (known == name).then_some(text))
}

impl Hook {
    pub fn entry(&self) -> &[Read] {
        &self.args.reads
    }

    /// Read at return, through the registers saved at entry.
    pub fn exit(&self) -> &[Read] {
        &self.out.reads
    }

    pub fn has_args(&self) -> bool {
        !self.args.fields.is_empty()
    }

    /// The names of the values in `args`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.args.fields.iter().map(|field| field.name)
    }

    /// A value that could not be read is null, and `unreadable` lists its name.
    pub fn args(&self, registers: &[u64; 6], pieces: &[Option<&[u8]>]) -> Vec<Arg<'static>> {
        self.args.named(Some(registers), pieces, &self.driver)
    }

    pub fn out(&self, pieces: &[Option<&[u8]>]) -> Vec<Arg<'static>> {
        self.out.named(None, pieces, &self.driver)
    }
}

impl Capture {
    fn named(
        &self,
        registers: Option<&[u64; 6]>,
        pieces: &[Option<&[u8]>],
        names: &Names,
    ) -> Vec<Arg<'static>> {
        let mut unreadable = Vec::new();
        let mut args: Vec<Arg> = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let value = field.value(registers, pieces, names).unwrap_or_else(|| {
                unreadable.push(Value::Text(Cow::Borrowed(field.name)));
                Value::Null
            });
            args.push(Arg::new(field.name, value));
        }
        if !unreadable.is_empty() {
            args.push(Arg::new("unreadable", Value::Array(List::Owned(unreadable))));
        }
        args
    }
}

impl Field {
    fn value(
        &self,
        registers: Option<&[u64; 6]>,
        pieces: &[Option<&[u8]>],
        names: &Names,
    ) -> Option<Value<'static>> {
        match self.at {
            At::Register(n) => {
                let register = registers?.get(usize::from(n))?;
                self.kind.value(&register.to_le_bytes(), names)
            }
            At::Piece { piece, offset } => {
                let bytes = pieces.get(usize::from(piece)).copied().flatten()?;
                self.kind.value(bytes.get(usize::from(offset)..)?, names)
            }
        }
    }
}

impl Kind {
    fn parse(text: &str) -> Option<Kind> {
        Some(match text {
            "u8" => Kind::Unsigned(1),
            "u16" => Kind::Unsigned(2),
            "u32" => Kind::Unsigned(4),
            "u64" => Kind::Unsigned(8),
            "i32" => Kind::Signed,
            "h32" => Kind::Hex(4),
            "h64" => Kind::Hex(8),
            _ => word(text)?,
        })
    }

    fn size(self) -> u16 {
        match self {
            Kind::Unsigned(size) | Kind::Hex(size) => size.into(),
            Kind::Bool => 1,
            Kind::Signed | Kind::Status | Kind::Command | Kind::Class | Kind::Engine => 4,
            Kind::Uuid => 16,
            Kind::Text => MAX_PIECE,
        }
    }

    /// The value in the first bytes, little-endian. None: there are too few bytes.
    fn value(self, bytes: &[u8], names: &Names) -> Option<Value<'static>> {
        if self == Kind::Text {
            return text(bytes);
        }
        let bytes = bytes.get(..usize::from(self.size()))?;
        let number = little_endian(bytes);
        Some(match self {
            Kind::Uuid => gpu_uuid(bytes),
            Kind::Bool => Value::Bool(number != 0),
            Kind::Signed => signed(bytes),
            Kind::Unsigned(_) => Value::Number(number),
            Kind::Hex(_) => Value::Hex(number),
            Kind::Status => Value::Text(names.status(number as u32)),
            Kind::Command => names.command(number as u32).map_or(Value::Hex(number), Value::Text),
            Kind::Class => class_value(names.class(number as u32), number as u32),
            Kind::Engine => engine_value(number as u32),
            Kind::Text => return None,
        })
    }
}

/// The text up to its zero; if a piece of the full size has none, the text is truncated and ends in three dots.
fn text(bytes: &[u8]) -> Option<Value<'static>> {
    let end = bytes.iter().position(|byte| *byte == 0);
    if end.is_none() && bytes.len() < usize::from(MAX_PIECE) {
        return None;
    }
    let mut text = String::from_utf8_lossy(bytes.get(..end.unwrap_or(bytes.len()))?).into_owned();
    if end.is_none() {
        text.push_str("...");
    }
    Some(Value::Text(text.into()))
}

/// One row of the table: its first line and the lines that belong to it.
struct Row {
    first: &'static str,
    more: Vec<&'static str>,
}

fn rows() -> impl Iterator<Item = Row> {
    let mut lines =
        TABLE.lines().filter(|line| !line.starts_with('#') && !line.starts_with("folklore ")).peekable();
    std::iter::from_fn(move || {
        let first = lines.next()?;
        let mut more = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with(' ')) {
            more.push(line.trim_start());
        }
        Some(Row { first, more })
    })
}

/// A hook for each module that has the row's function; None if this driver lacks it.
fn hook(row: &Row, version: Option<Version>, driver: &Arc<Names>) -> Option<Vec<Hook>> {
    let mut words = row.first.split(' ');
    let name = words.next()?;
    let group = Group::from_name(words.next()?)?;
    let on = words.next()? == "on";
    let modules = words.next()?;
    let core = words.next()? == "core";
    let returns = word(words.next()?)?;
    let mut hook = Hook {
        name,
        group,
        on,
        module: "",
        scheduler: false,
        top_half: false,
        core,
        open_only: false,
        returns,
        role: Role::Function,
        operation: Operation::default(),
        line: name,
        tracepoint: None,
        meaning: row.more.iter().find_map(|line| line.strip_prefix("means ")).unwrap_or_default(),
        args: capture(row, "args", version),
        out: capture(row, "out", version),
        driver: driver.clone(),
    };
    for flag in words {
        let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
        match key {
            "from" if older(version, value) => return None,
            "before" if version.is_some() && !older(version, value) => return None,
            _ => set(&mut hook, key, value),
        }
    }
    Some(modules.split(',').map(|module| Hook { module, ..hook.clone() }).collect())
}

fn set(hook: &mut Hook, key: &str, value: &'static str) {
    let register = value.parse().ok();
    match key {
        "open" => hook.open_only = true,
        "irq" => hook.top_half = true,
        "scheduler" => hook.scheduler = true,
        "file" => hook.operation.file = register,
        "inode" => hook.operation.inode = register,
        "cmd" => hook.operation.cmd = register,
        "user" => hook.operation.user = register,
        "line" => hook.line = value,
        "at" => hook.tracepoint = Some(value),
        "role" => hook.role = word(value).unwrap_or(Role::Function),
        _ => {}
    }
}

/// The captures of the newest SINCE that is not above the version. A driver older than the oldest analysed one has
/// none: its arguments are unknown.
fn capture(row: &Row, what: &str, version: Option<Version>) -> Capture {
    let lines = row.more.iter().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    let fits = |line: &&str| line.split(' ').next().is_some_and(|since| !older(version, since));
    let Some(line) = lines.rev().find(fits) else { return Capture::default() };
    let mut capture = Capture::default();
    for word in line.split(' ').skip(1) {
        capture.add(word);
    }
    capture
}

impl Capture {
    /// Parses NAME=PLACE:KIND. Skips what it cannot parse; a test checks that nothing is skipped.
    fn add(&mut self, word: &'static str) -> Option<()> {
        let (name, place) = word.split_once('=')?;
        let (place, kind) = place.split_once(':')?;
        let kind = Kind::parse(kind)?;
        let mut steps = place.split('@');
        let register = register(steps.next()?)?;
        let mut at = At::Register(register);
        let mut source = Source::Register(register);
        while let Some(offset) = steps.next() {
            let offset: u16 = offset.parse().ok()?;
            let size = if steps.clone().next().is_some() { 8 } else { kind.size() };
            let piece = self.read(source, offset.checked_add(size)?)?;
            at = At::Piece { piece, offset };
            source = Source::Inside { piece, offset };
        }
        self.fields.push(Field { name, kind, at });
        Some(())
    }

    /// The index of the piece from this source, with at least this size.
    fn read(&mut self, source: Source, size: u16) -> Option<u8> {
        if size > MAX_PIECE {
            return None;
        }
        let known = self.reads.iter().position(|read| read.source == source);
        let index = known.unwrap_or(self.reads.len());
        match self.reads.get_mut(index) {
            Some(read) => read.size = read.size.max(size),
            None if index < MAX_PIECES => self.reads.push(Read { source, size }),
            None => return None,
        }
        u8::try_from(index).ok()
    }
}

/// Parses `N`, or `N|M` where AArch64 uses register M.
fn register(text: &str) -> Option<u8> {
    let (other, aarch64) = text.split_once('|').unwrap_or((text, text));
    let here = if cfg!(target_arch = "aarch64") { aarch64 } else { other };
    here.parse().ok().filter(|register| *register < 6)
}

/// Whether the driver is older than TAG; an unknown version counts as the newest.
fn older(version: Option<Version>, tag: &str) -> bool {
    version.zip(Version::parse(tag)).is_some_and(|(version, tag)| version < tag)
}
