//! The structures that pointers of CUDA's and NCCL's functions lead to, with the offsets of their informative fields. The offsets
//! are the same in toolkits 11.8 to 13.5 and on both architectures. In: layouts.txt, written by hand, of which a line
//! has a name, a number of bytes and NAME:TYPE@OFFSET for each field. Out: layouts and types by their words.

use std::sync::LazyLock;

use super::item::{Field, Item, Layout};
use super::names;

/// A launch configuration contains a pointer to a list of attributes.
pub const ATTRIBUTES_AT: u16 = 40;
pub const ATTRIBUTE_COUNT_AT: u16 = 48;
pub const ATTRIBUTE_BYTES: u16 = 72;

pub static LAYOUTS: LazyLock<Vec<Layout>> =
    LazyLock::new(|| include_str!("layouts.txt").lines().filter_map(parse).collect());

fn parse(line: &'static str) -> Option<Layout> {
    let mut words = line.split(' ');
    let (name, bytes) = (words.next()?, words.next()?.parse().ok()?);
    Some(Layout { name, bytes, fields: words.map(parse_field).collect::<Option<_>>()? })
}

fn parse_field(word: &'static str) -> Option<Field> {
    let (name, rest) = word.split_once(':')?;
    let (item, offset) = rest.split_once('@')?;
    let item = match item.strip_prefix("enum=") {
        Some(of) => Item::Enum(names::constants(of)),
        None => match item {
            "dim3" => Item::Dim3,
            "uuid" => Item::Uuid,
            "bytes64" => Item::Opaque(64),
            "digest128" => Item::Digest(128),
            _ => scalar(item)?,
        },
    };
    Some(Field { name, offset: offset.parse().ok()?, item })
}

pub fn layout_named(name: &str) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|l| l.name == name)
}

/// The type of a number, by its word.
pub fn scalar(word: &str) -> Option<Item> {
    Some(match word {
        "ptr" | "handle" | "devptr" | "fnptr" => Item::Hex(8),
        "devptr32" => Item::Hex(4),
        "u64" | "size" | "dim" | "usize" | "flags64" => Item::Unsigned(8),
        "u32" | "flags" => Item::Unsigned(4),
        "u16" => Item::Unsigned(2),
        "u8" => Item::Unsigned(1),
        "i32" | "device" => Item::Signed(4),
        "f32" | "float" => Item::Float(4),
        "f64" => Item::Float(8),
        _ => return None,
    })
}
