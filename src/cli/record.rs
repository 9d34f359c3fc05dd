//! The options of a recording.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgAction, Args, ValueEnum};
use serde_json::{Value, json};

use super::{flight, id, libs, patterns, positive_span};
use crate::files::select::{ApiChoice, Selection, Stacks, Tap};
use crate::gpu::lane as gpu;
use crate::host::Backend;
use crate::probe::kernel::{self, Choice};
use crate::record::{Config, Target};
use crate::serve::metrics;
use gpurec_analysis::Usage;

pub const DEMO: &str = "\
Examples:
  sudo gpurec demo                             record it as it is
  sudo gpurec demo --live -o demo.jsonl        a line a call
  sudo gpurec demo --gpu                       what ran on the (stand-in) GPU, too
  sudo gpurec demo --gpu --stacks --open       and see it in your browser
  sudo gpurec demo -- --threads 4 --loops 200  with arguments of its own";

#[derive(Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub options: Options,
    /// Write the recording as an HTML page beside the trace, and open it in your browser
    #[arg(long)]
    pub open: bool,
    /// Arguments for the demo program: --loops N, --threads N, --burst N, --sleep MS, --exit N, --fork, --crash,
    /// --needless
    #[arg(last = true)]
    pub args: Vec<OsString>,
}

#[derive(Args)]
pub struct TargetArgs {
    /// Record running processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = id, conflicts_with_all = ["all", "words"])]
    pid: Vec<u32>,
    /// Record every process that uses CUDA
    #[arg(long, conflicts_with = "words")]
    all: bool,
    /// The program to launch and record, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

#[derive(Args)]
pub struct Options {
    /// Trace file; `-` is standard output; `.zst` compresses; %h host, %p PID of gpurec, %t start, %r rank
    /// [default: traces/trace_YYYYMMDD_HHMMSS.jsonl]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// The driver too: ioctls decoded, driver functions, interrupts, scheduling. GROUPS (ioctl, gsp, memory, context,
    /// scheduler, irq, uvm, all): every hook of these, also those of a high rate
    #[arg(short, long, value_name = "GROUPS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    kernel: Option<String>,
    /// Another kernel function or tracepoint (category:event); repeatable, implies --kernel
    #[arg(long, value_name = "NAME|GLOB")]
    hook: Vec<String>,
    /// Which CUDA functions to record; repeatable. A name without its version stands for all versions
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Which CUDA functions to leave out; repeatable
    #[arg(long, value_name = "GLOB")]
    skip: Vec<String>,
    /// Which library to record
    #[arg(long, value_enum, default_value_t = ApiArg::All)]
    api: ApiArg,
    /// Hook this file too, functions matching GLOB; repeatable. A bare name is found as the program finds it
    #[arg(long, value_name = "PATH[:GLOB]")]
    lib: Vec<String>,
    /// Stop recording after that long
    #[arg(long, value_name = "SECS", value_parser = positive_span)]
    duration: Option<Duration>,
    /// Leave children alone
    #[arg(long)]
    no_follow: bool,
    /// Run COMMAND as root: only where root itself calls gpurec, and not through sudo
    #[arg(long)]
    as_root: bool,
    /// Count and sum in memory, write no events
    #[arg(long)]
    summary_only: bool,
    /// Keep gpurec's own cost under PCT percent of each thread's time: functions that tell least are no
    /// longer recorded; the trace and the summary say which
    #[arg(long, value_name = "PCT", value_parser = percent)]
    budget: Option<f64>,
    /// Which line of code made a call: attach the call stack to launches, allocations, frees, copies and waits, or to
    /// the functions that match; `all`: to every call
    #[arg(long, value_name = "GLOB,…", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    stacks: Option<String>,
    /// What ran on the GPU, and when: `nodes` each kernel, also those of graphs; `graphs` one record a graph launch; `tap`
    /// only what another profiler in the process is given. The first two load a library into COMMAND, which uses CUPTI
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "nodes", value_parser = gpu)]
    gpu: Option<gpu::Choice>,
    /// Pause the target rather than lose an event: it stops when a ring buffer fills, and resumes when that is empty
    #[arg(long)]
    lossless: bool,
    /// One readable line a call on standard error
    #[arg(long)]
    live: bool,
    /// Print what is held, launched and copied, and what each process does, every SECS seconds, on standard error
    #[arg(long, value_name = "SECS", value_parser = interval)]
    interval: Option<Duration>,
    /// With --interval: print each report as a JSON document
    #[arg(long, requires = "interval")]
    json: bool,
    #[command(flatten)]
    flight: flight::FlightOptions,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics; a port alone serves only this machine. Writes no trace
    /// unless -o or --last is given
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Also count the launches of the N most launched kernels of each process
    #[arg(long, value_name = "N", value_parser = kernels)]
    metrics_kernels: Option<u16>,
    /// Send the same metrics to an OTLP/HTTP receiver every 10 s and at the end
    #[arg(long, value_name = "URL", value_parser = metrics::Endpoint::parse)]
    otlp: Option<metrics::Endpoint>,
    /// Size of the ring buffers together [default: 16 for each CPU, at least 128, at most 512]
    #[arg(long, value_name = "MIB", value_parser = mebibytes)]
    ring: Option<u32>,
    /// Say less: errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more: what was attached, how and how fast
    #[arg(short, long, action = ArgAction::SetTrue)]
    verbose: bool,
    /// For tests: stacks without native frames beyond the caller
    #[arg(long, hide = true)]
    no_native: bool,
    /// For tests: the number of threads that turn records into lines [default: by the CPUs]
    #[arg(long, hide = true, value_name = "N")]
    threads: Option<usize>,
    /// For tests: use this backend or none
    #[arg(long, hide = true, value_name = "BACKEND", value_parser = backend)]
    backend: Option<Backend>,
    /// For tests: use this backend for --kernel or none
    #[arg(long, hide = true, value_name = "BACKEND", value_parser = kernel_backend)]
    kernel_backend: Option<kernel::Backend>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiArg {
    All,
    Driver,
    Runtime,
}

