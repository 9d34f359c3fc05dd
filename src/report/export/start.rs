//! When a recording began, as its header says it, in nanoseconds since 1970. In: RFC 3339 text.
//! Out: a number, or none if it is no such time. No clock and no time zone of this machine is asked.

const SECOND: i64 = 1_000_000_000;

/// `2026-11-21T05:27:28.926+00:00`.
pub fn nanoseconds(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if !text.is_ascii() || separators.iter().any(|(at, byte)| bytes.get(*at) != Some(byte)) {
        return None;
    }
    if !matches!(bytes.get(10), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let (year, month, day) = (digits(text, 0, 4)?, digits(text, 5, 2)?, digits(text, 8, 2)?);
    let (hour, minute, second) = (digits(text, 11, 2)?, digits(text, 14, 2)?, digits(text, 17, 2)?);
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction, zone) = fraction(text.get(19..)?)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    seconds.checked_mul(SECOND)?.checked_add(fraction)
}

fn digits(text: &str, at: usize, count: usize) -> Option<i64> {
    let part = text.get(at..at + count)?;
    if part.bytes().all(|byte| byte.is_ascii_digit()) { part.parse().ok() } else { None }
}

/// What stands after the seconds: nanoseconds, and the time zone.
fn fraction(rest: &str) -> Option<(i64, &str)> {
    let Some(rest) = rest.strip_prefix('.') else { return Some((0, rest)) };
    let count = rest.bytes().take_while(u8::is_ascii_digit).count();
    let known = digits(rest, 0, count.min(9))?;
    let missing = u32::try_from(9 - count.min(9)).ok()?;
    Some((known * 10_i64.pow(missing), rest.get(count..)?))
}

/// Seconds that the zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.bytes().next()? {
        b'Z' | b'z' if zone.len() == 1 => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    if zone.len() != 6 || zone.get(3..4) != Some(":") {
        return None;
    }
    Some(sign * (digits(zone, 1, 2)? * 3600 + digits(zone, 4, 2)? * 60))
}

/// Days from 1970-01-01. The year is counted from March, so that the leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // The days from March of the year 0 to 1970.
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn known_times() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00+01:00", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2001-03-01T00:00:00-05:30", 983_424_600),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("1969-12-31T23:59:59Z", -1),
        ] {
            assert_eq!(nanoseconds(text), Some(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(nanoseconds("1970-01-01T00:00:00.926+00:00"), Some(926_000_000));
        assert_eq!(nanoseconds("1970-01-01T00:00:00.1234567899Z"), Some(123_456_789));
    }

    /// Every day of four centuries is a day after the one before it.
    #[test]
    fn no_day_is_missing() {
        let mut expected = None;
        for year in 1900..2301 {
            for month in 1..=12 {
                let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
                let last = match month {
                    2 => 28 + i32::from(leap),
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                for day in 1..=last {
                    let at = nanoseconds(&format!("{year:04}-{month:02}-{day:02}T00:00:00Z"));
                    // What a year of 64-bit nanoseconds does not hold.
                    let Some(at) = at else { continue };
                    assert!(expected.is_none_or(|expected| expected == at), "{year}-{month}-{day}");
                    expected = at.checked_add(86_400_000_000_000);
                }
            }
        }
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "yesterday",
            "2026-11-21",
            "2026-11-21T05:27:28",
            "2026-13-21T05:27:28Z",
            "2026-11-21T05:27:28.Z",
        ] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
        assert_eq!(nanoseconds("2026-11-21T05:27:28+0100"), None);
        assert_eq!(nanoseconds("2026-11-21T05:27:2é"), None);
    }

    #[test]
    fn what_the_recorder_writes_is_read() {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
        let read = nanoseconds(&crate::trace::time::rfc3339(now)).expect("a time");
        assert_eq!(read / 1_000_000, since.as_millis() as i64);
    }
}
