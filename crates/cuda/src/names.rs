//! Names of CUDA's and NCCL's constants. In: enums.txt, which scripts/cuda-table makes, and by hand flags.txt and
//! nccl-enums.txt, from nccl.h of versions 2.18.1 to 2.32.3: lines of a type or a set, a number and its name. Out: the names of a type or a set.

use std::collections::HashMap;
use std::sync::LazyLock;

#[derive(Debug, PartialEq, Eq)]
pub struct Constant {
    /// Of a set of flags: one bit. Zero is the name for no flags at all.
    pub code: i32,
    pub name: &'static str,
}

/// The constants of each enumeration, by code.
static ENUMS: LazyLock<HashMap<&'static str, Vec<Constant>>> = LazyLock::new(|| {
    let mut all: HashMap<&str, Vec<Constant>> = HashMap::new();
    let files = [include_str!("enums.txt"), include_str!("flags.txt"), include_str!("nccl-enums.txt")];
    for (of, constant) in files.iter().flat_map(|file| file.lines()).filter_map(parse_constant) {
        all.entry(of).or_default().push(constant);
    }
    all
});

fn parse_constant(line: &'static str) -> Option<(&'static str, Constant)> {
    let mut words = line.split(' ');
    let of = words.next()?;
    Some((of, Constant { code: words.next()?.parse().ok()?, name: words.next()? }))
}

/// The constants of an enumeration or a set of flags, sorted by code; empty if it is unknown.
pub fn constants(of: &str) -> &'static [Constant] {
    ENUMS.get(of).map_or(&[], Vec::as_slice)
}
