use std::path::Path;

use super::calls::Calls;
use super::metric::{Field, Metric};
use super::names::{fits_function, fits_kernel, is_pattern, matches, nearest};
use super::part::{Edge, Window};
use super::sample::{Durations, Sample};
use super::script::Script;
use super::*;

fn parsed(text: &str) -> (Term, Op, Value) {
    match budget(text) {
        Ok(Some(parsed)) => parsed,
        other => panic!("{text}: {other:?}"),
    }
}

fn fault(text: &str) -> (usize, String) {
    match budget(text) {
        Err(Fault { column, reason }) => (column, reason),
        other => panic!("{text}: {other:?}"),
    }
}

/// The value of the term and whether the assertion holds, or the reason.
fn judged(file: &Path, text: &str) -> Result<(String, bool, Vec<String>), String> {
    let (term, op, limit) = parsed(text);
    let mut asks = Asks::default();
    asks.add(&term, Some(limit));
    let gathered = gather(file, &asks, &crate::Only::default()).unwrap();
    match evaluate(&term, &gathered) {
        Ok(found) => Ok((found.shown(&limit).to_string(), decide(&found, op, &limit), found.notes)),
        Err(EvalError::NoValue(reason)) => Err(reason),
        Err(EvalError::Unknown { column, reason }) => Err(format!("{column}: {reason}")),
    }
}

#[track_caller]
fn holds(file: &Path, text: &str, value: &str) {
    assert_eq!(judged(file, text), Ok((value.into(), true, Vec::new())), "{text}");
}

#[track_caller]
fn fails(file: &Path, text: &str, value: &str) {
    assert_eq!(judged(file, text), Ok((value.into(), false, Vec::new())), "{text}");
}

#[test]
fn every_form_of_an_expression_is_read() {
    for text in [
        "launches<=5000",
        "memory.leaked==0",
        "errors==0",
        "sync.time<20ms",
        "cudaMalloc.calls==0 after 10s",
        "cudaLaunchKernel.p99<50us",
        "  launches <= 5_000   # a comment",
        "cudaLaunchKernel.p99.9<1.5ms after 100 launches before 10min",
        "cudaMalloc.calls<5 before 2s after 1s",
        "kernel(\"void f<4>(float*, # int)\").launches>0",
        "kernel('a \"b\"').p50 < 2 us",
        "memory.device.allocated<=64MB",
        "memory.peak < 1.5 GiB",
        "memory.peak < 2TB",
        "copies.H2D.rate>=10GB/s",
        "copies.pageable==0",
        "cuMem*.calls/launches<=0.1",
        "sync.time / duration < 50%",
        "launches/duration>1000/s",
        "memory.allocated/memory.allocations<=1MB",
        "ioctl(\"NV_ESC_RM_ALLOC*\").avg<10us",
        "ncclAllReduce.calls==8",
        "complete",
        "complete==true",
        "xids==0",
        "sync.time==0",
        "cudaMalloc.time != 0 # a time of 0 needs no unit",
    ] {
        parsed(text);
    }
    for text in ["", "   ", "# only a comment", "\t# another"] {
        assert!(matches!(budget(text), Ok(None)), "{text:?}");
    }
    let (term, ..) = parsed("cudaLaunchKernel.p99.9<1ms after 1.5s before 20 launches");
    assert_eq!(term.window, Window { from: Edge::Time(1_500_000_000), to: Edge::Launches(20) });
    assert_eq!(
        term.metric,
        Metric::Function { name: "cudaLaunchKernel".into(), field: Field::Percentile(99_900) }
    );
}

