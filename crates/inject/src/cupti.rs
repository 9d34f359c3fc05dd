//! The client of CUPTI. In: the library that find.rs found. Out: CUPTI calls buffers.rs with records of kernels, copies,
//! sets and graphs, of the calls that submit them, and of CUPTI's own overhead.
//!
//! It subscribes only to learn whether another client already does, and ends the subscription at once: CUPTI allows
//! only one, and a profiler that the program starts later must be able to get it. Such a profiler replaces the
//! callbacks that this library registers, and gets all records from then on (way.rs). The recorder notices that from
//! outside.

use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::Failed;
use crate::shape::{self, step};
use crate::{buffers, find, ring, system, way};

/// The kinds of records that are asked for.
const KINDS: [u32; 4] = [10, 1, 22, 2];
const DRIVER: u32 = 4;
const RUNTIME: u32 = 5;
const GRAPH: u32 = 51;
const OVERHEAD: u32 = 17;
/// From 12.6 on single functions can be asked for.
const BY_FUNCTION: u32 = 24;
/// The thread ids of Linux, not those of pthreads.
const GETTID: u32 = 1;
/// CUPTI's default.
const ANY_THREAD_ID: u32 = 0;
/// Attribute: each thread has buffers of its own. From 13 on that is so unless it is set to 0.
const PER_THREAD_BUFFERS: u32 = 9;
/// CUPTI delivers all records of a period at once, and they must fit into the ring even at a million records a second.
/// If the process is killed, the records of up to one period are lost.
const FLUSH_EVERY_MS: u32 = 50;
const NEVER: u32 = 0;
const NOT_FORCED: u32 = 0;
const FORCED: u32 = 1;
/// The driver is too old for this libcupti, or there is none.
const NOT_INITIALISED: c_int = 15;
const UNKNOWN: c_int = 999;

type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type NextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type Dropped = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> c_int;
type Number = unsafe extern "C" fn(u32) -> c_int;
type Function = unsafe extern "C" fn(u32, u8) -> c_int;

/// What the callbacks use.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DROPPED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static FLUSH: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static VERSION: AtomicU32 = AtomicU32::new(0);
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    fn get(self, name: &core::ffi::CStr) -> Result<*mut c_void, Failed> {
        // SAFETY: a loaded library and a terminated string.
        let at = unsafe { system::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        if at.is_null() { Err(Failed::at(step::FUNCTIONS)) } else { Ok(at) }
    }
}

fn check(step: u32, result: c_int) -> Result<(), Failed> {
    if result == 0 { Ok(()) } else { Err(Failed { step, result }) }
}

/// Tries one libcupti after the other until one works.
pub fn begin(graphs: bool) -> Result<(), Failed> {
    let mut outcome = Err(Failed::at(step::FIND));
    find::libraries(&mut |library| {
        // SAFETY: a library named libcupti.
        let tried = unsafe { begin_with(Library(library), graphs) };
        let is_last = match &tried {
            Ok(()) => true,
            // Any other reason would be the same for the next one.
            Err(why) => why.step == step::SUBSCRIBE && ![NOT_INITIALISED, UNKNOWN].contains(&why.result),
        };
        if is_last || outcome.as_ref().is_err_and(Failed::is_find) {
            outcome = tried;
        }
        is_last
    });
    outcome
}

fn is_set_up() -> bool {
    !NEXT.load(Ordering::Acquire).is_null()
}

/// In an order that matters: the clock is asked for times from the first record on.
unsafe fn begin_with(library: Library, graphs: bool) -> Result<(), Failed> {
    let mut version = 0;
    // SAFETY: CUPTI's own functions, by name, with its types.
    unsafe {
        let get_version: unsafe extern "C" fn(*mut u32) -> c_int =
            transmute(library.get(c"cuptiGetVersion")?);
        get_version(&raw mut version);
        VERSION.store(version, Ordering::Relaxed);
        if let Some(header) = ring::header() {
            header.version.store(version, Ordering::Relaxed);
        }
        try_subscription(library)?;
        let next = library.get(c"cuptiActivityGetNextRecord")?;
        let flush = library.get(c"cuptiActivityFlushAll")?;
        let dropped = library.get(c"cuptiActivityGetNumDroppedRecords")?;
        let clock: unsafe extern "C" fn(extern "C" fn() -> u64) -> c_int =
            transmute(library.get(c"cuptiActivityRegisterTimestampCallback")?);
        check(step::CLOCK, clock(system::monotonic))?;
        library.get(c"cuptiSetThreadIdType")?;
        set(library, c"cuptiSetThreadIdType", GETTID);
        one_set_of_buffers(library);
        DROPPED.store(dropped, Ordering::Relaxed);
        FLUSH.store(flush, Ordering::Relaxed);
        NEXT.store(next, Ordering::Release);
        LIBRARY.store(library.0, Ordering::Release);
        let callbacks: unsafe extern "C" fn(Request, Complete) -> c_int =
            transmute(library.get(c"cuptiActivityRegisterCallbacks")?);
        let enabled = check(step::CALLBACKS, callbacks(buffers::request, buffers::complete))
            .and_then(|()| enable(library, version, graphs));
        if enabled.is_err() {
            NEXT.store(null_mut(), Ordering::Release);
            disable(library);
        }
        enabled?;
        set(library, c"cuptiActivityFlushPeriod", FLUSH_EVERY_MS);
        way::watch(&|name| library.get(name).unwrap_or(null_mut()));
    }
    Ok(())
}

/// Calls a function of CUPTI that takes a number, if this version has it.
unsafe fn set(library: Library, name: &core::ffi::CStr, value: u32) {
    if let Ok(function) = library.get(name) {
        // SAFETY: CUPTI's own function.
        unsafe { transmute::<*mut c_void, Number>(function)(value) };
    }
}

