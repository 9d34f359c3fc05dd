//! --metrics and --otlp: what gpurec serves equals the trace.
//! In: recordings of a shell that starts stand-in programs, with a trace beside the metrics; Debian's Prometheus.
//! Out: the sums over all series equal the figures of the `end` line, the durations those of the trace's own lines.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::needs;
use crate::room::{Room, eventually, live};
use crate::run::Started;
use crate::trace::Trace;
use crate::user::ran;

const PROGRAM: &str = concat!(env!("OUT_DIR"), "/demo/program");
const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");

/// The Accept header of a client that prefers OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

pub struct Answer {
    pub status: u16,
    head: String,
    body: String,
}

/// One exchange with a server on this machine.
pub fn ask(port: u16, request: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

fn get(port: u16, path: &str, accept: &str) -> Answer {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    ask(port, &request).expect("an answer")
}

/// The port that Linux gave to a recording with port 0.
pub fn port_of(recording: &Started) -> u16 {
    let mut port = None;
    eventually("the address of the metrics", || {
        let said = recording.stderr();
        let url = said.lines().find_map(|line| line.strip_prefix("gpurec: metrics at http://127.0.0.1:"));
        port = url.and_then(|rest| rest.strip_suffix("/metrics")).and_then(|port| port.parse().ok());
        port.is_some()
    });
    port.unwrap()
}

/// Values by name and labels.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads the text of a scrape, whose label values here have no escapes but quotes.
fn parse(text: &str) -> Series {
    let mut series = Series::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
        let mut rest = labels.strip_suffix('}').unwrap();
        let mut known = BTreeMap::new();
        while !rest.is_empty() {
            let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            let end =
                (0..after.len()).find(|at| after[*at..].starts_with('"') && !after[..*at].ends_with('\\'));
            let end = end.unwrap_or_else(|| panic!("{line}"));
            known.insert(key.trim_start_matches(',').to_owned(), after[..end].to_owned());
            rest = &after[end + 1..];
        }
        let before = series.insert((name.to_owned(), known), value.parse().unwrap());
        assert!(before.is_none(), "twice: {line}");
    }
    series
}

/// Sums of a metric by the value of one label, as integers: of seconds the nanoseconds.
fn sums(series: &Series, name: &str, label: &str) -> BTreeMap<String, u64> {
    let scale = if name.contains("_seconds") && !name.ends_with("_bucket") && !name.ends_with("_count") {
        1e9
    } else {
        1.0
    };
    let mut sums = BTreeMap::new();
    for ((_, labels), value) in series.iter().filter(|((known, _), _)| known == name) {
        let key = labels.get(label).cloned().unwrap_or_default();
        *sums.entry(key).or_insert(0) += (value * scale).round() as u64;
    }
    sums
}

fn without_zeros(sums: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    sums.into_iter().filter(|(_, sum)| *sum > 0).collect()
}

/// Rows of a summary's table, by one key.
fn table(rows: &Value, key: &str, value: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in rows.as_array().into_iter().flatten() {
        *sums.entry(row[key].as_str().unwrap().to_owned()).or_insert(0) += row[value].as_u64().unwrap();
    }
    without_zeros(sums)
}

