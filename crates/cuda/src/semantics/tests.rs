//! Hand-made recordings: each call with what BPF would have captured of it.

mod collectives;
mod copies;
mod devices;
mod kernels;
mod memory;
mod model;

use super::*;
use crate::raw::{Piece, Place, Read};
use gpurec_trace::{Memory, Op, Transfer};

/// A call under construction.
#[derive(Clone, Default)]
pub struct Make {
    pub name: &'static str,
    pub args: Vec<u64>,
    /// Parameters whose memory was read at entry, with its contents.
    pub read: Vec<(u8, Vec<u8>)>,
    pub cut: bool,
    /// What the call wrote through its parameters.
    pub wrote: Vec<(u8, Vec<u8>)>,
    pub status: i32,
    pub stack: Option<Vec<u64>>,
    pub tid: u32,
    pub ns: u64,
}

pub fn call(name: &'static str, args: &[u64]) -> Make {
    Make { name, args: args.to_vec(), tid: 1, ns: 1000, ..Make::default() }
}

impl Make {
    pub fn wrote(mut self, param: u8, value: u64) -> Make {
        self.wrote.push((param, value.to_le_bytes().to_vec()));
        self
    }

    pub fn wrote_bytes(mut self, param: u8, bytes: &[u8]) -> Make {
        self.wrote.push((param, bytes.to_vec()));
        self
    }

    pub fn read(mut self, param: u8, bytes: &[u8]) -> Make {
        self.read.push((param, bytes.to_vec()));
        self
    }

    pub fn stack(mut self, words: &[u64]) -> Make {
        self.stack = Some(words.to_vec());
        self
    }

    pub fn returned(mut self, status: i32) -> Make {
        self.status = status;
        self
    }

    pub fn failed(mut self) -> Make {
        self.status = 2;
        self
    }

    pub fn on(mut self, tid: u32) -> Make {
        self.tid = tid;
        self
    }

    pub fn took(mut self, ns: u64) -> Make {
        self.ns = ns;
        self
    }

    fn signature(&self) -> &'static Signature {
        crate::signature(self.name, None).unwrap_or_else(|| panic!("{} has no signature", self.name))
    }

    /// The words at entry: registers, then the stack.
    fn words(&self, signature: &Signature) -> ([u64; 6], Vec<u64>) {
        let (mut registers, mut stack) = ([0; 6], vec![0; 16]);
        for (value, param) in self.args.iter().zip(&signature.params) {
            match param.place {
                Place::Register(n) => registers[usize::from(n)] = *value,
                Place::Stack(n) => stack[usize::from(n)] = *value,
                // Three numbers of 20 bits, as `dim` packs them.
                Place::Pair(a, b) => {
                    registers[usize::from(a)] = (value & 0xfffff) | (((value >> 20) & 0xfffff) << 32);
                    registers[usize::from(b)] = value >> 40;
                }
                Place::Block { .. } | Place::Vector => {}
            }
        }
        if let Some(words) = &self.stack {
            stack[..words.len()].copy_from_slice(words);
        }
        (registers, stack)
    }
}

/// A dim3 as an argument.
pub fn dim(x: u64, y: u64, z: u64) -> u64 {
    x | (y << 20) | (z << 40)
}

fn pieces<'a>(plan: &[Read], given: &'a [(u8, Vec<u8>)], cut: bool) -> Vec<Piece<'a>> {
    let piece = |read: &Read| match given.iter().find(|(param, _)| *param == read.param) {
        Some((_, bytes)) => Piece::Bytes { bytes, cut },
        None => Piece::Null,
    };
    plan.iter().map(piece).collect()
}

/// The calls of one process, numbered as in a trace.
pub struct Play {
    pub meaning: Meaning,
    pub pid: u32,
    next: u64,
}

/// A call that has begun.
pub struct Begun {
    make: Make,
    role: Option<Role>,
    call: CallRef,
    pub noted: BeginKeys,
}

impl Play {
    pub fn new() -> Play {
        let mut meaning = Meaning::new(Box::new(()));
        meaning.process_execed(7);
        Play { meaning, pid: 7, next: 1 }
    }

    /// A process that was running before the recording.
    pub fn late(names: Box<dyn Names + Send>) -> Play {
        Play { meaning: Meaning::new(names), pid: 7, next: 1 }
    }

    pub fn begin(&mut self, make: Make) -> Begun {
        let role = Role::of(make.name);
        let call = CallRef { pid: self.pid, tid: make.tid, id: self.next };
        self.next += 2;
        let signature = make.signature();
        let (registers, stack) = make.words(signature);
        let reads = pieces(&signature.plan.entry, &make.read, make.cut);
        let entry = Entry { registers, stack: &stack, reads: &reads };
        let noted = self.meaning.begin(role.as_ref(), Some(signature), &call, &entry);
        Begun { make, role, call, noted }
    }

    pub fn end(&mut self, begun: Begun) -> Vec<Effect> {
        let Begun { make, role, call, .. } = begun;
        let signature = make.signature();
        let reads = pieces(&signature.plan.exit, &make.wrote, false);
        let exit = Exit { reads: &reads };
        let mut out = Vec::new();
        self.meaning.end(role.as_ref(), Some(signature), &call, &exit, make.status, make.ns, &mut out);
        out
    }

    pub fn forget(&mut self, begun: Begun) {
        self.meaning.forget(&begun.call);
    }

    pub fn make(&mut self, make: Make) -> Vec<Effect> {
        let begun = self.begin(make);
        self.end(begun)
    }

    /// Makes `inner` inside `outer`.
    pub fn nested(&mut self, outer: Make, inner: Make) -> Vec<Effect> {
        let outer = self.begin(outer);
        let mut effects = self.make(inner);
        effects.extend(self.end(outer));
        effects
    }

    /// Makes the call and returns its allocation: space, pointer, size, total.
    pub fn alloc(&mut self, make: Make) -> (String, u64, Option<u64>, u64) {
        let effects = self.make(make);
        let [Effect::Memory(memory)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((memory.op, memory.missed), (Op::Alloc, false));
        (memory.space.to_string(), memory.ptr, memory.size, memory.total_allocated.unwrap())
    }

    /// Makes the call and returns the frees it reports: pointer, bytes, total.
    pub fn frees(&mut self, make: Make) -> Vec<(u64, Option<u64>, u64)> {
        let inner = |effect: Effect| match effect {
            Effect::Memory(Memory { op: Op::Free, ptr, size, total_allocated, .. }) => {
                (ptr, size, total_allocated.unwrap())
            }
            other => panic!("{other:?}"),
        };
        self.make(make).into_iter().map(inner).collect()
    }

    /// Makes the call and returns the one copy or set it reports.
    pub fn moved(&mut self, make: Make) -> Transfer<'static> {
        let mut effects = self.make(make);
        assert_eq!(effects.len(), 1, "{effects:?}");
        let Some(Effect::Transfer(transfer)) = effects.pop() else { panic!() };
        transfer
    }
}

pub fn malloc(ptr: u64, size: u64) -> Make {
    call("cuMemAlloc_v2", &[0x10, size]).wrote(0, ptr)
}

pub fn words(words: &[(usize, u64)], bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for (at, word) in words {
        all[*at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    all
}
