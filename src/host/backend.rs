//! The backends that can hook CUDA functions: one table for the plan, the loader and the command line.

/// The backends, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One session program: one link hooks entries and returns of a whole library (6.13+).
    Session,
    /// Two links for a library: one for entries, one for returns (6.6+).
    Multi,
    /// Two links for each function.
    Single,
}

impl Backend {
    pub const ALL: [Backend; 3] = [Backend::Session, Backend::Multi, Backend::Single];

    pub fn name(self) -> &'static str {
        match self {
            Backend::Session => "uprobe.session",
            Backend::Multi => "uprobe.multi",
            Backend::Single => "uprobe",
        }
    }

    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name)
    }
}
