//! How far the clocks of the hosts are apart. In: bounds from collectives, and what NTP says of each host. Out: for each
//! host the offset and the drift against one reference host, with the most by which they can be wrong, and a function
//! from its times to those of the reference. Not here: the bounds themselves (matching.rs, fit.rs).

use std::collections::BTreeMap;

use super::domain::Domain;
use super::fit::{Band, Bounds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is the reference.
    Reference,
    Collectives,
    Ntp,
    None,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::Reference | Origin::Collectives => "collectives",
            Origin::Ntp => "ntp",
            Origin::None => "none",
        }
    }
}

/// The clock of a host against that of the reference.
#[derive(Clone, Debug)]
pub struct HostClock {
    pub host: String,
    pub is_reference: bool,
    /// How far it is ahead at `at_ns`, a time of the reference.
    pub offset_ns: f64,
    pub drift_ppm: f64,
    pub at_ns: i64,
    /// None: not known.
    pub error_ns: Option<f64>,
    pub origin: Origin,
    pub bounds: u64,
    /// The most by which CLOCK_REALTIME was elsewhere when a later trace of the host began.
    pub stepped_ns: u64,
    /// Remarks for users.
    pub said: Vec<String>,
}

impl HostClock {
    /// The time on the reference's clock.
    pub fn corrected(&self, ns: i64) -> i64 {
        let since = ns.saturating_sub(self.at_ns) as f64 - self.offset_ns;
        let drift = self.drift_ppm * 1e-6;
        self.at_ns.saturating_add((since / (1.0 + drift)).round() as i64)
    }
}

/// A way from the reference to a host: the sums of the steps, each a line over time.
#[derive(Clone, Copy)]
struct Way {
    offset_ns: f64,
    drift: f64,
    error_ns: f64,
    uneven_ns: f64,
    bounds: u64,
}

/// `start_ns` is when the job began.
pub fn clocks(
    domains: &[Domain],
    bounds: &BTreeMap<(usize, usize), Bounds>,
    start_ns: i64,
) -> Vec<HostClock> {
    let bands: BTreeMap<(usize, usize), (Band, u64)> =
        bounds.iter().filter_map(|(pair, of)| Some((*pair, (of.band()?, of.count)))).collect();
    let ways = ways(domains.len(), &bands, start_ns);
    let reference = domains.first();
    let of = |at: usize, domain: &Domain| {
        let ntp = reference.and_then(|reference| ntp_error(domain, reference));
        let reading_ns =
            domain.reading_error_ns.saturating_add(reference.map_or(0, |it| it.reading_error_ns));
        let mut clock = HostClock {
            host: domain.host.clone(),
            is_reference: at == 0,
            offset_ns: 0.0,
            drift_ppm: 0.0,
            at_ns: start_ns,
            error_ns: None,
            origin: Origin::None,
            bounds: 0,
            stepped_ns: domain.stepped_ns,
            said: Vec::new(),
        };
        match (ways.get(at).copied().flatten(), ntp) {
            _ if at == 0 => (clock.origin, clock.error_ns) = (Origin::Reference, Some(0.0)),
            (Some(way), ntp) => {
                clock.origin = Origin::Collectives;
                // Whole nanoseconds, as a dataset has them.
                (clock.offset_ns, clock.drift_ppm) = (way.offset_ns.round(), way.drift * 1e6);
                (clock.error_ns, clock.bounds) = (Some(way.error_ns + 0.5), way.bounds);
                if way.uneven_ns > 1000.0 {
                    clock.said.push(format!(
                        "its clock did not run evenly: the bounds contradict a steady drift by {:.0} us, which the error includes",
                        way.uneven_ns / 1e3
                    ));
                }
                contradiction(&mut clock, ntp, reading_ns);
            }
            (None, Some(error_ns)) => (clock.origin, clock.error_ns) = (Origin::Ntp, Some(error_ns)),
            (None, None) if domain.is_coarse => {
                clock.said.push(
                    "its trace has no clock line: its times are those of its header, to a millisecond"
                        .to_owned(),
                );
            }
            (None, None) => {}
        }
        clock
    };
    domains.iter().enumerate().map(|(at, domain)| of(at, domain)).collect()
}

/// By how much NTP says that two hosts differ at most.
fn ntp_error(a: &Domain, b: &Domain) -> Option<f64> {
    let of = |domain: &Domain| {
        let ntp = domain.ntp.filter(|ntp| ntp.synchronized)?;
        Some(ntp.max_error_ns as f64 + ntp.offset_ns.unsigned_abs() as f64)
    };
    Some(of(a)? + of(b)?)
}

fn contradiction(clock: &mut HostClock, ntp: Option<f64>, reading_ns: u64) {
    let (Some(ntp), Some(error)) = (ntp, clock.error_ns) else { return };
    let surely = clock.offset_ns.abs() - error - reading_ns as f64;
    if surely > ntp {
        clock.said.push(format!(
            "NTP says that its clock differs by at most {:.3} ms, but collectives show at least {:.3} ms: NTP is wrong",
            ntp / 1e6,
            surely / 1e6
        ));
    }
}

/// The way to each host over the bands with the least error.
fn ways(count: usize, bands: &BTreeMap<(usize, usize), (Band, u64)>, start_ns: i64) -> Vec<Option<Way>> {
    let mut ways: Vec<Option<Way>> = vec![None; count];
    if let Some(first) = ways.first_mut() {
        *first = Some(Way { offset_ns: 0.0, drift: 0.0, error_ns: 0.0, uneven_ns: 0.0, bounds: 0 });
    }
    let mut steps: BTreeMap<usize, Vec<(usize, f64, &Band, u64)>> = BTreeMap::new();
    for ((a, b), (band, count)) in bands {
        steps.entry(*a).or_default().push((*b, 1.0, band, *count));
        steps.entry(*b).or_default().push((*a, -1.0, band, *count));
    }
    let mut done = vec![false; count];
    // Dijkstra's algorithm: the hosts are few.
    loop {
        let open = ways
            .iter()
            .enumerate()
            .filter(|(at, way)| way.is_some() && !done.get(*at).copied().unwrap_or(true));
        let nearest = open.min_by(|(_, a), (_, b)| error(a).total_cmp(&error(b))).map(|(at, way)| (at, *way));
        let Some((at, Some(way))) = nearest else { return ways };
        if let Some(done) = done.get_mut(at) {
            *done = true;
        }
        for (to, sign, band, count) in steps.get(&at).into_iter().flatten() {
            // A band is over the time of its first host.
            let ahead_ns = if *sign > 0.0 { way.offset_ns } else { way.offset_ns - band.at_from_ns };
            let at_ns = start_ns.saturating_add(ahead_ns as i64);
            let next = Way {
                offset_ns: way.offset_ns + sign * band.at(at_ns),
                drift: way.drift + sign * band.drift(),
                error_ns: way.error_ns + band.error_from(at_ns),
                uneven_ns: way.uneven_ns + band.uneven_ns,
                bounds: way.bounds + count,
            };
            if let Some(known) = ways.get_mut(*to)
                && error(known) > next.error_ns
            {
                *known = Some(next);
            }
        }
    }
}

fn error(way: &Option<Way>) -> f64 {
    way.map_or(f64::INFINITY, |way| way.error_ns)
}
