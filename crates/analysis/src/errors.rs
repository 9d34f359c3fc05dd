//! Narrows down the cause of an error: a later call reports the error of a kernel, so the cause is between the last
//! successful synchronisation and the failed call. Contexts are separate as far as the calls show which one a thread
//! uses.

use super::by_process::ByProcess;
use super::failures::code_of;
use super::figures::{ErrorWindow, FailureCause, LaunchCount, SyncFigures};
use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::{Context, Kind};
use gpurec_trace::bounds::{LONGEST_NAME, short};
use gpurec_trace::hash::Map;
use gpurec_trace::{Args, Begin, End, Value};

/// Limit on distinct contexts.
const MOST: usize = 65_536;

/// Limits on windows, and on kernels of one window.
const WINDOWS: usize = 100;
const KERNELS: usize = 32;

/// CUresult and cudaError_t have the same numbers for events on the device: uncorrectable ECC error, illegal address,
/// timeout, assert, stack and instruction errors, launch failure.
const ASYNCHRONOUS: [i64; 10] = [214, 700, 702, 710, 714, 715, 716, 717, 718, 719];

#[derive(Default)]
pub struct Errors {
    /// By process and context; the context is 0 until one is known.
    contexts: ByProcess<u64, Since>,
    /// The first context that each process was seen to use.
    first: Map<u32, u64>,
    current: ByProcess<u32, Vec<u64>>,
    windows: Vec<ErrorWindow>,
}

/// Events in a context since it was last known to be healthy.
#[derive(Default)]
struct Since {
    /// The function of the last synchronisation, its begin and its time.
    sync: Option<(usize, u64, u64)>,
    launches: u64,
    /// By kernel, in the order of first occurrence.
    kernels: Vec<(usize, u64)>,
    failed: bool,
    failed_asynchronously: bool,
}

impl Errors {
    fn since(&mut self, pid: u32, tid: u32) -> Option<&mut Since> {
        let current = self.current.get(pid, &tid).and_then(|stack| stack.last());
        let context = current.or_else(|| self.first.get(&pid)).copied().unwrap_or(0);
        self.contexts.entry(pid, context, MOST)
    }

    pub fn synchronised(&mut self, end: &End, function: usize, ts_ns: u64) {
        if let Some(since) = self.since(end.pid, end.tid) {
            since.sync = Some((function, end.begin, ts_ns));
            since.launches = 0;
            since.kernels.clear();
        }
    }

    pub fn launched(&mut self, pid: u32, tid: u32, kernel: Option<usize>) {
        let Some(since) = self.since(pid, tid) else { return };
        since.launches += 1;
        let Some(kernel) = kernel else { return };
        if let Some((_, count)) = since.kernels.iter_mut().find(|(known, _)| *known == kernel) {
            *count += 1;
        } else if since.kernels.len() < KERNELS {
            since.kernels.push((kernel, 1));
        }
    }

    /// Records a failure that the program saw. Only the first of a context counts, and, if that was an error of the
    /// call itself, also the first error that comes from the device.
    pub fn failed<'a>(
        &mut self,
        end: &End,
        ts_ns: u64,
        cause: Option<FailureCause>,
        kernel_name: impl Fn(usize) -> &'a str,
        function_name: impl Fn(usize) -> &'a str,
    ) {
        let asynchronous = code_of(end).is_some_and(|code| ASYNCHRONOUS.contains(&code));
        let context = self.current.get(end.pid, &end.tid).and_then(|stack| stack.last()).copied();
        let full = self.windows.len() >= WINDOWS;
        let Some(since) = self.since(end.pid, end.tid) else { return };
        if (since.failed && !asynchronous) || since.failed_asynchronously {
            return;
        }
        since.failed = true;
        since.failed_asynchronously = asynchronous;
        if full {
            return;
        }
        let last_sync = since.sync.map(|(function, begin, ts_ns)| {
            let function = function_name(function).to_owned();
            SyncFigures { function, begin, ts_ns }
        });
        let kernels = since.kernels.iter().map(|(kernel, launches)| {
            let kernel = kernel_name(*kernel).to_owned();
            LaunchCount { kernel, launches: *launches }
        });
        let window = ErrorWindow {
            pid: end.pid,
            tid: end.tid,
            context: context.map(|context| format!("{context:#x}")),
            function: short(&end.name, LONGEST_NAME),
            error: short(end.error.as_deref().unwrap_or_default(), LONGEST_NAME),
            asynchronous,
            cause,
            begin: end.begin,
            ts_ns,
            last_sync,
            launches: since.launches,
            kernels: kernels.collect(),
        };
        self.windows.push(window);
    }

    /// The context that a call is about to make current in its thread, if its arguments show that.
    pub fn context_of(traits: &FunctionTraits, begin: &Begin) -> Option<u64> {
        if Errors::reads_context(traits) { first(&begin.args) } else { None }
    }

    /// Whether the arguments of the function name a context.
    pub fn reads_context(traits: &FunctionTraits) -> bool {
        matches!(traits.kind, Some(Kind::Context(Context::Set | Context::Push)))
    }

    /// Handles a successful call that may have changed its thread's context; `asked` is the result of `context_of`.
    pub fn switched(&mut self, traits: &FunctionTraits, end: &End, asked: Option<u64>) {
        let made = || end.out.as_ref().and_then(first);
        let thread = (end.pid, end.tid);
        let Some(stack) = self.current.entry(thread.0, thread.1, MOST) else { return };
        let Some(Kind::Context(context)) = traits.kind else { return };
        match context {
            Context::Set => {
                stack.pop();
                self.now_in(thread, asked);
            }
            Context::Push => self.now_in(thread, asked),
            Context::Create { .. } => self.now_in(thread, made()),
            Context::Pop => _ = stack.pop(),
            _ => {}
        }
    }

    fn now_in(&mut self, thread: (u32, u32), context: Option<u64>) {
        let Some(context) = context.filter(|context| *context != 0) else { return };
        let Some(stack) = self.current.entry(thread.0, thread.1, MOST) else { return };
        if stack.len() < 64 {
            stack.push(context);
        }
        let pid = thread.0;
        if self.first.len() >= MOST {
            return;
        }
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.first.entry(pid) {
            vacant.insert(context);
            // As far as the trace shows, earlier events were in this context too.
            if let Some(since) = self.contexts.remove(pid, &0)
                && let Some(now) = self.contexts.entry(pid, context, MOST)
            {
                *now = since;
            }
        }
    }

    /// Forgets a process that exited or called exec.
    pub fn ended(&mut self, pid: u32) {
        self.contexts.ended(pid);
        self.current.ended(pid);
        self.first.remove(&pid);
    }

    pub fn finish(&self) -> Vec<ErrorWindow> {
        self.windows.clone()
    }
}

/// The first argument, if it is a pointer.
fn first(args: &Args) -> Option<u64> {
    match args.first() {
        Some(Value::Hex(n)) => Some(n),
        _ => None,
    }
}
