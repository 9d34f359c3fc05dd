//! Each failure counts once: as seen by the program, or as handled by an enclosing call.

use super::*;
use crate::figures::Failures;

const OUT_OF_MEMORY: i32 = 2;
const DEINITIALIZED: i32 = 4;
const NOT_FOUND: i32 = 500;

fn failures(of: impl FnOnce(&mut Script)) -> Failures {
    let mut s = Script::new();
    of(&mut s);
    let (live, bytes) = s.finish();
    assert_eq!(of_file(&bytes), live, "the same from the file");
    live.failures
}

/// cudaMalloc with two calls inside.
fn malloc(s: &mut Script, probe: i32, inner: i32, outer: i32) {
    let call = s.begin("cudaMalloc", None);
    for (name, status) in [("cuGetProcAddress_v2", probe), ("cuMemAlloc_v2", inner)] {
        let inside = s.begin(name, Some(call));
        s.end(inside, 10, status);
    }
    s.end(call, 10, outer);
}

#[test]
fn a_failure_inside_a_failed_call_is_its_cause() {
    let f = failures(|s| malloc(s, 0, OUT_OF_MEMORY, OUT_OF_MEMORY));
    assert_eq!((f.calls, f.handled, f.by_error.len()), (1, 0, 1));
    let first = f.first.unwrap();
    assert_eq!((first.function.as_str(), first.error.as_str()), ("cudaMalloc", "cudaErrorMemoryAllocation"));
    let cause = first.cause.unwrap();
    assert_eq!(
        (cause.function.as_str(), cause.error.as_str()),
        ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY")
    );
    // Of several nested failures the last is the cause.
    let f = failures(|s| malloc(s, NOT_FOUND, OUT_OF_MEMORY, OUT_OF_MEMORY));
    assert_eq!((f.calls, f.handled), (1, 0));
    assert_eq!(f.by_error[0].cause.as_ref().unwrap().function, "cuMemAlloc_v2");
}

#[test]
fn a_failure_inside_a_call_that_succeeds_was_handled() {
    let f = failures(|s| {
        malloc(s, NOT_FOUND, 0, 0);
        malloc(s, 0, OUT_OF_MEMORY, OUT_OF_MEMORY);
        malloc(s, NOT_FOUND, 0, 0);
    });
    assert_eq!((f.calls, f.handled), (1, 2));
    assert_eq!(f.first.unwrap().function, "cudaMalloc", "not the one that was handled before");
    let [handled] = f.handled_by_error.as_slice() else { panic!("{:?}", f.handled_by_error) };
    assert_eq!((handled.function.as_str(), handled.count), ("cuGetProcAddress_v2", 2));
    // One level deeper: a failure that was handled there decides nothing further out.
    let f = failures(|s| {
        let outer = s.begin("cudaGraphLaunch", None);
        let middle = s.begin("cudaMalloc", Some(outer));
        let inner = s.begin("cuMemAlloc_v2", Some(middle));
        s.end(inner, 1, OUT_OF_MEMORY);
        s.end(middle, 1, 0);
        s.end(outer, 1, OUT_OF_MEMORY);
    });
    assert_eq!((f.calls, f.handled, f.first.unwrap().cause), (1, 1, None));
}

#[test]
fn calls_after_the_driver_was_shut_down_are_no_failures() {
    let f = failures(|s| {
        let outer = s.begin("__cudaUnregisterFatBinary", None);
        let inner = s.begin("cuLibraryUnload", Some(outer));
        s.end(inner, 1, DEINITIALIZED);
        s.end(outer, 1, 0);
        s.call("cuDevicePrimaryCtxRelease_v2", 1, DEINITIALIZED);
    });
    assert_eq!((f.calls, f.handled, f.shutdown, f.first), (0, 1, 1, None));
    assert!(f.by_error.is_empty());
}

/// A --lib library does not reveal whether it failed, and neither does a call that never returned.
#[test]
fn calls_without_a_known_result_hide_no_failure() {
    let f = failures(|s| {
        let library = s.begin("ncclAllReduce", None);
        malloc_in(s, library);
        s.end(library, 1, 0);
    });
    assert_eq!((f.calls, f.handled, f.first.unwrap().function.as_str()), (1, 0, "cudaMalloc"));
    let f = failures(|s| {
        let outer = s.begin("cudaMalloc", None);
        let inner = s.begin("cuMemAlloc_v2", Some(outer));
        s.end(inner, 1, OUT_OF_MEMORY);
    });
    assert_eq!((f.calls, f.handled, f.first.unwrap().function.as_str()), (1, 0, "cuMemAlloc_v2"));
    let f = failures(|s| {
        let outer = s.begin("cudaMalloc", None);
        let inner = s.begin("cuMemAlloc_v2", Some(outer));
        s.end(inner, 1, OUT_OF_MEMORY);
        s.end(outer, 1, 0);
        let Body::End(end) = &mut s.lines.last_mut().unwrap().body else { panic!() };
        (end.ended, end.retval) = (EndKind::Unwound, None);
    });
    assert_eq!((f.calls, f.handled), (1, 0));
}

#[test]
fn a_call_that_is_said_to_be_inside_itself_ends_the_search() {
    let f = failures(|s| {
        let library = s.begin("ncclAllReduce", None);
        let Body::Begin(begin) = &mut s.lines[library as usize].body else { panic!() };
        begin.parent = Some(library);
        malloc_in(s, library);
    });
    assert_eq!((f.calls, f.handled), (1, 0));
}

fn malloc_in(s: &mut Script, parent: u64) {
    let outer = s.begin("cudaMalloc", Some(parent));
    let inner = s.begin("cuMemAlloc_v2", Some(outer));
    s.end(inner, 1, OUT_OF_MEMORY);
    s.end(outer, 1, OUT_OF_MEMORY);
}

/// More kinds inside one call, and more such calls, than there is room for: no failure is lost.
#[test]
fn what_finds_no_room_is_a_failure() {
    let f = failures(|s| {
        let outer = s.begin("cudaMalloc", None);
        for code in (1..=40).filter(|code| cuda::error_name(cuda::Api::Driver, *code).is_some()) {
            let inner = s.begin("cuMemAlloc_v2", Some(outer));
            s.end(inner, 1, code);
        }
        s.end(outer, 1, 0);
    });
    let all = f.calls + f.handled + f.shutdown;
    assert!(f.handled == 8 && f.calls > 0 && all == 9.max(all), "{f:?}");
}

#[test]
fn the_text_tells_failures_from_what_was_handled() {
    let mut s = Script::new();
    malloc(&mut s, NOT_FOUND, 0, 0);
    malloc(&mut s, 0, OUT_OF_MEMORY, OUT_OF_MEMORY);
    s.call("cuDevicePrimaryCtxRelease_v2", 1, DEINITIALIZED);
    let text = crate::text::print(&s.finish().0, UNBOUNDED);
    let at = text.find("Failed calls: 1, the first at ").unwrap();
    let end = text.find("\nRecording:").unwrap();
    let expected = "\
       1 x    2 cudaErrorMemoryAllocation  cudaMalloc (runtime)
                because cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY

Failures handled by the call around them: 1
       1 x  500 CUDA_ERROR_NOT_FOUND  cuGetProcAddress_v2 (driver)

Calls refused because the driver was shut down already, at the end of the process: 1
";
    assert!(text[at..end].contains(expected), "{}", &text[at..end]);
}
