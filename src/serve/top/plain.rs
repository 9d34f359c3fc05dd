//! The view without a terminal. In: samples. Out: text or JSON on standard output, for each measured second. This
//! thread may wait for a slow reader; the recording does not.

use std::io::Write;
use std::thread;
use std::time::SystemTime;

use super::{Config, LOOK, Place, Samples};
use crate::ui;
use gpurec_analysis::activity::{Activity, columns};
use gpurec_analysis::width_of_output;
use gpurec_trace::time;

/// Ends with the recording, after one second with `--once`, or when the output is closed.
pub fn run(mut samples: Samples, place: &Place, config: Config) {
    while !samples.is_stopped() {
        let Some(sample) = samples.take(None).filter(|sample| !sample.is_first) else {
            thread::sleep(LOOK);
            continue;
        };
        let (activity, now) = (&sample.activity, sample.state.now);
        let text = match config.json {
            true => ui::json(&activity.json(&place.host, now)).unwrap_or_default() + "\n",
            false => text(activity, place, now, width_of_output()),
        };
        let mut output = std::io::stdout().lock();
        let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        if written.is_err() || config.once {
            break;
        }
    }
}

pub fn text(activity: &Activity, place: &Place, now: SystemTime, width: usize) -> String {
    let seconds = activity.at_ns / 1_000_000_000;
    let mut text = format!(
        "gpurec top: {} at {}, recording for {seconds} s, {}\n{}, {}\n",
        ui::clean(&place.host),
        time::rfc3339(now),
        activity.processes(),
        columns::total(activity),
        columns::lost(activity),
    );
    let mut rows: Vec<_> = activity.rows.iter().collect();
    columns::sort(&mut rows, columns::by_launches(), false);
    if !rows.is_empty() {
        text.extend(columns::processes(&rows).text(width).into_iter().map(|line| line + "\n"));
    }
    for row in rows {
        for call in row.long_calls() {
            text.push_str(&format!("pid {}: {}\n", row.pid, columns::open_call(call)));
        }
    }
    text.push('\n');
    text
}
