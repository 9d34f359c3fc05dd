//! The features of the running Linux, from its type information instead of its version. In: BTF. Out: answers,
//! determined once, because reading BTF takes milliseconds. Not here: conclusions from an answer.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::slice;
use std::sync::OnceLock;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::host::btf::Btf;

pub struct Types {
    structs: HashSet<&'static str>,
    pub uprobe_session: bool,
    pub cookies: bool,
    /// True if the functions that session programs call take the context as an argument.
    pub session_cookie_takes_context: bool,
    pub session_is_return_takes_context: bool,
    /// Programs on system call tracepoints can be preempted.
    pub faultable_tracepoints: bool,
}

/// None if Linux provides no readable BTF.
pub fn types() -> Option<&'static Types> {
    static TYPES: OnceLock<Option<Types>> = OnceLock::new();
    TYPES.get_or_init(|| with_bytes(|bytes| Some(Types::read(&Btf::parse(bytes, None)?)))?).as_ref()
}

/// Runs `with` on the BTF, which takes megabytes: mapped, or before Linux 6.16, which cannot map it, read.
fn with_bytes<T>(with: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let mut file = File::open("/sys/kernel/btf/vmlinux").ok()?;
    let length = NonZeroUsize::new(file.metadata().ok()?.len() as usize)?;
    // SAFETY: a new mapping at an address that Linux chooses.
    let mapped = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &file, 0) };
    let Ok(start) = mapped else {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        return Some(with(&bytes));
    };
    // SAFETY: mapped with this length, from a file that no process can write or shorten.
    let done = with(unsafe { slice::from_raw_parts(start.cast().as_ptr(), length.get()) });
    // SAFETY: as above, and the result does not borrow from the mapping.
    let _ = unsafe { munmap(start, length.get()) };
    Some(done)
}

/// The structures and functions to look for.
const STRUCTS: [&str; 5] = [
    "bpf_ringbuf",
    "bpf_local_storage",
    "bpf_uprobe_multi_link",
    "bpf_kprobe_multi_link",
    "kprobe_insn_cache",
];
const FUNCTIONS: [&str; 3] = ["bpf_session_cookie", "bpf_session_is_return", "trace_call_bpf_faultable"];

impl Types {
    fn read(btf: &Btf) -> Types {
        let functions = btf.functions(|name| FUNCTIONS.contains(&name));
        let takes_something = |name| functions.get(name).is_some_and(|proto| !proto.params.is_empty());
        Types {
            structs: btf.structs(&STRUCTS),
            uprobe_session: btf.has_enumerator("bpf_attach_type", "BPF_TRACE_UPROBE_SESSION"),
            cookies: btf.has_enumerator("bpf_func_id", "BPF_FUNC_get_attach_cookie"),
            session_cookie_takes_context: takes_something("bpf_session_cookie"),
            session_is_return_takes_context: takes_something("bpf_session_is_return"),
            faultable_tracepoints: functions.contains_key("trace_call_bpf_faultable"),
        }
    }

    /// One of `STRUCTS`.
    pub fn has(&self, name: &str) -> bool {
        self.structs.contains(name)
    }
}
