//! What a function is and does: the columns of table.txt that are not about its parameters.
//!
//! In: a function's name. Out: its library, category and return type, what its calls do to memory, streams, contexts and
//! graphs, and what they imply for the calls around them. Not here: names of functions. A new toolkit's function is a
//! row of table.txt (table.rs), whose numbers are indices of parameters.

mod words;

use gpurec_trace::word;
use serde::Deserialize;

use crate::{Api, Category, Returns, api, base_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionTraits {
    pub api: Api,
    pub category: Category,
    pub returns: Returns,
    /// `None`: the calls change nothing that is tracked.
    pub kind: Option<Kind>,
    pub(crate) marks: u16,
}

/// What a call implies for the calls around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The call returns before its work is done.
    Async,
    /// The call waits only for work before an event.
    Event,
    /// The call only asks whether work is done.
    Poll,
    /// The host may get results from the call without a visible copy.
    Host,
    /// The call reads the time between two events.
    Elapsed,
    /// The call makes device memory visible to another process or to the host.
    Shares,
    LastError,
    /// `<<<>>>` discards the returned error.
    Unchecked,
    /// The call records an event.
    Record,
    /// The compiler puts the call around a launch.
    Configures,
    /// The call changes nothing.
    Reads,
    /// The call sets a device or an attribute.
    Setup,
}

/// What the calls of a function do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Alloc(Alloc),
    Free(Free),
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
    /// Starts a kernel. `None`: where its arguments are is not known.
    Launch(Option<Shape>),
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
    Nccl(Nccl),
}

/// What the calls of a function of NCCL do. Parameters are known by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nccl {
    /// Enqueues this operation for all ranks of a communicator.
    Collective(&'static str),
    Send,
    Receive,
    /// Makes a communicator from a unique id.
    Init,
    /// Makes communicators for devices of one process.
    InitAll,
    /// Makes a communicator from another.
    Split,
    Shrink,
    Grow,
    /// Ends a communicator.
    End,
    Group {
        begins: bool,
    },
    /// Asks for the rank, or for the number of ranks.
    Rank,
    Ranks,
}

impl Nccl {
    /// Whether the call makes communicators.
    pub fn makes(self) -> bool {
        matches!(self, Nccl::Init | Nccl::InitAll | Nccl::Split | Nccl::Shrink | Nccl::Grow)
    }

    /// Whether the call enqueues an operation.
    pub fn enqueues(self) -> bool {
        matches!(self, Nccl::Collective(_) | Nccl::Send | Nccl::Receive)
    }
}

/// The spaces in which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    pub size: Size,
    pub on: On,
}

/// What shows the device of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// The current context.
    Current,
    Stream,
    /// The pool in parameter 2.
    Pool,
    /// The structure in parameter 2.
    Location,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    pub table: Table,
    /// The space, as far as the function implies it.
    pub space: Option<Space>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// The call returns before the copy is done.
    pub is_async: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    Bytes(usize),
    Product(usize, usize),
    /// CUDA_MEMCPY2D.
    Rows,
    /// CUDA_MEMCPY3D and its peer form.
    Box,
    /// cudaMemcpy3DParms and, for peers, cudaMemcpy3DPeerParms.
    RuntimeBox,
    PeerBox,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// Where a launch function has its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// cuLaunchKernel: function, six numbers, shared memory, stream.
    Driver,
    /// cudaLaunchKernel: function, two dim3, arguments, shared memory, stream.
    Runtime,
    /// cuLaunchKernelEx: a structure and the function.
    Config,
    /// cudaLaunchKernelExC: the same, with 64 bits for the shared memory.
    WideConfig,
}

impl Shape {
    /// The number of parameters that the launch needs.
    pub fn params(self) -> usize {
        match self {
            Shape::Driver => 9,
            Shape::Runtime => 6,
            Shape::Config | Shape::WideConfig => 2,
        }
    }
}

/// What a call shows about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pool {
    /// The call writes a pool of the device in parameter 1 to parameter 0.
    OfDevice,
    /// The call writes the pool to parameter 0; parameter 1 holds its location.
    Create,
    Destroy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// CUDA_ERROR_NOT_READY and cudaErrorNotReady.
const NOT_READY: i32 = 600;
/// ncclInProgress: the call returned before its work is done. The handle that it wrote is valid already.
pub const IN_PROGRESS: i32 = 7;

impl FunctionTraits {
    /// All but a handful of CUDA's functions return a status; `__cuda*` are irregular.
    pub(crate) fn guessed(name: &str) -> FunctionTraits {
        let (api, base) = (api(name), base_name(name));
        let is_cuda = api != Api::Other;
        let ends = |word: &str| is_cuda && base.ends_with(word);
        let category = if ends("Synchronize") {
            Category::Sync
        } else if ends("Query") || (is_cuda && base.contains("Get")) {
            Category::Query
        } else {
            Category::Other
        };
        let mark = |mark: Mark, has: bool| u16::from(has) << mark as u16;
        let marks = mark(Mark::Async, is_cuda && base.contains("Async")) | mark(Mark::Poll, ends("Query"));
        let returns = if is_cuda && !name.starts_with('_') { Returns::Status } else { Returns::Other };
        FunctionTraits { api, category, returns, kind: None, marks }
    }

