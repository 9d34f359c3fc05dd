//! Identifies devices by their numbers.
//!
//! In: the text of /proc/devices, a family and a minor number. Out: NVIDIA's major numbers, and the usual name of a
//! device. Uses numbers, never paths, because a container may give a device any name.

use std::borrow::Cow;

/// The driver modules that own devices. The records between BPF and gpurec contain the number of the family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Family {
    Nvidia = 1,
    Uvm = 2,
    Caps = 3,
    Imex = 4,
    Nvswitch = 5,
    Nvlink = 6,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    pub family: Family,
    pub minor: u32,
}

/// Registered for NVIDIA, whether or not the driver is loaded.
const NVIDIA_MAJOR: u32 = 195;
const MODESET_MINOR: u32 = 254;
/// nvidiactl, and nvidia-nvswitchctl.
const CONTROL_MINOR: u32 = 255;

impl Device {
    /// nvidiactl, nvidia0, nvidia-uvm, nvidia-cap2…
    pub fn name(self) -> Cow<'static, str> {
        match (self.family, self.minor) {
            (Family::Nvidia, CONTROL_MINOR) => "nvidiactl".into(),
            (Family::Nvidia, MODESET_MINOR) => "nvidia-modeset".into(),
            (Family::Nvidia, minor) => format!("nvidia{minor}").into(),
            (Family::Uvm, 0) => "nvidia-uvm".into(),
            (Family::Uvm, 1) => "nvidia-uvm-tools".into(),
            (Family::Uvm, minor) => format!("nvidia-uvm:{minor}").into(),
            (Family::Caps, minor) => format!("nvidia-cap{minor}").into(),
            (Family::Imex, minor) => format!("nvidia-caps-imex-channels/channel{minor}").into(),
            (Family::Nvswitch, CONTROL_MINOR) => "nvidia-nvswitchctl".into(),
            (Family::Nvswitch, minor) => format!("nvidia-nvswitch{minor}").into(),
            (Family::Nvlink, 0) => "nvidia-nvlink".into(),
            (Family::Nvlink, minor) => format!("nvidia-nvlink:{minor}").into(),
        }
    }

    pub fn is_modeset(self) -> bool {
        self.family == Family::Nvidia && self.minor == MODESET_MINOR
    }
}

/// NVIDIA's major numbers in the text of /proc/devices, sorted.
pub fn majors(proc_devices: &str) -> Vec<(u32, Family)> {
    let mut found = vec![(NVIDIA_MAJOR, Family::Nvidia)];
    let lines = proc_devices.lines().map(str::trim);
    for line in lines.skip_while(|l| !l.starts_with("Character")).take_while(|l| !l.starts_with("Block")) {
        let mut words = line.split_whitespace();
        let Some(major) = words.next().and_then(|w| w.parse().ok()) else { continue };
        let Some(family) = words.next().and_then(family) else { continue };
        if !found.iter().any(|(known, _)| *known == major) {
            found.push((major, family));
        }
    }
    found.sort_unstable_by_key(|(major, _)| *major);
    found
}

fn family(name: &str) -> Option<Family> {
    match name {
        "nvidia" | "nvidia-frontend" | "nvidiactl" | "nvidia-modeset" => Some(Family::Nvidia),
        "nvidia-uvm" => Some(Family::Uvm),
        "nvidia-caps" => Some(Family::Caps),
        "nvidia-caps-imex-channels" => Some(Family::Imex),
        "nvidia-nvswitch" => Some(Family::Nvswitch),
        "nvidia-nvlink" => Some(Family::Nvlink),
        _ => None,
    }
}
