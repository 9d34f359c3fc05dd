//! Evaluates a term over a trace. In: what was gathered. Out: the value with its caveats, or the reason why there is
//! none. A gate that passes because nothing was recorded is worse than one that fails.

use std::cmp::Ordering;

use super::calls::NAMELESS;
use super::gather::Gathered;
use super::language::{Op, Term};
use super::metric::{Copied, Field, Heap, Metric, TOTALS, copied};
use super::names::{did_you_mean, fits_function, fits_kernel, is_pattern, matches, nearest};
use super::part::{Edge, Seen, Window};
use super::sample::{First, Percentile, Sample};
use super::value::{Unit, Value};
use crate::left_out::LeftOut;
use crate::text::duration;
use crate::unknown;
use gpurec_cuda::{self as cuda, Api};
use gpurec_trace::Header;

#[derive(Debug)]
pub struct Found {
    pub value: Value,
    /// Caveats about the value.
    pub notes: Vec<String>,
    /// The first counted occurrence.
    pub first: Option<First>,
    /// The percentile and its sample, for exact comparison.
    percentile: Option<(Percentile, Sample)>,
}

#[derive(Debug)]
pub enum Missing {
    /// The trace has no such name: the expression is wrong, at this column.
    Unknown { column: usize, reason: String },
    /// The name is valid, but the trace cannot tell the value.
    NoValue(String),
}

pub fn evaluate(term: &Term, gathered: &Gathered) -> Result<Found, Missing> {
    let seen = gathered.seen(&term.window);
    if gathered.is_absent {
        return Err(Missing::NoValue("no process, thread or rank asked for is in the trace".into()));
    }
    if gathered.without_events && term.window != Window::default() {
        return Err(Missing::NoValue(
            "the recording was made with --summary-only and has no events to look into".into(),
        ));
    }
    let mut found = metric(&term.metric, seen, gathered).map_err(|e| e.at(term.column))?;
    if let Some(per) = &term.per {
        let below = metric(per, seen, gathered).map_err(|e| e.at(term.per_column))?;
        found.notes.extend(below.notes);
        found.value = found.value.over(below.value).ok_or_else(|| {
            Missing::NoValue(match below.value.is_zero() {
                true => "it cannot be divided by 0".into(),
                false => "the numbers are too large".into(),
            })
        })?;
        (found.first, found.percentile) = (None, None);
    }
    if !seen.opened {
        let length = duration(gathered.whole.duration_ns);
        let launches = gathered.whole.calls.launches;
        found.notes.push(match term.window.from {
            Edge::Launches(_) => format!("the trace has only {launches} launches: nothing was looked at"),
            _ => format!("the trace is only {length} long: nothing was looked at"),
        });
    }
    Ok(found)
}

/// Whether the value satisfies the assertion.
pub fn decide(found: &Found, op: Op, limit: &Value) -> bool {
    let exact = found.percentile.as_ref().and_then(|(of, sample)| sample.compare(*of, limit));
    let order = exact.unwrap_or_else(|| found.value.compare(limit));
    match op {
        Op::Less => order == Ordering::Less,
        Op::AtMost => order != Ordering::Greater,
        Op::More => order == Ordering::Greater,
        Op::AtLeast => order != Ordering::Less,
        Op::Is => order == Ordering::Equal,
        Op::IsNot => order != Ordering::Equal,
    }
}

impl Found {
    fn of(value: Value) -> Found {
        Found { value, notes: Vec::new(), first: None, percentile: None }
    }

