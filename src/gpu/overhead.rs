//! The overhead of CUPTI and of the driver, from CUPTI's records. In: records of overhead. Out: the sum of each kind.
//! The records are of any thread, so their times may overlap. Pure.

use super::cupti::Overhead;
use gpurec_trace::GpuOverhead;

/// CUPTI's number of each kind, and the trace's code. The last row is for all other numbers.
const KINDS: [(u32, &str); 10] = [
    (0x10000, "buffer_flush"),
    (0x20000, "instrumentation"),
    (0x30000, "resource"),
    (0x70000, "buffer_request"),
    (0x80000, "uvm_init"),
    (1, "driver_compiler"),
    (0x40000, "module_loading"),
    (0x50000, "function_loading"),
    (0x60000, "command_buffer_full"),
    (0, "other"),
];

#[derive(Clone, Copy, Debug, Default)]
pub struct Overheads([(u64, u64); KINDS.len()]);

impl Overheads {
    pub fn add(&mut self, overhead: &Overhead) {
        let is_it = |(number, _): &(u32, &str)| *number == overhead.kind;
        let at = KINDS.iter().position(is_it).unwrap_or(KINDS.len() - 1);
        let (count, total_ns) = &mut self.0[at];
        *count += 1;
        *total_ns = total_ns.saturating_add(overhead.end.saturating_sub(overhead.start));
    }

    pub fn figures(&self) -> Vec<GpuOverhead> {
        let figures = |((_, code), (count, total_ns)): (&(u32, &str), &(u64, u64))| GpuOverhead {
            code: (*code).to_owned(),
            count: *count,
            total_ns: *total_ns,
        };
        KINDS.iter().zip(&self.0).filter(|(_, (count, _))| *count > 0).map(figures).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_sum() {
        let mut sums = Overheads::default();
        let all = [(0x10000, 5, 15), (0x50000, 1, 2), (0x10000, 100, 107), (77, 1, 4), (1 << 31, 9, 3)];
        all.iter()
            .for_each(|(kind, start, end)| sums.add(&Overhead { kind: *kind, start: *start, end: *end }));
        let figures: Vec<_> = sums.figures().into_iter().map(|it| (it.code, it.count, it.total_ns)).collect();
        let expected = [("buffer_flush", 2, 17), ("function_loading", 1, 1), ("other", 2, 3)];
        assert_eq!(figures, expected.map(|(code, count, total_ns)| (code.to_owned(), count, total_ns)));
    }

    #[test]
    fn the_trace_has_a_text_for_each_kind() {
        let codes: Vec<&str> = GpuOverhead::codes().collect();
        assert_eq!(codes, KINDS.map(|(_, code)| code));
    }
}