/// All counters equal the trace's figures.
fn agrees(series: &Series, trace: &Trace) {
    let stored = &trace.end["summary"];
    let all = |name: &str| sums(series, name, "").values().sum::<u64>();
    let by = |name: &str, label: &str| without_zeros(sums(series, name, label));
    let api = by("gpurec_calls_total", "api");
    let calls = |driver: bool| {
        let is_it = |name: &str| name.starts_with("cu") && !name.starts_with("cuda");
        trace.calls.iter().filter(|call| is_it(&call.name) == driver).count() as u64
    };
    assert_eq!(api.get("driver").copied().unwrap_or(0), calls(true), "{api:?}");
    assert_eq!(api.get("runtime").copied().unwrap_or(0), calls(false), "{api:?}");
    assert_eq!(all("gpurec_launches_total"), stored["kernel_launches"]);
    assert_eq!(all("gpurec_graph_launches_total"), stored["graph_launches"]);
    assert_eq!(all("gpurec_sync_seconds_total"), stored["sync"]["total_ns"]);
    assert_eq!(all("gpurec_overhead_seconds_total"), stored["cost"]["total_ns"]);
    assert_eq!(all("gpurec_events_lost_total"), stored["lost"]);
    assert_eq!(
        by("gpurec_memory_allocated_bytes_total", "space"),
        table(&stored["memory"]["by_space"], "space", "allocated_bytes")
    );
    assert_eq!(
        by("gpurec_copied_bytes_total", "direction"),
        table(&stored["transfers"]["by_direction"], "direction", "bytes")
    );
    assert_eq!(
        by("gpurec_failed_calls_total", "error"),
        table(&stored["failures"]["by_error"], "error", "count")
    );
    let (mut count, mut sum_ns) = (0, 0);
    for call in trace.calls.iter().filter(|call| call.parent.is_none()) {
        let end = call.end.as_ref().filter(|end| !end.unwound && !end.lost);
        count += u64::from(end.is_some());
        sum_ns += end.and_then(|end| end.duration_ns).unwrap_or(0);
    }
    assert_eq!(all("gpurec_call_duration_seconds_count"), count);
    assert_eq!(all("gpurec_call_duration_seconds_sum"), sum_ns);
    let bounds = sums(series, "gpurec_call_duration_seconds_bucket", "le");
    assert_eq!((bounds["+Inf"], bounds.len()), (count, 18));
    let below = |bound: f64| {
        let ends =
            trace.calls.iter().filter(|call| call.parent.is_none()).filter_map(|call| call.end.as_ref());
        let ends = ends.filter(|end| !end.unwound && !end.lost);
        ends.filter(|end| end.duration_ns.is_some_and(|ns| ns as f64 <= bound * 1e9)).count() as u64
    };
    for (bound, calls) in bounds.iter().filter(|(bound, _)| *bound != "+Inf") {
        assert_eq!(*calls, below(bound.parse().unwrap()), "up to {bound} s");
    }
}

/// A shell that starts programs at `go`, and stays until `leave`.
struct Shell<'a> {
    room: &'a Room,
    started: Started<'a>,
}

