//! Evaluates a term over a trace. In: what was gathered. Out: the value with its caveats, or the reason why there is
//! none. A gate that passes because nothing was recorded is worse than one that fails.

use std::cmp::Ordering;

use super::calls::NAMELESS;
use super::gather::Measurements;
use super::language::{Op, Term};
use super::metric::{Field, Metric, TOTALS, copied};
use super::names::{did_you_mean, fits_function, fits_kernel, is_pattern, matches, nearest};
use super::part::{Coverage, Edge, Window};
use super::sample::{First, Percentile, Sample};
use super::value::{Unit, Value};
use crate::driver_figures::RequestFigures;
use crate::left_out::LeftOut;
use crate::ranks::Report;
use crate::text::duration;
use crate::unknown;
use gpurec_cuda::{self as cuda, Api};
use gpurec_trace::Header;

#[derive(Debug)]
pub struct Evaluation {
    pub value: Value,
    /// Caveats about the value.
    pub notes: Vec<String>,
    /// The first counted occurrence.
    pub first: Option<First>,
    /// The percentile and its sample, for exact comparison.
    percentile: Option<(Percentile, Sample)>,
}

#[derive(Debug)]
pub enum EvalError {
    /// The trace has no such name: the expression is wrong, at this column.
    Unknown { column: usize, reason: String },
    /// The name is valid, but the trace cannot tell the value.
    NoValue(String),
}

