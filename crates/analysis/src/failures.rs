//! Counts each failure once. In: failed calls and the calls around them. Out: the failures that the program saw, those
//! that a caller handled, and the cause of each.
//!
//! The program sees the outermost call. A nested failure waits until the enclosing call returns. If that call failed
//! too, the nested failure is its cause; otherwise the call handled it. A call without a known result (a lost return,
//! no return yet, or a library other than CUDA's) decides nothing: its nested failures pass to the call around it.

use super::figures::{FailureCause, FailureKind, Failures, FirstFailure, OTHER_FUNCTIONS, OTHERS};
use super::stacks::Site;
use gpurec_cuda::{self as cuda, Api};
use gpurec_trace::bounds::{LONGEST_NAME, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{End, Retval};

/// Limits on distinct failures, by function and code, and on the length of an error's name.
const KINDS: usize = 4096;
const LONGEST_ERROR: usize = 256;

/// Limits on kinds that wait for one call, and on calls with waiting failures.
const WAITING: usize = 8;
const CALLS: usize = 32_768;

/// Errors of calls after the shutdown of the driver: during exit, libraries and the runtime in the program clean up in
/// any order. They are not failures of the program.
pub fn is_shutdown(error: &str) -> bool {
    matches!(error, "CUDA_ERROR_DEINITIALIZED" | "cudaErrorCudartUnloading")
}

/// The number that a call returned.
pub fn code_of(end: &End) -> Option<i64> {
    match end.retval {
        Some(Retval::Number(code)) => Some(code),
        _ => None,
    }
}

#[derive(Clone, Default)]
pub struct FailureTally {
    kinds: Vec<Kind>,
    by_code: Map<(usize, Option<i64>), usize>,
    first: Option<At>,
    /// Number of open calls that have nested failures.
    waited_for: usize,
    /// Failures that the program saw since the last `take_news`: process, kind, number. None without `keep_news`.
    news: Option<Vec<(u32, usize, u64)>>,
}

#[derive(Clone)]
struct Kind {
    api: Api,
    error: String,
    code: Option<i64>,
    function: String,
    /// Failures that the program saw.
    failed: Times,
    handled: Times,
    /// The cause of the first failure: the index of another kind.
    cause: Option<usize>,
    /// The call site of the first failure.
    site: Option<Site>,
}

#[derive(Clone, Copy, Default)]
struct Times {
    count: u64,
    first_ns: u64,
    last_ns: u64,
    /// For allocations: the largest requested size in bytes.
    asked_bytes: Option<u64>,
}

impl Times {
    fn add(&mut self, other: &Times) {
        self.first_ns = if self.count == 0 { other.first_ns } else { self.first_ns.min(other.first_ns) };
        self.last_ns = self.last_ns.max(other.last_ns);
        self.count += other.count;
        self.asked_bytes = self.asked_bytes.max(other.asked_bytes);
    }
}

/// A call that failed.
pub struct FailedCall {
    times: Times,
    at: At,
}

#[derive(Clone, Copy)]
struct At {
    ts_ns: u64,
    pid: u32,
    tid: u32,
    begin: u64,
    kind: usize,
    /// The index of another kind.
    cause: Option<usize>,
    site: Option<Site>,
}

/// Direct failures inside a call that has not ended.
#[derive(Clone)]
pub struct InnerFailures {
    kinds: Vec<(usize, Times)>,
    last: usize,
    first: At,
}

impl FailureTally {
    /// Records a failed call. Its cause is the last failure inside it.
    pub fn failed(
        &mut self,
        end: &End,
        ts_ns: u64,
        (function, asked_bytes, site): (usize, Option<u64>, Option<Site>),
        inside: Option<Box<InnerFailures>>,
    ) -> FailedCall {
        let kind = self.kind(end, function, code_of(end));
        let cause = self.take(inside).map(|inside| inside.last);
        FailedCall {
            times: Times { count: 1, first_ns: ts_ns, last_ns: ts_ns, asked_bytes },
            at: At { ts_ns, pid: end.pid, tid: end.tid, begin: end.begin, kind, cause, site },
        }
    }

    fn kind(&mut self, end: &End, function: usize, code: Option<i64>) -> usize {
        // The last kind collects all failures beyond the limit.
        let full = self.kinds.len() >= KINDS && !self.by_code.contains_key(&(function, code));
        let key = if full { (usize::MAX, None) } else { (function, code) };
        *self.by_code.entry(key).or_insert_with(|| {
            let error = end.error.as_deref().unwrap_or_default();
            let (api, error, function) = match full {
                true => (Api::Other, OTHERS.to_owned(), OTHER_FUNCTIONS.to_owned()),
                false => (cuda::api(&end.name), short(error, LONGEST_ERROR), short(&end.name, LONGEST_NAME)),
            };
            let (failed, handled) = (Times::default(), Times::default());
            self.kinds.push(Kind {
                api,
                error,
                code: key.1,
                function,
                failed,
                handled,
                cause: None,
                site: None,
            });
            self.kinds.len() - 1
        })
    }

    fn cause(&self, kind: usize) -> Option<FailureCause> {
        let kind = self.kinds.get(kind)?;
        Some(FailureCause { function: kind.function.clone(), error: kind.error.clone() })
    }

    /// Counts a failure as seen by the program. Returns false if it is not a failure of the program.
    pub fn count(&mut self, failed: &FailedCall) -> bool {
        let at = &failed.at;
        let Some(kind) = self.kinds.get_mut(at.kind) else { return false };
        if kind.failed.count == 0 {
            (kind.cause, kind.site) = (at.cause, at.site);
        }
        kind.failed.add(&failed.times);
        if let Some(news) = &mut self.news {
            news.push((at.pid, at.kind, failed.times.count));
        }
        let is_failure = !is_shutdown(&kind.error);
        if is_failure {
            self.came_first(at);
        }
        is_failure
    }

    pub fn cause_of(&self, failed: &FailedCall) -> Option<FailureCause> {
        self.cause(failed.at.cause?)
    }

    fn came_first(&mut self, at: &At) {
        if self.first.is_none_or(|first| at.ts_ns < first.ts_ns) {
            self.first = Some(*at);
        }
    }

    /// Makes a failure wait for the enclosing call. Returns false if there is no room.
    pub fn defer(&mut self, within: &mut Option<Box<InnerFailures>>, failed: &FailedCall) -> bool {
        if within.is_none() {
            if self.waited_for >= CALLS {
                return false;
            }
            self.waited_for += 1;
        }
        let first = || Box::new(InnerFailures { kinds: Vec::new(), last: failed.at.kind, first: failed.at });
        within.get_or_insert_with(first).add(failed.at.kind, &failed.times)
    }

    /// The enclosing call succeeded: it handled these failures.
    pub fn handled(&mut self, inside: Option<Box<InnerFailures>>) {
        for (kind, times) in self.take(inside).into_iter().flat_map(|inside| inside.kinds) {
            if let Some(kind) = self.kinds.get_mut(kind) {
                kind.handled.add(&times);
            }
        }
    }

    /// The enclosing call has no known result: its failures pass to the next outer call, or to the program.
    pub fn undecided(
        &mut self,
        inside: Option<Box<InnerFailures>>,
        within: Option<&mut Option<Box<InnerFailures>>>,
    ) {
        let Some(mut rest) = self.take(inside) else { return };
        match within {
            Some(within @ None) => {
                self.waited_for += 1;
                *within = Some(rest);
            }
            Some(Some(outer)) => {
                rest.kinds.retain(|(kind, times)| !outer.add(*kind, times));
                self.count_all(&rest);
            }
            None => self.count_all(&rest),
        }
    }

    fn count_all(&mut self, inside: &InnerFailures) {
        for (kind, times) in &inside.kinds {
            if let Some(kind) = self.kinds.get_mut(*kind) {
                kind.failed.add(times);
            }
            if let Some(news) = &mut self.news {
                news.push((inside.first.pid, *kind, times.count));
            }
        }
        let first = self.kinds.get(inside.first.kind).filter(|_| !inside.kinds.is_empty());
        if first.is_some_and(|kind| !is_shutdown(&kind.error)) {
            self.came_first(&inside.first);
        }
    }

    fn take(&mut self, inside: Option<Box<InnerFailures>>) -> Option<Box<InnerFailures>> {
        self.waited_for -= usize::from(inside.is_some());
        inside
    }

    /// Keeps failures by process for `take_news`.
    pub fn keep_news(&mut self) {
        self.news = Some(Vec::new());
    }

    /// Calls `each` with the process, the error and the number of failures that the program saw since the last call.
    pub fn take_news(&mut self, mut each: impl FnMut(u32, &str, u64)) {
        let Some(news) = &mut self.news else { return };
        for (pid, kind, count) in news.drain(..) {
            if let Some(kind) = self.kinds.get(kind).filter(|kind| !is_shutdown(&kind.error)) {
                each(pid, &kind.error, count);
            }
        }
    }

    /// The failures inside a call that has no known result: each error with its count.
    pub fn undecided_in<'a>(&'a self, inside: &'a InnerFailures) -> impl Iterator<Item = (&'a str, u64)> {
        let own = |(kind, times): &(usize, Times)| {
            let kind = self.kinds.get(*kind).filter(|kind| !is_shutdown(&kind.error))?;
            Some((kind.error.as_str(), times.count))
        };
        inside.kinds.iter().filter_map(own)
    }

    /// Process and thread of the first failure.
    pub fn first(&self) -> Option<(u32, u32)> {
        self.first.map(|first| (first.pid, first.tid))
    }

    fn first_failure(&self, text: &dyn Fn(Site) -> String) -> Option<FirstFailure> {
        let At { ts_ns, pid, tid, begin, kind, cause, site } = self.first?;
        let FailureCause { function, error } = self.cause(kind)?;
        let cause = cause.and_then(|cause| self.cause(cause));
        Some(FirstFailure { ts_ns, pid, tid, begin, function, error, cause, site: site.map(text) })
    }

    /// The figures, including failures inside unfinished calls. `text` is that of a call site.
    pub fn finish<'a>(
        &self,
        open: impl Iterator<Item = &'a InnerFailures>,
        text: &dyn Fn(Site) -> String,
    ) -> Failures {
        let mut all = self.clone();
        open.for_each(|inside| all.count_all(inside));
        let (shutdown, own): (Vec<&Kind>, Vec<&Kind>) =
            all.kinds.iter().partition(|kind| is_shutdown(&kind.error));
        let sum = |kinds: &[&Kind]| kinds.iter().map(|kind| kind.failed.count).fold(0, u64::saturating_add);
        let handled = all.listed(&all.kinds, |kind| (&kind.handled, None), text);
        Failures {
            calls: sum(&own),
            handled: handled.iter().map(|kind| kind.count).fold(0, u64::saturating_add),
            shutdown: sum(&shutdown),
            by_error: all.listed(own, |kind| (&kind.failed, kind.cause), text),
            handled_by_error: handled,
            first: all.first_failure(text),
        }
    }

    /// In the order of first occurrence.
    fn listed<'a>(
        &self,
        kinds: impl IntoIterator<Item = &'a Kind>,
        of: impl Fn(&Kind) -> (&Times, Option<usize>),
        text: &dyn Fn(Site) -> String,
    ) -> Vec<FailureKind> {
        let figures = |kind: &Kind| {
            let (times, cause) = of(kind);
            let api = match kind.api {
                Api::Driver => "driver",
                Api::Runtime => "runtime",
                Api::Other => "other",
            };
            FailureKind {
                api: api.to_owned(),
                error: kind.error.clone(),
                code: kind.code,
                function: kind.function.clone(),
                count: times.count,
                asked_bytes: times.asked_bytes,
                first_ns: times.first_ns,
                last_ns: times.last_ns,
                cause: cause.and_then(|cause| self.cause(cause)),
                site: kind.site.map(text),
            }
        };
        let mut all: Vec<FailureKind> =
            kinds.into_iter().map(figures).filter(|kind| kind.count > 0).collect();
        all.sort_by_key(|kind| kind.first_ns);
        all
    }
}

impl InnerFailures {
    /// Returns false if there is no room.
    fn add(&mut self, kind: usize, times: &Times) -> bool {
        if let Some((_, known)) = self.kinds.iter_mut().find(|(known, _)| *known == kind) {
            known.add(times);
        } else if self.kinds.len() < WAITING {
            self.kinds.push((kind, *times));
        } else {
            return false;
        }
        self.last = kind;
        true
    }
}
