//! Aligns two recordings. In: what was gathered of each. Out: a row for each function and kernel of either, the totals,
//! and what makes the two hard to compare. Not here: the order of rows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::measure::{
    Gathered, NAMELESS, Sample, Seen, Unit, Value, copied, options_that_leave_out, recorded,
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

pub fn rows(gathered: &[Gathered; 2]) -> Vec<Row> {
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
fn only_figures(rows: &mut [Row], gathered: &[Gathered; 2]) {
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

fn side_of(sample: &Sample, seen: &Seen, is_kernel: bool) -> Side {
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

fn callers(rows: &mut BTreeMap<(bool, String), Row>, seen: &Seen, sign: i64) {
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

pub fn totals(gathered: &[Gathered; 2]) -> Vec<Total> {
    let [before, after] = gathered;
    let mut all = Vec::new();
    let mut add = |name, unit, always, figure: &str, of: &dyn Fn(&Seen) -> Option<u64>| {
        if let (Some(seen_before), Some(seen_after)) = (of(&before.whole), of(&after.whole)) {
            let unknown = [before, after].iter().find_map(|one| one.whole.figures.unknown.get(figure));
            let (before, after) = (Value::whole(seen_before, unit), Value::whole(seen_after, unit));
            all.push(Total { name, before, after, always, unknown: unknown.cloned() });
        }
    };
    add("Duration", Unit::Time, true, "", &|seen| Some(seen.figures.duration_ns));
    add("CUDA calls", Unit::Count, true, "cuda_calls", &|seen| Some(seen.figures.cuda_calls));
    add("Kernel launches", Unit::Count, true, "kernel_launches", &|seen| Some(seen.figures.kernel_launches));
    add("Graph launches", Unit::Count, false, "graph_launches", &|seen| Some(seen.figures.graph_launches));
    add("Allocations", Unit::Count, true, "memory.allocations", &|seen| {
        Some(seen.figures.memory.allocations)
    });
    add("Bytes allocated", Unit::Bytes, true, "memory.allocated_bytes", &|seen| {
        Some(seen.figures.memory.allocated_bytes)
    });
    add("Bytes held at exit", Unit::Bytes, false, "memory.held", &|seen| {
        Some(seen.figures.memory.held.bytes)
    });
    add("Bytes leaked", Unit::Bytes, false, "memory.leaks", &|seen| Some(seen.figures.memory.leaks.bytes));
    add("Peak of a process", Unit::Bytes, false, "memory.peak", &|seen| Some(seen.peak_bytes));
    let copies =
        |seen: &Seen| copied(seen.figures.transfers.by_direction.iter().filter(|d| d.direction != "set"));
    add("Copies", Unit::Count, true, "transfers.count", &|seen| Some(copies(seen).count));
    add("Bytes copied", Unit::Bytes, true, "transfers.bytes", &|seen| Some(copies(seen).bytes));
    for (name, direction) in
        [("  H2D", "H2D"), ("  D2H", "D2H"), ("  D2D", "D2D"), ("  P2P", "P2P"), ("  unknown", "unknown")]
    {
        let of = |seen: &Seen| {
            copied(seen.figures.transfers.by_direction.iter().filter(|d| d.direction == direction))
        };
        add(name, Unit::Bytes, false, "transfers.bytes", &|seen| Some(of(seen).bytes));
    }
    add("Waits for the GPU", Unit::Count, true, "sync.calls", &|seen| Some(seen.figures.sync.calls));
    add("Time in them", Unit::Time, true, "sync.total_ns", &|seen| Some(seen.figures.sync.total_ns));
    add("Failed calls", Unit::Count, true, "failures.calls", &|seen| Some(seen.figures.failures.calls));
    add("Handled failures", Unit::Count, false, "failures.handled", &|seen| {
        Some(seen.figures.failures.handled)
    });
    add("Ioctls", Unit::Count, true, "", &|seen| seen.figures.kernel_space.as_ref().map(|k| k.ioctls));
    add("Time in ioctls", Unit::Time, true, "", &|seen| {
        seen.figures.kernel_space.as_ref().map(|k| k.ioctl_ns)
    });
    add("Xids", Unit::Count, false, "", &|seen| seen.figures.kernel_space.as_ref().map(|k| k.xid_count));
    all
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
pub fn caveats(gathered: &[Gathered; 2]) -> Vec<String> {
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
    for api in [Api::Runtime, Api::Driver] {
        let has = |side: &Gathered| side.whole.calls.functions.list.iter().any(|s| cuda::api(&s.name) == api);
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
