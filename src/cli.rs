//! The command line. In: words. Out: plain configuration; no other room sees clap.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use glob::Pattern;

use crate::probe::kernel::{self, Choice};
use crate::probe::{ApiChoice, LibRule, Rung, Selection};
use crate::record::{Config, Target};

const EXAMPLES: &str = "\
Examples:
  sudo gpurec -- python inference.py          record a program from its start
  sudo gpurec --pid 1234 --duration 10        record a running process for 10 s
  sudo gpurec --kernel -- python inference.py the ioctls beneath each call too
  sudo gpurec --only 'cuLaunch*' -- ./train   launches only
  sudo gpurec -o run.jsonl.zst -- ./train     a compressed trace
  gpurec summary traces/latest                the figures of a trace
  sudo gpurec demo                            try it without a GPU";

/// Records every CUDA call a program makes, and what it cost: no change to the program, no CUPTI, no restart.
#[derive(Parser)]
#[command(
    name = "gpurec",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    override_usage = "gpurec [OPTIONS] -- COMMAND [ARG]...\n       gpurec [OPTIONS] --pid PID[,PID]...\n       gpurec [OPTIONS] --all\n       gpurec summary|probes|doctor|demo ..."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Print the figures of a trace: no root, no GPU
    Summary(SummaryArgs),
    /// List what can be hooked, where and how
    Probes(ProbesArgs),
    /// Say what this machine supports, what is missing and how to get it
    Doctor,
    /// Record a stand-in CUDA program: no GPU needed
    Demo(DemoArgs),
}

#[derive(Args)]
struct SummaryArgs {
    /// Traces, plain or .zst; the newest one (traces/latest) if none is given
    files: Vec<PathBuf>,
    /// The figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ProbesArgs {
    /// What can be hooked in the kernel instead: functions, and tracepoints as category:event
    #[arg(short, long, conflicts_with_all = ["libs", "pid"])]
    kernel: bool,
    /// Functions to list [default: all; of the kernel, those that gpurec knows]
    glob: Option<String>,
    /// A library to look into, instead of those found on this machine; repeatable
    #[arg(long = "lib", value_name = "PATH[:GLOB]")]
    libs: Vec<String>,
    /// The libraries that this process has mapped
    #[arg(long)]
    pid: Option<u32>,
}

#[derive(Args)]
struct DemoArgs {
    #[command(flatten)]
    options: Options,
    /// Arguments for the demo program
    #[arg(last = true)]
    args: Vec<OsString>,
}

#[derive(Args)]
struct TargetArgs {
    /// Record running processes, and what they start
    #[arg(long, value_name = "PID", value_delimiter = ',', conflicts_with_all = ["all", "words"])]
    pid: Vec<u32>,
    /// Record every process that uses CUDA
    #[arg(long, conflicts_with = "words")]
    all: bool,
    /// The program to launch and record, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

#[derive(Args)]
struct Options {
    /// Trace file; `-` is standard output; `.zst` compresses [default: traces/trace_YYYYMMDD_HHMMSS.jsonl]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// The driver too: ioctls decoded, driver functions, interrupts, scheduling. GROUPS (ioctl, gsp, memory, context,
    /// scheduler, irq, uvm, all): every hook of these, also those of a high rate
    #[arg(short, long, value_name = "GROUPS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    kernel: Option<String>,
    /// Another kernel function or tracepoint (category:event); repeatable, implies --kernel
    #[arg(long, value_name = "NAME|GLOB")]
    hook: Vec<String>,
    /// Which CUDA functions to record; repeatable
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
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Leave children alone
    #[arg(long)]
    no_follow: bool,
    /// Run COMMAND as root, not as the user who called sudo
    #[arg(long)]
    as_root: bool,
    /// Count and sum in memory, write no events
    #[arg(long)]
    summary_only: bool,
    /// One readable line a call on standard error
    #[arg(long)]
    live: bool,
    /// Size of the ring buffers together [default: 16 for each CPU, at least 128, at most 512]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ring: Option<u32>,
    /// Say less: errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more: what was attached, how and how fast
    #[arg(short, long, action = ArgAction::SetTrue)]
    verbose: bool,
    /// For tests: hook in this way or not at all
    #[arg(long, hide = true, value_name = "BACKEND", value_parser = rung)]
    backend: Option<Rung>,
    /// For tests: hook in the kernel in this way or not at all
    #[arg(long, hide = true, value_name = "BACKEND", value_parser = kernel_rung)]
    kernel_backend: Option<kernel::Rung>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiArg {
    All,
    Driver,
    Runtime,
}

/// What is to be done.
pub enum Task {
    Record(Box<Config>),
    Demo { config: Box<Config>, args: Vec<OsString> },
    Summary { files: Vec<PathBuf>, json: bool },
    Probes { glob: Pattern, selection: Selection, pid: Option<u32> },
    KernelProbes { glob: Option<Pattern> },
    Doctor,
}

/// Reads our own command line. Does not return on --help, --version and usage errors.
pub fn parse() -> Result<Task> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Summary(args)) => Ok(Task::Summary { files: args.files, json: args.json }),
        Some(Command::Doctor) => Ok(Task::Doctor),
        Some(Command::Probes(args)) if args.kernel => {
            let glob = args.glob.as_deref().map(|glob| pattern("GLOB", glob)).transpose()?;
            Ok(Task::KernelProbes { glob })
        }
        Some(Command::Probes(args)) => {
            let selection = Selection { libs: libs(&args.libs)?, ..Selection::default() };
            Ok(Task::Probes {
                glob: pattern("GLOB", args.glob.as_deref().unwrap_or("*"))?,
                selection,
                pid: args.pid,
            })
        }
        Some(Command::Demo(args)) => {
            let config = Box::new(config(args.options, Target::Command(Vec::new()))?);
            Ok(Task::Demo { config, args: args.args })
        }
        None => Ok(Task::Record(Box::new(config(cli.options, target(cli.target)?)?))),
    }
}