impl<'a> Shell<'a> {
    fn new(room: &'a Room, script: &str) -> Shell<'a> {
        let wait = |file: &str| format!("while [ ! -e {} ]; do sleep 0.05; done", room.text(file));
        let line = format!("{}; {script}\n: > {}; {}", wait("go"), room.text("made"), wait("leave"));
        Shell { room, started: room.target(&["sh", "-c", &line]) }
    }

    fn pid(&self) -> String {
        self.started.pid().to_string()
    }

    fn go(&self) {
        fs::write(self.room.path("go"), "").unwrap();
    }

    fn has_made(&self) -> bool {
        self.room.path("made").exists()
    }

    fn leave(self) {
        self.go();
        fs::write(self.room.path("leave"), "").unwrap();
        self.started.done().exited(0);
    }
}

/// Programs with pauses between them: some hundred thousand calls a minute.
fn slowly(seconds: u64) -> String {
    format!(
        "end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do {PROGRAM} --loops 30 >&2; \
         {PROGRAM} --threads 3 --fork --loops 20 >&2; sleep 1; done"
    )
}

/// Programs that launch, fork, fail, and end by a signal.
fn programs(times: u32) -> String {
    format!(
        "for i in $(seq {times}); do {PROGRAM} --loops 30 >&2; {PROGRAM} --threads 3 --fork --loops 20 >&2; \
         {PROGRAM} --loops 1000000 >&2 & sleep 0.3; kill -9 $!; wait; done"
    )
}

#[test]
fn a_scrape_has_the_figures_of_the_trace() {
    live(|room| {
        let shell = Shell::new(room, &programs(2));
        let file = room.text("t.jsonl");
        let options =
            ["--pid", &shell.pid(), "-o", &file, "--metrics", "127.0.0.1:0", "--metrics-kernels", "2"];
        let recording = room.start(room.gpurec(&options));
        let port = port_of(&recording);
        shell.go();
        let mut during = 0;
        eventually("the programs end", || {
            during += usize::from(get(port, "/metrics", OPEN_METRICS).body.contains("comm=\"program\""));
            shell.has_made()
        });
        assert!(during > 0, "processes have their series while they run");
        // The records of the last calls are read within milliseconds.
        std::thread::sleep(Duration::from_millis(500));
        let scrape = get(port, "/metrics", OPEN_METRICS);
        assert_eq!(get(port, "/healthz", "*/*").body, "ok\n");
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        shell.leave();
        let trace = Trace::checked(room, &file);
        assert_eq!(scrape.status, 200);
        assert!(
            scrape.head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{}",
            scrape.head
        );
        assert!(scrape.body.ends_with("# EOF\n"));
        let series = parse(&scrape.body);
        agrees(&series, &trace);
        let kernels = sums(&series, "gpurec_kernel_launches_total", "kernel");
        assert!(
            !kernels.is_empty()
                && kernels.values().sum::<u64>() <= trace.end["summary"]["kernel_launches"].as_u64().unwrap()
        );
        // The shell made no calls, and processes that ended hold no memory.
        let pids = sums(&series, "gpurec_calls_total", "pid");
        assert!(
            !pids.contains_key(&trace.header["pids"][0].to_string()) && pids.contains_key("ended"),
            "{pids:?}"
        );
        assert!(sums(&series, "gpurec_memory_held_bytes", "pid").is_empty());
    });
}

/// What a process holds is shown while it runs, if it began with the recording.
#[test]
fn memory_that_is_held() {
    live(|room| {
        let file = room.text("t.jsonl");
        let program = room.compile("long.c", "long", &[]);
        let library = format!("{LIBRARIES}/libcuda.so.1");
        let words = ["--metrics", "0", "-o", &file, "--", &program, "pace", &library, "600", "100"];
        let recording = room.start(room.gpurec(&words));
        let port = port_of(&recording);
        eventually("its memory", || {
            let series = parse(&get(port, "/metrics", "*/*").body);
            sums(&series, "gpurec_memory_held_bytes", "space").contains_key("device")
        });
        recording.done().exited(0);
    });
}

/// What NVML reports of each device, without --gpu.
#[test]
fn the_state_of_devices() {
    live(|room| {
        let (shell, file) = (Shell::new(room, "true"), room.text("t.jsonl"));
        let options = ["--pid", &shell.pid(), "-o", &file, "--metrics", "127.0.0.1:0"];
        let mut command = room.gpurec(&options);
        command.env("LD_LIBRARY_PATH", LIBRARIES);
        let recording = room.start(command);
        let port = port_of(&recording);
        let mut series = Series::new();
        eventually("a sample of NVML", || {
            series = parse(&get(port, "/metrics", "*/*").body);
            series.keys().any(|(name, _)| name == "gpurec_device_used_bytes")
        });
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        shell.leave();
        let trace = Trace::checked(room, &file);
        let lines = trace.others.iter().filter(|line| line["type"] == "device");
        let of_trace: Vec<u64> = lines.clone().filter_map(|line| line["used_bytes"].as_u64()).collect();
        let uuids: Vec<&Value> = lines.map(|line| &line["uuid"]).collect();
        for ((_, labels), value) in series.iter().filter(|((name, _), _)| name == "gpurec_device_used_bytes")
        {
            assert!(of_trace.contains(&(*value as u64)), "{value} of {of_trace:?}");
            assert!(uuids.iter().any(|uuid| **uuid == labels["uuid"].as_str()), "{labels:?}");
        }
    });
}

#[test]
fn without_an_output_there_is_no_trace() {
    live(|room| {
        let recording =
            room.start_unchecked(room.gpurec(&["--metrics", "127.0.0.1:0", "--", PROGRAM, "--loops", "20"]));
        let done = recording.done();
        done.exited(0).said("=== TRACE SUMMARY ===");
        assert!(!room.cwd().join("traces").exists() && !done.stderr.contains("Trace: "), "{}", done.stderr);
    });
}

#[test]
fn a_port_in_use_is_refused_before_anything_starts() {
    live(|room| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let witness = room.text("witness");
        let done = room.run(room.gpurec(&["--metrics", &address, "--", "touch", &witness]));
        done.exited(125).one_sentence().said(&address).said("give another port to --metrics");
        assert!(!room.path("witness").exists());
    });
}

