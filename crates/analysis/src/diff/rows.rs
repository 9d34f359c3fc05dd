//! Aligns two recordings. In: what was gathered of each. Out: a row for each function and kernel of either, the totals,
//! and what makes the two hard to compare. Not here: the order of rows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::measure::{
    Coverage, Measurements, NAMELESS, Sample, Value, metric, options_that_leave_out, recorded,
};
use gpurec_cuda::{self as cuda, Api};

/// One recording's part of a row.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub calls: u64,
    pub timed: u64,
    pub total_ns: u64,
    /// The typical time of a call: the median, since one call that waited long does not move it.
    pub typical_ns: u64,
    pub bytes: u64,
    pub errors: u64,
    /// Lost events of it: there may have been this many more calls.
    pub lost: u64,
    /// The recording left it out, so 0 calls say nothing.
    pub left_out: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: String,
    pub is_kernel: bool,
    pub before: Side,
    pub after: Side,
    /// How the number of its calls changed, by direct caller.
    pub callers: BTreeMap<String, i64>,
}

/// A figure of the whole recording.
pub struct Total {
    pub name: &'static str,
    pub before: Value,
    pub after: Value,
    /// Printed even if equal.
    pub always: bool,
    /// Why the figure of one recording is unknown.
    pub unknown: Option<String>,
}

