//! Shortens names that are too long for their column. In: the names of one column and its width. Out: the shortened
//! names, of which different ones stay different: kernels from one template have the same beginning and end.

use std::collections::{BTreeMap, BTreeSet};

const GAP: &str = "...";

/// Names that are still equal after this number of rounds have no difference that a reader would notice.
const ROUNDS: usize = 16;

pub fn all(names: &[&str], width: usize) -> Vec<String> {
    let long: BTreeSet<&str> = names.iter().copied().filter(|name| name.chars().count() > width).collect();
    let long: Vec<&str> = long.into_iter().collect();
    let cut: BTreeMap<&str, String> =
        apart(&long, &|name| middle_cut(name, width), width, ROUNDS).into_iter().collect();
    names.iter().map(|name| cut.get(name).map_or(*name, String::as_str).to_owned()).collect()
}

/// Pairs each of these distinct names with its text from `cut`. Names whose texts are equal show the place where they
/// first differ instead.
fn apart<'a>(
    names: &[&'a str],
    cut: &dyn Fn(&str) -> String,
    width: usize,
    rounds: usize,
) -> Vec<(&'a str, String)> {
    let mut groups: BTreeMap<String, Vec<&'a str>> = BTreeMap::new();
    for name in names {
        groups.entry(cut(name)).or_default().push(name);
    }
    let mut all = Vec::new();
    for (text, alike) in groups {
        if alike.len() == 1 || rounds == 0 {
            all.extend(alike.into_iter().map(|name| (name, text.clone())));
        } else {
            let at = common(&alike);
            all.extend(apart(&alike, &|name| cut_at(name, at, width), width, rounds - 1));
        }
    }
    all
}

/// The number of leading characters that all names share.
fn common(names: &[&str]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let with = |other: &&str| first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    others.iter().map(with).min().unwrap_or(0)
}

/// Cuts out the middle: both ends of a name together say more than its beginning.
pub fn middle_cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(GAP.len());
    let end = kept / 2;
    let begin: String = text.chars().take(kept - end).collect();
    let end: String = text.chars().skip(length - end).collect();
    format!("{begin}{GAP}{end}")
}

/// Shows the beginning of a name, and the part around a position in it.
fn cut_at(name: &str, at: usize, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let head = width.saturating_sub(2 * GAP.len()) / 3;
    let room = width.saturating_sub(head + 2 * GAP.len());
    // Includes some text before the position, for orientation.
    let start = at.saturating_sub(room / 4);
    if start <= head + GAP.len() {
        let begin: String = name.chars().take(width.saturating_sub(GAP.len())).collect();
        return format!("{begin}{GAP}");
    }
    let begin: String = name.chars().take(head).collect();
    if start + room + GAP.len() >= length {
        let end: String = name.chars().skip(length - room - GAP.len()).collect();
        return format!("{begin}{GAP}{end}");
    }
    let middle: String = name.chars().skip(start).take(room).collect();
    format!("{begin}{GAP}{middle}{GAP}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(middle_cut("abcdefghijkl", 9), "abc...jkl");
        assert_eq!(middle_cut("abc", 9), "abc");
    }

    #[test]
    fn names_of_one_template_keep_what_differs() {
        let name = |functor: &str| {
            format!(
                "at::native::vectorized_elementwise_kernel<4, at::native::{functor}<float>, std::array<char*, 2ul> >(int, at::native::{functor}<float>, std::array<char*, 2ul>)"
            )
        };
        let names = [name("sqrt_functor"), name("rsqrt_functor"), name("exp_functor"), name("sqrt_functor")];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for width in [28, 40, 60, 100] {
            let shown = all(&names, width);
            assert!(shown.iter().all(|name| name.chars().count() <= width), "{shown:#?}");
            assert_eq!(shown[0], shown[3]);
            assert!(shown[0] != shown[1] && shown[1] != shown[2] && shown[0] != shown[2], "{shown:#?}");
        }
        assert_eq!(all(&names, 1000), names);
    }

    /// Names may differ at any position.
    #[test]
    fn names_that_differ_differ_when_they_are_cut() {
        let letters: Vec<char> = (0..300u32).map(|n| char::from(b'a' + (n * n % 25) as u8)).collect();
        let with_z =
            |at: usize| letters.iter().enumerate().map(|(n, c)| if n == at { 'é' } else { *c }).collect();
        let names: Vec<String> = (0..300).map(with_z).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut shown = all(&names, 50);
        assert!(shown.iter().all(|name| name.chars().count() <= 50));
        let count = shown.len();
        shown.sort();
        shown.dedup();
        assert_eq!(shown.len(), count);
    }
}
