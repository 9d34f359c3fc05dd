//! The order of giving up: from a function's name to its class. Pure, and the same on every run.

use gpurec_cuda::traits::Mark;
use gpurec_cuda::{Api, Category, FunctionTraits};
use gpurec_trace::CALL_STACKS;

/// How much the calls of a function tell, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// No calls, but from where they are made.
    Stacks,
    /// A query, which changes nothing.
    Query,
    /// A short setup call: neither work for the GPU nor memory.
    Short,
    /// A function of a library that the user named, or an unknown one.
    Other,
    /// Launches, allocations, copies, waits, modules, graphs.
    Telling,
}

pub fn class(name: &str) -> Class {
    if name == CALL_STACKS {
        return Class::Stacks;
    }
    let traits = FunctionTraits::of(name);
    if traits.api == Api::Other {
        return if traits.nccl().is_some() { Class::Telling } else { Class::Other };
    }
    match traits.category {
        Category::Query | Category::Error | Category::Occupancy => Class::Query,
        Category::Launch | Category::Sync | Category::Register => Class::Telling,
        _ if traits.is(Mark::Reads) => Class::Query,
        _ if traits.is(Mark::Setup) || traits.is(Mark::Configures) => Class::Short,
        Category::Context | Category::Event | Category::Stream => Class::Short,
        Category::Other => Class::Other,
        _ => Class::Telling,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_asks_goes_first() {
        for name in [
            "cuCtxGetCurrent",
            "cudaGetDevice",
            "cudaGetLastError",
            "cudaPeekAtLastError",
            "cudaStreamIsCapturing",
            "cudaStreamIsCapturing_ptsz",
            "cuStreamGetCaptureInfo_v2",
            "cudaEventQuery",
            "cuStreamQuery",
            "cuPointerGetAttribute",
            "cudaPointerGetAttributes",
            "cudaDeviceGetAttribute",
            "cudaFuncGetAttributes",
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
            "cuGetErrorString",
            "cuMemGetInfo_v2",
            "cudaDriverGetVersion",
        ] {
            assert_eq!(class(name), Class::Query, "{name}");
        }
    }

    #[test]
    fn stacks_go_before_any_call() {
        assert_eq!(class(CALL_STACKS), Class::Stacks);
        assert!(Class::Stacks < Class::Query);
    }

    #[test]
    fn then_what_is_short() {
        for name in [
            "cuCtxPushCurrent_v2",
            "cuCtxSetCurrent",
            "cudaSetDevice",
            "cudaEventRecord",
            "cudaStreamWaitEvent",
            "__cudaPushCallConfiguration",
            "__cudaPopCallConfiguration",
        ] {
            assert_eq!(class(name), Class::Short, "{name}");
        }
        assert_eq!(class("cublasSgemm_v2"), Class::Other);
    }

    #[test]
    fn last_what_tells_most() {
        for name in [
            "ncclAllReduce",
            "ncclCommInitRank",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cudaLaunchKernel",
            "cudaLaunchKernelExC",
            "cuGraphLaunch",
            "cudaMalloc",
            "cudaFree",
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuMemCreate",
            "cudaMemcpyAsync",
            "cuMemcpyHtoDAsync_v2",
            "cuMemsetD8Async",
            "cudaStreamSynchronize",
            "cudaDeviceSynchronize",
            "cuEventSynchronize",
            "cuCtxSynchronize",
            "cuModuleLoadData",
            "cuModuleGetFunction",
            "cuLibraryLoadData",
            "cuInit",
            "__cudaRegisterFunction",
        ] {
            assert_eq!(class(name), Class::Telling, "{name}");
        }
    }
}
