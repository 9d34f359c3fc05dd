use super::*;

const DEV: u64 = 0x7f00_0000_0000;
const PINNED: u64 = 0x7e00_0000_0000;
const HEAP: u64 = 0x5500_0000_0000;
const MANAGED: u64 = 0x7d00_0000_0000;

/// A process with 4 kB of each kind of memory.
fn stocked() -> Play {
    let mut play = Play::new();
    play.make(malloc(DEV, 4096));
    play.make(call("cuMemHostAlloc", &[0x10, 4096, 0]).wrote(0, PINNED));
    play.make(call("cuMemAllocManaged", &[0x10, 4096, 1]).wrote(0, MANAGED));
    play
}

#[test]
fn directions_by_function_and_by_kind() {
    let cases = [
        (call("cuMemcpyHtoD_v2", &[DEV, HEAP, 10]), "H2D", 10, false),
        (call("cuMemcpyHtoDAsync_v2_ptsz", &[DEV, HEAP, 10, 0]), "H2D", 10, true),
        (call("cuMemcpyDtoH_v2", &[HEAP, DEV, 11]), "D2H", 11, false),
        (call("cuMemcpyDtoHAsync_v2", &[HEAP, DEV, 11, 0]), "D2H", 11, true),
        (call("cuMemcpyDtoDAsync_v2", &[DEV, DEV, 12, 0]), "D2D", 12, true),
        (call("cuMemcpyPeerAsync", &[DEV, 1, DEV, 2, 13, 0]), "P2P", 13, true),
        (call("cuMemcpyHtoA_v2", &[1, 0, HEAP, 14]), "H2D", 14, false),
        (call("cuMemcpyAtoH_v2", &[HEAP, 1, 0, 15]), "D2H", 15, false),
        (call("cudaMemcpy", &[DEV, HEAP, 16, 1]), "H2D", 16, false),
        (call("cudaMemcpy", &[HEAP, DEV, 17, 2]), "D2H", 17, false),
        (call("cudaMemcpy", &[HEAP, HEAP, 18, 0]), "H2H", 18, false),
        (call("cudaMemcpy2D", &[DEV, 0, HEAP, 0, 100, 4, 1]), "H2D", 400, false),
        (call("cudaMemcpy2DAsync", &[HEAP, 0, DEV, 0, 100, 4, 2, 0]), "D2H", 400, true),
        (call("cudaMemcpy2DToArray", &[1, 0, 0, HEAP, 0, 10, 5, 1]), "H2D", 50, false),
        (call("cudaMemcpyToSymbol", &[1, HEAP, 19, 0, 1]), "H2D", 19, false),
        (call("cudaMemcpyToSymbolAsync", &[1, HEAP, 19, 0, 4, 0]), "H2D", 19, true),
        (call("cudaMemcpyFromSymbol", &[HEAP, 1, 20, 0, 4]), "D2H", 20, false),
        (call("cudaMemset", &[DEV, 0, 21]), "set", 21, true),
        (call("cuMemsetD32_v2", &[DEV, 0, 22]), "set", 88, true),
        (call("cuMemsetD16Async", &[DEV, 0, 22, 0]), "set", 44, true),
        (call("cuMemsetD2D8Async", &[DEV, 64, 0, 10, 4, 0]), "set", 40, true),
        (call("cuMemsetD2D32_v2", &[DEV, 64, 0, 10, 4]), "set", 160, true),
        (call("cudaMemset2D", &[DEV, 64, 0, 10, 4]), "set", 40, true),
    ];
    for (make, direction, size, is_async) in cases {
        let name = make.name;
        let inner = stocked().moved(make);
        assert_eq!(
            (inner.direction.as_ref(), inner.size, inner.is_async),
            (direction, size, is_async),
            "{name}"
        );
        assert_eq!(inner.duration_ns, (!is_async).then_some(1000), "{name}");
    }
}

