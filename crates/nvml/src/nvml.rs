//! Asks NVML. In: libnvidia-ml.so.1, which the loader has loaded; a request. Out: a packet for each device. Where a
//! function is missing in this version of NVML, or fails, the packet lacks its value.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use core::ptr::null_mut;

use crate::shape::{self, DEVICES, Device, Last, NO_FUNCTION, PROCESSES, TEXT, known};
use crate::system;

type Handle = *mut c_void;

/// Declares functions of NVML as weak symbols: a function that the library lacks is null.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $returns:ty;)*) => {
        #[allow(non_snake_case)]
        #[repr(C)]
        struct Functions { $($name: Option<unsafe extern "C" fn($($argument),*) -> $returns>,)* }

        core::arch::global_asm!(
            ".pushsection .data.rel.ro, \"aw\"",
            ".p2align 3",
            ".globl gpurec_nvml_functions",
            ".hidden gpurec_nvml_functions",
            "gpurec_nvml_functions:",
            $(concat!(".weak ", stringify!($name)), concat!(".quad ", stringify!($name)),)*
            ".popsection"
        );
    };
}

functions! {
    nvmlInit_v2() -> c_int;
    nvmlErrorString(c_int) -> *const c_char;
    nvmlDeviceGetCount_v2(*mut c_uint) -> c_int;
    nvmlDeviceGetHandleByIndex_v2(c_uint, *mut Handle) -> c_int;
    nvmlDeviceGetUUID(Handle, *mut c_char, c_uint) -> c_int;
    nvmlDeviceGetName(Handle, *mut c_char, c_uint) -> c_int;
    nvmlDeviceGetMemoryInfo_v2(Handle, *mut MemoryV2) -> c_int;
    nvmlDeviceGetMemoryInfo(Handle, *mut Memory) -> c_int;
    nvmlDeviceGetUtilizationRates(Handle, *mut Utilization) -> c_int;
    nvmlDeviceGetClockInfo(Handle, c_int, *mut c_uint) -> c_int;
    nvmlDeviceGetPowerUsage(Handle, *mut c_uint) -> c_int;
    nvmlDeviceGetTemperature(Handle, c_int, *mut c_uint) -> c_int;
    nvmlDeviceGetCurrentClocksEventReasons(Handle, *mut c_ulonglong) -> c_int;
    nvmlDeviceGetCurrentClocksThrottleReasons(Handle, *mut c_ulonglong) -> c_int;
    nvmlDeviceGetTotalEccErrors(Handle, c_int, c_int, *mut c_ulonglong) -> c_int;
    nvmlDeviceGetComputeRunningProcesses_v3(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
    nvmlDeviceGetComputeRunningProcesses_v2(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
}

unsafe extern "C" {
    #[link_name = "gpurec_nvml_functions"]
    static NVML: Functions;
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `used` does not include the memory that the driver reserves; that of `Memory` does.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const CLOCK_SM: c_int = 1;
const TEMPERATURE_GPU: c_int = 0;
const UNCORRECTED: c_int = 1;
const SINCE_THE_DRIVER_WAS_LOADED: c_int = 0;

#[derive(Clone, Copy)]
struct Known {
    handle: Handle,
    uuid: [u8; TEXT],
    name: [u8; TEXT],
}

pub struct Nvml {
    is_ready: bool,
    devices: [Known; DEVICES],
    packet: Device,
    infos: [ProcessInfo; PROCESSES],
}

fn nvml() -> &'static Functions {
    // SAFETY: the table above, which the loader filled before the program began.
    unsafe { &NVML }
}

/// The value that a function of NVML writes through a pointer, if it succeeds.
fn asked<T: Default>(ask: impl FnOnce(*mut T) -> Option<c_int>) -> Option<T> {
    let mut value = T::default();
    (ask(&raw mut value) == Some(0)).then_some(value)
}

impl Nvml {
    /// All zero, so that it takes no room in the program's file.
    pub const fn new() -> Nvml {
        let known = Known { handle: null_mut(), uuid: [0; TEXT], name: [0; TEXT] };
        let info = ProcessInfo { pid: 0, used: 0, gpu_instance: 0, compute_instance: 0 };
        Nvml { is_ready: false, devices: [known; DEVICES], packet: Device::EMPTY, infos: [info; PROCESSES] }
    }

    /// Sends a packet for each device, and then the last packet. The driver may be loaded after the recording begins,
    /// so each sample tries to initialise NVML until that succeeds.
    pub fn sample(&mut self, send: &mut dyn FnMut(&[u8])) {
        let mut result = 0;
        if !self.is_ready {
            // SAFETY: its prototype.
            result = nvml().nvmlInit_v2.map_or(NO_FUNCTION, |init| unsafe { init() });
            self.is_ready = result == 0;
        }
        if self.is_ready {
            // SAFETY: its prototype.
            let count = asked(|to| Some(unsafe { nvml().nvmlDeviceGetCount_v2?(to) }));
            for device in 0..count.unwrap_or(0).min(DEVICES as c_uint) {
                if self.ask(device).is_some() {
                    send(bytes(&self.packet));
                }
            }
        }
        let mut last = Last { kind: shape::kind::LAST, result, text: [0; TEXT] };
        if let Some(error_string) = nvml().nvmlErrorString
            && result > 0
        {
            // SAFETY: its prototype; it returns a terminated constant.
            unsafe { copy(&mut last.text, error_string(result)) };
        }
        send(bytes(&last));
    }

    /// Fills the packet. None: NVML has no handle for the device.
    fn ask(&mut self, device: c_uint) -> Option<()> {
        let known = self.devices.get_mut(device as usize)?;
        if known.handle.is_null() {
            *known = meet(device)?;
        }
        let handle = known.handle;
        let kind = shape::kind::DEVICE;
        self.packet = Device { kind, device, uuid: known.uuid, name: known.name, ..Device::EMPTY };
        self.state(handle);
        self.processes(handle);
        Some(())
    }

    fn state(&mut self, handle: Handle) {
        let (nvml, packet) = (nvml(), &mut self.packet);
        let mut found = 0;
        let mut has = |bit: u32| found |= bit;
        if let Some(used) = used_bytes(handle) {
            has(known::USED);
            packet.used_bytes = used;
        }
        // SAFETY: in each of the following the function's prototype, and a value of the type that it fills.
        if let Some(rates) =
            asked::<Utilization>(|to| Some(unsafe { nvml.nvmlDeviceGetUtilizationRates?(handle, to) }))
        {
            has(known::UTILIZATION);
            (packet.utilization, packet.memory_utilization) = (rates.gpu, rates.memory);
        }
        // SAFETY: as above.
        if let Some(mhz) = asked(|to| Some(unsafe { nvml.nvmlDeviceGetClockInfo?(handle, CLOCK_SM, to) })) {
            has(known::CLOCK);
            packet.sm_clock_mhz = mhz;
        }
        // SAFETY: as above.
        if let Some(mw) = asked(|to| Some(unsafe { nvml.nvmlDeviceGetPowerUsage?(handle, to) })) {
            has(known::POWER);
            packet.power_mw = mw;
        }
        // SAFETY: as above.
        if let Some(celsius) =
            asked(|to| Some(unsafe { nvml.nvmlDeviceGetTemperature?(handle, TEMPERATURE_GPU, to) }))
        {
            has(known::TEMPERATURE);
            packet.temperature_c = celsius;
        }
        // Older versions have the second name.
        let reasons =
            nvml.nvmlDeviceGetCurrentClocksEventReasons.or(nvml.nvmlDeviceGetCurrentClocksThrottleReasons);
        // SAFETY: as above.
        if let Some(bits) = asked(|to| Some(unsafe { reasons?(handle, to) })) {
            has(known::THROTTLE);
            packet.throttle = bits;
        }
        if let Some(errors) = asked(|to| {
            // SAFETY: as above.
            let ask = |function: unsafe extern "C" fn(_, _, _, _) -> _| unsafe {
                function(handle, UNCORRECTED, SINCE_THE_DRIVER_WAS_LOADED, to)
            };
            nvml.nvmlDeviceGetTotalEccErrors.map(ask)
        }) {
            has(known::ECC);
            packet.ecc_errors = errors;
        }
        packet.known = found;
    }

    fn processes(&mut self, handle: Handle) {
        let nvml = nvml();
        let ask =
            nvml.nvmlDeviceGetComputeRunningProcesses_v3.or(nvml.nvmlDeviceGetComputeRunningProcesses_v2);
        let Some(ask) = ask else { return };
        let mut count = PROCESSES as c_uint;
        // SAFETY: its prototype, and an array of that length.
        if unsafe { ask(handle, &raw mut count, self.infos.as_mut_ptr()) } != 0 {
            return;
        }
        self.packet.known |= known::PROCESSES;
        self.packet.process_count = count.min(PROCESSES as c_uint);
        let infos = self.infos.iter().take(count as usize);
        for (to, info) in self.packet.processes.iter_mut().zip(infos) {
            *to = shape::Process { pid: info.pid, pad: 0, bytes: info.used };
        }
    }
}

fn meet(device: c_uint) -> Option<Known> {
    let nvml = nvml();
    let mut known = Known { handle: null_mut(), uuid: [0; TEXT], name: [0; TEXT] };
    // SAFETY: its prototype.
    if unsafe { nvml.nvmlDeviceGetHandleByIndex_v2?(device, &raw mut known.handle) } != 0 {
        return None;
    }
    let text = |function: Option<unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int>,
                to: &mut [u8; TEXT]| {
        // SAFETY: its prototype, and room of that length.
        let result = function.map(|ask| unsafe { ask(known.handle, to.as_mut_ptr().cast(), TEXT as c_uint) });
        if result != Some(0) {
            *to = [0; TEXT];
        }
    };
    text(nvml.nvmlDeviceGetUUID, &mut known.uuid);
    text(nvml.nvmlDeviceGetName, &mut known.name);
    Some(known)
}

fn used_bytes(handle: Handle) -> Option<u64> {
    let version = core::mem::size_of::<MemoryV2>() as c_uint | 2 << 24;
    let mut memory = MemoryV2 { version, total: 0, reserved: 0, free: 0, used: 0 };
    // SAFETY: its prototype, and the structure of the version in it.
    let result = nvml().nvmlDeviceGetMemoryInfo_v2.map(|ask| unsafe { ask(handle, &raw mut memory) });
    if result == Some(0) {
        return Some(memory.used);
    }
    // SAFETY: its prototype.
    asked::<Memory>(|to| Some(unsafe { nvml().nvmlDeviceGetMemoryInfo?(handle, to) })).map(|it| it.used)
}

/// # Safety
/// `from` is a terminated string.
unsafe fn copy(to: &mut [u8; TEXT], from: *const c_char) {
    if from.is_null() {
        return;
    }
    // SAFETY: the caller's.
    let from = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), system::strlen(from)) };
    // The last byte stays 0.
    for (to, from) in to.iter_mut().take(TEXT - 1).zip(from) {
        *to = *from;
    }
}

fn bytes<T>(packet: &T) -> &[u8] {
    // SAFETY: the packets have no padding.
    unsafe { core::slice::from_raw_parts((packet as *const T).cast(), core::mem::size_of::<T>()) }
}
