//! The structures that pointers of CUDA's functions lead to, with the offsets of their informative fields. The offsets
//! are the same in toolkits 11.8 to 13.5 and on both architectures.

use super::item::{Field, Item, Layout, f};

const U32: Item = Item::Unsigned(4);
const U64: Item = Item::Unsigned(8);
const I32: Item = Item::Signed(4);
const HEX: Item = Item::Hex(8);
const DIM3: Item = Item::Dim3;
const MEMORY_TYPE: Item = Item::Named("CUmemorytype");
const FORMAT: Item = Item::Named("CUarray_format");

/// A launch configuration contains a pointer to a list of attributes.
pub const ATTRIBUTES_AT: u16 = 40;
pub const ATTRIBUTE_COUNT_AT: u16 = 48;
pub const ATTRIBUTE_BYTES: u16 = 72;

const KERNEL_NODE: &[Field] =
    &[f("func", 0, HEX), f("grid", 8, DIM3), f("block", 20, DIM3), f("shared", 32, U32)];

const KERNEL_NODE_V2: &[Field] = &[
    f("func", 0, HEX),
    f("grid", 8, DIM3),
    f("block", 20, DIM3),
    f("shared", 32, U32),
    f("kern", 56, HEX),
    f("ctx", 64, HEX),
];

const MEMSET: &[Field] = &[
    f("dst", 0, HEX),
    f("pitch", 8, U64),
    f("value", 16, U32),
    f("elementSize", 20, U32),
    f("width", 24, U64),
    f("height", 32, U64),
];

const HOST_NODE: &[Field] = &[f("fn", 0, HEX), f("userData", 8, HEX)];

macro_rules! access {
    ($location:literal, $flags:literal) => {
        &[f("location", 0, Item::Named($location)), f("id", 4, I32), f("flags", 8, Item::Named($flags))]
    };
}

macro_rules! location {
    ($location:literal) => {
        &[f("type", 0, Item::Named($location)), f("id", 4, I32)]
    };
}

macro_rules! pool {
    ($of:literal, $handles:literal, $location:literal) => {
        &[
            f("allocType", 0, Item::Named($of)),
            f("handleTypes", 4, Item::Named($handles)),
            f("location", 8, Item::Named($location)),
            f("id", 12, I32),
            f("maxSize", 24, U64),
        ]
    };
}

macro_rules! alloc_node {
    ($location:literal) => {
        &[
            f("location", 8, Item::Named($location)),
            f("id", 12, I32),
            f("bytesize", 104, U64),
            f("dptr", 112, HEX),
        ]
    };
}

const UUID: &[Field] = &[f("", 0, Item::Uuid)];
const BYTES64: &[Field] = &[f("", 0, Item::Opaque(64))];

macro_rules! copy_3d {
    ($($extra:expr),*) => {
        &[
            f("srcXInBytes", 0, U64), f("srcY", 8, U64), f("srcZ", 16, U64),
            f("srcMemoryType", 32, MEMORY_TYPE), f("srcHost", 40, HEX), f("srcDevice", 48, HEX),
            f("srcArray", 56, HEX), f("srcPitch", 72, U64), f("srcHeight", 80, U64),
            f("dstXInBytes", 88, U64), f("dstY", 96, U64), f("dstZ", 104, U64),
            f("dstMemoryType", 120, MEMORY_TYPE), f("dstHost", 128, HEX), f("dstDevice", 136, HEX),
            f("dstArray", 144, HEX), f("dstPitch", 160, U64), f("dstHeight", 168, U64),
            f("WidthInBytes", 176, U64), f("Height", 184, U64), f("Depth", 192, U64),
            $($extra),*
        ]
    };
}

const fn layout(name: &'static str, bytes: u16, fields: &'static [Field]) -> Layout {
    Layout { name, bytes, fields }
}

