//! NCCL: each rank's operations are `collective` lines, with the same communicator and the same numbers on all ranks.
//! In: fixtures/nccl, a stand-in libnccl and a program that is a rank of a job and logs what it does.
//! Out: the lines of traces, of a job and of its ranks, compared with those logs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use serde_json::Value;

use crate::needs::backends_for_many;
use crate::room::{Room, live};
use crate::trace::{Trace, text_of};

const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");
const RANKS: usize = 4;
const STEPS: usize = 5;
/// What each rank does in a step.
const OPERATIONS: usize = 8;

struct Job {
    program: String,
    /// Where the ranks meet and write their logs.
    folder: String,
}

impl Job {
    fn new(room: &Room) -> Job {
        let runtime = format!("{LIBRARIES}/libcudart.so.13");
        let paths = format!("-Wl,-rpath,{LIBRARIES}:{}", room.dir.display());
        let shared = ["-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2"];
        let flags = [&shared[..], &[&runtime, &paths]].concat();
        let library = room.compile("../nccl/nccl.c", "libnccl.so.2", &flags);
        let program = room.compile("../nccl/rank.c", "rank", &["-std=gnu11", &library, &runtime, &paths]);
        let folder = room.text(&format!("job-{}", room.number()));
        fs::create_dir(&folder).unwrap();
        Job { program, folder }
    }

    /// A launcher of all ranks. Words before the program, as `gpurec …`, start each.
    fn launcher(&self, before: &str) -> Vec<String> {
        let ranks: String = (0..RANKS).map(|rank| format!("{rank} ")).collect();
        let start = format!(
            "for r in {ranks}; do RANK=$r LOCAL_RANK=$r WORLD_SIZE={RANKS} TORCHELASTIC_RUN_ID=nightly {before} \"$0\" \"$1\" {STEPS} & done; wait"
        );
        ["sh", "-c", &start, &self.program, &self.folder].map(str::to_owned).to_vec()
    }

    /// The operations of a rank, as it logged them.
    fn truth(&self, rank: usize) -> Vec<Vec<String>> {
        let text = fs::read_to_string(format!("{}/truth-{rank}", self.folder)).unwrap();
        let lines = text.lines().map(|line| line.split(' ').map(str::to_owned).collect());
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), STEPS * OPERATIONS, "rank {rank}: {text}");
        lines
    }
}

/// A `collective` line in the form of the log.
fn shown(line: &Value) -> Vec<String> {
    let keys = [
        "comm", "rank", "nranks", "seq", "op", "count", "dtype", "bytes", "peer", "pseq", "root", "redop",
        "group",
    ];
    let show = |key: &str| match &line[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    keys.map(show).to_vec()
}

/// The rank of each process of a trace.
fn ranks_of(trace: &Trace) -> HashMap<u64, usize> {
    let programs = trace.process_events("exec");
    let is_rank =
        |exec: &&&Value| exec["command"][0].as_str().is_some_and(|program| program.ends_with("/rank"));
    let mut ranks = HashMap::new();
    for exec in programs.iter().filter(is_rank) {
        let rank = exec["rank"].as_u64().unwrap();
        assert_eq!(exec["local_rank"].as_u64(), Some(rank), "{exec}");
        assert_eq!(
            (exec["world_size"].as_u64(), exec["job"].as_str()),
            (Some(RANKS as u64), Some("nightly"))
        );
        ranks.insert(exec["pid"].as_u64().unwrap(), rank as usize);
    }
    ranks
}

/// The communicators of all ranks, by the names of the log.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    /// Compares the lines of one rank with its log.
    fn check(&mut self, job: &Job, rank: usize, lines: &[&Value]) {
        let truth = job.truth(rank);
        assert_eq!(lines.len(), truth.len(), "rank {rank}");
        for (line, truth) in lines.iter().zip(&truth) {
            let mut shown = shown(line);
            let comm = std::mem::replace(&mut shown[0], truth[0].clone());
            // The split is that of the even and the odd ranks: the log calls them so.
            let known = self.0.entry(truth[0].clone()).or_insert_with(|| comm.clone());
            assert_eq!(*known, comm, "rank {rank}: {line}");
            assert_eq!(&shown, truth, "rank {rank}: {line}");
        }
    }

    fn are_distinct(&self) {
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        assert_eq!(names, ["all", "even", "odd"]);
        assert_eq!(self.0.values().collect::<BTreeSet<_>>().len(), 3, "{:?}", self.0);
        assert!(self.0.values().all(|comm| comm.len() == 16), "{:?}", self.0);
    }
}