#[test]
fn clients_of_every_kind_get_an_answer_and_do_not_delay_others() {
    live(|room| {
        let shell = Shell::new(room, "true");
        let recording =
            room.start_unchecked(room.gpurec(&["--pid", &shell.pid(), "--metrics", "127.0.0.1:0"]));
        let port = port_of(&recording);
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", 200),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", 200),
            ("GET /healthz HTTP/1.0\n\n", 200),
            ("GET / HTTP/1.1\r\n\r\n", 404),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
            ("nonsense\r\n\r\n", 400),
        ] {
            let answer = ask(port, request).unwrap_or_else(|| panic!("{request:?}"));
            assert_eq!(answer.status, status, "{request:?}");
            assert_eq!(answer.body.is_empty(), request.starts_with("HEAD"), "{request:?}");
        }
        let large = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(9000));
        assert_eq!(ask(port, &large).map(|answer| answer.status), Some(431));
        // Many clients that connect and send only a byte now and then.
        let mut idle: Vec<TcpStream> =
            (0..200).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        for _ in 0..20 {
            idle.iter_mut().for_each(|one| _ = one.write(b"G"));
            let began = Instant::now();
            assert_eq!(get(port, "/metrics", "*/*").status, 200);
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        }
        drop(idle);
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        shell.leave();
    });
}

pub fn has_prometheus() -> bool {
    let is_there = needs::program("prometheus") && needs::program("promtool");
    is_there || needs::skip("it needs Prometheus: apt-get install prometheus")
}

#[test]
fn promtool_accepts_a_scrape() {
    live(|room| {
        if !has_prometheus() {
            return;
        }
        let shell = Shell::new(room, &programs(1));
        let recording =
            room.start_unchecked(room.gpurec(&["--pid", &shell.pid(), "--metrics", "127.0.0.1:0"]));
        let port = port_of(&recording);
        shell.go();
        eventually("the programs end", || shell.has_made());
        fs::write(room.path("scrape"), get(port, "/metrics", "*/*").body).unwrap();
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        shell.leave();
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(fs::File::open(room.path("scrape")).unwrap());
        let checked = promtool.output().unwrap();
        let said =
            String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.trim().is_empty(), "{said}");
    });
}

