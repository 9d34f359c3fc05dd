//! The rows of table.txt and nccl.txt: for each function its traits, its parameters and their places, and from these what to
//! capture of a call.

use std::sync::LazyLock;

use super::item::{Item, Layout};
use super::layout::{self, layout_named, scalar};
use super::raw::{Count, Place, Plan, Read, Source, What};
use super::traits::{self, FunctionTraits, Name, Shape};
use super::{base_name, names, without_stream_suffix};
use gpurec_trace::word;

/// A function's parameters, and what to capture of a call.
#[derive(Debug)]
pub struct Signature {
    pub name: &'static str,
    pub params: Vec<Param>,
    pub plan: Plan,
    pub(super) launch: Option<Shape>,
    majors: Majors,
}

#[derive(Clone, Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub place: Place,
    /// How to show it, if that is simple, as for most arguments of most calls.
    pub(super) plain: Option<PlainNumber>,
    /// The reads of the plan that belong to it: the first at entry, and the one at exit.
    pub(super) entry: Option<u8>,
    pub(super) exit: Option<u8>,
}

/// A number in a word: its bits, and whether it is shown in hex.
#[derive(Clone, Copy, Debug)]
pub struct PlainNumber {
    pub mask: u64,
    pub hex: bool,
}

/// The kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shown as it was passed. A pointer is a value too if nothing is known about its target.
    Value(Item),
    /// A string; the number is the most bytes worth reading.
    Text(u16),
    /// A structure that the function reads.
    In(&'static Layout),
    /// A list that the function reads; the number is the index of the parameter that holds its length.
    Array(Item, u8),
    /// Something that the function writes.
    Out(Item),
    /// A list that the function fills; the number is as for `Array`.
    OutArray(Item, u8),
    /// A structure that the function reads and writes.
    InOut(&'static Layout),
    /// A buffer that the function fills with a string.
    OutChars,
    /// A pointer to a string that the function sets; the number is as for Text.
    OutText(u16),
}

/// The major versions of the library that have a prototype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Majors {
    /// The prototype never changed.
    All,
    Range(u32, u32),
    /// The part that all versions share, for a library whose major is unknown.
    Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

const HERE: Arch = if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 };

/// The limits of a plan.
#[cfg(test)]
pub const MAX_STACK_WORDS: u8 = 16;
pub const MAX_READS: usize = 4;

const TEXT: u16 = 256;
const KERNEL_NAME: u16 = 4096;

/// A line of a table.
pub struct Row {
    pub name: &'static str,
    pub majors: Majors,
    pub function: FunctionTraits,
    /// Not parsed; `None`: nothing certain is known.
    pub params: Option<&'static str>,
}

/// Sorted by name, in byte order, so that the variants of a function are adjacent. NCCL's names come after CUDA's.
static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = include_str!("table.txt").lines().chain(include_str!("nccl.txt").lines());
    lines.filter_map(parse_row).collect()
});

/// Sorted as the rows. A function with variants has an additional entry with what they share.
static SIGNATURES: LazyLock<Vec<Signature>> = LazyLock::new(|| signatures(HERE));

#[cfg(test)]
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// The name of every known function, once.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    ROWS.chunk_by(|a, b| a.name == b.name).filter_map(|same| Some(same.first()?.name))
}

impl FunctionTraits {
    /// The traits of a function. An unknown version of a known function has those that do not depend on parameters; of
    /// other unknown functions only the name tells something.
    pub fn of(name: &str) -> FunctionTraits {
        let known = function(name).or_else(|| function(without_stream_suffix(name)));
        known.copied().unwrap_or_else(|| match function(base_name(name)) {
            Some(known) => FunctionTraits { kind: None, ..*known },
            None => FunctionTraits::guessed(name),
        })
    }
}

pub fn function(name: &str) -> Option<&'static FunctionTraits> {
    let at = ROWS.binary_search_by_key(&name, |r| r.name).ok()?;
    ROWS.get(at).map(|r| &r.function)
}