    /// The value to print. The percentile itself is known to 1 %, but its side of the limit is known exactly, and the
    /// printed value must not contradict that.
    pub fn shown(&self, limit: &Value) -> Value {
        let Some((of, sample)) = &self.percentile else { return self.value };
        let whole = |n: u64| Value::whole(n, Unit::Time);
        let (floor, exact) = limit.floor();
        match (sample.compare(*of, limit), self.value.compare(limit)) {
            (Some(Ordering::Less), Ordering::Equal | Ordering::Greater) => {
                whole(if exact { floor.saturating_sub(1) } else { floor })
            }
            (Some(Ordering::Greater), Ordering::Equal | Ordering::Less) => whole(floor.saturating_add(1)),
            (Some(Ordering::Equal), _) => *limit,
            _ => self.value,
        }
    }
}

/// An error before its place in the expression is known.
enum Lacking {
    Unknown(String),
    NoValue(String),
}

impl Lacking {
    fn at(self, column: usize) -> Missing {
        match self {
            Lacking::Unknown(reason) => Missing::Unknown { column, reason },
            Lacking::NoValue(reason) => Missing::NoValue(reason),
        }
    }
}

fn metric(metric: &Metric, seen: &Seen, gathered: &Gathered) -> Result<Found, Lacking> {
    let unit = metric.unit();
    if let Some(reason) = figure_of(metric).and_then(|figure| seen.figures.unknown.get(figure)) {
        return Err(Lacking::NoValue(reason.clone()));
    }
    match metric {
        Metric::Total(total) => {
            let value = (total.of)(seen).ok_or_else(|| {
                Lacking::NoValue(match total.name {
                    "overhead" => OVERHEAD.into(),
                    _ => WITHOUT_KERNEL.into(),
                })
            })?;
            Ok(Found { first: first_of(total.name, seen), ..Found::of(Value::whole(value, unit)) })
        }
        Metric::Memory { space, field } => Ok(Found::of(Value::whole(heap(space, *field, seen), unit))),
        Metric::Copies { direction, field } => copies(direction.as_deref(), *field, seen),
        Metric::Function { name, field } => function(name, *field, seen, gathered),
        Metric::Kernel { name, field } => kernel(name, *field, seen, gathered),
        Metric::Ioctl { name, field } => ioctl(name, *field, seen),
    }
}

/// The figure of the summary that corresponds to a metric.
fn figure_of(metric: &Metric) -> Option<&'static str> {
    Some(match metric {
        Metric::Total(total) => match total.name {
            "calls" => "cuda_calls",
            "errors" | "shutdown_errors" => "failures.calls",
            "errors.handled" => "failures.handled",
            "launches" => "kernel_launches",
            "graph_launches" => "graph_launches",
            "memory.allocations" => "memory.allocations",
            "memory.allocated" => "memory.allocated_bytes",
            "memory.frees" => "memory.frees",
            "memory.freed" => "memory.freed_bytes",
            "memory.leaks" | "memory.leaked" => "memory.leaks",
            "memory.held" => "memory.held",
            "memory.peak" => unknown::PEAK,
            "sync.calls" => "sync.calls",
            "sync.time" => "sync.total_ns",
            _ => return None,
        },
        Metric::Memory { field, .. } => match field {
            Heap::Allocations => "memory.allocations",
            Heap::Allocated => "memory.allocated_bytes",
            Heap::Frees => "memory.frees",
            Heap::Freed => "memory.freed_bytes",
            Heap::Leaks | Heap::Leaked => "memory.leaks",
            Heap::Held => "memory.held",
        },
        Metric::Copies { field: Copied::Calls, .. } => "transfers.count",
        Metric::Copies { .. } => "transfers.bytes",
        Metric::Kernel { .. } => "kernel_launches",
        Metric::Function { .. } | Metric::Ioctl { .. } => return None,
    })
}

const OVERHEAD: &str =
    "the trace does not say what recording a call cost, or for how long gpurec had stopped the processes";

const WITHOUT_KERNEL: &str = "the trace was recorded without --kernel";

/// The first occurrence of something whose total should be 0.
fn first_of(total: &str, seen: &Seen) -> Option<First> {
    match total {
        "errors" => seen.figures.failures.first.as_ref().map(|first| First {
            event_id: first.begin,
            ts_ns: first.ts_ns,
            pid: first.pid,
            tid: first.tid,
        }),
        _ => None,
    }
}

