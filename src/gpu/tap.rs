//! The records that another client of CUPTI is given, such as torch.profiler: gpurec hooks the function by which every
//! client goes from one record to the next. In: what the hook captured. Out: the record. gpurec is no client here.
//!
//! At its entry the function is given the record that its caller has read, and returns the next one. So each record is
//! read once, one call late; the call that returns none is given the last.
//! Not here: what a record means (cupti.rs).

use std::sync::LazyLock;

use gpurec_cuda::raw::{Piece, Plan, Read, Source, What};

use super::cupti::{self, Activity};

/// By which a client gets records.
const NEXT: [&str; 2] = ["cuptiActivityGetNextRecord", "cuptiActivityGetNextRecord_v2"];
/// Which show that there is a client.
const HOLDS: [&str; 8] = [
    "cuptiSubscribe",
    "cuptiSubscribe_v2",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityRegisterCallbacks_v2",
    "cuptiActivityEnable",
    "cuptiActivityEnable_v2",
    "cuptiUnsubscribe",
    "cuptiFinalize",
];
/// Bytes of a kernel's name, with its zero; a longer one is cut.
const NAME: u16 = 1024;
pub const LONGEST_NAME: usize = NAME as usize - 1;
/// The index of the parameter that points to the record's address.
const RECORD: u8 = 2;

pub fn is_library(file_name: &str) -> bool {
    file_name.starts_with("libcupti.so") || file_name.starts_with("libcupti-")
}

/// Functions of libcupti that are hooked. `records`: those that show records, too.
pub fn wants(function: &str, records: bool) -> bool {
    HOLDS.contains(&function) || records && is_next(function)
}

/// Whether its calls are records, and no lines of their own.
pub fn is_next(function: &str) -> bool {
    NEXT.contains(&function)
}

/// Whether a call makes its caller the client that gets CUPTI's records.
pub fn takes_over(function: &str) -> bool {
    function.starts_with("cuptiActivityRegisterCallbacks")
}

/// What is captured of a call.
pub fn plan(function: &str) -> Option<&'static Plan> {
    static PLAN: LazyLock<Plan> = LazyLock::new(|| {
        let read = |from, what| Read { param: RECORD, from, what };
        let entry = vec![
            read(Source::Word(RECORD), What::Bytes(8)),
            read(Source::Inside { read: 0, offset: 0 }, What::Bytes(cupti::LONGEST as u16)),
            read(Source::Inside { read: 1, offset: cupti::NAME as u16 }, What::Text(NAME)),
        ];
        Plan { entry, ..Plan::default() }
    });
    is_next(function).then_some(&*PLAN)
}

/// The record that a call was given, and the name where it is a kernel's. None: none, or one of a kind that gpurec does
/// not read. An error: it could not be read.
pub fn record<'a>(mut pieces: impl Iterator<Item = Piece<'a>>) -> Result<Option<(Activity, &'a [u8])>, ()> {
    match pieces.next() {
        Some(Piece::Bytes { bytes, .. }) if bytes.iter().all(|byte| *byte == 0) => return Ok(None),
        Some(Piece::Bytes { .. }) => {}
        Some(Piece::Null) => return Ok(None),
        _ => return Err(()),
    }
    let Some(Piece::Bytes { bytes, .. }) = pieces.next() else { return Err(()) };
    let name = match pieces.next() {
        Some(Piece::Bytes { bytes, .. }) => bytes.split(|byte| *byte == 0).next().unwrap_or_default(),
        _ => &[],
    };
    Ok(cupti::decode(bytes).map(|activity| (activity, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: &[u8]) -> Piece<'_> {
        Piece::Bytes { bytes, cut: false }
    }

    #[test]
    fn a_call_shows_the_record_before() {
        let mut kernel = [0; cupti::LONGEST];
        kernel[0] = cupti::kind::KERNEL as u8;
        let address = 0x1000u64.to_ne_bytes();
        let pieces = [bytes(&address), bytes(&kernel), bytes(b"name\0rest")];
        let (activity, name) = record(pieces.into_iter()).unwrap().unwrap();
        assert!(matches!(activity, Activity::Work(_)));
        assert_eq!(name, b"name");
        assert_eq!(record([bytes(&[0; 8])].into_iter()), Ok(None), "the first call of a buffer");
        assert_eq!(record([bytes(&address), bytes(&[99; 160])].into_iter()), Ok(None));
        for unread in [vec![], vec![Piece::Unreadable], vec![bytes(&address), Piece::Unreadable]] {
            assert_eq!(record(unread.into_iter()), Err(()));
        }
    }

    #[test]
    fn functions_are_known_by_their_names() {
        assert!(wants("cuptiSubscribe", false) && !wants("cuptiActivityGetNextRecord", false));
        assert!(wants("cuptiActivityGetNextRecord_v2", true) && !wants("cuptiGetVersion", true));
        assert!(plan("cuptiActivityGetNextRecord").is_some() && plan("cuptiSubscribe").is_none());
        assert!(
            is_library("libcupti.so.12") && is_library("libcupti-1b2c.so.12") && !is_library("libcuda.so.1")
        );
    }
}
