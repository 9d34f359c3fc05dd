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
    let bare = wanted.replace(['*', '?'], "");
    let most = 1 + wanted.chars().count() / 4;
    let mut near: Vec<(usize, &str)> = names
        .filter(|name| name.len() <= LONGEST)
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let distance = distance(&wanted, &lower);
            let inside = bare.len() > 3 && lower.contains(&bare);
            (distance <= most || inside).then_some((distance, name))
        })
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(SUGGESTED).map(|(_, name)| name.to_owned()).collect()
}

/// Edit distance: number of characters to change, insert, remove or swap with the next.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(LONGEST).collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |of: &[usize], j: usize| of.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best =
                (at(&last, j) + usize::from(x != y)).min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

/// `; did you mean A, B or C?`, or nothing.
pub fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}