#[test]
fn directions_by_what_the_pointers_are() {
    let cases = [
        (DEV, HEAP, "H2D", true),
        (DEV + 4095, PINNED + 100, "H2D", false),
        (HEAP, DEV, "D2H", true),
        (PINNED, MANAGED, "D2H", false),
        (DEV, MANAGED, "D2D", false),
        (HEAP, PINNED, "H2H", false),
        (DEV + 4096, DEV, "D2H", true),
    ];
    for (dst, src, direction, pageable) in cases {
        for make in [call("cuMemcpy", &[dst, src, 8]), call("cudaMemcpy", &[dst, src, 8, 4])] {
            let inner = stocked().moved(make);
            assert_eq!(
                (inner.direction.as_ref(), inner.pageable),
                (direction, pageable),
                "{dst:#x} {src:#x}"
            );
        }
    }
    // Memory from before the recording is unknown.
    let inner = Play::late(Box::new(())).moved(call("cuMemcpy", &[DEV, HEAP, 8]));
    assert_eq!((inner.direction.as_ref(), inner.pageable, inner.duration_ns), ("unknown", false, None));
    // Two devices.
    let mut play = Play::new();
    for (device, context, ptr) in [(0, 0xc0, 0x10_0000), (1, 0xc1, 0x20_0000)] {
        play.make(call("cuCtxCreate_v2", &[0x10, 0, device]).wrote(0, context));
        play.make(malloc(ptr, 64));
    }
    assert_eq!(play.moved(call("cuMemcpyDtoDAsync_v2", &[0x10_0000, 0x20_0000, 8, 0])).direction, "P2P");
    // Mapped memory and variables of modules.
    play.make(call("cuMemMap", &[0x90_0000, 0x1000, 0, 5, 0]));
    assert_eq!(play.moved(call("cuMemcpy", &[0x90_0800, HEAP, 8])).direction, "H2D");
    play.make(call("cuMemUnmap", &[0x90_0000, 0x1000]));
    assert_eq!(play.moved(call("cuMemcpy", &[0x90_0800, HEAP, 8])).direction, "H2H");
    play.make(call("cuModuleGetGlobal_v2", &[0x10, 0x18, 1, 2]).wrote(0, 0xa0_0000).wrote(1, 64));
    assert_eq!(play.moved(call("cuMemcpy", &[HEAP, 0xa0_0020, 8])).direction, "D2H");
    // One of unknown size, which cuBLAS asks for: what lies behind it is unknown, but no host memory.
    play.make(call("cuLibraryGetGlobal", &[0x10, 0, 1, 2]).wrote(0, 0xb0_0000));
    let inner = play.moved(call("cuMemcpy", &[DEV, HEAP, 8]));
    assert_eq!((inner.direction.as_ref(), inner.pageable), ("unknown", false));
    let inner = play.moved(call("cuMemcpyHtoDAsync_v2", &[DEV, HEAP, 8, 0]));
    assert_eq!((inner.direction.as_ref(), inner.pageable), ("H2D", true));
    // Memory of unknown size that the host may see.
    play.make(call("cuLibraryGetManaged", &[0x10, 0x18, 1, 2]).wrote(0, 0xc0_0000).wrote(1, 8));
    assert!(!play.moved(call("cuMemcpyHtoDAsync_v2", &[DEV, HEAP, 8, 0])).pageable);
}

#[test]
fn structures_tell_bytes_and_direction() {
    let rows = words(&[(16, 1), (24, HEAP), (72, 2), (88, DEV), (112, 100), (120, 7)], 128);
    let inner = stocked().moved(call("cuMemcpy2D_v2", &[0x10]).read(0, &rows));
    assert_eq!((inner.direction.as_ref(), inner.size, inner.pageable), ("H2D", 700, true));
    let mut volume =
        words(&[(32, 2), (48, DEV), (120, 4), (136, PINNED), (176, 10), (184, 20), (192, 3)], 200);
    let inner = stocked().moved(call("cuMemcpy3DAsync_v2", &[0x10, 0]).read(0, &volume));
    assert_eq!((inner.direction.as_ref(), inner.size, inner.is_async), ("D2H", 600, true));
    let inner = stocked().moved(call("cuMemcpy3DPeer", &[0x10]).read(0, &volume));
    assert_eq!((inner.direction.as_ref(), inner.size, inner.is_async), ("P2P", 600, true));
    volume.truncate(100);
    assert!(stocked().make(call("cuMemcpy3D_v2", &[0x10]).read(0, &volume)).is_empty(), "cut");
    // An array's width is in elements.
    let mut play = stocked();
    let channels = words(&[(0, 32 | 32 << 32), (8, 32 | 32 << 32)], 20);
    play.make(call("cudaMallocArray", &[0x10, 0x20, 64, 64, 0]).wrote(0, 0xaaaa).read(1, &channels));
    let parms = words(&[(32, HEAP), (64, 0xaaaa), (128, 64), (136, 64), (144, 1), (152, 1)], 160);
    let inner = play.moved(call("cudaMemcpy3D", &[0x10]).read(0, &parms));
    assert_eq!((inner.direction.as_ref(), inner.size), ("H2D", 64 * 64 * 16));
}

