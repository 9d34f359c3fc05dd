//! Compares the ledger with a map that does the same in the simplest way.

use std::collections::BTreeMap;

use super::*;
use crate::semantics::ledger::Ledger;
use gpurec_trace::Op;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// Live allocations, by pointer: their space and size.
#[derive(Default)]
struct Model(BTreeMap<u64, (usize, u64)>);

const ALLOCS: [(&str, &str, &str); 4] = [
    ("cuMemAlloc_v2", "cudaMalloc", "device"),
    ("cuMemAllocManaged", "cudaMallocManaged", "managed"),
    ("cuMemHostAlloc", "cudaHostAlloc", "host"),
    ("cuMemAllocAsync", "cudaMallocAsync", "pool"),
];

impl Model {
    fn total(&self, space: usize) -> u64 {
        self.0.values().filter(|(s, _)| *s == space).map(|(_, size)| size).sum()
    }
}

#[test]
fn a_thousand_random_programs() {
    for seed in 1..=1000 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut play = Play::new();
        let mut model = Model::default();
        for step in 0..60 {
            let ptr = 0x1000 + random.below(12) * 0x1000;
            let fails = random.below(5) == 0;
            let outer = random.below(2) == 0;
            let tid = 1 + random.below(3) as u32;
            let made = if random.below(2) == 0 {
                allocate(&mut play, &mut model, &mut random, ptr, fails, outer, tid)
            } else {
                release(&mut play, &mut model, ptr, fails, outer, tid)
            };
            assert!(made, "seed {seed} step {step}");
        }
    }
}

fn allocate(
    play: &mut Play,
    model: &mut Model,
    random: &mut Random,
    ptr: u64,
    fails: bool,
    outer: bool,
    tid: u32,
) -> bool {
    if model.0.contains_key(&ptr) {
        return true;
    }
    let space = random.below(4) as usize;
    let size = 1 + random.below(1 << 40);
    let (driver, runtime, name) = ALLOCS[space];
    let status = i32::from(fails) * 2;
    let make = |name| Make { status, ..call(name, &[0x10, size, 0]).wrote(0, ptr).on(tid) };
    let effects = if outer { play.nested(make(runtime), make(driver)) } else { play.make(make(driver)) };
    if fails {
        return effects.is_empty();
    }
    model.0.insert(ptr, (space, size));
    let [Effect::Memory(m)] = &effects[..] else { return false };
    (m.op, m.space.as_ref(), m.ptr, m.size, m.total_allocated)
        == (Op::Alloc, name, ptr, Some(size), Some(model.total(space)))
}

fn release(play: &mut Play, model: &mut Model, ptr: u64, fails: bool, outer: bool, tid: u32) -> bool {
    let status = i32::from(fails);
    let make = |name| Make { status, ..call(name, &[ptr, 0]).on(tid) };
    let effects = if outer {
        play.nested(make("cudaFree"), make("cuMemFree_v2"))
    } else {
        play.make(make("cuMemFreeAsync"))
    };
    let Some((space, size)) = model.0.get(&ptr).copied().filter(|_| !fails) else {
        return effects.is_empty();
    };
    model.0.remove(&ptr);
    let [Effect::Memory(m)] = &effects[..] else { return false };
    (m.op, m.ptr, m.size, m.total_allocated) == (Op::Free, ptr, Some(size), Some(model.total(space)))
}

/// Whatever calls come, in whatever order, the totals are the sums of what is held.
#[test]
fn totals_are_sums_whatever_comes() {
    use crate::traits::{Space, Table};
    let tables = [Table::Addresses, Table::Registered, Table::Arrays, Table::Handles];
    for seed in 1..200 {
        let mut random = Random(seed * 77_777);
        let mut ledger = Ledger::new(&gpurec_trace::bounds::Room::new(1000));
        let mut begun = Vec::new();
        for _ in 0..300 {
            let table = tables[random.below(4) as usize];
            let ptr = random.below(16);
            let by = ledger::By { tid: 1, id: random.below(100) };
            match random.below(9) {
                0..=2 => {
                    let space = Space::ALL[random.below(7) as usize];
                    let size = (random.below(8) > 0).then(|| random.below(u64::MAX));
                    let owner = ledger::Owner { context: (random.below(2) == 0).then_some(1), device: None };
                    ledger.alloc(table, ptr, ledger::Allocation::new(space, size, owner, by));
                }
                3 => begun.extend(ledger.begin_free(table, ptr, by, "f").map(|serial| (table, ptr, serial))),
                4 | 5 => {
                    if let Some((table, ptr, serial)) = begun.pop() {
                        match random.below(3) {
                            0 => ledger.cancel_free(table, ptr, serial),
                            _ => _ = ledger.free(table, ptr, serial),
                        }
                    }
                }
                6 => ledger.map(ptr, random.below(20), random.below(16)),
                7 => _ = ledger.unmap(ptr, random.below(20)),
                _ if random.below(20) == 0 => _ = ledger.end_of(true, |owner| owner.context == Some(1)),
                _ => ledger.retain(ptr),
            }
            for space in Space::ALL {
                let held = ledger.all().into_iter().filter(|(_, held)| held.space == space);
                let sum: u128 = held.map(|(_, held)| u128::from(held.size.unwrap_or(0))).sum();
                assert_eq!(ledger.total(space), u64::try_from(sum).unwrap_or(u64::MAX));
            }
        }
    }
}

