//! The threads that turn rings into a trace. In: rings, messages, what the lines need. Out: the worker and the writer,
//! which run until the recording ends.

use super::super::watch::{Form, Watch};
use super::*;
use crate::pipeline::{helpers, worker};
use crate::serve::state::Teller;

/// The threads that turn rings into a file.
pub(super) struct Recorder {
    pub worker: JoinHandle<Outcome>,
    pub writer: Option<Writer>,
    pub state: Arc<State>,
    pub sampling: Option<Sampling>,
    pub pusher: Option<metrics::Pusher>,
}

/// What the worker reads.
pub(super) struct Sources {
    pub rings: Vec<Ring>,
    pub receiver: Receiver<Message>,
    pub loss: LossCounters,
    pub pauses: Option<Arc<Pauses>>,
    pub files: Files,
    pub stacks_side: Option<Side>,
    pub gpu: Option<Gpu>,
    /// The caller is a process of a distributed job.
    pub has_rank: bool,
    pub nvml: Option<Nvml>,
    pub serving: Option<metrics::Serving>,
    /// Answers the requests of `gpurec top`.
    pub view: Option<Teller>,
}

/// A helper process for native frames, which has read the symbols of the processes that run already. PyTorch's libraries
/// have a million, and the rings could not hold what is called meanwhile.
pub(super) fn prepared(files: &Files, attached: &[AttachedProcess]) -> Side {
    let mut side = Side::new(Some(files.clone()));
    for process in attached {
        side.ask(&Ask::Prepare { pid: process.pid }, PREPARATION);
    }
    side
}

/// The status line, if there is a terminal for it.
pub(super) fn status(config: &Config, output: Option<&Output>) -> Option<Status> {
    if config.quiet {
        return None;
    }
    let on_stdout = output.is_some_and(|output| output.descriptor == Some(libc::STDOUT_FILENO));
    Status::new(&config.target, output.and_then(Output::regular), on_stdout)
}

pub(super) fn start_recorder(
    (output, series): (Option<Output>, Option<Series>),
    from: Sources,
    start: u64,
    session: &Session,
    has_status: bool,
    header: gpurec_trace::Header,
) -> Result<Recorder> {
    let (config, voice) = (session.config, session.screen.voice());
    let flight = session.dumps.as_ref().zip(series);
    let flight =
        flight.map(|(dumps, series)| dumps.start(series, voice.clone(), config.quiet)).transpose()?;
    let (flight, alarms) = flight.unzip();
    let output = output.map(|output| Box::new(output) as Box<dyn Destination>);
    let destination = flight.map(|flight| Box::new(flight) as Box<dyn Destination>).or(output);
    let (handoff, writer) = destination.map(handoff::start).transpose().context(THREAD)?.unzip();
    let live = config.live.then(|| Box::new(Live::new(voice.clone())) as Box<dyn Rows>);
    let threads = config.threads.unwrap_or_else(helpers::fitting);
    let mut lines =
        Lines::new(handoff.map(Handoff::lines), live, start).asking(&from.files).with_threads(threads);
    if let Some(side) = from.stacks_side {
        let rules = RuleTable::new(&session.probes.base).context(MAPS)?;
        let has_reports = !session.probes.base.is_for_everyone();
        lines = lines.with_stacks(side, rules, has_reports);
    }
    if matches!(config.target, Target::All) {
        lines = lines.leaving_out(proc::process_tree(std::process::id()));
    }
    lines.write_calls = !config.summary_only;
    if alarms.is_some() {
        lines.summary().settles_dead_calls();
    }
    lines.alarms = alarms;
    if from.serving.is_some() {
        let sees_xids = session.probes.driver().is_some_and(|driver| driver.sees_no_xids().is_none());
        lines.summary().measure(config.metrics.kernels, sees_xids);
    }
    if config.interval.is_some() || from.view.is_some() {
        lines.summary().follow_processes();
    }
    if config.selection.leaves_out() {
        lines.meaning.calls_missing();
    }
    if analysis::leaves_out_memory(&header) {
        lines.meaning.memory_missing();
    }
    let left_out = analysis::leaves_out(&header);
    cuda::function_names().filter(|name| left_out(name)).for_each(|name| lines.meaning.not_seen(name));
    lines.gpu.everyone = from.gpu.is_some();
    let state = Arc::new(State::default());
    let mut worker = Worker::new(from.rings, lines, from.receiver, from.loss, state.clone());
    worker.pauses = from.pauses;
    worker.gpu = from.gpu;
    worker.writes_clocks = config.gpu.is_some() || from.has_rank;
    let (sampling, samples) = from.nvml.and_then(devices::serve).unzip();
    worker.devices = samples;
    if has_status || config.interval.is_some() {
        let form = match config.json {
            true => Form::Json(header::host_name()),
            false => Form::Text(analysis::width_of_errors()),
        };
        worker.watches.push(Box::new(Watch::new(voice, config.interval, has_status, form)));
    }
    let pusher = from.serving.and_then(|serving| {
        worker.watches.push(Box::new(serving.teller));
        serving.pusher
    });
    worker.watches.extend(from.view.map(|teller| Box::new(teller) as Box<dyn worker::Watch>));
    let thread = std::thread::Builder::new().name("gpurec-work".into());
    let worker = thread.spawn(move || worker.run(header)).context(THREAD)?;
    Ok(Recorder { worker, writer, state, sampling, pusher })
}
