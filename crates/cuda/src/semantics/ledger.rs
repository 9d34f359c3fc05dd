//! The memory that a process holds: every allocation with its size, and the running totals.
//!
//! In: the effects of calls, in the order in which they returned. Out: what was freed, and the totals. Not here: the
//! names of calls, writing lines.

use std::collections::BTreeMap;

use crate::traits::{Space, Table};
use gpurec_trace::Where;
use gpurec_trace::bounds::{Room, Searches, Share};

/// A call, by its thread and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    pub tid: u32,
    pub id: u64,
}

/// The context and device whose end frees an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub context: Option<u64>,
    pub device: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub space: Space,
    /// None if it could not be read.
    pub size: Option<u64>,
    pub owner: Owner,
    /// The device and context that are certain, whereas `owner` may be a guess.
    pub on: Where,
    pub by: By,
    /// The call that is about to free it, and that call's name.
    freeing: Option<(By, Box<str>)>,
    /// The number of frees that are due: a handle can be retained, an IPC handle opened twice.
    holds: u32,
    /// The number of mappings that keep a handle's memory.
    maps: u32,
    /// Distinguishes it from earlier and later allocations at the same address.
    serial: u64,
    /// Bytes of one element of an array.
    pub element: u64,
}

/// An allocation that is no longer held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreedAllocation {
    pub ptr: u64,
    pub held: Box<Allocation>,
    /// The bytes left in its space.
    pub total: u64,
}

impl FreedAllocation {
    /// The call that was freeing it when its address was given out again.
    pub fn freed_by(&self) -> Option<(By, &str)> {
        self.held.freeing.as_ref().map(|(by, name)| (*by, name.as_ref()))
    }
}

struct Mapping {
    size: u64,
    handle: u64,
}

pub struct Ledger {
    /// One entry for each table entry here.
    share: Share,
    room: Room,
    held: BTreeMap<(Table, u64), Box<Allocation>>,
    mappings: BTreeMap<u64, Mapping>,
    /// Variables of modules, with their sizes.
    globals: BTreeMap<u64, u64>,
    /// Sizes may add up to more than 2^64 if a program passes false sizes.
    totals: [u128; Space::ALL.len()],
    serials: u64,
    searches: Searches,
}

/// The kind of memory at an address, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Device(Option<i32>),
    Managed,
    Pinned,
    Unknown,
}

impl Allocation {
    pub fn new(space: Space, size: Option<u64>, owner: Owner, by: By) -> Allocation {
        let on = Where::default();
        Allocation { space, size, owner, on, by, freeing: None, holds: 1, maps: 0, serial: 0, element: 0 }
    }
}

impl Ledger {
    /// `room` bounds the entries of all processes together.
    pub fn new(room: &Room) -> Ledger {
        Ledger {
            share: Share::new(room),
            room: room.clone(),
            held: BTreeMap::new(),
            mappings: BTreeMap::new(),
            globals: BTreeMap::new(),
            totals: Default::default(),
            serials: 0,
            searches: Searches::default(),
        }
    }

