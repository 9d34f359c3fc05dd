//! The order of giving up: from a function's name to its class. Pure, and the same on every run.

use gpurec_cuda::{self as cuda, Api, Category};

/// How much the calls of a function tell, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
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
    if cuda::api(name) == Api::Other {
        return Class::Other;
    }
    match cuda::category(name) {
        Category::Query | Category::Error | Category::Occupancy => Class::Query,
        Category::Launch | Category::Sync | Category::Register => Class::Telling,
        // A call that returns a handle tells the name of a kernel or variable.
        Category::Module if asks(name) && !name.contains("Attribute") => Class::Telling,
        _ if asks(name) => Class::Query,
        _ if configures(name) => Class::Short,
        Category::Context | Category::Event | Category::Stream => Class::Short,
        Category::Other => Class::Other,
        _ => Class::Telling,
    }
}

fn asks(name: &str) -> bool {
    let base = cuda::base_name(name);
    ["Get", "Query", "Peek", "Occupancy", "IsCapturing", "IsEnabled", "CanAccess"]
        .iter()
        .any(|word| base.contains(word))
}

/// The two calls that the compiler puts around every launch, and calls that set a device or an attribute.
fn configures(name: &str) -> bool {
    let base = cuda::base_name(name);
    ["CallConfiguration", "cudaSetDevice", "FuncSet", "SetLimit"].iter().any(|word| base.contains(word))
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
        assert_eq!(class("ncclAllReduce"), Class::Other);
    }

    #[test]
    fn last_what_tells_most() {
        for name in [
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
