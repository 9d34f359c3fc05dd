//! Figures by name, for the gates `check` and `diff`.
//!
//! In: the lines of a trace, and metrics such as `cudaMalloc.calls` from the user. Out: exact values with units, or the
//! reason why there is none. Figures of `summary` come from it; nothing counts them a second way. A missing metric is
//! never 0.

mod calls;
mod eval;
mod gather;
mod language;
mod metric;
mod names;
mod part;
mod sample;
#[cfg(test)]
pub mod script;
#[cfg(test)]
mod tests;
mod value;
mod verdict;

pub use calls::NAMELESS;
pub use eval::{EvalError, Evaluation, decide, evaluate, evaluate_job, options_that_leave_out, recorded};
pub use gather::{Asks, Measurements, gather};
pub use language::{Fault, Op, Term, Threshold, budget, metric, threshold};
pub use metric::Improvement;
pub use names::{did_you_mean, nearest};
pub use part::Coverage;
pub use sample::{First, Sample};
pub use value::{Unit, Value};
pub use verdict::Verdict;