#[test]
fn errors_point_at_the_column_and_name_what_was_meant() {
    for (text, column, words) in [
        ("launchs<=5000", 1, "did you mean launches?"),
        ("  memroy.leaked==0", 3, "did you mean memory.leaked"),
        ("memory.leakd==0", 1, "did you mean memory.leaked"),
        ("cudaMalloc.cals==0", 12, "did you mean calls?"),
        ("cudaMalloc==0", 1, "as in cudaMalloc.calls"),
        ("sync.time<20", 11, "as in 20ms"),
        ("launches<5ms", 10, "a number without a unit"),
        ("memory.leaked<5ms", 15, "as in 64MB"),
        ("launches<", 10, "a number"),
        ("launches<-1", 10, "below 0"),
        ("launches=5", 9, "write =="),
        ("launches", 9, "a comparison"),
        ("launches<5 5", 12, "a comment"),
        ("launches<5 after", 17, "a number"),
        ("launches<5 after 10MB", 18, "as in after 10s"),
        ("launches<5 after 1s after 2s", 21, "twice"),
        ("launches<5 after 2s before 1s", 30, "nothing lies"),
        ("kernel(x).launches<1", 8, "in quotes"),
        ("kernel(\"x).launches<1", 8, "quote"),
        ("kernel(\"x\").calls<1", 13, "launches"),
        ("thing(\"x\").calls<1", 1, "kernel(\"NAME\")"),
        ("copies.H2X.bytes<1", 1, "did you mean H2D or H2H?"),
        ("memory.gpu.leaked<1", 1, "there are device"),
        ("cudaMalloc.p101<1us", 12, "percentile"),
        ("cudaMalloc.p99.9999<1us", 12, "percentile"),
        ("launches/memory.peak<1", 9, "cannot be divided"),
        ("==5", 1, "a metric"),
        ("µµ.calls # ünï", 10, "a comparison"),
        ("launches<99999999999999999999999999", 10, "a number without a unit"),
    ] {
        let (at, reason) = fault(text);
        assert!(at == column && reason.contains(words), "{text}: {at}: {reason}");
    }
}

/// Truncated or mangled text gives an answer or an error whose column is within the text.
#[test]
fn no_text_makes_it_panic() {
    let whole = "kernel(\"void f<4>(float*)\").p99.9/launches <= 1.5us after 100 launches before 10s # ünï";
    let chars: Vec<char> = whole.chars().collect();
    for end in 0..=chars.len() {
        for (from, with) in [(0, None), (end / 2, None), (0, Some('=')), (0, Some('é')), (0, Some('9'))] {
            let mut text: String = chars[from..end].iter().collect();
            text.extend(with);
            for fault in [budget(&text).err(), threshold(&text).err()].into_iter().flatten() {
                assert!(
                    fault.column <= text.chars().count() + 1 && !fault.reason.is_empty(),
                    "{text}: {fault:?}"
                );
            }
        }
    }
}

#[test]
fn thresholds_are_relative_or_absolute() {
    let relative = threshold("cudaMalloc.calls=10%").unwrap();
    assert!(relative.relative && relative.limit.to_string() == "0.1000", "{relative:?}");
    let absolute = threshold("sync.time after 1s = +5ms").unwrap();
    assert!(!absolute.relative && absolute.limit.to_string() == "5.000 ms", "{absolute:?}");
    for (text, column) in [
        ("cudaMalloc.calls", 17),
        ("cudaMalloc.calls==1", 18),
        ("sync.time=5", 11),
        ("launches=5%%", 10),
        ("=5%", 1),
    ] {
        assert_eq!(threshold(text).unwrap_err().column, column, "{text}");
    }
}

#[test]
fn names_without_a_version_stand_for_all_versions() {
    assert!(fits_function("cuMemAlloc", "cuMemAlloc_v2") && fits_function("cuMemAlloc_v2", "cuMemAlloc_v2"));
    assert!(!fits_function("cuMemAlloc_v2", "cuMemAlloc") && !fits_function("cudaMalloc", "cudaMallocAsync"));
    assert!(
        fits_function("cuMemcpy*", "cuMemcpyHtoD_v2") && fits_function("cuMemcpy?toD", "cuMemcpyHtoD_v2")
    );
    assert!(
        matches("*a*b", "xaxbxb") && !matches("*a*b", "xaxbxc") && matches("**", "") && !matches("?", "")
    );
    assert!(fits_kernel("f<*>(float*)", "void f<int>(float*)") && !fits_kernel("f", "void f<int>(float*)"));
    assert!(matches("void f<int>(float*)", "void f<int>(float*)") && is_pattern("f*") && !is_pattern("f[1]"));
    let near = |name| nearest(name, ["cudaMalloc", "cudaFree", "cuMemAlloc", "cudaMallocHost"].into_iter());
    assert_eq!(near("cudaMaloc")[0], "cudaMalloc");
    assert_eq!(near("cudaMlaloc")[0], "cudaMalloc");
    assert_eq!(near("CUDAFREE"), ["cudaFree"]);
    assert_eq!(near("somethingElse"), [""; 0]);
}