fn heap(space: &str, field: Heap, seen: &Seen) -> u64 {
    let memory = &seen.figures.memory;
    let of = memory.by_space.iter().find(|s| s.space == space);
    let leaks = memory.leaks.by_space.iter().find(|s| s.space == space);
    match field {
        Heap::Allocations => of.map_or(0, |s| s.allocations),
        Heap::Allocated => of.map_or(0, |s| s.allocated_bytes),
        Heap::Frees => of.map_or(0, |s| s.frees),
        Heap::Freed => of.map_or(0, |s| s.freed_bytes),
        Heap::Leaks => leaks.map_or(0, |s| s.count),
        Heap::Leaked => leaks.map_or(0, |s| s.bytes),
        Heap::Held => memory.held.by_space.iter().find(|s| s.space == space).map_or(0, |s| s.bytes),
    }
}

fn copies(direction: Option<&str>, field: Copied, seen: &Seen) -> Result<Found, Lacking> {
    // A set is not a copy.
    let wanted = |name: &str| direction.map_or(name != "set", |direction| direction == name);
    let sum = copied(seen.figures.transfers.by_direction.iter().filter(|d| wanted(&d.direction)));
    let value = match field {
        Copied::Calls => Some(Value::whole(sum.count, Unit::Count)),
        Copied::Bytes => Some(Value::whole(sum.bytes, Unit::Bytes)),
        Copied::Pageable => Some(Value::whole(sum.pageable_bytes, Unit::Bytes)),
        Copied::Rate => {
            Value::fraction(u128::from(sum.waited_bytes) * 1_000_000_000, sum.waited_ns.into(), Unit::Rate)
        }
    };
    let value = value.ok_or_else(|| {
        Lacking::NoValue("no call waited for such a copy, and only those have a rate".into())
    })?;
    let mut found = Found::of(value);
    if sum.partial && field != Copied::Calls {
        found.notes.push("some sizes could not be read: there were more bytes".into());
    }
    Ok(found)
}

fn function(name: &str, field: Field, seen: &Seen, gathered: &Gathered) -> Result<Found, Lacking> {
    let whole = &gathered.whole.calls.functions.list;
    let in_trace = whole.iter().any(|s| fits_function(name, &s.name));
    let known: Vec<&str> = cuda::function_names().filter(|known| fits_function(name, known)).collect();
    if !in_trace {
        if known.is_empty() {
            let seen = whole.iter().map(|s| s.name.to_string());
            let totals = TOTALS.iter().filter_map(|total| total.name.split('.').next());
            let names: Vec<String> =
                seen.chain(cuda::function_names().chain(totals).map(str::to_owned)).collect();
            let near = nearest(name, names.iter().map(String::as_str));
            return Err(Lacking::Unknown(format!(
                "no CUDA function and nothing in the trace is called {name}{}",
                did_you_mean(&near)
            )));
        }
        not_recorded(name, &known, gathered)?;
    }
    partly_recorded(name, gathered)?;
    let sample = sum(seen.calls.functions.list.iter().filter(|s| fits_function(name, &s.name)));
    let mut found = of_sample(sample, field, name, gathered)?;
    if !in_trace {
        found.notes.extend(unseen_api(&known, gathered));
    }
    Ok(found)
}

/// Rejects a function that was not recorded: its count is unknown, not 0.
fn not_recorded(name: &str, known: &[&str], gathered: &Gathered) -> Result<(), Lacking> {
    if let Some(header) = &gathered.header
        && let Some(options) = LeftOut::of(header)
        && !known.iter().any(|name| options.records(name))
    {
        return Err(Lacking::NoValue(format!("{name} was not recorded ({})", options.text)));
    }
    let figures = &gathered.whole.figures;
    let not_hooked =
        figures.libraries.iter().flat_map(|l| &l.not_hooked).chain(figures.refused.values().flatten());
    let refused = not_hooked.into_iter().find(|refused| known.contains(&refused.name.as_str()));
    match refused {
        Some(refused) => {
            Err(Lacking::NoValue(format!("{} could not be hooked: {}", refused.name, refused.reason)))
        }
        None => Ok(()),
    }
}

