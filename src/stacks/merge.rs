//! Native and Python frames in one order. In: the calls of a stack, and its Python frames. Out: frames, innermost first.
//! Pure.
//!
//! Each run of the interpreter's loop stands for the Python frames up to the next entry into the interpreter. The frames
//! of the interpreter's own file say nothing to its user, and what lies beyond the outermost Python frame only starts it:
//! both are left out. Where some run has no name (3.14 and later, stripped), it is not known between which Python frames
//! an outer native one lies: then those beyond the interpreter's innermost frame are left out too.

use super::native;
use gpurec_trace::Frame;

/// The interpreter's loop. From 3.14 on it may consist of functions that call each other last, one for each instruction.
const LOOP: &str = "_PyEval_EvalFrameDefault";
const INSTRUCTION: &str = "_TAIL_CALL_";
/// How the files of interpreters are named.
const FILES: [&str; 2] = ["python3", "libpython3"];
/// A file that the process has not mapped any more, or that could not be asked for.
const UNKNOWN: &str = "[unknown]";

/// A Python frame; none if it has not begun.
pub struct PythonEntry {
    pub frame: Option<Frame<'static>>,
    /// The interpreter was entered here.
    pub is_entry: bool,
}

/// `cut`: outer frames are missing.
pub fn merge(calls: &[Vec<native::Frame>], python: Vec<PythonEntry>, cut: bool) -> Vec<Frame<'static>> {
    let runs: Vec<bool> = (0..calls.len()).map(|at| is_run(calls, at)).collect();
    let count = runs.iter().filter(|runs| **runs).count();
    let is_named = cut && count > 0 || count == python.iter().filter(|entry| entry.is_entry).count();
    let first = runs.iter().position(|runs| *runs).and_then(|at| calls.get(at)?.first()?.module.clone());
    let interpreter = first.or_else(|| calls.iter().find_map(|call| file_of_interpreter(call)));
    let is_own = |call: &[native::Frame]| {
        interpreter.is_some() && call.first().is_some_and(|frame| frame.module == interpreter)
    };
    let mut all = Vec::new();
    let mut python = python.into_iter().peekable();
    let has_python = python.peek().is_some();
    for (call, runs) in calls.iter().zip(runs) {
        if has_python && !is_named && is_own(call) {
            break;
        }
        if runs {
            let mut inside = true;
            while inside && let Some(entry) = python.next() {
                inside = !entry.is_entry;
                all.extend(entry.frame);
            }
            if has_python && python.peek().is_none() {
                return all;
            }
        } else if !is_own(call) {
            all.extend(call.iter().map(shown));
        }
    }
    all.extend(python.filter_map(|entry| entry.frame));
    all
}

fn runs_loop(frame: &native::Frame) -> bool {
    let name = frame.function.as_deref();
    name.is_some_and(|name| name.starts_with(LOOP) || name.starts_with(INSTRUCTION))
}

fn is_instruction(call: &[native::Frame]) -> bool {
    let mut names = call.iter().filter_map(|frame| frame.function.as_deref());
    names.any(|name| name.starts_with(INSTRUCTION))
}

/// Whether a call is a run of the loop. The loop's first function, beneath that of an instruction, is the same run.
fn is_run(calls: &[Vec<native::Frame>], at: usize) -> bool {
    let inner = at.checked_sub(1).and_then(|inner| calls.get(inner));
    calls.get(at).is_some_and(|call| {
        call.iter().any(runs_loop)
            && (is_instruction(call) || !inner.is_some_and(|inner| is_instruction(inner)))
    })
}

/// The file of a call, if it is named as an interpreter.
fn file_of_interpreter(call: &[native::Frame]) -> Option<String> {
    let module = call.first()?.module.as_deref()?;
    let name = module.rsplit('/').next()?;
    FILES.iter().any(|file| name.starts_with(file)).then(|| module.to_owned())
}

fn shown(frame: &native::Frame) -> Frame<'static> {
    Frame::Native {
        function: frame.function.clone().map(Into::into),
        module: frame.module.clone().unwrap_or_else(|| UNKNOWN.to_owned()).into(),
        build_id: frame.build_id.clone().map(Into::into),
        offset: frame.offset,
        file: frame.file.clone().map(Into::into),
        line: frame.line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(module: &str, function: &str) -> Vec<native::Frame> {
        let (function, module) = (Some(function.to_owned()), Some(module.to_owned()));
        vec![native::Frame { function, module, ..native::Frame::default() }]
    }

    fn python(name: &'static str, is_entry: bool) -> PythonEntry {
        let frame = Frame::Python { function: name.into(), file: "a.py".into(), line: Some(1) };
        PythonEntry { frame: Some(frame), is_entry }
    }

    fn names(frames: &[Frame]) -> Vec<String> {
        frames
            .iter()
            .map(|frame| frame.text().split(' ').next_back().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn python_frames_take_the_place_of_the_interpreters_loop() {
        let calls = [
            call("libtorch.so", "launch"),
            call("libpython3.so", "cfunction_call"),
            call("libpython3.so", LOOP),
            call("libpython3.so", "slot_tp_call"),
            call("_functools.so", "reduce"),
            call("libpython3.so", LOOP),
            call("libc.so.6", "__libc_start_main"),
        ];
        let frames = || vec![python("inner", false), python("key", true), python("main", true)];
        let shown: Vec<String> = merge(&calls, frames(), false).iter().map(Frame::text).collect();
        assert_eq!(
            shown,
            ["launch (libtorch.so)", "a.py:1 inner", "a.py:1 key", "reduce (_functools.so)", "a.py:1 main"]
        );
        // The native part is cut, or the interpreter has no names.
        assert_eq!(names(&merge(&calls[..1], frames(), true)), ["(libtorch.so)", "inner", "key", "main"]);
        // Each instruction of the loop is a function, called by the loop's own or instead of it.
        let mut split = calls.to_vec();
        split[2] = call("libpython3.so", "_TAIL_CALL_CALL");
        split[5] = call("libpython3.so", "_TAIL_CALL_CALL.lto_priv.0");
        split.insert(6, call("libpython3.so", LOOP));
        let shown: Vec<String> = merge(&split, frames(), false).iter().map(Frame::text).collect();
        assert_eq!(shown[3], "reduce (_functools.so)");
        assert_eq!(shown.len(), 5);
        // No function of the interpreter has a name: the order of the frames beyond is not known.
        let mut stripped = calls.clone();
        stripped.iter_mut().flatten().for_each(|frame| frame.function = None);
        assert_eq!(names(&merge(&stripped, frames(), false)), ["libtorch.so+0x0", "inner", "key", "main"]);
        // No Python frame is known.
        assert_eq!(
            names(&merge(&calls, Vec::new(), false)),
            ["(libtorch.so)", "(_functools.so)", "(libc.so.6)"]
        );
    }
}