pub fn target(args: TargetArgs) -> Result<Target> {
    if args.all {
        Ok(Target::All)
    } else if !args.pid.is_empty() {
        Ok(Target::Pids(args.pid))
    } else if args.words.iter().all(|word| word.is_empty()) {
        bail!(Usage(
            "nothing to record: give `-- COMMAND`, `--pid PID` or `--all` (see gpurec --help)".into()
        ))
    } else {
        Ok(Target::Command(args.words))
    }
}

pub fn config(options: Options, target: Target) -> Result<Config> {
    let reported = reported(&options);
    if options.lossless && matches!(target, Target::All) {
        bail!(Usage(
            "--lossless pauses the processes that are recorded, which --all never does: give `-- COMMAND` or `--pid PID`"
                .into()
        ));
    }
    let metrics = metrics::Config {
        address: options.metrics,
        endpoint: options.otlp.clone(),
        kernels: options.metrics_kernels.unwrap_or(0).into(),
    };
    if metrics.kernels > 0 && !metrics.is_on() {
        bail!(Usage("--metrics-kernels is for --metrics or --otlp: give one of them too".into()));
    }
    let flight = options.flight.config(options.summary_only)?;
    let writes_events =
        !options.summary_only && (options.output.is_some() || flight.is_some() || !metrics.is_on());
    let selection = Selection {
        only: patterns("--only", &options.only)?,
        skip: patterns("--skip", &options.skip)?,
        api: match options.api {
            ApiArg::All => ApiChoice::All,
            ApiArg::Driver => ApiChoice::Driver,
            ApiArg::Runtime => ApiChoice::Runtime,
        },
        libs: libs(&options.lib)?,
        stacks: options.stacks.is_some(),
        // Without events there is no line about a block, and no figure counts them.
        blocks: writes_events,
        tap: match (options.gpu, &target) {
            (Some(gpu::Choice::Nodes | gpu::Choice::Graphs), Target::Command(_)) => Tap::Holders,
            _ => Tap::Records,
        },
    };
    let stacks = options.stacks.as_deref().map(stacks).transpose()?;
    let watches_xids = flight.is_some_and(|flight| flight.on.xid) || metrics.is_on();
    let xids = || Choice { xids_only: true, backend: options.kernel_backend, ..Choice::default() };
    let kernel = kernel_choice(&options)?.or_else(|| watches_xids.then(xids));
    Ok(Config {
        target,
        output: options.output,
        selection,
        kernel,
        duration: options.duration,
        follow: !options.no_follow,
        as_root: options.as_root,
        summary_only: options.summary_only,
        lossless: options.lossless,
        stacks,
        gpu: options.gpu,
        nvml: None,
        native_frames: !options.no_native,
        threads: options.threads,
        budget: options.budget,
        live: options.live,
        flight,
        interval: options.interval,
        json: options.json,
        top: None,
        metrics,
        ring: options.ring.map(|mib| (mib as usize) << 20),
        quiet: options.quiet,
        verbose: options.verbose,
        backend: options.backend,
        options: reported,
        keep_fds: Vec::new(),
    })
}

