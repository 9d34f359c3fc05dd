use super::*;

const DEV: u64 = 0x7f00_0000_0000;

#[test]
fn every_family_is_counted_in_its_space_and_freed() {
    let cases = [
        (malloc(DEV, 100), "device", Some(100), "cuMemFree_v2"),
        (call("cudaMalloc", &[0x10, 200]).wrote(0, DEV), "device", Some(200), "cudaFree"),
        (
            call("cuMemAllocPitch_v2", &[0x10, 0x18, 100, 4, 4]).wrote(0, DEV).wrote(1, 512),
            "device",
            Some(2048),
            "cuMemFree_v2",
        ),
        (call("cuMemAllocManaged", &[0x10, 300, 1]).wrote(0, DEV), "managed", Some(300), "cuMemFree_v2"),
        (call("cuMemAllocHost_v2", &[0x10, 400]).wrote(0, DEV), "host", Some(400), "cuMemFreeHost"),
        (call("cuMemHostAlloc", &[0x10, 500, 0]).wrote(0, DEV), "host", Some(500), "cuMemFreeHost"),
        (call("cuMemHostRegister_v2", &[0x5000, 600, 0]), "host", Some(600), "cuMemHostUnregister"),
        (
            call("cuMemAllocAsync_ptsz", &[0x10, 700, 0]).wrote(0, DEV),
            "pool",
            Some(700),
            "cuMemFreeAsync_ptsz",
        ),
        (
            call("cuMemAllocFromPoolAsync", &[0x10, 800, 9, 0]).wrote(0, DEV),
            "pool",
            Some(800),
            "cuMemFreeAsync",
        ),
        (call("cuMemCreate", &[0x10, 900, 0x20, 0]).wrote(0, 0xabc), "virtual", Some(900), "cuMemRelease"),
        (call("cuIpcOpenMemHandle_v2", &[0x10, 0, 1]).wrote(0, DEV), "ipc", None, "cuIpcCloseMemHandle"),
        (
            call("cuArrayCreate_v2", &[0x10, 0x20])
                .wrote(0, 0xdef)
                .read(1, &words(&[(0, 64), (8, 32), (16, 0x4_0000_0020)], 24)),
            "array",
            Some(64 * 32 * 16),
            "cuArrayDestroy",
        ),
        (
            call("cuArray3DCreate_v2", &[0x10, 0x20])
                .wrote(0, 0xdef)
                .read(1, &words(&[(0, 64), (8, 0), (16, 3), (24, 0x2_0000_0010)], 40)),
            "array",
            Some(64 * 3 * 4),
            "cuArrayDestroy",
        ),
        (
            call("cuMipmappedArrayCreate", &[0x10, 0x20, 2])
                .wrote(0, 0xdef)
                .read(1, &words(&[(0, 8), (8, 8), (16, 0), (24, 0x1_0000_0001)], 40)),
            "array",
            Some(64 + 16),
            "cuMipmappedArrayDestroy",
        ),
        (
            call("cudaMallocArray", &[0x10, 0x20, 10, 0, 0])
                .wrote(0, 0xdef)
                .read(1, &words(&[(0, 32 | 32 << 32)], 20)),
            "array",
            Some(80),
            "cudaFreeArray",
        ),
    ];
    for (make, space, size, free) in cases {
        let mut play = Play::new();
        let name = make.name;
        let (space_known, ptr, inner, total) = play.alloc(make);
        assert_eq!((space_known.as_str(), inner, total), (space, size, size.unwrap_or(0)), "{name}");
        assert_eq!(play.frees(call(free, &[ptr])), [(ptr, size, 0)], "{name} {free}");
        assert!(play.make(call(free, &[ptr])).is_empty(), "{free} twice");
    }
}

#[test]
fn a_pitched_volume_counts_with_its_pitch() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let mut play = Play::new();
    let pitched = words(&[(0, DEV), (8, 512), (16, 100), (24, 4)], 32);
    let make = call("cudaMalloc3D", &[0x10]).stack(&[100, 4, 2]).wrote_bytes(0, &pitched);
    assert_eq!(play.alloc(make), ("device".into(), DEV, Some(512 * 8), 4096));
}