#[test]
#[ignore = "a measurement, not a test: run it by hand in release"]
fn what_a_call_costs() {
    let mut play = Play::new();
    play.make(call("cuModuleGetFunction", &[0x10, 1, 2]).wrote(0, 0xf1).read(2, b"_Z5saxpyfPfS_\0"));
    play.make(call("__cudaRegisterFunction", &[1, 0x40, 2, 3]).read(3, b"_Z5saxpyfPfS_\0"));
    let outer = (Role::of("cudaLaunchKernel"), crate::signature("cudaLaunchKernel", None));
    let inner = (Role::of("cuLaunchKernel"), crate::signature("cuLaunchKernel", None));
    let copy = (Role::of("cuMemcpyHtoDAsync_v2"), crate::signature("cuMemcpyHtoDAsync_v2", None));
    let alloc = (Role::of("cuMemAlloc_v2"), crate::signature("cuMemAlloc_v2", None));
    let free = (Role::of("cuMemFree_v2"), crate::signature("cuMemFree_v2", None));
    let none = (Role::of("cudaGetDevice"), crate::signature("cudaGetDevice", None));
    let pointer = 0x7f00_0000u64.to_le_bytes();
    let wrote = [Piece::Bytes { bytes: &pointer, cut: false }];
    let mut out = Vec::new();
    let mut id = 1000;
    let mut one = |play: &mut Play,
                   what: &(Option<Role>, Option<&'static Signature>),
                   registers: [u64; 6],
                   reads: &[Piece]| {
        id += 1;
        let call = CallRef { pid: 7, tid: 1, id };
        let entry = Entry { registers, stack: &[1, 1, 0, 0, 0, 0], reads: &[] };
        let noted = play.meaning.begin(what.0.as_ref(), what.1, &call, &entry);
        std::hint::black_box(noted.launch());
        out.clear();
        play.meaning.end(what.0.as_ref(), what.1, &call, &Exit { reads }, 0, 1, &mut out);
        std::hint::black_box(&out);
    };
    const N: u32 = 500_000;
    let time = |name: &str, each: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        (0..N).for_each(|_| each());
        println!("{name}: {} ns", start.elapsed().as_nanos() / u128::from(N));
    };
    time("none", &mut || one(&mut play, &none, [1; 6], &[]));
    time("driver launch", &mut || one(&mut play, &inner, [0xf1, 1, 1, 1, 256, 1], &[]));
    time("runtime launch", &mut || one(&mut play, &outer, [0x40, 1, 1, 1, 256, 1], &[]));
    time("copy", &mut || one(&mut play, &copy, [0x7f00_0000, 0x55, 64, 0, 0, 0], &[]));
    time("alloc and free", &mut || {
        one(&mut play, &alloc, [0x10, 64, 0, 0, 0, 0], &wrote);
        one(&mut play, &free, [0x7f00_0000, 0, 0, 0, 0, 0], &[]);
    });
}

/// A program may allocate without limit: allocations beyond the bound are neither in the totals nor attributed to
/// others.
#[test]
fn live_allocations_are_bounded_over_all_ledgers() {
    use crate::traits::{Space, Table};
    let room = gpurec_trace::bounds::Room::new(100);
    let (mut one, mut other) = (Ledger::new(&room), Ledger::new(&room));
    use crate::semantics::ledger;
    let by = ledger::By { tid: 1, id: 1 };
    let held = || ledger::Allocation::new(Space::Device, Some(8), ledger::Owner::default(), by);
    for ptr in 0..80 {
        one.alloc(Table::Addresses, ptr, held());
        other.alloc(Table::Addresses, ptr, held());
    }
    assert_eq!((one.total(Space::Device), other.total(Space::Device), room.refused()), (400, 400, 60));
    assert_eq!(one.begin_free(Table::Addresses, 79, by, "f"), None);
    drop(other);
    for ptr in 50..100 {
        one.alloc(Table::Addresses, ptr, held());
    }
    assert_eq!((one.total(Space::Device), room.refused()), (800, 60), "there is room again");
}

/// The ledger stops tracking a program that keeps ending contexts while it holds very much.
#[test]
fn contexts_that_end_without_end_are_not_searched_for_without_end() {
    use crate::semantics::{ledger, ledger::Owner};
    use crate::traits::{Space, Table};
    const HELD: usize = 5000;
    let room = gpurec_trace::bounds::Room::new(2 * HELD);
    let mut ledger = Ledger::new(&room);
    let by = ledger::By { tid: 1, id: 1 };
    let owner = Owner { context: Some(1), device: None };
    let hold = |ledger: &mut Ledger| {
        for ptr in 0..HELD as u64 {
            ledger.alloc(Table::Addresses, ptr, ledger::Allocation::new(Space::Device, Some(8), owner, by));
        }
    };
    hold(&mut ledger);
    let ends = (0..100_000).take_while(|_| {
        assert!(ledger.end_of(false, |owner| owner.context == Some(2)).is_empty());
        ledger.total(Space::Device) > 0
    });
    let ends = ends.count();
    assert!((10_000..20_000).contains(&ends), "{ends}");
    assert_eq!(room.refused(), HELD);
    hold(&mut ledger);
    assert_eq!((ledger.total(Space::Device), room.refused()), (8 * HELD as u64, HELD), "there is room again");
}