/// Reports a function of which some calls are missing from the trace.
fn partly_recorded(name: &str, gathered: &Gathered) -> Result<(), Lacking> {
    let figures = &gathered.whole.figures;
    let fits = |probe: &str| fits_function(name, probe.strip_suffix(" (return)").unwrap_or(probe));
    if let Some((probe, count)) = figures.lost_by_probe.iter().find(|(probe, _)| fits(probe)) {
        return Err(Lacking::NoValue(format!("{count} records of {probe} were lost")));
    }
    let given_up = figures.budget.iter().flat_map(|budget| &budget.functions);
    let mut given_up = given_up.filter(|function| function.unhooked_ns > 0);
    if let Some(function) = given_up.find(|function| fits(&function.name)) {
        return Err(Lacking::NoValue(format!("--budget gave up {} for a while", function.name)));
    }
    match figures.unknown.get(unknown::FUNCTIONS) {
        Some(reason) => Err(Lacking::NoValue(reason.clone())),
        None => Ok(()),
    }
}

/// Warns about 0 calls if the trace has no call of that library at all.
fn unseen_api(known: &[&str], gathered: &Gathered) -> Option<String> {
    let api = cuda::api(known.first()?);
    let seen = gathered.whole.calls.functions.list.iter().any(|s| cuda::api(&s.name) == api);
    (!seen).then(|| match api {
        Api::Runtime => "the trace has no call of the CUDA runtime at all".to_owned(),
        _ => "the trace has no call of the CUDA driver at all".to_owned(),
    })
}

fn kernel(name: &str, field: Field, seen: &Seen, gathered: &Gathered) -> Result<Found, Lacking> {
    let all = &gathered.whole.calls.kernels.list;
    let exact = all.iter().any(|s| *s.name == *name);
    let fits = |s: &&Sample| if exact { *s.name == *name } else { fits_kernel(name, &s.name) };
    let mut notes = Vec::new();
    if gathered.without_events && gathered.whole.figures.more_kernels > 0 {
        notes.push("the recording was made with --summary-only and names only some of its kernels".into());
    }
    if let Some(nameless) = all.iter().find(|s| *s.name == *NAMELESS && name != NAMELESS) {
        let launches = if nameless.calls == 1 { "launch is" } else { "launches are" };
        return Err(Lacking::NoValue(format!(
            "{} {launches} of kernels whose names are not known",
            nameless.calls
        )));
    }
    if !all.iter().any(|s| fits(&s)) {
        absent("kernel", name, all.iter().map(|s| &*s.name), &mut notes)?;
    }
    let sample = sum(seen.calls.kernels.list.iter().filter(fits));
    let found = of_sample(sample, field, name, gathered)?;
    Ok(Found { notes: [notes, found.notes].concat(), ..found })
}