fn target(args: TargetArgs) -> Result<Target> {
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

/// An error of the caller's: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

fn config(options: Options, target: Target) -> Result<Config> {
    let told = told(&options);
    let selection = Selection {
        only: patterns("--only", &options.only)?,
        skip: patterns("--skip", &options.skip)?,
        api: match options.api {
            ApiArg::All => ApiChoice::All,
            ApiArg::Driver => ApiChoice::Driver,
            ApiArg::Runtime => ApiChoice::Runtime,
        },
        libs: libs(&options.lib)?,
    };
    let kernel = kernel_choice(&options)?;
    Ok(Config {
        target,
        output: options.output,
        selection,
        kernel,
        duration: options.duration,
        follow: !options.no_follow,
        as_root: options.as_root,
        summary_only: options.summary_only,
        live: options.live,
        ring: options.ring.map(|mib| (mib as usize) << 20),
        quiet: options.quiet,
        verbose: options.verbose,
        rung: options.backend,
        environment: Vec::new(),
        options: told,
        keep_fds: Vec::new(),
    })
}

fn kernel_choice(options: &Options) -> Result<Option<Choice>> {
    if options.kernel.is_none() && options.hook.is_empty() {
        return Ok(None);
    }
    let groups = Choice::parse(options.kernel.as_deref().unwrap_or_default())
        .map_err(|error| Usage(format!("--kernel: {error}")))?;
    Ok(Some(Choice { groups, hooks: options.hook.clone(), rung: options.kernel_backend }))
}

/// The options that were given, for the trace's header.
fn told(options: &Options) -> serde_json::Value {
    let mut told = serde_json::Map::new();
    let mut tell = |name: &str, value: serde_json::Value| told.insert(name.to_owned(), value);
    for (name, list) in
        [("only", &options.only), ("skip", &options.skip), ("lib", &options.lib), ("hook", &options.hook)]
    {
        if !list.is_empty() {
            tell(name, list.clone().into());
        }
    }
    for (name, set) in [
        ("no_follow", options.no_follow),
        ("as_root", options.as_root),
        ("summary_only", options.summary_only),
        ("live", options.live),
    ] {
        if set {
            tell(name, true.into());
        }
    }
    match options.kernel.as_deref() {
        None => {}
        Some("") => _ = tell("kernel", true.into()),
        Some(groups) => _ = tell("kernel", groups.into()),
    }
    if let Some(rung) = options.kernel_backend {
        tell("kernel_backend", rung.name().into());
    }
    match options.api {
        ApiArg::All => {}
        ApiArg::Driver => _ = tell("api", "driver".into()),
        ApiArg::Runtime => _ = tell("api", "runtime".into()),
    }
    if let Some(duration) = options.duration {
        tell("duration", duration.as_secs_f64().into());
    }
    if let Some(ring) = options.ring {
        tell("ring", ring.into());
    }
    if let Some(rung) = options.backend {
        tell("backend", rung.name().into());
    }
    told.into()
}

fn libs(rules: &[String]) -> Result<Vec<LibRule>> {
    let usage = |error: anyhow::Error| Usage(format!("{error:#}")).into();
    rules.iter().map(|rule| LibRule::parse(rule).map_err(usage)).collect()
}

fn patterns(option: &str, globs: &[String]) -> Result<Vec<Pattern>> {
    globs.iter().map(|glob| pattern(option, glob)).collect()
}

fn pattern(option: &str, glob: &str) -> Result<Pattern> {
    Ok(Pattern::new(glob)
        .map_err(|error| Usage(format!("{option} {glob}: not a pattern: {error}; use *, ? and [a-z]")))?)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(seconds > 0.0 && seconds < 1e9) {
        return Err("must be more than 0".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn rung(text: &str) -> Result<Rung, String> {
    let names: Vec<&str> = Rung::ALL.into_iter().map(Rung::name).collect();
    Rung::from_name(text).ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn kernel_rung(text: &str) -> Result<kernel::Rung, String> {
    let names: Vec<&str> = kernel::Rung::ALL.into_iter().map(kernel::Rung::name).collect();
    kernel::Rung::from_name(text).ok_or_else(|| format!("one of {}", names.join(", ")))
}
