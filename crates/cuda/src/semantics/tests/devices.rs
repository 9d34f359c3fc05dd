//! The device and context in lines: after sequences of calls, which lines must have them and which must not.

use super::*;
use gpurec_trace::Where;

const DEV: u64 = 0x7f00_0000_0000;
const NOWHERE: Where = Where { device: None, context: None };

fn on(device: u32, context: u64) -> Where {
    Where { device: Some(device), context: Some(context) }
}

fn only(device: u32) -> Where {
    Where { device: Some(device), context: None }
}

fn set(context: u64) -> Make {
    call("cuCtxSetCurrent", &[context])
}

fn retain(device: u64, context: u64) -> Make {
    call("cuDevicePrimaryCtxRetain", &[0x10, device]).wrote(0, context)
}

fn launch(stream: u64) -> Make {
    call("cuLaunchKernel", &[0xf, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0])
}

fn runtime_launch(stream: u64) -> Make {
    call("cudaLaunchKernel", &[0xf, dim(1, 1, 1), dim(1, 1, 1), 0, 0, stream])
}

fn copy(stream: u64) -> Make {
    call("cuMemcpyHtoDAsync_v2", &[DEV, 0x5000, 8, stream])
}

impl Play {
    fn launched(&mut self, make: Make) -> Where {
        let begun = self.begin(make);
        let on = begun.noted.launch().unwrap().on;
        self.end(begun);
        on
    }

    fn inner(&mut self, make: Make) -> Where {
        match &self.make(make)[..] {
            [Effect::Memory(memory)] => memory.on,
            [Effect::Transfer(transfer)] => transfer.on,
            other => panic!("{other:?}"),
        }
    }

    /// Two devices, each with its primary context.
    fn two() -> Play {
        let mut play = Play::new();
        play.make(retain(0, 0xc0));
        play.make(retain(1, 0xc1));
        play
    }
}

#[test]
fn the_current_context_is_that_of_the_thread() {
    let mut play = Play::two();
    play.make(set(0xc0).on(1));
    play.make(set(0xc1).on(2));
    assert_eq!(play.launched(launch(0).on(1)), on(0, 0xc0));
    assert_eq!(play.launched(launch(0).on(2)), on(1, 0xc1));
    assert_eq!(play.inner(malloc(DEV, 8).on(2)), on(1, 0xc1));
    assert_eq!(play.inner(copy(0).on(1)), on(0, 0xc0));
    // A free has the device of the allocation, whichever thread frees it.
    assert_eq!(play.inner(call("cuMemFree_v2", &[DEV]).on(1)), on(1, 0xc1));
    assert_eq!(play.launched(launch(0).on(3)), NOWHERE, "no context is current there");
}

#[test]
fn contexts_are_pushed_popped_and_destroyed() {
    let mut play = Play::two();
    play.make(set(0xc0));
    play.make(call("cuCtxCreate_v2", &[0x10, 0, 1]).wrote(0, 0xd1));
    assert_eq!(play.launched(launch(0)), on(1, 0xd1));
    play.make(call("cuCtxPushCurrent_v2", &[0xc1]));
    assert_eq!(play.launched(launch(0)), on(1, 0xc1));
    play.make(call("cuCtxPopCurrent_v2", &[0x10]));
    assert_eq!(play.launched(launch(0)), on(1, 0xd1));
    play.make(call("cuCtxDestroy_v2", &[0xd1]));
    assert_eq!(play.launched(launch(0)), on(0, 0xc0));
    play.make(set(0));
    assert_eq!(play.launched(launch(0)), NOWHERE);
}