/// GPUREC_PROMETHEUS: seconds to scrape (scripts/test --full: 300; 12 by itself).
#[test]
fn prometheus_has_the_figures_of_the_trace() {
    live(|room| {
        if !has_prometheus() {
            return;
        }
        let seconds: u64 = std::env::var("GPUREC_PROMETHEUS")
            .map_or(12, |text| text.parse().expect("GPUREC_PROMETHEUS in seconds"));
        let shell = Shell::new(room, &format!("{}; {}", slowly(seconds), programs(1)));
        let file = room.text("t.jsonl");
        let recording =
            room.start(room.gpurec(&["--pid", &shell.pid(), "-o", &file, "--metrics", "127.0.0.1:0"]));
        let port = port_of(&recording);
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: gpurec, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
        );
        fs::write(room.path("prometheus.yml"), config).unwrap();
        let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = room.command("prometheus");
        command.arg(format!("--config.file={}", room.text("prometheus.yml")));
        command.arg(format!("--storage.tsdb.path={}", room.text("tsdb")));
        command.arg(format!("--web.listen-address=127.0.0.1:{own}"));
        let prometheus = room.start_unchecked(command);
        shell.go();
        let started = Instant::now();
        while !shell.has_made() {
            assert!(started.elapsed() < Duration::from_secs(seconds + 120), "the programs do not end");
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(500));
        let ended = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let query = |query: &str| -> Option<Value> {
            let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let answer = ask(own, &format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n"))?;
            serde_json::from_str(&answer.body).ok()
        };
        eventually("one more scrape", || {
            let found = query("timestamp(gpurec_events_lost_total)");
            let at =
                found.and_then(|found| found["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok());
            at.is_some_and(|at| at > ended)
        });
        let found = query("{__name__=~\"gpurec_.+\"}").unwrap();
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        prometheus.signal(Signal::SIGTERM);
        prometheus.done();
        shell.leave();
        let trace = Trace::checked(room, &file);
        let mut series = Series::new();
        for one in found["data"]["result"].as_array().unwrap() {
            let mut labels: BTreeMap<String, String> = serde_json::from_value(one["metric"].clone()).unwrap();
            let name = labels.remove("__name__").unwrap();
            series.insert((name, labels), one["value"][1].as_str().unwrap().parse().unwrap());
        }
        println!("{} series, {} calls", series.len(), trace.calls.len());
        agrees(&series, &trace);
    });
}

/// A receiver of OTLP/HTTP: refuses the first exports because it is busy, and keeps the body of the last.
struct Receiver {
    port: u16,
    last: Arc<Mutex<(u32, String)>>,
}

impl Receiver {
    fn start(refused: u32) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let last = Arc::new(Mutex::new((0, String::new())));
        let kept = last.clone();
        std::thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                let (head, body) = Receiver::read(&stream.unwrap(), number < refused);
                assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
                assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
                *kept.lock().unwrap() = (number + 1, body);
            }
        });
        Receiver { port, last }
    }

    fn read(mut stream: &TcpStream, is_busy: bool) -> (String, String) {
        let mut bytes = Vec::new();
        let end = loop {
            let mut more = [0; 4096];
            let read = stream.read(&mut more).unwrap();
            assert!(read > 0, "a whole request");
            bytes.extend_from_slice(&more[..read]);
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end + 2]).into_owned();
                let length = head.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap();
                if bytes.len() == end + 4 + length.parse::<usize>().unwrap() {
                    break end;
                }
            }
        };
        let status = if is_busy { "503 Service Unavailable" } else { "200 OK" };
        let answer =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&bytes[..end + 2]), text(&bytes[end + 4..]))
    }
}

/// The folder for the official protobufs, which are fetched into it unless this machine's Python has them.
fn protobufs(room: &Room) -> Option<String> {
    let folder = room.text("protobufs");
    if !ran("python3", &["-c", "import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"]) {
        let pip = ["-m", "pip", "install", "-q", "--no-input", "--target", &folder, "opentelemetry-proto"];
        if !ran("python3", &pip) {
            needs::skip("it needs the protobufs of OTLP: pip install opentelemetry-proto");
            return None;
        }
    }
    Some(folder)
}

#[test]
fn a_receiver_of_otlp_has_the_figures_of_the_trace() {
    live(|room| {
        let Some(protobufs) = protobufs(room) else { return };
        let receiver = Receiver::start(2);
        let file = room.text("t.jsonl");
        let url = format!("http://127.0.0.1:{}", receiver.port);
        let script = programs(1);
        let recording = room.start(room.gpurec(&["-o", &file, "--otlp", &url, "--", "sh", "-c", &script]));
        let done = recording.done();
        done.exited(0).said("503 Service Unavailable; gpurec tries again");
        let (exports, body) = receiver.last.lock().unwrap().clone();
        assert!(exports >= 3, "{exports}");
        fs::write(room.path("body.json"), body).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/otlp.py");
        let mut python = Command::new("python3");
        python.args([script, &room.text("body.json")]).env("PYTHONPATH", protobufs);
        let read = python.output().unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        let series = parse(&String::from_utf8(read.stdout).unwrap());
        agrees(&series, &Trace::checked(room, &file));
    });
}

#[test]
fn an_absent_receiver_costs_a_message() {
    live(|room| {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let url = format!("http://{unused}");
        let done = room.run(room.gpurec(&["--otlp", &url, "--", PROGRAM, "--loops", "20"]));
        done.exited(0).said(&format!("{url} did not take the last metrics"));
        let done = room.run(room.gpurec(&["--otlp", "https://a:4318", "--", "true"]));
        done.exited(2).said("run a collector");
    });
}
