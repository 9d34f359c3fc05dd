//! Launches by kernel, and the intervals between them.

use std::cmp::Reverse;
use std::sync::Arc;

use super::figures::{Finding, KernelFigures, OTHERS};
use super::stacks::{Places, Site, Stacks};
use super::units::decimal;
use gpurec_trace::Launch;
use gpurec_trace::bounds::{BytesLeft, Entries, entry};
use gpurec_trace::hash::Map;

/// Limits on distinct kernels, and on kernels that the figures list.
const MOST: usize = 131_072;
const LISTED: usize = 100;
/// Limit on bytes of kernel names.
const NAMES: usize = 64 << 20;

/// Limits on distinct shapes of one kernel, and of all kernels together.
const SHAPES: usize = 64;
const ALL_SHAPES: usize = 1 << 19;

/// Limit on threads whose launches are watched.
const THREADS: usize = 65_536;

/// A launch this soon after the previous one of its thread indicates that the kernel was tiny, or that the host fills
/// the queue as fast as it can.
const SOON_NS: u64 = 20_000;

/// Minimum number of such launches for a finding, if they are at least half of a thread's launches.
const MANY: u64 = 1_000;
/// Number of threads that the findings name.
const FOUND: usize = 3;

pub type Shape = (Option<[u32; 3]>, Option<[u32; 3]>);

#[derive(Default)]
pub struct Kernels {
    kernels: Entries<Kernel, MOST, NAMES>,
    shapes: BytesLeft<ALL_SHAPES>,
    threads: Map<(u32, u32), Pace>,
    /// The threads of folded processes that a finding may name.
    gone: Vec<((u32, u32), Pace)>,
}

struct Kernel {
    name: Arc<str>,
    launches: u64,
    shapes: Map<Shape, u64>,
}

#[derive(Default)]
struct Pace {
    last_ns: Option<u64>,
    launches: u64,
    soon: u64,
    soon_ns: u64,
    sites: Places,
}

impl Kernels {
    /// The process ended, and has no figures of its own any more. Its calls waited for `waited_ns`. `tids`: its threads.
    pub fn fold(&mut self, pid: u32, tids: &[u32], waited_ns: u64) {
        let threads = tids.iter().filter_map(|tid| self.threads.remove_entry(&(pid, *tid)));
        self.gone.extend(threads.filter(|(_, pace)| pace.is_tiny(waited_ns)));
        self.gone.sort_by_key(|(thread, pace)| (Reverse(pace.soon), *thread));
        self.gone.truncate(FOUND);
    }

    /// Index of the launched kernel, if the launch names one.
    pub fn index(&mut self, launch: &Launch) -> Option<usize> {
        let name = launch.kernel.as_deref()?;
        let new = |name: Option<Arc<str>>| Kernel {
            name: name.unwrap_or_else(|| OTHERS.into()),
            launches: 0,
            shapes: Map::default(),
        };
        Some(self.kernels.number(Some(name), new, |_, _| true))
    }

    pub fn name(&self, index: usize) -> &str {
        self.kernels.get(index).map_or("?", |kernel| &kernel.name)
    }

    pub fn launched(&mut self, kernel: Option<usize>, shape: Shape) {
        let Some(kernel) = kernel.and_then(|index| self.kernels.get_mut(index)) else { return };
        kernel.launches += 1;
        if let Some(count) = kernel.shapes.get_mut(&shape) {
            *count += 1;
        } else if kernel.shapes.len() < SHAPES && self.shapes.take(1) {
            kernel.shapes.insert(shape, 1);
        }
    }

    /// Records the time of any launch of a thread, less gpurec's own cost.
    pub fn at(&mut self, pid: u32, tid: u32, ts_ns: u64, site: Option<Site>) {
        let Some(pace) = entry(&mut self.threads, (pid, tid), THREADS) else { return };
        pace.launches += 1;
        let after = pace.last_ns.replace(ts_ns).map(|last| ts_ns.saturating_sub(last));
        if let Some(after) = after.filter(|after| *after < SOON_NS) {
            pace.soon += 1;
            pace.soon_ns += after;
            pace.sites.add(site);
        }
    }

    /// The most launched kernels, and the number left out.
    pub fn finish(&self) -> (Vec<KernelFigures>, u64) {
        // By reference: only the names that are listed are copied.
        let mut all: Vec<&Kernel> = self.kernels.iter().filter(|kernel| kernel.launches > 0).collect();
        all.sort_by(|a, b| b.launches.cmp(&a.launches).then_with(|| a.name.cmp(&b.name)));
        let listed = all.iter().take(LISTED).map(|kernel| kernel.figures()).collect();
        (listed, all.len().saturating_sub(LISTED) as u64)
    }

    /// `waited_ns` is how long a process waited for the GPU. If that exceeds the time of its launches, the GPU is the
    /// bottleneck, and launching faster would not help.
    pub fn findings(&self, waited_ns: impl Fn(u32) -> u64, stacks: &Stacks) -> Vec<Finding> {
        let is_tiny = |((pid, _), pace): &(&(u32, u32), &Pace)| pace.is_tiny(waited_ns(*pid));
        let mut threads: Vec<_> = self.threads.iter().filter(is_tiny).collect();
        threads.extend(self.gone.iter().map(|(thread, pace)| (thread, pace)));
        threads.sort_by(|a, b| (b.1.soon, a.0).cmp(&(a.1.soon, b.0)));
        let finding = |((pid, tid), pace): (&(u32, u32), &Pace)| {
            let after = decimal(pace.soon_ns / pace.soon / 100, 1);
            Finding::new(
                format!(
                    "tiny launches: pid {pid} tid {tid} launches {after} us after the launch before, on average"
                ),
                pace.soon,
                Some(pace.soon_ns),
                "fuse kernels, or launch them together as a CUDA graph (torch.compile, torch.cuda.graph)",
            )
            .at(&pace.sites, |site| stacks.text(site))
        };
        threads.into_iter().take(FOUND).map(finding).collect()
    }
}

impl Pace {
    /// Most launches of the thread are of tiny kernels, and its process did not wait for longer than that took.
    fn is_tiny(&self, waited_ns: u64) -> bool {
        self.soon >= MANY && self.soon * 2 >= self.launches && waited_ns < self.soon_ns
    }
}

impl Kernel {
    fn figures(&self) -> KernelFigures {
        let most = self.shapes.iter().max_by(|a, b| (a.1, b.0).cmp(&(b.1, a.0)));
        let (grid, block) = most.map_or((None, None), |(shape, _)| *shape);
        KernelFigures {
            name: self.name.to_string(),
            launches: self.launches,
            grid,
            block,
            shapes: self.shapes.len() as u64,
        }
    }
}
