//! --lossless: resumes the processes that bpf/pause.h stopped because a ring filled. In: the maps of the paused
//! processes. Out: the processes resume when the reader of the rings asks for it; how often and how long they were
//! paused.
//! Never resumes a process that is stopped for a new library, which is the tracker's task, or one that an unrelated
//! program stopped.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::objects::Base;
use crate::clock::monotonic_ns;
use crate::process::stops;

/// A process was stopped, from when to when.
pub struct Pause {
    pub pid: u32,
    pub from: u64,
    pub to: u64,
}

pub struct Pauses {
    paused: MapHandle,
    going: MapHandle,
    stopped: MapHandle,
    targets: MapHandle,
    /// The processes resume when at most this many bytes wait in a ring.
    pub low: usize,
    count: AtomicU64,
    total_ns: AtomicU64,
}

impl Pauses {
    /// None without --lossless.
    pub fn new(base: &Base) -> Result<Option<Pauses>> {
        if !base.is_lossless() {
            return Ok(None);
        }
        Ok(Some(Pauses {
            paused: base.handle("paused")?,
            going: base.handle("going")?,
            stopped: base.handle("stopped")?,
            targets: base.handle("targets")?,
            low: base.layout().far / 8,
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
        }))
    }

    /// Resumes all processes. A process that is stopped during this enters the map afterwards.
    pub fn resume_all(&self, ended: &mut dyn FnMut(Pause)) {
        for key in self.paused.keys() {
            let since = number(self.paused.lookup(&key, MapFlags::ANY).ok().flatten());
            let now = monotonic_ns();
            let waited = since.map_or(0, |since| now.saturating_sub(since));
            let _ = self.going.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY);
            // Before the signal: an entry added after this belongs to a later stop.
            let ours = self.paused.delete(&key).is_ok();
            self.count.fetch_add(1, Ordering::Relaxed);
            self.total_ns.fetch_add(waited, Ordering::Relaxed);
            if let (Some(from), Ok(pid)) = (since, key.as_slice().try_into()) {
                ended(Pause { pid: u32::from_ne_bytes(pid), from, to: now });
            }
            // If the guardian has resumed it already, a present stop is not ours.
            if ours {
                self.resume(&key);
            }
            let _ = self.going.delete(&key);
        }
    }

    /// How often processes were paused, and how long in total.
    pub fn so_far(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.total_ns.load(Ordering::Relaxed))
    }

    fn resume(&self, key: &[u8]) {
        let has = |map: &MapHandle| map.lookup(key, MapFlags::ANY).is_ok_and(|value| value.is_some());
        let Ok(bytes) = key.try_into() else { return };
        let pid = u32::from_ne_bytes(bytes);
        // A process that ended is no target, and another process may have its number by now.
        if !has(&self.targets) || has(&self.stopped) {
            return;
        }
        stops::go_on(pid);
        if has(&self.stopped) {
            // It was stopped for a library at the same moment. If the tracker has resumed it meanwhile, it is resumed
            // again from here.
            // Only if there is room to remember it.
            if self.paused.update(key, &monotonic_ns().to_ne_bytes(), MapFlags::ANY).is_ok() {
                stops::stop(pid);
            }
        }
    }
}

fn number(value: Option<Vec<u8>>) -> Option<u64> {
    Some(u64::from_ne_bytes(value?.try_into().ok()?))
}