/// Rejects recordings that leave no trace for the page of `demo --open`.
pub fn opens(config: &Config) -> Result<()> {
    let of_template = |path: &PathBuf| path == Path::new("-") || path.to_string_lossy().contains('%');
    let why = if config.summary_only {
        "--summary-only writes no events"
    } else if config.flight.is_some() {
        "--last writes a trace only when something happens"
    } else if config.metrics.is_on() && config.output.is_none() {
        "--metrics and --otlp write none without -o"
    } else if config.output.as_ref().is_some_and(of_template) {
        "-o must be the path of a file, without %"
    } else if config.output.as_deref().and_then(Path::extension).is_some_and(|it| it == "html") {
        "the page would have the name of this -o"
    } else {
        return Ok(());
    };
    bail!(Usage(format!("--open needs a trace to show: {why}")))
}

/// `--stacks`, `--stacks=all`, `--stacks=GLOB,GLOB`.
fn stacks(set: &str) -> Result<Stacks> {
    let globs: Vec<String> = set.split(',').filter(|glob| !glob.is_empty()).map(str::to_owned).collect();
    Ok(match globs.as_slice() {
        [] => Stacks::Work,
        [all] if all == "all" => Stacks::All,
        globs => Stacks::Matching(patterns("--stacks", globs)?),
    })
}

fn kernel_choice(options: &Options) -> Result<Option<Choice>> {
    if options.kernel.is_none() && options.hook.is_empty() {
        return Ok(None);
    }
    let groups = Choice::parse(options.kernel.as_deref().unwrap_or_default())
        .map_err(|error| Usage(format!("--kernel: {error}")))?;
    Ok(Some(Choice {
        groups,
        hooks: options.hook.clone(),
        xids_only: false,
        backend: options.kernel_backend,
    }))
}

/// The options that were given, for the trace's header.
fn reported(options: &Options) -> Value {
    let kernel = |groups: &str| if groups.is_empty() { json!(true) } else { json!(groups) };
    let mut reported = json!({
        "only": options.only,
        "skip": options.skip,
        "lib": options.lib,
        "hook": options.hook,
        "no_follow": options.no_follow,
        "as_root": options.as_root,
        "summary_only": options.summary_only,
        "lossless": options.lossless,
        "live": options.live,
        "kernel": options.kernel.as_deref().map(kernel),
        "kernel_backend": options.kernel_backend.map(kernel::Backend::name),
        "api": match options.api {
            ApiArg::All => None,
            ApiArg::Driver => Some("driver"),
            ApiArg::Runtime => Some("runtime"),
        },
        "duration": options.duration.map(|duration| duration.as_secs_f64()),
        "interval": options.interval.map(|interval| interval.as_secs_f64()),
        "json": options.json,
        "stacks": options.stacks.as_deref().map(|set| if set.is_empty() { json!(true) } else { json!(set) }),
        "gpu": options.gpu.map(gpu::Choice::name),
        "budget": options.budget,
        "metrics": options.metrics.map(|address| address.to_string()),
        "metrics_kernels": options.metrics_kernels,
        "otlp": options.otlp.as_ref().map(|endpoint| &endpoint.url),
        "ring": options.ring,
        "backend": options.backend.map(Backend::name),
    });
    if let (Some(reported), Value::Object(flight)) = (reported.as_object_mut(), options.flight.reported()) {
        reported.extend(flight);
    }
    let is_given = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && *value != json!([]);
    reported.as_object_mut().into_iter().for_each(|reported| reported.retain(|_, value| is_given(value)));
    reported
}

/// Often enough for a person, and seldom enough for the recorder.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = positive_span(text)?;
    if interval < Duration::from_millis(100) {
        return Err("must be 0.1 s or more".to_owned());
    }
    Ok(interval)
}

fn kernels(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "must be a number of kernels, from 1 to 1000".to_owned())
}

fn mebibytes(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size| (1..=65_536).contains(size));
    size.ok_or_else(|| "must be a number of MiB, from 1 to 65536".to_owned())
}

pub fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a number of percent, from 0.1 to 100".to_owned()),
    }
}

fn gpu(text: &str) -> Result<gpu::Choice, String> {
    let names = gpu::Choice::ALL.map(gpu::Choice::name);
    let choice = gpu::Choice::ALL.into_iter().find(|choice| choice.name() == text);
    choice.ok_or_else(|| format!("one of {}", names.join(", ")))
}

pub fn backend(text: &str) -> Result<Backend, String> {
    let names: Vec<&str> = Backend::ALL.into_iter().map(Backend::name).collect();
    Backend::from_name(text).ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn kernel_backend(text: &str) -> Result<kernel::Backend, String> {
    let names: Vec<&str> = kernel::Backend::ALL.into_iter().map(kernel::Backend::name).collect();
    kernel::Backend::from_name(text).ok_or_else(|| format!("one of {}", names.join(", ")))
}
