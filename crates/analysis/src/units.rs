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

/// In units of 2^20 bytes, however small or large.
pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", hundredths(bytes, 20))
}

fn hundredths(bytes: u64, shift: u32) -> String {
    decimal((u128::from(bytes) * 100 + (1 << (shift - 1))) >> shift, 2)
}
