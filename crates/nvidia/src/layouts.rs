//! Where the fields of a request are in one driver version, and what BPF should read of it.
//!
//! In: layouts.txt, the driver's version, a request's number and size. Out: the row that applies, and the list of
//! reads. BPF relies on the limits here: at most 256 bytes at entry, 64 at exit.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::devices::Family;
use super::version::{Span, Version, choose};

/// What BPF should read of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub family: Family,
    /// The number in the command word; for nvidia-uvm the whole word.
    pub nr: u32,
    /// Bytes of the payload at entry, at most 256, and no more than the ioctl's own size if the command word contains
    /// one (the `nvidia` family).
    pub entry: u16,
    pub second: Option<SecondPiece>,
    /// Bytes of the payload at exit, at most 64, and not more than its size.
    pub exit: u16,
    /// Offset of the u32 that holds the result, read at exit.
    pub status: Option<u16>,
}

/// The second piece that is read at entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondPiece {
    /// Offset in the payload.
    pub at: u16,
    /// The number of bytes to read, at most 256.
    pub size: u16,
    /// True: the piece is at `at` in the payload itself, behind a long array. False: it is at the address that is there
    /// as a u64.
    pub inline: bool,
}

pub const MAX_ENTRY: u16 = 256;
pub const MAX_EXIT: u16 = 64;

pub mod nr {
    //! The escapes that are decoded in code.
    pub const ALLOC_MEMORY: u32 = 0x27;
    pub const ALLOC_OBJECT: u32 = 0x28;
    pub const FREE: u32 = 0x29;
    pub const CONTROL: u32 = 0x2a;
    pub const ALLOC: u32 = 0x2b;
    pub const DUP_OBJECT: u32 = 0x34;
    pub const VID_HEAP_CONTROL: u32 = 0x4a;
    /// The number of nvidia-modeset's only request, which equals no escape.
    pub const MODESET: u32 = 0;
}

/// Where RM_ALLOC has the address of the parameters, and how many of their bytes to read.
const ALLOC_PARAMS: SecondPiece = SecondPiece { at: 16, size: 136, inline: false };
/// The end of the longest union member of VID_HEAP_CONTROL that is shown.
const HEAP_BYTES: u16 = 152;
/// The fields cmd and size of NvKmsIoctlParams.
const MODESET_BYTES: u16 = 8;

/// One layout of one request.
#[derive(Debug)]
pub struct Row {
    pub kind: char,
    pub number: u32,
    pub name: &'static str,
    tag: Version,
    pub size: u16,
    pub status: Option<u16>,
    pub fields: Vec<Field>,
    /// The offset of the client that the other handles belong to.
    pub client_at: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub at: u16,
    pub way: Way,
    /// Omitted when zero.
    pub optional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The handle of an object; its class is shown under the other name.
    Handle(Option<&'static str>),
    Class,
    Engine,
    /// A number of N bytes, in hex.
    Hex(u16),
    Number(u16),
    Signed(u16),
    Bool,
    Uuid,
    Text(u16),
    /// The offset of the last byte of a range, shown as the range's size.
    Last,
    /// Shown as the number of elements of this size in the payload.
    Count(u32),
}

impl Kind {
    pub fn bytes(self) -> u16 {
        match self {
            Kind::Handle(_) | Kind::Class | Kind::Engine => 4,
            Kind::Hex(n) | Kind::Number(n) | Kind::Signed(n) | Kind::Text(n) => n,
            Kind::Bool => 1,
            Kind::Uuid => 16,
            Kind::Last => 8,
            Kind::Count(_) => 0,
        }
    }
}

impl Field {
    pub fn end(&self) -> u16 {
        self.at.saturating_add(self.kind.bytes())
    }
}

static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| include_str!("layouts.txt").lines().filter_map(parse_row).collect());

fn parse_row(line: &'static str) -> Option<Row> {
    let mut words = line.split(' ');
    let kind = words.next()?.chars().next()?;
    let number = u32::from_str_radix(words.next()?, 16).ok()?;
    let name = words.next()?;
    let tag = Version::parse(words.next()?)?;
    let size = words.next()?.parse().ok()?;
    let status = words.next()?.parse().ok();
    let fields: Vec<Field> = words.map(parse_field).collect::<Option<_>>()?;
    let client_at = fields.iter().find(|f| f.name == "client").map(|f| f.at);
    Some(Row { kind, number, name, tag, size, status, fields, client_at })
}