pub static LAYOUTS: &[Layout] = &[
    layout(
        "CUlaunchConfig",
        56,
        &[f("grid", 0, DIM3), f("block", 12, DIM3), f("shared", 24, U32), f("stream", 32, HEX)],
    ),
    layout(
        "cudaLaunchConfig_t",
        56,
        &[f("grid", 0, DIM3), f("block", 12, DIM3), f("shared", 24, U64), f("stream", 32, HEX)],
    ),
    layout(
        "CUDA_MEMCPY2D",
        128,
        &[
            f("srcXInBytes", 0, U64),
            f("srcY", 8, U64),
            f("srcMemoryType", 16, MEMORY_TYPE),
            f("srcHost", 24, HEX),
            f("srcDevice", 32, HEX),
            f("srcArray", 40, HEX),
            f("srcPitch", 48, U64),
            f("dstXInBytes", 56, U64),
            f("dstY", 64, U64),
            f("dstMemoryType", 72, MEMORY_TYPE),
            f("dstHost", 80, HEX),
            f("dstDevice", 88, HEX),
            f("dstArray", 96, HEX),
            f("dstPitch", 104, U64),
            f("WidthInBytes", 112, U64),
            f("Height", 120, U64),
        ],
    ),
    layout("CUDA_MEMCPY3D", 200, copy_3d!()),
    layout("CUDA_MEMCPY3D_PEER", 200, copy_3d!(f("srcContext", 64, HEX), f("dstContext", 152, HEX))),
    layout(
        "cudaMemcpy3DParms",
        160,
        &[
            f("srcArray", 0, HEX),
            f("srcPtr", 32, HEX),
            f("srcPitch", 40, U64),
            f("dstArray", 64, HEX),
            f("dstPtr", 96, HEX),
            f("dstPitch", 104, U64),
            f("width", 128, U64),
            f("height", 136, U64),
            f("depth", 144, U64),
            f("kind", 152, Item::Named("cudaMemcpyKind")),
        ],
    ),
    layout(
        "cudaMemcpy3DPeerParms",
        168,
        &[
            f("srcArray", 0, HEX),
            f("srcPtr", 32, HEX),
            f("srcPitch", 40, U64),
            f("srcDevice", 64, I32),
            f("dstArray", 72, HEX),
            f("dstPtr", 104, HEX),
            f("dstPitch", 112, U64),
            f("dstDevice", 136, I32),
            f("width", 144, U64),
            f("height", 152, U64),
            f("depth", 160, U64),
        ],
    ),
    layout(
        "CUmemAllocationProp",
        32,
        &[
            f("type", 0, Item::Named("CUmemAllocationType")),
            f("requestedHandleTypes", 4, Item::Named("CUmemAllocationHandleType")),
            f("location", 8, Item::Named("CUmemLocationType")),
            f("id", 12, I32),
        ],
    ),
    layout("CUmemAccessDesc", 12, access!("CUmemLocationType", "CUmemAccess_flags")),
    layout("cudaMemAccessDesc", 12, access!("cudaMemLocationType", "cudaMemAccessFlags")),
    layout("CUmemLocation", 8, location!("CUmemLocationType")),
    layout("cudaMemLocation", 8, location!("cudaMemLocationType")),
    layout("CUDA_KERNEL_NODE_PARAMS_v1", 56, KERNEL_NODE),
    layout("CUDA_KERNEL_NODE_PARAMS", 72, KERNEL_NODE_V2),
    layout("cudaKernelNodeParams", 56, KERNEL_NODE),
    // Any kind of node: `type` decides what the rest means.
    layout("CUgraphNodeParams", 256, &[f("type", 0, U32)]),
    layout("cudaGraphNodeParams", 256, &[f("type", 0, U32)]),
    layout("CUDA_MEMSET_NODE_PARAMS", 40, MEMSET),
    layout("cudaMemsetParams", 40, MEMSET),
    layout("CUDA_HOST_NODE_PARAMS", 16, HOST_NODE),
    layout("cudaHostNodeParams", 16, HOST_NODE),
    layout(
        "CUDA_ARRAY_DESCRIPTOR",
        24,
        &[f("Width", 0, U64), f("Height", 8, U64), f("Format", 16, FORMAT), f("NumChannels", 20, U32)],
    ),
    layout(
        "CUDA_ARRAY3D_DESCRIPTOR",
        40,
        &[
            f("Width", 0, U64),
            f("Height", 8, U64),
            f("Depth", 16, U64),
            f("Format", 24, FORMAT),
            f("NumChannels", 28, U32),
            f("Flags", 32, U32),
        ],
    ),
    layout(
        "CUmemPoolProps",
        88,
        pool!("CUmemAllocationType", "CUmemAllocationHandleType", "CUmemLocationType"),
    ),
    layout(
        "cudaMemPoolProps",
        88,
        pool!("cudaMemAllocationType", "cudaMemAllocationHandleType", "cudaMemLocationType"),
    ),
    layout("CUDA_MEM_ALLOC_NODE_PARAMS", 120, alloc_node!("CUmemLocationType")),
    layout("cudaMemAllocNodeParams", 120, alloc_node!("cudaMemLocationType")),
    layout(
        "CUmulticastObjectProp",
        32,
        &[f("numDevices", 0, U32), f("size", 8, U64), f("handleTypes", 16, U64), f("flags", 24, U64)],
    ),
    layout("CUuuid", 16, UUID),
    layout("cudaUUID_t", 16, UUID),
    layout(
        "cudaPitchedPtr",
        32,
        &[f("ptr", 0, HEX), f("pitch", 8, U64), f("xsize", 16, U64), f("ysize", 24, U64)],
    ),
    layout("cudaExtent", 24, &[f("width", 0, U64), f("height", 8, U64), f("depth", 16, U64)]),
    layout(
        "cudaPointerAttributes",
        24,
        &[
            f("type", 0, Item::Named("cudaMemoryType")),
            f("device", 4, I32),
            f("devicePointer", 8, HEX),
            f("hostPointer", 16, HEX),
        ],
    ),
    layout(
        "cudaFuncAttributes",
        48,
        &[
            f("sharedSizeBytes", 0, U64),
            f("constSizeBytes", 8, U64),
            f("localSizeBytes", 16, U64),
            f("maxThreadsPerBlock", 24, I32),
            f("numRegs", 28, I32),
            f("ptxVersion", 32, I32),
            f("binaryVersion", 36, I32),
            f("maxDynamicSharedSizeBytes", 44, I32),
        ],
    ),
    layout(
        "cudaChannelFormatDesc",
        20,
        &[
            f("x", 0, I32),
            f("y", 4, I32),
            f("z", 8, I32),
            f("w", 12, I32),
            f("f", 16, Item::Named("cudaChannelFormatKind")),
        ],
    ),
    layout("dim3", 12, &[f("", 0, DIM3)]),
    layout("CUipcMemHandle", 64, BYTES64),
    layout("CUipcEventHandle", 64, BYTES64),
    layout("cudaIpcMemHandle_t", 64, BYTES64),
    layout("cudaIpcEventHandle_t", 64, BYTES64),
];

pub fn layout_named(name: &str) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|l| l.name == name)
}
