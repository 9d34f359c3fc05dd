//! Calls into the stand-in libraries, loaded into the test process.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_void};

use libloading::os::unix::{Library, Symbol};

use super::super::DemoFolder;
use super::{rows, unpacked};

/// A loaded library: calls its functions by name, with integers only.
struct LoadedLibrary {
    library: Library,
    _dir: DemoFolder,
}

type N = usize;
/// Six arguments in registers and six on the stack, more than the functions called here take.
type AnyFunction = unsafe extern "C" fn(N, N, N, N, N, N, N, N, N, N, N, N) -> c_int;

impl LoadedLibrary {
    fn new(name: &str) -> LoadedLibrary {
        let dir = unpacked();
        // The library may have started a thread, so its code must stay mapped after it is closed.
        let flags = libc::RTLD_NOW | libc::RTLD_NODELETE;
        // SAFETY: our own library; its constructors only read the environment.
        let library = unsafe { Library::open(Some(dir.dir.join(name)), flags) }.unwrap();
        LoadedLibrary { library, _dir: dir }
    }

    fn address(&self, name: &str) -> Option<usize> {
        // SAFETY: the symbol is not called here.
        let symbol: Symbol<*mut c_void> = unsafe { self.library.get(name.as_bytes()) }.ok()?;
        Some(symbol.into_raw() as usize)
    }

    fn call(&self, name: &str, args: &[usize]) -> c_int {
        let mut a = [0; 12];
        a[..args.len()].copy_from_slice(args);
        let address = self.address(name).unwrap();
        // SAFETY: the functions called this way take integer arguments; each test passes valid pointers, or pointers
        // that the library must reject.
        unsafe {
            std::mem::transmute::<usize, AnyFunction>(address)(
                a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
            )
        }
    }

    fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the prototype in standin.h.
        let calls: Symbol<unsafe extern "C" fn(*const c_char) -> u64> =
            unsafe { self.library.get(b"standin_calls") }.unwrap();
        // SAFETY: a terminated string.
        unsafe { calls(name.as_ptr()) }
    }

    /// The driver with a context that is current in this thread.
    fn driver() -> LoadedLibrary {
        let driver = LoadedLibrary::new("libcuda.so.1");
        assert_eq!(driver.call("cuInit", &[0]), 0);
        let mut context = 0usize;
        assert_eq!(driver.call("cuDevicePrimaryCtxRetain", &[out(&mut context), 0]), 0);
        assert_eq!(driver.call("cuCtxSetCurrent", &[context]), 0);
        driver
    }
}

fn out<T>(value: &mut T) -> usize {
    std::ptr::from_mut(value) as usize
}

fn lookup(driver: &LoadedLibrary, base: &str, version: usize, flags: usize) -> Result<usize, c_int> {
    let base = CString::new(base).unwrap();
    let (mut found, mut status) = (0usize, -1 as c_int);
    match driver.call(
        "cuGetProcAddress_v2",
        &[base.as_ptr() as usize, out(&mut found), version, flags, out(&mut status)],
    ) {
        0 => Ok(found),
        error => Err(error),
    }
}