fn parse_field(word: &'static str) -> Option<Field> {
    let (name, rest) = word.split_once(':')?;
    let (kind, at) = rest.split_once('@')?;
    let (way, name) = match name.as_bytes().first()? {
        b'>' => (Way::Out, name.get(1..)?),
        b'=' => (Way::Both, name.get(1..)?),
        _ => (Way::In, name),
    };
    let optional = kind.ends_with('?');
    let kind = parse_kind(kind.trim_end_matches('?'))?;
    Some(Field { name, kind, at: at.parse().ok()?, way, optional })
}

fn parse_kind(word: &'static str) -> Option<Kind> {
    let bytes = || word.get(1..)?.parse().ok();
    Some(match word.as_bytes().first()? {
        b'h' => Kind::Handle(word.strip_prefix("h=")),
        b'c' => Kind::Class,
        b'e' => Kind::Engine,
        b'x' => Kind::Hex(bytes()?),
        b'n' => Kind::Number(bytes()?),
        b'i' => Kind::Signed(bytes()?),
        b's' => Kind::Text(bytes()?),
        b'b' => Kind::Bool,
        b'u' => Kind::Uuid,
        b'l' => Kind::Last,
        b'*' => Kind::Count(word.get(1..)?.parse().ok()?),
        _ => return None,
    })
}

impl Row {
    fn ways(&self, wanted: fn(Way) -> bool) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |f| wanted(f.way) && f.kind.bytes() > 0)
    }

    pub fn inputs(&self) -> impl Iterator<Item = &Field> {
        self.ways(|way| way != Way::Out)
    }

    pub fn outputs(&self) -> impl Iterator<Item = &Field> {
        self.ways(|way| way != Way::In)
    }

    /// The fields that are beyond the first piece.
    pub fn tail(&self) -> Option<SecondPiece> {
        let far = || self.inputs().filter(|f| f.end() > MAX_ENTRY);
        let at = far().map(|f| f.at).min()?;
        let size = far().map(Field::end).max()?.saturating_sub(at).min(MAX_ENTRY);
        Some(SecondPiece { at, size, inline: true })
    }
}

/// The layouts in one driver version.
pub struct Layouts {
    version: Version,
    /// All layouts of a number, including other drivers': the size shows which of two structures was passed.
    escapes: HashMap<u32, Vec<&'static Row>>,
    uvm: HashMap<u32, &'static Row>,
    alloc: HashMap<&'static str, &'static Row>,
    heap: HashMap<u32, &'static Row>,
}

impl Layouts {
    /// The layouts of a driver version ("580.159.04"); of the newest known one if the version is unknown.
    pub fn of(version: Option<&str>) -> Layouts {
        let version = Version::of(version);
        let mut escapes: HashMap<u32, Vec<&'static Row>> = HashMap::new();
        let mut others: HashMap<(char, u32), Vec<&'static Row>> = HashMap::new();
        // Backwards, because the later of two structures of one request and tag is the usual one.
        for row in ROWS.iter().rev() {
            match row.kind {
                'n' => escapes.entry(row.number).or_default().push(row),
                kind => others.entry((kind, row.number)).or_default().push(row),
            }
        }
        let (mut uvm, mut alloc, mut heap) = (HashMap::new(), HashMap::new(), HashMap::new());
        for ((kind, number), rows) in &others {
            let Some(row) = newest(rows.iter().copied(), version) else { continue };
            match kind {
                'u' => drop(uvm.insert(*number, row)),
                'a' => drop(alloc.insert(row.name, row)),
                _ => drop(heap.insert(*number, row)),
            }
        }
        Layouts { version, escapes, uvm, alloc, heap }
    }