#[test]
fn batches_are_summed_by_direction() {
    let list = |of: &[u64]| of.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let batch = |count, cut| Make {
        cut,
        ..call("cuMemcpyBatchAsync_v2", &[1, 2, 3, count, 0, 0, 0, 0])
            .read(0, &list(&[DEV, DEV, HEAP]))
            .read(1, &list(&[HEAP, PINNED, DEV]))
            .read(2, &list(&[100, 20, 3]))
    };
    let inner: Vec<(String, u64, bool, bool)> = stocked()
        .make(batch(3, false))
        .into_iter()
        .map(|effect| match effect {
            Effect::Transfer(t) => (t.direction.to_string(), t.size, t.partial, t.pageable),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inner, [("H2D".to_string(), 120, false, true), ("D2H".to_string(), 3, false, true)]);
    let Effect::Transfer(cut) = &stocked().make(batch(1000, true))[0] else { panic!() };
    assert!(cut.partial);
}

#[test]
fn a_copy_counts_once_and_only_if_it_succeeded() {
    let mut play = stocked();
    let effects = play.nested(
        call("cudaMemcpy", &[DEV, HEAP, 64, 1]).took(9000),
        call("cuMemcpyHtoD_v2", &[DEV, HEAP, 64]).took(8000),
    );
    let [Effect::Transfer(inner)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((inner.name.as_ref(), inner.duration_ns), ("cuMemcpyHtoD_v2", Some(8000)));
    assert_eq!(inner.bytes_per_sec(), Some(8_000_000));
    assert!(play.make(call("cudaMemcpy", &[DEV, HEAP, 64, 1]).failed()).is_empty());
    // A runtime copy that makes two driver copies.
    let outer = play.begin(call("cudaMemcpy", &[DEV, HEAP, 64, 1]));
    assert_eq!(play.make(call("cuMemcpyHtoD_v2", &[DEV, HEAP, 32])).len(), 1);
    assert_eq!(play.make(call("cuMemcpyHtoD_v2", &[DEV, HEAP, 32])).len(), 1);
    assert!(play.end(outer).is_empty());
    // A copy inside a set does not suppress the set.
    let effects = play.nested(call("cudaMemset", &[DEV, 0, 8]), call("cuMemcpyHtoD_v2", &[DEV, HEAP, 8]));
    assert_eq!(effects.len(), 2);
    let inner = play.moved(call("cudaMemcpy", &[DEV, HEAP, u64::MAX, 1]).took(1));
    assert_eq!((inner.size, inner.bytes_per_sec()), (u64::MAX, None));
    let huge = call("cudaMemcpy2D", &[DEV, 0, HEAP, 0, u64::MAX, u64::MAX, 1]);
    assert_eq!(play.moved(huge).size, u64::MAX);
}

#[test]
fn what_was_not_seen_is_not_concluded_from() {
    let unseen = [
        call("cudaGetSymbolAddress", &[0x10, 1]).wrote(0, 0x99),
        call("cuGraphAddMemAllocNode", &[0x10, 1, 0, 0, 0]),
        call("cudaHostGetDevicePointer", &[0x10, PINNED, 0]).wrote(0, 0x99),
        call("cuExternalMemoryGetMappedBuffer", &[0x10, 1, 0]).wrote(0, 0x99),
    ];
    let after = |play: &mut Play| play.moved(call("cuMemcpy", &[HEAP, DEV, 8])).direction.into_owned();
    for make in unseen {
        let mut play = stocked();
        assert_eq!(after(&mut play), "D2H");
        play.make(make);
        assert_eq!(after(&mut play), "unknown");
    }
    let mut play = stocked();
    play.make(call("cudaHostGetDevicePointer", &[0x10, PINNED, 0]).wrote(0, PINNED));
    assert_eq!(after(&mut play), "D2H", "the same address says nothing new");
    let begun = play.begin(malloc(DEV + 0x10_0000, 64));
    play.forget(begun);
    assert_eq!(after(&mut play), "unknown");
    let mut play = stocked();
    play.meaning.calls_missing();
    assert_eq!(after(&mut play), "unknown");
    play.meaning.process_execed(7);
    assert_eq!(after(&mut play), "unknown");
}
