//! Everything that gpurec writes to the user's terminal goes through here, but for the rows and the status line of a
//! recording, which `record::screen` writes in a thread that may wait for slow readers.

pub use gpurec_analysis::ui::*;
