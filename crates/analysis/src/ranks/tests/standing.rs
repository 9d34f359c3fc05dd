//! Ranks that stand still: one does not come to the first collective of a communicator, or the others stand in the call
//! of the collective itself, which has no line of its own until it returns.

use super::by_line::{Made, report_of};
use super::*;

const COMM: &str = "b81c76ab87a4da44";

/// How a rank ends.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// It stands in the call of the collective.
    InCall,
    /// The call returned, and it waits for the GPU.
    InWait,
    /// It does something else.
    Elsewhere,
    Killed,
    KilledInCall,
}

/// A rank of three that makes a communicator, and calls this number of collectives before the last one.
fn rank(number: u32, collectives: u64, last: Last) -> Made {
    let (mut made, pid) = (Made::new(), 100 + number);
    made.rank(pid, number);
    let args = format!(r#"{{"comm":"0x10","nranks":3,"commId":"{COMM}","rank":{number},"config":"0x20"}}"#);
    made.call_with(0.5, pid, "ncclCommInitRankConfig", &args, r#","out":{"comm":"0xabc"}"#);
    let handle = r#"{"sendbuff":"0x1","recvbuff":"0x2","count":9,"datatype":"ncclInt64","op":"ncclSum","comm":"0xabc","stream":"0x7"}"#;
    for seq in 0..collectives {
        made.call_with(0.6, pid, "ncclAllReduce", handle, "");
        made.collective(0.6, pid, COMM, (number, 3), seq);
    }
    match last {
        Last::InCall => _ = made.begin_with(1.0, (pid, pid), "ncclAllReduce", handle),
        Last::InWait => {
            made.call_with(1.0, pid, "ncclAllReduce", handle, "");
            made.collective(1.0, pid, COMM, (number, 3), collectives);
            made.begin(1.0, (pid, pid), "cudaDeviceSynchronize");
        }
        Last::Elsewhere => _ = made.begin(1.0, (pid, pid), "cudaMemcpy"),
        Last::KilledInCall => {
            made.begin_with(1.0, (pid, pid), "ncclAllReduce", handle);
            made.exit(8.0, pid, r#""status":134,"signal":"SIGABRT""#);
        }
        Last::Killed => made.exit(1.1, pid, r#""status":137,"signal":"SIGKILL""#),
    }
    made.end(9.0, "");
    made
}

fn hang(report: &Report) -> (u64, Vec<Option<u32>>, &str) {
    let [hang] = report.hangs.as_slice() else { panic!("{:?}", report.hangs) };
    assert_eq!((hang.comm.as_str(), hang.op.as_str()), (COMM, "AllReduce"));
    (hang.seq, hang.missing.clone(), hang.in_flight[0].process.as_deref().unwrap_or_default())
}

#[test]
fn a_rank_that_does_not_come_to_the_first_collective() {
    let report = report_of([rank(0, 0, Last::InWait), rank(1, 0, Last::Elsewhere), rank(2, 0, Last::InWait)]);
    assert_eq!(hang(&report), (0, vec![Some(1)], ""));
    assert!(text::print(&report, 200).contains("it has called no collective of this communicator"));
}

#[test]
fn ranks_that_stand_in_the_call_itself_have_called_it() {
    for collectives in [0, 5] {
        let ranks = [
            rank(0, collectives, Last::InCall),
            rank(1, collectives, Last::InWait),
            rank(2, collectives, Last::Elsewhere),
        ];
        assert_eq!(hang(&report_of(ranks)), (collectives, vec![Some(2)], ""));
    }
}

#[test]
fn a_rank_that_died_is_the_missing_one() {
    for collectives in [0, 5] {
        let ranks = [
            rank(0, collectives, Last::InCall),
            rank(1, collectives, Last::Killed),
            rank(2, collectives, Last::InCall),
        ];
        assert_eq!(hang(&report_of(ranks)), (collectives, vec![Some(1)], "killed by SIGKILL"));
    }
}

/// A watchdog aborts those that wait: the missing one is still the one that did not come.
#[test]
fn ranks_that_were_killed_in_the_call_have_called_it() {
    let ranks = [rank(0, 5, Last::KilledInCall), rank(1, 5, Last::Elsewhere), rank(2, 5, Last::KilledInCall)];
    assert_eq!(hang(&report_of(ranks)), (5, vec![Some(1)], ""));
}

#[test]
fn all_that_stand_in_one_collective_miss_nobody() {
    let report = report_of([rank(0, 5, Last::InCall), rank(1, 5, Last::InWait), rank(2, 5, Last::InCall)]);
    assert_eq!(report.hangs, []);
    let none = report_of([rank(0, 0, Last::Elsewhere), rank(1, 0, Last::Elsewhere)]);
    assert_eq!(none.hangs, []);
}

/// The rank that did not come may be the one without a trace: no gate may pass.
#[test]
fn a_job_that_stands_still_without_the_trace_of_a_rank() {
    let report = report_of([rank(0, 5, Last::InCall), rank(2, 5, Last::InWait)]);
    assert_eq!(report.hangs, []);
    assert!(report.unknown["hangs"].contains(COMM), "{:?}", report.unknown);
    let (gate, ..) = measure::budget("ranks.hangs==0").unwrap().unwrap();
    assert!(measure::evaluate_job(&gate, &report).is_err());
    assert!(
        report.collectives.is_empty() && report.partial > 0,
        "nothing of an incomplete collective is in a sum"
    );
    let ended = report_of([rank(0, 5, Last::Killed), rank(2, 5, Last::Killed)]);
    assert!(ended.hangs.is_empty() && ended.unknown.is_empty());
}
