//! One file for each target, and what they share.

mod budget;
mod elf;
mod gpu;
mod ioctl;
mod jsonl;
mod lines;
mod native;
mod pair;
mod python;
mod ranks;
mod records;
mod seeds;

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};

pub use self::{
    budget::budget, elf::elf, gpu::gpu, ioctl::ioctl, jsonl::jsonl, native::native, pair::pair,
    python::python, ranks::ranks, records::records, seeds::seeds,
};

/// A file in memory that is rewritten for each input.
struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    fn new() -> Scratch {
        let file = File::from(memfd_create("gpurec-fuzz", MFdFlags::MFD_CLOEXEC).unwrap());
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Scratch { file, path }
    }

    fn fill(&self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(bytes, 0).unwrap();
    }
}

/// Gives `each` a file with these bytes.
fn with_file<T>(bytes: &[u8], each: impl FnOnce(&Scratch) -> T) -> T {
    thread_local!(static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) });
    SCRATCH.with_borrow_mut(|scratch| {
        let scratch = scratch.get_or_insert_with(Scratch::new);
        scratch.fill(bytes);
        each(scratch)
    })
}

/// The first byte, and the rest.
fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
