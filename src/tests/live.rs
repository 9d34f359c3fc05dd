//! The live suite: the built binary, as root, with real BPF, on real programs.
//!
//! In: the binary, a C compiler, NVIDIA's libraries by GPUREC_NVIDIA_LIBS. Out: every trace it writes,
//! checked against INTERFACE.md and against what the programs really did.
//! What is missing here (root, BPF, libraries) skips a test and says so; with CI=true it fails it.
//! One test at a time, each in a folder of its own; nothing stays behind, and that is checked too.
//! Not here: asserts on time. A condition is waited for, with a generous limit.

#[path = "live/actions.rs"]
mod actions;
#[path = "live/bounds.rs"]
mod bounds;
#[path = "live/budget.rs"]
mod budget;
#[path = "live/capture.rs"]
mod capture;
#[path = "live/cases.rs"]
mod cases;
#[path = "live/child.rs"]
mod child;
#[path = "live/cost.rs"]
mod cost;
#[path = "live/demo.rs"]
mod demo;
#[path = "live/devices.rs"]
mod devices;
#[path = "live/disk.rs"]
mod disk;
#[path = "live/disorder.rs"]
mod disorder;
#[path = "live/everyone.rs"]
mod everyone;
#[path = "live/faults.rs"]
mod faults;
#[path = "live/figures.rs"]
mod figures;
#[path = "live/held.rs"]
mod held;
#[path = "live/hostile.rs"]
mod hostile;
#[path = "live/jobs.rs"]
mod jobs;
#[path = "live/kernel.rs"]
mod kernel;
#[path = "live/killed.rs"]
mod killed;
#[path = "live/known.rs"]
mod known;
#[path = "live/lossless.rs"]
mod lossless;
#[path = "live/manners.rs"]
mod manners;
#[path = "live/many.rs"]
mod many;
#[path = "live/matrix.rs"]
mod matrix;
#[path = "live/must_show.rs"]
mod must_show;
#[path = "live/needs.rs"]
mod needs;
#[path = "live/nonlocal.rs"]
mod nonlocal;
#[path = "live/opener.rs"]
mod opener;
#[path = "live/other_libc.rs"]
mod other_libc;
#[path = "live/patterns.rs"]
mod patterns;
#[path = "live/place.rs"]
mod place;
#[path = "live/privileges.rs"]
mod privileges;
#[path = "live/reach.rs"]
mod reach;
#[path = "live/refuse.rs"]
mod refuse;
#[path = "live/refused.rs"]
mod refused;
#[path = "live/resident.rs"]
mod resident;
#[path = "live/rewritten.rs"]
mod rewritten;
#[path = "live/rights.rs"]
mod rights;
#[path = "live/room.rs"]
mod room;
#[path = "live/run.rs"]
mod run;
#[path = "live/shown.rs"]
mod shown;
#[path = "live/signals.rs"]
mod signals;
#[path = "live/soak.rs"]
mod soak;
#[path = "live/stacks.rs"]
mod stacks;
#[path = "live/table.rs"]
mod table;
#[path = "live/trace.rs"]
mod trace;
#[path = "live/truth.rs"]
mod truth;
#[path = "live/unfinished.rs"]
mod unfinished;
#[path = "live/unharmed.rs"]
mod unharmed;
#[path = "live/unseen.rs"]
mod unseen;
#[path = "live/user.rs"]
mod user;
#[path = "live/vanish.rs"]
mod vanish;
