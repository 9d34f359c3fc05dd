//! What `gpurec ranks` found, and its JSON. In: the parts of the analysis. Out: one document. Not here: text for a
//! terminal (text.rs).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::clocks::HostClock;
use super::hangs::Hang;
use super::missing::Missing;
use super::odd::{Difference, SlowKernel};
use super::stragglers::{Collectives, Skew, Straggler};

/// A rank, and whether its trace is whole.
#[derive(Clone, Debug, Default)]
pub struct RankState {
    pub rank: Option<u32>,
    pub host: String,
    pub file: String,
    pub pid: u32,
    pub complete: bool,
    pub reasons: Vec<String>,
    pub xids: Vec<String>,
    /// The same rank is there twice, and this one is left out.
    pub is_duplicate: bool,
}

/// Ranks that called one collective with different arguments.
#[derive(Clone, Debug)]
pub struct MismatchFound {
    pub comm: String,
    pub seq: u64,
    /// Of a send or a receive: the ranks in the communicator.
    pub peers: Option<(u32, u32)>,
    pub field: &'static str,
    pub values: Vec<(Option<u32>, Option<String>)>,
    /// The lines of code, where there are stacks.
    pub sites: Vec<(Option<u32>, String)>,
}

#[derive(Default)]
pub struct Report {
    pub job: Option<String>,
    pub ranks: Vec<RankState>,
    pub missing: Missing,
    pub clocks: Vec<HostClock>,
    pub stragglers: Vec<Straggler>,
    pub collectives: Vec<Collectives>,
    pub mismatches: Vec<MismatchFound>,
    pub more_mismatches: u64,
    pub hangs: Vec<Hang>,
    pub differences: Vec<Difference>,
    pub slow_kernels: Vec<SlowKernel>,
    pub skew: Skew,
    /// Remarks about the job: duplicate ranks, files that cannot be read, what could not be matched.
    pub notes: Vec<String>,
    /// The number of files that cannot be read.
    pub unread: u64,
    /// Some ranks of these collectives did not reach them, or have no trace.
    pub partial: u64,
    /// Each part of the document that is not known, with the reason.
    pub unknown: BTreeMap<&'static str, String>,
}

impl Report {
    /// The number of ranks. One that is there twice counts once.
    pub fn count(&self) -> u64 {
        self.ranks.iter().filter(|rank| !rank.is_duplicate).count() as u64
    }

    /// The time by which ranks arrive apart that this share of the collectives does not exceed, in thousandths of a
    /// percent.
    pub fn skew_ns(&self, percentile: u32) -> Option<u64> {
        let count = self.skew.count;
        let rank = (u128::from(count) * u128::from(percentile)).div_ceil(100_000) as u64;
        (count > 0).then(|| self.skew.histogram.value_at(rank.clamp(1, count) - 1).min(self.skew.max_ns))
    }

    pub fn json(&self) -> Value {
        let rank = |it: &RankState| {
            json!({
                "rank": it.rank, "host": it.host, "file": it.file, "pid": it.pid, "complete": it.complete,
                "reasons": it.reasons, "xids": it.xids,
            })
        };
        let clock = |it: &HostClock| {
            json!({
                "host": it.host,
                "offset_ns": it.offset_ns.round() as i64,
                "error_ns": it.error_ns.map(|ns| ns.ceil() as i64),
                "drift_ppm": (it.drift_ppm * 1e6).round() / 1e6,
                "source": it.origin.name(),
                "reference": it.is_reference,
                "at_ns": it.at_ns,
                "bounds": it.bounds,
                "notes": it.said,
            })
        };
        let mismatch = |it: &MismatchFound| {
            let value = |text: &Option<String>| match text.as_ref().map(|text| text.parse::<u64>()) {
                Some(Ok(number)) => json!(number),
                _ => json!(text),
            };
            let key = |rank: &Option<u32>| rank.map_or("unknown".to_owned(), |rank| rank.to_string());
            let values: serde_json::Map<String, Value> =
                it.values.iter().map(|(rank, text)| (key(rank), value(text))).collect();
            let sites: serde_json::Map<String, Value> =
                it.sites.iter().map(|(rank, site)| (key(rank), json!(site))).collect();
            json!({
                "comm": it.comm, "seq": it.seq, "field": it.field, "values": values, "sites": sites,
                "peers": it.peers,
            })
        };
        let (missing, more_missing) = self.missing.first();
        let mut document = json!({
            "job": self.job,
            "ranks": self.ranks.iter().map(rank).collect::<Vec<_>>(),
            "missing": missing,
            "more_missing": more_missing,
            "clocks": self.clocks.iter().map(clock).collect::<Vec<_>>(),
            "stragglers": self.stragglers,
            "collectives": self.collectives,
            "mismatches": self.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
            "more_mismatches": self.more_mismatches,
            "hangs": self.hangs,
            "differences": self.differences,
            "slow_kernels": self.slow_kernels,
            "skew": {
                "count": self.skew.count,
                "avg_ns": self.skew.total_ns.checked_div(self.skew.count),
                "p50_ns": self.skew_ns(50_000),
                "p99_ns": self.skew_ns(99_000),
                "max_ns": (self.skew.count > 0).then_some(self.skew.max_ns),
            },
            "partial": self.partial,
            "notes": self.notes,
        });
        for figure in self.unknown.keys() {
            document[*figure] = Value::Null;
        }
        if !self.unknown.is_empty() {
            document["unknown"] = json!(self.unknown);
        }
        document
    }
}
