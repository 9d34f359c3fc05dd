//! The blocks that PyTorch's allocator has handed out. In: blocks and frees. Out: what is known of a block that is freed,
//! because a free shows only the address. A block of before the recording is not known. Pure.

use gpurec_trace::bounds::MOST_LIVE;
use gpurec_trace::hash::Map;

/// What the allocator said about a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub size: Option<u64>,
    pub device: Option<u32>,
    pub stream: Option<u64>,
}

/// Up to MOST_LIVE blocks, of all processes together: those beyond are not known when they are freed.
#[derive(Default)]
pub struct Blocks {
    processes: Map<u32, Map<u64, Facts>>,
    live: usize,
}

impl Blocks {
    pub fn handed_out(&mut self, pid: u32, ptr: u64, facts: Facts) {
        if self.live >= MOST_LIVE {
            self.taken_back(pid, ptr);
            return;
        }
        let before = self.processes.entry(pid).or_default().insert(ptr, facts);
        self.live += usize::from(before.is_none());
    }

    pub fn taken_back(&mut self, pid: u32, ptr: u64) -> Facts {
        let known = self.processes.get_mut(&pid).and_then(|blocks| blocks.remove(&ptr));
        self.live -= usize::from(known.is_some());
        known.unwrap_or_default()
    }

    /// The process ended, or runs another program. A child made by fork begins with nothing.
    pub fn gone(&mut self, pid: u32) {
        self.live -= self.processes.remove(&pid).map_or(0, |blocks| blocks.len());
    }

    /// Hits are missing: an address may be that of another block now.
    pub fn forget(&mut self) {
        *self = Blocks::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: u64) -> Facts {
        Facts { size: Some(size), device: Some(1), stream: Some(2) }
    }

    #[test]
    fn a_free_has_what_its_block_had() {
        let mut blocks = Blocks::default();
        blocks.handed_out(7, 0x100, of(5));
        blocks.handed_out(8, 0x100, of(6));
        assert_eq!(blocks.taken_back(7, 0x100), of(5));
        assert_eq!(blocks.taken_back(7, 0x100), Facts::default(), "it is known once");
        blocks.handed_out(7, 0x100, of(9));
        blocks.handed_out(7, 0x100, of(10));
        assert_eq!((blocks.live, blocks.taken_back(7, 0x100)), (2, of(10)), "the free in between is missing");
        blocks.gone(8);
        assert_eq!((blocks.live, blocks.taken_back(8, 0x100)), (0, Facts::default()));
        blocks.handed_out(7, 0x100, of(5));
        blocks.forget();
        assert_eq!((blocks.live, blocks.taken_back(7, 0x100)), (0, Facts::default()));
    }

    #[test]
    fn the_table_is_bounded_and_never_wrong() {
        let mut blocks = Blocks::default();
        for ptr in 0..MOST_LIVE as u64 {
            blocks.handed_out(7, ptr, of(ptr));
        }
        blocks.handed_out(7, 1 << 40, of(1));
        assert_eq!((blocks.live, blocks.taken_back(7, 1 << 40)), (MOST_LIVE, Facts::default()));
        // Its free is missing, and there is no room for what is at its address now.
        blocks.handed_out(7, 5, of(99));
        assert_eq!(blocks.taken_back(7, 5), Facts::default());
        assert_eq!((blocks.live, blocks.taken_back(7, 6)), (MOST_LIVE - 1, of(6)));
    }
}
