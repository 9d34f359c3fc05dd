//! What this machine supports. `facts` gathers facts by I/O; `plan`, a pure function, draws the conclusions;
//! crate::doctor prints both, and the recorder checks the plan before it starts. A fact that could not be determined is
//! unknown, which differs from "no". Not here: loading or attaching anything.

mod backend;
pub mod btf;
pub mod clock;
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

/// The plan for a recording on this machine; an error if nothing can be recorded.
pub fn ready() -> Result<Plan> {
    let plan = plan(&Facts::gather());
    if let Some(problem) = plan.problems.iter().find(|problem| problem.fatal) {
        bail!("{}; {}", problem.what, problem.remedy);
    }
    Ok(plan)
}
