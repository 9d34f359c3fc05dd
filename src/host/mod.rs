//! What this machine can do. Facts are gathered by I/O (`facts`); what follows from them
//! is decided by a pure function (`plan`); crate::doctor prints both, and the recorder asks
//! before it starts. A fact that could not be found out is unknown, which is not "no".
//! Not here: loading or attaching anything.

mod backend;
pub mod btf;
pub mod early;
mod facts;
mod libraries;
mod plan;
#[cfg(test)]
mod tests;
pub mod tracefs;
mod types;

use anyhow::{Result, bail};

pub use backend::Backend;
pub use facts::{Facts, driver_version};
pub use libraries::cuda_libraries;
pub use plan::{Plan, plan};
pub use types::types;

/// What this machine can do for a recording; an error if it can do nothing.
pub fn ready() -> Result<Plan> {
    let plan = plan(&Facts::gather());
    if let Some(problem) = plan.problems.iter().find(|problem| problem.fatal) {
        bail!("{}; {}", problem.what, problem.remedy);
    }
    Ok(plan)
}
