//! Calls of NCCL. In: their arguments as they begin, and what they wrote. Out: `collective` lines, and what is known of
//! communicators (communicators.rs). A call inside another one that does the same, as ncclBroadcast in ncclBcast, has the
//! line.

use gpurec_trace as trace;
use gpurec_trace::bytes::{digest, u64_at};

use super::args::{In, Out};
use super::communicators::{Child, Communicator};
use super::effects::Ending;
use super::{CallRef, Effect, InnerEffects, Process, Role, SavedState};
use crate::names;
use crate::traits::Nccl;

/// What a call of NCCL does when it has succeeded.
pub enum NcclCall {
    Enqueued { handle: u64, sends: Option<bool>, line: trace::Collective<'static> },
    Made(Communicator),
    MadeAll,
    Split { parent: u64, color: i32 },
    Shrunk { parent: u64, without: Vec<u8>, count: u32 },
    Ended { handle: u64, made: u64 },
    GroupBegun,
    Asked { handle: u64, of: Nccl },
}

/// The bytes of a unique id.
const UNIQUE_ID: usize = 128;
/// From this number on, programs make reductions themselves, by ncclRedOpCreatePreMulSum.
const OWN_REDUCTION: i32 = 5;

impl Process {
    pub(super) fn nccl_begun(&mut self, nccl: Nccl, role: &Role, call: &CallRef, args: &In) -> SavedState {
        let number = |name: &str| args.named(name).map(|value| value as u32);
        let handle = args.named("comm").unwrap_or(0);
        let begun = match nccl {
            Nccl::Collective(op) => self.enqueue(op, None, role, call, args),
            Nccl::Send => self.enqueue("Send", Some(true), role, call, args),
            Nccl::Receive => self.enqueue("Recv", Some(false), role, call, args),
            Nccl::Init => {
                let id = args.structure_named("commId").or_else(|| args.structure_named("commIds"));
                let rank = number("rank").or_else(|| number("myrank"));
                NcclCall::Made(Communicator::new(unique(id), rank, number("nranks"), call.id))
            }
            Nccl::InitAll => NcclCall::MadeAll,
            Nccl::Split => {
                let Some(color) = number("color") else { return SavedState::Nothing };
                NcclCall::Split { parent: handle, color: color as i32 }
            }
            Nccl::Shrink => {
                let without = args.structure_named("excludeRanksList").unwrap_or_default();
                NcclCall::Shrunk { parent: handle, without, count: number("excludeRanksCount").unwrap_or(0) }
            }
            Nccl::Grow => NcclCall::Made(self.grown(handle, call, args)),
            Nccl::End => {
                let known = self.communicators.get(handle, &mut self.tables);
                let Some(made) = known.map(|known| known.made) else { return SavedState::Nothing };
                NcclCall::Ended { handle, made }
            }
            Nccl::Group { begins: true } => NcclCall::GroupBegun,
            Nccl::Group { begins: false } => {
                // It ends even if an operation in it fails.
                let thread = self.threads.get(call.tid);
                thread.groups = thread.groups.saturating_sub(1);
                return SavedState::Nothing;
            }
            Nccl::Rank | Nccl::Ranks => NcclCall::Asked { handle, of: nccl },
        };
        SavedState::Nccl(Box::new(begun))
    }

    /// The line of an operation, without what is counted when it has succeeded.
    fn enqueue(
        &mut self,
        op: &'static str,
        sends: Option<bool>,
        role: &Role,
        call: &CallRef,
        args: &In,
    ) -> NcclCall {
        let rank = |name: &str| args.named(name).and_then(|value| u32::try_from(value).ok());
        let count = ["count", "sendcount", "recvcount"].iter().find_map(|name| args.named(name));
        let dtype = args.named("datatype").and_then(|code| constant("ncclDataType_t", code));
        let reduction = args.named("op").and_then(|code| match code as i32 >= OWN_REDUCTION {
            true => Some("premulsum".to_owned()),
            false => constant("ncclRedOp_t", code),
        });
        let thread = self.threads.get(call.tid);
        let line = trace::Collective {
            pid: call.pid,
            tid: call.tid,
            begin: call.id,
            name: role.name.to_string().into(),
            op: op.into(),
            count,
            bytes: count.zip(dtype.as_deref().and_then(bytes_of)).and_then(|(n, each)| n.checked_mul(each)),
            dtype: dtype.map(Into::into),
            stream: args.stream(),
            root: rank("root"),
            redop: reduction.map(Into::into),
            peer: rank("peer"),
            group: (thread.groups > 0).then_some(thread.group),
            ..trace::Collective::default()
        };
        NcclCall::Enqueued { handle: args.named("comm").unwrap_or(0), sends, line }
    }

