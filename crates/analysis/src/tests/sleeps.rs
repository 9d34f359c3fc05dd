//! Suspends of the machine, from the lines alone.

use super::*;

const MS: u64 = 1_000_000;

#[test]
fn a_sleep_is_reported_and_is_in_no_duration() {
    let mut s = Script::new();
    let call = s.begin("cuCtxSynchronize", None);
    s.push(20 * MS, Body::Suspend(Suspend { slept_ns: 30_000_000_000 }));
    s.end(call, 40_000, 0);
    for _ in 0..9 {
        s.push(MS, Body::Suspend(Suspend { slept_ns: 500 * MS }));
    }
    let (live, bytes) = s.finish();
    let sleeps = live.sleeps.as_ref().expect("it slept");
    assert_eq!((sleeps.count, sleeps.total_ns, sleeps.first.len()), (10, 34_500 * MS, 8));
    assert!(live.complete && live.duration_ns < 100 * MS, "{live:?}");
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    let reported =
        "\nThe machine slept: 10 times, 34.500 s in all\n  30.000 s at 0.020001000\n  500.000 ms at 0.0";
    assert!(printed.contains(reported), "{printed}");
    assert!(printed.contains(
        "  and 2 more times\n  The clock of a trace stands still meanwhile: that time is in no duration.\n"
    ));
}
