//! What ran on the GPU, and when. In: CUPTI's activity records, as bytes. Out: what they say.
//! Not here: lines of the trace (pipeline), and CUPTI itself, which runs only in recorded processes.

pub mod cupti;
