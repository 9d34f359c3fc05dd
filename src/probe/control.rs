//! The control ring: what the recorder must act on at once, while a process waits. In: the
//! map, one of the kernel's own ring buffers, since those wake who sleeps on them. Out: its
//! records, and a descriptor to wait on. Not here: what is done about a record.

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
        let map = MapHandle::try_from(&base.map("control")?)?;
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

    /// What has come since the last time.
    pub fn take(&self) -> Vec<NewFile> {
        // It fails only where a callback does.
        let _ = self.ring.consume();
        self.read.take()
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
