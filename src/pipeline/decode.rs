//! A record's bytes → an item. In: one record as BPF wrote it. Out: the item, or None for
//! bytes that are no record (counted by the caller). Pure: no I/O, no state.

use crate::probe::wire::{self, Head};

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// CLOCK_MONOTONIC, ns.
    pub ts: u64,
    pub tid: u32,
    pub seq: u32,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Call { pid: u32, probe: u32, chained: bool, sp: u64, args: [u64; 6] },
    Return { probe: u32, begin: u64, value: u64 },
    Fork { pid: u32, child: u32 },
    Exec { pid: u32, old_tid: u32, command: Box<[u8]>, cut: bool },
    Exit { pid: u32, status: i32, process: bool },
}

pub fn decode(bytes: &[u8]) -> Option<Item> {
    let head: Head = wire::read(bytes)?;
    let what = match head.kind {
        wire::CALL => {
            let r: wire::Call = wire::read(bytes)?;
            let chained = head.flags & wire::CHAINED != 0;
            What::Call { pid: r.pid, probe: head.probe, chained, sp: r.sp, args: r.args }
        }
        wire::RETURN => {
            let r: wire::Return = wire::read(bytes)?;
            What::Return { probe: head.probe, begin: r.begin, value: r.value }
        }
        wire::FORK => {
            let r: wire::Fork = wire::read(bytes)?;
            What::Fork { pid: r.pid, child: r.child }
        }
        wire::EXEC => exec(bytes, &head)?,
        wire::EXIT => {
            let r: wire::Exit = wire::read(bytes)?;
            let process = head.flags & wire::PROCESS_ENDED != 0;
            What::Exit { pid: r.pid, status: r.status, process }
        }
        _ => return None,
    };
    Some(Item { ts: head.ts, tid: head.tid, seq: head.seq, what })
}

fn exec(bytes: &[u8], head: &Head) -> Option<What> {
    let r: wire::Exec = wire::read(bytes)?;
    let command = r.command.get(..r.length as usize)?.into();
    Some(What::Exec { pid: r.pid, old_tid: head.probe, command, cut: head.flags & wire::CUT != 0 })
}
