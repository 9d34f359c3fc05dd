//! What the fuzz targets check. In: any bytes. Out: nothing, or a panic that says which promise was broken.
//!
//! The recorder's sources are taken in by path, as if this were its main.rs, since it is a program and
//! has no library. Making it one would be a second way of building it: every room's insides would become
//! an interface, nothing unused would be reported any more, and what belongs to a crate (its version in
//! the trace, what build.rs made) would belong to two. The price is the list of dependencies in
//! Cargo.toml, which must follow the recorder's. Only the rooms' public functions are called, and no
//! process, probe or file of anybody else is touched.

// Most of the recorder is not called from here.
#![allow(dead_code, unused_imports)]

#[path = "../../budget/mod.rs"]
mod budget;
#[path = "../../cli/mod.rs"]
mod cli;
#[path = "../../clock.rs"]
mod clock;
#[path = "../../cuda/mod.rs"]
mod cuda;
#[path = "../../demo/mod.rs"]
mod demo;
#[path = "../../driver/mod.rs"]
mod driver;
#[path = "../../elf/mod.rs"]
mod elf;
#[path = "../../files/mod.rs"]
mod files;
#[path = "../../host/mod.rs"]
mod host;
#[path = "../../meaning/mod.rs"]
mod meaning;
#[path = "../../paper.rs"]
mod paper;
#[path = "../../pipeline/mod.rs"]
mod pipeline;
#[path = "../../probe/mod.rs"]
mod probe;
#[path = "../../record/mod.rs"]
mod record;
#[path = "../../report/mod.rs"]
mod report;
#[path = "../../room.rs"]
mod room;
#[path = "../../say.rs"]
mod say;
#[path = "../../target/mod.rs"]
mod target;
#[path = "../../trace/mod.rs"]
mod trace;

mod checks;

pub use checks::budget as budgets;
pub use checks::{elf, ioctl, jsonl, pair, records, seeds};
