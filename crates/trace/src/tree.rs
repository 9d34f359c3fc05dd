//! The call tree: open calls and driver spans, each with those around it.
//!
//! In: begins, ends and process exits, in order. Out: each call as it ends, and at the end of the trace the unfinished
//! ones: with the calls around it, the time of the calls inside it, and the roles of those. Memory grows with the number
//! of open calls. Not here: what a role is, and which calls a view follows.
//!
//! A launch, a wait or a copy is often made on two levels: cudaLaunchKernel calls cuLaunchKernel. Of nested calls in one
//! role the innermost counts, with facts that the level above may have read instead.

use super::bounds::MOST_OPEN;
use super::deaths::{Deaths, Life};
use super::enums::EndKind;
use super::event::{Begin, End, KernelBegin};
use super::hash::Map;
use super::rare::Process;

/// Limit on steps outwards. Programs nest less deeply, and a malformed file could nest without end.
const DEEPEST: usize = 64;

/// A call or a driver span that has begun and not ended.
#[derive(Clone, Debug)]
pub struct Call<T> {
    /// The event_id of its begin.
    pub id: u64,
    pub pid: u32,
    pub tid: u32,
    pub ts_ns: u64,
    /// The call or span around it.
    pub parent: Option<u64>,
    /// The number that the view gave its function.
    pub function: usize,
    /// It is a driver span.
    pub is_span: bool,
    /// Roles of the calls inside, as bits.
    inside: u8,
    /// The time of ended calls directly inside.
    pub inside_ns: u64,
    life: Life,
    /// What the view keeps of it.
    pub of: T,
}

impl<T> Call<T> {
    pub fn new(id: u64, ts_ns: u64, begin: &Begin, function: usize, of: T) -> Call<T> {
        let thread = (begin.pid, begin.tid);
        Call::of_thread(thread, id, ts_ns, begin.parent, function, of)
    }

    pub fn span(id: u64, ts_ns: u64, begin: &KernelBegin, function: usize, of: T) -> Call<T> {
        let thread = (begin.pid, begin.tid);
        Call { is_span: true, ..Call::of_thread(thread, id, ts_ns, begin.parent, function, of) }
    }

    pub fn of_thread(
        (pid, tid): (u32, u32),
        id: u64,
        ts_ns: u64,
        parent: Option<u64>,
        function: usize,
        of: T,
    ) -> Call<T> {
        let (is_span, inside, inside_ns, life) = (false, 0, 0, Life::Since(0));
        Call { id, pid, tid, ts_ns, parent, function, is_span, inside, inside_ns, life, of }
    }

    pub fn thread(&self) -> (u32, u32) {
        (self.pid, self.tid)
    }

    /// Whether a call of the role is inside: that one counts.
    pub fn has_inside(&self, role: u8) -> bool {
        self.inside & role != 0
    }
}

/// Whether a call did what it is for. A call whose end was lost gave no sign of failure.
pub fn succeeded(end: &End) -> bool {
    end.error.is_none() && end.ended != EndKind::Unwound
}

pub struct Calls<T> {
    open: Map<u64, Call<T>>,
    /// Open calls that began while the table was full, and the number of such calls so far.
    unfollowed: u64,
    left_out: u64,
    deaths: Deaths,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Calls { open: Map::default(), unfollowed: 0, left_out: 0, deaths: Deaths::default() }
    }
}

impl<T> Calls<T> {
    /// `role` is a bit, or 0.
    pub fn begin(&mut self, mut call: Call<T>, role: u8) {
        call.parent = call.parent.filter(|parent| *parent < call.id);
        let mut around = call.parent.filter(|_| role != 0);
        while let Some(outer) = around.and_then(|id| self.open.get_mut(&id)).filter(|o| !o.has_inside(role)) {
            outer.inside |= role;
            around = outer.parent;
        }
        if self.open.len() >= MOST_OPEN {
            self.unfollowed += 1;
            self.left_out += 1;
            return;
        }
        call.life = self.deaths.born();
        self.open.insert(call.id, call);
    }

    pub fn end(&mut self, begin: u64, duration_ns: Option<u64>) -> Option<Call<T>> {
        self.end_in(begin, duration_ns, |_, _| {})
    }

    /// As `end`. `tell` updates the level above, if there is one, from the call.
    pub fn end_in(
        &mut self,
        begin: u64,
        duration_ns: Option<u64>,
        tell: impl FnOnce(&Call<T>, &mut Call<T>),
    ) -> Option<Call<T>> {
        let call = self.open.remove(&begin)?;
        if let Some(outer) = call.parent.and_then(|parent| self.open.get_mut(&parent)) {
            outer.inside_ns = outer.inside_ns.saturating_add(duration_ns.unwrap_or(0));
            tell(&call, outer);
        }
        Some(call)
    }

    /// The open calls of each thread that nest around its last one. The others have lost their ends.
    pub fn nested(&self) -> Vec<&Call<T>> {
        let mut open: Vec<&Call<T>> = self.open.values().collect();
        open.sort_unstable_by_key(|call| (call.thread(), call.id));
        let chain = |call: &Call<T>| -> Option<Vec<&Call<T>>> {
            let chain: Vec<_> = self.around(Some(call.id)).collect();
            chain.last().is_some_and(|outermost| outermost.parent.is_none()).then_some(chain)
        };
        let threads = open.chunk_by(|a, b| a.thread() == b.thread());
        threads
            .filter_map(|of_thread| of_thread.iter().rev().find_map(|call| chain(call)))
            .flatten()
            .collect()
    }