    /// A rank that is new has the unique id and its rank; of the others, those without an id cannot know the identity.
    fn grown(&mut self, parent: u64, call: &CallRef, args: &In) -> Communicator {
        let parent = self.communicators.get(parent, &mut self.tables);
        let rank = match parent {
            Some(parent) => parent.rank,
            None => args.named("rank").and_then(|rank| u32::try_from(rank).ok()),
        };
        let nranks = args.named("nranks").map(|nranks| nranks as u32);
        Communicator::new(unique(args.structure_named("uniqueId")), rank, nranks, call.id)
    }
}

impl Ending<'_, '_> {
    pub(super) fn nccl(&mut self, ended: NcclCall, inner: &InnerEffects, out: &Out) {
        let is_done = inner.nccl;
        match ended {
            NcclCall::Enqueued { handle, sends, line } if !is_done => self.enqueued(handle, sends, line),
            NcclCall::Made(made) if !is_done => {
                let Some(handle) = new_handle(out) else { return };
                self.made(handle, made);
            }
            NcclCall::MadeAll if !is_done => self.made_all(out),
            NcclCall::Split { parent, color } if !is_done => {
                self.child(parent, Child::Split { color }, out);
            }
            NcclCall::Shrunk { parent, without, count } if !is_done => {
                self.child(parent, Child::Shrink { without: &without, count }, out);
            }
            NcclCall::Ended { handle, made } => {
                let Process { communicators, tables, .. } = &mut *self.process;
                communicators.remove(handle, Some(made), tables);
            }
            NcclCall::GroupBegun => {
                let Process { communicators, threads, .. } = &mut *self.process;
                let thread = threads.get(self.call.tid);
                if thread.groups == 0 {
                    thread.group = communicators.next_group();
                }
                thread.groups = thread.groups.saturating_add(1);
            }
            NcclCall::Asked { handle, of } => {
                let Process { communicators, tables, .. } = &mut *self.process;
                let answer = out.number(1).map(|number| number as u32);
                if let (Some(known), Some(answer)) = (communicators.get(handle, tables), answer) {
                    *(if of == Nccl::Rank { &mut known.rank } else { &mut known.nranks }) = Some(answer);
                }
            }
            _ => {}
        }
    }

    fn enqueued(&mut self, handle: u64, sends: Option<bool>, mut line: trace::Collective<'static>) {
        self.mark_callers(|inner| inner.nccl = true);
        let Process { communicators, tables, .. } = &mut *self.process;
        if let Some(known) = communicators.get(handle, tables) {
            line.comm = known.name().map(Into::into);
            (line.rank, line.nranks) = (known.rank, known.nranks);
            match (sends, line.peer) {
                (None, _) => line.seq = known.collective(),
                (Some(sends), Some(peer)) => line.pseq = known.with_peer(peer, sends, tables),
                (Some(_), None) => {}
            }
        }
        self.out.push(Effect::Collective(Box::new(line)));
    }

    fn made(&mut self, handle: u64, made: Communicator) {
        self.mark_callers(|inner| inner.nccl = true);
        let Process { communicators, tables, .. } = &mut *self.process;
        communicators.insert(handle, made, tables);
    }

    /// No other process has a rank of these communicators, so any identity will do that no other has.
    fn made_all(&mut self, out: &Out) {
        let Some((handles, _)) = out.param("comm").and_then(|param| out.bytes(param)) else { return };
        let unlike = [&self.call.pid.to_le_bytes(), &self.call.id.to_le_bytes()[..], handles].concat();
        let nranks = (handles.len() / 8) as u32;
        for (rank, handle) in handles.chunks_exact(8).filter_map(|bytes| u64_at(bytes, 0)).enumerate() {
            let made =
                Communicator::new(Some(digest(&unlike)), Some(rank as u32), Some(nranks), self.call.id);
            self.made(handle, made);
        }
    }

    fn child(&mut self, parent: u64, how: Child, out: &Out) {
        let Process { communicators, tables, .. } = &mut *self.process;
        let made = match communicators.get(parent, tables) {
            Some(parent) => parent.child(how, self.call.id),
            // Its operations are counted all the same.
            None => Some(Communicator::new(None, None, None, self.call.id)),
        };
        if let (Some(made), Some(handle)) = (made, new_handle(out)) {
            self.made(handle, made);
        }
    }
}

/// The handle that the call wrote: 0 if the program gets it later.
fn new_handle(out: &Out) -> Option<u64> {
    out.number(out.param("newcomm").or_else(|| out.param("comm"))?)
}

/// The identity that a unique id gives to a communicator.
fn unique(id: Option<Vec<u8>>) -> Option<u64> {
    id?.get(..UNIQUE_ID).map(digest)
}

/// The name of a constant, as in `float32` for ncclFloat32; the number if it has none.
fn constant(of: &str, code: u64) -> Option<String> {
    let code = code as i32;
    let known = names::constants(of).iter().find(|constant| constant.code == code);
    Some(match known.and_then(|constant| constant.name.strip_prefix("nccl")) {
        Some(name) => name.to_ascii_lowercase(),
        None => code.to_string(),
    })
}

/// The size of an element: the first number in the type's name is its bits.
fn bytes_of(dtype: &str) -> Option<u64> {
    let digits = dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let bits: u64 = digits.get(..end)?.parse().ok()?;
    // A type without a name is its number.
    (end < dtype.len()).then_some(bits / 8)
}
