//! The open calls of threads. In: begins and ends, in order. Out: each call with its enclosing calls.
//!
//! B and E nest within each thread, so one stack for each thread suffices. A trace that violates this (an E without its
//! B, a lost end) makes calls drop out but never adds a wrong one.

use std::sync::Arc;

use super::Told;
use crate::by_process::ByProcess;
use crate::tally::Role;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::bounds::{MOST_OPEN, Names};
use gpurec_trace::{Args, Value};

/// Limits on distinct functions (kernels are entries in the same table), on threads in calls at one time, and on the
/// depth of nested calls.
pub const MOST: usize = 131_072;
pub const THREADS: usize = 65_536;
const DEEPEST: usize = 1024;

/// Limit on bytes of the names of functions and kernels.
const NAMES: usize = 64 << 20;

/// Up to this number of threads, idle ones stay in the table, so that their next call costs less.
const IDLE: usize = 1024;

/// Limit on remembered calls during which the process exited: the `end` line lists no more.
const MOST_DEAD: usize = 20_000;

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
}

/// An open call or driver span.
pub struct Frame<T> {
    /// Its event_id.
    pub id: u64,
    pub ts_ns: u64,
    pub function: usize,
    /// This is a driver span, not a call.
    pub driver: bool,
    /// Roles of the nested calls, as bits of `Role::bit`.
    pub inside: u8,
    pub of: T,
}

impl<T> Frame<T> {
    pub fn has_inside(&self, role: Role) -> bool {
        self.inside & role.bit() != 0
    }
}

/// An unfinished call and its time so far.
type Timed<T> = (Frame<T>, u64);

pub struct Stacks<T> {
    threads: ByProcess<u32, Vec<Frame<T>>>,
    /// Number of frames of all threads.
    frames: usize,
    left_out: u64,
    /// Calls during which the process exited, up to the number that the `end` line can list.
    dead: Vec<(Thread, Vec<Frame<T>>)>,
    dead_frames: usize,
}

impl<T> Default for Stacks<T> {
    fn default() -> Self {
        Stacks { threads: ByProcess::default(), frames: 0, left_out: 0, dead: Vec::new(), dead_frames: 0 }
    }
}