pub fn rows(gathered: &[Measurements; 2]) -> Vec<Row> {
    let mut rows: BTreeMap<(bool, String), Row> = BTreeMap::new();
    for (at, side) in gathered.iter().enumerate() {
        let seen = &side.whole;
        let functions = seen.calls.functions.list.iter().map(|sample| (false, sample));
        for (is_kernel, sample) in
            functions.chain(seen.calls.kernels.list.iter().map(|sample| (true, sample)))
        {
            let name = sample.name.to_string();
            let row = rows.entry((is_kernel, name.clone())).or_default();
            (row.name, row.is_kernel) = (name, is_kernel);
            let into = if at == 0 { &mut row.before } else { &mut row.after };
            *into = side_of(sample, seen, is_kernel);
        }
        callers(&mut rows, seen, if at == 0 { -1 } else { 1 });
    }
    let [before, after] = gathered;
    for row in rows.values_mut().filter(|row| !row.is_kernel) {
        row.before.left_out = row.before.calls == 0 && !recorded(before.header.as_deref(), &row.name);
        row.after.left_out = row.after.calls == 0 && !recorded(after.header.as_deref(), &row.name);
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    if gathered.iter().any(|side| side.without_events) {
        only_figures(&mut rows, gathered);
    }
    rows
}

/// A recording with --summary-only has no bytes by function, no callers, and only counts of kernels. Removes from the
/// rows what one of the two lacks.
fn only_figures(rows: &mut [Row], gathered: &[Measurements; 2]) {
    let [before, after] = gathered.each_ref().map(|side| side.whole.figures.more_kernels > 0);
    for row in rows {
        row.callers.clear();
        for side in [&mut row.before, &mut row.after] {
            side.bytes = 0;
            if row.is_kernel {
                (side.timed, side.total_ns) = (0, 0);
            }
        }
        if row.is_kernel {
            row.before.left_out = before && row.before.calls == 0;
            row.after.left_out = after && row.after.calls == 0;
        }
    }
}

fn side_of(sample: &Sample, seen: &Coverage, is_kernel: bool) -> Side {
    let average = sample.total_ns.checked_div(sample.timed.into()).unwrap_or(0);
    let average = u64::try_from(average).unwrap_or(u64::MAX);
    let figures = &seen.figures;
    let median = figures.functions.iter().find(|f| !is_kernel && *f.name == *sample.name).map(|f| f.med_ns);
    Side {
        calls: sample.calls,
        timed: sample.timed,
        total_ns: u64::try_from(sample.total_ns).unwrap_or(u64::MAX),
        typical_ns: median.unwrap_or(average),
        bytes: sample.bytes,
        errors: sample.errors,
        lost: if is_kernel { 0 } else { figures.lost_by_probe.get(&*sample.name).copied().unwrap_or(0) },
        left_out: false,
    }
}

fn callers(rows: &mut BTreeMap<(bool, String), Row>, seen: &Coverage, sign: i64) {
    let list = &seen.calls.functions.list;
    for ((caller, callee), count) in &seen.calls.inside {
        if let (Some(caller), Some(callee)) = (list.get(*caller), list.get(*callee))
            && let Some(row) = rows.get_mut(&(false, callee.name.to_string()))
        {
            let count = i64::try_from(*count).unwrap_or(i64::MAX).saturating_mul(sign);
            let change = row.callers.entry(caller.name.to_string()).or_default();
            *change = change.saturating_add(count);
        }
    }
}

/// The totals by name: the metric, and whether it is printed even if equal.
const TOTALS: [(&str, &str, bool); 26] = [
    ("Duration", "duration", true),
    ("CUDA calls", "calls", true),
    ("Kernel launches", "launches", true),
    ("Graph launches", "graph_launches", false),
    ("Allocations", "memory.allocations", true),
    ("Bytes allocated", "memory.allocated", true),
    ("Bytes held at exit", "memory.held", false),
    ("Bytes leaked", "memory.leaked", false),
    ("Peak of a process", "memory.peak", false),
    ("Copies", "copies.calls", true),
    ("Bytes copied", "copies.bytes", true),
    ("  H2D", "copies.H2D.bytes", false),
    ("  D2H", "copies.D2H.bytes", false),
    ("  D2D", "copies.D2D.bytes", false),
    ("  P2P", "copies.P2P.bytes", false),
    ("  unknown", "copies.unknown.bytes", false),
    ("Waits for the GPU", "sync.calls", true),
    ("Time in them", "sync.time", true),
    ("GPU busy", "gpu.busy", true),
    ("GPU idle", "gpu.idle", true),
    ("  while waited for", "gpu.waited", false),
    ("Failed calls", "errors", true),
    ("Handled failures", "errors.handled", false),
    ("Ioctls", "ioctl.calls", true),
    ("Time in ioctls", "ioctl.time", true),
    ("Xids", "xids", false),
];

pub fn totals(gathered: &[Measurements; 2]) -> Vec<Total> {
    let [before, after] = gathered.each_ref().map(|side| &side.whole);
    let total = |(name, text, always): &(&'static str, &str, bool)| {
        let metric = metric(text)?;
        let unknown = metric.unknown(before).or_else(|| metric.unknown(after)).cloned();
        let (before, after) = (metric.value(before)?, metric.value(after)?);
        Some(Total { name, before, after, always: *always, unknown })
    };
    TOTALS.iter().filter_map(total).collect()
}

impl Total {
    pub fn changed(&self) -> bool {
        self.before.compare(&self.after).is_ne()
    }

    pub fn json(&self) -> serde_json::Value {
        json!({
            "name": self.name.trim(),
            "unit": self.before.unit.name(),
            "before": self.unknown.is_none().then(|| self.before.json()),
            "after": self.unknown.is_none().then(|| self.after.json()),
            "unknown": self.unknown,
        })
    }
}

/// Differences between the recordings that do not, or do not only, come from the programs.
pub fn caveats(gathered: &[Measurements; 2]) -> Vec<String> {
    let mut said = Vec::new();
    let names = ["before", "after"];
    let [before, after] = gathered;
    let options = gathered.each_ref().map(|side| options_that_leave_out(side.header.as_deref()));
    if options.first() != options.last() {
        for (name, text) in names.iter().zip(&options) {
            if let Some(text) = text {
                said.push(format!("{name}: {text}; functions that it left out are not compared"));
            }
        }
    }
    let kernel = gathered.each_ref().map(|side| side.whole.figures.kernel_space.is_some());
    if kernel.first() != kernel.last() {
        said.push("only one of the two was recorded with --kernel, which makes every call slower".into());
    }
    let stacks = gathered.each_ref().map(|side| side.whole.figures.stacks.is_some());
    if stacks.first() != stacks.last() {
        said.push("only one of the two was recorded with --stacks: call sites are not compared".into());
    }
    let gpu = gathered.each_ref().map(|side| side.whole.figures.gpu.is_some());
    if gpu.first() != gpu.last() {
        said.push("only one of the two was recorded with --gpu: GPU times are not compared".into());
    }
    for api in [Api::Runtime, Api::Driver] {
        let has =
            |side: &Measurements| side.whole.calls.functions.list.iter().any(|s| cuda::api(&s.name) == api);
        let what = if api == Api::Runtime { "runtime" } else { "driver" };
        match (has(before), has(after)) {
            (true, false) => said.push(format!("after has no call of the CUDA {what} at all")),
            (false, true) => said.push(format!("before has no call of the CUDA {what} at all")),
            _ => {}
        }
    }
    let drivers: BTreeSet<_> =
        gathered.iter().filter_map(|side| side.header.as_ref()?.driver.clone()).collect();
    if drivers.len() > 1 {
        said.push(format!("the drivers differ: {}", drivers.into_iter().collect::<Vec<_>>().join(" and ")));
    }
    for (name, side) in names.iter().zip(gathered) {
        let figures = &side.whole.figures;
        if !figures.complete {
            let reasons: Vec<&str> =
                figures.incomplete_because.iter().chain(&figures.notes).map(String::as_str).collect();
            let reasons = if reasons.is_empty() { "it has no end line".into() } else { reasons.join("; ") };
            said.push(format!("{name} is NOT complete, so what it lacks shows as a change: {reasons}"));
        }
        if side.without_events {
            said.push(format!(
                "{name} was recorded with --summary-only: it has no bytes by function, and its kernels are those launched most"
            ));
        }
        if side.whole.calls.kernels.get(NAMELESS).is_some() {
            said.push(format!("{name} has launches of kernels without a name, which are one row"));
        }
    }
    said
}