#[test]
fn a_stream_is_of_the_context_it_was_made_in() {
    let mut play = Play::two();
    play.make(set(0xc1));
    play.make(call("cuStreamCreate", &[0x10, 0]).wrote(0, 0x51));
    play.make(set(0xc0));
    assert_eq!(play.launched(launch(0x51)), on(1, 0xc1));
    assert_eq!(play.inner(copy(0x51)), on(1, 0xc1));
    let pooled = call("cuMemAllocAsync", &[0x10, 64, 0x51]).wrote(0, DEV);
    assert_eq!(play.inner(pooled), on(1, 0xc1));
    for default in [0, 1, 2] {
        assert_eq!(play.launched(launch(default)), on(0, 0xc0));
    }
    // Another stream may get the handle afterwards, and its creation was not seen.
    play.make(call("cuStreamDestroy_v2", &[0x51]));
    assert_eq!(play.launched(launch(0x51)), only(0), "it can only be one of this device");
    assert_eq!(play.inner(copy(0x51)), NOWHERE, "a copy may be on a stream of any device");
    play.make(call("cuStreamGetCtx", &[0x51, 0x10]).wrote(1, 0xc1));
    assert_eq!(play.inner(copy(0x51)), on(1, 0xc1));
    let made = play.make(call("cuCtxCreate_v4", &[0x10, 0, 0, 1]).wrote(0, 0xd1));
    assert!(made.is_empty());
    play.make(call("cudaStreamCreate", &[0x10]).wrote(0, 0x52));
    play.make(call("cuCtxDestroy_v2", &[0xd1]));
    assert_eq!(play.inner(copy(0x52)), NOWHERE, "its context has ended");
}

#[test]
fn memory_that_says_itself_where_it_is() {
    let mut play = Play::two();
    play.make(set(0xc0));
    let prop = |kind: u64, device: u64| words(&[(8, kind | device << 32)], 32);
    let create = |prop: &[u8]| call("cuMemCreate", &[0x10, 64, 0x20, 0]).wrote(0, 0xabc).read(2, prop);
    assert_eq!(play.inner(create(&prop(1, 1))), only(1));
    play.make(call("cuMemRelease", &[0xabc]));
    assert_eq!(play.inner(create(&prop(2, 0))), NOWHERE, "the host's");
    let from = |pool| call("cuMemAllocFromPoolAsync", &[0x10, 8, pool, 0]).wrote(0, DEV);
    assert_eq!(play.inner(from(0x900)), NOWHERE, "a pool may be of another device than the stream");
    play.make(call("cuMemFreeAsync", &[DEV, 0]));
    play.make(call("cuDeviceGetDefaultMemPool", &[0x10, 1]).wrote(0, 0x900));
    assert_eq!(play.inner(from(0x900)), only(1));
    play.make(call("cuMemFreeAsync", &[DEV, 0]));
    play.make(call("cuMemPoolDestroy", &[0x900]));
    assert_eq!(play.inner(from(0x900)), NOWHERE);
}

#[test]
fn the_runtime_chooses_a_device() {
    let mut play = Play::new();
    assert_eq!(play.launched(launch(0)), NOWHERE);
    assert_eq!(play.launched(runtime_launch(0)), only(0), "the documented default");
    play.make(call("cudaSetDevice", &[3]).on(2));
    assert_eq!(play.launched(runtime_launch(0).on(2)), only(3), "each thread has its own");
    assert_eq!(play.launched(runtime_launch(0)), only(0));
    // As in the real runtime, the driver's calls inside show the context.
    let outer = play.begin(call("cudaSetDevice", &[1]));
    play.make(retain(1, 0xc1));
    play.make(set(0xc1));
    play.end(outer);
    assert_eq!(play.launched(runtime_launch(0)), on(1, 0xc1));
    // A context whose device no other call has shown.
    let outer = play.begin(call("cudaSetDevice", &[2]));
    play.make(set(0xc2));
    play.end(outer);
    assert_eq!(play.launched(launch(0)), on(2, 0xc2));
    // Back to the first device, without driver calls: which of its contexts is current is unknown.
    play.make(call("cudaSetDevice", &[1]));
    assert_eq!(play.launched(runtime_launch(0)), only(1));
    assert_eq!(play.launched(launch(0)), NOWHERE, "the driver may still work with the other");
    // As in runtimes before 12, which make the context current with their next call.
    play.make(call("cuCtxGetCurrent", &[0x10]).wrote(0, 0xc2));
    play.make(call("cuCtxGetDevice", &[0x10]).wrote(0, 2));
    assert_eq!(play.launched(runtime_launch(0)), only(1));
    let outer = play.begin(runtime_launch(0));
    play.make(set(0xc1));
    assert_eq!(play.launched(launch(0)), on(1, 0xc1));
    play.end(outer);
    play.meaning.not_seen("cudaStreamCreate");
    let outer = play.begin(call("cudaSetDevice", &[2]));
    play.make(retain(2, 0xc2));
    play.make(set(0xc2));
    play.end(outer);
    assert_eq!(play.launched(launch(0)), on(2, 0xc2), "the driver's calls say it all");
    play.make(call("cudaSetDevice", &[1]).failed());
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE);
}

