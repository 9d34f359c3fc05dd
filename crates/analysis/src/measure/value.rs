//! Exact values: fractions of integers with a unit, compared without rounding. In: numbers, or text such as `1.5ms`.
//! Out: text for the user, or JSON.

use std::cmp::Ordering;

use crate::sections;
use crate::text::duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    /// In nanoseconds.
    Time,
    Bytes,
    /// Bytes per second.
    Rate,
    PerSecond,
    Ratio,
}

#[derive(Clone, Copy, Debug)]
pub struct Value {
    num: u128,
    /// Never 0.
    den: u128,
    pub unit: Unit,
}

const SECOND: u128 = 1_000_000_000;

const TIMES: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("min", 60 * SECOND),
    ("h", 3600 * SECOND),
];

/// Powers of 1024, like the summary's MB.
const SIZES: [(&str, u128); 11] = [
    ("", 1),
    ("B", 1),
    ("kB", 1 << 10),
    ("KB", 1 << 10),
    ("KiB", 1 << 10),
    ("MB", 1 << 20),
    ("MiB", 1 << 20),
    ("GB", 1 << 30),
    ("GiB", 1 << 30),
    ("TB", 1 << 40),
    ("TiB", 1 << 40),
];

/// Powers of 1000, like the summary's GB/s.
const RATES: [(&str, u128); 5] =
    [("B/s", 1), ("kB/s", 1_000), ("KB/s", 1_000), ("MB/s", 1_000_000), ("GB/s", SECOND)];

impl Unit {
    /// The unit of a quotient, and the factor that the quotient needs for it.
    pub fn over(self, below: Unit) -> Option<(Unit, u128)> {
        use Unit::*;
        Some(match (self, below) {
            (a, b) if a == b => (Ratio, 1),
            (Count, Time) => (PerSecond, SECOND),
            (Bytes, Time) => (Rate, SECOND),
            (Time | Bytes, Count) => (self, 1),
            _ => return None,
        })
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Time => "ns",
            Unit::Bytes => "bytes",
            Unit::Rate => "bytes/s",
            Unit::PerSecond => "1/s",
            Unit::Ratio => "ratio",
        }
    }

    /// An example of a limit in this unit.
    pub fn example(self) -> &'static str {
        match self {
            Unit::Count => "a number without a unit, as in 5000",
            Unit::Time => "a time: ns, us, ms, s, min or h, as in 20ms",
            Unit::Bytes => "a size: bytes, kB, MB, GB, TB (of 1024, as KiB, MiB, GiB, TiB), as in 64MB",
            Unit::Rate => "a rate: B/s, kB/s, MB/s or GB/s (of 1000), as in 10GB/s",
            Unit::PerSecond => "a rate, as in 100/s",
            Unit::Ratio => "a ratio, as in 0.5 or 50%",
        }
    }

    /// The factor of a suffix, as numerator and denominator.
    fn factor(self, suffix: &str) -> Option<(u128, u128)> {
        let find =
            |table: &[(&str, u128)]| table.iter().find(|(name, _)| *name == suffix).map(|(_, f)| (*f, 1));
        match (self, suffix) {
            (Unit::Count | Unit::Ratio, "") | (Unit::PerSecond, "/s") => Some((1, 1)),
            (Unit::Ratio, "%") => Some((1, 100)),
            (Unit::Time, _) => find(&TIMES),
            (Unit::Bytes, _) => find(&SIZES),
            (Unit::Rate, _) => find(&RATES),
            _ => None,
        }
    }
}

impl Value {
    pub fn whole(n: u64, unit: Unit) -> Value {
        Value { num: n.into(), den: 1, unit }
    }

    pub fn fraction(num: u128, den: u128, unit: Unit) -> Option<Value> {
        (den > 0).then_some(Value { num, den, unit })
    }

    /// `None`: the units do not combine, or `below` is 0.
    pub fn over(self, below: Value) -> Option<Value> {
        let (unit, factor) = self.unit.over(below.unit)?;
        let num = self.num.checked_mul(below.den)?.checked_mul(factor)?;
        Value::fraction(num, self.den.checked_mul(below.num)?, unit)
    }

