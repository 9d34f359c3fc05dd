//! What views share about calls: the functions of a trace, durations and sums, and calls that have not returned.

use std::sync::Arc;

use super::Context;
use crate::histogram::Histogram;
use crate::tally::Role;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::{Entries, MOST_OPEN, Sums};
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{Args, Value};

/// Limit on distinct functions; kernels are entries in the same table.
pub const MOST: usize = 131_072;

/// Limit on bytes of the names of functions and kernels.
const NAMES: usize = 64 << 20;

/// A process and one of its threads.
pub type Thread = (u32, u32);

pub struct Function {
    pub name: Arc<str>,
    pub role: Option<Role>,
    /// The place of its traits in `Functions::traits`.
    traits: u32,
}

/// Properties of the functions of a trace, looked up once for each.
#[derive(Default)]
pub struct Functions {
    all: Entries<Function, MOST, NAMES>,
    /// The distinct ones: each takes as much memory as four functions, and most functions have those of another.
    traits: Vec<FunctionTraits>,
}

impl Functions {
    pub fn index(&mut self, name: &str) -> usize {
        if let Some(known) = self.all.find(name) {
            return known;
        }
        let traits = FunctionTraits::of(name);
        let known = self.traits.iter().position(|known| *known == traits);
        let place = known.unwrap_or_else(|| {
            self.traits.push(traits);
            self.traits.len() - 1
        });
        let new = |kept: Option<Arc<str>>| Function {
            name: kept.unwrap_or_else(|| "others".into()),
            role: Role::of(&traits),
            traits: place as u32,
        };
        // Functions beyond the limit share an entry for each role: a wait must still count as a wait.
        let is_like = |known: &Function, _: &Function| {
            self.traits.get(known.traits as usize).is_some_and(|known| known.is_like(&traits))
        };
        self.all.number(Some(name), new, is_like)
    }

    pub fn get(&self, index: usize) -> Option<&Function> {
        self.all.get(index)
    }

    pub fn traits(&self, index: usize) -> Option<&FunctionTraits> {
        self.traits.get(self.get(index)?.traits as usize)
    }

    pub fn name(&self, index: usize) -> &str {
        self.get(index).map_or("?", |function| &function.name)
    }

    pub fn role(&self, index: usize) -> Option<Role> {
        self.get(index).and_then(|function| function.role)
    }

    /// The role as a bit of the call tree.
    pub fn bit(&self, index: usize) -> u8 {
        self.role(index).map_or(0, Role::bit)
    }
}

/// The durations of some calls.
#[derive(Default)]
pub struct Durations {
    pub count: u64,
    total: u128,
    pub min: u64,
    pub max: u64,
    pub all: Histogram,
}

impl Durations {
    pub fn add(&mut self, ns: u64) {
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += 1;
        self.total += u128::from(ns);
        self.all.add(ns);
    }

    pub fn total(&self) -> u64 {
        u64::try_from(self.total).unwrap_or(u64::MAX)
    }

    pub fn average(&self) -> Option<u64> {
        u64::try_from(self.total.checked_div(self.count.into())?).ok()
    }

    pub fn median(&self) -> Option<u64> {
        // The middle of a histogram bucket may lie outside its values.
        (self.count > 0).then(|| self.all.median().clamp(self.min, self.max))
    }

    pub fn most(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }
}

/// A number of things, and the sum of their times or sizes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Total {
    pub sum: u64,
    pub count: u64,
}

impl Total {
    pub fn add(&mut self, value: u64) {
        self.add_part(value, true);
    }

    /// Adds a part of something that counts once, with its first part.
    pub fn add_part(&mut self, value: u64, is_first: bool) {
        self.count += u64::from(is_first);
        // A malformed trace may claim any value.
        self.sum = self.sum.saturating_add(value);
    }
}

/// The rows of sums, the largest first. The row of the keys beyond the limit has no key and comes last.
pub fn largest<K: Ord, V, S: Ord, const MOST: usize>(
    sums: &Sums<K, V, MOST>,
    size: impl Fn(&V) -> S,
    has_others: bool,
) -> Vec<(Option<&K>, &V)> {
    let mut rows: Vec<_> = sums.by_key.iter().map(|(key, value)| (Some(key), value)).collect();
    rows.sort_by(|(a, x), (b, y)| size(y).cmp(&size(x)).then(a.cmp(b)));
    rows.extend(has_others.then_some((None, &sums.others)));
    rows
}

/// Unfinished calls by thread, the outermost first, each with its time so far. Without the recorder's own list, calls
/// that have only lost their ends are left out.
pub fn unfinished<'a, T>(calls: &'a Calls<T>, context: &Context) -> Vec<(&'a Call<T>, u64)> {
    let timed = |call: &'a Call<T>| {
        let ns = context.so_far(call.id, call.ts_ns, calls.died_ns(call).is_some())?;
        Some((call, ns))
    };
    let mut all: Vec<_> = match context.has_in_flight() {
        true => calls.iter().filter_map(timed).collect(),
        false => calls.nested().into_iter().filter_map(timed).collect(),
    };
    all.sort_by_key(|(call, _)| (call.thread(), call.id));
    all
}

/// A note about calls that could not be followed, if there were any.
pub fn left_out<T>(calls: &Calls<T>) -> Option<String> {
    let count = calls.left_out();
    (count > 0).then(|| {
        let calls = if count == 1 { "1 call is".to_owned() } else { format!("{count} calls are") };
        format!("{calls} left out of these figures: more than {MOST_OPEN} were open at once.")
    })
}

/// An argument that is a pointer or a handle, the only kind that views use.
pub fn handle(args: &Args, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| match args.get(name) {
        Some(Value::Hex(handle)) => Some(handle),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_bounded() {
        let mut functions = Functions::default();
        let launch = functions.index("cuLaunchKernel");
        assert!(
            functions.role(launch) == Some(Role::KernelLaunch) && functions.index("cuLaunchKernel") == launch
        );
        for i in 0..MOST + 10 {
            functions.index(&format!("f{i}"));
        }
        let (one, other) = (functions.index("one more"), functions.index("another"));
        assert_eq!((functions.name(one), one), ("others", other));
        let (wait, launch) = (functions.index("cudaDeviceSynchronize"), functions.index("cudaLaunchKernel"));
        assert_eq!((functions.name(wait), functions.role(wait)), ("others", Some(Role::Sync)));
        assert_eq!(functions.role(launch), Some(Role::KernelLaunch));
        assert_eq!(functions.index("cuCtxSynchronize"), wait);
    }
}
