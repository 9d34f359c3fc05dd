//! Memory that cannot be read, is not resident, or changes while it is read.
//! In: programs/capture.c, which passes such pointers to stand-ins for real functions.
//! Out: a valid trace that has what could be read and reports the rest as unreadable; and a program that noticed
//! nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::needs::backends;
use crate::room::{Room, live};
use crate::table::build;
use crate::trace::{Trace, text_of};

const PAGE: usize = 4096;
const FUNCTIONS: [&str; 9] = [
    "cuModuleGetFunction",
    "cuDeviceGetByPCIBusId",
    "cuMemcpy2D_v2",
    "cuLaunchKernelEx",
    "cuMemcpyBatchAsync_v2",
    "cuMemAlloc_v2",
    "cuFuncGetName",
    "cuGetErrorString",
    "cuDeviceGetName",
];

struct TracedRun {
    trace: Trace,
    lines: Vec<Value>,
}

fn recorded(room: &Room, backend: &str, more: &[&str]) -> TracedRun {
    let mut names: BTreeSet<String> = FUNCTIONS.map(str::to_owned).into();
    names.insert("cuLaunchKernel".to_owned());
    let library = build(room, "libcuda.so.1", &names);
    let (program, letters) = (room.compile("capture.c", "capture", &[]), room.text("letters"));
    let mut bytes = vec![b'f'; 8 * PAGE];
    bytes[3 * PAGE + 20] = 0;
    fs::write(&letters, bytes).unwrap();
    let file = room.text(&format!("{backend}.jsonl"));
    let words = ["--backend", backend, "-o", &file, "--", &program, &library, &letters];
    room.run(room.gpurec(&[&words[..], more].concat())).exited(0);
    let trace = Trace::checked(room, &file);
    trace.by(backend);
    let lines = text_of(Path::new(&file)).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    TracedRun { trace, lines }
}

/// Records on every backend.
fn each_backend(check: impl Fn(&TracedRun)) {
    live(|room| {
        for backend in backends() {
            let recorded = recorded(room, backend, &[]);
            recorded.trace.is_whole();
            check(&recorded);
        }
    });
}

impl TracedRun {
    /// Returns the values of `key` in a function's calls, in order.
    fn all(&self, function: &str, phase: &str, key: &str) -> Vec<&Value> {
        let lines = self.lines.iter().filter(|line| line["name"] == function && line["phase"] == phase);
        lines.map(|line| &line[key]).collect()
    }

    fn args(&self, function: &str) -> Vec<&Value> {
        self.all(function, "B", "args")
    }

    fn out(&self, function: &str) -> Vec<&Value> {
        self.all(function, "E", "out")
    }
}

/// For an argument: its value, and whether it is listed as unreadable and as cut.
fn seen(of: &Value, name: &str) -> (Value, bool, bool) {
    let listed = |list: &str| of[list].as_array().is_some_and(|all| all.contains(&json!(name)));
    (of[name].clone(), listed("unreadable"), listed("cut"))
}

fn fine(value: impl Into<Value>) -> (Value, bool, bool) {
    (value.into(), false, false)
}

fn unreadable() -> (Value, bool, bool) {
    (Value::Null, true, false)
}

fn cut(value: impl Into<Value>) -> (Value, bool, bool) {
    (value.into(), false, true)
}