fn ioctl(name: &str, field: Field, seen: &Seen) -> Result<Found, Lacking> {
    let Some(space) = &seen.figures.kernel_space else {
        return Err(Lacking::NoValue(WITHOUT_KERNEL.into()));
    };
    let names = |request: &crate::driver_figures::RequestSeen| {
        let detail = request.detail.clone().unwrap_or_default();
        [request.request.clone(), format!("{} {detail}", request.request).trim().to_owned(), detail]
    };
    let fits: Vec<_> = space
        .requests
        .iter()
        .filter(|r| names(r).iter().any(|known| !known.is_empty() && matches(name, known)))
        .collect();
    let mut notes = Vec::new();
    if space.more_requests > 0 {
        notes.push("the summary lists only some of the requests".into());
    }
    if fits.is_empty() {
        let all: Vec<String> = space.requests.iter().flat_map(names).collect();
        absent("request", name, all.iter().map(String::as_str), &mut notes)?;
    }
    let total = |of: fn(&crate::driver_figures::RequestSeen) -> u64| fits.iter().map(|r| of(r)).sum::<u64>();
    let calls = total(|r| r.calls);
    let value = match field {
        Field::Calls => Some(Value::whole(calls, Unit::Count)),
        Field::Errors => Some(Value::whole(total(|r| r.failed), Unit::Count)),
        Field::Time => Some(Value::whole(total(|r| r.total_ns), Unit::Time)),
        Field::Max => fits.iter().map(|r| r.max_ns).max().map(|ns| Value::whole(ns, Unit::Time)),
        _ => Value::fraction(total(|r| r.total_ns).into(), calls.into(), Unit::Time),
    };
    let value = value.ok_or_else(|| Lacking::NoValue(format!("no request {name} was made")))?;
    Ok(Found { notes, ..Found::of(value) })
}

/// A missing name is an error; a pattern without a match gives 0 and a note.
fn absent<'a>(
    what: &str,
    name: &str,
    all: impl Iterator<Item = &'a str>,
    notes: &mut Vec<String>,
) -> Result<(), Lacking> {
    let hint = did_you_mean(&nearest(name, all));
    if is_pattern(name) {
        notes.push(format!("no {what} of the trace fits{hint}"));
        return Ok(());
    }
    Err(Lacking::Unknown(format!(
        "no {what} of the trace is called {name:?}{hint}; where there may be none, write a pattern: \"{name}*\""
    )))
}

fn sum<'a>(samples: impl Iterator<Item = &'a Sample>) -> Sample {
    let samples: Vec<&Sample> = samples.collect();
    match samples.as_slice() {
        [one] => (*one).clone(),
        many => many.iter().fold(Sample::default(), |mut sum, one| {
            sum.merge(one);
            sum
        }),
    }
}

fn of_sample(sample: Sample, field: Field, name: &str, gathered: &Gathered) -> Result<Found, Lacking> {
    let time = |ns: u64| (sample.timed > 0).then(|| Value::whole(ns, Unit::Time));
    let value = match field {
        Field::Calls => Some(Value::whole(sample.calls, Unit::Count)),
        Field::Errors => Some(Value::whole(sample.errors, Unit::Count)),
        Field::Bytes if gathered.without_events => None,
        Field::Bytes => Some(Value::whole(sample.bytes, Unit::Bytes)),
        Field::Time => Value::fraction(sample.total_ns, 1, Unit::Time),
        Field::Avg => Value::fraction(sample.total_ns, sample.timed.into(), Unit::Time),
        Field::Min => time(sample.min_ns),
        Field::Max => time(sample.max_ns),
        Field::Percentile(of) => sample.percentile(of).and_then(time),
    };
    let value = value.ok_or_else(|| {
        Lacking::NoValue(match gathered.without_events && sample.calls > 0 {
            true => "the recording was made with --summary-only, which does not keep that".into(),
            false => format!("{name} was never called, so it has no times"),
        })
    })?;
    let first = sample.first;
    let percentile = match field {
        Field::Percentile(of) if of < 100_000 && sample.med_ns.is_none() => Some((of, sample)),
        _ => None,
    };
    Ok(Found { value, notes: Vec::new(), first, percentile })
}

/// The options of the recording that leave calls out, in words.
pub fn options_that_leave_out(header: Option<&Header>) -> Option<String> {
    LeftOut::of(header?).map(|options| options.text)
}

/// Whether the recording would contain a function.
pub fn recorded(header: Option<&Header>, name: &str) -> bool {
    header.and_then(LeftOut::of).is_none_or(|options| options.records(name))
}
