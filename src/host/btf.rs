//! Reads function prototypes from BTF, Linux's type information. In: the bytes of /sys/kernel/btf/vmlinux, and of a
//! module's file in the same folder, which continues it. Out: names, parameters and return types. Pure. Bytes that are
//! not BTF give None; an unknown kind of type ends the reading there.

use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Void,
    Pointer,
    Bool,
    Signed(u32),
    Unsigned(u32),
    /// A structure or union by value, with its size in bytes.
    Struct(u32),
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    pub name: String,
    pub kind: Type,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proto {
    pub params: Vec<Param>,
    /// It takes more arguments than the named ones.
    pub variadic: bool,
    pub returns: Type,
}

/// Prototypes by name. If two functions of one name differ, the map has neither.
pub type Protos = HashMap<String, Proto>;

pub struct Btf<'a> {
    base: Option<&'a Btf<'a>>,
    bytes: &'a [u8],
    /// The offset in `bytes` of each type.
    types: Vec<u32>,
    first_id: u32,
    strings: &'a [u8],
    first_string: u32,
}

const MAGIC: u16 = 0xeb9f;
/// The limit of names, qualifiers and typedefs that may wrap a type.
const DEEPEST: usize = 32;
const STRUCT: u32 = 4;
const FUNC: u32 = 12;

#[derive(Clone, Copy)]
struct Header {
    name: u32,
    kind: u32,
    members: u32,
    flag: bool,
    /// A size, or the id of another type.
    word: u32,
    /// The offset of the rest.
    rest: usize,
}

impl<'a> Btf<'a> {
    pub fn parse(bytes: &'a [u8], base: Option<&'a Btf<'a>>) -> Option<Btf<'a>> {
        let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC {
            return None;
        }
        let header = u32_at(bytes, 4)? as usize;
        let part = |at| -> Option<(usize, usize)> {
            let start = header.checked_add(u32_at(bytes, at)? as usize)?;
            Some((start, start.checked_add(u32_at(bytes, at + 4)? as usize)?))
        };
        let (types, types_end) = part(8)?;
        let (strings, strings_end) = part(16)?;
        let mut btf = Btf {
            base,
            bytes: bytes.get(..types_end)?,
            types: Vec::new(),
            first_id: base.map_or(1, Btf::next_id),
            strings: bytes.get(strings..strings_end)?,
            first_string: base.map_or(0, |base| base.first_string + base.strings.len() as u32),
        };
        btf.index(types);
        Some(btf)
    }

    fn next_id(&self) -> u32 {
        self.first_id + self.types.len() as u32
    }

    fn index(&mut self, mut at: usize) {
        while let Some(header) = header_at(self.bytes, at) {
            let members = header.members as usize;
            let size = match header.kind {
                2 | 7..=12 | 16 | 18 => 0,
                1 | 14 | 17 => 4,
                3 => 12,
                6 | 13 => members * 8,
                4 | 5 | 15 | 19 => members * 12,
                _ => return,
            };
            if header.rest + size > self.bytes.len() {
                return;
            }
            self.types.push(at as u32);
            at = header.rest + size;
        }
    }

    fn header(&self, id: u32) -> Option<(&Btf<'a>, Header)> {
        let Some(index) = id.checked_sub(self.first_id) else { return self.base?.header(id) };
        let at = *self.types.get(index as usize)?;
        Some((self, header_at(self.bytes, at as usize)?))
    }

    fn text(&self, offset: u32) -> Option<&str> {
        let Some(at) = offset.checked_sub(self.first_string) else { return self.base?.text(offset) };
        let rest = self.strings.get(at as usize..)?;
        std::str::from_utf8(rest.get(..memchr::memchr(0, rest)?)?).ok()
    }

    /// True if the string at `offset` is `text`: faster than a search for its end.
    fn is(&self, offset: u32, text: &str) -> bool {
        let rest = offset.checked_sub(self.first_string).and_then(|at| self.strings.get(at as usize..));
        rest.is_some_and(|rest| rest.starts_with(text.as_bytes()) && rest.get(text.len()) == Some(&0))
    }

    /// The types of this file, without its base.
    fn own(&self) -> impl Iterator<Item = Header> {
        self.types.iter().filter_map(|at| header_at(self.bytes, *at as usize))
    }

    /// The functions of this file; `wanted` selects them by name.
    pub fn functions(&self, wanted: impl Fn(&str) -> bool) -> Protos {
        let mut found: HashMap<String, Option<Proto>> = HashMap::new();
        for header in self.own().filter(|header| header.kind == FUNC) {
            let Some(name) = self.text(header.name).filter(|name| wanted(name)) else { continue };
            let proto = self.proto(header.word);
            found
                .entry(name.to_owned())
                .and_modify(|known| {
                    if *known != proto {
                        *known = None;
                    }
                })
                .or_insert(proto);
        }
        found.into_iter().filter_map(|(name, proto)| Some((name, proto?))).collect()
    }

    /// Returns those of these structures that exist.
    pub fn structs<'n>(&self, names: &[&'n str]) -> HashSet<&'n str> {
        let structs = self.own().filter(|header| header.kind == STRUCT);
        structs.filter_map(|header| names.iter().copied().find(|name| self.is(header.name, name))).collect()
    }

    pub fn has_function(&self, name: &str) -> bool {
        self.own().any(|header| header.kind == FUNC && self.text(header.name) == Some(name))
    }

    /// True if an enumeration of this name has this member.
    pub fn has_enumerator(&self, of: &str, member: &str) -> bool {
        self.own().filter(|header| header.kind == 6 && self.text(header.name) == Some(of)).any(|header| {
            (0..header.members as usize)
                .filter_map(|i| u32_at(self.bytes, header.rest + i * 8))
                .any(|name| self.text(name) == Some(member))
        })
    }

    fn proto(&self, id: u32) -> Option<Proto> {
        let (of, header) = self.header(id)?;
        if header.kind != 13 {
            return None;
        }
        let mut proto = Proto { params: Vec::new(), variadic: false, returns: self.resolve(header.word)? };
        for i in 0..header.members as usize {
            let at = header.rest + i * 8;
            let (name, kind) = (u32_at(of.bytes, at)?, u32_at(of.bytes, at + 4)?);
            if kind == 0 {
                proto.variadic = true;
                break;
            }
            let name = match self.text(name)? {
                "" => format!("arg{i}"),
                name => name.to_owned(),
            };
            proto.params.push(Param { name, kind: self.resolve(kind)? });
        }
        Some(proto)
    }

    fn resolve(&self, mut id: u32) -> Option<Type> {
        for _ in 0..DEEPEST {
            if id == 0 {
                return Some(Type::Void);
            }
            let (of, header) = self.header(id)?;
            return Some(match header.kind {
                2 => Type::Pointer,
                8..=11 | 18 => {
                    id = header.word;
                    continue;
                }
                1 => integer(header.word, u32_at(of.bytes, header.rest)?),
                6 | 19 if header.flag => Type::Signed(header.word),
                6 | 19 => Type::Unsigned(header.word),
                4 | 5 => Type::Struct(header.word),
                _ => Type::Other,
            });
        }
        None
    }
}

