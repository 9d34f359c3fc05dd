//! What could be better about the work on the GPUs. In: the sums of `GpuWork`. Out: findings for `report waste`;
//! docs/reading.md has the thresholds.

use super::GpuWork;
use crate::figures::Finding;
use crate::stacks::Stacks;

/// Kernels that are shorter than their launch: at least this many, and half of all.
const SHORT: u64 = 1000;

/// A finding is worth a hundredth of the recording, and ten times.
const SHARE: u64 = 100;
const TIMES: u64 = 10;

/// Streams are serialised if less than this part, in hundredths, of their time overlaps. Each has at least a tenth of
/// the device's time.
const OVERLAP: u128 = 1;
const PART: u64 = 10;

impl GpuWork {
    pub fn findings(&self, whole_ns: u64, stacks: &Stacks) -> Vec<Finding> {
        let worth = |finding: &Finding| {
            finding.times >= TIMES && finding.cost_ns.unwrap_or(0) >= (whole_ns / SHARE).max(1)
        };
        let mut all: Vec<Finding> = Vec::new();
        for (number, device) in &self.devices {
            let settled = device.settled(&self.waits);
            all.push(Finding::new(
                format!("GPU {number} idle because a thread waited for it before it launched more"),
                settled.waited_gaps,
                Some(settled.waited_gap_ns),
                "launch more before waiting: take .item(), .cpu(), print and synchronize out of the loop, or do it every few steps (`gpurec report idle`)",
            ));
            let only_copies_ns = settled.busy_ns.saturating_sub(settled.computing_ns);
            if settled.computing_ns > 0 {
                all.push(Finding::new(
                    format!("copies during which no kernel runs on GPU {number}"),
                    device.copies,
                    Some(only_copies_ns),
                    "copy the next batch while this one is computed: pinned memory, non_blocking=True and a second stream",
                ));
            }
        }
        all.extend(self.serialised());
        all.retain(worth);
        all.extend(self.short_kernels(stacks));
        all
    }

    fn short_kernels(&self, stacks: &Stacks) -> Option<Finding> {
        let short = &self.short;
        if short.count < SHORT || short.count * 2 < short.known {
            return None;
        }
        let cost_ns = short.call_ns.saturating_sub(short.kernel_ns);
        let finding = Finding::new(
            format!("kernels shorter than the call that launches them, of {} kernels", short.known),
            short.count,
            Some(cost_ns),
            "fuse kernels, or launch them together as a CUDA graph (torch.compile, torch.cuda.graph)",
        );
        Some(finding.at(&short.sites, |site| stacks.text(site)))
    }

    /// Streams of a device whose work never overlaps. The cost is what perfect overlap would save.
    fn serialised(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        for (number, device) in &self.devices {
            let of_device = self.streams.iter().filter(|(key, _)| key.device == *number);
            let worth = |work: u64, ns: u64| work >= TIMES && ns >= device.sum.time_ns / PART;
            let streams: Vec<u64> = of_device
                .filter(|(_, sum)| worth(sum.work, sum.time_ns))
                .map(|(_, sum)| sum.time_ns)
                .collect();
            let busy_ns = device.settled(&self.waits).busy_ns;
            let overlap_ns = device.sum.time_ns.saturating_sub(busy_ns);
            let longest = streams.iter().max().copied().unwrap_or(0);
            let others =
                streams.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns)).saturating_sub(longest);
            let overlaps = u128::from(overlap_ns) * 100 >= u128::from(device.sum.time_ns) * OVERLAP;
            if streams.len() < 2 || overlaps {
                continue;
            }
            all.push(Finding::new(
                format!("work on {} streams of GPU {number} that never runs at the same time", streams.len()),
                device.sum.work,
                Some(others),
                "look for what orders the streams: the legacy default stream, events, allocations and synchronous copies between launches; or use one stream",
            ));
        }
        all
    }
}
