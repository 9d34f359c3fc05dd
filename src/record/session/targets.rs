//! Who is recorded from the start: the command that waits at its gate, processes that run already with their children,
//! or all. In: their numbers. Out: targets, and hooks in what they have mapped.

use super::*;

impl Session<'_> {
    /// Makes processes targets and hooks what they have mapped. They are targets first:
    /// what they map meanwhile is then reported, what they mapped before is found.
    pub(super) fn take_targets(&mut self, gated: Option<&Gated>, attached: &[Attached]) -> Result<()> {
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

    /// Files that were not looked at yet are waited for, as long as they would be later, or until a signal comes.
    pub(super) fn settle(&mut self, signals: &Signals) -> Result<()> {
        let signalled = || {
            let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        while self.tracker.is_looking() && !signalled() {
            self.tracker.beat(true).context(MAPS)?;
            self.sleep(None, signals)?;
            self.tracker.work(&mut self.probes);
            self.handle_control();
        }
        Ok(())
    }

    /// A running process and its descendants as targets. From the moment when a process is
    /// one, its children are too; those forked just before show when the tree is read again.
    fn adopt(&self, one: &Attached) -> Result<Vec<u32>> {
        let mut known = vec![one.pid];
        self.tracker.add_target(one.pid).context(MAPS)?;
        if !self.config.follow {
            return Ok(known);
        }
        loop {
            let before = known.len();
            for pid in proc::process_tree(one.pid) {
                if !known.contains(&pid) {
                    self.tracker.add_target(pid).context(MAPS)?;
                    known.push(pid);
                }
            }
            if known.len() == before {
                return Ok(known);
            }
        }
    }
}
