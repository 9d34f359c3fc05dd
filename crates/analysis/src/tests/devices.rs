//! Figures by device.

use super::*;

/// Sets the device in the last lines of a call.
fn on(s: &mut Script, lines: usize, device: Option<u32>) {
    let on = Where { device, context: Some(0xc0) };
    for line in s.lines.iter_mut().rev().take(lines) {
        match &mut line.body {
            Body::Memory(memory) => memory.on = on,
            Body::Transfer(transfer) => transfer.on = on,
            Body::Begin(Begin { launch: Some(launch), .. }) => launch.on = on,
            _ => {}
        }
    }
}

fn two_devices(options: serde_json::Value) -> Script {
    let mut s = Script::new();
    let Body::Header(header) = &mut s.lines[0].body else { panic!() };
    header.options = options;
    for (device, size) in [(Some(0), 100), (Some(1), 1000), (None, 7)] {
        s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000 + size, size, 0);
        on(&mut s, 1, device);
        s.copy("cuMemcpyHtoD_v2", "H2D", size, 10);
        on(&mut s, 1, device);
        let begin = s.launch("matmul", None);
        on(&mut s, 1, device);
        s.end(begin, 10, 0);
    }
    s.memory("cuMemAllocHost_v2", Op::Alloc, "host", 0x5000, 5000, 0);
    on(&mut s, 1, Some(0));
    s.memory("cuMemFree_v2", Op::Free, "device", 0x1000 + 1000, 1000, 0);
    on(&mut s, 1, Some(1));
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x9000, 50, 0);
    on(&mut s, 1, Some(1));
    let launch = s.begin("cudaLaunchKernel", None);
    let Body::Begin(begin) = &mut s.lines[launch as usize].body else { panic!() };
    begin.launch = Some(Launch { on: Where { device: Some(1), context: None }, ..Launch::default() });
    let inner = s.launch("matmul", Some(launch));
    s.end(inner, 10, 0);
    s.end(launch, 10, 0);
    s
}

#[test]
fn launches_memory_and_copies_by_device() {
    let (live, bytes) = two_devices(serde_json::json!({})).finish();
    assert_eq!(of_file(&bytes), live);
    let of = |at: usize| {
        let seen = &live.devices[at];
        let memory = [seen.allocated_bytes, seen.peak_bytes, seen.held_bytes];
        (seen.device, seen.processes, seen.launches, memory, seen.transferred_bytes)
    };
    assert_eq!(of(0), (Some(0), 1, 1, [100, 100, 100], 100));
    assert_eq!(of(1), (Some(1), 1, 2, [1050, 1000, 50], 1000), "the level above knew the launch's device");
    assert_eq!(of(2), (None, 1, 1, [7, 7, 7], 7));
    assert_eq!(live.devices.iter().map(|seen| seen.launches).sum::<u64>(), live.kernel_launches);
    let printed = crate::text::print(&live, 120);
    let table = printed.split_once("By device, as each process numbers them:").unwrap().1;
    assert!(table.lines().nth(4).unwrap().trim_start().starts_with("not known"), "{table}");

    // When the process exits, its memory counts as held at its end, and another process may hold as much.
    let mut s = two_devices(serde_json::json!({}));
    s.exit(0);
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 30, 0);
    on(&mut s, 1, Some(0));
    let devices = s.finish().0.devices;
    assert_eq!((devices[0].held_bytes, devices[0].peak_bytes), (130, 100));
}

#[test]
fn of_one_device_the_summary_says_nothing_and_of_none_json_neither() {
    let mut s = Script::new();
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 100, 100);
    assert!(s.finish().1.windows(9).all(|text| text != b"\"devices\""));
    let mut s = Script::new();
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 100, 100);
    on(&mut s, 1, Some(0));
    let live = s.finish().0;
    assert_eq!(live.devices.len(), 1);
    assert!(!crate::text::print(&live, 120).contains("By device"));
}

#[test]
fn what_a_recording_leaves_out_is_not_known_of_any_device() {
    let (live, bytes) = two_devices(serde_json::json!({"skip": ["cuMemFree*"]})).finish();
    assert_eq!(of_file(&bytes), live);
    let json = live.with_nulls();
    for at in 0..3 {
        let row = &json["devices"][at];
        assert!(row["held_bytes"].is_null() && row["peak_bytes"].is_null(), "{row}");
        assert!(row["launches"].is_u64() && row["allocated_bytes"].is_u64(), "{row}");
        assert!(json["seen"][format!("devices.{at}.held_bytes")].is_u64());
    }
    assert!(json["unknown"]["devices.held_bytes"].is_string());
    assert_eq!(Figures::from_json(&json).unwrap(), live);
    assert!(crate::text::print(&live, 120).contains("? not known (cuMemFree"));
}

#[test]
fn devices_without_end_are_one() {
    let mut summary = Summary::new();
    for i in 0..1000u32 {
        let transfer = Transfer {
            name: "cuMemcpyHtoD_v2".into(),
            pid: i,
            tid: i,
            begin: 0,
            on: Where { device: Some(i), context: None },
            direction: "H2D".into(),
            size: 8,
            partial: false,
            is_async: true,
            pageable: false,
            duration_ns: None,
        };
        summary.add(&Line { event_id: u64::from(i), ts_ns: 0, body: Body::Transfer(transfer) });
    }
    let devices = summary.finish(0).devices;
    assert!(devices.len() <= 257);
    assert_eq!(devices.iter().map(|seen| seen.transfers).sum::<u64>(), 1000);
}
