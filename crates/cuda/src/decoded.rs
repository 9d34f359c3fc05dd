//! What was captured of a call, by name and type.
//!
//! A null pointer is `"0x0"`, a null string `null`. A value that could not be read is `null` too, and `unreadable`
//! lists its name; `cut` lists the names of texts and lists that are longer than what was read.

use std::borrow::Cow;

use super::item::{Item, Layout, dim3, dimensions, integer};
use super::layout::ATTRIBUTE_BYTES;
use super::raw::{Entry, Exit, Piece, Place};
use super::table::{Kind, Param, Signature, is_config};
use super::traits::Shape;
use gpurec_trace::bytes::{u32_at, u64_at};
use gpurec_trace::{Arg, List, Value};

/// A kernel launch, by any function that launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// A CUfunction or CUkernel, or the host stub in the runtime API.
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u64,
    pub stream: u64,
    pub cluster: Option<[u32; 3]>,
    pub cooperative: bool,
}

/// The attributes of a launch.
#[derive(Default)]
struct Attributes {
    cluster: Option<[u32; 3]>,
    cooperative: Option<bool>,
    priority: Option<i32>,
}

/// Names of arguments whose values are incomplete.
#[derive(Default)]
struct Doubts {
    unreadable: Vec<Value<'static>>,
    cut: Vec<Value<'static>>,
}

impl Doubts {
    fn unreadable<'a>(&mut self, name: &'static str) -> Value<'a> {
        self.unreadable.push(Value::Text(Cow::Borrowed(name)));
        Value::Null
    }

    fn cut(&mut self, name: &'static str, read: Option<Piece>) {
        if matches!(read, Some(Piece::Bytes { cut: true, .. })) {
            self.cut.push(Value::Text(Cow::Borrowed(name)));
        }
    }

    fn into<'a>(self, into: &mut Vec<Arg<'a>>) {
        for (name, list) in [("unreadable", self.unreadable), ("cut", self.cut)] {
            if !list.is_empty() {
                into.push(Arg::new(name, Value::Array(List::Owned(list))));
            }
        }
    }
}

