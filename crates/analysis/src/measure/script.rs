//! Test helper: builds recordings line by line, as files that are deleted on drop.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Script {
    lines: String,
    next: u64,
    ns: u64,
}

pub struct Recorded(PathBuf);

impl Script {
    /// Takes options as in the header, such as `{"skip":["cuMem*"]}`.
    pub fn with(options: &str) -> Script {
        let mut script = Script { lines: String::new(), next: 0, ns: 0 };
        script.line("header", "gpurec", &format!(
            r#""schema":1,"version":"0","start":"2026-01-01T00:00:00Z","host":"h","kernel":"k","user":"u","options":{options},"ns_per_call":1000"#
        ));
        script
    }

    #[allow(clippy::new_without_default)]
    pub fn new() -> Script {
        Script::with("{}")
    }

    pub fn line(&mut self, kind: &str, name: &str, rest: &str) -> u64 {
        let id = self.next;
        let (s, ns) = (self.ns / 1_000_000_000, self.ns % 1_000_000_000);
        let name = serde_json::to_string(name).unwrap();
        writeln!(self.lines, r#"{{"event_id":{id},"ts":{s}.{ns:09},"type":"{kind}","name":{name},{rest}}}"#)
            .unwrap();
        self.next += 1;
        id
    }

    pub fn wait(&mut self, ns: u64) -> &mut Script {
        self.ns += ns;
        self
    }

    pub fn begin(&mut self, name: &str, parent: Option<u64>, more: &str) -> u64 {
        let parent = parent.map(|p| format!(r#","parent":{p}"#)).unwrap_or_default();
        self.line(
            "userspace",
            name,
            &format!(r#""phase":"B","pid":7,"tid":7,"depth":0{parent},"args":{{}}{more}"#),
        )
    }

    pub fn end(&mut self, name: &str, begin: u64, ns: u64, error: Option<&str>) {
        self.ns += ns;
        let (us, rest) = (ns / 1000, ns % 1000);
        let error = error.map(|e| format!(r#","error":"{e}""#)).unwrap_or_default();
        let retval = u8::from(!error.is_empty());
        self.line("userspace", name, &format!(
            r#""phase":"E","pid":7,"tid":7,"begin":{begin},"duration_us":{us}.{rest:03},"retval":{retval}{error}"#
        ));
    }

    pub fn call(&mut self, name: &str, ns: u64) -> &mut Script {
        let begin = self.begin(name, None, "");
        self.end(name, begin, ns, None);
        self
    }

    pub fn calls(&mut self, name: &str, ns: u64, times: u64) -> &mut Script {
        (0..times).for_each(|_| _ = self.call(name, ns));
        self
    }

    pub fn failed(&mut self, name: &str, error: &str) -> &mut Script {
        let begin = self.begin(name, None, "");
        self.end(name, begin, 1000, Some(error));
        self
    }

    /// Adds a runtime call with a driver call inside it that allocates or frees memory.
    pub fn memory(&mut self, op: &str, ptr: u64, size: u64, ns: u64) -> &mut Script {
        let (outer, inner, key) = match op {
            "alloc" => ("cudaMalloc", "cuMemAlloc_v2", "size"),
            _ => ("cudaFree", "cuMemFree_v2", "freed"),
        };
        let outside = self.begin(outer, None, "");
        let inside = self.begin(inner, Some(outside), "");
        self.end(inner, inside, ns, None);
        self.line("memory", inner, &format!(
            r#""pid":7,"tid":7,"begin":{inside},"op":"{op}","space":"device","ptr":"{ptr:#x}","{key}":{size},"total_allocated":{size}"#
        ));
        self.end(outer, outside, 500, None);
        self
    }

    pub fn launch(&mut self, kernel: &str, ns: u64) -> &mut Script {
        let outside = self.begin("cudaLaunchKernel", None, "");
        let kernel = serde_json::to_string(kernel).unwrap();
        let more = format!(r#","kernel":{kernel},"grid":[1,1,1],"block":[1,1,1],"shared":0,"stream":"0x0""#);
        let inside = self.begin("cuLaunchKernel", Some(outside), &more);
        self.end("cuLaunchKernel", inside, ns, None);
        self.end("cudaLaunchKernel", outside, 200, None);
        self
    }

    pub fn copy(&mut self, direction: &str, size: u64, ns: u64) -> &mut Script {
        let begin = self.begin("cuMemcpyHtoD_v2", None, "");
        self.end("cuMemcpyHtoD_v2", begin, ns, None);
        let (us, rest) = (ns / 1000, ns % 1000);
        self.line("transfer", "cuMemcpyHtoD_v2", &format!(
            r#""pid":7,"tid":7,"begin":{begin},"direction":"{direction}","size":{size},"async":false,"duration_us":{us}.{rest:03},"bytes_per_sec":1"#
        ));
        self
    }

    /// Adds an end line; the recording is complete unless events were lost.
    pub fn finish(&mut self, lost: u64) -> Recorded {
        let events = self.next;
        self.line(
            "end",
            "end",
            &format!(
                r#""events":{events},"lost":{lost},"in_flight":[],"complete":{},"summary":{{}}"#,
                lost == 0
            ),
        );
        self.cut()
    }

    pub fn cut(&self) -> Recorded {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("gpurec-gate-{}-{}.jsonl", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &self.lines).unwrap();
        Recorded(path)
    }
}

impl Recorded {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