#[test]
fn values_are_exact() {
    let value = |number: &str, suffix: &str, unit| Value::parse(number, suffix, unit).unwrap();
    assert_eq!(value("1.5", "ms", Unit::Time).floor(), (1_500_000, true));
    assert_eq!(value("0.0015", "us", Unit::Time).floor(), (1, false));
    assert_eq!(value("1.5", "KB", Unit::Bytes).floor(), (1536, true));
    assert_eq!(value("10", "GB/s", Unit::Rate).floor(), (10_000_000_000, true));
    assert!(
        Value::parse("1.2.3", "", Unit::Count).is_none() && Value::parse(".5", "", Unit::Ratio).is_none()
    );
    // A third is less than 0.3334 and more than 0.3333.
    let third = Value::whole(1, Unit::Count).over(Value::whole(3, Unit::Count)).unwrap();
    assert!(third.compare(&value("0.3334", "", Unit::Ratio)).is_lt());
    assert!(third.compare(&value("33.33", "%", Unit::Ratio)).is_gt());
    assert!(Value::whole(1, Unit::Count).over(Value::whole(0, Unit::Count)).is_none());
    // Exact where a double is not: 2^60 and 2^60 + 1.
    let big = |n| Value::whole(n, Unit::Count);
    assert!(big(1 << 60).compare(&big((1 << 60) + 1)).is_lt());
    assert_eq!(big(u64::MAX).changed(value("10", "%", Unit::Ratio), true).floor().0, u64::MAX);
    assert_eq!(big(10).plus(big(20), false).floor(), (0, true));
}

/// The histogram is exact to 1 %; an assertion needs the exact side of the limit.
#[test]
fn percentiles_are_compared_exactly() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % 1_000_000
    };
    let mut values: Vec<u64> = (0..997).map(|_| random()).collect();
    let sorted = {
        values.sort();
        values.clone()
    };
    for of in [1, 500, 10_000, 50_000, 90_000, 99_000, 99_900, 99_999] {
        let rank = ((997 * of as usize).div_ceil(100_000)).max(1);
        let truth = sorted[rank - 1];
        for limit in [0, truth - 1, truth, truth + 1, truth + truth / 200, 2_000_000] {
            let limit = Value::whole(limit, Unit::Time);
            let (mut one, mut two) = (Sample::default(), Sample::default());
            for sample in [&mut one, &mut two] {
                sample.durations = Some(Box::new(Durations::new(&[limit])));
            }
            // A pattern merges two functions.
            values
                .iter()
                .enumerate()
                .for_each(|(i, ns)| if i % 3 == 0 { one.took(*ns) } else { two.took(*ns) });
            one.merge(&two);
            let truth = Value::whole(truth, Unit::Time);
            assert_eq!(one.compare(of, &limit), Some(truth.compare(&limit)), "p{of} {limit}");
            let near = one.percentile(of).unwrap() as f64 / truth.float().max(1.0);
            assert!((0.99..=1.01).contains(&near) || truth.float() < 200.0, "p{of}: {near}");
        }
    }
    assert_eq!(Sample::default().percentile(99_000), None);
}

#[test]
fn what_is_printed_never_contradicts_the_verdict() {
    let mut s = Script::new();
    s.calls("cuInit", 100_500, 100);
    let file = s.finish(0);
    for (limit, holds) in [("100.499us", false), ("100.5us", false), ("100.501us", true), ("101us", true)] {
        let (shown, held, _) = judged(file.path(), &format!("cuInit.p99<{limit}")).unwrap();
        let shown: f64 = shown.strip_suffix(" us").unwrap().parse().unwrap();
        let limit: f64 = limit.strip_suffix("us").unwrap().parse().unwrap();
        assert!(held == holds && (shown < limit) == holds, "{limit}: {shown} {held}");
    }
}