    /// Parses a number such as `1.5` with its suffix. 0 needs no unit.
    pub fn parse(number: &str, suffix: &str, unit: Unit) -> Option<Value> {
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits: String = [whole, decimals].concat().chars().filter(|c| *c != '_').collect();
        if digits.len() > 25 || whole.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let num: u128 = digits.parse().ok()?;
        let decimals = decimals.chars().filter(|c| *c != '_').count() as u32;
        let (times, by) = match (num, suffix) {
            (0, "") => (1, 1),
            _ => unit.factor(suffix)?,
        };
        Value::fraction(num.checked_mul(times)?, 10u128.checked_pow(decimals)?.checked_mul(by)?, unit)
    }

    /// This value plus or minus a percentage such as `10%` of it; exact.
    pub fn changed(self, percent: Value, more: bool) -> Value {
        let part = self.num.saturating_mul(percent.num);
        let (all, by) = (self.num.saturating_mul(percent.den), self.den.saturating_mul(percent.den));
        let num = if more { all.saturating_add(part) } else { all.saturating_sub(part) };
        Value { num, den: by.max(1), unit: self.unit }
    }

    /// This value plus or minus another, but at least 0.
    pub fn plus(self, other: Value, more: bool) -> Value {
        let (a, b) = (self.num.saturating_mul(other.den), other.num.saturating_mul(self.den));
        let num = if more { a.saturating_add(b) } else { a.saturating_sub(b) };
        Value { num, den: self.den.saturating_mul(other.den).max(1), unit: self.unit }
    }

    pub fn compare(&self, other: &Value) -> Ordering {
        match (self.num.checked_mul(other.den), other.num.checked_mul(self.den)) {
            (Some(a), Some(b)) => a.cmp(&b),
            // Beyond 128 bits, which no real trace reaches.
            _ => self.float().total_cmp(&other.float()),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.num == 0
    }

    pub fn float(&self) -> f64 {
        self.num as f64 / self.den as f64
    }

    /// The largest integer that is not above the value, and whether it equals the value.
    pub fn floor(&self) -> (u64, bool) {
        (u64::try_from(self.num / self.den).unwrap_or(u64::MAX), self.num.is_multiple_of(self.den))
    }

    fn rounded(&self) -> u64 {
        let n = self.num.saturating_add(self.den / 2) / self.den;
        u64::try_from(n).unwrap_or(u64::MAX)
    }

    /// Rounded to `places` decimals.
    fn decimals(&self, places: u32) -> String {
        let scale = 10u128.pow(places);
        match self.num.checked_mul(scale).and_then(|n| n.checked_add(self.den / 2)) {
            Some(n) => {
                let n = n / self.den;
                format!("{}.{:0width$}", n / scale, n % scale, width = places as usize)
            }
            None => self.rounded().to_string(),
        }
    }

    /// A ratio in percent, `3.29 %`.
    pub fn in_percent(&self) -> Option<String> {
        let hundred = Value { num: self.num.checked_mul(100)?, ..*self };
        let digits = match hundred.floor() {
            (whole, true) => whole.to_string(),
            _ if self.num.saturating_mul(10_000) < self.den => "<0.01".to_owned(),
            _ => hundred.decimals(2),
        };
        (self.unit == Unit::Ratio).then(|| format!("{digits} %"))
    }

    pub fn json(&self) -> serde_json::Value {
        match self.floor() {
            (n, true) => n.into(),
            _ => self.float().into(),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let exact = self.floor().1;
        let text = match self.unit {
            Unit::Count if exact => self.rounded().to_string(),
            Unit::Count => self.decimals(3),
            Unit::Ratio if exact => self.rounded().to_string(),
            Unit::Ratio if self.num.saturating_mul(10_000) < self.den => "<0.0001".to_owned(),
            Unit::Ratio => self.decimals(4),
            Unit::Time => duration(self.rounded()),
            Unit::Bytes => match self.rounded() {
                n if n < 1 << 20 => crate::text::plural(n, "byte"),
                n => sections::bytes(n),
            },
            Unit::Rate => {
                format!("{} GB/s", Value { den: self.den.saturating_mul(SECOND), ..*self }.decimals(2))
            }
            Unit::PerSecond => format!("{}/s", self.decimals(1)),
        };
        f.write_str(&text)
    }
}