/// For another client that takes CUPTI over: fetches all records up to now, then restores the settings that this
/// library changed. The clock stays, because CUPTI does not say which one it had before.
pub fn give_up() {
    let library = Library(LIBRARY.load(Ordering::Acquire));
    ring::wait_for_room();
    // First without force: then the records of finished work are complete.
    flush_with(NOT_FORCED);
    flush_with(FORCED);
    // SAFETY: the library that `begin_with` used.
    unsafe {
        disable(library);
        set(library, c"cuptiActivityFlushPeriod", NEVER);
        set(library, c"cuptiSetThreadIdType", ANY_THREAD_ID);
    }
}

unsafe fn try_subscription(library: Library) -> Result<(), Failed> {
    extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    // SAFETY: CUPTI's own functions.
    unsafe {
        let subscribe: unsafe extern "C" fn(
            *mut *mut c_void,
            extern "C" fn(*mut c_void, u32, u32, *const c_void),
            *mut c_void,
        ) -> c_int = transmute(library.get(c"cuptiSubscribe")?);
        let unsubscribe: unsafe extern "C" fn(*mut c_void) -> c_int =
            transmute(library.get(c"cuptiUnsubscribe")?);
        let mut subscriber = null_mut();
        check(step::SUBSCRIBE, subscribe(&raw mut subscriber, nothing, null_mut()))?;
        unsubscribe(subscriber);
    }
    Ok(())
}

/// Otherwise memory would grow with the number of threads.
unsafe fn one_set_of_buffers(library: Library) {
    let Ok(set) = library.get(c"cuptiActivitySetAttribute") else { return };
    // SAFETY: CUPTI's own function. A version that does not know the attribute refuses it.
    unsafe {
        let set: unsafe extern "C" fn(u32, *mut usize, *mut c_void) -> c_int = transmute(set);
        let (mut off, mut size) = (0u8, 1usize);
        set(PER_THREAD_BUFFERS, &raw mut size, (&raw mut off).cast());
    }
}

/// Disables all records, so that they cost the process no time and another client gets none that it did not enable.
unsafe fn disable(library: Library) {
    if VERSION.load(Ordering::Relaxed) >= BY_FUNCTION {
        // SAFETY: CUPTI's own functions.
        unsafe { functions(library, false) };
    }
    let Ok(disable) = library.get(c"cuptiActivityDisable") else { return };
    // SAFETY: CUPTI's own function.
    let disable: Number = unsafe { transmute(disable) };
    for kind in KINDS.iter().chain(&[GRAPH, DRIVER, RUNTIME, OVERHEAD]) {
        // SAFETY: a plain integer.
        unsafe { disable(*kind) };
    }
}

unsafe fn enable(library: Library, version: u32, graphs: bool) -> Result<(), Failed> {
    // SAFETY: CUPTI's own functions.
    unsafe {
        let enable: Number = transmute(library.get(c"cuptiActivityEnable")?);
        if graphs {
            check(step::ENABLE, enable(GRAPH))?;
        }
        for kind in KINDS {
            check(step::ENABLE, enable(kind))?;
        }
        // A version without these records is used all the same.
        enable(OVERHEAD);
        if version < BY_FUNCTION || !functions(library, true) {
            check(step::ENABLE, enable(DRIVER))?;
            check(step::ENABLE, enable(RUNTIME))?;
        }
    }
    Ok(())
}

/// Enables or disables records of each call that submits work. Returns whether CUPTI accepted any of them.
unsafe fn functions(library: Library, on: bool) -> bool {
    // SAFETY: CUPTI's own functions.
    unsafe {
        let driver = each_function(library.get(c"cuptiActivityEnableDriverApi"), &shape::DRIVER, on);
        each_function(library.get(c"cuptiActivityEnableRuntimeApi"), &shape::RUNTIME, on) | driver
    }
}

/// A version may not know some of the functions.
unsafe fn each_function(enable: Result<*mut c_void, Failed>, ranges: &[(u16, u16)], on: bool) -> bool {
    let Ok(enable) = enable else { return false };
    // SAFETY: CUPTI's own function.
    let enable: Function = unsafe { transmute(enable) };
    let mut any = false;
    for (first, last) in ranges {
        for function in *first..=*last {
            // SAFETY: plain integers.
            any |= unsafe { enable(u32::from(function), on.into()) } == 0;
        }
    }
    any
}

pub fn flush() {
    flush_with(FORCED);
}

fn flush_with(flag: u32) {
    let flush = FLUSH.load(Ordering::Acquire);
    if !flush.is_null() && is_set_up() {
        // SAFETY: CUPTI's own function.
        unsafe { transmute::<*mut c_void, Number>(flush)(flag) };
    }
}

/// The record behind `record`, or the first of a buffer; None at the end.
pub unsafe fn next_record(buffer: *mut u8, valid: usize, record: *mut u8) -> Option<*mut u8> {
    let next = NEXT.load(Ordering::Acquire);
    let mut record = record;
    if next.is_null() {
        return None;
    }
    // SAFETY: CUPTI's own function, with its own buffer.
    let result = unsafe { transmute::<*mut c_void, NextRecord>(next)(buffer, valid, &raw mut record) };
    (result == 0 && !record.is_null()).then_some(record)
}

pub unsafe fn take_dropped(context: *mut c_void, stream: u32) -> usize {
    let (dropped, mut count) = (DROPPED.load(Ordering::Acquire), 0);
    if !dropped.is_null() {
        // SAFETY: CUPTI's own function.
        unsafe { transmute::<*mut c_void, Dropped>(dropped)(context, stream, &raw mut count) };
    }
    count
}
