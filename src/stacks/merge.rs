//! Native and Python frames in one order. In: the calls of a stack, and its Python frames. Out: frames, innermost first.
//! Pure.
//!
//! Each run of the interpreter's loop stands for the Python frames up to the next entry into the interpreter. The frames
//! of the interpreter's own file say nothing to its user, and what lies beyond the outermost Python frame only starts it:
//! both are left out.

use super::native;
use gpurec_trace::Frame;

/// The interpreter's loop.
const LOOP: &str = "_PyEval_EvalFrameDefault";
/// A file that the process has not mapped any more, or that could not be asked for.
const UNKNOWN: &str = "[unknown]";

/// A Python frame; none if it has not begun.
pub struct PythonEntry {
    pub frame: Option<Frame<'static>>,
    /// The interpreter was entered here.
    pub is_entry: bool,
}

pub fn merge(calls: &[Vec<native::Frame>], python: Vec<PythonEntry>) -> Vec<Frame<'static>> {
    let is_loop = |call: &&Vec<native::Frame>| call.iter().any(runs_loop);
    let interpreter = calls.iter().find(is_loop).and_then(|call| call.first()?.module.clone());
    let is_own = |call: &[native::Frame]| {
        interpreter.is_some() && call.first().is_some_and(|frame| frame.module == interpreter)
    };
    let mut all = Vec::new();
    let mut python = python.into_iter().peekable();
    let has_python = python.peek().is_some();
    for call in calls {
        if call.iter().any(runs_loop) {
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
    frame.function.as_deref().is_some_and(|name| name.starts_with(LOOP))
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
        let shown: Vec<String> = merge(&calls, frames()).iter().map(Frame::text).collect();
        assert_eq!(
            shown,
            ["launch (libtorch.so)", "a.py:1 inner", "a.py:1 key", "reduce (_functools.so)", "a.py:1 main"]
        );
        // The native part is cut, or the interpreter has no names.
        assert_eq!(names(&merge(&calls[..1], frames())), ["(libtorch.so)", "inner", "key", "main"]);
        // No Python frame is known.
        assert_eq!(names(&merge(&calls, Vec::new())), ["(libtorch.so)", "(_functools.so)", "(libc.so.6)"]);
    }
}
