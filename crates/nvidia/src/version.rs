//! Driver versions, and the choice among facts that depend on them.
//!
//! In: "580.159.04", the spans of drivers in the tables. Out: an order, a choice. For a driver missing from the tables,
//! the latest earlier fact applies; for one older than all facts, the oldest.

/// 580.159.04 as three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// Newer than every known version; also used if the driver's version is unknown.
    pub const NEWEST: Version = Version([u32::MAX; 3]);
    const OLDEST: Version = Version([0; 3]);

    /// "580.159.04", "535.179" (the whole name of a release), "580" (the last of its branch).
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.trim().split('.').map(|part| part.parse().ok());
        let major = parts.next()??;
        let minor = parts.next().unwrap_or(Some(u32::MAX))?;
        let patch = parts.next().unwrap_or(Some(if minor == u32::MAX { u32::MAX } else { 0 }))?;
        Some(Version([major, minor, patch]))
    }

    /// The version to decode for.
    pub fn of(text: Option<&str>) -> Version {
        text.and_then(Version::parse).unwrap_or(Version::NEWEST)
    }
}

/// The first and the last analysed driver for which a fact holds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub first: Version,
    pub last: Version,
}

impl Span {
    /// All drivers.
    pub const ALL: Span = Span { first: Version::OLDEST, last: Version::NEWEST };

    /// Parses "515.43.04-530.41.03"; an absent span means all drivers.
    pub fn parse(text: Option<&str>) -> Option<Span> {
        let Some(text) = text else { return Some(Span::ALL) };
        let (first, last) = text.split_once('-')?;
        Some(Span { first: Version::parse(first)?, last: Version::parse(last)? })
    }

    /// How well this fact fits: the fact with the greatest value applies, and the first of equals.
    fn fit(&self, version: Version) -> (u8, Version) {
        if self.first <= version && version <= self.last {
            (2, Version::OLDEST)
        } else if self.first <= version {
            (1, self.first)
        } else {
            (0, self.first.reversed())
        }
    }
}

impl Version {
    /// Reverses the order: the older, the greater.
    fn reversed(self) -> Version {
        Version(self.0.map(|part| u32::MAX - part))
    }
}

/// The item whose span contains `version`; the first of several.
pub fn choose<T>(items: impl IntoIterator<Item = (Span, T)>, version: Version) -> Option<T> {
    let fits = items.into_iter().map(|(span, item)| (span.fit(version), item));
    fits.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, item)| item)
}
