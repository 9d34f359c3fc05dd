//! Numbers and counts in words. In: integers. Out: text, computed from integers, so that no figure is formatted twice.

/// `n` divided by that power of ten.
pub fn decimal(n: impl Into<u128>, digits: u32) -> String {
    let (n, unit) = (n.into(), 10u128.pow(digits));
    format!("{}.{:0width$}", n / unit, n % unit, width = digits as usize)
}

/// `1 call`, `2 calls`, `2 launches`, `2 processes`.
pub fn plural(count: u64, what: &str) -> String {
    let more = if what.ends_with("ch") || what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { more })
}

pub fn micros(ns: u64) -> String {
    decimal(ns, 3)
}

/// With three decimals, rounded.
pub fn millis(ns: u64) -> String {
    micros(ns.saturating_add(500) / 1000)
}

pub fn seconds(ns: u64) -> String {
    decimal(ns, 9)
}

/// With three decimals, in a suitable unit.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", micros(ns)),
        1_000_000..1_000_000_000 => format!("{} ms", micros(ns / 1000)),
        _ => format!("{} s", micros(ns / 1_000_000)),
    }
}

/// With one decimal.
pub fn percent(part: u128, whole: u128) -> String {
    decimal((part * 1000 + whole / 2).checked_div(whole).unwrap_or(0), 1)
}

/// Bytes per second, in GB/s.
pub fn rate(bytes: impl Into<u128>) -> String {
    decimal((bytes.into() + 5_000_000) / 10_000_000, 2)
}

/// `524288000 bytes (500.00 MB)`, in units of 2^20 bytes.
pub fn bytes(count: u64) -> String {
    format!("{count} bytes ({})", megabytes(count))
}

/// `64.00 MB`, in units of 2^20 bytes; below 1 kB in bytes.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10)];
    let unit = UNITS.iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(unit, shift)| format!("{} {unit}", hundredths(bytes, *shift)))
}

/// `64.0 MB`, with three digits.
pub fn short_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10)];
    let unit = UNITS.iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| format!("{} {unit}", three_digits(bytes.into(), 1 << shift)),
    )
}

/// The rate per second of `count` in `ns`, with three digits, in units of 1000: `12.3k`.
pub fn per_second(count: u64, ns: u64) -> String {
    const UNITS: [(&str, u128); 5] =
        [("", 1), ("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];
    let (count, ns) = (u128::from(count) * 1_000_000_000, u128::from(ns.max(1)));
    if count == 0 {
        return "0".to_owned();
    }
    // Above 999.5 it would be shown as 1000.
    let fits = |unit: u128| count * 10 < unit * ns * 9995;
    let (name, unit) = UNITS.into_iter().find(|(_, unit)| fits(*unit)).unwrap_or(UNITS[4]);
    format!("{}{name}", three_digits(count, unit * ns))
}

/// `n` in that unit, with three digits; more only if there are more before the point.
fn three_digits(n: u128, unit: u128) -> String {
    let rounded = |digits: u32| (n * 10u128.pow(digits) + unit / 2) / unit;
    let digits = (1..=2).rev().find(|digits| rounded(*digits) < 1000).unwrap_or(0);
    match digits {
        0 => rounded(0).to_string(),
        digits => decimal(rounded(digits), digits),
    }
}

/// In units of 2^20 bytes, however small or large.
pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", hundredths(bytes, 20))
}

fn hundredths(bytes: u64, shift: u32) -> String {
    decimal((u128::from(bytes) * 100 + (1 << (shift - 1))) >> shift, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_all_before_the_point() {
        let second = 1_000_000_000;
        for (count, ns, text) in [
            (0, second, "0"),
            (1, 2 * second, "0.50"),
            (1, 1000 * second, "0.00"),
            (20, second, "20.0"),
            (9_996, 1000 * second, "10.0"),
            (843, second, "843"),
            (9994, 10 * second, "999"),
            (9995, 10 * second, "1.00k"),
            (12_345, second, "12.3k"),
            (300_000, second, "300k"),
            (2_050_000_000, second, "2.05G"),
            (u64::MAX, second, "18446744T"),
            (u64::MAX, 0, "18446744073709552T"),
        ] {
            assert_eq!(per_second(count, ns), text, "{count} in {ns}");
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 kB"),
            (64 << 20, "64.0 MB"),
            (1023 << 20, "1023 MB"),
            ((1 << 30) * 3 / 2, "1.50 GB"),
            (u64::MAX, "16777216 TB"),
        ] {
            assert_eq!(short_size(bytes), text);
        }
    }
}
