//! The control ring: records that the recorder must act on at once, because a process waits. In: the map, a BPF ring
//! buffer, because those wake a sleeping reader. Out: its records, and a descriptor to wait on.
//! Not here: how the recorder acts on a record.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use anyhow::Result;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use super::objects::Base;
use crate::wire::{self, NewFile};

pub struct Control {
    map: MapHandle,
    ring: RingBuffer<'static>,
    read: Rc<RefCell<Vec<NewFile>>>,
}

impl Control {
    pub fn open(base: &Base) -> Result<Control> {
        let map = base.handle("control")?;
        let read = Rc::new(RefCell::new(Vec::new()));
        let into = read.clone();
        let mut builder = RingBufferBuilder::new();
        builder.add(&map, move |bytes| {
            into.borrow_mut().extend(wire::read::<NewFile>(bytes));
            0
        })?;
        let ring = builder.build()?;
        Ok(Control { map, ring, read })
    }

    /// The records since the last call.
    pub fn take(&self) -> Vec<NewFile> {
        // It fails only if a callback does.
        let _ = self.ring.consume();
        self.read.take()
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
