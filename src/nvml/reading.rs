//! Reads the packets of the process that asks NVML. In: a packet (crates/nvml/src/shape.rs), which may hold anything,
//! because the process runs with the user's rights. Out: a `device` line, or whether NVML could be initialised.

use super::shape::{self, Device, Last, kind, known};
use crate::wire::{self, Wire};
use gpurec_trace as trace;

// SAFETY: integers and arrays of them, explicitly padded.
unsafe impl Wire for Device {}
// SAFETY: as above.
unsafe impl Wire for Last {}

#[derive(Debug, PartialEq)]
pub enum Packet {
    /// Always with the device's name, if NVML knows it.
    Device(Box<trace::Device>),
    /// The sample is whole. Err: why NVML cannot be initialised.
    Last(Result<(), String>),
}

/// None: gpurec's program sends no such packet.
pub fn read(bytes: &[u8]) -> Option<Packet> {
    if bytes.len() == size_of::<Device>() {
        let device = wire::read::<Device>(bytes).filter(|device| device.kind == kind::DEVICE)?;
        return (device.device < shape::DEVICES as u32).then(|| Packet::Device(Box::new(line(&device))));
    }
    let last = wire::read::<Last>(bytes).filter(|last| last.kind == kind::LAST)?;
    (bytes.len() == size_of::<Last>()).then(|| Packet::Last(result(&last)))
}

fn line(from: &Device) -> trace::Device {
    let if_known = |bit: u32| (from.known & bit != 0).then_some(from);
    trace::Device {
        device: from.device,
        uuid: text(&from.uuid),
        gpu_name: text(&from.name),
        used_bytes: if_known(known::USED).map(|it| it.used_bytes),
        processes: if_known(known::PROCESSES).map(processes),
        utilization: if_known(known::UTILIZATION).map(|it| it.utilization),
        memory_utilization: if_known(known::UTILIZATION).map(|it| it.memory_utilization),
        sm_clock_mhz: if_known(known::CLOCK).map(|it| it.sm_clock_mhz),
        power_w: if_known(known::POWER).map(|it| f64::from(it.power_mw) / 1e3),
        temperature_c: if_known(known::TEMPERATURE).map(|it| it.temperature_c),
        throttle: if_known(known::THROTTLE).map(|it| reasons(it.throttle)),
        ecc_errors: if_known(known::ECC).map(|it| it.ecc_errors),
    }
}

fn processes(from: &Device) -> Vec<trace::DeviceProcess> {
    let all = from.processes.iter().take(from.process_count as usize);
    let bytes = |bytes: u64| (bytes != shape::NOT_KNOWN).then_some(bytes);
    all.map(|one| trace::DeviceProcess { pid: one.pid, bytes: bytes(one.bytes) }).collect()
}

