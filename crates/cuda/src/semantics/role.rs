//! What a function means for memory, copies and kernels, by its name. The numbers are indices of parameters, which are
//! the same in every toolkit.

/// A function's role, looked up once per probe; a function without a role costs nothing.
#[derive(Debug)]
pub struct Role {
    /// The call's name in the trace.
    pub name: Box<str>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Alloc(Alloc),
    Free(Table),
    /// cuMemRetainAllocationHandle: one more cuMemRelease is due.
    Retain,
    Map,
    Unmap,
    Copy(Copy),
    Set(Set),
    Context(Context),
    Stream(Stream),
    Pool(Pool),
    Name(Name),
    /// Of the runtime (by a host stub) or of the driver (by a handle).
    Launch {
        runtime: bool,
    },
    /// A kernel node for a graph: parameter `params` points to the structure that describes it.
    KernelNode {
        params: usize,
        /// The structure is one for nodes of any kind.
        generic: bool,
        /// The call adds the node to the graph that is parameter 1.
        adds: bool,
    },
    Graph(Graph),
    Capture {
        begins: bool,
    },
    /// A variable of a module: device memory, not allocated by a call.
    Global,
    /// The call gives out memory of unknown size. `same`: except if it gives out the value of this parameter.
    Unseen {
        same: Option<usize>,
    },
}

/// The spaces in which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Device,
    Managed,
    Host,
    Pool,
    Virtual,
    Array,
    /// Another process's memory, which adds no bytes to this process.
    Ipc,
}

/// Tables of the ledger. Pointers and handles of different tables may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Addresses,
    /// The program's own host memory, pinned afterwards.
    Registered,
    Arrays,
    /// Physical memory without an address.
    Handles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alloc {
    pub space: Space,
    pub table: Table,
    /// Parameter 0 is the memory itself; otherwise the call writes the pointer there.
    pub in_place: bool,
    pub size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Unknown,
    Param(usize),
    /// Rows of a width; the driver makes them wider and writes the width to parameter 1.
    Pitch,
    /// cudaMalloc3D.
    Extent,
    Array2D,
    Array3D,
    /// cudaMallocArray.
    Plane,
    /// cudaMalloc3DArray.
    Volume,
    /// As the last two, with the number of levels in this parameter.
    Levels(usize),
    VolumeLevels(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub amount: Amount,
    pub way: Way,
    pub dst: Operand,
    pub src: Operand,
    /// From the function's name.
    pub is_async: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(usize),
    Product(usize, usize),
    /// CUDA_MEMCPY2D.
    Rows,
    /// CUDA_MEMCPY3D and its peer form.
    Box,
    /// cudaMemcpy3DParms and cudaMemcpy3DPeerParms.
    RuntimeBox {
        peer: bool,
    },
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Param(usize),
    /// An array or a symbol.
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    Peer,
    /// cudaMemcpyKind.
    Kind(usize),
    Pointers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Parameters whose product is the count of elements.
    pub count: (usize, Option<usize>),
    pub element: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Create {
        device: usize,
    },
    Destroy,
    Set,
    Push,
    Pop,
    Current,
    Retain,
    Release,
    /// cuDevicePrimaryCtxReset.
    Reset,
    /// cudaDeviceReset: resets the thread's device.
    DeviceReset,
    SetDevice,
    /// The call returns the device of the current context, or of the context that parameter `of` holds.
    Device {
        of: Option<usize>,
    },
    /// cudaGetDevice.
    GetDevice,
    /// The call changes the current context, but its arguments do not show to which.
    Other,
}

/// What a call shows about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The call makes a stream in the current context and writes it to parameter 0.
    Create,
    /// As `Create`, in a context that is not tracked.
    CreateElsewhere,
    Destroy,
    /// The call writes the stream's context to parameter 1.
    Context,
    /// The call writes the stream's device to parameter 1.
    Device,
}