/// Compares all cases, each with its number. `None`: either is right.
fn compare(what: &str, found: Vec<(Value, bool, bool)>, expected: Vec<Option<(Value, bool, bool)>>) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let short = |of: &(Value, bool, bool)| {
        let text = of.0.to_string();
        let text: String = text.chars().take(60).collect();
        format!("{text} of {} unreadable {} cut {}", of.0.to_string().len(), of.1, of.2)
    };
    let all = found.iter().zip(&expected).enumerate();
    let wrong: Vec<String> = all
        .filter_map(|(i, (found, expected))| Some((i, found, expected.as_ref()?)))
        .filter(|(_, found, expected)| found != expected)
        .map(|(i, found, expected)| format!("{what} {i}: {}, not {}", short(found), short(expected)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names() {
    each_backend(|recorded| {
        let args = recorded.args("cuModuleGetFunction");
        let numbers: Vec<&str> = args.iter().map(|args| args["hmod"].as_str().unwrap()).collect();
        assert_eq!(numbers, (0..23).map(|i| format!("{i:#x}")).collect::<Vec<_>>());
        let many = |what: &str, count: usize| what.repeat(count);
        let odd = b"line\nline\r\t\x01\"\\ \xff\xfe\x80 \xc3";
        let expected = vec![
            Some(fine("kernel")),
            Some(fine(Value::Null)),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(cut(many("y", 4095) + "…")),
            Some(fine(String::from_utf8_lossy(odd).into_owned())),
            Some(fine("whole")),
            Some(unreadable()),
            Some(fine(many("z", 4095))),
            Some(fine(many("z", 4094))),
            Some(cut(many("ü", 2047) + "…")),
            Some(unreadable()),
            Some(unreadable()),
            Some(fine("")),
            Some(unreadable()),
            Some(unreadable()),
            Some(cut(many("z", 4095) + "…")),
            Some(unreadable()),
            Some(unreadable()),
        ];
        compare("name", args.iter().map(|args| seen(args, "name")).collect(), expected);
        assert!(recorded.out("cuModuleGetFunction").iter().all(|out| out["hfunc"] == "0x1234"));
        let ids = recorded.args("cuDeviceGetByPCIBusId").iter().map(|args| seen(args, "pciBusId")).collect();
        let expected = vec![
            Some(fine(many("b", 255))),
            Some(cut(many("b", 255) + "…")),
            Some(fine(many("b", 254))),
            Some(unreadable()),
            Some(unreadable()),
        ];
        compare("pciBusId", ids, expected);
    });
}

#[test]
fn structures() {
    each_backend(|recorded| {
        let of = |byte: u8| {
            let word = u64::from_ne_bytes([byte; 8]);
            let (hex, half) = (format!("{word:#x}"), word as u32);
            json!({
                "srcXInBytes": word, "srcY": word, "srcMemoryType": half, "srcHost": hex, "srcDevice": hex,
                "srcArray": hex, "srcPitch": word, "dstXInBytes": word, "dstY": word, "dstMemoryType": half,
                "dstHost": hex, "dstDevice": hex, "dstArray": hex, "dstPitch": word, "WidthInBytes": word,
                "Height": word,
            })
        };
        let all = recorded.args("cuMemcpy2D_v2").iter().map(|args| seen(args, "pCopy")).collect();
        let expected = vec![
            Some(fine(of(0x11))),
            Some(fine("0x0")),
            Some(unreadable()),
            Some(fine(of(0x22))),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
        ];
        compare("pCopy", all, expected);
    });
}

#[test]
fn launch_configurations() {
    each_backend(|recorded| {
        let plain = json!({"grid": [1, 2, 3], "block": [4, 5, 6], "shared": 7, "stream": "0x0"});
        let mut with = plain.clone();
        with["cooperative"] = json!(true);
        with["cluster"] = json!([7, 8, 9]);
        let all: Vec<_> =
            recorded.args("cuLaunchKernelEx").iter().map(|args| args["config"].clone()).collect();
        let expected = [&plain, &with, &with, &plain, &plain, &Value::Null, &json!("0x0"), &plain, &plain];
        assert_eq!(all.iter().collect::<Vec<_>>(), expected);
        let unreadable: Vec<bool> =
            recorded.args("cuLaunchKernelEx").iter().map(|args| seen(args, "config").1).collect();
        assert!(unreadable[5] && !unreadable[0] && !unreadable[1] && !unreadable[6], "{unreadable:?}");
    });
}

#[test]
fn lists() {
    each_backend(|recorded| {
        let all = recorded.args("cuMemcpyBatchAsync_v2");
        let hex = |count: u64| json!((1..=count).map(|i| format!("{i:#x}")).collect::<Vec<_>>());
        let sizes = |count: u64| json!((1..=count).collect::<Vec<_>>());
        let expected = [fine(hex(2)), fine(hex(0)), cut(hex(16)), cut(hex(16)), cut(hex(16)), cut(hex(16))];
        let mut expected: Vec<_> = expected.into_iter().map(Some).collect();
        expected.extend([Some(fine(hex(16))), Some(cut(hex(16)))]);
        for name in ["dsts", "srcs"] {
            compare(name, all[..8].iter().map(|args| seen(args, name)).collect(), expected.clone());
        }
        let of_sizes = [sizes(2), sizes(0), sizes(64), sizes(64), sizes(64), sizes(64), sizes(16), sizes(17)];
        let is_cut = [false, false, true, true, true, true, false, false];
        let of_sizes = of_sizes.into_iter().zip(is_cut).map(|(all, cut)| Some((all, false, cut))).collect();
        compare("sizes", all[..8].iter().map(|args| seen(args, "sizes")).collect(), of_sizes);
        let rest = |i: usize| ["dsts", "srcs", "sizes"].map(|name| seen(all[i], name)).to_vec();
        compare("bad lists", rest(8), vec![Some(fine("0x0")), Some(unreadable()), Some(unreadable())]);
        let twos = json!(["0x2222222222222222", "0x2222222222222222"]);
        let last = vec![Some(unreadable()), Some(fine(twos)), Some(unreadable())];
        compare("mixed lists", rest(9), last);
    });
}

#[test]
fn results() {
    each_backend(|recorded| {
        let found = recorded.out("cuMemAlloc_v2").iter().map(|out| seen(out, "dptr")).collect();
        let expected = vec![
            Some(fine("0x1234")),
            Some(fine(Value::Null)),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(unreadable()),
            Some(fine("0x3333333333333333")),
        ];
        compare("dptr", found, expected);
        let text = |most: usize| {
            vec![
                Some(fine("text")),
                Some(fine(Value::Null)),
                Some(unreadable()),
                Some(unreadable()),
                Some(cut("w".repeat(most - 1) + "…")),
                Some(unreadable()),
            ]
        };
        let bad = [Some(fine(Value::Null)), Some(unreadable()), Some(unreadable()), Some(unreadable())];
        let names = recorded.out("cuFuncGetName").iter().map(|out| seen(out, "name")).collect();
        compare("name", names, [text(PAGE), bad.to_vec()].concat());
        let strings = recorded.out("cuGetErrorString").iter().map(|out| seen(out, "pStr")).collect();
        compare("pStr", strings, text(256));
        let names = recorded.out("cuDeviceGetName").iter().map(|out| seen(out, "name")).collect();
        compare("device", names, vec![Some(cut("n".repeat(255) + "…")), Some(unreadable())]);
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_stack_that_ends_early() {
    each_backend(|recorded| {
        let args = recorded.args("cuLaunchKernel")[0];
        assert_eq!((&args["f"], &args["blockDimY"]), (&json!("0x1"), &json!(6)), "{args}");
        for name in ["hStream", "kernelParams", "extra"] {
            assert_eq!(seen(args, name), unreadable(), "{name} of {args}");
        }
        for name in ["blockDimZ", "sharedMemBytes"] {
            let (value, listed, _) = seen(args, name);
            assert_eq!(value.is_null(), listed, "{name} of {args}");
        }
    });
}

/// Other threads change a name, and unmap its second page, while it is read.
#[test]
fn names_that_change_and_vanish() {
    live(|room| {
        for backend in backends() {
            let recorded = recorded(room, backend, &["race", "2000"]);
            let args = recorded.args("cuModuleGetFunction");
            assert!(recorded.trace.lost() > 0 || args.len() == 4000, "{backend}: {} calls", args.len());
            let mut texts = BTreeSet::new();
            for args in args {
                let (value, listed, is_cut) = seen(args, "name");
                assert!(!is_cut && value.is_null() == listed, "{args}");
                let Some(text) = value.as_str() else {
                    assert_eq!(args["hmod"], "0x63", "what is always there is always read: {args}");
                    continue;
                };
                let (letters, most) = if args["hmod"] == "0x62" { ("ab", 2000) } else { ("c", 55) };
                assert!(text.len() <= most && text.chars().all(|c| letters.contains(c)), "{args}");
                texts.insert(text.to_owned());
            }
            assert!(texts.len() > 1, "{backend}: nothing changed");
        }
    });
}