    /// An escape's layout: the one of this size, or else the driver's own.
    pub fn escape(&self, number: u32, size: u32) -> Option<&'static Row> {
        let rows = self.escapes.get(&number)?;
        let sized = rows.iter().copied().filter(|r| size != 0 && u32::from(r.size) == size);
        newest(sized, self.version).or_else(|| newest(rows.iter().copied(), self.version))
    }

    pub fn uvm(&self, number: u32) -> Option<&'static Row> {
        self.uvm.get(&number).copied()
    }

    /// The parameters of RM_ALLOC, by their name in classes.txt.
    pub fn alloc(&self, params: &str) -> Option<&'static Row> {
        self.alloc.get(params).copied()
    }

    /// A function of NV_ESC_RM_VID_HEAP_CONTROL.
    pub fn heap(&self, function: u32) -> Option<&'static Row> {
        self.heap.get(&function).copied()
    }

    /// What BPF should read: one sorted entry for every known request.
    pub fn shapes(&self) -> Vec<Shape> {
        let escapes = self.escapes.iter().filter_map(|(nr, rows)| self.escape_shape(*nr, rows));
        let uvm = self.uvm.values().map(|row| uvm_shape(row));
        let mut shapes: Vec<Shape> = escapes.chain(uvm).collect();
        shapes.push(Shape {
            family: Family::Nvidia,
            nr: nr::MODESET,
            entry: MODESET_BYTES,
            second: None,
            exit: 0,
            status: None,
        });
        shapes.sort_unstable_by_key(|s| (s.family as u32, s.nr));
        shapes
    }

    /// Wide enough for every layout of the number; the size of the actual ioctl limits the read.
    fn escape_shape(&self, number: u32, rows: &[&'static Row]) -> Option<Shape> {
        let main = newest(rows.iter().copied(), self.version)?;
        let second = (number == nr::ALLOC).then_some(ALLOC_PARAMS);
        let entry = rows.iter().map(|r| in_bytes(r)).max()?.max(coded_entry(number));
        let mut exit = rows.iter().map(|r| out_bytes(r)).max()?.max(coded_exit(number));
        // BPF looks for the result at one offset; if another layout has it elsewhere, decoding finds it in the payload
        // that was read.
        if rows.iter().any(|r| r.status != main.status) {
            let ends = rows.iter().filter_map(|r| r.status).map(|at| at.saturating_add(4));
            exit = ends.filter(|end| *end <= MAX_EXIT).fold(exit, u16::max);
        }
        Some(Shape { family: Family::Nvidia, nr: number, entry, second, exit, status: main.status })
    }
}

fn uvm_shape(row: &'static Row) -> Shape {
    Shape {
        family: Family::Uvm,
        nr: row.number,
        entry: in_bytes(row),
        second: row.tail(),
        exit: out_bytes(row),
        status: row.status,
    }
}

fn in_bytes(row: &Row) -> u16 {
    row.inputs().map(Field::end).filter(|end| *end <= MAX_ENTRY).max().unwrap_or(0)
}

/// Texts are useful even when truncated.
fn out_bytes(row: &Row) -> u16 {
    let ends = row.outputs().map(|f| match f.kind {
        Kind::Text(_) if f.at < MAX_EXIT => f.end().min(MAX_EXIT),
        _ => f.end(),
    });
    ends.filter(|end| *end <= MAX_EXIT).max().unwrap_or(0)
}

/// The number of payload bytes that decode.rs reads itself.
pub fn coded_entry(number: u32) -> u16 {
    match number {
        nr::ALLOC => 24,
        nr::ALLOC_MEMORY | nr::ALLOC_OBJECT => 16,
        nr::CONTROL | nr::FREE => 12,
        nr::DUP_OBJECT => 20,
        nr::VID_HEAP_CONTROL => HEAP_BYTES,
        _ => 0,
    }
}

fn coded_exit(number: u32) -> u16 {
    match number {
        nr::ALLOC | nr::ALLOC_MEMORY | nr::ALLOC_OBJECT | nr::DUP_OBJECT => 12,
        nr::VID_HEAP_CONTROL => 48,
        _ => 0,
    }
}

/// The layout of the newest tag that is not above the version, or else the oldest layout. Of two structures with one
/// tag, the first one here.
fn newest(rows: impl Iterator<Item = &'static Row>, version: Version) -> Option<&'static Row> {
    choose(rows.map(|row| (Span { first: row.tag, last: row.tag }, row)), version)
}
