//! What a call is for: the word of `--role`. In: the traits of its function. Out: one of a few roles. Not here: names of
//! functions.

use std::fmt;

use gpurec_cuda::traits::Input;
use gpurec_cuda::{Category, FunctionTraits};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum CallRole {
    /// Kernel launches
    Launch,
    /// Graph launches
    Graph,
    Alloc,
    Free,
    Copy,
    /// Memory sets
    Set,
    /// Calls that wait for the GPU
    Sync,
    /// Contexts, modules, registration
    Init,
    Other,
    /// Blocks that PyTorch's allocator hands out
    Block,
}

impl CallRole {
    pub const ALL: [CallRole; 10] = [
        CallRole::Launch,
        CallRole::Graph,
        CallRole::Alloc,
        CallRole::Free,
        CallRole::Copy,
        CallRole::Set,
        CallRole::Sync,
        CallRole::Init,
        CallRole::Other,
        CallRole::Block,
    ];

    pub fn of(traits: &FunctionTraits) -> CallRole {
        match (traits.input(), traits.category) {
            _ if traits.is_sync() => CallRole::Sync,
            (Some(Input::Launch), _) => CallRole::Launch,
            (Some(Input::GraphLaunch), _) => CallRole::Graph,
            (_, Category::Init | Category::Context | Category::Module | Category::Register) => CallRole::Init,
            (Some(Input::Allocation), _) => CallRole::Alloc,
            (Some(Input::Free), _) => CallRole::Free,
            (Some(Input::Copy), _) => CallRole::Copy,
            (Some(Input::Set), _) => CallRole::Set,
            _ => CallRole::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            CallRole::Launch => "launch",
            CallRole::Graph => "graph",
            CallRole::Alloc => "alloc",
            CallRole::Free => "free",
            CallRole::Copy => "copy",
            CallRole::Set => "set",
            CallRole::Sync => "sync",
            CallRole::Init => "init",
            CallRole::Other => "other",
            CallRole::Block => "block",
        }
    }

    /// Whether the calls hand work to the GPU.
    pub fn submits(self) -> bool {
        matches!(self, CallRole::Launch | CallRole::Graph | CallRole::Copy | CallRole::Set)
    }

    /// The bit for a set of roles.
    pub fn bit(self) -> u16 {
        1 << self as u16
    }

    /// What the stacks of this role are sorted by, unless the user says otherwise.
    pub fn weight(self) -> Weight {
        match self {
            CallRole::Alloc | CallRole::Free | CallRole::Copy | CallRole::Set | CallRole::Block => {
                Weight::Bytes
            }
            _ => Weight::Time,
        }
    }
}

impl fmt::Display for CallRole {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the calls of a stack weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Weight {
    /// The number of calls
    Count,
    /// Their time on the host
    #[default]
    Time,
    /// Bytes allocated, freed, copied and set
    Bytes,
    /// The time on the GPU of what they submitted, of a recording with --gpu
    Gpu,
}
