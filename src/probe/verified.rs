//! How much work each program was for the Linux verifier, which refuses programs that take it too long: kernels differ,
//! and a program that one accepts easily may be near the limit of another.
//! In: loaded programs. Out: the number of instructions that the verifier processed, by program. Kernels before 5.16 do
//! not report it.

use std::collections::BTreeMap;

use libbpf_rs::Object;

use super::objects::programs;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifierCounts(BTreeMap<String, u32>);

impl VerifierCounts {
    /// Several programs with one name are copies, or serve one function each: the largest number counts.
    pub fn add_programs<'a>(&mut self, objects: impl IntoIterator<Item = &'a Object>) {
        for (name, info) in programs(objects) {
            let most = self.0.entry(name).or_default();
            *most = info.verified_insns.max(*most);
        }
    }

    /// A sentence for the user, and for comparing kernels.
    pub fn sentence(&self) -> Option<String> {
        let of: Vec<String> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        (self.0.values().any(|count| *count > 0))
            .then(|| format!("instructions that the kernel's verifier went through: {}", of.join(", ")))
    }
}
