//! What views share about calls: the functions of a trace, and calls that have not returned.

use std::sync::Arc;

use super::Told;
use crate::tally::Role;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::{MOST_OPEN, Names};
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
    pub traits: FunctionTraits,
}

/// Properties of the functions of a trace, looked up once for each.
#[derive(Default)]
pub struct Functions {
    by_name: Names<MOST, NAMES>,
    all: Vec<Function>,
    /// Indexes of the shared entries for functions beyond the limit.
    others: Vec<usize>,
}

impl Functions {
    pub fn index(&mut self, name: &str) -> usize {
        if let Some(known) = self.by_name.get(name) {
            return known;
        }
        let index = self.all.len();
        let kept = self.by_name.add(name, index);
        let is_other = kept.is_none();
        let traits = FunctionTraits::of(name);
        let name = kept.unwrap_or_else(|| "others".into());
        let function = Function { name, role: Role::of(&traits), traits };
        if is_other {
            // Functions beyond the limit share an entry for each role: a wait must still count as a wait.
            let mut others = self.others.iter().copied();
            let is_like = |at: &usize| self.all.get(*at).is_some_and(|known| known.traits.is_like(&traits));
            if let Some(known) = others.find(is_like) {
                return known;
            }
            self.others.push(index);
        }
        self.all.push(function);
        index
    }

    pub fn get(&self, index: usize) -> Option<&Function> {
        self.all.get(index)
    }

    pub fn name(&self, index: usize) -> &str {
        self.all.get(index).map_or("?", |function| &function.name)
    }

    pub fn role(&self, index: usize) -> Option<Role> {
        self.all.get(index).and_then(|function| function.role)
    }

    /// The role as a bit of the call tree.
    pub fn bit(&self, index: usize) -> u8 {
        self.role(index).map_or(0, Role::bit)
    }
}

/// Unfinished calls by thread, the outermost first, each with its time so far. Without the recorder's own list, calls
/// that have only lost their ends are left out.
pub fn unfinished<'a, T>(calls: &'a Calls<T>, told: &Told) -> Vec<(&'a Call<T>, u64)> {
    let timed = |call: &'a Call<T>| {
        let ns = told.so_far(call.id, call.ts_ns, calls.died_ns(call).is_some())?;
        Some((call, ns))
    };
    let mut all: Vec<_> = match told.has_in_flight() {
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
        let said = if count == 1 { "1 call is".to_owned() } else { format!("{count} calls are") };
        format!("{said} left out of these figures: more than {MOST_OPEN} were open at once.")
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
