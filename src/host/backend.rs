//! The backends that can hook CUDA functions: one table for the plan, the loader, the recorder and the command line. A
//! new backend is a row here and, if it makes its links in another way, a case in crate::probe::attach.

use libbpf_rs::libbpf_sys::{BPF_F_UPROBE_MULTI_RETURN, BPF_TRACE_UPROBE_MULTI, BPF_TRACE_UPROBE_SESSION};

use super::{Facts, types};
use gpurec_trace::HookError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Session,
    Multi,
    Single,
}

pub struct Row {
    pub name: &'static str,
    /// The fact that it needs, and the reason against it if that fact is known to be false.
    needs: fn(&Facts) -> Option<bool>,
    reason: HookError,
    /// With the flags of their links.
    pub programs: fn() -> &'static [(&'static str, u32)],
    /// The type of a link that hooks all functions of a file; None: each function has links of its own.
    pub bulk: Option<u32>,
    /// Milliseconds to detach a link, if Linux removes one after the other and attaches none meanwhile.
    pub detach_ms: Option<u64>,
}

/// Returns first: then an entry that is seen already has its return hooked. The return program ignores a call whose
/// entry it does not know.
const PAIR: &[(&str, u32)] = &[("cuda_return", BPF_F_UPROBE_MULTI_RETURN), ("cuda_entry", 0)];

/// Best first, in the order of `Backend`.
static TABLE: [Row; Backend::ALL.len()] = [
    // One program and one link for entries and returns (6.13+).
    Row {
        name: "uprobe.session",
        needs: |facts| facts.uprobe_session,
        reason: HookError::NoSessions,
        // Some kernels pass the context to the session helpers; BTF shows which ones.
        programs: || match types().is_some_and(|types| types.session_cookie_takes_context) {
            true => &[("cuda_session_ctx", 0)],
            false => &[("cuda_session", 0)],
        },
        bulk: Some(BPF_TRACE_UPROBE_SESSION),
        detach_ms: None,
    },
    // A link for entries and one for returns (6.6+).
    Row {
        name: "uprobe.multi",
        needs: |facts| facts.uprobe_multi,
        reason: HookError::NoMulti,
        programs: || PAIR,
        bulk: Some(BPF_TRACE_UPROBE_MULTI),
        detach_ms: None,
    },
    Row {
        name: "uprobe",
        needs: |facts| facts.is_admin,
        reason: HookError::NotAdmin,
        programs: || PAIR,
        bulk: None,
        detach_ms: Some(40),
    },
];

impl Backend {
    pub const ALL: [Backend; 3] = [Backend::Session, Backend::Multi, Backend::Single];

    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Why it cannot work on this machine.
    pub fn against(self, facts: &Facts) -> Option<HookError> {
        ((self.row().needs)(facts) == Some(false)).then(|| self.row().reason.clone())
    }

    /// It sees entry and return of a call in one session.
    pub fn has_sessions(self) -> bool {
        self.row().bulk == Some(BPF_TRACE_UPROBE_SESSION)
    }

    /// Each function has links of its own, which Linux accepts only from a process with CAP_SYS_ADMIN.
    pub fn is_single(self) -> bool {
        self.row().bulk.is_none()
    }
}
