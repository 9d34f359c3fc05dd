//! The guardian's access to BPF's maps, by descriptors that it keeps. In: the loaded programs. Out: a guardian that
//! has started.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::tracker::pids_of;
use crate::clock::monotonic_ns;
use crate::probe::Probes;
use crate::process::Pid;
use crate::process::guardian::{self, Beat, Guardian, Stops};
use crate::process::terminal::Terminal;
use crate::wire::{self, Pulse};

struct Maps {
    /// Each map contains processes that gpurec has stopped.
    stopped: [MapHandle; 3],
    state: MapHandle,
    pulse: MapHandle,
    rescued: MapHandle,
}

pub fn start(probes: &Probes, terminal: Option<&Terminal>) -> Result<Guardian> {
    let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&probes.base.map(name)?)?) };
    let maps = Maps {
        stopped: [map("stopped")?, map("paused")?, map("going")?],
        state: map("state")?,
        pulse: map("pulse")?,
        rescued: map("rescued")?,
    };
    let all = maps.stopped.iter().chain([&maps.state, &maps.pulse, &maps.rescued]);
    let fds: Vec<_> = all.map(|map| map.as_fd().as_raw_fd()).collect();
    guardian::spawn(maps, terminal, &fds).context("gpurec cannot start its guardian process")
}

impl Stops for Maps {
    fn beat(&mut self) -> Option<Beat> {
        let bytes = self.pulse.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        let at = wire::read::<Pulse>(&bytes)?.alive_ns;
        Some(Beat { at, age: Duration::from_nanos(monotonic_ns().saturating_sub(at)) })
    }

    fn stopped(&mut self) -> Vec<Pid> {
        self.stopped.iter().flat_map(pids_of).collect()
    }

    fn rescue(&mut self, pid: Pid) {
        // Before the process resumes: a recorder that runs again leaves alone the processes that are not in its maps.
        for map in &self.stopped {
            let _ = map.delete(&pid.to_ne_bytes());
        }
    }

    fn rescued(&mut self) {
        let now = monotonic_ns().to_ne_bytes();
        let _ = self.rescued.update(&0u32.to_ne_bytes(), &now, MapFlags::ANY);
    }

    fn silence(&mut self) {
        let silent = wire::State { phase: wire::SILENT, ..wire::State::default() };
        let _ = self.state.update(&0u32.to_ne_bytes(), wire::bytes(&silent), MapFlags::ANY);
    }
}
