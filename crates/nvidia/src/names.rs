//! The names of numbers in one driver version: RM commands, classes, statuses, engines.
//!
//! In: commands.txt, classes.txt, statuses.txt, the driver's version, a number. Out: a name. `of` selects among changed
//! names once; a look-up is a binary search.
//!
//! A line is `number name`, in classes.txt also the parameters of RM_ALLOC (`-`: none), then `first-last`, the drivers
//! that have it, if not all. Lines ascend by number; of several names for one number in one driver the first is used.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::version::{Span, Version, choose};
use gpurec_trace::Value;

/// The names in one driver version.
#[derive(Debug)]
pub struct Names {
    /// Sorted by number.
    commands: Vec<(u32, &'static str)>,
    classes: Vec<(u32, Class)>,
    statuses: Vec<(u32, &'static str)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Class {
    pub name: &'static str,
    /// The type of RM_ALLOC's parameters, if known: a row of layouts.txt.
    pub params: Option<&'static str>,
}

/// Control commands with this bit have no public names: RM passes them to the firmware unchanged.
const GSS_LEGACY: u32 = 0x8000;

/// NV2080_ENGINE_TYPE_*, by number.
const ENGINES: &str = "NULL GR0 GR1 GR2 GR3 GR4 GR5 GR6 GR7 \
    COPY0 COPY1 COPY2 COPY3 COPY4 COPY5 COPY6 COPY7 COPY8 COPY9 \
    NVDEC0 NVDEC1 NVDEC2 NVDEC3 NVDEC4 NVDEC5 NVDEC6 NVDEC7 NVENC0 NVENC1 NVENC2 \
    VP ME PPP MPEG SW TSEC VIC MP SEC2 HOST DPU PMU FBFLCN \
    NVJPEG0 NVJPEG1 NVJPEG2 NVJPEG3 NVJPEG4 NVJPEG5 NVJPEG6 NVJPEG7 OFA0 \
    COPY10 COPY11 COPY12 COPY13 COPY14 COPY15 COPY16 COPY17 COPY18 COPY19 OFA1 NVENC3";

static ENGINE: LazyLock<Vec<&'static str>> = LazyLock::new(|| ENGINES.split_whitespace().collect());

impl Names {
    /// Made once per driver version: making it takes a millisecond, and several callers need it.
    pub fn of(version: Version) -> Arc<Names> {
        static MADE: Mutex<Vec<(Version, Arc<Names>)>> = Mutex::new(Vec::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, names)) = made.iter().find(|(known, _)| *known == version) {
            return names.clone();
        }
        let names = Arc::new(Names::made(version));
        made.push((version, names.clone()));
        names
    }

    fn made(version: Version) -> Names {
        Names {
            commands: resolved(include_str!("commands.txt"), version, named),
            classes: resolved(include_str!("classes.txt"), version, class),
            statuses: resolved(include_str!("statuses.txt"), version, named),
        }
    }

    /// NV2080_CTRL_CMD_…; `None` if it has no name.
    pub fn command(&self, number: u32) -> Option<Cow<'static, str>> {
        match find(&self.commands, number) {
            Some(name) => Some(Cow::Borrowed(name)),
            None if number & GSS_LEGACY != 0 => Some(Cow::Owned(format!("GSS_LEGACY_0x{number:08x}"))),
            None => None,
        }
    }

    pub fn class(&self, number: u32) -> Option<Class> {
        find(&self.classes, number)
    }

    pub fn status(&self, number: u32) -> Cow<'static, str> {
        match find(&self.statuses, number) {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("{number:#x}")),
        }
    }
}

/// A class by name, or its number.
pub fn class_value(class: Option<Class>, number: u32) -> Value<'static> {
    match class {
        Some(class) => Value::Text(Cow::Borrowed(class.name)),
        None => Value::Hex(u64::from(number)),
    }
}

/// An engine by name, or its number.
pub fn engine_value(number: u32) -> Value<'static> {
    match ENGINE.get(number as usize) {
        Some(name) => Value::Text(Cow::Borrowed(name)),
        None => Value::Number(u64::from(number)),
    }
}

fn find<T: Copy>(sorted: &[(u32, T)], number: u32) -> Option<T> {
    let at = sorted.binary_search_by_key(&number, |(known, _)| *known).ok()?;
    sorted.get(at).map(|(_, found)| *found)
}

/// Parses the rest of a line after its number.
type Parse<T> = fn(&mut std::str::SplitWhitespace<'static>) -> Option<T>;

fn named(words: &mut std::str::SplitWhitespace<'static>) -> Option<&'static str> {
    words.next()
}

fn class(words: &mut std::str::SplitWhitespace<'static>) -> Option<Class> {
    let name = words.next()?;
    // The span, if there is one, is preceded by the parameters or a dash.
    let params = words.next().filter(|word| *word != "-");
    Some(Class { name, params })
}

/// One entry for each number of a table, which is sorted by number.
fn resolved<T: Copy>(table: &'static str, version: Version, parse: Parse<T>) -> Vec<(u32, T)> {
    let rows: Vec<(u32, Span, T)> = table.lines().filter_map(|line| row(line, parse)).collect();
    rows.chunk_by(|a, b| a.0 == b.0)
        .filter_map(|same| {
            let number = same.first()?.0;
            choose(same.iter().map(|(_, span, item)| (*span, *item)), version).map(|item| (number, item))
        })
        .collect()
}

fn row<T>(line: &'static str, parse: Parse<T>) -> Option<(u32, Span, T)> {
    let mut words = line.split_whitespace();
    let number = u32::from_str_radix(words.next()?, 16).ok()?;
    let item = parse(&mut words)?;
    Some((number, Span::parse(words.next())?, item))
}
