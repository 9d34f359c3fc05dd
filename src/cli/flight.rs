//! The options of the flight recorder. In: the words of the command line. Out: its configuration.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::span;
use crate::serve::flight::{Config, Events, KEEP, Last};
use gpurec_analysis::Usage;

#[derive(Args)]
pub struct FlightOptions {
    /// Flight recorder: keep only the most recent part, as a duration (60s, 5m) or a compressed size (500MB)
    #[arg(long, value_name = "DURATION|SIZE", value_parser = last)]
    last: Option<Last>,
    /// Where that part is kept: in a folder beside the trace, or in memory
    #[arg(long, value_name = "WHERE", value_enum, requires = "last")]
    last_in: Option<Where>,
    /// Write that part out on error (a call failed), xid, hang=SECS (a call open or no launch for SECS seconds), exit
    /// (with an error or by a signal), signal (SIGUSR1); it is always written at the end of the recording
    #[arg(long, value_name = "EVENT,…", requires = "last")]
    dump_on: Option<String>,
    /// Delete the oldest dumps when all together exceed this size [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "last")]
    keep: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Where {
    Disk,
    Memory,
}

impl FlightOptions {
    pub fn config(&self, summary_only: bool) -> Result<Option<Config>> {
        let Some(last) = self.last else { return Ok(None) };
        if summary_only {
            bail!(Usage(
                "--last keeps events, and --summary-only writes none: leave one of them out".to_owned()
            ));
        }
        let on = self.dump_on.as_deref().map(events).transpose().map_err(Usage)?.unwrap_or_default();
        let in_memory = matches!(self.last_in, Some(Where::Memory));
        Ok(Some(Config { last, in_memory, on, keep: self.keep.unwrap_or(KEEP) }))
    }

    /// For the trace's header.
    pub fn reported(&self) -> Value {
        json!({
            "last": self.last.map(|last| match last {
                Last::Span(span) => json!(format!("{}s", span.as_secs_f64())),
                Last::Bytes(bytes) => json!(bytes),
            }),
            "last_in": self.last_in.map(|place| match place {
                Where::Disk => "disk",
                Where::Memory => "memory",
            }),
            "dump_on": self.dump_on,
            "keep": self.keep,
        })
    }
}

/// `error,hang=30`
fn events(list: &str) -> Result<Events, String> {
    let mut on = Events::default();
    for event in list.split(',').map(str::trim).filter(|event| !event.is_empty()) {
        match event.split_once('=') {
            None if event == "error" => on.error = true,
            None if event == "xid" => on.xid = true,
            None if event == "exit" => on.exit = true,
            None if event == "signal" => on.signal = true,
            None if event == "hang" => {
                return Err("--dump-on hang: give the number of seconds, as in hang=30".to_owned());
            }
            Some(("hang", seconds)) => {
                let after = span(seconds).map_err(|error| format!("--dump-on {event}: {error}"))?;
                if after < Duration::from_secs(1) {
                    return Err(format!("--dump-on {event}: must be 1 s or more"));
                }
                on.hang = Some(after);
            }
            _ => return Err(format!("--dump-on {event}: there is no such event; give {}", Events::NAMES)),
        }
    }
    if on == Events::default() {
        return Err(format!("--dump-on names no event; give {}", Events::NAMES));
    }
    Ok(on)
}

fn last(text: &str) -> Result<Last, String> {
    const BOTH: &str = "must be a duration (60s, 5m, 1h) or a size (500MB, 2GB)";
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("{BOTH}: {text} has no unit"));
    }
    if let Ok(bytes) = size(text) {
        return Ok(Last::Bytes(bytes));
    }
    match span(text) {
        Ok(span) if span >= Duration::from_secs(1) => Ok(Last::Span(span)),
        Ok(_) => Err("must be 1 s or more".to_owned()),
        Err(_) => Err(BOTH.to_owned()),
    }
}

/// In units of 1024.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("K", 10),
        ("KB", 10),
        ("KIB", 10),
        ("M", 20),
        ("MB", 20),
        ("MIB", 20),
        ("G", 30),
        ("GB", 30),
        ("GIB", 30),
    ];
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let shift = match unit {
        // A duration in minutes.
        "m" => None,
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, shift)| *shift),
    };
    let bytes = digits.parse::<f64>().ok().zip(shift).map(|(number, shift)| number * (1u64 << shift) as f64);
    match bytes {
        Some(bytes) if (1e6..1e15).contains(&bytes) => Ok(bytes as u64),
        Some(_) => Err("must be 1MB or more".to_owned()),
        None => Err("must be a size with its unit: 500MB, 5GB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_is_a_time_or_a_size() {
        assert_eq!(last("60s"), Ok(Last::Span(Duration::from_secs(60))));
        assert_eq!(last("5m"), Ok(Last::Span(Duration::from_secs(300))));
        assert_eq!(last("1.5h"), Ok(Last::Span(Duration::from_secs(5400))));
        assert_eq!(last("500MB"), Ok(Last::Bytes(500 << 20)));
        assert_eq!(last("2GB"), Ok(Last::Bytes(2 << 30)));
        assert_eq!(last("5M"), Ok(Last::Bytes(5 << 20)));
        for wrong in ["60", "", "s", "0s", "100ms", "1KB", "-5s", "1e9", "5 GB", "5TB", "x"] {
            assert!(last(wrong).is_err(), "{wrong}");
        }
        assert!(last("60").unwrap_err().ends_with("60 has no unit"));
        assert_eq!(size("5GiB"), Ok(5 << 30));
    }

    #[test]
    fn events_are_words() {
        let all = events("error,xid,hang=30,exit,signal").unwrap();
        let hang = Some(Duration::from_secs(30));
        assert_eq!(all, Events { error: true, xid: true, hang, exit: true, signal: true });
        assert_eq!(events(" exit ").unwrap(), Events { exit: true, ..Events::default() });
        for wrong in ["", ",", "hang", "hang=", "hang=0", "hang=x", "errors", "error=1", "end"] {
            let said = events(wrong).unwrap_err();
            assert!(said.starts_with("--dump-on"), "{said}");
        }
    }
}
