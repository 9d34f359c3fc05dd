//! The arguments of a call: as the recorder captured them, or as a file contains them.
//!
//! In a file they are half of the text, and most readers look at one of them or at none. So a line that gpurec wrote
//! keeps their text, known to be well-formed, and `get` searches it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::json;
use super::scan::Scan;
use super::value::{Arg, List, Value, next_pair};

/// The number of registers that carry arguments.
pub const MAX_RAW: usize = 6;

/// The names of arguments whose signature is unknown.
const RAW_NAMES: [&str; MAX_RAW] = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];

/// The argument that lists the others that could not be read.
const UNREADABLE: &str = "unreadable";

#[derive(Clone, Debug)]
pub enum Args<'a> {
    /// Registers of a call with an unknown signature: `arg0`, `arg1`…
    Raw(Registers),
    Named(List<'a, Arg<'a>>),
    /// The text in the file.
    Json(Json<'a>),
}

/// Up to six registers, stored inline so that a call costs no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    registers: [u64; MAX_RAW],
    count: u8,
}

/// The text of an object, well-formed and plain (see scan.rs). Only this module can make one.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a>(&'a str);

impl Registers {
    /// The first six of `registers`.
    pub fn new(registers: &[u64]) -> Registers {
        let mut raw = Registers::default();
        for value in registers.iter().take(MAX_RAW) {
            raw.push(*value);
        }
        raw
    }

    fn push(&mut self, value: u64) -> bool {
        let Some(slot) = self.registers.get_mut(usize::from(self.count)) else {
            return false;
        };
        *slot = value;
        self.count += 1;
        true
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        const BEFORE: [&[u8; 11]; MAX_RAW] = [
            b"{\"arg0\":\"0x",
            b",\"arg1\":\"0x",
            b",\"arg2\":\"0x",
            b",\"arg3\":\"0x",
            b",\"arg4\":\"0x",
            b",\"arg5\":\"0x",
        ];
        if self.is_empty() {
            out.push(b'{');
        }
        for (before, value) in BEFORE.iter().zip(self.iter()) {
            out.extend_from_slice(*before);
            json::hex_digits(out, *value);
        }
        out.push(b'}');
    }

    fn get(&self, name: &str) -> Option<u64> {
        RAW_NAMES.iter().zip(self.iter()).find(|(known, _)| **known == name).map(|(_, value)| *value)
    }
}

impl Deref for Registers {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        self.registers.get(..usize::from(self.count)).unwrap_or(&self.registers)
    }
}

impl Default for Args<'_> {
    fn default() -> Self {
        Args::Raw(Registers::default())
    }
}

/// Compares the values, however they are stored.
impl PartialEq for Args<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Args::Raw(a), Args::Raw(b)) => a == b,
            (Args::Named(a), Args::Named(b)) => a == b,
            (Args::Json(_), _) | (_, Args::Json(_)) => self.parsed() == other.parsed(),
            (Args::Raw(_), Args::Named(_)) | (Args::Named(_), Args::Raw(_)) => false,
        }
    }
}

