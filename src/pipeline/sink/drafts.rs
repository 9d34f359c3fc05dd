//! The lines of calls before they are lines: what the worker found out in order, to be decoded and formatted by any thread.
//! In: fields and captured bytes. Out: the body of each line. Pure.

use super::facts::Facts;
use crate::pipeline::call_parts;
use crate::pipeline::decode::Payload;
use gpurec_cuda::raw::Entry;
use gpurec_trace::{Args, Begin, Body, End, EndKind, Launch, List, Retval};

/// The trace's reason for a call on another stack than its thread's open call (bpf/stack.h).
const ELSEWHERE: &str = "it was made on another stack than an open call of its thread";

/// A call that begins.
#[derive(Clone, Copy)]
pub(super) struct BeginDraft {
    pub(super) probe: u32,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) depth: u32,
    pub(super) parent: Option<u64>,
    pub(super) args: [u64; 6],
    pub(super) stack: Option<u64>,
    pub(super) is_elsewhere: bool,
}

/// A call that ended.
#[derive(Clone, Copy)]
pub(super) struct EndDraft {
    pub(super) probe: u32,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) begin: u64,
    pub(super) duration_ns: Option<u64>,
    pub(super) paused_ns: u64,
    pub(super) retval: Option<Retval>,
    pub(super) ended: EndKind,
}

fn name(facts: Option<&Facts>) -> &str {
    facts.map_or("?", |facts| facts.name.as_str())
}

impl BeginDraft {
    /// Passes the line's body to `each`. `with_args`: false if nothing reads them.
    pub(super) fn with<R>(
        &self,
        facts: Option<&Facts>,
        payload: Payload,
        launch: Option<Launch>,
        with_args: bool,
        each: impl FnOnce(Body) -> R,
    ) -> R {
        if !with_args {
            return each(self.body(facts, Args::default(), launch));
        }
        call_parts::with_entry(payload, self.args, |entry| self.with_entry(facts, entry, launch, each))
    }

    pub(super) fn with_entry<R>(
        &self,
        facts: Option<&Facts>,
        entry: &Entry,
        launch: Option<Launch>,
        each: impl FnOnce(Body) -> R,
    ) -> R {
        let mut list = Vec::new();
        let args = match facts.and_then(|facts| facts.signature) {
            Some(signature) => {
                signature.args(entry, &mut list);
                Args::Named(List::Borrowed(&list))
            }
            None => Args::raw(&self.args),
        };
        each(self.body(facts, args, launch))
    }

    fn body<'a>(&self, facts: Option<&'a Facts>, args: Args<'a>, launch: Option<Launch<'a>>) -> Body<'a> {
        Body::Begin(Begin {
            name: name(facts).into(),
            pid: self.pid,
            tid: self.tid,
            depth: self.depth,
            parent: self.parent,
            args,
            launch,
            stack: self.stack,
            no_return: self.is_elsewhere.then_some(ELSEWHERE.into()),
            carried: false,
        })
    }
}

impl EndDraft {
    /// Passes the line's body to `each`. `pieces`: memory read at the return. `late`: arguments that could not be read
    /// when the call began.
    pub(super) fn with<R>(
        &self,
        facts: Option<&Facts>,
        pieces: &[u8],
        late: Option<Args>,
        each: impl FnOnce(Body) -> R,
    ) -> R {
        let signature = facts.and_then(|facts| facts.signature);
        let Some(signature) = signature.filter(|_| !pieces.is_empty()) else {
            return each(self.body(facts, None, late));
        };
        call_parts::with_exit(pieces, |exit| {
            let mut list = Vec::new();
            signature.out(exit, &mut list);
            let out = (!list.is_empty()).then(|| Args::Named(List::Borrowed(&list)));
            each(self.body(facts, out, late))
        })
    }

    fn body<'a>(&self, facts: Option<&'a Facts>, out: Option<Args<'a>>, late: Option<Args<'a>>) -> Body<'a> {
        Body::End(End {
            name: name(facts).into(),
            pid: self.pid,
            tid: self.tid,
            begin: self.begin,
            duration_ns: self.duration_ns,
            paused_ns: self.paused_ns,
            retval: self.retval,
            error: facts.and_then(|facts| facts.error(self.retval)),
            out,
            late,
            ended: self.ended,
        })
    }
}