pub fn evaluate(term: &Term, gathered: &Measurements) -> Result<Evaluation, EvalError> {
    let seen = gathered.seen(&term.window);
    if gathered.is_absent {
        return no_value("no process, thread or rank asked for is in the trace");
    }
    if gathered.without_events && term.window != Window::default() {
        return no_value("the recording was made with --summary-only and has no events to look into");
    }
    let mut found = metric(&term.metric, seen, gathered).map_err(|e| e.at(term.column))?;
    if let Some(per) = &term.per {
        let below = metric(per, seen, gathered).map_err(|e| e.at(term.per_column))?;
        found.notes.extend(below.notes);
        found.value = found.value.over(below.value).ok_or_else(|| {
            EvalError::NoValue(match below.value.is_zero() {
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

/// The same for a term about the ranks of a job.
pub fn evaluate_job(term: &Term, job: &Report) -> Result<Evaluation, EvalError> {
    if term.window != Window::default() {
        return no_value("figures of ranks are those of the whole job: leave out after and before");
    }
    let of = |metric: &Metric| {
        let reason = match metric.is_of_job() {
            true => "the traces do not tell it (they have no rank, or no collective was matched)",
            false => "it is a figure of one trace, and ranks. of all together: they have no quotient",
        };
        metric.of_job(job).ok_or_else(|| EvalError::NoValue(reason.to_owned()))
    };
    let mut value = of(&term.metric)?;
    if let Some(per) = &term.per {
        let below = of(per)?;
        value =
            value.over(below).ok_or_else(|| EvalError::NoValue("it cannot be divided by 0".to_owned()))?;
    }
    Ok(Evaluation::of(value))
}

/// Whether the value satisfies the assertion.
pub fn decide(found: &Evaluation, op: Op, limit: &Value) -> bool {
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

impl Evaluation {
    fn of(value: Value) -> Evaluation {
        Evaluation { value, notes: Vec::new(), first: None, percentile: None }
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

fn no_value<T>(reason: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError::NoValue(reason.into()))
}

impl EvalError {
    /// An unknown name, whose place in the expression is not known yet.
    fn unknown(reason: String) -> EvalError {
        EvalError::Unknown { column: 0, reason }
    }

    fn at(self, column: usize) -> EvalError {
        match self {
            EvalError::Unknown { reason, .. } => EvalError::Unknown { column, reason },
            missing => missing,
        }
    }
}

fn metric(metric: &Metric, seen: &Coverage, gathered: &Measurements) -> Result<Evaluation, EvalError> {
    if let Some(reason) = metric.unknown(seen) {
        return no_value(reason);
    }
    let mut notes = Vec::new();
    let (first, without) = match metric {
        Metric::Function { name, field } => return function(name, *field, seen, gathered),
        Metric::Kernel { name, field } => return kernel(name, *field, seen, gathered),
        Metric::Ioctl { name, field } => return ioctl(name, *field, seen),
        Metric::Gpu { name, field } => return on_gpu(name, *field, seen, gathered),
        Metric::Queue { field } => return queue(*field, seen, gathered),
        Metric::Job(_) | Metric::Skew(_) => {
            return no_value("it is a figure of all ranks of a job: check takes it");
        }
        Metric::Copies { direction, field } => {
            if field.unit != Unit::Count && copied(direction.as_deref(), seen).partial {
                notes.push("some sizes could not be read: there were more bytes".into());
            }
            (None, "no call waited for such a copy, and only those have a rate")
        }
        Metric::Total(total) if total.name == "overhead" => (None, OVERHEAD),
        Metric::Total(total) if total.name.starts_with("gpu.") => (None, WITHOUT_GPU),
        Metric::Total(total) => (first_of(total.name, seen), WITHOUT_KERNEL),
        Metric::Memory { .. } => (None, ""),
    };
    let value = metric.value(seen).ok_or_else(|| EvalError::NoValue(without.into()))?;
    Ok(Evaluation { first, notes, ..Evaluation::of(value) })
}

const OVERHEAD: &str =
    "the trace does not say what recording a call cost, or for how long gpurec had stopped the processes";

const WITHOUT_KERNEL: &str = "the trace was recorded without --kernel";

const WITHOUT_GPU: &str = "the trace has no GPU work: record with --gpu";

/// The first occurrence of something whose total should be 0.
fn first_of(total: &str, seen: &Coverage) -> Option<First> {
    let first = seen.figures.failures.first.as_ref().filter(|_| total == "errors")?;
    Some(First { event_id: first.begin, ts_ns: first.ts_ns, pid: first.pid, tid: first.tid })
}

fn function(
    name: &str,
    field: Field,
    seen: &Coverage,
    gathered: &Measurements,
) -> Result<Evaluation, EvalError> {
    let whole = &gathered.whole.calls.functions.list;
    let in_trace = whole.iter().any(|s| fits_function(name, &s.name));
    let known: Vec<&str> = cuda::function_names().filter(|known| fits_function(name, known)).collect();
    if !in_trace {
        if known.is_empty() {
            let totals = TOTALS.iter().filter_map(|total| total.name.split('.').next());
            let known = cuda::function_names().chain(totals).map(str::to_owned);
            let names: Vec<String> = whole.iter().map(|s| s.name.to_string()).chain(known).collect();
            let near = nearest(name, names.iter().map(String::as_str));
            return Err(EvalError::unknown(format!(
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
fn not_recorded(name: &str, known: &[&str], gathered: &Measurements) -> Result<(), EvalError> {
    if let Some(header) = &gathered.header
        && let Some(options) = LeftOut::of(header)
        && !known.iter().any(|name| options.records(name))
    {
        return no_value(format!("{name} was not recorded ({})", options.text));
    }
    let figures = &gathered.whole.figures;
    let not_hooked =
        figures.libraries.iter().flat_map(|l| &l.not_hooked).chain(figures.refused.values().flatten());
    match not_hooked.into_iter().find(|refused| known.contains(&refused.name.as_str())) {
        Some(refused) => no_value(format!("{} could not be hooked: {}", refused.name, refused.reason)),
        None => Ok(()),
    }
}

/// Reports a function of which some calls are missing from the trace.
fn partly_recorded(name: &str, gathered: &Measurements) -> Result<(), EvalError> {
    let figures = &gathered.whole.figures;
    let fits = |probe: &str| fits_function(name, probe.strip_suffix(" (return)").unwrap_or(probe));
    if let Some((probe, count)) = figures.lost_by_probe.iter().find(|(probe, _)| fits(probe)) {
        return no_value(format!("{count} records of {probe} were lost"));
    }
    let given_up = figures.budget.iter().flat_map(|budget| &budget.functions);
    let mut given_up = given_up.filter(|function| function.unhooked_ns > 0);
    if let Some(function) = given_up.find(|function| fits(&function.name)) {
        return no_value(format!("--budget gave up {} for a while", function.name));
    }
    figures.unknown.get(unknown::FUNCTIONS).map_or(Ok(()), no_value)
}

/// Warns about 0 calls if the trace has no call of that library at all.
fn unseen_api(known: &[&str], gathered: &Measurements) -> Option<String> {
    let api = cuda::api(known.first()?);
    let seen = gathered.whole.calls.functions.list.iter().any(|s| cuda::api(&s.name) == api);
    let api = if api == Api::Runtime { "runtime" } else { "driver" };
    (!seen).then(|| format!("the trace has no call of the CUDA {api} at all"))
}

fn kernel(
    name: &str,
    field: Field,
    seen: &Coverage,
    gathered: &Measurements,
) -> Result<Evaluation, EvalError> {
    let all = &gathered.whole.calls.kernels.list;
    let exact = all.iter().any(|s| *s.name == *name);
    let fits = |s: &&Sample| if exact { *s.name == *name } else { fits_kernel(name, &s.name) };
    let mut notes = Vec::new();
    if gathered.without_events && gathered.whole.figures.more_kernels > 0 {
        notes.push("the recording was made with --summary-only and names only some of its kernels".into());
    }
    if let Some(nameless) = all.iter().find(|s| *s.name == *NAMELESS && name != NAMELESS) {
        let launches = if nameless.calls == 1 { "launch is" } else { "launches are" };
        return no_value(format!("{} {launches} of kernels whose names are not known", nameless.calls));
    }
    if !all.iter().any(|s| fits(&s)) {
        absent("kernel", name, all.iter().map(|s| &*s.name), &mut notes)?;
    }
    let sample = sum(seen.calls.kernels.list.iter().filter(fits));
    let found = of_sample(sample, field, name, gathered)?;
    Ok(Evaluation { notes: [notes, found.notes].concat(), ..found })
}

/// Runs of a kernel on the GPU.
fn on_gpu(
    name: &str,
    field: Field,
    seen: &Coverage,
    gathered: &Measurements,
) -> Result<Evaluation, EvalError> {
    let Some(gpu) = &gathered.whole.figures.gpu else { return no_value(WITHOUT_GPU) };
    let all = &gathered.whole.calls.gpu.list;
    let exact = all.iter().any(|s| *s.name == *name);
    let fits = |s: &&Sample| if exact { *s.name == *name } else { fits_kernel(name, &s.name) };
    let mut notes = Vec::new();
    if gathered.without_events && gpu.more_kernels > 0 {
        notes.push("the recording was made with --summary-only and names only some of its kernels".into());
    }
    if !all.iter().any(|s| fits(&s)) {
        absent("kernel", name, all.iter().map(|s| &*s.name), &mut notes)?;
    }
    let sample = sum(seen.calls.gpu.list.iter().filter(fits));
    let found = of_sample(sample, field, name, gathered)?;
    Ok(Evaluation { notes: [notes, found.notes].concat(), ..found })
}

fn queue(field: Field, seen: &Coverage, gathered: &Measurements) -> Result<Evaluation, EvalError> {
    if gathered.whole.figures.gpu.is_none() {
        return no_value(WITHOUT_GPU);
    }
    let sample = &seen.calls.queue;
    if sample.calls == 0 {
        return no_value("no kernel has a known delay");
    }
    of_sample(sample.clone(), field, "gpu.queue", gathered)
}

fn ioctl(name: &str, field: Field, seen: &Coverage) -> Result<Evaluation, EvalError> {
    let Some(space) = &seen.figures.kernel_space else {
        return no_value(WITHOUT_KERNEL);
    };
    let names = |request: &RequestFigures| {
        let detail = request.detail.clone().unwrap_or_default();
        [request.request.clone(), format!("{} {detail}", request.request).trim().to_owned(), detail]
    };
    let fits = |r: &&RequestFigures| names(r).iter().any(|known| !known.is_empty() && matches(name, known));
    let fits: Vec<_> = space.requests.iter().filter(fits).collect();
    let mut notes = Vec::new();
    if space.more_requests > 0 {
        notes.push("the summary lists only some of the requests".into());
    }
    if fits.is_empty() {
        let all: Vec<String> = space.requests.iter().flat_map(names).collect();
        absent("request", name, all.iter().map(String::as_str), &mut notes)?;
    }
    let total = |of: fn(&RequestFigures) -> u64| fits.iter().map(|r| of(r)).sum::<u64>();
    let calls = total(|r| r.calls);
    let value = match field {
        Field::Calls => Some(Value::whole(calls, Unit::Count)),
        Field::Errors => Some(Value::whole(total(|r| r.failed), Unit::Count)),
        Field::Time => Some(Value::whole(total(|r| r.total_ns), Unit::Time)),
        Field::Max => fits.iter().map(|r| r.max_ns).max().map(|ns| Value::whole(ns, Unit::Time)),
        _ => Value::fraction(total(|r| r.total_ns).into(), calls.into(), Unit::Time),
    };
    let value = value.ok_or_else(|| EvalError::NoValue(format!("no request {name} was made")))?;
    Ok(Evaluation { notes, ..Evaluation::of(value) })
}

/// A missing name is an error; a pattern without a match gives 0 and a note.
fn absent<'a>(
    what: &str,
    name: &str,
    all: impl Iterator<Item = &'a str>,
    notes: &mut Vec<String>,
) -> Result<(), EvalError> {
    let hint = did_you_mean(&nearest(name, all));
    if is_pattern(name) {
        notes.push(format!("no {what} of the trace matches{hint}"));
        return Ok(());
    }
    Err(EvalError::unknown(format!(
        "no {what} of the trace is called {name:?}{hint}; where there may be none, write a pattern: \"{name}*\""
    )))
}

fn sum<'a>(samples: impl Iterator<Item = &'a Sample>) -> Sample {
    let merged = samples.cloned().reduce(|mut sum, one| {
        sum.merge(&one);
        sum
    });
    merged.unwrap_or_default()
}

fn of_sample(
    sample: Sample,
    field: Field,
    name: &str,
    gathered: &Measurements,
) -> Result<Evaluation, EvalError> {
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
        EvalError::NoValue(match gathered.without_events && sample.calls > 0 {
            true => "the recording was made with --summary-only, which does not keep that".into(),
            false => format!("{name} was never called, so it has no times"),
        })
    })?;
    let first = sample.first;
    let percentile = match field {
        Field::Percentile(of) if of < 100_000 && sample.med_ns.is_none() => Some((of, sample)),
        _ => None,
    };
    Ok(Evaluation { value, notes: Vec::new(), first, percentile })
}

/// The options of the recording that leave calls out, in words.
pub fn options_that_leave_out(header: Option<&Header>) -> Option<String> {
    LeftOut::of(header?).map(|options| options.text)
}

/// Whether the recording would contain a function.
pub fn recorded(header: Option<&Header>, name: &str) -> bool {
    header.and_then(LeftOut::of).is_none_or(|options| options.records(name))
}