/// What a call shows about a memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The call writes a pool of the device in parameter 1 to parameter 0.
    OfDevice,
    /// The call writes the pool to parameter 0; parameter 1 holds its location.
    Create,
    Destroy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The call writes to parameter 0 the handle of the kernel that parameter 2 names.
    Get,
    /// The call writes to parameter 0 a handle of the same kernel as parameter 1.
    Alias,
    /// The call writes the name of parameter 1 through parameter 0.
    Asked,
    /// __cudaRegisterFunction.
    Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graph {
    /// cuGraphCreate.
    Create,
    /// Adds a node to the graph that is parameter 1.
    Add,
    /// As `Add`, for a node that allocates when the graph runs.
    AddMemory,
    /// cuGraphGetNodes.
    Nodes,
    Instantiate,
    Launch,
    /// cuGraphDestroy, cuGraphExecDestroy.
    Destroy,
    /// cuGraphDestroyNode: its arguments do not name the graph.
    DestroyNode,
}

/// Which figure of a recording a function's calls feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    Allocation,
    Free,
    Copy,
    Set,
    Launch,
    GraphLaunch,
    Sync,
}

/// Decided by its effects: functions that wait have none of their own.
pub fn input_of(name: &str) -> Option<Input> {
    use Context::{Destroy, DeviceReset, Release, Reset};
    match Role::of(name)?.kind {
        Kind::Alloc(_) => Some(Input::Allocation),
        Kind::Free(_) | Kind::Unmap | Kind::Context(Destroy | Release | Reset | DeviceReset) => {
            Some(Input::Free)
        }
        Kind::Copy(_) => Some(Input::Copy),
        Kind::Set(_) => Some(Input::Set),
        Kind::Launch { .. } => Some(Input::Launch),
        Kind::Graph(Graph::Launch) => Some(Input::GraphLaunch),
        _ => None,
    }
}

impl Role {
    pub fn of(name: &str) -> Option<Role> {
        let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
        let kind = allocation(plain)
            .or_else(|| free(plain))
            .or_else(|| copy(plain))
            .or_else(|| set(plain))
            .or_else(|| context(plain))
            .or_else(|| stream(plain))
            .or_else(|| pool(plain))
            .or_else(|| kernel(plain))
            .or_else(|| graph(plain))?;
        Some(Role { name: name.into(), kind })
    }
}

impl Space {
    pub const ALL: [Space; 7] =
        [Space::Device, Space::Managed, Space::Host, Space::Pool, Space::Virtual, Space::Array, Space::Ipc];

    pub fn name(self) -> &'static str {
        match self {
            Space::Device => "device",
            Space::Managed => "managed",
            Space::Host => "host",
            Space::Pool => "pool",
            Space::Virtual => "virtual",
            Space::Array => "array",
            Space::Ipc => "ipc",
        }
    }
}

fn allocation(name: &str) -> Option<Kind> {
    use Space::{Array, Device, Host, Ipc, Managed, Pool, Virtual};
    use Table::{Addresses, Arrays, Handles, Registered};
    let at = |space, size| (space, Addresses, size);
    let (space, table, size) = match name {
        "cuMemAlloc" | "cuMemAlloc_v2" | "cudaMalloc" => at(Device, Size::Param(1)),
        "cuMemAllocPitch" | "cuMemAllocPitch_v2" | "cudaMallocPitch" => at(Device, Size::Pitch),
        "cudaMalloc3D" => at(Device, Size::Extent),
        "cuMemAllocManaged" | "cudaMallocManaged" => at(Managed, Size::Param(1)),
        "cuMemAllocHost" | "cuMemAllocHost_v2" | "cuMemHostAlloc" | "cudaMallocHost" | "cudaHostAlloc" => {
            at(Host, Size::Param(1))
        }
        "cuMemHostRegister" | "cuMemHostRegister_v2" | "cudaHostRegister" => {
            (Host, Registered, Size::Param(1))
        }
        "cuMemAllocAsync" | "cudaMallocAsync" | "cuMemAllocFromPoolAsync" | "cudaMallocFromPoolAsync" => {
            at(Pool, Size::Param(1))
        }
        "cuMemCreate" => (Virtual, Handles, Size::Param(1)),
        "cuMemImportFromShareableHandle" => (Ipc, Handles, Size::Unknown),
        "cuIpcOpenMemHandle" | "cuIpcOpenMemHandle_v2" | "cudaIpcOpenMemHandle" => at(Ipc, Size::Unknown),
        "cuMemPoolImportPointer" | "cudaMemPoolImportPointer" => at(Ipc, Size::Unknown),
        "cuArrayCreate_v2" => (Array, Arrays, Size::Array2D),
        "cuArray3DCreate_v2" => (Array, Arrays, Size::Array3D),
        "cuMipmappedArrayCreate" => (Array, Arrays, Size::Levels(2)),
        "cudaMallocArray" => (Array, Arrays, Size::Plane),
        "cudaMalloc3DArray" => (Array, Arrays, Size::Volume),
        "cudaMallocMipmappedArray" => (Array, Arrays, Size::VolumeLevels(3)),
        _ => return None,
    };
    Some(Kind::Alloc(Alloc { space, table, in_place: table == Registered, size }))
}

