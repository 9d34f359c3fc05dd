//! The live suite: the built binary, as root, with real BPF, on real programs.
//!
//! In: the binary, a C compiler, NVIDIA's libraries by GPUREC_NVIDIA_LIBS.
//! Out: every trace it writes, checked against the trace format and against what the programs really did.
//! What is missing here (root, BPF, libraries) skips a test and says so; with CI=true it fails it.
//! Without --include-ignored (scripts/test --full) slow tests that are much as another one are ignored, and most tests
//! record by the best backend only; those of truth and of must_show record by every backend all the same.
//! Tests run one at a time, each in a folder of its own; each checks that it leaves nothing behind.
//! Not here: asserts on time. Tests wait for a condition, with a generous limit.

mod actions;
mod askers;
mod blocks;
mod bounds;
mod budget;
mod call_sites;
mod capture;
mod cases;
mod child;
mod clocks;
mod cost;
mod dashboard;
mod demo;
mod devices;
mod disk;
mod disorder;
mod everyone;
mod faults;
mod figures;
mod flight;
mod flood;
mod forks;
mod frozen;
mod gpu;
mod held;
mod hostile;
mod jobs;
mod kernel;
mod killed;
mod known;
mod lane;
mod lossless;
mod manners;
mod many;
mod matrix;
mod metrics;
mod must_show;
mod natives;
mod nccl;
mod needs;
mod nonlocal;
mod nvml;
mod opener;
mod other_libc;
mod patterns;
mod place;
mod privileges;
mod python_liars;
mod python_stacks;
mod pythons;
mod refuse;
mod refused;
mod resident;
mod rewritten;
mod rights;
mod room;
mod run;
mod shown;
mod signals;
mod soak;
mod stacks;
mod table;
mod tmux;
mod top;
mod trace;
mod truth;
mod unfinished;
mod unharmed;
mod unseen;
mod user;
mod vanish;
