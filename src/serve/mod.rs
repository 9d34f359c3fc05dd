//! What a recording serves while it runs. In: its lines. Out: dumps of the flight recorder.

pub mod flight;