fn free(name: &str) -> Option<Kind> {
    Some(match name {
        "cuMemFree"
        | "cuMemFree_v2"
        | "cudaFree"
        | "cuMemFreeAsync"
        | "cudaFreeAsync"
        | "cuMemFreeHost"
        | "cudaFreeHost"
        | "cuIpcCloseMemHandle"
        | "cudaIpcCloseMemHandle" => Kind::Free(Table::Addresses),
        "cuMemHostUnregister" | "cudaHostUnregister" => Kind::Free(Table::Registered),
        "cuArrayDestroy" | "cudaFreeArray" | "cuMipmappedArrayDestroy" | "cudaFreeMipmappedArray" => {
            Kind::Free(Table::Arrays)
        }
        "cuMemRelease" => Kind::Free(Table::Handles),
        "cuMemRetainAllocationHandle" => Kind::Retain,
        "cuMemMap" => Kind::Map,
        "cuMemUnmap" => Kind::Unmap,
        _ => return None,
    })
}

fn copy(name: &str) -> Option<Kind> {
    let is_async = name.contains("Async");
    let make = |amount, way, dst, src| Kind::Copy(Copy { amount, way, dst, src, is_async });
    driver_copy(name, &make).or_else(|| runtime_copy(name, &make))
}

type Make<'a> = &'a dyn Fn(Amount, Way, Operand, Operand) -> Kind;

fn driver_copy(name: &str, make: Make) -> Option<Kind> {
    use Amount::{Batch, Box, Bytes, Rows};
    use Operand::{Device, Param};
    use Way::{DeviceToDevice, DeviceToHost, HostToDevice, Peer, Pointers};
    Some(match name {
        "cuMemcpy" | "cuMemcpyAsync" | "cuMemcpyWithAttributesAsync" => {
            make(Bytes(2), Pointers, Param(0), Param(1))
        }
        "cuMemcpyHtoD" | "cuMemcpyHtoD_v2" | "cuMemcpyHtoDAsync" | "cuMemcpyHtoDAsync_v2" => {
            make(Bytes(2), HostToDevice, Param(0), Param(1))
        }
        "cuMemcpyDtoH" | "cuMemcpyDtoH_v2" | "cuMemcpyDtoHAsync" | "cuMemcpyDtoHAsync_v2" => {
            make(Bytes(2), DeviceToHost, Param(0), Param(1))
        }
        "cuMemcpyDtoD" | "cuMemcpyDtoD_v2" | "cuMemcpyDtoDAsync" | "cuMemcpyDtoDAsync_v2" => {
            make(Bytes(2), DeviceToDevice, Param(0), Param(1))
        }
        "cuMemcpyHtoA" | "cuMemcpyHtoA_v2" | "cuMemcpyHtoAAsync" | "cuMemcpyHtoAAsync_v2" => {
            make(Bytes(3), HostToDevice, Device, Param(2))
        }
        "cuMemcpyAtoH" | "cuMemcpyAtoH_v2" | "cuMemcpyAtoHAsync" | "cuMemcpyAtoHAsync_v2" => {
            make(Bytes(3), DeviceToHost, Param(0), Device)
        }
        "cuMemcpyAtoD" | "cuMemcpyAtoD_v2" | "cuMemcpyDtoA" | "cuMemcpyDtoA_v2" => {
            make(Bytes(3), DeviceToDevice, Device, Device)
        }
        "cuMemcpyAtoA" | "cuMemcpyAtoA_v2" => make(Bytes(4), DeviceToDevice, Device, Device),
        "cuMemcpyPeer" | "cuMemcpyPeerAsync" => make(Bytes(4), Peer, Param(0), Param(2)),
        "cuMemcpy2D_v2" | "cuMemcpy2DUnaligned_v2" | "cuMemcpy2DAsync_v2" => {
            make(Rows, Pointers, Device, Device)
        }
        "cuMemcpy3D_v2" | "cuMemcpy3DAsync_v2" => make(Box, Pointers, Device, Device),
        "cuMemcpy3DPeer" | "cuMemcpy3DPeerAsync" => make(Box, Peer, Device, Device),
        "cuMemcpyBatchAsync" | "cuMemcpyBatchAsync_v2" => make(Batch, Pointers, Param(0), Param(1)),
        _ => return None,
    })
}