    /// For an end without an open call: whether its begin was left out rather than lost.
    pub fn was_left_out(&mut self) -> bool {
        let left = self.unfollowed.checked_sub(1);
        self.unfollowed = left.unwrap_or(0);
        left.is_some()
    }

    /// The number of calls that were not followed, because too many were open.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    pub fn get(&self, id: u64) -> Option<&Call<T>> {
        self.open.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Call<T>> {
        self.open.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Call<T>> {
        self.open.values()
    }

    /// The call or span `from` and those around it, the innermost first.
    pub fn around(&self, from: Option<u64>) -> impl Iterator<Item = &Call<T>> {
        let get = |id: Option<u64>| id.and_then(|id| self.open.get(&id));
        std::iter::successors(get(from), move |call| get(call.parent)).take(DEEPEST)
    }

    /// As `around`, to change each. Returns the first call that is not in this tree.
    pub fn each_around(&mut self, from: Option<u64>, mut change: impl FnMut(&mut Call<T>)) -> Option<u64> {
        let mut next = from;
        for _ in 0..DEEPEST {
            let Some(call) = self.open.get_mut(&next?) else { return next };
            change(call);
            next = call.parent;
        }
        None
    }

    /// A fact about a call, or that of the level above, which may have read more.
    pub fn or_above<'a, R>(&'a self, call: &'a Call<T>, fact: impl Fn(&'a T) -> Option<R>) -> Option<R> {
        fact(&call.of).or_else(|| fact(&self.open.get(&call.parent?)?.of))
    }

    /// Returns the process whose program ended, by an exit or an exec: its open calls will not end.
    pub fn process(&mut self, ts_ns: u64, process: &Process) -> Option<u32> {
        let pid = match process {
            Process::Exit(exit) => exit.pid,
            Process::Exec(exec) => exec.pid,
            _ => return None,
        };
        self.died(pid, ts_ns);
        Some(pid)
    }

    /// Returns true if `dead` was brought up to date. That happens only from time to time, because it looks at every
    /// open call.
    pub fn died(&mut self, pid: u32, ts_ns: u64) -> bool {
        let is_due = self.deaths.died(pid, ts_ns);
        if is_due {
            for call in self.open.values_mut() {
                call.life = self.deaths.of(call.pid, call.life);
            }
            self.deaths.reported(self.open.len());
        }
        is_due
    }

    /// The calls that are known to have died, the oldest first.
    pub fn dead(&self) -> Vec<u64> {
        let dead = self.open.values().filter(|call| call.life.died_ns().is_some());
        let mut ids: Vec<u64> = dead.map(|call| call.id).collect();
        ids.sort_unstable();
        ids
    }

    /// When the process of an open call ended.
    pub fn died_ns(&self, call: &Call<T>) -> Option<u64> {
        self.deaths.of(call.pid, call.life).died_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: u8 = 2;

    fn call(id: u64, parent: Option<u64>) -> Call<Option<u64>> {
        Call::of_thread((1, 1), id, id, parent, 0, None)
    }

    #[test]
    fn a_call_knows_what_was_inside_and_what_is_around() {
        let mut calls = Calls::default();
        calls.begin(call(1, None), 0);
        calls.begin(Call { of: Some(7), ..call(2, Some(1)) }, WAIT);
        calls.begin(call(3, Some(2)), WAIT);
        assert_eq!(calls.around(Some(3)).map(|call| call.id).collect::<Vec<_>>(), [3, 2, 1]);
        let innermost = calls.end(3, Some(10)).unwrap();
        assert!(!innermost.has_inside(WAIT) && calls.get(1).unwrap().has_inside(WAIT));
        assert_eq!(calls.or_above(&innermost, |of| *of), Some(7), "read by the level above");
        calls.begin(call(4, Some(2)), 0);
        let middle = calls.end(2, Some(15)).unwrap();
        assert_eq!(calls.nested().iter().map(|call| call.id).collect::<Vec<_>>(), [1], "4 has lost its end");
        assert!(middle.has_inside(WAIT) && middle.inside_ns == 10);
        assert_eq!(calls.end(1, None).unwrap().inside_ns, 15);
        assert!(calls.end(1, None).is_none() && !calls.was_left_out(), "an end without a begin");
    }

    /// A call inside itself, or inside a later one.
    #[test]
    fn malformed_parents_end_every_walk() {
        let mut calls = Calls::default();
        calls.begin(call(5, Some(5)), WAIT);
        calls.begin(call(6, Some(9)), WAIT);
        calls.begin(call(9, Some(6)), WAIT);
        assert_eq!((calls.around(Some(5)).count(), calls.around(Some(9)).count()), (1, 2));
        (10..1000).for_each(|id| calls.begin(call(id, Some(id - 1)), WAIT));
        assert_eq!(calls.around(Some(999)).count(), DEEPEST);
        assert_eq!(calls.each_around(Some(999), |_| {}), None);
        assert_eq!(calls.each_around(Some(2000), |_| {}), Some(2000), "not of this tree");
    }

    #[test]
    fn calls_beyond_the_limit_are_counted() {
        let mut calls = Calls::default();
        let most = MOST_OPEN as u64;
        (0..most + 2).for_each(|id| calls.begin(call(id, None), 0));
        assert_eq!((calls.left_out(), calls.iter().count()), (2, MOST_OPEN));
        assert!(calls.end(most, None).is_none() && calls.was_left_out());
        calls.died(1, 77);
        assert_eq!(calls.died_ns(calls.get(0).unwrap()), Some(77));
        assert!(calls.end(0, None).is_some(), "its end may still come");
    }
}
