//! Recursion misses: hits of hooks that Linux skipped. It runs no probe while it is in another one, and no BPF program
//! while another, or the same one for a preempted thread, runs on the same CPU. In: programs and links. Out: how many
//! hits were missed, and of what. Linux does not report which process the hits belonged to.

use std::collections::BTreeMap;
use std::ffi::CStr;

use libbpf_rs::Object;

use super::objects::programs;
use gpurec_trace::Incomplete;
use libbpf_rs::libbpf_sys::{
    BPF_LINK_TYPE_KPROBE_MULTI, BPF_LINK_TYPE_PERF_EVENT, BPF_PERF_EVENT_KPROBE, BPF_PERF_EVENT_KRETPROBE,
    bpf_link_get_info_by_fd, bpf_link_info,
};

/// Counters by the function or the shared program that they belong to. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misses(BTreeMap<String, u64>);

impl Misses {
    /// Adds the hits that the object's programs missed because a BPF program was running. If copies share the same
    /// hooks, a hit is lost only if all copies missed it: at most as often as the copy that missed fewest.
    pub fn add_programs<'a>(&mut self, copies: impl IntoIterator<Item = &'a Object>) {
        let mut fewest: BTreeMap<String, u64> = BTreeMap::new();
        for (name, info) in programs(copies) {
            let known = fewest.entry(name).or_insert(info.recursion_misses);
            *known = info.recursion_misses.min(*known);
        }
        for (name, missed) in fewest {
            self.add(format!("program {name}"), missed);
        }
    }

    /// The misses of the programs at mappings before the recording begins: most come from gpurec's own calls of bpf(2).
    pub fn at_mappings(process: &Object) -> Misses {
        let mut all = Misses::default();
        all.add_programs([process]);
        all.0.retain(|name, _| name.contains("mmap") || name.contains("mprotect"));
        all
    }

    /// Adds the hits that a link missed because another probe was running; kernels before 6.7 do not report them.
    pub fn add_link(&mut self, fd: i32) {
        let mut name = [0u8; 128];
        let Some(info) = link_info(fd, &mut name) else { return };
        if info.type_ == BPF_LINK_TYPE_KPROBE_MULTI {
            // SAFETY: the type says which member Linux has filled; the rest is zeroes.
            let missed = unsafe { info.__bindgen_anon_1.kprobe_multi.missed };
            self.add("functions hooked together".to_owned(), missed);
        } else if is_kprobe(&info) {
            // SAFETY: as above.
            let missed = unsafe { info.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe.missed };
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            self.add(name.to_string_lossy().into_owned(), missed);
        }
    }

    fn add(&mut self, what: String, count: u64) {
        if count > 0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// The increase since an earlier reading.
    pub fn since(mut self, earlier: &Misses) -> Misses {
        for (what, count) in &mut self.0 {
            *count = count.saturating_sub(earlier.0.get(what).copied().unwrap_or(0));
        }
        self.0.retain(|_, count| *count > 0);
        self
    }

    pub fn and(mut self, other: Misses) -> Misses {
        for (what, count) in other.0 {
            self.add(what, count);
        }
        self
    }

    /// Why the recording is not complete, if there are any.
    pub fn reason(&self) -> Option<Incomplete> {
        let hits: u64 = self.0.values().sum();
        let of: Vec<String> = self.0.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        (hits > 0).then(|| Incomplete::RecursionMisses { hits, of: of.join(", ") })
    }
}

/// Writes the name of a kprobe's function into `name`.
fn link_info(fd: i32, name: &mut [u8; 128]) -> Option<bpf_link_info> {
    let mut info = ask(fd, bpf_link_info::default())?;
    if is_kprobe(&info) {
        let mut again = bpf_link_info::default();
        // SAFETY: the type was checked just now; this writes a plain member of a union.
        unsafe {
            let kprobe = &mut again.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe;
            kprobe.func_name = name.as_mut_ptr() as u64;
            kprobe.name_len = name.len() as u32;
        }
        info = ask(fd, again)?;
    }
    Some(info)
}

fn ask(fd: i32, mut info: bpf_link_info) -> Option<bpf_link_info> {
    let mut size = size_of::<bpf_link_info>() as u32;
    // SAFETY: info is as large as size says, and so is any buffer that it names.
    let result = unsafe { bpf_link_get_info_by_fd(fd, &raw mut info, &raw mut size) };
    (result == 0).then_some(info)
}

fn is_kprobe(info: &bpf_link_info) -> bool {
    // SAFETY: only read for that link type; older kernels leave zeroes, which do not mean a kprobe.
    let kind = || unsafe { info.__bindgen_anon_1.perf_event.type_ };
    info.type_ == BPF_LINK_TYPE_PERF_EVENT
        && matches!(kind(), BPF_PERF_EVENT_KPROBE | BPF_PERF_EVENT_KRETPROBE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(of: &[(&str, u64)]) -> Misses {
        Misses(of.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect())
    }

    #[test]
    fn what_was_there_before_does_not_count() {
        let before = missed(&[("nvidia_isr", 2), ("program xid", 1)]);
        let now = missed(&[("nvidia_isr", 5), ("program xid", 1), ("rm_isr", 1)]);
        let since = now.since(&before);
        assert_eq!(since, missed(&[("nvidia_isr", 3), ("rm_isr", 1)]));
        let said = since.reason().unwrap().to_string();
        assert!(said.contains("up to 4 hits") && said.ends_with("(nvidia_isr: 3, rm_isr: 1)"), "{said}");
        assert_eq!(missed(&[]).reason(), None);
    }
}
