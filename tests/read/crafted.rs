//! Every reading command over traces that someone crafted: it stays within its memory, and never panics.
//!
//! In: the kinds of `make-crafted` (crates/analysis/examples/crafted), small ones for each run of the tests, large ones
//! with --full. Out: peaks of resident memory, exit statuses and messages, each under a limit on addresses, so that an
//! allocation that is too large fails at once. Not here: what the answers are.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpurec_analysis::export::ExportFormat;
use gpurec_analysis::views::NAMES as VIEWS;

use super::{Folder, gpurec};

#[path = "../../crates/analysis/examples/crafted/mod.rs"]
#[allow(dead_code)]
mod kinds;

use kinds::Size;

/// In KiB.
const MOST: i64 = 300_000_000 >> 10;
const ADDRESSES: libc::rlim_t = 1 << 30;
/// A reader that takes longer than this of a processor's time is taken for one that never ends.
const SECONDS: libc::rlim_t = 300;

/// Every command over a trace; `OUT` is a place of its own.
fn commands() -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let mut all = vec![
        words("summary TRACE"),
        words("summary --json TRACE"),
        words("summary --pid 1 TRACE"),
        words("summary --from 0.001 TRACE"),
        words("summary --rank 1 TRACE"),
        words("timeline TRACE"),
        words("diff TRACE TRACE"),
        words("diff --json TRACE TRACE"),
        words(
            "check --assert calls<=1 --assert memory.leaked==0 --assert sync.time<1s --assert errors==0 TRACE",
        ),
        words("check --json --assert gpu.queue.p99<1s --assert ranks.missing==0 TRACE"),
        words("ranks TRACE"),
        words("ranks --json TRACE"),
        words("ranks TRACE TRACE"),
        words("export --format html -o OUT TRACE TRACE"),
    ];
    for view in VIEWS {
        all.extend(["", "--json ", "--csv "].map(|how| words(&format!("report {view} {how}TRACE"))));
    }
    for format in ExportFormat::ALL {
        all.push(words(&format!("export --format {} -o OUT TRACE", format.name())));
    }
    all
}

struct Ended {
    status: ExitStatus,
    /// In KiB.
    peak: i64,
    said: String,
}

/// Runs a command to its end, under a limit on its addresses.
fn ended(words: &[String], errors: &str) -> Ended {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = gpurec(&words);
    command.stdout(Stdio::null()).stderr(File::create(errors).unwrap());
    let limit = move |what, most| {
        let most = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: setrlimit only reads the struct, and may be called between fork and exec.
        if unsafe { libc::setrlimit(what, &most) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the closure only makes system calls.
    unsafe {
        command.pre_exec(move || {
            limit(libc::RLIMIT_CPU, SECONDS)?;
            limit(libc::RLIMIT_AS, ADDRESSES)
        });
    }
    // wait4 waits for it, because it has the peak of memory too.
    #[allow(clippy::zombie_processes)]
    let child = command.spawn().unwrap();
    // SAFETY: both structs are plain numbers, which wait4 fills; the child is ours and waited for once.
    let (status, peak) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
        assert_eq!(libc::wait4(child.id() as i32, &mut status, 0, &mut usage), child.id() as i32);
        (ExitStatus::from_raw(status), usage.ru_maxrss)
    };
    Ended { status, peak, said: fs::read_to_string(errors).unwrap_or_default() }
}

/// What a command did that none may.
fn fault(done: &Ended) -> Option<String> {
    let bad =
        ["panicked", "memory allocation of", "stack overflow"].iter().find(|text| done.said.contains(*text));
    match (bad, done.status.code()) {
        (Some(text), _) => {
            let at = done.said.find(text).unwrap_or(0);
            Some(done.said[at..].chars().take(200).collect())
        }
        (None, None | Some(101)) => Some(format!("ended with {}", done.status)),
        _ if done.peak > MOST => Some(format!("took {} MiB", done.peak >> 10)),
        _ => None,
    }
}

/// Runs the commands over the kinds, in as many threads as there are processors, and prints the peak of each command.
fn sweep(size: Size, is_asked: impl Fn(&str, &str) -> bool + Sync) {
    let folder = Folder::new();
    let mut jobs = Vec::new();
    for kind in kinds::all() {
        let all: Vec<_> =
            commands().into_iter().filter(|words| is_asked(kind.name, &words.join(" "))).collect();
        if all.is_empty() {
            continue;
        }
        let trace = folder.file(&format!("{}.jsonl.zst", kind.name));
        let mut out = zstd::stream::write::Encoder::new(File::create(&trace).unwrap(), 1).unwrap();
        kind.write(&mut out, size).unwrap();
        out.finish().unwrap();
        jobs.extend(all.into_iter().map(|words| (kind.name, trace.clone(), words)));
    }
    let (next, faults, peaks) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let work = || {
        while let Some((kind, trace, words)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let own = Folder::new();
            let word = |word: &String| word.replace("TRACE", trace).replace("OUT", &own.file("out"));
            let real: Vec<String> = words.iter().map(word).collect();
            let done = ended(&real, &own.file("errors"));
            if let Some(fault) = fault(&done) {
                faults.lock().unwrap().push(format!("{kind}: {}: {fault}", words.join(" ")));
            }
            peaks.lock().unwrap().push((words.join(" "), done.peak >> 10, *kind));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut peaks = peaks.into_inner().unwrap();
    peaks.sort_by(|a, b| (&a.0, b.1).cmp(&(&b.0, a.1)));
    peaks.dedup_by(|a, b| a.0 == b.0);
    peaks.iter().for_each(|(words, mib, kind)| println!("{mib:5} MiB at most: {words} ({kind})"));
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A number in a trace sizes no memory, however small the trace is.
#[test]
fn numbers_of_ranks_do_not_size_memory() {
    let few = Size { items: 40, long: 200, seed: 1 };
    let is_asked = |kind: &str, words: &str| {
        let of_ranks =
            words.starts_with("ranks") || words.contains("html") || words.contains("ranks.missing");
        kind.starts_with("world-") && of_ranks
    };
    sweep(few, is_asked);
}

/// The commands that took most, over the kinds that they took most for.
#[test]
fn many_processes_ranks_and_curves() {
    let some = Size { items: 12_000, long: 2000, seed: 1 };
    let is_asked = |kind: &str, words: &str| match kind {
        "world-processes" | "processes-found" => words.contains("parquet"),
        "allocs-processes" => words == "report memory --json TRACE" || words.contains("html -o OUT TRACE"),
        "processes-forks" => words == "report threads --json TRACE",
        "world-renamed" | "world-hours" | "world-clocks" => words == "ranks TRACE",
        "numbers-all-odd" | "gpu-account" => words == "summary TRACE" || words == "ranks TRACE",
        _ => false,
    };
    sweep(some, is_asked);
}

/// A page has all reports, whose tables may have a row for each process or function.
#[test]
fn pages_of_very_many_processes_and_functions() {
    let many = Size { items: 80_000, long: 2000, seed: 1 };
    let kinds = ["allocs-processes", "many-processes", "processes-forks", "many-functions"];
    sweep(many, |kind, words| kinds.contains(&kind) && words == "export --format html -o OUT TRACE");
}

/// Every command over every kind.
#[test]
#[ignore = "every command over every crafted trace, for half an hour: scripts/test --full"]
fn every_command_over_every_kind() {
    sweep(Size { items: 20_000, long: 4000, seed: 1 }, |_, _| true);
}