fn small() -> Script {
    let mut s = Script::new();
    s.memory("alloc", 0x100, 4096, 2000).memory("alloc", 0x200, 1024, 1000);
    s.wait(1_000_000_000);
    s.launch("void gelu<4>(float*, int)", 3000).launch("matmul", 5000).launch("matmul", 7000);
    s.memory("free", 0x200, 1024, 4000).memory("alloc", 0x300, 100, 1000);
    s.copy("H2D", 1 << 20, 1_000_000).failed("cudaMalloc", "cudaErrorMemoryAllocation");
    s.wait(1_000_000_000);
    s.launch("matmul", 9000);
    s
}

#[test]
fn metrics_are_what_the_trace_says() {
    let file = small().finish(0);
    let file = file.path();
    holds(file, "calls<=22", "18");
    holds(file, "launches==4", "4");
    fails(file, "launches<4", "4");
    holds(file, "cudaMalloc.calls==4", "4");
    holds(file, "cuMemAlloc.calls==3", "3");
    holds(file, "cudaMalloc.errors==1", "1");
    holds(file, "errors==1", "1");
    // Bytes also count for the call that the program made.
    holds(file, "cudaMalloc.bytes==5220", "5220 bytes");
    holds(file, "cuMemAlloc_v2.bytes==5220", "5220 bytes");
    holds(file, "cudaFree.bytes==1024", "1024 bytes");
    holds(file, "memory.held==4196", "4196 bytes");
    holds(file, "memory.device.held==4196", "4196 bytes");
    holds(file, "memory.device.leaks==0", "0");
    holds(file, "memory.host.allocated==0", "0 bytes");
    holds(file, "cuLaunchKernel.time==24us", "24.000 us");
    holds(file, "cuLaunchKernel.avg==6us", "6.000 us");
    holds(file, "cuLaunchKernel.max==9us", "9.000 us");
    holds(file, "cuLaunchKernel.min>2.9us", "3.000 us");
    holds(file, "kernel(\"matmul\").launches==3", "3");
    holds(file, "kernel(\"*gelu*\").time==3us", "3.000 us");
    holds(file, "copies.calls==1", "1");
    holds(file, "copies.H2D.bytes==1MB", "1048576 bytes (1.00 MB)");
    holds(file, "copies.rate>1GB/s", "1.05 GB/s");
    holds(file, "cudaMalloc.calls/launches<=100%", "1");
    holds(file, "complete", "1");
    // A known function without calls.
    holds(file, "cudaMemcpyPeer.calls==0", "0");
}

#[test]
fn a_part_of_a_recording_has_the_calls_that_began_in_it() {
    let file = small().finish(0);
    let file = file.path();
    holds(file, "cudaMalloc.calls==2 before 1s", "2");
    holds(file, "cudaMalloc.calls==2 after 1s", "2");
    holds(file, "cudaMalloc.calls==0 after 2s", "0");
    holds(file, "cudaMalloc.calls==2 after 1s before 2s", "2");
    holds(file, "launches==1 after 2s", "1");
    holds(file, "launches==1 after 3 launches", "1");
    holds(file, "launches==3 before 3 launches", "3");
    holds(file, "errors==0 after 2s", "0");
    // Memory allocated and not freed in the window; earlier memory is not part of it.
    holds(file, "memory.held==100 after 1s", "100 bytes");
    holds(file, "memory.held==5120 before 1s", "5120 bytes");
    // A window without events must not fall back to the figures of the whole.
    holds(file, "calls==0 after 1.5s before 1.6s", "0");
    let (value, pass, notes) = judged(file, "cudaMalloc.calls==0 after 10s").unwrap();
    assert!(value == "0" && pass && notes[0].contains("nothing was looked at"), "{notes:?}");
    let (.., notes) = judged(file, "cudaMalloc.calls==0 after 100 launches").unwrap();
    assert_eq!(notes, ["the trace has only 4 launches: nothing was looked at"]);
    assert!(judged(file, "cudaMalloc.p99<1s after 10s").is_err());
}