fn integer(size: u32, encoding: u32) -> Type {
    match encoding >> 24 & 0xf {
        4 => Type::Bool,
        1 => Type::Signed(size),
        _ => Type::Unsigned(size),
    }
}

fn header_at(bytes: &[u8], at: usize) -> Option<Header> {
    let info = u32_at(bytes, at + 4)?;
    Some(Header {
        name: u32_at(bytes, at)?,
        kind: info >> 24 & 0x1f,
        members: info & 0xffff,
        flag: info >> 31 == 1,
        word: u32_at(bytes, at + 8)?,
        rest: at + 12,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl Type {
    /// The number of argument registers that it takes; None: it is in memory, or this is unknown.
    fn registers(self) -> Option<usize> {
        match self {
            Type::Struct(0..=8) | Type::Pointer | Type::Bool => Some(1),
            Type::Signed(size) | Type::Unsigned(size) if size <= 8 => Some(1),
            Type::Struct(9..=16) => Some(2),
            // On AArch64 a pointer to a copy is passed instead.
            Type::Struct(_) => Some(usize::from(cfg!(target_arch = "aarch64"))),
            _ => None,
        }
    }
}

impl Proto {
    /// The register that holds each parameter, as far as registers suffice. Leaves out structures by value, which have
    /// no register of their own, and all parameters after one that does not fit.
    pub fn registers(&self) -> Vec<(&Param, u8)> {
        let mut places = Vec::new();
        // On x86-64 a structure that is returned in memory takes the first register for its address.
        let mut next = match self.returns {
            Type::Struct(17..) if cfg!(target_arch = "x86_64") => 1,
            _ => 0,
        };
        for param in &self.params {
            let Some(count) = param.kind.registers() else { break };
            if next + count > 6 {
                break;
            }
            if !matches!(param.kind, Type::Struct(_)) {
                places.push((param, next as u8));
            }
            next += count;
        }
        places
    }

    /// The reason why BPF's trampolines cannot hook this function.
    pub fn against_trampoline(&self) -> Option<&'static str> {
        if self.variadic {
            Some("it takes a variable number of arguments")
        } else if matches!(self.returns, Type::Struct(9..)) {
            Some("it returns a structure")
        } else if self.params.len() > 12 {
            Some("it takes more than 12 arguments")
        } else if self.params.iter().any(|param| matches!(param.kind, Type::Struct(17..))) {
            Some("it takes a large structure by value")
        } else {
            None
        }
    }
}