impl Signature {
    /// The index of a parameter.
    pub fn param(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|p| p.name == name)
    }

    /// The integer value of parameter `i`: a pointer, handle, size, enumeration… A negative number is sign-extended.
    /// `None`: the parameter is no integer, or it was not captured.
    pub fn value(&self, entry: &Entry, i: usize) -> Option<u64> {
        let param = self.params.get(i)?;
        let word = word(entry, param.place)?;
        Some(match param.kind {
            Kind::Value(item) => integer(item, word),
            _ => word,
        })
    }

    /// What was read at entry for parameter `i`.
    pub fn read_in<'a>(&self, entry: &Entry<'a>, i: usize) -> Option<Piece<'a>> {
        piece(entry.reads, self.params.get(i)?.entry)
    }

    /// What was read at exit for parameter `i`.
    pub fn read_out<'a>(&self, exit: &Exit<'a>, i: usize) -> Option<Piece<'a>> {
        piece(exit.reads, self.params.get(i)?.exit)
    }

    /// Appends the arguments, by name, to `into`.
    pub fn args<'a>(&self, entry: &Entry<'a>, into: &mut Vec<Arg<'a>>) {
        into.reserve(self.params.len());
        let mut doubts = Doubts::default();
        for param in &self.params {
            if let Some(plain) = param.plain
                && let Some(word) = word(entry, param.place)
            {
                let number = word & plain.mask;
                into.push(Arg::new(
                    param.name,
                    if plain.hex { Value::Hex(number) } else { Value::Number(number) },
                ));
                continue;
            }
            let value = match (param.kind, param.entry) {
                (Kind::Value(item), None) => by_value(item, param, entry, &mut doubts),
                (Kind::Value(item), Some(_)) => {
                    one(param, piece(entry.reads, param.entry), item, Value::Null, &mut doubts)
                }
                (Kind::Text(_), Some(_)) => text(param, piece(entry.reads, param.entry), &mut doubts),
                (Kind::In(layout) | Kind::InOut(layout), Some(_)) => {
                    self.structure(param, layout, entry, &mut doubts)
                }
                (Kind::Array(item, _), Some(_)) => {
                    list(param, piece(entry.reads, param.entry), item, &mut doubts)
                }
                _ => by_value(Item::Hex(8), param, entry, &mut doubts),
            };
            into.push(Arg::new(param.name, value));
        }
        doubts.into(into);
    }

    /// Appends what the function wrote through its pointers, by name, to `into`. Only a call that succeeded wrote
    /// anything.
    pub fn out<'a>(&self, exit: &Exit<'a>, into: &mut Vec<Arg<'a>>) {
        let mut doubts = Doubts::default();
        for param in self.params.iter().filter(|p| p.exit.is_some()) {
            let read = piece(exit.reads, param.exit);
            let value = match param.kind {
                Kind::OutChars | Kind::OutText(_) => text(param, read, &mut doubts),
                Kind::Out(item) => one(param, read, item, Value::Null, &mut doubts),
                Kind::OutArray(item, _) => list(param, read, item, &mut doubts),
                Kind::InOut(layout) => one(param, read, Item::Struct(layout), Value::Null, &mut doubts),
                Kind::Value(_) | Kind::Text(_) | Kind::In(_) | Kind::Array(..) => continue,
            };
            into.push(Arg::new(param.name, value));
        }
        doubts.into(into);
    }

    /// The launch that this call makes, if it is a launch that could be captured.
    pub fn launch(&self, entry: &Entry) -> Option<Launch> {
        match self.launch? {
            Shape::Driver => self.driver_launch(entry),
            Shape::Runtime => self.runtime_launch(entry),
            Shape::Config => self.config_launch(entry, false),
            Shape::WideConfig => self.config_launch(entry, true),
        }
    }

    fn driver_launch(&self, entry: &Entry) -> Option<Launch> {
        let number = |i: usize| self.value(entry, i).map(|v| v as u32);
        Some(Launch {
            function: self.value(entry, 0)?,
            grid: [number(1)?, number(2)?, number(3)?],
            block: [number(4)?, number(5)?, number(6)?],
            shared: self.value(entry, 7)?,
            stream: self.value(entry, 8)?,
            cluster: None,
            cooperative: self.name.starts_with("cuLaunchCooperative"),
        })
    }

    fn runtime_launch(&self, entry: &Entry) -> Option<Launch> {
        Some(Launch {
            function: self.value(entry, 0)?,
            grid: pair(entry, self.params.get(1)?.place)?,
            block: pair(entry, self.params.get(2)?.place)?,
            shared: self.value(entry, 4)?,
            stream: self.value(entry, 5)?,
            cluster: None,
            cooperative: self.name.starts_with("cudaLaunchCooperative"),
        })
    }

    fn config_launch(&self, entry: &Entry, wide_shared: bool) -> Option<Launch> {
        let Some(Piece::Bytes { bytes, .. }) = self.read_in(entry, 0) else { return None };
        let attributes = self.attributes(self.params.first()?, entry);
        Some(Launch {
            function: self.value(entry, 1)?,
            grid: dimensions(bytes, 0)?,
            block: dimensions(bytes, 12)?,
            shared: if wide_shared { u64_at(bytes, 24)? } else { u32_at(bytes, 24)?.into() },
            stream: u64_at(bytes, 32)?,
            cluster: attributes.cluster,
            cooperative: attributes.cooperative.unwrap_or(false),
        })
    }

    fn structure<'a>(
        &self,
        param: &Param,
        layout: &'static Layout,
        entry: &Entry<'a>,
        doubts: &mut Doubts,
    ) -> Value<'a> {
        let read = piece(entry.reads, param.entry);
        let mut value = one(param, read, Item::Struct(layout), Value::Hex(0), doubts);
        if let Value::Object(List::Owned(fields)) = &mut value
            && is_config(param.kind)
        {
            let attributes = self.attributes(param, entry);
            fields.extend(attributes.cluster.map(|c| Arg::new("cluster", dim3(c))));
            fields.extend(attributes.cooperative.map(|c| Arg::new("cooperative", Value::Bool(c))));
            fields.extend(
                attributes.priority.map(|p| Arg::new("priority", Item::Signed(4).in_word(p as u32 as u64))),
            );
        }
        value
    }

    /// The attributes are the read that follows the configuration's.
    fn attributes(&self, param: &Param, entry: &Entry) -> Attributes {
        let mut found = Attributes::default();
        let at = param.entry.map_or(usize::MAX, usize::from);
        let Some(Piece::Bytes { bytes, .. }) = at.checked_add(1).and_then(|at| entry.reads.get(at)) else {
            return found;
        };
        for attribute in bytes.chunks_exact(ATTRIBUTE_BYTES.into()) {
            let Some(value) = attribute.get(8..) else { continue };
            match u32_at(attribute, 0) {
                Some(2) => found.cooperative = u32_at(value, 0).map(|on| on != 0),
                Some(4) => found.cluster = dimensions(value, 0),
                Some(8) => found.priority = u32_at(value, 0).map(|p| p as i32),
                _ => {}
            }
        }
        found
    }
}

