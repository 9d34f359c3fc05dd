//! The wall clock as text in the local time zone, and such text as nanoseconds. In: a time, or RFC 3339 text. Out: the
//! other one. Not here: the clock of the trace's own times, which is monotonic.

use std::time::SystemTime;

use jiff::{Timestamp, Zoned, tz::TimeZone};

/// `2026-11-21T03:04:05.123+01:00`.
pub fn rfc3339(at: SystemTime) -> String {
    local(at).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
}

/// `20261121_030405`, as in the name of a trace.
pub fn stamp(at: SystemTime) -> String {
    local(at).strftime("%Y%m%d_%H%M%S").to_string()
}

/// Nanoseconds since 1970 from RFC 3339 text; none if the text is no such time.
pub fn nanoseconds(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok()?.as_nanosecond().try_into().ok()
}

fn local(at: SystemTime) -> Zoned {
    Timestamp::try_from(at).unwrap_or_default().to_zoned(TimeZone::system())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00+01:00", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2001-03-01T00:00:00-05:30", 983_424_600),
            ("1969-12-31T23:59:59Z", -1),
        ] {
            assert_eq!(nanoseconds(text), Some(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(nanoseconds("1970-01-01T00:00:00.926+00:00"), Some(926_000_000));
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "yesterday",
            "2026-11-21",
            "2026-11-21T05:27:28",
            "2026-13-21T05:27:28Z",
            "2026-11-21T05:27:2é",
        ] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let now = SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
        let read = nanoseconds(&rfc3339(now)).expect("a time");
        assert_eq!(read / 1_000_000, since.as_millis() as i64);
        assert_eq!(stamp(now).len(), "20261121_030405".len());
    }
}
