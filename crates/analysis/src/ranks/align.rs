//! Puts several traces on one time line, for exports. In: files. Out: for each trace a function from its times to the
//! clock of the first trace's host, and remarks for the user. The headers suffice for traces of one host. Traces of
//! several hosts are read as a whole, because their collectives show how far the clocks are apart.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::clocks::{HostClock, Origin};
use super::domain::{Domains, Shift};
use super::gather::clocks_of;
use crate::only::Only;
use crate::{read, ui};
use gpurec_trace::{Body, Header, time};

/// Converts the times of a trace to those of the output.
#[derive(Clone, Debug)]
pub struct Placed {
    pub(super) shift: Shift,
    /// None: no correction; the times stay on the clock of its host.
    clock: Option<HostClock>,
}

impl Placed {
    /// Nanoseconds since 1970.
    pub fn time(&self, ts_ns: u64) -> i64 {
        let ns = self.shift.time(ts_ns);
        self.clock.as_ref().map_or(ns, |clock| clock.corrected(ns))
    }
}

#[derive(Default)]
pub struct Aligned {
    /// None: no header says when the trace began.
    pub traces: Vec<Option<Placed>>,
    pub notes: Vec<String>,
}

/// `asks_collectives`: whether it may read more than the headers.
pub fn align(files: &[PathBuf], asks_collectives: bool) -> Result<Aligned> {
    let mut domains = Domains::default();
    let mut aligned = Aligned::default();
    for file in files {
        let placed = header(file)?.map(|header| Placed { shift: domains.shift(&header), clock: None });
        aligned.traces.push(placed);
    }
    if domains.0.len() < 2 || !asks_collectives {
        return Ok(aligned);
    }
    // A trace that does not say when it began has no clock, and must not become the reference.
    let all = files.iter().zip(&aligned.traces);
    let known: Vec<PathBuf> = all.filter(|(_, it)| it.is_some()).map(|(file, _)| file.clone()).collect();
    // Whatever is exported, all of the traces says how far the clocks are apart.
    let (shifts, clocks) = match clocks_of(&known, &Only::default()) {
        Ok(found) => found,
        Err(error) => {
            let why = ui::clean(&format!("{error:#}"));
            aligned.notes.push(format!("times are those of each host's own clock: {why}"));
            return Ok(aligned);
        }
    };
    for (placed, shift) in aligned.traces.iter_mut().flatten().zip(shifts) {
        *placed = Placed { shift, clock: clocks.get(shift.domain).cloned() };
    }
    aligned.notes = clocks.iter().filter(|clock| !clock.is_reference).flat_map(remarks).collect();
    Ok(aligned)
}

/// The header, if it says when the recording began.
fn header(file: &Path) -> Result<Option<Header>> {
    let mut reader = read::open(file)?;
    let Some(line) = reader.next().with_context(|| ui::name(file))? else { return Ok(None) };
    let Body::Header(header) = &line.body else { return Ok(None) };
    Ok(time::nanoseconds(&header.start).is_some().then(|| (**header).clone()))
}

fn remarks(clock: &HostClock) -> Vec<String> {
    let host = ui::clean(&clock.host);
    let (offset, error) = (clock.offset_ns / 1e3, clock.error_ns.unwrap_or(0.0) / 1e3);
    let how = match clock.origin {
        Origin::Reference => return Vec::new(),
        Origin::Collectives => format!(
            "its clock is {offset:+.1} us from that of the first host, which collectives show to within {error:.1} us, and its times are corrected by that"
        ),
        Origin::Ntp => format!(
            "its times are those of its own clock, which NTP keeps within {error:.1} us of that of the first host"
        ),
        Origin::None if !clock.said.is_empty() => String::new(),
        Origin::None => "its times are those of its own clock: neither collectives nor NTP say how far it is from that of the first host".to_owned(),
    };
    let all = std::iter::once(how).chain(clock.said.clone());
    all.filter(|text| !text.is_empty()).map(|text| format!("{host}: {text}")).collect()
}