    pub fn total(&self, space: Space) -> u64 {
        let total = self.totals.get(space as usize).copied().unwrap_or(0);
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    pub fn get(&self, table: Table, ptr: u64) -> Option<&Allocation> {
        self.held.get(&(table, ptr)).map(Box::as_ref)
    }

    /// Enters an allocation. Returns the previous allocation at its address if the call that freed it has not returned
    /// yet or was not seen.
    pub fn alloc(&mut self, table: Table, ptr: u64, held: Allocation) -> Option<FreedAllocation> {
        if held.space == Space::Ipc
            && let Some(known) = self.held.get_mut(&(table, ptr))
            && known.space == Space::Ipc
        {
            known.holds = known.holds.saturating_add(1);
            return None;
        }
        let before = self.remove(table, ptr);
        if !self.share.take(1) {
            return before;
        }
        self.serials += 1;
        let serial = self.serials;
        if let Some(total) = self.totals.get_mut(held.space as usize) {
            *total += u128::from(held.size.unwrap_or(0));
        }
        self.searches.filled();
        self.held.insert((table, ptr), Box::new(Allocation { serial, ..held }));
        before
    }

    /// A free began. Returns the serial number of the allocation it frees.
    pub fn begin_free(&mut self, table: Table, ptr: u64, by: By, name: &str) -> Option<u64> {
        let held = self.held.get_mut(&(table, ptr))?;
        held.freeing = Some((by, name.into()));
        Some(held.serial)
    }

    /// The free failed, or its outcome will stay unknown.
    pub fn cancel_free(&mut self, table: Table, ptr: u64, serial: u64) {
        if let Some(held) = self.held.get_mut(&(table, ptr))
            && held.serial == serial
        {
            held.freeing = None;
        }
    }

    /// A free succeeded. `None`: there is nothing to report, because another call has reported it already or something
    /// still holds the memory.
    pub fn free(&mut self, table: Table, ptr: u64, serial: u64) -> Option<FreedAllocation> {
        let held = self.held.get_mut(&(table, ptr)).filter(|held| held.serial == serial)?;
        held.holds = held.holds.saturating_sub(1);
        held.freeing = None;
        if held.holds > 0 || held.maps > 0 {
            return None;
        }
        self.remove(table, ptr)
    }

    pub fn retain(&mut self, handle: u64) {
        if let Some(held) = self.held.get_mut(&(Table::Handles, handle)) {
            held.holds = held.holds.saturating_add(1);
        }
    }

    pub fn map(&mut self, ptr: u64, size: u64, handle: u64) {
        if !self.mappings.contains_key(&ptr) && !self.share.take(1) {
            return;
        }
        if let Some(before) = self.mappings.insert(ptr, Mapping { size, handle })
            && let Some(held) = self.held.get_mut(&(Table::Handles, before.handle))
        {
            held.maps = held.maps.saturating_sub(1);
        }
        if let Some(held) = self.held.get_mut(&(Table::Handles, handle)) {
            held.maps = held.maps.saturating_add(1);
        }
    }

    /// Unmaps memory. Memory whose handle was released is freed with its last mapping.
    pub fn unmap(&mut self, ptr: u64, size: u64) -> Vec<FreedAllocation> {
        let end = ptr.saturating_add(size);
        let within: Vec<u64> = self.mappings.range(ptr..end).map(|(at, _)| *at).collect();
        let mut gone = Vec::new();
        for at in within {
            let Some(mapping) = self.mappings.remove(&at) else { continue };
            self.share.give_back(1);
            let Some(held) = self.held.get_mut(&(Table::Handles, mapping.handle)) else { continue };
            held.maps = held.maps.saturating_sub(1);
            if held.maps == 0 && held.holds == 0 {
                gone.extend(self.remove(Table::Handles, mapping.handle));
            }
        }
        gone
    }

    pub fn global(&mut self, ptr: u64, size: u64) {
        if self.globals.contains_key(&ptr) || self.share.take(1) {
            self.globals.insert(ptr, size);
        }
    }

    /// Removes the allocations that end with a context or a device. If a program keeps ending them while it holds very
    /// much, the ledger stops tracking it.
    pub fn end_of(&mut self, with_pools: bool, ends: impl Fn(&Owner) -> bool) -> Vec<FreedAllocation> {
        let ended = |held: &Allocation| {
            let bound = match held.space {
                Space::Device | Space::Managed | Space::Host | Space::Array | Space::Ipc => true,
                Space::Pool => with_pools,
                Space::Virtual => false,
            };
            bound && ends(&held.owner)
        };
        // Physical memory outlives contexts.
        let bound = self.held.range(..(Table::Handles, 0));
        let looked = bound.clone().count();
        let found: Vec<_> = bound.filter(|(_, held)| ended(held)).map(|(place, _)| *place).collect();
        let gone: Vec<FreedAllocation> =
            found.into_iter().filter_map(|(table, ptr)| self.remove(table, ptr)).collect();
        if !self.searches.looked(looked - gone.len()) {
            self.give_up();
        }
        gone
    }

    fn give_up(&mut self) {
        let count = self.held.len();
        self.held.clear();
        self.totals = Default::default();
        self.share.give_back(count);
        self.room.refuse(count);
    }

    pub fn place(&self, address: u64) -> Place {
        if let Some(held) = self.at(Table::Addresses, address) {
            return match held.space {
                Space::Host => Place::Pinned,
                Space::Managed => Place::Managed,
                _ => Place::Device(held.owner.device),
            };
        }
        if let Some((ptr, mapping)) = self.mappings.range(..=address).next_back()
            && within(*ptr, mapping.size, address)
        {
            let held = self.get(Table::Handles, mapping.handle);
            return Place::Device(held.and_then(|held| held.owner.device));
        }
        if self.at(Table::Registered, address).is_some() {
            return Place::Pinned;
        }
        let global = self.globals.range(..=address).next_back();
        match global.is_some_and(|(ptr, size)| within(*ptr, *size, address)) {
            true => Place::Device(None),
            false => Place::Unknown,
        }
    }

    /// The allocation that an address is in.
    fn at(&self, table: Table, address: u64) -> Option<&Allocation> {
        let ((_, ptr), held) = self.held.range((table, 0)..=(table, address)).next_back()?;
        within(*ptr, held.size.unwrap_or(1), address).then_some(held)
    }

    /// All allocations held, for tests.
    #[cfg(test)]
    pub fn all(&self) -> Vec<(u64, &Allocation)> {
        self.held.iter().map(|((_, ptr), held)| (*ptr, held.as_ref())).collect()
    }

    fn remove(&mut self, table: Table, ptr: u64) -> Option<FreedAllocation> {
        let held = self.held.remove(&(table, ptr))?;
        self.share.give_back(1);
        if let Some(total) = self.totals.get_mut(held.space as usize) {
            *total = total.saturating_sub(held.size.unwrap_or(0).into());
        }
        let total = self.total(held.space);
        Some(FreedAllocation { ptr, held, total })
    }
}

/// Whether `address` is one of the `size` bytes at `ptr`.
fn within(ptr: u64, size: u64, address: u64) -> bool {
    address.checked_sub(ptr).is_some_and(|offset| offset < size)
}
