//! All output to the user's terminal goes through this module, except the rows and the status line of a recording:
//! `record::screen` writes those in a thread that may wait for slow readers.

pub use gpurec_analysis::ui::*;