impl<T> Stacks<T> {
    /// Pushes a call. `depth` is the number of enclosing calls: frames above that ended without a seen end.
    pub fn push(&mut self, thread: Thread, depth: u32, role: Option<Role>, frame: Frame<T>) {
        let Some(stack) = self.threads.entry(thread.0, thread.1, THREADS) else {
            self.left_out = self.left_out.saturating_add(1);
            return;
        };
        let before = stack.len();
        stack.truncate(usize::try_from(depth).unwrap_or(DEEPEST));
        self.frames -= before - stack.len();
        if let Some(role) = role {
            for outer in stack.iter_mut() {
                outer.inside |= role.bit();
            }
        }
        if stack.len() < DEEPEST && self.frames < MOST_OPEN {
            stack.push(frame);
            self.frames += 1;
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// Pops the call that began with event `begin`. Frames above it ended without a seen end.
    pub fn pop(&mut self, thread: Thread, begin: u64) -> Option<Frame<T>> {
        let stack = self.threads.get_mut(thread.0, &thread.1)?;
        let at = stack.iter().rposition(|frame| frame.id == begin)?;
        self.frames -= stack.len() - at;
        stack.truncate(at + 1);
        let frame = stack.pop();
        if stack.capacity() > 64 && stack.len() < stack.capacity() / 8 {
            stack.shrink_to(16);
        }
        // A program may create threads without limit: idle ones must not fill the table.
        if stack.is_empty() && self.threads.len() > IDLE {
            self.threads.remove(thread.0, &thread.1);
        }
        frame
    }

    pub fn innermost(&mut self, thread: Thread) -> Option<&mut Frame<T>> {
        self.threads.get_mut(thread.0, &thread.1)?.last_mut()
    }

    /// The open calls of a thread, the outermost first.
    pub fn of(&self, thread: Thread) -> &[Frame<T>] {
        self.threads.get(thread.0, &thread.1).map_or(&[], Vec::as_slice)
    }

    /// The threads of a process that may have open calls.
    pub fn threads_of(&self, pid: u32) -> Vec<Thread> {
        self.threads.keys_of(pid).map(|tid| (pid, *tid)).collect()
    }

    /// A note about calls that could not be followed, if there were any.
    pub fn left_out(&self) -> Option<String> {
        (self.left_out > 0).then(|| {
            format!(
                "{} of these figures: more than {THREADS} threads were in calls at once, or calls lay more than {DEEPEST} deep.",
                match self.left_out {
                    1 => "1 call is left out".to_owned(),
                    n => format!("{n} calls are left out"),
                }
            )
        })
    }

    /// Marks the open calls of an exited process: they will not end.
    pub fn ended(&mut self, pid: u32) {
        for (tid, frames) in self.threads.ended(pid) {
            self.frames -= frames.len();
            if !frames.is_empty() && self.dead_frames + frames.len() <= MOST_DEAD {
                self.dead_frames += frames.len();
                self.dead.push(((pid, tid), frames));
            }
        }
    }

    /// Unfinished calls by thread, the outermost first, with the time so far from `so_far`.
    pub fn unfinished(&mut self, told: &Told) -> Vec<(Thread, Vec<Timed<T>>)> {
        let timed = |frames: Vec<Frame<T>>, is_dead| -> Vec<Timed<T>> {
            let timed = |frame: Frame<T>| {
                let ns = told.so_far(frame.id, frame.ts_ns, is_dead)?;
                Some((frame, ns))
            };
            frames.into_iter().filter_map(timed).collect()
        };
        let dead = std::mem::take(&mut self.dead).into_iter().map(|(thread, all)| (thread, timed(all, true)));
        let mut all: Vec<_> = dead.collect();
        for pid in self.threads.pids() {
            let open = self.threads.ended(pid).into_iter();
            all.extend(open.map(|(tid, frames)| ((pid, tid), timed(frames, false))));
        }
        all.retain(|(_, frames)| !frames.is_empty());
        all.sort_by_key(|(thread, _)| *thread);
        all
    }
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

    fn frame(id: u64) -> Frame<()> {
        Frame { id, ts_ns: id, function: 0, driver: false, inside: 0, of: () }
    }

    fn ids(stacks: &Stacks<()>, thread: Thread) -> Vec<u64> {
        stacks.of(thread).iter().map(|frame| frame.id).collect()
    }

    #[test]
    fn calls_nest_in_each_thread() {
        let mut stacks = Stacks::default();
        stacks.push((1, 1), 0, None, frame(1));
        stacks.push((1, 2), 0, None, frame(2));
        stacks.push((1, 1), 1, Some(Role::KernelLaunch), frame(3));
        assert_eq!((ids(&stacks, (1, 1)), ids(&stacks, (1, 2))), (vec![1, 3], vec![2]));
        assert!(stacks.pop((1, 1), 2).is_none(), "of another thread");
        assert_eq!(stacks.pop((1, 1), 3).map(|f| f.id), Some(3));
        let outer = stacks.pop((1, 1), 1).unwrap();
        assert!(outer.has_inside(Role::KernelLaunch) && !outer.has_inside(Role::Sync));
        assert!(stacks.pop((1, 1), 1).is_none(), "an end without its beginning");
        stacks.ended(1);
        assert!(ids(&stacks, (1, 2)).is_empty());
    }

    #[test]
    fn ends_that_were_lost_leave_nothing_behind() {
        let mut stacks = Stacks::default();
        for (depth, id) in [(0, 1), (1, 2), (2, 3)] {
            stacks.push((1, 1), depth, None, frame(id));
        }
        assert_eq!(stacks.pop((1, 1), 2).map(|f| f.id), Some(2), "3 never ended");
        assert_eq!(ids(&stacks, (1, 1)), [1]);
        stacks.push((1, 1), 0, None, frame(4));
        assert_eq!(ids(&stacks, (1, 1)), [4], "a call of depth 0: 1 never ended");
        for id in 5..5000 {
            stacks.push((1, 1), u32::MAX, None, frame(id));
        }
        assert_eq!(stacks.of((1, 1)).len(), DEEPEST);
    }

    /// Threads that have exited must not use up the room for new ones.
    #[test]
    fn threads_without_end_are_all_followed() {
        let mut stacks = Stacks::default();
        for tid in 0..THREADS as u32 + 10_000 {
            stacks.push((1, tid), 0, None, frame(u64::from(tid)));
            assert_eq!(stacks.pop((1, tid), u64::from(tid)).map(|f| f.id), Some(u64::from(tid)));
        }
        assert!(stacks.left_out().is_none() && stacks.threads.len() <= IDLE + 1);
        for tid in 0..THREADS as u32 + 10 {
            stacks.push((2, tid), 0, None, frame(1));
        }
        let said = stacks.left_out().unwrap();
        assert!(said.contains("calls are left out of these figures"), "{said}");
        // The exit of one process costs nothing for the calls of others.
        for pid in 3..100_000 {
            stacks.ended(pid);
        }
        stacks.ended(2);
        assert!(stacks.threads.len() <= IDLE + 1);
    }

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