fn piece<'a>(reads: &'a [Piece<'a>], at: Option<u8>) -> Option<Piece<'a>> {
    reads.get(usize::from(at?)).copied()
}

/// The register or stack word that holds a parameter.
#[inline]
fn word(entry: &Entry, place: Place) -> Option<u64> {
    match place {
        Place::Register(n) => entry.registers.get(usize::from(n)).copied(),
        Place::Stack(n) => entry.stack.get(usize::from(n)).copied(),
        Place::Pair(..) | Place::Block { .. } | Place::Vector => None,
    }
}

/// Three numbers in two registers.
fn pair(entry: &Entry, place: Place) -> Option<[u32; 3]> {
    let Place::Pair(first, second) = place else { return None };
    let low = *entry.registers.get(usize::from(first))?;
    let high = *entry.registers.get(usize::from(second))?;
    Some([low as u32, (low >> 32) as u32, high as u32])
}

#[inline]
fn by_value<'a>(item: Item, param: &Param, entry: &Entry<'a>, doubts: &mut Doubts) -> Value<'a> {
    let value = match param.place {
        Place::Vector => return Value::Null,
        Place::Register(_) | Place::Stack(_) => word(entry, param.place).map(|word| item.in_word(word)),
        Place::Pair(..) => pair(entry, param.place).map(dim3),
        Place::Block { word, bytes } => block(entry, word, bytes).and_then(|bytes| item.in_bytes(&bytes)),
    };
    value.unwrap_or_else(|| doubts.unreadable(param.name))
}

/// A structure that was passed by value on the stack.
pub fn block(entry: &Entry, word: u8, bytes: u16) -> Option<Vec<u8>> {
    let from = usize::from(word);
    let words = entry.stack.get(from..from + usize::from(bytes).div_ceil(8))?;
    Some(words.iter().flat_map(|w| w.to_le_bytes()).collect())
}

fn show<'a>(
    param: &Param,
    read: Option<Piece<'a>>,
    null: Value<'a>,
    doubts: &mut Doubts,
    value: impl FnOnce(&'a [u8], bool) -> Option<Value<'a>>,
) -> Value<'a> {
    let shown = match read {
        Some(Piece::Null) => return null,
        Some(Piece::Bytes { bytes, cut }) => value(bytes, cut),
        Some(Piece::Unreadable) | None => None,
    };
    shown.unwrap_or_else(|| doubts.unreadable(param.name))
}

fn list<'a>(param: &Param, read: Option<Piece<'a>>, item: Item, doubts: &mut Doubts) -> Value<'a> {
    doubts.cut(param.name, read);
    show(param, read, Value::Hex(0), doubts, |bytes, _| {
        let items = bytes.chunks_exact(item.bytes().into()).filter_map(|b| item.in_bytes(b));
        Some(Value::Array(List::Owned(items.collect())))
    })
}

fn text<'a>(param: &Param, read: Option<Piece<'a>>, doubts: &mut Doubts) -> Value<'a> {
    doubts.cut(param.name, read);
    show(param, read, Value::Null, doubts, |bytes, cut| Some(Value::Text(string(bytes, cut))))
}

fn one<'a>(
    param: &Param,
    read: Option<Piece<'a>>,
    item: Item,
    null: Value<'a>,
    doubts: &mut Doubts,
) -> Value<'a> {
    show(param, read, null, doubts, |bytes, _| item.in_bytes(bytes))
}

/// The text up to its zero; a truncated text ends in `…`.
fn string(bytes: &[u8], cut: bool) -> Cow<'_, str> {
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    if !cut {
        return String::from_utf8_lossy(text);
    }
    // Omits a character that was cut in two.
    let whole = match std::str::from_utf8(text) {
        Err(bad) if bad.error_len().is_none() => text.get(..bad.valid_up_to()).unwrap_or(text),
        _ => text,
    };
    Cow::Owned(String::from_utf8_lossy(whole).into_owned() + "…")
}
