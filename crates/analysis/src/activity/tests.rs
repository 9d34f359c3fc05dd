//! Rates, sums and orders of what processes do.

use super::*;
use crate::activity::columns::PROCESS;
use crate::usage::{Detail as Copied, Name, SitePart};
use gpurec_trace::DeviceProcess;

const SECOND: u64 = 1_000_000_000;

fn thread(tid: u32, calls: u64, sync_ns: u64, call_ns: u64) -> ThreadPart {
    ThreadPart { tid, calls, sync_ns, call_ns, cost_ns: calls * 1000, open: None }
}

fn part(pid: u32, launches: u64, copied: u64, threads: Vec<ThreadPart>) -> Part {
    let mut sums = Sums { launches, graph_launches: launches / 10, ..Sums::default() };
    sums.copied("H2D", copied);
    sums.allocated("device", 4096);
    let name = Name { comm: format!("p{pid}"), ..Name::default() };
    Part { pid, name, sums, threads, first_ns: 5, ..Part::default() }
}

fn snapshot(at_ns: u64, processes: Vec<Part>) -> Snapshot {
    Snapshot { at_ns, processes, ..Snapshot::default() }
}

fn between(before: &Snapshot, now: &Snapshot) -> Activity {
    Activity::between(before, now, |cgroup| Some(format!("id of {cgroup}")))
}

#[test]
fn rates_are_those_of_the_time_between() {
    let before = snapshot(SECOND, vec![part(7, 100, 1000, vec![thread(7, 10, 100, 200)])]);
    let mut process = part(7, 160, 4000, vec![thread(7, 30, SECOND, SECOND + 200), thread(8, 5, 0, 50)]);
    process.held = Some([4096, 0, 0, 0, 0, 0, 0]);
    process.name.cgroup = Some("/a".into());
    process.sums.failed("cudaErrorInvalidValue", 2);
    process.sums.stopped_ns = 500;
    let mut now = snapshot(3 * SECOND, vec![process]);
    now.lost = 4;
    let activity = between(&before, &now);
    assert_eq!((activity.passed_ns, activity.lost, activity.new_lost), (2 * SECOND, 4, 4));
    let counts = Counts { calls: 0, launches: 60, graph_launches: 6, copied: 3000, failed: 2 };
    assert_eq!(activity.total, counts);
    let [row] = activity.rows.as_slice() else { panic!("{activity:?}") };
    assert_eq!(row.new, counts);
    assert_eq!((row.held_bytes(), row.failed_calls()), (Some(4096), 2));
    assert_eq!(row.container.as_deref(), Some("id of /a"));
    // Each of the thread that has most of it; a stop costs every thread.
    assert_eq!((row.sync_ns, row.call_ns, row.cost_ns), (SECOND - 100, SECOND, 20_500));
    let json = activity.json("host", SystemTime::UNIX_EPOCH);
    let process = &json["processes"][0];
    assert_eq!((&json["ts"], &json["interval_sec"], &json["lost"]), (&3.0.into(), &2.0.into(), &4.into()));
    assert_eq!(
        (&process["launches_per_sec"], &process["copied_bytes_per_sec"]),
        (&33.0.into(), &1500.0.into())
    );
    assert_eq!((&process["sync_share"], &process["call_share"]), (&0.5.into(), &0.5.into()));
    assert_eq!((&process["held_bytes"], &process["held_by_space"]["device"]), (&4096.into(), &4096.into()));
    assert!(process["unknown"].get("held_bytes").is_none() && process["unknown"]["nvml_bytes"].is_string());
}

#[test]
fn another_process_with_the_number_of_one_that_ended_begins_anew() {
    let before = snapshot(SECOND, vec![part(7, 100, 1000, Vec::new())]);
    let now = snapshot(2 * SECOND, vec![Part { first_ns: 9, ..part(7, 40, 0, Vec::new()) }]);
    assert_eq!(between(&before, &now).rows[0].new.launches, 40);
    // One that ended has no row, but its counts are in the total.
    let ended = Part { has_ended: true, ..part(7, 140, 1000, Vec::new()) };
    let activity = between(&before, &snapshot(2 * SECOND, vec![ended]));
    assert!(activity.rows.is_empty() && activity.total.launches == 40);
}

#[test]
fn what_is_not_known_is_null_with_its_reason() {
    let process = Part { held_since: Some([64, 0, 0, 0, 0, 0, 0]), ..part(7, 0, 0, Vec::new()) };
    let activity = between(&Snapshot::default(), &snapshot(SECOND, vec![process]));
    let json = activity.json("host", SystemTime::UNIX_EPOCH);
    let process = &json["processes"][0];
    assert!(process["held_bytes"].is_null() && process["nvml_bytes"].is_null());
    assert!(process["unknown"]["held_bytes"].is_string() && process["held_since_start_bytes"] == 64);
    let rows: Vec<&Row> = activity.rows.iter().collect();
    assert!(columns::processes(&rows).text(200)[1].contains(" +64 B "));
    assert!(columns::total(&activity).ends_with(", memory held not known"));
}

