//! Recordings that exceed the limits on distinct items: sums stay right, and so does what does not fall into shared
//! entries.

use super::*;
use gpurec_trace::bounds::MOST_OPEN;

fn long(i: u64) -> String {
    format!("{i:04000}")
}

/// Sequential calls, each with its end.
fn calls(count: u64, make: impl Fn(u64) -> (String, Option<Launch<'static>>, Option<String>)) -> Figures {
    let mut summary = Summary::new();
    for i in 0..count {
        let (name, launch, error) = make(i);
        let args = Args::raw(&[]);
        let begin = Begin {
            name: name.clone().into(),
            pid: 1,
            tid: 1,
            depth: 0,
            parent: None,
            args,
            launch,
            stack: None,
            no_return: None,
            carried: false,
        };
        summary.add(&Line { event_id: 2 * i, ts_ns: i, body: Body::Begin(begin) });
        let retval = Some(Retval::Number(if error.is_some() { i as i64 + 1 } else { 0 }));
        let end = End {
            name: name.into(),
            pid: 1,
            tid: 1,
            begin: 2 * i,
            duration_ns: Some(10),
            paused_ns: 0,
            retval,
            error: error.map(Cow::Owned),
            out: None,
            late: None,
            ended: EndKind::Returned,
        };
        summary.add(&Line { event_id: 2 * i + 1, ts_ns: i, body: Body::End(end) });
    }
    summary.finish(count)
}

#[test]
fn functions_beyond_the_room_for_names_are_one_row() {
    let figures = calls(6000, |i| (long(i), None, None));
    let others = figures.functions.iter().find(|f| f.name == "(other functions)").unwrap();
    assert_eq!(others.calls + figures.functions.len() as u64 - 1, 6000);
    assert!((4000..4300).contains(&figures.functions.len()) && figures.complete);
    let figures = calls(16_383, |i| (format!("{i:0256}"), None, None));
    assert_eq!(figures.functions.len(), 16_383, "as many as can be hooked");
}

#[test]
fn kernels_beyond_the_room_for_names_are_one_row() {
    let launch = |kernel: String| Launch { kernel: Some(kernel.into()), ..Launch::default() };
    let of = |count, name: fn(u64) -> String| {
        calls(count, move |i| ("cuLaunchKernel".to_owned(), Some(launch(name(i))), None))
    };
    let figures = of(30_000, long);
    let others = figures.kernels.iter().find(|kernel| kernel.name == "(others)").unwrap();
    assert!(others.launches > 10_000 && figures.kernel_launches == 30_000);
    assert_eq!(others.launches + figures.kernels.len() as u64 - 1 + figures.more_kernels, 30_000);
    let figures = of(100_000, |i| format!("{i:0500}"));
    assert_eq!(figures.kernels.len() as u64 + figures.more_kernels, 100_000, "as PyTorch has them");
}

#[test]
fn errors_without_end_are_one_row_and_the_end_line_fits() {
    let mut figures = calls(50_000, |i| ("cuInit".to_owned(), None, Some(long(i))));
    assert_eq!((figures.failures.calls, figures.failures.by_error.len()), (50_000, 4097));
    assert_eq!(figures.failures.by_error.iter().map(|kind| kind.count).sum::<u64>(), 50_000);
    let function = |i| figures::Function { name: long(i), calls: 1, total_ns: 1, ..Default::default() };
    figures.functions = (0..10_000).map(function).collect();
    let json = figures.to_json();
    assert!(json.to_string().len() < 11 << 20);
    let stored = Figures::from_json(&json).unwrap();
    assert_eq!(stored.functions.iter().map(|f| f.calls).sum::<u64>(), 10_000);
    assert_eq!(stored.failures.by_error.iter().map(|kind| kind.count).sum::<u64>(), 50_000);
}

#[test]
fn calls_open_beyond_the_bound_are_counted_and_said() {
    let mut summary = Summary::new();
    let most = MOST_OPEN as u64;
    for i in 0..most + 1000 {
        let begin = Begin {
            name: "cuInit".into(),
            pid: 1,
            tid: i as u32,
            depth: 0,
            parent: None,
            args: Args::raw(&[]),
            launch: None,
            stack: None,
            no_return: None,
            carried: false,
        };
        summary.add(&Line { event_id: i, ts_ns: i, body: Body::Begin(begin) });
    }
    let figures = summary.finish(most);
    assert_eq!((figures.cuda_calls, figures.in_flight.len()), (most + 1000, MOST_OPEN));
    assert!(figures.incomplete_because[0].starts_with("1000 calls began while"), "{figures:?}");
}

#[test]
fn memory_of_very_many_processes_is_counted_and_said() {
    let mut summary = Summary::new();
    let processes = 200_000u64;
    for pid in 1..=processes {
        let memory = Memory {
            name: "cuMemAlloc_v2".into(),
            pid: pid as u32,
            tid: 1,
            begin: Some(pid),
            on: Where::default(),
            op: Op::Alloc,
            space: "device".into(),
            ptr: 1,
            size: Some(8),
            total_allocated: Some(8),
            earlier: false,
            missed: false,
            runtime: true,
            carried: false,
            stack: None,
        };
        summary.add(&Line { event_id: pid, ts_ns: pid, body: Body::Memory(memory) });
    }
    let figures = summary.finish(processes);
    assert_eq!((figures.memory.allocations, figures.memory.held.count), (processes, 65_536));
    let said = format!("{} allocations were not followed", processes - 65_536);
    assert!(figures.incomplete_because[0].starts_with(&said), "{:?}", figures.incomplete_because);
}
