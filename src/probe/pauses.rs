//! --lossless: the processes that bpf/pause.h has stopped because a ring filled. In: the maps of
//! who waits. Out: they go on, when whoever empties the rings says so; how often and how long
//! they have waited.
//! Never let go here: who is stopped for a new library, which is the tracker's, or by somebody
//! who has nothing to do with us.

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
    /// So much may wait in a ring when they go on.
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
        let map = |name| -> Result<MapHandle> { Ok(MapHandle::try_from(&base.map(name)?)?) };
        Ok(Some(Pauses {
            paused: map("paused")?,
            going: map("going")?,
            stopped: map("stopped")?,
            targets: map("targets")?,
            low: base.layout().far / 8,
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
        }))
    }

    /// Everybody goes on. Whoever is stopped just now comes into the map after that.
    pub fn let_go(&self, ended: &mut dyn FnMut(Pause)) {
        for key in self.paused.keys() {
            let since = number(self.paused.lookup(&key, MapFlags::ANY).ok().flatten());
            let now = monotonic_ns();
            let waited = since.map_or(0, |since| now.saturating_sub(since));
            let _ = self.going.update(&key, &1u32.to_ne_bytes(), MapFlags::ANY);
            // Before the signal: what is put there afterwards is of a later stop.
            let ours = self.paused.delete(&key).is_ok();
            self.count.fetch_add(1, Ordering::Relaxed);
            self.total_ns.fetch_add(waited, Ordering::Relaxed);
            if let (Some(from), Ok(pid)) = (since, key.as_slice().try_into()) {
                ended(Pause { pid: u32::from_ne_bytes(pid), from, to: now });
            }
            // Where the guardian has resumed it, a stop that it is in now is another's.
            if ours {
                self.resume(&key);
            }
            let _ = self.going.delete(&key);
        }
    }

    /// How often processes have waited, and how long together.
    pub fn so_far(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.total_ns.load(Ordering::Relaxed))
    }

    fn resume(&self, key: &[u8]) {
        let has = |map: &MapHandle| map.lookup(key, MapFlags::ANY).is_ok_and(|value| value.is_some());
        let Ok(bytes) = key.try_into() else { return };
        let pid = u32::from_ne_bytes(bytes);
        // One that ended is no target, and its number may be another's by now.
        if !has(&self.targets) || has(&self.stopped) {
            return;
        }
        stops::go_on(pid);
        if has(&self.stopped) {
            // It was stopped for a library just then. If the tracker has let it go meanwhile,
            // it is let go again from here.
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
