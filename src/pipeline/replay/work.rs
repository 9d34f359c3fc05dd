//! Records as BPF writes them when several ranks train at once. In: the number of calls. Out: the bytes of each rank's
//! ring, and the probes that they refer to. The same numbers give the same bytes. Pure.

use super::super::made_ring;
use crate::probe::Probe;
use crate::wire;
use gpurec_cuda as cuda;

/// What the ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// One function with three numbers as arguments.
    One,
    /// Launches of the runtime with the driver's inside, copies, events, allocations and queries, as PyTorch makes them.
    Training,
}

const NAMES: [&str; 13] = [
    "cuStreamWaitEvent",
    "__cudaRegisterFunction",
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "cudaFree",
    "cudaEventRecord",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaStreamWaitEvent",
    "cudaGetLastError",
    "cudaStreamSynchronize",
];

pub fn probes() -> Vec<Probe> {
    let probe = |(id, name): (u32, &&str)| Probe {
        id,
        name: (*name).to_owned(),
        signature: cuda::signature(name, Some(12)),
        beneath: None,
    };
    (1..).zip(&NAMES).map(probe).collect()
}

fn probe(name: &str) -> u32 {
    NAMES.iter().position(|known| *known == name).map_or(0, |at| at as u32 + 1)
}

/// One rank: a process with one thread, which makes its calls a few microseconds apart.
struct Rank {
    pid: u32,
    bytes: Vec<u8>,
    ts: u64,
    seq: u32,
    sp: u64,
    calls: u64,
}

/// The records of `calls` calls, or a few more, of rank number `rank`.
pub fn of_rank(work: Work, rank: u32, calls: u64, start: u64) -> Vec<u8> {
    let mut made = Rank {
        pid: 1000 + rank,
        bytes: Vec::new(),
        ts: start + 1000 + u64::from(rank) * 37,
        seq: 0,
        sp: 0x7fff_0000_0000,
        calls: 0,
    };
    if work == Work::Training {
        made.kernels();
    }
    for number in 0.. {
        if made.calls >= calls {
            break;
        }
        match work {
            Work::One => made.call("cuStreamWaitEvent", [0x5555_0000_1230, number, 0, 0, 0, 0], &[], |_| ()),
            Work::Training => made.step(number),
        }
    }
    made.bytes
}

const STUBS: u64 = 0x5555_5555_4000;
const STREAM: u64 = 0x5555_0000_1230;

impl Rank {
    fn kernels(&mut self) {
        for kernel in 0..8u64 {
            let name = format!("_ZN2at6native29vectorized_elementwise_kernelILi{kernel}EEEviT0_T1_\0");
            let args = [1, STUBS + 16 * kernel, 0, 0, 0, 0];
            // The last four arguments are on the stack.
            let data = [vec![0; 32], piece(name.as_bytes())].concat();
            self.call("__cudaRegisterFunction", args, &data, |_| ());
        }
    }

    /// A part of a training step: some twenty calls.
    fn step(&mut self, number: u64) {
        self.call("cudaSetDevice", [0; 6], &[], |_| ());
        for kernel in 0..6 {
            self.launch((number + kernel) % 8, number);
            self.call("cudaGetLastError", [0; 6], &[], |_| ());
        }
        let bytes = 4096 + number % 64 * 256;
        self.call("cudaMemcpyAsync", [0x7f00_0000_0000, 0x5600_0000_0000, bytes, 1, STREAM, 0], &[], |_| ());
        self.out("cudaGetDevice", [0x7fff_1000, 0, 0, 0, 0, 0], &0u32.to_ne_bytes());
        self.call("cudaEventRecord", [0x5555_0000_4560, STREAM, 0, 0, 0, 0], &[], |_| ());
        self.call("cudaStreamWaitEvent", [STREAM, 0x5555_0000_4560, 0, 0, 0, 0], &[], |_| ());
        if number.is_multiple_of(4) {
            let at: u64 = 0x7f10_0000_0000 + number % 1024 * 0x20_0000;
            self.out("cudaMalloc", [0x7fff_2000, 0x20_0000, 0, 0, 0, 0], &at.to_ne_bytes());
            self.call("cudaFree", [at, 0, 0, 0, 0, 0], &[], |_| ());
        }
        self.call("cudaStreamSynchronize", [STREAM, 0, 0, 0, 0, 0], &[], |_| ());
    }

    fn launch(&mut self, kernel: u64, number: u64) {
        let (grid, block) = ([1 + number % 512, 1, 1], [128, 1, 1]);
        let packed = |xyz: [u64; 3]| [xyz[0] | xyz[1] << 32, xyz[2]];
        let ([g, gz], [b, bz]) = (packed(grid), packed(block));
        let outer = [STUBS + 16 * kernel, g, gz, b, bz, 0x7fff_3000];
        let inner = [0x5555_0100_0000 + kernel, grid[0], 1, 1, block[0], 1];
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let (of_outer, of_inner) = (words(&[0, STREAM]), words(&[1, 0, STREAM, 0x7fff_3000, 0]));
        self.call("cudaLaunchKernel", outer, &of_outer, |rank| {
            rank.call("cuLaunchKernel", inner, &of_inner, |_| ());
        });
    }

    fn call(&mut self, name: &str, args: [u64; 6], data: &[u8], inside: impl FnOnce(&mut Rank)) {
        self.whole(name, args, data, &[], inside);
    }

    /// A call that writes `value` through its pointer.
    fn out(&mut self, name: &str, args: [u64; 6], value: &[u8]) {
        self.whole(name, args, &[], &piece(value), |_| ());
    }

    fn whole(&mut self, name: &str, args: [u64; 6], data: &[u8], out: &[u8], inside: impl FnOnce(&mut Rank)) {
        self.calls += 1;
        let (probe, begin, sp) = (probe(name), self.ts, self.sp);
        let words = cuda::signature(name, Some(12)).map_or(0, |signature| signature.plan.stack_words);
        let words = u16::from(words).min(data.len() as u16 / 8);
        let (pid, payload) = (self.pid, data.len() as u16);
        let call = wire::Call { head: self.head(wire::CALL, probe), pid, payload, words, sp, args };
        made_ring::add(&mut self.bytes, &[wire::bytes(&call), data].concat());
        self.sp -= 256;
        inside(self);
        self.sp = sp;
        let head = self.head(wire::RETURN, probe);
        let end = wire::Return { head, begin, value: 0, payload: out.len() as u32, pad: 0 };
        let mut end = wire::bytes(&end).to_vec();
        if !out.is_empty() {
            // BPF builds both kinds in the same buffer, with the call's size in front.
            end.resize(size_of::<wire::Call>(), 0);
            end.extend_from_slice(out);
        }
        made_ring::add(&mut self.bytes, &end);
    }

    fn head(&mut self, kind: u16, probe: u32) -> wire::Head {
        self.seq += 1;
        let head = wire::Head { ts: self.ts, tid: self.pid, seq: self.seq, kind, flags: 0, probe };
        self.ts += 700 + self.ts % 1300;
        head
    }
}

/// Memory that was read, in the layout of a record.
fn piece(bytes: &[u8]) -> Vec<u8> {
    let head = wire::Piece { state: wire::PIECE_READ, length: bytes.len() as u16, late: 0 };
    let mut piece = [wire::bytes(&head), bytes].concat();
    piece.resize(piece.len().next_multiple_of(8), 0);
    piece
}
