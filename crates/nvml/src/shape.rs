//! What the recorder and the process that asks NVML send each other, on a socket that keeps packets whole: the recorder
//! sends one byte for each sample, and the process answers with a packet for each device and a last packet. In:
//! nothing. Out: constants and layouts. Both include this file: crates/nvml, and src/nvml/ as a module.

pub const ASK: u8 = b'?';

/// Bytes of a text, which ends at its first 0.
pub const TEXT: usize = 96;
/// The most processes of one device. If it has more, NVML lists none, and the packet has no list.
pub const PROCESSES: usize = 512;
/// The most devices of a machine.
pub const DEVICES: usize = 64;

/// The first word of a packet.
pub mod kind {
    pub const DEVICE: u32 = 0x6764_6576;
    pub const LAST: u32 = 0x676c_6173;
}

/// Bits of `known`: which values NVML has returned.
pub mod known {
    pub const USED: u32 = 1;
    pub const UTILIZATION: u32 = 1 << 1;
    pub const CLOCK: u32 = 1 << 2;
    pub const POWER: u32 = 1 << 3;
    pub const TEMPERATURE: u32 = 1 << 4;
    pub const THROTTLE: u32 = 1 << 5;
    pub const ECC: u32 = 1 << 6;
    pub const PROCESSES: u32 = 1 << 7;
}

/// `bytes` of a process where NVML does not know it.
pub const NOT_KNOWN: u64 = u64::MAX;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Process {
    pub pid: u32,
    pub pad: u32,
    pub bytes: u64,
}

/// A device, in NVML's units.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Device {
    pub kind: u32,
    /// NVML's ordinal.
    pub device: u32,
    pub known: u32,
    pub utilization: u32,
    pub memory_utilization: u32,
    pub sm_clock_mhz: u32,
    pub power_mw: u32,
    pub temperature_c: u32,
    pub used_bytes: u64,
    pub throttle: u64,
    pub ecc_errors: u64,
    pub uuid: [u8; TEXT],
    pub name: [u8; TEXT],
    pub process_count: u32,
    pub pad: u32,
    pub processes: [Process; PROCESSES],
}

impl Device {
    /// All zero, so that it takes no room in the program's file.
    pub const EMPTY: Device = Device {
        kind: 0,
        device: 0,
        known: 0,
        utilization: 0,
        memory_utilization: 0,
        sm_clock_mhz: 0,
        power_mw: 0,
        temperature_c: 0,
        used_bytes: 0,
        throttle: 0,
        ecc_errors: 0,
        uuid: [0; TEXT],
        name: [0; TEXT],
        process_count: 0,
        pad: 0,
        processes: [Process { pid: 0, pad: 0, bytes: 0 }; PROCESSES],
    };
}

/// After the devices.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Last {
    pub kind: u32,
    /// What NVML's initialisation returned; `NO_FUNCTION` if NVML has no such function.
    pub result: i32,
    /// NVML's text for `result`.
    pub text: [u8; TEXT],
}

pub const NO_FUNCTION: i32 = -1;