/// The signature of a function in the library of this major (`libcudart.so.12` has major 12). If the prototype changed
/// and the major is unknown, the signature has the parameters that are the same in all versions.
pub fn signature(name: &str, major: Option<u32>) -> Option<&'static Signature> {
    let found = variants(&SIGNATURES, name);
    let found = if found.is_empty() { variants(&SIGNATURES, without_stream_suffix(name)) } else { found };
    let fits = |s: &&Signature| match (s.majors, major) {
        (Majors::All, _) => true,
        (Majors::Range(low, high), Some(major)) => (low..=high).contains(&major),
        (Majors::Range(..) | Majors::Common, _) => false,
    };
    found.iter().find(fits).or_else(|| found.iter().find(|s| s.majors == Majors::Common))
}

/// Every signature, including each variant of a function.
pub fn all() -> impl Iterator<Item = &'static Signature> {
    SIGNATURES.iter().filter(|s| s.majors != Majors::Common)
}

fn variants<'a>(of: &'a [Signature], name: &str) -> &'a [Signature] {
    let from = of.partition_point(|s| s.name < name);
    let rest = of.get(from..).unwrap_or_default();
    rest.get(..rest.partition_point(|s| s.name == name)).unwrap_or_default()
}

/// All signatures for `arch`.
pub fn signatures(arch: Arch) -> Vec<Signature> {
    let mut all: Vec<Signature> = Vec::with_capacity(ROWS.len() + 64);
    for of_name in ROWS.chunk_by(|a, b| a.name == b.name) {
        let first = all.len();
        all.extend(of_name.iter().flat_map(resolved).filter_map(|(row, params)| {
            let name = of_name.first()?.name;
            Some(Signature::new(name, row.majors, parse_params(params, arch)?))
        }));
        if let Some(common) = all.get(first..).and_then(common) {
            all.push(common);
        }
    }
    all
}

/// The row with its parameters, or the rows of the function that it refers to.
fn resolved(row: &'static Row) -> Vec<(&'static Row, &'static str)> {
    let Some(params) = row.params else { return Vec::new() };
    match params.strip_prefix('=') {
        None => vec![(row, params)],
        Some(base) => {
            let from = ROWS.partition_point(|r| r.name < base);
            let of_base = ROWS.iter().skip(from).take_while(|r| r.name == base);
            of_base.filter_map(|r| Some((r, r.params?))).collect()
        }
    }
}

/// The leading parameters on which the variants agree.
fn common(variants: &[Signature]) -> Option<Signature> {
    let (newest, older) = variants.split_last()?;
    if older.is_empty() {
        return None;
    }
    let same = |at: usize, param: &Param| {
        let agrees =
            |s: &Signature| s.params.get(at).is_some_and(|p| p.place == param.place && p.kind == param.kind);
        older.iter().all(agrees)
    };
    let params = newest.params.iter().enumerate().take_while(|(at, p)| same(*at, p));
    Some(Signature::new(newest.name, Majors::Common, params.map(|(_, p)| (p.clone(), None)).collect()))
}

fn parse_row(line: &'static str) -> Option<Row> {
    let mut words = line.splitn(6, ' ');
    let mut next = || words.next();
    let (name, api, category, returns, traits) = (next()?, next()?, next()?, next()?, next()?);
    let params = next().unwrap_or_default();
    let (name, majors) = match name.split_once('@') {
        None => (name, Majors::All),
        Some((name, majors)) => (name, parse_majors(majors)?),
    };
    let function = FunctionTraits::parse(word(api)?, word(category)?, word(returns)?, traits)?;
    Some(Row { name, majors, function, params: Some(params).filter(|p| *p != "?") })
}

/// Parses `13` or `11-12`. The newest prototype also applies to newer libraries.
fn parse_majors(text: &str) -> Option<Majors> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let high = high.parse().ok()?;
    Some(Majors::Range(low.parse().ok()?, if high >= NEWEST { u32::MAX } else { high }))
}

/// The newest major in the table.
const NEWEST: u32 = 13;

/// A parameter, and the number of bytes its pointer leads to if it is a structure that the calling convention passes by
/// pointer.
type Parsed = (Param, Option<u16>);

fn parse_params(text: &'static str, arch: Arch) -> Option<Vec<Parsed>> {
    text.split(' ').filter(|p| !p.is_empty()).map(|p| parse_param(p, arch)).collect()
}