#[test]
fn a_runtime_call_and_its_driver_call_are_one() {
    let pairs = [
        (call("cudaMalloc", &[0x10, 64]), malloc(DEV, 64), "cudaFree", "cuMemFree_v2"),
        (
            call("cudaMallocHost", &[0x10, 64]),
            call("cuMemHostAlloc", &[0x10, 64, 0]).wrote(0, DEV),
            "cudaFreeHost",
            "cuMemFreeHost",
        ),
        (
            call("cudaMallocAsync", &[0x10, 64, 0]),
            call("cuMemAllocAsync", &[0x10, 64, 0]).wrote(0, DEV),
            "cudaFreeAsync",
            "cuMemFreeAsync",
        ),
        // The driver rounds up the size that the program asked the runtime for.
        (
            call("cudaMallocManaged", &[0x10, 60, 1]),
            call("cuMemAllocManaged", &[0x10, 64, 1]).wrote(0, DEV),
            "cudaFree",
            "cuMemFree_v2",
        ),
    ];
    for (outer, inner, free, inner_free) in pairs {
        let mut play = Play::new();
        let (name, inner_name) = (outer.name, inner.name);
        let effects = play.nested(outer.wrote(0, DEV), inner);
        let [Effect::Memory(memory)] = &effects[..] else { panic!("{name}: {effects:?}") };
        assert_eq!((memory.name.as_ref(), memory.total_allocated), (inner_name, Some(64)));
        let effects = play.nested(call(free, &[DEV]), call(inner_free, &[DEV]));
        let [Effect::Memory(memory)] = &effects[..] else { panic!("{name}: {effects:?}") };
        assert_eq!(
            (memory.name.as_ref(), memory.size, memory.total_allocated),
            (inner_free, Some(64), Some(0))
        );
    }
}

#[test]
fn what_failed_or_never_returned_did_nothing() {
    let mut play = Play::new();
    assert!(play.make(malloc(DEV, 64).failed()).is_empty());
    play.alloc(malloc(DEV, 64));
    assert!(play.make(call("cuMemFree_v2", &[DEV]).failed()).is_empty());
    let begun = play.begin(call("cuMemFree_v2", &[DEV]));
    play.forget(begun);
    let begun = play.begin(malloc(DEV + 64, 64));
    play.forget(begun);
    assert_eq!(play.frees(call("cuMemFree_v2", &[DEV])), [(DEV, Some(64), 0)]);
    // The driver's call failed, and so did the runtime's.
    let effects = play.nested(call("cudaMalloc", &[0x10, 1]).failed(), malloc(DEV, 1).failed());
    assert!(effects.is_empty());
}

#[test]
fn null_unknown_and_repeated_frees_tell_nothing() {
    let mut play = Play::new();
    for name in ["cudaFree", "cuMemFree_v2", "cuMemRelease", "cudaFreeArray", "cuMemHostUnregister"] {
        assert!(play.make(call(name, &[0])).is_empty());
        assert!(play.make(call(name, &[0xdead_beef])).is_empty());
        assert!(play.make(call(name, &[u64::MAX])).is_empty());
    }
    assert!(play.make(malloc(0, 0)).is_empty(), "cudaMalloc of nothing gives null");
    let mut without = malloc(DEV, 64);
    without.wrote.clear();
    assert!(play.make(without).is_empty(), "the pointer could not be read");
}

#[test]
fn sizes_near_the_end_do_not_overflow() {
    let mut play = Play::new();
    assert_eq!(play.alloc(malloc(DEV, u64::MAX)).3, u64::MAX);
    assert_eq!(play.alloc(malloc(u64::MAX, u64::MAX)).3, u64::MAX);
    let pitch = call("cudaMallocPitch", &[0, 0, u64::MAX, u64::MAX]).wrote(0, 8).wrote(1, u64::MAX);
    assert_eq!(play.alloc(pitch).2, Some(u64::MAX));
    assert_eq!(play.frees(call("cuMemFree_v2", &[8])), [(8, Some(u64::MAX), u64::MAX)]);
    assert_eq!(play.frees(call("cuMemFree_v2", &[u64::MAX])), [(u64::MAX, Some(u64::MAX), u64::MAX)]);
    assert_eq!(play.frees(call("cuMemFree_v2", &[DEV])), [(DEV, Some(u64::MAX), 0)]);
    assert!(play.make(call("cuMemUnmap", &[u64::MAX, u64::MAX])).is_empty());
}