fn runtime_copy(name: &str, make: Make) -> Option<Kind> {
    use Amount::{Batch, Bytes, Product, RuntimeBox};
    use Operand::{Device, Param};
    use Way::{Kind as By, Peer, Pointers};
    Some(match name {
        "cudaMemcpy" | "cudaMemcpyAsync" => make(Bytes(2), By(3), Param(0), Param(1)),
        "cudaMemcpy2D" | "cudaMemcpy2DAsync" => make(Product(4, 5), By(6), Param(0), Param(2)),
        "cudaMemcpy2DToArray" | "cudaMemcpy2DToArrayAsync" => make(Product(5, 6), By(7), Device, Param(3)),
        "cudaMemcpy2DFromArray" | "cudaMemcpy2DFromArrayAsync" => {
            make(Product(5, 6), By(7), Param(0), Device)
        }
        "cudaMemcpy2DArrayToArray" => make(Product(6, 7), By(8), Device, Device),
        "cudaMemcpyToArray" | "cudaMemcpyToArrayAsync" => make(Bytes(4), By(5), Device, Param(3)),
        "cudaMemcpyFromArray" | "cudaMemcpyFromArrayAsync" => make(Bytes(4), By(5), Param(0), Device),
        "cudaMemcpyArrayToArray" => make(Bytes(6), By(7), Device, Device),
        "cudaMemcpyToSymbol" | "cudaMemcpyToSymbolAsync" => make(Bytes(2), By(4), Device, Param(1)),
        "cudaMemcpyFromSymbol" | "cudaMemcpyFromSymbolAsync" => make(Bytes(2), By(4), Param(0), Device),
        "cudaMemcpyPeer" | "cudaMemcpyPeerAsync" => make(Bytes(4), Peer, Param(0), Param(2)),
        "cudaMemcpy3D" | "cudaMemcpy3DAsync" => make(RuntimeBox { peer: false }, Pointers, Device, Device),
        "cudaMemcpy3DPeer" | "cudaMemcpy3DPeerAsync" => make(RuntimeBox { peer: true }, Peer, Device, Device),
        "cudaMemcpyWithAttributesAsync" => make(Bytes(2), Pointers, Param(0), Param(1)),
        "cudaMemcpyBatchAsync" => make(Batch, Pointers, Param(0), Param(1)),
        _ => return None,
    })
}

fn set(name: &str) -> Option<Kind> {
    let element = |name: &str| match name.as_bytes() {
        [b'8', ..] => 1,
        [b'1', b'6', ..] => 2,
        _ => 4,
    };
    let set = match name {
        "cudaMemset" | "cudaMemsetAsync" => Set { count: (2, None), element: 1 },
        "cudaMemset2D" | "cudaMemset2DAsync" => Set { count: (3, Some(4)), element: 1 },
        _ => match (name.strip_prefix("cuMemsetD2D"), name.strip_prefix("cuMemsetD")) {
            (Some(rest), _) => Set { count: (3, Some(4)), element: element(rest) },
            (None, Some(rest)) => Set { count: (2, None), element: element(rest) },
            (None, None) => return None,
        },
    };
    Some(Kind::Set(set))
}

