//! The command line. In: the arguments. Out: plain configuration; no other module of src/ uses clap. `record` defines the
//! options of a recording, `gpurec_analysis::cli` those of the commands that read traces, and `pages` the completions and
//! the manual. Completions, manual and --help all come from this one definition.

mod flight;
mod hint;
mod pages;
mod record;
mod replay;
#[cfg(test)]
mod tests;
mod top;
mod words;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use glob::Pattern;

use crate::files::select::{LibRule, Selection};
use crate::pipeline::replay::Plan as Replay;
use crate::record::{Config, Target};
use crate::ui;
use gpurec_analysis::cli::{self, Printing, id, pattern, span};
use gpurec_analysis::{Usage, paper};

pub use gpurec_analysis::cli::{reader_left, status_of};
pub use pages::{Page, print};

const EXAMPLES: &str = "\
Examples:
  sudo gpurec -- python inference.py           record a program from its start
  sudo gpurec --pid 1234 --duration 10         record a running process for 10 s
  sudo gpurec --kernel -- python inference.py  the ioctls beneath each call too
  sudo gpurec --gpu -- python train.py         what ran on the GPU, and when
  sudo gpurec --only 'cuLaunch*' -- ./train    launches only
  sudo gpurec --live -- ./train                a readable line a call, as it happens
  sudo gpurec --interval 5 --pid 1234          what is held, launched, copied, every 5 s
  sudo gpurec -o run.jsonl.zst -- ./train      a compressed trace
  sudo gpurec --all --last 60s --dump-on exit  the last minute before a crash
  sudo gpurec top                              what every process does, once a second
  sudo gpurec demo                             try it without a GPU
  gpurec summary                               the figures of the newest trace
  gpurec report leaks run.jsonl.zst            one report on a trace
  gpurec help export                           more about a command";

/// Records every CUDA call a program makes, and what it cost: no change to the program, no restart.
#[derive(Parser)]
#[command(
    name = "gpurec",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    override_usage = "gpurec [OPTIONS] -- COMMAND [ARG]...\n       gpurec [OPTIONS] --pid PID[,PID]...\n       gpurec [OPTIONS] --all\n       gpurec top|summary|timeline|report|export|diff|check|ranks|dump|probes|doctor|demo ..."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    target: record::TargetArgs,
    #[command(flatten)]
    options: record::Options,
    #[command(flatten)]
    printing: Printing,
}

/// What clap itself prints comes before it has understood the options: help, and that they are wrong.
fn colour_of_help(words: &[std::ffi::OsString]) -> clap::ColorChoice {
    let words: Vec<_> =
        words.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let value = words.iter().enumerate().find_map(|(at, word)| match word.as_ref() {
        "--color" => words.get(at + 1).map(|word| word.as_ref()),
        word => word.strip_prefix("--color="),
    });
    match value {
        Some("always") => clap::ColorChoice::Always,
        Some("never") => clap::ColorChoice::Never,
        _ => clap::ColorChoice::Auto,
    }
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Read(cli::Command),
    /// Show what each process asks of its GPU, once a second
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// List what can be hooked, where and how
    #[command(after_help = PROBES)]
    Probes(ProbesArgs),
    /// Ask a running flight recorder (--last) to write its trace now, and print the path
    #[command(after_help = DUMP)]
    Dump(DumpArgs),
    /// Say what this machine supports, what is missing and how to get it
    #[command(after_help = "Examples:\n  sudo gpurec doctor")]
    Doctor,
    /// Record a stand-in CUDA program: no GPU needed
    #[command(after_help = record::DEMO)]
    Demo(Box<record::DemoArgs>),
    /// Print a completion script for a shell
    #[command(after_help = pages::COMPLETIONS)]
    Completions(pages::CompletionsArgs),
    /// Print the manual page, for man
    #[command(after_help = pages::MAN)]
    Man,
    /// Measure the pipeline on made rings (scripts/bench)
    #[command(hide = true)]
    Replay(replay::ReplayArgs),
}

const DUMP: &str = "\
Examples:
  sudo gpurec dump        the running recorder: sudo gpurec --all --last 60s
  sudo gpurec dump 1234   one of several, by its PID";

#[derive(Args)]
struct DumpArgs {
    /// The PID of the recorder [default: the only one that runs]
    #[arg(value_parser = id)]
    pid: Option<u32>,
}

