//! Work on the GPU, as lines: its time may be before that of the lines in front of it. In: calls that submit work, and
//! work with its call. Out: `gpu` lines.

use super::{Facts, Lines};
use crate::gpu::cupti::What;
use crate::gpu::join::Joined;
use crate::pipeline::pair::{Open, Outcome};
use gpurec_cuda::traits::Input;
use gpurec_trace::{self as trace, Body, GpuKind, GpuSource, Retval};

/// What a call submits, as far as CUPTI has records of it. True: a kernel or a graph.
pub(super) fn launches(traits: &gpurec_cuda::FunctionTraits) -> Option<bool> {
    match traits.input()? {
        Input::Launch | Input::GraphLaunch => Some(true),
        Input::Copy | Input::Set => Some(false),
        _ => None,
    }
}

impl Lines {
    pub(super) fn gpu_begin(&mut self, call: &Open, facts: Option<&Facts>, id: u64) {
        if let Some(is_launch) = facts.and_then(|facts| facts.launches)
            && !call.origin.elsewhere
        {
            self.gpu.begin(call.pid, call.tid, call.ts, id, is_launch);
        }
    }

    pub(super) fn gpu_end(
        &mut self,
        ts: u64,
        call: &Open,
        facts: Option<&Facts>,
        outcome: Outcome,
        retval: Option<Retval>,
    ) {
        if facts.is_some_and(|facts| facts.launches.is_some()) {
            let is_good = matches!(outcome, Outcome::Returned(_))
                && !matches!(retval, Some(Retval::Number(code)) if code != 0);
            self.gpu.end(call.pid, call.tid, ts, call.id, is_good);
        }
    }

    pub(super) fn gpu_ended(&mut self, pid: u32, at: u64) {
        if self.gpu.watches(pid) {
            self.gpu.ended(pid, at);
            if self.gpu.everyone {
                self.gpu_gone.push((pid, at));
            }
        }
    }

    pub fn gpu_line(&mut self, joined: Joined, source: GpuSource) {
        let Joined { pid, work, name, by } = joined;
        let kernel = || name.as_deref().unwrap_or("?");
        let (kind, name, graph) = match &work.what {
            What::Kernel { .. } => (GpuKind::Kernel, kernel(), None),
            What::Copy { .. } => (GpuKind::Copy, "memcpy", None),
            What::Set { .. } => (GpuKind::Set, "memset", None),
            What::Graph { graph } => (GpuKind::Graph, "graph", Some(u64::from(*graph))),
        };
        let mut line = trace::Gpu {
            name: name.into(),
            kind,
            source,
            pid,
            device: work.device,
            context: work.context,
            stream: work.stream,
            correlation: work.correlation,
            begin: by.map(|by| by.id),
            duration_ns: work.end.saturating_sub(work.start),
            queued_ns: by.and_then(|by| i64::try_from(i128::from(work.start) - i128::from(by.end?)).ok()),
            grid: None,
            block: None,
            registers: None,
            shared: None,
            direction: None,
            size: None,
            graph: graph.or(work.node.map(|node| node.graph.into())),
            node: work.node.map(|node| node.node),
        };
        match work.what {
            What::Kernel { grid, block, registers, shared } => {
                (line.grid, line.block) = (Some(grid), Some(block));
                (line.registers, line.shared) = (Some(registers.into()), Some(shared));
            }
            What::Copy { direction, bytes } => {
                line.direction = Some(direction.map_or("unknown", |direction| direction.name()).into());
                line.size = Some(bytes);
            }
            What::Set { bytes } => (line.direction, line.size) = (Some("set".into()), Some(bytes)),
            What::Graph { .. } => {}
        }
        self.line(work.start, Body::Gpu(line));
    }
}
