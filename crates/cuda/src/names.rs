//! Names of CUDA's constants. enums.txt is made by scripts/cuda-table.

use std::collections::HashMap;
use std::sync::LazyLock;

#[derive(Debug, PartialEq, Eq)]
pub struct Constant {
    pub code: i32,
    pub name: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// Zero is the name for no flags at all.
    pub bit: u64,
    pub name: &'static str,
}

const fn flag(bit: u64, name: &'static str) -> Flag {
    Flag { bit, name }
}

/// The constants of each enumeration, by code.
static ENUMS: LazyLock<HashMap<&'static str, Vec<Constant>>> = LazyLock::new(|| {
    let mut all: HashMap<&str, Vec<Constant>> = HashMap::new();
    for (of, constant) in include_str!("enums.txt").lines().filter_map(parse_constant) {
        all.entry(of).or_default().push(constant);
    }
    all
});

fn parse_constant(line: &'static str) -> Option<(&'static str, Constant)> {
    let mut words = line.split(' ');
    let of = words.next()?;
    Some((of, Constant { code: words.next()?.parse().ok()?, name: words.next()? }))
}

/// The constants of an enumeration, sorted by code; empty if it is unknown.
pub fn constants(of: &str) -> &'static [Constant] {
    ENUMS.get(of).map_or(&[], Vec::as_slice)
}

/// The named flags of a set, by its word in table.txt.
pub fn flags(set: &str) -> Option<&'static [Flag]> {
    Some(match set {
        "stream" => const { &[flag(0, "DEFAULT"), flag(1, "NON_BLOCKING")] },
        "event" => {
            const {
                &[
                    flag(0, "DEFAULT"),
                    flag(1, "BLOCKING_SYNC"),
                    flag(2, "DISABLE_TIMING"),
                    flag(4, "INTERPROCESS"),
                ]
            }
        }
        "hostalloc" => {
            const { &[flag(0, "DEFAULT"), flag(1, "PORTABLE"), flag(2, "DEVICEMAP"), flag(4, "WRITECOMBINED")] }
        }
        "hostregister" => {
            const {
                &[
                    flag(0, "DEFAULT"),
                    flag(1, "PORTABLE"),
                    flag(2, "DEVICEMAP"),
                    flag(4, "IOMEMORY"),
                    flag(8, "READ_ONLY"),
                ]
            }
        }
        "attach" => const { &[flag(1, "GLOBAL"), flag(2, "HOST"), flag(4, "SINGLE")] },
        "context" => {
            const {
                &[
                    flag(0, "SCHED_AUTO"),
                    flag(1, "SCHED_SPIN"),
                    flag(2, "SCHED_YIELD"),
                    flag(4, "SCHED_BLOCKING_SYNC"),
                    flag(8, "MAP_HOST"),
                    flag(0x10, "LMEM_RESIZE_TO_MAX"),
                    flag(0x20, "COREDUMP_ENABLE"),
                    flag(0x40, "USER_COREDUMP_ENABLE"),
                    flag(0x80, "SYNC_MEMOPS"),
                ]
            }
        }
        _ => return None,
    })
}