#[test]
fn what_is_not_there_is_never_zero() {
    let file = small().finish(0);
    for (text, words) in [
        (
            "cudaMaloc.calls==0",
            "1: no CUDA function and nothing in the trace is called cudaMaloc; did you mean cudaMalloc",
        ),
        ("syncs.time<1s", "did you mean"),
        ("launches/cudaMaloc.calls<9", "10: no CUDA function"),
        ("kernel(\"matmull\").launches<9", "did you mean matmul?"),
        ("cudaMemcpyPeer.p99<1s", "never called"),
        ("cudaMemcpyPeer.avg<1s", "never called"),
        ("ioctl.calls==0", "without --kernel"),
        ("ioctl(\"*\").calls==0", "without --kernel"),
        ("launches/sync.calls<9", "divided by 0"),
        ("copies.D2H.rate>1GB/s", "no call waited"),
    ] {
        let reason = judged(file.path(), text).unwrap_err();
        assert!(reason.contains(words), "{text}: {reason}");
    }
    let (.., notes) = judged(file.path(), "kernel(\"softmax*\").launches==0").unwrap();
    assert!(notes[0].starts_with("no kernel of the trace"), "{notes:?}");
}

#[test]
fn a_function_that_was_left_out_has_no_count() {
    let mut s = Script::with(r#"{"skip":["cudaMal*","cuInit"]}"#);
    s.call("cudaFree", 1000);
    let file = s.finish(0);
    assert_eq!(
        judged(file.path(), "cudaMalloc.calls==0"),
        Err("cudaMalloc was not recorded (the recording had --skip cudaMal* cuInit)".into())
    );
    let mut s = Script::with(r#"{"api":"driver"}"#);
    s.call("cuInit", 1000);
    let file = s.finish(0);
    assert!(judged(file.path(), "cudaMalloc.calls==0").unwrap_err().contains("--api driver"));
    // No option left it out, but the trace has no library of its kind.
    let mut s = Script::new();
    s.call("cuInit", 1000);
    let file = s.finish(0);
    let (.., notes) = judged(file.path(), "cudaMalloc.calls==0").unwrap();
    assert_eq!(notes, ["the trace has no call of the CUDA runtime at all"]);
    let mut s = Script::new();
    s.line("process", "library", r#""pid":7,"tid":7,"path":"/l","build_id":null,"functions":1,"not_hooked":[{"name":"cudaMalloc","reason":"odd"}]"#);
    let file = s.call("cudaFree", 1000).finish(0);
    assert_eq!(judged(file.path(), "cudaMalloc.calls==0"), Err("cudaMalloc could not be hooked: odd".into()));
}

#[test]
fn ends_without_a_begin_are_calls_and_loss_is_said() {
    let mut s = Script::new();
    s.end("cudaMalloc", 999, 1000, None);
    let file = s.finish(3);
    let gathered = gather(file.path(), &Asks::default(), &crate::Only::default()).unwrap();
    assert!(!gathered.whole.figures.complete);
    assert_eq!(gathered.whole.calls.functions.list[0].calls, 1);
    assert_eq!(judged(file.path(), "cudaMalloc.calls==0"), Err("3 events were lost".into()));
    assert!(!judged(file.path(), "complete").unwrap().1);
    assert!(judged(file.path(), "lost==3").unwrap().1);
}

/// Memory is bounded by the number of names, which is bounded.
#[test]
fn names_without_end_become_one() {
    let mut calls = Calls::default();
    let most = super::calls::MOST;
    for i in 0..most + 5000 {
        let text = format!(
            r#"{{"event_id":{i},"ts":0.000000000,"type":"userspace","name":"f{i}","phase":"E","pid":1,"tid":1,"begin":0,"duration_us":1.000,"retval":0}}"#
        );
        let mut reader = gpurec_trace::Reader::new(text.as_bytes());
        calls.add(&reader.next().unwrap().unwrap());
    }
    assert_eq!(calls.functions.list.len(), most + 1);
    assert_eq!(calls.functions.get("(others)").unwrap().calls, 5000);
}
