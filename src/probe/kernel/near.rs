//! Suggestions for a name that does not exist. Pure.

use super::symbols::Kallsyms;

const SHOWN: usize = 3;
/// Shorter pieces of a pattern match by chance.
const SHORTEST: usize = 4;

/// Up to three functions whose names are close to this name or pattern, nearest first.
pub fn near<'a>(name: &str, kallsyms: &'a Kallsyms) -> Vec<&'a str> {
    let plain = |symbol: &str| !symbol.contains('.') && !symbol.starts_with("__pfx_");
    let names = || kallsyms.iter().map(|symbol| symbol.name).filter(|symbol| plain(symbol));
    let found = if is_glob(name) { containing(longest_piece(name), names) } else { misspelt(name, names()) };
    if found.is_empty() { containing(longest_piece(name), names) } else { found }
}

pub fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// `; near names: a, b`, or nothing.
pub fn hint(name: &str, kallsyms: &Kallsyms) -> String {
    match near(name, kallsyms).as_slice() {
        [] => String::new(),
        names => format!("; near names: {}", names.join(", ")),
    }
}

fn misspelt<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let most = (name.len() / 4).clamp(1, 4);
    let mut found: Vec<(usize, &str)> = names
        .filter(|other| other.len().abs_diff(name.len()) <= most)
        .map(|other| (strsim::levenshtein(name, other), other))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}

fn containing<'a, I: Iterator<Item = &'a str>>(piece: &str, names: impl Fn() -> I) -> Vec<&'a str> {
    let mut piece = piece;
    while piece.len() >= SHORTEST {
        let finder = memchr::memmem::Finder::new(piece.as_bytes());
        let mut found: Vec<&str> = names().filter(|name| finder.find(name.as_bytes()).is_some()).collect();
        if !found.is_empty() {
            found.sort_by_key(|name| (name.len(), *name));
            found.dedup();
            found.truncate(SHOWN);
            return found;
        }
        // Drop one word, or a character if no words are left.
        let end = piece.rfind('_').filter(|end| *end >= SHORTEST).unwrap_or(piece.len() - 1);
        piece = piece.get(..end).unwrap_or_default();
    }
    Vec::new()
}

fn longest_piece(pattern: &str) -> &str {
    pattern.split(['*', '?', '[', ']']).max_by_key(|piece| piece.len()).unwrap_or_default()
}