fn context(name: &str) -> Option<Kind> {
    Some(Kind::Context(match name {
        "cuCtxCreate" | "cuCtxCreate_v2" => Context::Create { device: 2 },
        "cuCtxCreate_v3" => Context::Create { device: 4 },
        "cuCtxCreate_v4" => Context::Create { device: 3 },
        "cuCtxDestroy" | "cuCtxDestroy_v2" => Context::Destroy,
        "cuCtxSetCurrent" => Context::Set,
        "cuCtxPushCurrent" | "cuCtxPushCurrent_v2" => Context::Push,
        "cuCtxPopCurrent" | "cuCtxPopCurrent_v2" => Context::Pop,
        "cuCtxGetCurrent" => Context::Current,
        "cuDevicePrimaryCtxRetain" => Context::Retain,
        "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxRelease_v2" => Context::Release,
        "cuDevicePrimaryCtxReset" | "cuDevicePrimaryCtxReset_v2" => Context::Reset,
        "cudaDeviceReset" => Context::DeviceReset,
        "cudaSetDevice" => Context::SetDevice,
        "cuCtxGetDevice" => Context::Device { of: None },
        "cuCtxGetDevice_v2" => Context::Device { of: Some(1) },
        "cudaGetDevice" => Context::GetDevice,
        "cuCtxDetach" | "cuGLCtxCreate" | "cuGLCtxCreate_v2" | "cudaSetValidDevices" | "cudaThreadExit" => {
            Context::Other
        }
        _ => return None,
    }))
}

fn stream(name: &str) -> Option<Kind> {
    Some(Kind::Stream(match name {
        "cuStreamCreate"
        | "cuStreamCreateWithPriority"
        | "cudaStreamCreate"
        | "cudaStreamCreateWithFlags"
        | "cudaStreamCreateWithPriority" => Stream::Create,
        "cuGreenCtxStreamCreate" | "cudaExecutionCtxStreamCreate" => Stream::CreateElsewhere,
        "cuStreamDestroy" | "cuStreamDestroy_v2" | "cudaStreamDestroy" => Stream::Destroy,
        "cuStreamGetCtx" | "cuStreamGetCtx_v2" => Stream::Context,
        "cuStreamGetDevice" | "cudaStreamGetDevice" => Stream::Device,
        _ => return None,
    }))
}

fn pool(name: &str) -> Option<Kind> {
    Some(Kind::Pool(match name {
        "cuDeviceGetDefaultMemPool"
        | "cuDeviceGetMemPool"
        | "cudaDeviceGetDefaultMemPool"
        | "cudaDeviceGetMemPool" => Pool::OfDevice,
        "cuMemPoolCreate" | "cudaMemPoolCreate" => Pool::Create,
        "cuMemPoolDestroy" | "cudaMemPoolDestroy" => Pool::Destroy,
        _ => return None,
    }))
}

/// Whether the devices and contexts of calls are known only if this function is recorded.
pub fn places(name: &str) -> bool {
    use Context::{Current, Device, GetDevice, Release, Reset, Retain};
    match Role::of(name).map(|role| role.kind) {
        // These only query the state.
        Some(Kind::Context(Current | Device { .. } | GetDevice | Retain | Release | Reset)) => false,
        Some(Kind::Stream(Stream::Context | Stream::Device) | Kind::Pool(Pool::OfDevice)) => false,
        Some(Kind::Context(_) | Kind::Stream(_) | Kind::Pool(_)) => true,
        _ => false,
    }
}