#[test]
fn with_the_runtime_alone_ordinals_are_known() {
    let mut play = Play::new();
    for name in ["cuCtxSetCurrent", "cuStreamCreate", "cuCtxPushCurrent_v2"] {
        play.meaning.not_seen(name);
    }
    play.meaning.process_execed(7);
    let cuda_malloc = |ptr: u64| call("cudaMalloc", &[0x10, 8]).wrote(0, ptr);
    assert_eq!(play.inner(cuda_malloc(DEV)), only(0));
    play.make(call("cudaSetDevice", &[1]));
    assert_eq!(play.inner(cuda_malloc(DEV + 8)), only(1));
    play.make(call("cudaStreamCreate", &[0x10]).wrote(0, 0x51));
    play.make(call("cudaSetDevice", &[0]));
    assert_eq!(play.launched(runtime_launch(0x51)), only(1));
    assert_eq!(play.inner(call("cudaFree", &[DEV + 8])), only(1));
    // State that only the driver's calls show is not derived from a part of them.
    play.make(set(0xc1));
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE);
    play.meaning.not_seen("cudaSetDevice");
    play.make(call("cudaSetDevice", &[1]));
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE);
}

#[test]
fn of_a_running_process_nothing_is_known_until_a_call_says_it() {
    let mut play = Play::late(Box::new(()));
    assert_eq!(play.launched(launch(0)), NOWHERE);
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE, "it may have chosen a device before");
    play.make(call("cuCtxGetCurrent", &[0x10]).wrote(0, 0xc1));
    assert_eq!(play.launched(launch(0)), Where { device: None, context: Some(0xc1) });
    play.make(call("cuCtxGetDevice", &[0x10]).wrote(0, 1));
    assert_eq!(play.launched(launch(0)), on(1, 0xc1));
    // The contexts beneath the one pushed before are unknown.
    play.make(call("cuCtxPopCurrent_v2", &[0x10]));
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE);
    play.make(call("cudaGetDevice", &[0x10]).wrote(0, 1));
    assert_eq!(play.launched(runtime_launch(0)), only(1));
    play.make(call("cuCtxGetCurrent", &[0x10]).wrote(0, 0).on(2));
    assert_eq!(play.launched(runtime_launch(0).on(2)), NOWHERE, "no context, but which device?");
}

#[test]
fn what_was_lost_unseats_what_was_known() {
    let mut play = Play::two();
    play.make(set(0xc0));
    play.meaning.contexts_missing();
    assert_eq!(play.launched(launch(0)), NOWHERE);
    assert_eq!(play.launched(runtime_launch(0).on(9)), NOWHERE, "a thread that may have made calls");
    play.make(set(0xc0));
    play.make(retain(0, 0xc0));
    assert_eq!(play.launched(launch(0)), on(0, 0xc0));
    // A call that never returned may have changed the context, and so may one inside another call.
    let begun = play.begin(set(0xc1));
    play.forget(begun);
    assert_eq!(play.launched(launch(0)), NOWHERE);
    play.make(set(0xc0));
    let outer = play.begin(call("cudaMalloc", &[0x10, 8]).wrote(0, DEV));
    let _lost = play.begin(set(0xc1));
    play.end(outer);
    assert_eq!(play.launched(launch(0)), NOWHERE);
}

#[test]
fn a_reset_leaves_the_runtime_its_device() {
    let mut play = Play::two();
    let outer = play.begin(call("cudaSetDevice", &[1]));
    play.make(set(0xc1));
    play.end(outer);
    play.nested(call("cudaDeviceReset", &[]), call("cuDevicePrimaryCtxReset_v2", &[1]));
    assert_eq!(play.launched(runtime_launch(0)), only(1));
    assert_eq!(play.launched(launch(0)), NOWHERE);
    play.meaning.thread_exited(7, 1);
    assert_eq!(play.launched(runtime_launch(0)), only(0), "another thread has its number");
}

#[test]
fn contexts_without_end_have_a_bound() {
    let mut play = Play::new();
    for context in 1..10_000u64 {
        play.make(call("cuCtxPushCurrent_v2", &[context << 8]));
    }
    assert_eq!(play.launched(launch(0)).context, Some(9_999 << 8));
    for _ in 0..300 {
        play.make(call("cuCtxPopCurrent_v2", &[0x10]));
    }
    assert_eq!(play.launched(runtime_launch(0)), NOWHERE, "the entry at the bottom was dropped");
}
