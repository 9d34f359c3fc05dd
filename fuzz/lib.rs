//! What the fuzz targets check.
//! In: any bytes.
//! Out: nothing, or a panic that says which promise was broken. Only public functions of the crates are called, and no
//! process, probe or file of others is touched.

mod checks;

pub use checks::budget as budgets;
pub use checks::{elf, gpu, ioctl, jsonl, native, pair, python, ranks, records, seeds};