const PROBES: &str = "\
Examples:
  gpurec probes                        every CUDA function of the libraries found here
  gpurec probes 'cuMemAlloc*'          some of them
  gpurec probes --pid 1234             of the libraries that a process has mapped
  sudo gpurec probes --kernel 'uvm_*'  functions of the driver";

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

/// What is to be done.
pub enum Task {
    Record(Box<Config>),
    Demo { config: Box<Config>, args: Vec<OsString>, opens: bool },
    Read(cli::Task),
    Probes { glob: Pattern, selection: Selection, pid: Option<u32> },
    KernelProbes { glob: Option<Pattern> },
    Dump { pid: Option<u32> },
    Doctor,
    Print(Page),
    Replay(Replay),
}

impl Task {
    /// Everything but recording, and asking what can be recorded.
    pub fn needs_no_rights(&self) -> bool {
        match self {
            Task::Record(_) | Task::Demo { .. } | Task::KernelProbes { .. } | Task::Doctor => false,
            // This reads another process's libraries.
            Task::Probes { pid, .. } => pid.is_none(),
            // Through sudo, it asks the recorders of the caller. Root may ask every one.
            Task::Read(_) | Task::Print(_) | Task::Replay(_) | Task::Dump { .. } => true,
        }
    }
}

/// Reads our own command line. Does not return on --help, --version and usage errors.
pub fn parse() -> Result<Task> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let words = words::command_first(&given);
    let matches = Cli::command().color(colour_of_help(&given)).try_get_matches_from(words);
    let cli = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let cli = cli.unwrap_or_else(|error| refuse(error, &given));
    paper::choose(cli.printing.chosen());
    task(cli)
}

/// --help and --version come this way too.
fn refuse(mut error: clap::Error, words: &[OsString]) -> ! {
    use clap::error::{ContextKind, ContextValue};
    let root = Cli::command();
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
    let commands: Vec<String> = shown.map(|command| command.get_name().to_owned()).collect();
    if let Some(hint) = hint::hint(words, error.kind(), &commands) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    // The message quotes the unknown word, which may be a file's name.
    let text = error.render().to_string();
    if text.contains(|c| c != '\n' && ui::is_unsafe(c)) {
        ui::text(&text);
        std::process::exit(error.exit_code());
    }
    error.exit()
}

fn task(cli: Cli) -> Result<Task> {
    Ok(match cli.command {
        None => Task::Record(Box::new(record::config(cli.options, record::target(cli.target)?)?)),
        Some(Command::Read(command)) => Task::Read(command.task()?),
        Some(Command::Top(args)) => Task::Record(Box::new(top::config(args)?)),
        Some(Command::Doctor) => Task::Doctor,
        Some(Command::Dump(args)) => Task::Dump { pid: args.pid },
        Some(Command::Probes(args)) => probes(args)?,
        Some(Command::Demo(args)) => {
            let config = Box::new(record::config(args.options, Target::Command(Vec::new()))?);
            if args.open {
                record::opens(&config)?;
            }
            Task::Demo { config, args: args.args, opens: args.open }
        }
        Some(Command::Completions(args)) => Task::Print(Page::Completions(args.shell)),
        Some(Command::Man) => Task::Print(Page::Manual),
        Some(Command::Replay(args)) => Task::Replay(args.plan()),
    })
}

fn probes(args: ProbesArgs) -> Result<Task> {
    if args.kernel {
        let glob = args.glob.as_deref().map(|glob| pattern("GLOB", glob)).transpose()?;
        return Ok(Task::KernelProbes { glob });
    }
    let selection = Selection { libs: libs(&args.libs)?, blocks: true, ..Selection::default() };
    let glob = pattern("GLOB", args.glob.as_deref().unwrap_or("*"))?;
    Ok(Task::Probes { glob, selection, pid: args.pid })
}

fn libs(rules: &[String]) -> Result<Vec<LibRule>> {
    let usage = |error: anyhow::Error| Usage(format!("{error:#}")).into();
    rules.iter().map(|rule| LibRule::parse(rule).map_err(usage)).collect()
}

fn patterns(option: &str, globs: &[String]) -> Result<Vec<Pattern>> {
    globs.iter().map(|glob| pattern(option, glob)).collect()
}

fn positive_span(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        span => Ok(span),
    }
}
