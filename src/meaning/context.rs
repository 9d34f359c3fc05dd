//! Which context and device each thread works with, and which have ended.

use std::collections::HashMap;

use super::ledger::Owner;

#[derive(Default)]
pub struct Contexts {
    /// The device of each live context.
    devices: HashMap<u64, Option<i32>>,
    /// The primary context of each device, and how often it is retained.
    primary: HashMap<i32, Primary>,
}

#[derive(Default)]
struct Primary {
    context: Option<u64>,
    retained: u64,
}

/// What one thread works with.
#[derive(Default)]
pub struct Current {
    stack: Vec<u64>,
    /// By cudaSetDevice.
    device: Option<i32>,
}

/// A thread can push contexts without end, and a process make them.
const DEEPEST: usize = 256;
const MOST: usize = 4096;

impl Current {
    pub fn set(&mut self, context: u64) {
        self.stack.pop();
        self.push(context);
    }

    pub fn push(&mut self, context: u64) {
        if context != 0 && self.stack.len() < DEEPEST {
            self.stack.push(context);
        }
    }

    pub fn pop(&mut self) {
        self.stack.pop();
    }

    pub fn set_device(&mut self, device: i32) {
        self.device = Some(device);
    }

    /// A context has ended: nobody works with it.
    pub fn ended(&mut self, context: u64) {
        self.stack.retain(|known| *known != context);
    }
}

impl Contexts {
    pub fn seen(&mut self, context: u64, device: Option<i32>) {
        if context != 0 && (self.devices.len() < MOST || self.devices.contains_key(&context)) {
            let known = self.devices.entry(context).or_default();
            *known = device.or(*known);
        }
    }

    pub fn retained(&mut self, device: i32, context: u64) {
        self.seen(context, Some(device));
        if self.primary.len() >= MOST && !self.primary.contains_key(&device) {
            return;
        }
        let primary = self.primary.entry(device).or_default();
        primary.context = Some(context);
        primary.retained = primary.retained.saturating_add(1);
    }

    /// True if nobody holds the device's primary context any more.
    pub fn released(&mut self, device: i32) -> bool {
        let Some(primary) = self.primary.get_mut(&device).filter(|p| p.retained > 0) else { return false };
        primary.retained -= 1;
        primary.retained == 0
    }

    /// The device's primary context, which has been reset.
    pub fn reset(&mut self, device: i32) -> Option<u64> {
        let context = self.primary.remove(&device)?.context?;
        self.devices.remove(&context);
        Some(context)
    }

    /// False if it was not known.
    pub fn destroyed(&mut self, context: u64) -> bool {
        self.devices.remove(&context).is_some()
    }

    /// Whether something of which nothing is known can only be this context's.
    pub fn is_only(&self, context: u64) -> bool {
        self.devices.keys().all(|known| *known == context)
    }

    pub fn only_device(&self, device: i32) -> bool {
        self.devices.values().flatten().chain(self.primary.keys()).all(|known| *known == device)
    }

    /// Whose what the thread now allocates will be.
    pub fn owner(&self, current: &Current) -> Owner {
        let only = || match self.devices.len() {
            1 => self.devices.keys().next().copied(),
            _ => None,
        };
        let context = current.stack.last().copied().or_else(only);
        let of_context = context.and_then(|context| self.devices.get(&context).copied().flatten());
        Owner { context, device: of_context.or(current.device) }
    }

    /// The thread's device as the runtime has it: 0 unless it was set.
    pub fn device(&self, current: &Current) -> i32 {
        current.device.or_else(|| self.owner(current).device).unwrap_or(0)
    }
}
