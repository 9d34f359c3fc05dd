//! Why the injected library records nothing, in words. In: the step that failed and CUPTI's result. Out: a reason and a
//! remedy. Pure.

use super::ring::{Facts, step};

/// CUPTI's results, by its numbers, with what to do about each.
const RESULTS: [(i32, &str); 10] = [
    (
        14,
        "another client uses CUPTI in a way that excludes this one (CUPTI_ERROR_NOT_COMPATIBLE): record without that client, or with --gpu=tap",
    ),
    (
        15,
        "libcupti and the driver do not fit each other (CUPTI_ERROR_NOT_INITIALIZED): install the nvidia-cuda-cupti of the driver's CUDA version",
    ),
    (
        33,
        "CUPTI does not support this virtual GPU (CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED): record on a GPU that is passed through",
    ),
    (
        35,
        "the driver permits profiling only to root (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES): set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module",
    ),
    (
        39,
        "another client holds CUPTI, which has one (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED): record without that client, or with --gpu=tap",
    ),
    (
        40,
        "this virtual GPU does not permit profiling (CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES): its host has to enable it",
    ),
    (
        41,
        "the GPU is in confidential-computing mode (CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED), in which CUPTI records nothing",
    ),
    (43, "CUPTI does not do this on a MIG device (result 43): record on a whole GPU"),
    (47, "CUPTI does not do this under MPS (result 47): record without the MPS server"),
    (
        999,
        "libcupti could not initialise (CUPTI_ERROR_UNKNOWN): it may be newer than the driver; install the nvidia-cuda-cupti of the driver's CUDA version",
    ),
];

pub fn why(facts: &Facts) -> String {
    match (facts.step, RESULTS.iter().find(|(result, _)| *result == facts.result)) {
        (step::FIND, _) => {
            "no libcupti was found; install it (pip install nvidia-cuda-cupti-cu12, or the toolkit's CUPTI)"
                .to_owned()
        }
        (step::FUNCTIONS, _) => format!(
            "libcupti (version {}) lacks functions that gpurec needs: use that of CUDA 12.0 to 13.5",
            facts.version
        ),
        (_, Some((_, text))) => (*text).to_owned(),
        (step, None) => format!(
            "CUPTI (version {}) refused to {} with its result {}; `gpurec doctor` says what this machine has",
            facts.version,
            match step {
                step::SUBSCRIBE => "have a client",
                step::CLOCK => "use another clock",
                step::CALLBACKS => "fill buffers",
                _ => "record",
            },
            facts.result
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_remedy() {
        let said = |step, result| why(&Facts { step, result, version: 26, ..Facts::default() });
        for (step, result, word) in [
            (step::FIND, 0, "pip install"),
            (step::FUNCTIONS, 0, "12.0 to 13.5"),
            (step::SUBSCRIBE, 39, "--gpu=tap"),
            (step::SUBSCRIBE, 15, "install"),
            (step::ENABLE, 43, "MIG"),
            (step::ENABLE, 47, "MPS"),
            (step::ENABLE, 5, "result 5"),
            (step::CLOCK, 5, "clock"),
            (77, i32::MIN, "refused to record"),
        ] {
            let text = said(step, result);
            assert!(text.contains(word) && !text.contains('\n'), "{text}");
        }
    }
}