fn parse_param(text: &'static str, arch: Arch) -> Option<Parsed> {
    let mut parts = text.split(':');
    let (name, kind, places) = (parts.next()?, parse_kind(parts.next()?)?, parts.next()?);
    let (x86, arm) = places.split_once('|').unwrap_or((places, places));
    let (place, copied) = parse_place(if arch == Arch::X86_64 { x86 } else { arm })?;
    let copied = match kind {
        Kind::Value(item) if copied => Some(item.bytes()),
        _ => None,
    };
    let plain = if copied.is_none() { plain(kind) } else { None };
    let name = written(name);
    Some((Param { name, kind, place, plain, entry: None, exit: None }, copied))
}

/// A parameter's name in traces. The headers spell some names in two ways, and programs that ignore the case of keys
/// (DuckDB) refuse a trace with both.
pub(super) fn written(name: &'static str) -> &'static str {
    const SAME: [(&str, &str); 12] = [
        ("Flags", "flags"),
        ("Height", "height"),
        ("Pitch", "pitch"),
        ("Width", "width"),
        ("dynamicSmemSize", "dynamicSMemSize"),
        ("graphID", "graphId"),
        ("nRanks", "nranks"),
        ("pCtx", "pctx"),
        ("pId", "pid"),
        ("pConfig", "pconfig"),
        ("psize", "pSize"),
        ("pvalue", "pValue"),
    ];
    SAME.iter().find(|(other, _)| *other == name).map_or(name, |(_, written)| written)
}

fn plain(kind: Kind) -> Option<PlainNumber> {
    let (bytes, hex) = match kind {
        Kind::Value(Item::Unsigned(bytes)) => (bytes, false),
        Kind::Value(Item::Hex(bytes)) => (bytes, true),
        Kind::Out(_) | Kind::OutArray(..) | Kind::OutChars | Kind::OutText(_) => (8, true),
        _ => return None,
    };
    Some(PlainNumber { mask: u64::MAX >> (64 - 8 * u32::from(bytes)), hex })
}

/// The place, and whether it holds a pointer to a copy.
fn parse_place(text: &str) -> Option<(Place, bool)> {
    if text == "v" {
        return Some((Place::Vector, false));
    }
    if let Some((first, second)) = text.split_once('+') {
        return Some((Place::Pair(first.parse().ok()?, second.parse().ok()?), false));
    }
    if let Some((word, bytes)) = text.split_once('/') {
        let word = word.parse::<u8>().ok()?.checked_sub(6)?;
        return Some((Place::Block { word, bytes: bytes.parse().ok()? }, false));
    }
    let word: u8 = text.trim_end_matches('*').parse().ok()?;
    let place = if word < 6 { Place::Register(word) } else { Place::Stack(word - 6) };
    Some((place, text.ends_with('*')))
}

fn parse_kind(text: &'static str) -> Option<Kind> {
    let (kind, detail) = text.split_once('=').unwrap_or((text, ""));
    Some(match kind {
        "cstr" => Kind::Text(TEXT),
        "name" => Kind::Text(KERNEL_NAME),
        "in" => Kind::In(layout_named(detail)?),
        "inout" => Kind::InOut(layout_named(detail)?),
        "array" => {
            let (item, count) = detail.split_once(',')?;
            Kind::Array(target(item), count.parse().ok()?)
        }
        "outs" => {
            let (item, count) = detail.split_once(',')?;
            Kind::OutArray(target(item), count.parse().ok()?)
        }
        "out" => match detail {
            "chars" => Kind::OutChars,
            "text" => Kind::OutText(TEXT),
            _ => Kind::Out(target(detail)),
        },
        "enum" => Kind::Value(Item::Enum(names::constants(detail))),
        "struct" => Kind::Value(Item::Struct(layout_named(detail)?)),
        "flags" if !detail.is_empty() => Kind::Value(Item::Flags(names::constants(detail))),
        _ => Kind::Value(scalar(kind)?),
    })
}

/// The target of a pointer: a scalar, a known structure, or else an enumeration.
fn target(word: &'static str) -> Item {
    scalar(word)
        .or_else(|| layout_named(word).map(Item::Struct))
        .unwrap_or_else(|| Item::Enum(names::constants(word)))
}

impl Signature {
    fn new(name: &'static str, majors: Majors, params: Vec<Parsed>) -> Signature {
        let mut signature =
            Signature { name, params: Vec::new(), plan: Plan::default(), launch: None, majors };
        let traits = FunctionTraits::of(name);
        let words: Vec<Option<u8>> = params.iter().map(|(p, _)| pointer_word(p.place)).collect();
        signature.params = params.iter().map(|(p, _)| p.clone()).collect();
        for (at, (param, copied)) in params.iter().enumerate() {
            signature.plan.stack_words = signature.plan.stack_words.max(stack_words(param.place));
            if let Some(word) = pointer_word(param.place) {
                signature.plan_entry(at, word, *copied, &words);
                signature.plan_exit(at, word, &traits, &words);
            }
        }
        if matches!(traits.kind, Some(traits::Kind::Nccl(nccl)) if nccl.makes()) {
            signature.plan.also = traits::IN_PROGRESS as u8;
        }
        if let Some(traits::Kind::Launch(shape)) = traits.kind {
            signature.launch = shape.filter(|shape| signature.params.len() >= shape.params());
        }
        signature
    }

    fn plan_entry(&mut self, at: usize, word: u8, copied: Option<u16>, words: &[Option<u8>]) {
        let Some(param) = self.params.get_mut(at) else { return };
        let what = match param.kind {
            Kind::Text(most) => What::Text(most),
            Kind::In(layout) | Kind::InOut(layout) => What::Bytes(layout.bytes),
            Kind::Array(item, count) => {
                let Some(Some(count)) = words.get(usize::from(count)) else { return };
                // The sizes matter more than the addresses.
                let max = if param.name == "sizes" { 64 } else { 16 };
                What::Counted { count: Count::Word(*count), each: item.bytes(), max }
            }
            Kind::Value(_) => match copied {
                Some(bytes) => What::Bytes(bytes),
                None => return,
            },
            _ => return,
        };
        if self.plan.entry.len() >= MAX_READS {
            return;
        }
        let read = self.plan.entry.len() as u8;
        param.entry = Some(read);
        self.plan.entry.push(Read { param: at as u8, from: Source::Word(word), what });
        if is_config(param.kind) {
            let attributes = What::Counted {
                count: Count::Inside { read, offset: layout::ATTRIBUTE_COUNT_AT },
                each: layout::ATTRIBUTE_BYTES,
                max: 4,
            };
            let from = Source::Inside { read, offset: layout::ATTRIBUTES_AT };
            self.plan.entry.push(Read { param: at as u8, from, what: attributes });
        }
    }

    fn plan_exit(&mut self, at: usize, word: u8, traits: &FunctionTraits, words: &[Option<u8>]) {
        let Some(param) = self.params.get_mut(at) else { return };
        let what = match param.kind {
            Kind::Out(item) => What::Bytes(item.bytes()),
            Kind::InOut(layout) => What::Bytes(layout.bytes),
            Kind::OutArray(item, count) => {
                let Some(Some(count)) = words.get(usize::from(count)) else { return };
                What::Counted { count: Count::Word(*count), each: item.bytes(), max: 64 }
            }
            Kind::OutChars => What::Text(TEXT),
            Kind::OutText(_) if traits.kind == Some(traits::Kind::Name(Name::Asked)) => {
                What::TextThrough(KERNEL_NAME)
            }
            Kind::OutText(most) => What::TextThrough(most),
            _ => return,
        };
        if self.plan.exit.len() < MAX_READS {
            param.exit = Some(self.plan.exit.len() as u8);
            self.plan.exit.push(Read { param: at as u8, from: Source::Word(word), what });
        }
    }
}

/// Whether launch attributes follow the structure.
pub fn is_config(kind: Kind) -> bool {
    matches!(kind, Kind::In(layout) if matches!(layout.name, "CUlaunchConfig" | "cudaLaunchConfig_t"))
}

/// The number of the word that holds a pointer.
fn pointer_word(place: Place) -> Option<u8> {
    match place {
        Place::Register(n) => Some(n),
        Place::Stack(n) => Some(n + 6),
        Place::Pair(..) | Place::Block { .. } | Place::Vector => None,
    }
}

/// The number of stack words that a parameter needs.
fn stack_words(place: Place) -> u8 {
    match place {
        Place::Stack(n) => n + 1,
        Place::Block { word, bytes } => word + bytes.div_ceil(8) as u8,
        Place::Register(_) | Place::Pair(..) | Place::Vector => 0,
    }
}