#[test]
fn get_proc_address_gives_the_exported_symbol() {
    let driver = LoadedLibrary::new("libcuda.so.1");
    let cases = [
        ("cuMemAlloc", 12020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuCtxCreate", 12020, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuCtxCreate", 4000, 0, "cuCtxCreate_v2"),
        ("cuLaunchKernel", 13000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuStreamGetCaptureInfo", 12020, 0, "cuStreamGetCaptureInfo_v2"),
        ("cuStreamGetCaptureInfo", 13000, 0, "cuStreamGetCaptureInfo_v3"),
        ("cuGraphInstantiate", 13000, 0, "cuGraphInstantiateWithFlags"),
        ("cuCtxGetDevice", 12080, 0, "cuCtxGetDevice"),
        ("cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2"),
    ];
    for (base, version, flags, name) in cases {
        assert_eq!(
            lookup(&driver, base, version, flags),
            Ok(driver.address(name).unwrap()),
            "{base} {version} {flags}"
        );
    }
    for unknown in ["cuNoSuchThing", "cuMemAlloc_v2", "cuLaunchKernel_ptsz"] {
        assert_eq!(lookup(&driver, unknown, 13000, 0), Err(500), "{unknown}");
    }
    let exported: BTreeSet<usize> = rows("driver").iter().map(|r| driver.address(r.name).unwrap()).collect();
    assert_eq!(exported.len(), rows("driver").len(), "no two names share an address");
    for row in rows("driver") {
        if let Ok(address) = lookup(&driver, row.name, 13000, 0) {
            assert!(exported.contains(&address), "{}", row.name);
        }
    }
}

#[test]
fn errors_are_the_real_ones() {
    let fresh = LoadedLibrary::new("libcuda.so.1");
    let mut pointer = 0u64;
    assert_eq!(fresh.call("cuMemAlloc_v2", &[out(&mut pointer), 64]), 3, "not initialised");
    let driver = LoadedLibrary::driver();
    assert_eq!(driver.call("cuMemAlloc_v2", &[out(&mut pointer), 9 << 30]), 2, "more than 8 GiB");
    assert_eq!(driver.call("cuMemAlloc_v2", &[out(&mut pointer), 0]), 1);
    assert_eq!(driver.call("cuMemFree_v2", &[0x1234]), 1);
    assert_eq!(driver.call("cuStreamSynchronize", &[0x1234]), 400);
    assert_eq!(driver.call("cuEventRecord", &[0x1234, 0]), 400);
    assert_eq!(driver.call("cuLaunchKernel", &[0x1234, 1, 1, 1, 1, 1]), 400);
    assert_eq!(driver.call("cuMemcpyHtoD_v2", &[0x1234, out(&mut pointer), 8]), 1);
    assert_eq!(driver.call("cuDeviceGet", &[out(&mut pointer), 5]), 101);
    let mut name: *const c_char = std::ptr::null();
    assert_eq!(driver.call("cuGetErrorName", &[2, out(&mut name)]), 0);
    // SAFETY: the call succeeded, so it points to a string of the library.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }.to_str(), Ok("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(driver.call("cuGetErrorName", &[12345, out(&mut name)]), 1);
}

#[test]
fn memory_is_counted_copied_and_given_back() {
    let driver = LoadedLibrary::driver();
    let free = || {
        let (mut free, mut total) = (0usize, 0usize);
        assert_eq!(driver.call("cuMemGetInfo_v2", &[out(&mut free), out(&mut total)]), 0);
        assert_eq!(total, 8 << 30);
        free
    };
    let before = free();
    let mut pointers = [0usize; 50];
    for (i, pointer) in pointers.iter_mut().enumerate() {
        assert_eq!(driver.call("cuMemAlloc_v2", &[out(pointer), 1000 + i * 5000]), 0);
        assert_eq!(*pointer % 512, 0);
    }
    assert!(free() < before);
    let (mut there, mut back) = ([7u8; 1000], [0u8; 1000]);
    assert_eq!(driver.call("cuMemcpyHtoD_v2", &[pointers[0], out(&mut there), 1000]), 0);
    assert_eq!(driver.call("cuMemcpyDtoD_v2", &[pointers[9], pointers[0], 1000]), 0);
    assert_eq!(driver.call("cuMemcpyDtoH_v2", &[out(&mut back), pointers[9], 1000]), 0);
    assert_eq!(there, back);
    assert_eq!(driver.call("cuMemcpyHtoD_v2", &[pointers[0], out(&mut there), 1 << 30]), 1, "beyond its end");
    for pointer in pointers {
        assert_eq!(driver.call("cuMemFree_v2", &[pointer]), 0);
        assert_eq!(driver.call("cuMemFree_v2", &[pointer]), 1, "freed twice");
    }
    assert_eq!(free(), before);
    assert_eq!((driver.calls("cuMemAlloc_v2"), driver.calls("cuMemFree_v2")), (50, 100));
}

#[test]
fn physical_memory_is_mapped_and_unmapped() {
    const SIZE: usize = 4 << 20;
    let driver = LoadedLibrary::driver();
    let (mut address, mut physical) = (0usize, 0usize);
    let mut properties = [1u32, 0, 1, 0, 0, 0, 0, 0];
    let mut access = [1u32, 0, 3, 0];
    assert_eq!(driver.call("cuMemAddressReserve", &[out(&mut address), SIZE, 0, 0, 0]), 0);
    assert_eq!(driver.call("cuMemCreate", &[out(&mut physical), SIZE + 1, out(&mut properties), 0]), 1);
    assert_eq!(driver.call("cuMemCreate", &[out(&mut physical), SIZE, out(&mut properties), 0]), 0);
    assert_eq!(driver.call("cuMemSetAccess", &[address, SIZE, out(&mut access), 1]), 1, "not mapped yet");
    assert_eq!(driver.call("cuMemMap", &[address, SIZE, 0, physical, 0]), 0);
    assert_eq!(driver.call("cuMemSetAccess", &[address, SIZE, out(&mut access), 1]), 0);
    assert_eq!(driver.call("cuMemRelease", &[physical]), 0);
    assert_eq!(driver.call("cuMemsetD8_v2", &[address, 9, SIZE]), 0);
    let mut last = 0u8;
    assert_eq!(driver.call("cuMemcpyDtoH_v2", &[out(&mut last), address + SIZE - 1, 1]), 0);
    assert_eq!(last, 9);
    assert_eq!(driver.call("cuMemAddressFree", &[address, SIZE]), 1, "still mapped");
    assert_eq!(driver.call("cuMemUnmap", &[address, SIZE]), 0);
    assert_eq!(driver.call("cuMemAddressFree", &[address, SIZE]), 0);
}

#[test]
fn work_takes_its_time() {
    let driver = LoadedLibrary::driver();
    let (mut module, mut function, mut stream) = (0usize, 0usize, 0usize);
    let (ptx, name) = (c".version 8.0", c"kernel");
    assert_eq!(driver.call("cuModuleLoadData", &[out(&mut module), ptx.as_ptr() as usize]), 0);
    assert_eq!(driver.call("cuModuleGetFunction", &[out(&mut function), module, name.as_ptr() as usize]), 0);
    assert_eq!(driver.call("cuStreamCreate", &[out(&mut stream), 1]), 0);
    let mut events = [0usize; 2];
    for event in &mut events {
        assert_eq!(driver.call("cuEventCreate", &[out(event), 0]), 0);
    }
    // The 56 bytes of a CUlaunchConfig: grid, block, shared memory, stream, no attributes.
    let mut config = [1u64 | 1 << 32, 1 | 32 << 32, 1 | 1 << 32, 0, stream as u64, 0, 0];
    assert_eq!(driver.call("cuEventRecord", &[events[0], stream]), 0);
    for _ in 0..2000 {
        assert_eq!(driver.call("cuLaunchKernelEx", &[out(&mut config), function, 0, 0]), 0);
    }
    assert_eq!(driver.call("cuEventRecord", &[events[1], stream]), 0);
    assert_eq!(driver.call("cuStreamQuery", &[stream]), 600, "2000 kernels of 20 us are not done yet");
    assert_eq!(driver.call("cuEventQuery", &[events[1]]), 600);
    assert_eq!(driver.call("cuStreamSynchronize", &[stream]), 0);
    assert_eq!(driver.call("cuEventQuery", &[events[1]]), 0);
    let mut ms = 0f32;
    assert_eq!(driver.call("cuEventElapsedTime", &[out(&mut ms), events[0], events[1]]), 0);
    assert!((40.0..60.0).contains(&ms), "{ms} ms");
}

extern "C" fn count_one(counter: *mut c_void) {
    // SAFETY: the test passes an AtomicU32 that outlives the wait.
    unsafe { &*counter.cast::<std::sync::atomic::AtomicU32>() }
        .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn host_functions_are_over_when_the_stream_is() {
    let driver = LoadedLibrary::driver();
    let counter = std::sync::atomic::AtomicU32::new(0);
    let mut stream = 0usize;
    assert_eq!(driver.call("cuStreamCreate", &[out(&mut stream), 0]), 0);
    let data = std::ptr::from_ref(&counter) as usize;
    for _ in 0..100 {
        assert_eq!(driver.call("cuLaunchHostFunc", &[stream, count_one as *const () as usize, data]), 0);
    }
    assert_eq!(driver.call("cuStreamSynchronize", &[stream]), 0);
    assert_eq!(counter.load(std::sync::atomic::Ordering::SeqCst), 100);
}

#[test]
fn what_has_no_behaviour_succeeds_and_is_counted() {
    let driver = LoadedLibrary::new("libcuda.so.1");
    assert_eq!(driver.call("cuTensorMapEncodeTiled", &[]), 0);
    assert_eq!(driver.call("cuMulticastGetGranularity", &[]), 0);
    assert_eq!(driver.calls("cuTensorMapEncodeTiled"), 1);
    assert_eq!(driver.calls("cuMemAlloc_v2"), 0);
    assert_eq!(driver.calls("no_such_function"), u64::MAX);
}

/// Every function counts its call and returns, for each kind of prologue.
#[test]
fn every_entry_counts_one_call() {
    let driver = LoadedLibrary::new("libcuda.so.1");
    let (mut seen, mut bad) = (0, Vec::new());
    for row in rows("driver") {
        // All arguments null: the function refuses (not initialised, or nothing to write to) or has nothing to do.
        let before = driver.calls(row.name);
        if row.name != "cuInit" {
            driver.call(row.name, &[]);
            if driver.calls(row.name) != before + 1 {
                bad.push(row.name);
            }
        }
        seen += 1;
    }
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(seen, 634);
}

#[test]
fn the_last_error_stays_until_it_is_asked_for() {
    let runtime = LoadedLibrary::new("libcudart.so.13");
    let mut pointer = 0usize;
    assert_eq!(runtime.call("cudaMalloc", &[out(&mut pointer), 1 << 46]), 2);
    assert_eq!(runtime.call("cudaMalloc", &[out(&mut pointer), 64]), 0);
    assert_eq!(runtime.call("cudaPeekAtLastError", &[]), 2);
    assert_eq!(runtime.call("cudaGetLastError", &[]), 2);
    assert_eq!(runtime.call("cudaGetLastError", &[]), 0);
    assert_eq!(runtime.call("cudaFree", &[0x1234]), 1);
}
