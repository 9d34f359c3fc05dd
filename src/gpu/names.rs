//! The kernels' names of a process, by the hashes that it gave them. In: hashes and names, from a process that may have
//! written anything there. Out: readable names. They are bounded in number and bytes, for each process and for all. Pure.

use std::sync::Arc;

use gpurec_cuda::semantics::kernel_name;
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::hash::Map;

/// Bytes of the names of one process, and of all.
const MOST: usize = 8 << 20;
const MOST_OF_ALL: usize = 32 << 20;
/// Per name, besides its bytes: its place among the others, reference counts, the allocator's overhead.
const EACH: usize = 96;

/// What is left for the names of all processes.
pub type Left = BytesLeft<MOST_OF_ALL>;

#[derive(Default)]
pub struct Names {
    by_hash: Map<u64, Arc<str>>,
    bytes: usize,
}

impl Names {
    /// A name beyond the bounds is not kept.
    pub fn add(&mut self, hash: u64, name: &[u8], left: &mut Left) {
        if self.bytes >= MOST || self.by_hash.contains_key(&hash) {
            return;
        }
        // A few bytes may become a long name.
        let name = kernel_name(name, false);
        let bytes = name.len() + EACH;
        if left.take(bytes) {
            self.bytes += bytes;
            self.by_hash.insert(hash, name.into());
        }
    }

    pub fn get(&self, hash: u64) -> Option<Arc<str>> {
        self.by_hash.get(&hash).cloned()
    }

    /// Call this before the names are dropped.
    pub fn forget(&mut self, left: &mut Left) {
        left.give_back(self.bytes);
        *self = Names::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(name: &[u8], left: &mut Left) -> Names {
        let mut names = Names::default();
        (0..MOST as u64 / EACH as u64 + 2).for_each(|hash| names.add(hash, name, left));
        names
    }

    #[test]
    fn names_without_a_byte_are_bounded() {
        let mut left = Left::default();
        let mut all: Vec<Names> = (0..6).map(|_| filled(b"", &mut left)).collect();
        assert!(all.iter().all(|one| one.by_hash.len() * EACH < MOST + EACH));
        assert!(all.iter().map(|one| one.by_hash.len() * EACH).sum::<usize>() <= MOST_OF_ALL);
        assert!(all[0].bytes >= MOST && all[5].by_hash.is_empty());
        all.iter_mut().for_each(|one| one.forget(&mut left));
        assert!(filled(b"", &mut left).bytes >= MOST);
    }

    #[test]
    fn a_name_counts_with_the_bytes_that_it_has_in_the_end() {
        let (mut left, mut names) = (Left::default(), Names::default());
        let short = b"_Z1fSt4pairIS_IiiES0_ES_IS1_S1_ES_IS2_S2_E";
        names.add(1, short, &mut left);
        names.add(1, b"again", &mut left);
        let kept = names.get(1).unwrap();
        assert!(kept.len() > short.len(), "{kept}");
        assert_eq!(names.bytes, kept.len() + EACH);
    }
}
