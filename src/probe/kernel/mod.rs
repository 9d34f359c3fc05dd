//! Linux-side hooks. In: rows of the hook table and names that the user gave. Out: for each its symbol, address and the
//! backends that may work, or the reason why it cannot be hooked; lists for the user; and attached hooks for the chosen
//! ones.
//!
//! symbols (facts) → resolve, backends (pure) → attach, functions, events (libbpf).
//! Not here: what a hit means.

mod attach;
mod backends;
mod choice;
mod config;
mod driver;
mod events;
mod forbidden;
mod functions;
mod list;
mod near;
mod resolve;
mod survey;
mod symbols;
mod target;
#[cfg(test)]
mod tests;

pub use attach::Change;
pub use backends::Backend;
pub use choice::Choice;
pub use driver::{Driver, Numbering};
pub use events::Event;
pub use list::list;
pub use resolve::{HookRequest, PlannedHook, plan};
pub use survey::survey;
pub use symbols::{Scope, Symbols};
pub use target::Target;
