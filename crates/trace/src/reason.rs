//! Why a function or file has no hook, and why a trace is not complete: every reason there is. In: facts. Out: a
//! sentence for people, which may be reworded, and a code for programs, which stays. Not here: deciding that something
//! is a reason, and figures that are not known (gpurec-analysis).

use serde::{Deserialize, Serialize};

/// A reason as a trace has it. Traces of older versions have no codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub code: String,
    pub text: String,
}

macro_rules! reasons {
    ($(#[$about:meta])* $kind:ident {
        $($variant:ident $({ $($field:ident: $type:ty),+ })? = $code:literal, $text:literal;)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum $kind {
            $(#[error($text)] $variant $({ $($field: $type),+ })?,)+
        }

        impl $kind {
            /// Each code there is; several reasons may share one.
            pub const CODES: &[&str] = &[$($code),+];

            pub fn code(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $code,)+
                }
            }
        }

        impl From<$kind> for Reason {
            fn from(reason: $kind) -> Reason {
                Reason { code: reason.code().to_owned(), text: reason.to_string() }
            }
        }
    };
}

reasons! {
    /// Why a function, a file, or a backend as a whole, has no hook.
    HookError {
        // The symbol is no place in the file that a probe can be at.
        Data = "not_a_function", "data, not code";
        NotFunction = "not_a_function", "not marked as a function";
        Unmarked = "not_a_function", "it is in code and not marked as a function: if it is data, a hook would change it";
        Indirect = "indirect_function", "an indirect function: the loader decides which code it stands for";
        AbsoluteAddress = "no_code", "its address is absolute, not a place in this file";
        ZeroAddress = "no_code", "its address is zero";
        NotExecutable = "no_code", "its address is in no executable part of the file";
        NoCode = "no_code", "its code is missing from the file";
        Unaligned = "no_instruction", "its address is not the beginning of an instruction";
        NoInstruction = "no_instruction", "its first bytes are not an instruction";
        Unprobeable = "no_probe", "the kernel accepts no probe on its first instruction";
        Writable = "no_probe", "it is in a writable part of the file, where the kernel puts no probes";
        TextRelocations = "no_probe", "the loader changes the library's code (text relocations), and a probe would execute it unchanged: build the library as position-independent code (-fPIC)";
        LoopAtEntry = "no_probe", "it begins with a loop: a probe would take each turn for a call";
        Unsafe { why: &'static str } = "unsafe", "{why}";

        // Static probes.
        NoNop = "no_instruction", "the instruction at its place is not an empty one, as static probes have";
        NoCounter = "no_code", "its counter, which tracers raise, is in no writable part of the file";
        NoArgument { name: &'static str } = "no_argument", "its argument {name} is not there, or in a form that gpurec does not read";

        // What a file lacks.
        Stripped = "stripped", "a CUDA runtime is probably linked into the file, which holds device code and uses no shared runtime, but the symbols are stripped: gpurec records its driver calls and not its runtime calls; link it with -cudart shared, or keep its symbols";
        NoSuchExport = "no_such_function", "the library exports no function of that name";
        NoCuda = "no_cuda_function", "the file is named like a CUDA library but exports no CUDA function";
        Unreadable { error: String } = "unreadable", "{error}";
        UserFileSystem = "user_file_system", "it is on a FUSE file system that an ordinary user mounted, whose server could block every process of this machine through a hook in it: copy it to a local file system, or have root mount that one";
        FileChanged = "file_changed", "a program wrote to the file while gpurec examined it: to update a library, put a new file in its place, as package managers do";

        // Limits.
        BeyondFile { more: u64, most: usize, mib: usize } = "too_many", "gpurec takes {most} functions of one file, or {mib} MiB of their names, and leaves out this one and {more} more: narrow the pattern";
        Beyond { most: u32, mib: usize } = "too_many", "gpurec hooks {most} functions at most, and {mib} MiB of their names: leave functions out with --skip, or narrow the pattern of --lib";
        BeyondPattern { count: usize, most: usize } = "too_many", "it matches {count} functions, and gpurec hooks at most {most}: use a narrower pattern";
        NotListed = "not_listed", "for these or similar reasons; gpurec lists no more of one file";
        Descriptors { limit: u64 } = "descriptors", "gpurec may open only {limit} files: raise the limit (`ulimit -n`) and start it again";

        // The kernel's answer.
        Kernel { error: String } = "refused", "the kernel refused it: {error}";
        NotTried { count: usize, last: String } = "refused", "not tried after {count} others were refused: {last}";
        Backend { error: String } = "refused", "{error}";
        Failed { error: String } = "failed", "{error}";
        ManyArguments = "many_arguments", "it has more arguments than BPF trampolines of this kernel take (ENOTSUPP)";
        NoTraceEntry = "no_ftrace_entry", "this kernel takes no probes at functions without an ftrace entry (CONFIG_KPROBE_EVENTS_ON_NOTRACE is not set)";

        // What this machine lacks.
        NoSessions = "kernel_too_old", "this kernel has no uprobe sessions, new in Linux 6.13";
        NoMulti = "kernel_too_old", "this kernel has no uprobe.multi links, new in Linux 6.6";
        NotAdmin = "not_permitted", "gpurec lacks CAP_SYS_ADMIN, which the kernel asks for single uprobes: run gpurec as root";
        NoKernelSessions = "kernel_too_old", "this kernel has no kprobe sessions, new in Linux 6.10";
        NoTrampolines = "kernel_config", "this kernel has no BPF trampolines on ftrace entries";
        NoFprobe = "kernel_config", "this kernel has no fprobe (CONFIG_FPROBE, new in Linux 5.18)";
        NoKprobes = "kernel_config", "this kernel has no kprobes (CONFIG_KPROBES)";
        NoModuleTypes = "kernel_config", "this kernel has no type information of modules (CONFIG_DEBUG_INFO_BTF_MODULES)";
        LockedDown = "lockdown", "the kernel is locked down to confidentiality";

        // Functions of the kernel and its modules.
        SeveralFunctions = "ambiguous", "several functions have this name";
        HiddenAddresses = "ambiguous", "several functions have this name, and the kernel hides their addresses";
        Renamed = "renamed", "the compiler renamed it";
        NoType { module: String } = "no_type", "the type information of {module} does not have it";
        ModuleWithoutTypes { module: String } = "no_type", "{module} was built without type information (no /sys/kernel/btf/{module})";
        Type { why: &'static str } = "no_type", "{why}";
        CoreFunction = "no_ftrace_entry", "it is in the RM core, which has no ftrace entries";
        NoEntry = "no_ftrace_entry", "it has no ftrace entry";
        EntryUnknown = "no_ftrace_entry", "gpurec cannot tell whether it has an ftrace entry";
        NoTracepoint = "no_tracepoint", "no tracepoint reports the same event";
        NewTracepoint { tracepoint: &'static str } = "no_tracepoint", "{tracepoint} is new in driver 575";
        NoBackend { reasons: String } = "no_backend", "{reasons}";
        NoBackendAllowed = "not_chosen", "--backend allows no backend that could hook it";
        Forbidden { why: &'static str } = "forbidden", "it must not be hooked: {why}";
        ForbiddenMatches { what: &'static str, count: usize, name: String, why: &'static str } = "forbidden", "{what} it matches must not be hooked ({count} functions, such as {name}): {why}";
        Folklore { text: &'static str } = "no_such_function", "{text}";
        NoSuchFunction { hint: String } = "no_such_function", "no function of the kernel or a loaded module has this name{hint}";
        NoMatch { hint: String } = "no_such_function", "it matches no function of the kernel or a loaded module{hint}";
        NotInDriver { driver: String } = "no_such_function", "{driver} has no function of this name: the compiler or the driver's branch left it out";
        Replaced { why: String, by: String } = "replaced", "{why}; {by} does the same";
        ProprietaryDriver = "open_driver_only", "the proprietary driver does not have this name; the open kernel modules do";
        BadPattern { error: String } = "bad_pattern", "not a pattern: {error}; use *, ? and [a-z]";
        NoKallsyms = "not_permitted", "the kernel's list of functions cannot be read; run gpurec as root";
        NotLoaded { module: String, modprobe: String } = "module_not_loaded", "the module {module} is not loaded; load it first: sudo modprobe {modprobe}";
        DriverNotLoaded = "module_not_loaded", "nvidia is not loaded; its errors are recorded once it is";
        Unloaded = "module_unloaded", "the module was unloaded, and its hooks with it";
        NoXid { error: String } = "no_tracepoint", "drivers before 575 have no tracepoint for Xids ({error}): gpurec has the number from nv_report_error if it could hook that; otherwise see the kernel log: dmesg | grep Xid";
    }
}

reasons! {
    /// Why a trace is not complete.
    Incomplete {
        // Records.
        Lost { events: String } = "lost", "{events} lost";
        Undecoded { count: u64 } = "undecoded", "{count} records could not be decoded";
        Cut { count: u64 } = "cut", "{count} records lack the memory that their calls pointed to, because no buffer was free";
        Unread = "unread", "gpurec ended before it had read all records in the rings";
        NotPaused = "not_paused", "--lossless could not pause what filled the rings: it pauses recorded processes (through sudo, only the caller's own; none in a debugger) while they make calls; try a larger --ring";
        Orphans { count: u64 } = "orphan_returns", "{count} returns came whose calls gpurec had already taken for ended";
        OtherStack { count: u64 } = "other_stack", "{count} calls ran on another stack than an open call of their thread (a signal handler's or a coroutine's): their returns were not recorded";
        ThreadsLeft { threads: u64, pid: u32, tid: u32, function: String } = "thread_unwound", "{threads} threads ended inside a recorded call by pthread_cancel or pthread_exit, or had left one by longjmp (the first: thread {tid} of process {pid}, in {function}): the destructors and cleanup handlers around that call may not have run, because its return was watched; leave such functions out with --skip, or with a narrower pattern of --lib";
        Killed { pid: u32, signal: String } = "killed", "process {pid} was killed by {signal}: hooks can be the cause, if the program copies its code or changes stacks in its own way; run it without gpurec, then leave functions out with --skip, or with a narrower pattern of --lib";
        DriverReturns { count: u64 } = "driver_returns", "{count} returns of kernel functions were not recorded: their E lines say \"lost\"";
        RecursionMisses { hits: u64, of: String } = "recursion_misses", "the kernel skipped up to {hits} hits of hooks, because another probe or BPF program was running on that CPU ({of})";
        LongEnd { mib: usize } = "cut", "the end line would take more than {mib} MiB: calls in flight and figures are left out of it";
        MoreInFlight { count: u64 } = "in_flight", "{count} more calls were in flight at the end than are listed";
        NotWritten { error: String } = "not_written", "the trace could not be written: {error}";
        Unwritten { error: String } = "not_written", "the trace could not be written: {error}; the figures end there";
        Budget { reason: String } = "budget", "{reason}";
        Recorder = "unknown", "the recorder gave no reason";
        More { count: u64 } = "more", "and {count} more reasons";

        // Libraries that have no hooks, or not all.
        NotHooked { path: String } = "not_hooked", "{path} could not be hooked: its calls were not recorded";
        SeveralNotHooked { count: u64, first: String } = "not_hooked", "{count} libraries could not be hooked, {first} and others: their calls were not recorded";
        PartlyHooked { refused: usize, all: usize, path: String } = "not_hooked", "{refused} of {all} functions of {path} could not be hooked: their calls were not recorded";
        TooManyFunctions = "too_many_functions", "gpurec has hooked as many functions as it can: calls of those listed as not hooked were not recorded; leave functions out with --skip, or narrow the pattern of --lib";
        SharedCode { pid: u32, path: String } = "not_hooked", "process {pid} maps {path} as shared or writable code, where Linux allows no hooks: its calls were not recorded; map it private and read-only, as dlopen does";
        Changeable { pid: u32, name: String } = "not_examined", "{name}, which processes have mapped as code, can be changed through a shared mapping (process {pid}): calls of a CUDA library that it is or becomes may not be recorded; write a library to its file, and close the file, before a program loads it";
        Rewritten = "file_changed", "a program wrote to a loaded library, so gpurec removed its hooks: later calls were not recorded; replace the file instead, as package managers do";
        LibWithoutFunction { lib: String, path: String } = "lib", "--lib {lib} recorded nothing: {path} exports no function of that name (gpurec probes --lib {path} lists those that it has)";
        LibNameNotLoaded { lib: String } = "lib", "--lib {lib} recorded nothing: no recorded process loaded a file of that name (the name usually ends in a version, as in libnccl.so.2)";
        LibNotLoaded { lib: String } = "lib", "--lib {lib} recorded nothing: no recorded process loaded that file";

        // Files that could not be examined, or not in time.
        NotExamined { path: String, pid: u32, why: String } = "not_examined", "{path}, mapped by process {pid}, could not be examined ({why}): if it is a CUDA library, its calls were not recorded; copy it to a local file system";
        FileNotExamined { why: String } = "not_examined", "a file that a process mapped could not be examined ({why}): if it is a CUDA library, its calls were not recorded";
        NotOpened { why: String } = "not_examined", "a file that a process mapped could not be opened ({why}): if it is a CUDA library, its calls were not recorded";
        MappingsUnread { pid: u32, why: String } = "mappings_unread", "the mappings of process {pid} could not be read ({why}): if it uses CUDA, its calls were not recorded";
        Ended = "gone", "a process ended before gpurec had examined a file that it mapped: if that was a CUDA library, its calls were not recorded";
        Unmapped = "gone", "a process unmapped a file before gpurec had examined it: if that was a CUDA library, its calls were not recorded";
        Gone { pid: u32, name: String } = "gone", "process {pid} mapped {name}, which was gone before gpurec could examine it (--all stops no process): its calls were not recorded";
        FilesGone { count: usize, pids: String } = "gone", "files were gone before gpurec could examine them, in {count} processes with CUDA calls (PID {pids}): calls of a CUDA runtime in them were not recorded";
        ManyFilesGone = "gone", "very many processes ended before gpurec could examine the files that they mapped: calls of CUDA runtimes in them were not recorded";
        HookedLate { path: String } = "hooked_late", "{path} could not be hooked before its process resumed: its first calls may be missing";
        HookedLateWatched { path: String } = "not_stopped", "{path} was hooked while its process ran: its first calls may be missing (the process was not stopped, because its shell or debugger would have noticed)";
        MappedBefore { pid: u32, comm: String, path: String } = "hooked_late", "process {pid}{comm} mapped {path} before gpurec could hook it (--all stops no process): its first calls may be missing";
        BlocksLate { path: String } = "hooked_late", "{path} was hooked while its process ran: PyTorch's first blocks may be missing";
        Resumed { what: String, by: Resumer } = "resumed", "{what} when {by}: its first calls may be missing";
        Overdue { pid: u32 } = "resumed", "process {pid} was stopped for a file and resumed before gpurec had examined it: if it is a CUDA library, its first calls may be missing";

        // In a dump of the flight recorder.
        EarlierLost { count: u64 } = "earlier_lost", "{count} records were lost before the period of this dump: memory that it carries may have been freed then";
        RingDamaged { error: String } = "earlier_lost", "a part of the flight recorder's ring could not be kept or read ({error}): what the dump carries may be wrong";
        NotCarried { count: u64 } = "table_full", "{count} lines refer to calls or stacks from before the period that the flight recorder had no room for: they are left out, or refer to none";

        // Tables that were full.
        ForgottenMemory { count: usize, most: usize } = "table_full", "{count} allocations were not followed: gpurec keeps {most} live ones, and fewer in a program that ends very many contexts";
        ForgottenNames { count: u64 } = "table_full", "{count} names of kernels or handles did not fit into gpurec's tables: some launches have no name";
        ForgottenObjects { count: u64 } = "table_full", "{count} objects of the driver did not fit into gpurec's tables: requests on them are shown without a class";
        NotFollowed { count: u64, most: usize } = "table_full", "{count} calls began while {most} others were open and were not followed to their ends";
        MemoryNotFollowed { count: u64, most: usize } = "table_full", "{count} allocations were not followed, because more than {most} were live or too many processes allocated: what was never freed may be more or less";
    }
}

/// Who resumed a process that gpurec had stopped, before gpurec was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Resumer {
    /// A shell's `fg` sends SIGCONT like this to a job that gpurec has stopped.
    #[error("another program resumed its process (SIGCONT)")]
    Other,
    #[error(
        "gpurec's guardian resumed its process, because the recorder itself did not run for some seconds (stopped, or without a processor)"
    )]
    Guardian,
}

/// The reasons of an `end` line, from its two lists.
pub fn reasons<'a>(because: &'a [String], codes: &'a [String]) -> impl Iterator<Item = Reason> + 'a {
    let codes = codes.iter().cloned().chain(std::iter::repeat(String::new()));
    because.iter().cloned().zip(codes).map(|(text, code)| Reason { code, text })
}

/// The most reasons kept, and the longest sentence.
const MOST: usize = 100;
const LONGEST: usize = 4 << 10;

/// Reasons without repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    list: Vec<Reason>,
    more: u64,
}

impl Reasons {
    pub fn add(&mut self, reason: impl Into<Reason>) {
        let mut reason = reason.into();
        reason.text = crate::bounds::short(&reason.text, LONGEST);
        if self.list.contains(&reason) {
            return;
        }
        if self.list.len() < MOST {
            self.list.push(reason);
        } else {
            self.more += 1;
        }
    }

    /// All reasons, with the number of those that did not fit.
    pub fn all(&self) -> Vec<Reason> {
        let more = (self.more > 0).then(|| Incomplete::More { count: self.more }.into());
        self.list.iter().cloned().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_that_a_program_can_compare() {
        for code in HookError::CODES.iter().chain(Incomplete::CODES) {
            assert!(!code.is_empty() && code.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{code}");
        }
    }

    #[test]
    fn the_page_lists_each_code_and_no_other() {
        let page = include_str!("../../../docs/trace-format.md");
        let section = page.split("## Codes of reasons").nth(1).unwrap().split("\n## ").next().unwrap();
        let (incomplete, rest) = section.split_once("`code` of `refused`").unwrap();
        let (hooks, rest) = rest.split_once("`code` of `reasons`").unwrap();
        let (gpu, overhead) = rest.split_once("`code` of `overhead`").unwrap();
        let gpu_codes: Vec<&str> = crate::GpuReason::codes().collect();
        let overheads: Vec<&str> = crate::GpuOverhead::codes().collect();
        for (text, codes) in [
            (incomplete, Incomplete::CODES),
            (hooks, HookError::CODES),
            (gpu, &gpu_codes),
            (overhead, &overheads),
        ] {
            let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
            let mut listed: Vec<&str> =
                rows.flat_map(|row| row.split(", ").map(|code| code.trim_matches('`'))).collect();
            let mut codes = codes.to_vec();
            listed.sort_unstable();
            codes.sort_unstable();
            codes.dedup();
            assert_eq!(listed, codes);
        }
    }

    #[test]
    fn reasons_are_kept_once_and_counted_beyond_the_limit() {
        let mut reasons = Reasons::default();
        for count in (0..150).chain(0..10) {
            reasons.add(Incomplete::Undecoded { count });
        }
        let all = reasons.all();
        assert_eq!((all.len(), all[100].code.as_str()), (101, "more"));
        assert_eq!(all[100].text, "and 50 more reasons");
    }
}