impl<'a> Args<'a> {
    pub fn raw(registers: &[u64]) -> Args<'a> {
        Args::Raw(Registers::new(registers))
    }

    pub(super) fn json(text: &'a str) -> Args<'a> {
        Args::Json(Json(text))
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Args::Raw(raw) => raw.is_empty(),
            Args::Named(args) => args.is_empty(),
            Args::Json(Json(text)) => *text == "{}",
        }
    }

    /// The value of a named argument.
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        match self {
            Args::Raw(raw) => raw.get(name).map(Value::Hex),
            Args::Named(args) => args.iter().find(|arg| arg.name == name).map(|arg| arg.value.lent()),
            Args::Json(Json(text)) => in_text(text, name),
        }
    }

    /// Passes the name and the value of each argument to `take`.
    pub fn each(&self, mut take: impl FnMut(&str, &Value)) {
        match self {
            Args::Raw(raw) => RAW_NAMES
                .iter()
                .zip(raw.iter())
                .for_each(|(name, register)| take(name, &Value::Hex(*register))),
            Args::Named(args) => args.iter().for_each(|arg| take(&arg.name, &arg.value)),
            Args::Json(json) => json
                .pairs()
                .filter_map(|(name, text)| Some((name, value(text)?)))
                .for_each(|(name, it)| take(name, &it)),
        }
    }

    /// The value of the first argument.
    pub fn first(&self) -> Option<Value<'_>> {
        match self {
            Args::Raw(raw) => raw.first().copied().map(Value::Hex),
            Args::Named(args) => args.first().map(|arg| arg.value.lent()),
            Args::Json(json) => json.pairs().next().and_then(|(_, text)| value(text)),
        }
    }

    /// Appends the arguments as a JSON object; those from a file unchanged.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Args::Raw(registers) => registers.write_json(out),
            Args::Named(args) => json::object(out, args),
            Args::Json(Json(text)) => out.extend_from_slice(text.as_bytes()),
        }
    }

    /// The arguments as a JSON object, if they are from a file that has them as gpurec writes them.
    pub fn text(&self) -> Option<&str> {
        match self {
            Args::Json(Json(text)) => Some(text),
            Args::Raw(_) | Args::Named(_) => None,
        }
    }

    /// For users: `name=value`, separated by commas. A value that could not be read is not shown as NULL.
    pub fn shown(&self) -> String {
        match self.parsed().as_ref() {
            Args::Raw(raw) => {
                let pairs =
                    RAW_NAMES.iter().zip(raw.iter()).map(|(name, value)| format!("{name}={value:#x}"));
                pairs.collect::<Vec<_>>().join(", ")
            }
            Args::Named(args) => {
                let unreadable = args.iter().find(|arg| arg.name == UNREADABLE).map(|arg| &arg.value);
                let is_unreadable = |name: &str| match unreadable {
                    Some(Value::Array(names)) => {
                        names.iter().any(|n| matches!(n, Value::Text(n) if n == name))
                    }
                    _ => false,
                };
                let pairs = args.iter().filter(|arg| arg.name != UNREADABLE).map(|arg| match &arg.value {
                    Value::Null if is_unreadable(&arg.name) => format!("{}=?", arg.name),
                    value => format!("{}={value}", arg.name),
                });
                pairs.collect::<Vec<_>>().join(", ")
            }
            Args::Json(_) => String::new(),
        }
    }

    /// All arguments, each as a value.
    pub fn parsed(&self) -> Cow<'_, Args<'a>> {
        match self {
            // The text was checked before, so this does not fail.
            Args::Json(Json(text)) => Cow::Owned(serde_json::from_str(text).unwrap_or_default()),
            known => Cow::Borrowed(known),
        }
    }
}

impl<'a> Json<'a> {
    /// Each name with the text of its value.
    fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut scan = Scan::new(self.0);
        std::iter::from_fn(move || {
            // A brace before the first, a comma before the others.
            if !scan.eat("{\"") && !scan.eat(",\"") {
                return None;
            }
            let name = scan.string()?;
            scan.eat(":").then_some(())?;
            Some((name, scan.value()?))
        })
    }
}

/// The value of a named argument in the text of all, which is plain and well-formed.
pub(super) fn in_text<'a>(text: &'a str, name: &str) -> Option<Value<'a>> {
    Json(text).pairs().find(|(key, _)| *key == name).and_then(|(_, text)| value(text))
}

/// Parses the text of a value, which is plain and well-formed.
fn value(text: &str) -> Option<Value<'_>> {
    match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(string) => Some(Value::of_text(string)),
        None => serde_json::from_str(text).ok(),
    }
}

impl<'de> Deserialize<'de> for Args<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ArgsVisitor)
    }
}

struct ArgsVisitor;

impl<'de> Visitor<'de> for ArgsVisitor {
    type Value = Args<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("arguments by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Args<'de>, A::Error> {
        let mut raw = Registers::default();
        while let Some((name, value)) = next_pair(&mut map)? {
            let expected = RAW_NAMES.get(usize::from(raw.count));
            if let Value::Hex(register) = value
                && expected == Some(&name.as_ref())
                && raw.push(register)
            {
                continue;
            }
            return named(raw, Arg { name, value }, map).map(|l| Args::Named(List::Owned(l)));
        }
        Ok(Args::Raw(raw))
    }
}

/// Reads the arguments as a list, once one is not the next raw register.
fn named<'de, A: MapAccess<'de>>(
    raw: Registers,
    other: Arg<'de>,
    mut map: A,
) -> Result<Vec<Arg<'de>>, A::Error> {
    let mut list: Vec<Arg> = RAW_NAMES
        .iter()
        .zip(raw.iter())
        .map(|(name, value)| Arg { name: Cow::Borrowed(*name), value: Value::Hex(*value) })
        .collect();
    list.push(other);
    while let Some((name, value)) = next_pair(&mut map)? {
        list.push(Arg { name, value });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_no_null() {
        let text = r#"{"name":null,"other":null,"count":3,"unreadable":["name"]}"#;
        let args: Args = serde_json::from_str(text).unwrap();
        assert_eq!(args.shown(), "name=?, other=NULL, count=3");
    }
}
