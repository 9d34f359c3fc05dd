//! The processes that are recorded from the start: the command that waits at its gate, processes that run already and
//! their children, or all. In: their pids. Out: targets, and hooks in the libraries they have mapped.

use super::*;

impl Session<'_> {
    /// Makes processes targets and hooks the libraries they have mapped. They become targets first: BPF then reports
    /// what they map from that moment on, and the scan finds what they mapped before.
    pub(super) fn take_targets(
        &mut self,
        gated: Option<&GatedCommand>,
        attached: &[AttachedProcess],
    ) -> Result<()> {
        if let Some(gated) = gated {
            self.tracker.add_target(gated.pid()).context(MAPS)?;
        }
        for one in attached {
            for pid in self.adopt(one)? {
                let scanned = self.tracker.scan(pid, &mut self.probes);
                if proc::pidfd_ended(one.pidfd.as_raw_fd(), 0) {
                    bail!(attach::AttachError::Ended(one.pid));
                }
                if pid == one.pid {
                    scanned.with_context(|| format!("cannot read what process {pid} has mapped"))?;
                }
            }
        }
        if matches!(self.config.target, Target::All) {
            self.tracker.look_early(Early::Linker, &mut self.probes);
            for pid in proc::all_processes() {
                // A process that ended meanwhile has nothing left to hook.
                let _ = self.tracker.scan(pid, &mut self.probes);
                self.tracker.look_early(Early::Process(pid), &mut self.probes);
            }
        }
        Ok(())
    }

    /// Waits for files that are still being examined, as long as during the recording, or until a signal comes.
    pub(super) fn settle(&mut self, signals: &Signals) -> Result<()> {
        let signalled = || proc::is_readable(signals.as_fd().as_raw_fd(), 0);
        while self.tracker.is_looking() && !signalled() {
            self.tracker.beat(true).context(MAPS)?;
            self.sleep(None, signals)?;
            self.tracker.work(&mut self.probes);
            self.handle_control();
        }
        Ok(())
    }

    /// Makes a running process and its descendants targets. The children that a target forks become targets too. To
    /// find those forked just before, the process tree is read again until it shows nothing new.
    fn adopt(&self, one: &AttachedProcess) -> Result<Vec<u32>> {
        let mut known = Vec::new();
        loop {
            let tree = if self.config.follow { proc::process_tree(one.pid) } else { vec![one.pid] };
            let new: Vec<u32> = tree.into_iter().filter(|pid| !known.contains(pid)).collect();
            if new.is_empty() {
                return Ok(known);
            }
            new.iter().try_for_each(|pid| self.tracker.add_target(*pid)).context(MAPS)?;
            known.extend(new);
        }
    }
}