/// The name of each bit that is set, or its number if it has no name.
fn reasons(bits: u64) -> Vec<String> {
    let rows = include_str!("throttle.txt").lines().filter_map(|row| row.strip_prefix("0x")?.split_once(' '));
    let named: Vec<(u64, &str)> =
        rows.filter_map(|(bit, name)| Some((u64::from_str_radix(bit, 16).ok()?, name))).collect();
    let set = (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
    set.map(|bit| match named.iter().find(|row| row.0 == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{bit:#x}"),
    })
    .collect()
}

fn result(last: &Last) -> Result<(), String> {
    match last.result {
        0 => Ok(()),
        shape::NO_FUNCTION => Err("libnvidia-ml.so.1 has no function nvmlInit_v2".to_owned()),
        code => Err(format!("NVML answers {code} ({})", text(&last.text).unwrap_or_default())),
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = bytes.get(..end).filter(|text| !text.is_empty())?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::shape::{NO_FUNCTION, Process, TEXT};

    fn padded(text: &str) -> [u8; TEXT] {
        let mut bytes = [0; TEXT];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn a_packet_becomes_a_line() {
        let mut device = Device { kind: kind::DEVICE, device: 3, known: !0, ..Device::EMPTY };
        (device.utilization, device.memory_utilization) = (80, 7);
        (device.sm_clock_mhz, device.power_mw, device.temperature_c) = (1980, 612_345, 41);
        (device.used_bytes, device.throttle, device.ecc_errors) = (5 << 30, 0x4 | 0x100 | 1 << 40, 2);
        (device.uuid, device.name) = (padded("GPU-12ab"), padded("NVIDIA H200"));
        device.process_count = 2;
        device.processes[0] = Process { pid: 7, pad: 0, bytes: 1 << 30 };
        device.processes[1] = Process { pid: 8, pad: 0, bytes: shape::NOT_KNOWN };
        let Some(Packet::Device(line)) = read(wire::bytes(&device)) else { panic!() };
        let expected = trace::Device {
            device: 3,
            uuid: Some("GPU-12ab".to_owned()),
            gpu_name: Some("NVIDIA H200".to_owned()),
            used_bytes: Some(5 << 30),
            processes: Some(vec![
                trace::DeviceProcess { pid: 7, bytes: Some(1 << 30) },
                trace::DeviceProcess { pid: 8, bytes: None },
            ]),
            utilization: Some(80),
            memory_utilization: Some(7),
            sm_clock_mhz: Some(1980),
            power_w: Some(612.345),
            temperature_c: Some(41),
            throttle: Some(
                ["sw_power_cap", "display_clock_setting", "0x10000000000"].map(str::to_owned).to_vec(),
            ),
            ecc_errors: Some(2),
        };
        assert_eq!(*line, expected);
    }

    #[test]
    fn what_nvml_has_not_answered_is_not_there() {
        let device = Device { kind: kind::DEVICE, used_bytes: 9, process_count: 1, ..Device::EMPTY };
        let expected = Packet::Device(Box::default());
        assert_eq!(read(wire::bytes(&device)), Some(expected));
        let device = Device { known: known::THROTTLE | known::PROCESSES, process_count: 0, ..device };
        let Some(Packet::Device(line)) = read(wire::bytes(&device)) else { panic!() };
        assert_eq!((line.throttle, line.processes, line.used_bytes), (Some(vec![]), Some(vec![]), None));
    }

    #[test]
    fn packets_of_a_hostile_process_are_bounded() {
        let device = Device {
            kind: kind::DEVICE,
            known: !0,
            process_count: u32::MAX,
            throttle: u64::MAX,
            uuid: [b'x'; TEXT],
            name: [0xff; TEXT],
            ..Device::EMPTY
        };
        let Some(Packet::Device(line)) = read(wire::bytes(&device)) else { panic!() };
        assert_eq!(line.processes.unwrap().len(), shape::PROCESSES);
        assert_eq!((line.throttle.unwrap().len(), line.uuid.unwrap().len()), (64, TEXT));
        assert_eq!(line.gpu_name.unwrap().chars().count(), TEXT);
        let last = Last { kind: kind::LAST, result: 9, text: [b'a'; TEXT] };
        assert_eq!(
            read(wire::bytes(&last)),
            Some(Packet::Last(Err(format!("NVML answers 9 ({})", "a".repeat(TEXT)))))
        );
        let refused = [
            wire::bytes(&Device { kind: 0, ..device }),
            wire::bytes(&Device { device: shape::DEVICES as u32, ..device }),
            wire::bytes(&Last { kind: kind::DEVICE, ..last }),
            &wire::bytes(&device)[1..],
            &wire::bytes(&last)[..4],
            b"",
        ]
        .map(|bytes| bytes.to_vec());
        refused.iter().for_each(|bytes| assert_eq!(read(bytes), None));
    }

    #[test]
    fn nvml_says_why_it_cannot_be_asked() {
        let last = |result, text| Last { kind: kind::LAST, result, text: padded(text) };
        let said = |last: Last| match read(wire::bytes(&last)) {
            Some(Packet::Last(said)) => said,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(last(0, "")), Ok(()));
        assert_eq!(said(last(9, "Driver Not Loaded")), Err("NVML answers 9 (Driver Not Loaded)".to_owned()));
        assert!(said(last(NO_FUNCTION, "")).unwrap_err().contains("nvmlInit_v2"));
    }
}
