//! How much work each program was for the Linux verifier, which refuses programs that take it too long: kernels differ,
//! and a program that one accepts easily may be near the limit of another.
//! In: loaded programs. Out: the number of instructions that the verifier processed, by program. Kernels before 5.16 do
//! not report it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::Object;
use libbpf_rs::libbpf_sys::{bpf_prog_get_info_by_fd, bpf_prog_info};

use super::objects::without_copy;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified(BTreeMap<String, u32>);

impl Verified {
    /// Several programs with one name are copies, or serve one function each: the largest number counts.
    pub fn add_programs<'a>(&mut self, objects: impl IntoIterator<Item = &'a Object>) {
        for program in objects.into_iter().flat_map(|object| object.progs()).filter(|p| p.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            let most = self.0.entry(without_copy(&name).to_owned()).or_default();
            *most = of_program(program.as_fd().as_raw_fd()).max(*most);
        }
    }

    /// A sentence for the user, and for comparing kernels.
    pub fn sentence(&self) -> Option<String> {
        let of: Vec<String> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        (self.0.values().any(|count| *count > 0))
            .then(|| format!("instructions that the kernel's verifier went through: {}", of.join(", ")))
    }
}

fn of_program(fd: i32) -> u32 {
    let mut info = bpf_prog_info::default();
    let mut size = size_of::<bpf_prog_info>() as u32;
    // SAFETY: info is as large as size says.
    let result = unsafe { bpf_prog_get_info_by_fd(fd, &raw mut info, &raw mut size) };
    if result == 0 { info.verified_insns } else { 0 }
}