fn kernel(name: &str) -> Option<Kind> {
    let adds = name.contains("Add");
    let node = |params| Kind::KernelNode { params, generic: false, adds };
    let generic = |params| Kind::KernelNode { params, generic: true, adds };
    Some(match name {
        "cuModuleGetFunction" | "cuLibraryGetKernel" | "cudaLibraryGetKernel" => Kind::Name(Name::Get),
        "cuKernelGetFunction" | "cudaGetKernel" | "__cudaGetKernel" | "cudaGetFuncBySymbol" => {
            Kind::Name(Name::Alias)
        }
        "cuFuncGetName" | "cuKernelGetName" | "cudaFuncGetName" => Kind::Name(Name::Asked),
        "__cudaRegisterFunction" => Kind::Name(Name::Register),
        "cuGraphAddKernelNode" | "cuGraphAddKernelNode_v2" | "cudaGraphAddKernelNode" => node(4),
        "cuGraphKernelNodeSetParams" | "cuGraphKernelNodeSetParams_v2" | "cudaGraphKernelNodeSetParams" => {
            node(1)
        }
        "cuGraphExecKernelNodeSetParams"
        | "cuGraphExecKernelNodeSetParams_v2"
        | "cudaGraphExecKernelNodeSetParams" => node(2),
        "cuGraphAddNode" => generic(4),
        "cuGraphAddNode_v2" | "cuGraphAddNode_v3" | "cudaGraphAddNode" | "cudaGraphAddNode_v2" => generic(5),
        "cuModuleGetGlobal_v2" | "cuLibraryGetGlobal" | "cudaLibraryGetGlobal" => Kind::Global,
        "cudaGetSymbolAddress"
        | "__cudaRegisterManagedVar"
        | "cuLibraryGetManaged"
        | "cudaLibraryGetManaged"
        | "cuExternalMemoryGetMappedBuffer"
        | "cudaExternalMemoryGetMappedBuffer"
        | "cuGraphicsResourceGetMappedPointer"
        | "cuGraphicsResourceGetMappedPointer_v2"
        | "cudaGraphicsResourceGetMappedPointer" => Kind::Unseen { same: None },
        "cuMemHostGetDevicePointer_v2" | "cudaHostGetDevicePointer" => Kind::Unseen { same: Some(1) },
        _ if crate::is_kernel_launch(name) => Kind::Launch { runtime: name.contains("cuda") },
        _ => return None,
    })
}

fn graph(name: &str) -> Option<Kind> {
    if let Some(rest) = name.strip_prefix("cuGraphAdd").or_else(|| name.strip_prefix("cudaGraphAdd")) {
        let kind = if rest == "MemAllocNode" { Graph::AddMemory } else { Graph::Add };
        return crate::base_name(rest).ends_with("Node").then_some(Kind::Graph(kind));
    }
    Some(match crate::base_name(name) {
        "cuGraphCreate" | "cudaGraphCreate" => Kind::Graph(Graph::Create),
        "cuGraphDestroyNode" | "cudaGraphDestroyNode" => Kind::Graph(Graph::DestroyNode),
        "cuGraphLaunch" | "cudaGraphLaunch" => Kind::Graph(Graph::Launch),
        "cuGraphGetNodes" | "cudaGraphGetNodes" => Kind::Graph(Graph::Nodes),
        "cuGraphInstantiate"
        | "cuGraphInstantiateWithFlags"
        | "cuGraphInstantiateWithParams"
        | "cudaGraphInstantiate"
        | "cudaGraphInstantiateWithFlags"
        | "cudaGraphInstantiateWithParams" => Kind::Graph(Graph::Instantiate),
        "cuGraphDestroy" | "cudaGraphDestroy" | "cuGraphExecDestroy" | "cudaGraphExecDestroy" => {
            Kind::Graph(Graph::Destroy)
        }
        "cuStreamBeginCapture"
        | "cuStreamBeginCaptureToGraph"
        | "cudaStreamBeginCapture"
        | "cudaStreamBeginCaptureToGraph" => Kind::Capture { begins: true },
        "cuStreamEndCapture" | "cudaStreamEndCapture" => Kind::Capture { begins: false },
        _ => return None,
    })
}