    pub(crate) fn parse(
        api: Api,
        category: Category,
        returns: Returns,
        texts: &'static str,
    ) -> Option<FunctionTraits> {
        let mut traits = FunctionTraits { api, category, returns, kind: None, marks: 0 };
        for text in texts.split(',').filter(|text| *text != "-") {
            match words::kind(text) {
                Some(kind) => traits.kind = Some(kind),
                None => traits.marks |= 1 << word::<Mark>(text)? as u16,
            }
        }
        let is_async = traits.is(Mark::Async);
        if let Some(Kind::Copy(copy)) = &mut traits.kind {
            copy.is_async = is_async;
        }
        Some(traits)
    }

    pub fn is(&self, mark: Mark) -> bool {
        self.marks & (1 << mark as u16) != 0
    }

    /// Whether calls of both functions imply the same for the calls around them.
    pub fn is_like(&self, other: &FunctionTraits) -> bool {
        let of = |traits: &FunctionTraits| {
            let launches = (traits.is_kernel_launch(), traits.is_graph_launch());
            (traits.category, traits.marks, launches, traits.switches(), traits.reports())
        };
        of(self) == of(other)
    }

    /// Whether a call starts kernels on the GPU by itself. Host functions and graphs do not count.
    pub fn is_kernel_launch(&self) -> bool {
        matches!(self.kind, Some(Kind::Launch(_)))
    }

    pub fn is_graph_launch(&self) -> bool {
        self.kind == Some(Kind::Graph(Graph::Launch))
    }

    pub fn is_sync(&self) -> bool {
        self.category == Category::Sync
    }

    /// Whether a call allocates memory of a size that its arguments give.
    pub fn allocates(&self) -> bool {
        use Category::{Alloc, Managed, Pool, VirtualMemory};
        matches!(self.category, Alloc | Managed | Pool | VirtualMemory)
    }

    /// Whether a call changes the current context of its thread to one that it shows.
    pub fn switches(&self) -> bool {
        use Context::{Create, Pop, Push, Set};
        matches!(self.kind, Some(Kind::Context(Set | Push | Pop | Create { .. })))
    }

    /// Whether a call ends only after earlier work, because it copies or frees.
    fn ends_after_work(&self) -> bool {
        matches!(self.category, Category::Memcpy | Category::Free) && !self.is(Mark::Async)
    }

    /// Whether a call that follows a wait needed the wait.
    pub fn looks(&self) -> bool {
        self.ends_after_work() || self.is(Mark::Elapsed)
    }

    /// Whether a call would report the error of an earlier kernel.
    pub fn reports(&self) -> bool {
        let ends = matches!(self.kind, Some(Kind::Context(Context::DeviceReset | Context::Destroy)));
        self.is_sync() || self.ends_after_work() || self.is(Mark::Poll) || ends
    }

    /// Whether a call that returned `code` failed. A poll returns "not ready" to say no, and a call that asks for the
    /// last error returns the status of an earlier one.
    pub fn is_failure(&self, code: i32) -> bool {
        let answered_no = code == NOT_READY && self.is(Mark::Poll);
        let failed = code != 0 && !answered_no && !self.is_in_progress(code);
        failed && !self.is(Mark::LastError) && self.returns == Returns::Status
    }

    /// Whether `code` says that a call returned before its work is done.
    pub fn is_in_progress(&self, code: i32) -> bool {
        code == IN_PROGRESS && self.api == Api::Other && self.returns == Returns::Status
    }

    /// What a call of NCCL does, if it is one that matters for the order of operations.
    pub fn nccl(&self) -> Option<Nccl> {
        match self.kind {
            Some(Kind::Nccl(nccl)) => Some(nccl),
            _ => None,
        }
    }

    /// The figure that the calls feed by their effects. Functions that wait have none.
    pub fn input(&self) -> Option<Input> {
        use Context::{Destroy, DeviceReset, Release, Reset};
        match self.kind? {
            Kind::Alloc(_) => Some(Input::Allocation),
            Kind::Free(_) | Kind::Unmap | Kind::Context(Destroy | Release | Reset | DeviceReset) => {
                Some(Input::Free)
            }
            Kind::Copy(_) => Some(Input::Copy),
            Kind::Set(_) => Some(Input::Set),
            Kind::Launch(_) => Some(Input::Launch),
            Kind::Graph(Graph::Launch) => Some(Input::GraphLaunch),
            _ => None,
        }
    }

    /// Whether a call hands work to the GPU: a kernel, a graph, a copy or a set.
    pub fn submits(&self) -> bool {
        matches!(self.input(), Some(Input::Launch | Input::GraphLaunch | Input::Copy | Input::Set))
    }

    /// Whether a call does or starts work, or waits for it.
    pub fn is_work(&self) -> bool {
        self.input().is_some() || self.is_sync() || self.nccl().is_some_and(Nccl::enqueues)
    }

    /// Whether the devices and contexts of calls are known only if this function is recorded.
    pub fn places(&self) -> bool {
        use Context::{Current, Device, GetDevice, Release, Reset, Retain};
        match self.kind {
            // These only query the state.
            Some(Kind::Context(Current | Device { .. } | GetDevice | Retain | Release | Reset)) => false,
            Some(Kind::Stream(Stream::Context | Stream::Device) | Kind::Pool(Pool::OfDevice)) => false,
            Some(Kind::Context(_) | Kind::Stream(_) | Kind::Pool(_)) => true,
            _ => false,
        }
    }
}