#[test]
fn another_thread_may_free_it() {
    let mut play = Play::new();
    play.alloc(malloc(DEV, 64).on(1));
    assert_eq!(play.frees(call("cuMemFree_v2", &[DEV]).on(2)), [(DEV, Some(64), 0)]);
}

#[test]
fn an_address_given_out_again_while_its_free_returns() {
    let mut play = Play::new();
    play.alloc(malloc(DEV, 64));
    let outer = play.begin(call("cudaFree", &[DEV]).on(2));
    let freeing = play.begin(call("cuMemFree_v2", &[DEV]).on(2));
    let id = freeing.call.id;
    let effects = play.make(malloc(DEV, 100).on(1));
    let [Effect::Memory(free), Effect::Memory(alloc)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((free.op, free.begin, free.tid, free.size), (Op::Free, Some(id), 2, Some(64)));
    assert_eq!((free.name.as_ref(), free.missed, free.total_allocated), ("cuMemFree_v2", false, Some(0)));
    assert_eq!((alloc.op, alloc.size, alloc.total_allocated), (Op::Alloc, Some(100), Some(100)));
    assert!(play.end(freeing).is_empty() && play.end(outer).is_empty());
    assert_eq!(play.frees(call("cuMemFree_v2", &[DEV])), [(DEV, Some(100), 0)]);
}

#[test]
fn a_free_that_was_lost_is_reported_as_missed() {
    let mut play = Play::new();
    play.alloc(malloc(DEV, 64));
    let effects = play.make(malloc(DEV, 64));
    let [Effect::Memory(free), Effect::Memory(_)] = &effects[..] else { panic!("{effects:?}") };
    assert!(free.missed && free.op == Op::Free);
}

#[test]
fn expandable_segments_count_their_physical_bytes() {
    let mut play = Play::new();
    assert!(play.make(call("cuMemAddressReserve", &[0x10, 1 << 30, 0, 0, 0]).wrote(0, DEV)).is_empty());
    for i in 0..3 {
        let made = play.alloc(call("cuMemCreate", &[0x10, 2 << 20, 0, 0]).wrote(0, 100 + i));
        assert_eq!(made, ("virtual".into(), 100 + i, Some(2 << 20), (i + 1) * (2 << 20)));
        assert!(play.make(call("cuMemMap", &[DEV + i * (2 << 20), 2 << 20, 0, 100 + i, 0])).is_empty());
    }
    // As PyTorch does it: unmap, then release.
    assert!(play.make(call("cuMemUnmap", &[DEV, 2 << 20])).is_empty());
    assert_eq!(play.frees(call("cuMemRelease", &[100])), [(100, Some(2 << 20), 4 << 20)]);
    // As the programming guide does it: the mapping keeps the bytes.
    assert!(play.make(call("cuMemRelease", &[101])).is_empty());
    assert_eq!(play.frees(call("cuMemUnmap", &[DEV, 1 << 30])), [(101, Some(2 << 20), 2 << 20)]);
    // As NCCL does it: retained by address, then released twice.
    assert!(play.make(call("cuMemRetainAllocationHandle", &[0x10, DEV]).wrote(0, 102)).is_empty());
    assert!(play.make(call("cuMemRelease", &[102])).is_empty());
    assert_eq!(play.frees(call("cuMemRelease", &[102])), [(102, Some(2 << 20), 0)]);
}

#[test]
fn an_ipc_handle_opened_twice_is_closed_twice() {
    let mut play = Play::new();
    let open = || call("cudaIpcOpenMemHandle", &[0x10]).wrote(0, DEV);
    assert_eq!(play.alloc(open()), ("ipc".into(), DEV, None, 0));
    assert!(play.make(open()).is_empty());
    assert!(play.make(call("cudaIpcCloseMemHandle", &[DEV])).is_empty());
    assert_eq!(play.frees(call("cudaIpcCloseMemHandle", &[DEV])), [(DEV, None, 0)]);
}

#[test]
fn a_context_takes_its_memory_with_it() {
    let mut play = Play::new();
    play.make(call("cuCtxCreate_v2", &[0x10, 0, 0]).wrote(0, 0xc1));
    play.alloc(malloc(DEV, 1));
    play.alloc(call("cuMemHostAlloc", &[0x10, 2, 0]).wrote(0, DEV + 0x1000));
    play.alloc(call("cuMemCreate", &[0x10, 3, 0, 0]).wrote(0, 5));
    play.alloc(call("cuMemAllocAsync", &[0x10, 4, 0]).wrote(0, DEV + 0x2000));
    play.make(call("cuCtxCreate_v4", &[0x10, 0, 0, 1]).wrote(0, 0xc2));
    play.alloc(malloc(DEV + 0x3000, 5));
    // Another thread, with the first context again.
    play.make(call("cuCtxSetCurrent", &[0xc1]).on(2));
    play.alloc(malloc(DEV + 0x4000, 6).on(2));
    let freed = play.frees(call("cuCtxDestroy_v2", &[0xc1]));
    assert_eq!(freed, [(DEV, Some(1), 11), (DEV + 0x1000, Some(2), 0), (DEV + 0x4000, Some(6), 5)]);
    assert_eq!(play.frees(call("cuCtxDestroy_v2", &[0xc2])), [(DEV + 0x3000, Some(5), 0)]);
    assert_eq!(play.frees(call("cuMemRelease", &[5])), [(5, Some(3), 0)]);
}

#[test]
fn a_reset_takes_what_the_device_holds_once() {
    let mut play = Play::new();
    play.make(call("cuDevicePrimaryCtxRetain", &[0x10, 0]).wrote(0, 0xc0));
    play.make(call("cuDevicePrimaryCtxRetain", &[0x10, 1]).wrote(0, 0xc1));
    play.make(call("cuCtxSetCurrent", &[0xc0]));
    play.alloc(malloc(DEV, 1));
    play.make(call("cuCtxSetCurrent", &[0xc1]));
    play.alloc(malloc(DEV + 0x1000, 2));
    let effects = play.nested(call("cudaDeviceReset", &[]), call("cuDevicePrimaryCtxReset_v2", &[1]));
    let [Effect::Memory(memory)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((memory.ptr, memory.name.as_ref()), (DEV + 0x1000, "cuDevicePrimaryCtxReset_v2"));
    assert_eq!(play.frees(call("cuDevicePrimaryCtxRelease_v2", &[0])), [(DEV, Some(1), 0)]);
}

#[test]
fn a_reset_that_only_the_runtime_shows() {
    let mut play = Play::new();
    play.alloc(call("cudaMalloc", &[0x10, 1]).wrote(0, DEV));
    play.make(call("cudaSetDevice", &[1]).on(2));
    play.alloc(call("cudaMalloc", &[0x10, 2]).wrote(0, DEV + 8).on(2));
    assert_eq!(play.frees(call("cudaDeviceReset", &[]).on(2)).len(), 2, "nothing else is known");
    play.make(call("cudaSetDevice", &[0]));
    play.alloc(call("cudaMalloc", &[0x10, 1]).wrote(0, DEV));
    play.alloc(call("cudaMalloc", &[0x10, 2]).wrote(0, DEV + 8).on(2));
    assert_eq!(play.frees(call("cudaDeviceReset", &[]).on(2)), [(DEV + 8, Some(2), 1)]);
}

#[test]
fn a_release_of_a_context_retained_before_us_means_nothing() {
    let mut play = Play::late(Box::new(()));
    play.make(call("cuDevicePrimaryCtxRetain", &[0x10, 0]).wrote(0, 0xc0));
    let effects = play.make(malloc(DEV, 1));
    let [Effect::Memory(Memory { op: Op::Alloc, total_allocated: None, .. })] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(play.make(call("cuDevicePrimaryCtxRelease_v2", &[0])).is_empty());
}

#[test]
fn processes_have_ledgers_of_their_own() {
    let mut play = Play::new();
    play.alloc(malloc(DEV, 64));
    play.meaning.process_forked(7, 8);
    play.pid = 8;
    assert_eq!(play.alloc(malloc(DEV, 10)).3, 10, "CUDA does not survive a fork");
    play.meaning.process_execed(8);
    assert!(play.make(call("cuMemFree_v2", &[DEV])).is_empty());
    play.pid = 7;
    assert_eq!(play.frees(call("cuMemFree_v2", &[DEV])), [(DEV, Some(64), 0)]);
    play.alloc(malloc(DEV, 64));
    play.meaning.process_exited(7);
    play.meaning.process_execed(7);
    assert_eq!(play.alloc(malloc(DEV, 1)).3, 1);
}

/// What a process held before the recording is unknown: no total, and each of its frees is marked as such once.
#[test]
fn memory_from_before_the_recording() {
    let mut play = Play::late(Box::new(()));
    let earlier = |effects: Vec<Effect>| match &effects[..] {
        [] => None,
        [Effect::Memory(memory)] => {
            assert_eq!((memory.op, memory.size, memory.total_allocated), (Op::Free, None, None));
            assert!(memory.earlier && !memory.missed);
            Some((memory.name.to_string(), memory.space.to_string(), memory.ptr))
        }
        other => panic!("{other:?}"),
    };
    let inner = |name: &str, space: &str| Some((name.to_owned(), space.to_owned(), DEV));
    let free = |name| call(name, &[DEV]);
    assert_eq!(
        earlier(play.nested(free("cudaFree"), free("cuMemFree_v2"))),
        inner("cuMemFree_v2", "unknown")
    );
    assert_eq!(earlier(play.make(free("cuMemFreeHost"))), inner("cuMemFreeHost", "host"));
    assert_eq!(earlier(play.make(free("cudaFreeAsync"))), inner("cudaFreeAsync", "pool"));
    assert_eq!(earlier(play.make(call("cudaFree", &[0]))), None, "nothing is freed");
    assert_eq!(earlier(play.make(free("cuMemFree_v2").failed())), None);
    // Memory allocated during the recording is known.
    play.make(malloc(DEV, 64));
    let effects = play.make(free("cuMemFree_v2"));
    let [Effect::Memory(memory)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((memory.size, memory.earlier, memory.total_allocated), (Some(64), false, None));
    // If a filter leaves out allocations, unknown memory need not be from before the recording.
    play.meaning.memory_missing();
    assert_eq!(earlier(play.make(free("cuMemFree_v2"))), None);
}

#[test]
fn what_goes_into_a_graph_is_not_done_yet() {
    let mut play = Play::new();
    let on = |stream| call("cuMemAllocAsync", &[0x10, 64, stream]).wrote(0, DEV);
    play.make(call("cuStreamBeginCapture_v2", &[0x51, 0]));
    assert!(play.make(on(0x51)).is_empty());
    assert_eq!(play.make(on(0x52)).len(), 1);
    play.make(call("cuStreamEndCapture", &[0x51, 0x10]));
    play.make(call("cuMemFreeAsync", &[DEV, 0]));
    assert_eq!(play.make(on(0x51)).len(), 1);
}

#[test]
fn without_a_signature_registers_are_enough_for_frees_only() {
    let mut meaning = Meaning::new(Box::new(()));
    let role = Role::of("cuMemAlloc_v2");
    let call = CallRef { pid: 1, tid: 1, id: 1 };
    let entry = Entry { registers: [16, 64, 0, 0, 0, 0], stack: &[], reads: &[] };
    let mut out = Vec::new();
    meaning.begin(role.as_ref(), None, &call, &entry);
    meaning.end(role.as_ref(), None, &call, &Exit { reads: &[] }, 0, 1, &mut out);
    assert!(out.is_empty());
}