/// Each line belongs to a call of NCCL that succeeded, and each call that enqueues has a line unless it failed.
fn calls_have_lines(trace: &Trace) {
    let by_id: HashMap<u64, _> = trace.calls.iter().map(|call| (call.id, call)).collect();
    let lines: HashMap<u64, &Value> =
        trace.of_type("collective").map(|line| (line["begin"].as_u64().unwrap(), line)).collect();
    for (id, line) in &lines {
        let call = by_id[id];
        assert_eq!(line["name"], call.name.as_str());
        assert_eq!(call.end.as_ref().unwrap().retval, 0, "{line}");
    }
    let failed: Vec<_> =
        trace.named("ncclAllReduce").into_iter().filter(|call| !lines.contains_key(&call.id)).collect();
    assert!(!failed.is_empty());
    for call in failed {
        assert_eq!(call.end.as_ref().unwrap().error.as_deref(), Some("ncclInvalidArgument"));
    }
    // The outer call has no line, the inner has it.
    for outer in trace.named("ncclBcast") {
        assert!(!lines.contains_key(&outer.id));
        let inner =
            trace.named("ncclBroadcast").into_iter().find(|call| call.parent == Some(outer.id)).unwrap();
        assert!(lines.contains_key(&inner.id));
    }
    for split in trace.named("ncclCommSplit") {
        let end = split.end.as_ref().unwrap();
        assert!(end.retval == 7 && end.error.is_none(), "ncclInProgress is no failure");
    }
    // The kernel of an operation is launched inside the call.
    let mut launched = 0;
    for launch in trace.named("cuLaunchKernel") {
        let outer =
            std::iter::successors(Some(launch), |call| by_id.get(&call.parent?).copied()).last().unwrap();
        launched += u64::from(outer.name.starts_with("nccl"));
    }
    assert_eq!(launched, lines.len() as u64);
}

#[test]
fn one_trace_of_all_ranks() {
    live(|room| {
        for (backend, plant) in
            backends_for_many().into_iter().zip(["", "count:2:1,op:1:2,delay:3:3,"].iter().cycle())
        {
            let job = Job::new(room);
            let file = room.text(&format!("job-{}.jsonl", room.number()));
            let launcher = job.launcher("");
            let words: Vec<&str> = ["--backend", backend, "-o", &file, "--"]
                .into_iter()
                .chain(launcher.iter().map(String::as_str))
                .collect();
            let mut command = room.gpurec(&words);
            command.env("STANDIN_NCCL", &job.folder).env("PLANT", plant);
            room.run(command).exited(0);
            let trace = Trace::checked(room, &file);
            trace.is_whole();
            let ranks = ranks_of(&trace);
            assert_eq!(ranks.values().collect::<BTreeSet<_>>().len(), RANKS);
            let mut names = Names::default();
            for (pid, rank) in ranks {
                let lines: Vec<&Value> =
                    trace.of_type("collective").filter(|line| line["pid"] == pid).collect();
                names.check(&job, rank, &lines);
            }
            names.are_distinct();
            calls_have_lines(&trace);
            // A number of the summary that says CUDA has no calls of NCCL.
            let nccl = trace.calls.iter().filter(|call| call.name.starts_with("nccl")).count();
            let cuda = trace.end["summary"]["cuda_calls"].as_u64().unwrap();
            assert_eq!(cuda, (trace.calls.len() - nccl) as u64);
            assert!(nccl > RANKS * STEPS * OPERATIONS, "{nccl}");
        }
    });
}

#[test]
fn a_trace_of_each_rank() {
    live(|room| {
        let job = Job::new(room);
        let gpurec = format!("{} -q -o '{}/%h-%r.jsonl' --", env!("CARGO_BIN_EXE_gpurec"), job.folder);
        let launcher = job.launcher(&gpurec);
        let mut command = room.command(&launcher[0]);
        command.args(&launcher[1..]).env("STANDIN_NCCL", &job.folder);
        room.run(command).exited(0);
        let mut names = Names::default();
        let traces = fs::read_dir(&job.folder).unwrap().flatten();
        let traces: Vec<_> =
            traces.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect();
        assert_eq!(traces.len(), RANKS, "{traces:?}");
        for path in traces {
            let trace = Trace::parsed(&text_of(&path));
            trace.is_whole();
            let ranks = ranks_of(&trace);
            let [rank] = ranks.into_values().collect::<Vec<_>>()[..] else { panic!("one rank in each") };
            assert!(path.to_str().unwrap().ends_with(&format!("-{rank}.jsonl")), "{path:?}");
            names.check(&job, rank, &trace.of_type("collective").collect::<Vec<_>>());
            assert!(trace.of_type("clock").count() >= 2, "a rank is known");
        }
        names.are_distinct();
    });
}

/// The kernels of an operation are joined to a call inside that of NCCL.
#[test]
fn with_times_of_the_gpu() {
    live(|room| {
        let job = Job::new(room);
        let file = room.text("gpu.jsonl");
        let launcher = job.launcher("");
        let words: Vec<&str> =
            ["--gpu", "-o", &file, "--"].into_iter().chain(launcher.iter().map(String::as_str)).collect();
        let mut command = room.gpurec(&words);
        command.env("STANDIN_NCCL", &job.folder);
        room.run(command).exited(0);
        let trace = Trace::checked(room, &file);
        let by_id: HashMap<u64, _> = trace.calls.iter().map(|call| (call.id, call)).collect();
        let kernels =
            trace.of_type("gpu").filter(|line| line["name"].as_str().unwrap().contains("ncclDevKernel"));
        let mut joined = BTreeMap::new();
        for kernel in kernels {
            let call = by_id[&kernel["begin"].as_u64().unwrap()];
            let outer =
                std::iter::successors(Some(call), |call| by_id.get(&call.parent?).copied()).last().unwrap();
            assert!(call.name.ends_with("LaunchKernel") && outer.name.starts_with("nccl"), "{kernel}");
            *joined.entry(outer.name.clone()).or_insert(0) += 1;
        }
        let of_group = joined.get("ncclGroupEnd").copied();
        assert_eq!(of_group, Some(2 * RANKS * STEPS), "{joined:?}");
        assert_eq!(joined.values().sum::<usize>(), RANKS * STEPS * OPERATIONS, "{joined:?}");
    });
}
