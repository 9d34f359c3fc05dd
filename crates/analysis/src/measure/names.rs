//! Names and patterns. In: the user's text and the available names. Out: whether they match, and suggestions if none
//! does.

use gpurec_cuda as cuda;

/// Longest name that edit distance compares.
const LONGEST: usize = 200;

/// Number of suggestions.
const SUGGESTED: usize = 3;

pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Matches a pattern: `*` is any text, `?` any character. Nothing else is special, since names of kernels are full of
/// brackets.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to resume if the text after the last `*` does not match.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(c) = name.get(n) {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(want) if *want == '?' || want == c => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                p = star + 1;
                n = from + 1;
            }
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|c| *c == '*')
}

/// Matches a kernel by its name in the trace, or as tables print it.
pub fn fits_kernel(wanted: &str, name: &str) -> bool {
    matches(wanted, name) || matches(wanted, cuda::kernel_text(name))
}

/// A function name without its version stands for all versions: a program that calls cuMemAlloc has cuMemAlloc_v2 in
/// its trace, and an assertion about cuMemAlloc must not pass because of that.
pub fn fits_function(wanted: &str, name: &str) -> bool {
    wanted == name || matches(wanted, name) || matches(wanted, cuda::base_name(name))
}

/// The most likely intended names, the best first.
pub fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    let compared: String = wanted.chars().take(LONGEST).collect();
    let bare = wanted.replace(['*', '?'], "");
    let most = 1 + wanted.chars().count() / 4;
    let mut near: Vec<(usize, &str)> = names
        .filter(|name| name.len() <= LONGEST)
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let distance = strsim::osa_distance(&compared, &lower);
            let inside = bare.len() > 3 && lower.contains(&bare);
            (distance <= most || inside).then_some((distance, name))
        })
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(SUGGESTED).map(|(_, name)| name.to_owned()).collect()
}

/// `; did you mean A, B or C?`, or nothing.
pub fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}