#[test]
fn memory_by_nvml_is_that_of_all_devices() {
    let device = |device, bytes| Device {
        device,
        processes: Some(vec![DeviceProcess { pid: 7, bytes }, DeviceProcess { pid: 8, bytes: None }]),
        ..Device::default()
    };
    let processes = vec![part(7, 0, 0, Vec::new()), part(8, 0, 0, Vec::new())];
    let devices = vec![device(2, Some(100)), device(5, Some(1))];
    let activity = between(&Snapshot::default(), &Snapshot { devices, ..snapshot(SECOND, processes) });
    let [row, other] = activity.rows.as_slice() else { panic!("{activity:?}") };
    assert_eq!((row.nvml_bytes(), row.gpus().as_str()), (Some(101), "2,5"));
    assert_eq!((other.nvml_bytes(), other.gpus().as_str()), (None, "2,5"));
    let own = Row { devices: vec![0, 1, 2, 3, 6, 7, 9], ..Row::default() };
    assert_eq!(own.gpus(), "0-3,6-7,9");
}

#[test]
fn calls_that_are_open_for_long() {
    let open = |tid, ns| ThreadPart { open: Some(("cuCtxSynchronize".into(), ns)), ..thread(tid, 1, 0, 0) };
    let threads = vec![open(1, LONG), open(2, LONG - 1), open(3, 5 * LONG), thread(4, 1, 0, 0)];
    let activity = between(&Snapshot::default(), &snapshot(SECOND, vec![part(1, 0, 0, threads)]));
    let row = &activity.rows[0];
    assert_eq!(row.long_calls(), [(3, "cuCtxSynchronize", 5 * LONG), (1, "cuCtxSynchronize", LONG)]);
    assert_eq!(columns::open_call(row.long_calls()[1]), "cuCtxSynchronize open for 1.000 s in thread 1");
    let in_flight = &activity.json("host", SystemTime::UNIX_EPOCH)["processes"][0]["in_flight"];
    assert_eq!((in_flight[0]["tid"].as_u64(), in_flight[0]["duration_us"].as_f64()), (Some(3), Some(5e6)));
}

#[test]
fn details_are_sorted_by_their_rates() {
    let site = |name: &str, calls| SitePart {
        site: name.into(),
        function: "cuLaunchKernel".into(),
        times: Times { calls, ns: 10 * calls },
    };
    let with = |kernels: &[(&str, u64)], sites| Part {
        detail: Some(Copied {
            kernels: kernels.iter().map(|(name, launches)| ((*name).to_owned(), *launches)).collect(),
            sites,
        }),
        ..part(7, 0, 0, Vec::new())
    };
    let before = snapshot(SECOND, vec![with(&[("a", 100), ("b", 5)], vec![site("x.py:1", 3)])]);
    let now =
        snapshot(2 * SECOND, vec![with(&[("a", 101), ("b", 9)], vec![site("x.py:1", 4), site("y.py:2", 9)])]);
    let detail = between(&before, &now).detail.unwrap();
    let kernels: Vec<_> = detail.kernels.iter().map(|row| (row.name.as_str(), row.new)).collect();
    assert_eq!(kernels, [("b", Some(4)), ("a", Some(1))]);
    let sites: Vec<_> = detail.sites.iter().map(|row| (row.site.as_str(), row.new.unwrap().calls)).collect();
    assert_eq!(sites, [("y.py:2", 9), ("x.py:1", 1)]);
    // The first details of a process have totals alone.
    let first = between(&snapshot(SECOND, vec![part(7, 0, 0, Vec::new())]), &now).detail.unwrap();
    assert_eq!((first.kernels[0].name.as_str(), first.kernels[0].new), ("a", None));
    assert!(columns::kernels(&detail, SECOND).text(80)[1].starts_with("     4.00        9 b"));
}

#[test]
fn every_column_sorts() {
    let mut processes: Vec<Part> = (1..=4).map(|n| part(n, 10 * u64::from(n), 5, Vec::new())).collect();
    processes[2].sums.copied("D2H", 77);
    let activity = between(&Snapshot::default(), &snapshot(SECOND, processes));
    let order = |column: &str, reverse| {
        let column = PROCESS.iter().position(|known| known.head == column).unwrap();
        let mut rows: Vec<&Row> = activity.rows.iter().collect();
        columns::sort(&mut rows, column, reverse);
        rows.iter().map(|row| row.pid).collect::<Vec<_>>()
    };
    assert_eq!(order("LAUNCH/s", false), [4, 3, 2, 1]);
    assert_eq!(order("LAUNCH/s", true), [1, 2, 3, 4]);
    assert_eq!(order("COPY/s", false), [3, 1, 2, 4]);
    assert_eq!((order("PID", false), order("COMMAND", true)), (vec![1, 2, 3, 4], vec![4, 3, 2, 1]));
    for column in PROCESS {
        assert_eq!(order(column.head, false).len(), 4);
    }
}
