//! The static probes of PyTorch's allocator, as data: in which library they are, and the order of their arguments.
//! Not here: where a build of the library has them (gpurec-elf), what their hits mean (pipeline).

use gpurec_trace::Op;

/// PyTorch's name for them.
pub const PROVIDER: &str = "pytorch";

/// One that gpurec records.
pub struct AllocatorProbe {
    /// With the provider's.
    pub name: &'static str,
    pub op: Op,
    /// The names of its arguments, in their order: at most those of `malloc`, and the same of each first.
    pub arguments: &'static [&'static str],
}

/// c10/cuda/CUDACachingAllocator.cpp. `size` is what the program asked for, before it is rounded up; `stream` is
/// PyTorch's number of it.
static PROBES: [AllocatorProbe; 2] = [
    AllocatorProbe {
        name: "pytorch:malloc",
        op: Op::Alloc,
        arguments: &["pointer", "device", "size", "stream"],
    },
    AllocatorProbe { name: "pytorch:free", op: Op::Free, arguments: &["pointer"] },
];

pub fn names() -> impl Iterator<Item = &'static str> {
    PROBES.iter().map(|probe| probe.name)
}

pub fn find(name: &str) -> Option<&'static AllocatorProbe> {
    PROBES.iter().find(|probe| probe.name == name)
}

/// By the name of the file. Wheels may rename a library: `libc10_cuda-0a1b2c3d.so`.
pub fn is_library(file_name: &str) -> bool {
    file_name
        .strip_prefix("libc10_cuda")
        .is_some_and(|rest| rest.starts_with(['.', '-']) && rest.contains(".so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_known_by_its_name() {
        for name in ["libc10_cuda.so", "libc10_cuda.so.2.11", "libc10_cuda-0a1b2c3d.so"] {
            assert!(is_library(name), "{name}");
        }
        for name in ["libc10.so", "libc10_cuda", "libc10_cuda_other.so", "c10_cuda.so", ""] {
            assert!(!is_library(name), "{name}");
        }
    }

    #[test]
    fn each_has_a_provider_and_begins_with_the_same_arguments() {
        for name in names() {
            let probe = find(name).unwrap();
            assert!(name.starts_with(PROVIDER));
            assert!(find("pytorch:malloc").unwrap().arguments.starts_with(probe.arguments), "{name}");
        }
        assert!(find("malloc").is_none());
    }
}
