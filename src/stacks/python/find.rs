//! Whether a file is a CPython interpreter. In: an open ELF file. Out: where its `_PyRuntime` is and how its frames are
//! laid out, or why they cannot be read. A file that lies costs a bounded time, and then names addresses that hold
//! something else.

use std::fs::File;

use serde::{Deserialize, Serialize};

use super::layout::{DESCRIPTION, Layout, Unfit, release};
use gpurec_elf::{Data, Place};
use gpurec_trace::bytes::{u32_at, u64_at};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// It is no interpreter.
    None,
    /// `runtime` is the address of `_PyRuntime` in the file, to which the load base is added.
    Python { runtime: u64, layout: Layout },
    /// It is one, but its frames cannot be read: a sentence.
    Refused(String),
}

const RUNTIME: &str = "_PyRuntime";
/// What holds `_PyRuntime` alone, from 3.10: a stripped program that embeds Python still has it.
const SECTION: &str = ".PyRuntime";
const UNKNOWN: &str =
    "the version of this Python cannot be read from its file: use an interpreter that is not stripped";
/// The most read-only data that is searched for a version.
const MOST_TEXT: u64 = 64 << 20;

pub fn find(file: &File) -> Found {
    // Whether a file can be hooked is reported elsewhere.
    let Ok(data) = Data::read(file) else { return Found::None };
    let Some(runtime) = runtime(&data) else { return Found::None };
    match layout(&data, runtime) {
        Ok(layout) => Found::Python { runtime, layout },
        Err(sentence) => Found::Refused(sentence),
    }
}

fn runtime(data: &Data) -> Option<u64> {
    let exported = data.exported(RUNTIME).or_else(|| data.section(SECTION));
    // A program that embeds 3.9 need not export it. Libraries are not searched: they may be large, and Python's exports it.
    let place = exported.or_else(|| data.is_program().then(|| data.unexported(RUNTIME))?)?;
    (place.address != 0).then_some(place.address)
}

fn layout(data: &Data, runtime: u64) -> Result<Layout, String> {
    let head = data.bytes(Place { address: runtime, size: DESCRIPTION as u64 });
    if let Some(described) = head.as_deref().and_then(Layout::described) {
        return described.map_err(|unfit| unfit.to_string());
    }
    let version = version(data).ok_or_else(|| UNKNOWN.to_owned())?;
    let layout = match release(version) {
        (3, 13..) => Err(Unfit::Damaged),
        _ => Layout::of(version),
    };
    layout.map_err(|unfit| unfit.to_string())
}

/// As `PY_VERSION_HEX`, of versions that do not describe themselves.
fn version(data: &Data) -> Option<u32> {
    let symbol = |name| data.exported(name).or_else(|| data.unexported(name));
    if let Some(place) = symbol("Py_Version") {
        return u64_at(&data.bytes(Place { size: 8, ..place })?, 0)?.try_into().ok();
    }
    let said = symbol("Py_GetVersion").and_then(|place| version_in_code(data, place));
    said.or_else(|| version_of_folder(data))
}

/// `Py_GetVersion` is longer only where another function was inlined.
const MOST_CODE: u64 = 512;
/// The longest version: 3.10.100rc10+.
const LONGEST: u64 = 16;

/// `Py_GetVersion` loads the address of the version's text: before 3.11 nothing else states the version.
fn version_in_code(data: &Data, place: Place) -> Option<u32> {
    let code = data.bytes(Place { size: place.size.min(MOST_CODE), ..place })?;
    let targets = (0..code.len()).filter_map(|at| address_loaded(code.get(at..)?, place.address + at as u64));
    targets
        .filter_map(|address| data.bytes(Place { address, size: LONGEST }))
        .find_map(|text| version_of(&text))
}

/// The address that the instruction of x86-64 at the beginning of `code` loads: `lea disp(%rip)`, or `mov $address`.
fn address_loaded(code: &[u8], here: u64) -> Option<u64> {
    match code {
        [0x48 | 0x4c, 0x8d, modes, ..] if modes & 0xc7 == 5 => {
            let distance = u32_at(code, 3)? as i32;
            here.checked_add(7)?.checked_add_signed(distance.into())
        }
        [0xb8..=0xbf, ..] => u32_at(code, 1).map(u64::from),
        [0x48, 0xc7, 0xc0..=0xc7, ..] => u32_at(code, 3).map(u64::from),
        _ => None,
    }
}

/// Of "3.9.18", "3.10.0rc1+", up to the NUL.
fn version_of(text: &[u8]) -> Option<u32> {
    let text = text_of(text)?;
    let mut parts = text.trim_end_matches('+').splitn(3, '.');
    let (major, minor) = (number(parts.next()?)?, number(parts.next()?)?);
    let rest = parts.next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (micro, level) = rest.split_at(digits);
    let level = match level {
        "" => 0xf0,
        level if level.starts_with("rc") => 0xc0,
        level if level.starts_with('b') => 0xb0,
        level if level.starts_with('a') => 0xa0,
        _ => return None,
    };
    (major == 3)
        .then_some(u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(number(micro)?) << 8 | level)
}

fn text_of(bytes: &[u8]) -> Option<&str> {
    let end = memchr::memchr(0, bytes)?;
    std::str::from_utf8(bytes.get(..end)?).ok()
}

/// Refuses signs and spaces, unlike `parse`.
fn number(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// The folder of the standard library, which a stripped interpreter names too, says the minor version, if it names one only.
fn version_of_folder(data: &Data) -> Option<u32> {
    const BEFORE: &[u8] = b"python3.";
    let section = data.section(".rodata")?;
    let text = data.bytes(Place { size: section.size.min(MOST_TEXT), ..section })?;
    let mut minors = memchr::memmem::find_iter(&text, BEFORE).filter_map(|at| {
        let begins = at == 0 || matches!(text.get(at - 1), Some(0 | b'/'));
        let rest = text.get(at + BEFORE.len()..)?;
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let ends = matches!(rest.get(digits), Some(0 | b'/'));
        (begins && ends).then(|| number(std::str::from_utf8(rest.get(..digits)?).ok()?))?
    });
    let minor = minors.next()?;
    minors.all(|other| other == minor).then_some(0x0300_00f0 | u32::from(minor) << 16)
}
