//! What a made-up job does: its size, its faults, its communicators and their collectives. In: a seed. Out: data. Not
//! here: lines.

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub ranks: u32,
    pub per_host: u32,
    pub steps: u32,
    /// Launches of each rank in a step.
    pub launches: u32,
    /// The most that the clock of a host is off.
    pub skew_ns: u64,
    pub drift_ppm: f64,
    /// This rank is late in most steps, because an allocation takes long.
    pub straggler: Option<u32>,
    /// The GPU of this rank computes slower.
    pub slow_gpu: Option<u32>,
    /// One rank calls one collective with another count.
    pub mismatch: bool,
    /// At the end one rank does not call the collective that the others wait in.
    pub hang: bool,
    /// With lines of GPU work.
    pub gpu: bool,
    /// Each collective is alone in a group, as PyTorch calls them: `ncclGroupEnd` launches the kernel.
    pub groups: bool,
    /// One trace for each host, not for each rank.
    pub by_node: bool,
    /// The hosts say that NTP keeps their clocks within this of the right time.
    pub ntp_error_ns: Option<u64>,
    /// From one step to the next.
    pub step_ns: i64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            seed: 1,
            ranks: 8,
            per_host: 4,
            steps: 200,
            launches: 8,
            skew_ns: 0,
            drift_ppm: 0.0,
            straggler: None,
            slow_gpu: None,
            mismatch: false,
            hang: false,
            gpu: true,
            groups: false,
            by_node: false,
            ntp_error_ns: None,
            step_ns: 5_000_000,
        }
    }
}

/// Numbers that look random, by SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> i64 {
        self.next().checked_rem(end).unwrap_or(0) as i64
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A communicator: its name, its ranks, the number of collectives so far.
pub struct Comm {
    pub name: String,
    pub ranks: Vec<usize>,
    pub seq: u64,
}

/// What a collective moves, the kernel that it starts, and whether no rank ends before the last begins.
pub struct Operation {
    pub op: &'static str,
    pub call: &'static str,
    pub kernel: &'static str,
    pub count: u64,
    pub root: Option<u32>,
    pub redop: Option<&'static str>,
}

pub const fn operation(op: &'static str, call: &'static str, kernel: &'static str) -> Operation {
    Operation { op, call, kernel, count: 1 << 20, root: None, redop: None }
}

pub const OPERATIONS: [Operation; 4] = [
    Operation {
        redop: Some("sum"),
        ..operation("AllReduce", "ncclAllReduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    },
    operation("AllGather", "ncclAllGather", "ncclDevKernel_AllGather_RING_LL"),
    Operation {
        redop: Some("sum"),
        ..operation("ReduceScatter", "ncclReduceScatter", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
    },
    Operation { root: Some(0), ..operation("Broadcast", "ncclBroadcast", "ncclDevKernel_Broadcast_RING_LL") },
];

pub fn file_name(plan: &Plan, host: &str, rank: u32) -> String {
    if plan.by_node { format!("{host}.jsonl.zst") } else { format!("{host}-{rank}.jsonl.zst") }
}

/// All ranks; those of each host; those with the same place on their hosts.
pub fn communicators(plan: &Plan, hosts: usize, random: &mut Random) -> Vec<Comm> {
    let (all, per_host) = (plan.ranks as usize, plan.per_host.max(1) as usize);
    let mut groups: Vec<Vec<usize>> = vec![(0..all).collect()];
    groups.extend((0..hosts).map(|host| (host * per_host..all.min((host + 1) * per_host)).collect()));
    groups.extend((0..per_host).map(|local| (local..all).step_by(per_host).collect()));
    groups.retain(|ranks| ranks.len() > 1);
    groups.into_iter().map(|ranks| Comm { name: format!("{:016x}", random.next()), ranks, seq: 0 }).collect()
}
