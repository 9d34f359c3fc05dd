//! Turns bytes into named values, by the rows of layouts.txt.
//!
//! In: a row, the pieces that were read. Out: arguments appended to a list, and whether all fields were read. The bytes
//! come from another program, so no input makes this fail; a field that was not read is left out.

use std::borrow::Cow;

use super::handles::Handles;
use super::layouts::{Field, Kind, Row};
use super::names::{Names, class_value, engine_value};
use gpurec_trace::bytes::{little_endian, uuid};
use gpurec_trace::{Arg, Value, lossy};

pub type Args = Vec<Arg<'static>>;

/// The parts of a payload that were read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub payload: &'a [u8],
    /// A later part of it, and the offset where that begins.
    pub tail: Option<(u16, &'a [u8])>,
    /// The size of the whole payload.
    pub size: u32,
}

/// The tables for looking up names.
#[derive(Clone, Copy)]
pub struct NameTables<'a> {
    pub names: &'a Names,
    pub handles: &'a Handles,
}

impl<'a> View<'a> {
    pub fn of(payload: &'a [u8]) -> View<'a> {
        View { payload, tail: None, size: 0 }
    }

    fn bytes(&self, at: u16, count: u16) -> Option<&'a [u8]> {
        let first = slice(self.payload, at, count);
        first.or_else(|| self.tail.and_then(|(begin, tail)| slice(tail, at.checked_sub(begin)?, count)))
    }

    pub fn word(&self, at: u16) -> Option<u32> {
        self.bytes(at, 4)?.try_into().ok().map(u32::from_ne_bytes)
    }
}

fn slice(bytes: &[u8], at: u16, count: u16) -> Option<&[u8]> {
    let at = usize::from(at);
    bytes.get(at..at + usize::from(count))
}

pub fn hex(number: u32) -> Value<'static> {
    Value::Hex(u64::from(number))
}

/// Appends `fields`; returns false if one of them was not read.
pub fn append<'f>(
    out: &mut Args,
    row: &Row,
    fields: impl Iterator<Item = &'f Field>,
    view: View,
    known: NameTables,
) -> bool {
    let mut complete = true;
    let client = row.client_at.and_then(|at| view.word(at));
    for field in fields {
        match value(field, view, known) {
            Some(value) if field.optional && is_zero(&value) => {}
            Some(value) => out.push(Arg { name: key(field.name, out), value }),
            None => complete = false,
        }
        if let Kind::Handle(Some(name)) = field.kind
            && let (Some(client), Some(object)) = (client, view.word(field.at))
        {
            append_class(out, name, client, object, known);
        }
    }
    complete
}

/// The key of a field, which must be unique in its line: a request and its parameters may both have `flags`.
fn key(name: &'static str, taken: &Args) -> Cow<'static, str> {
    match taken.iter().any(|arg| arg.name == name) {
        true => Cow::Owned(format!("params_{name}")),
        false => Cow::Borrowed(name),
    }
}

/// Appends the class of an object, if it is known.
pub fn append_class(out: &mut Args, name: &'static str, client: u32, object: u32, known: NameTables) {
    if let Some(class) = known.handles.class(client, object) {
        out.push(Arg::new(name, class_value(known.names.class(class), class)));
    }
}

fn value(field: &Field, view: View, known: NameTables) -> Option<Value<'static>> {
    let bytes = |count| view.bytes(field.at, count);
    Some(match field.kind {
        Kind::Handle(_) => hex(view.word(field.at)?),
        Kind::Class => {
            let class = view.word(field.at)?;
            class_value(known.names.class(class), class)
        }
        Kind::Engine => engine_value(view.word(field.at)?),
        Kind::Hex(n) => Value::Hex(little_endian(bytes(n)?)),
        Kind::Number(n) => Value::Number(little_endian(bytes(n)?)),
        Kind::Signed(n) => signed(bytes(n)?),
        Kind::Bool => Value::Bool(little_endian(bytes(1)?) != 0),
        Kind::Uuid => match bytes(16)? {
            bytes if bytes == CPU_UUID => Value::Text(Cow::Borrowed("CPU")),
            bytes => gpu_uuid(bytes),
        },
        Kind::Text(n) => text(field.at, n, view)?,
        Kind::Last => match little_endian(bytes(8)?).checked_add(1) {
            Some(size) => Value::Number(size),
            None => Value::Hex(u64::MAX),
        },
        Kind::Count(unit) => Value::Number(u64::from(view.size / unit.max(1))),
    })
}

fn is_zero(value: &Value) -> bool {
    matches!(value, Value::Hex(0) | Value::Number(0) | Value::Signed(0))
}

pub fn signed(bytes: &[u8]) -> Value<'static> {
    let unused = 64_u32.saturating_sub(8 * bytes.len() as u32).min(63);
    (((little_endian(bytes) << unused) as i64) >> unused).into()
}

/// The text up to its zero or to the end of what was read; `None` if none of it was read.
fn text(at: u16, count: u16, view: View) -> Option<Value<'static>> {
    let rest = view.payload.get(usize::from(at)..).filter(|rest| !rest.is_empty())?;
    let field = rest.get(..usize::from(count)).unwrap_or(rest);
    let text = field.split(|byte| *byte == 0).next().unwrap_or(field);
    Some(Value::Text(Cow::Owned(lossy(text).into_owned())))
}

/// UVM's id of the CPU, in memory order.
const CPU_UUID: [u8; 16] =
    [0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73];

/// As nvidia-smi -L shows it.
pub fn gpu_uuid(bytes: &[u8]) -> Value<'static> {
    Value::Text(Cow::Owned(format!("GPU-{}", uuid(bytes))))
}
