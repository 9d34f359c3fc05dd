//! The clocks of the hosts. In: the header and the `clock` lines of each trace. Out: for each trace, one time line for
//! all traces of a host and boot: its CLOCK_MONOTONIC, moved to where CLOCK_REALTIME was at the first reading. It does not
//! jump when a program sets CLOCK_REALTIME. Not here: how far the hosts are apart (clocks.rs).

use gpurec_trace::{Header, Ntp, time};

/// One clock: that of a host since it booted, or of a trace whose header has no clock.
#[derive(Clone, Debug, Default)]
pub struct Domain {
    pub host: String,
    boot_id: Option<String>,
    /// Added to CLOCK_MONOTONIC.
    base_ns: i64,
    /// How far the first reading can be off.
    pub reading_error_ns: u64,
    pub ntp: Option<Ntp>,
    /// The most by which CLOCK_REALTIME was elsewhere at the first reading of another trace.
    pub stepped_ns: u64,
    /// The header of an old trace has only the time of day, to a millisecond.
    pub is_coarse: bool,
}

/// What is added to the times of one trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shift {
    pub domain: usize,
    ns: i64,
}

impl Shift {
    pub fn time(&self, ts_ns: u64) -> i64 {
        self.ns.saturating_add(i64::try_from(ts_ns).unwrap_or(i64::MAX))
    }

    /// The time of the trace at a time of the domain.
    pub fn ts(&self, ns: i64) -> i64 {
        ns.saturating_sub(self.ns)
    }
}

#[derive(Default)]
pub struct Domains(pub Vec<Domain>);

impl Domains {
    pub fn shift(&mut self, header: &Header) -> Shift {
        let Some(clock) = &header.clock else {
            let ns = time::nanoseconds(&header.start).unwrap_or(0);
            let host = header.host.clone();
            self.0.push(Domain { host, is_coarse: true, ..Domain::default() });
            return Shift { domain: self.0.len() - 1, ns };
        };
        let monotonic_ns = i64::try_from(clock.monotonic_ns).unwrap_or(0);
        let is_same = |domain: &Domain| {
            !domain.is_coarse && domain.host == header.host && domain.boot_id == clock.boot_id
        };
        let known = self.0.iter().position(is_same);
        let realtime_ns = i64::try_from(clock.realtime_ns).unwrap_or(0);
        let base_ns = realtime_ns.saturating_sub(monotonic_ns);
        let domain = known.unwrap_or_else(|| {
            self.0.push(Domain {
                host: header.host.clone(),
                boot_id: clock.boot_id.clone(),
                base_ns,
                reading_error_ns: clock.error_ns,
                ..Domain::default()
            });
            self.0.len() - 1
        });
        let ns = self.0.get_mut(domain).map_or(0, |domain| {
            domain.stepped_ns = domain.stepped_ns.max(base_ns.abs_diff(domain.base_ns));
            domain.base_ns.saturating_add(monotonic_ns)
        });
        self.reading(domain, clock.ntp);
        Shift { domain, ns }
    }

    /// Keeps the worst that NTP says of a host.
    pub fn reading(&mut self, domain: usize, ntp: Option<Ntp>) {
        if let Some(domain) = self.0.get_mut(domain) {
            domain.ntp = worst(domain.ntp, ntp);
        }
    }
}

/// The first that is not synchronized, else the largest error.
pub fn worst(known: Option<Ntp>, new: Option<Ntp>) -> Option<Ntp> {
    let worse = |a: Ntp, b: Ntp| if !b.synchronized || b.max_error_ns > a.max_error_ns { b } else { a };
    match (known, new) {
        (Some(known), Some(new)) if known.synchronized => Some(worse(known, new)),
        (None, new) => new,
        (known, _) => known,
    }
}
