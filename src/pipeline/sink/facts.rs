//! Facts about a probe, looked up when its library is hooked. In: the probe. Out: what its calls' lines need.

use super::gpu;
use super::tap::Tapped;
use crate::probe::{Beneath, Probe};
use gpurec_analysis::Summary;
use gpurec_cuda::semantics::Role;
use gpurec_cuda::{self as cuda, Api, FunctionTraits, Returns, Signature};
use gpurec_trace::Retval;

pub(super) struct Facts {
    pub(super) name: String,
    api: Api,
    pub(super) traits: FunctionTraits,
    pub(super) signature: Option<&'static Signature>,
    pub(super) role: Option<Role>,
    /// Its calls submit work to the GPU. True: a kernel or a graph.
    pub(super) launches: Option<bool>,
    /// What the tap reads of its calls.
    pub(super) tapped: Option<Tapped>,
    /// Set for probes in Linux and nvidia.ko (ioctl, irq, ...), beneath the calls.
    pub(super) beneath: Option<Beneath>,
    /// The summary reads the arguments of its calls.
    pub(super) has_args_read: bool,
}

impl Facts {
    pub(super) fn of(probe: &Probe) -> Facts {
        let traits = FunctionTraits::of(&probe.name);
        Facts {
            name: probe.name.clone(),
            api: cuda::api(&probe.name),
            signature: probe.signature,
            role: Role::of(&probe.name).filter(|_| probe.beneath.is_none()),
            launches: gpu::launches(&traits),
            tapped: Tapped::of(&probe.name),
            beneath: probe.beneath.clone(),
            has_args_read: Summary::reads_args(&traits),
            traits,
        }
    }

    pub(super) fn none() -> Facts {
        Facts {
            name: String::new(),
            api: Api::Other,
            traits: FunctionTraits::of(""),
            signature: None,
            role: None,
            launches: None,
            tapped: None,
            beneath: None,
            has_args_read: false,
        }
    }

    pub(super) fn beneath(&self) -> Option<(&Beneath, &str)> {
        Some((self.beneath.as_ref()?, &self.name))
    }

    pub(super) fn retval(&self, value: u64) -> Option<Retval> {
        match self.traits.returns {
            Returns::Status => Some(Retval::Number((value as i32).into())),
            Returns::Void => None,
            Returns::Pointer | Returns::Other => Some(Retval::Pointer(value)),
        }
    }

    pub(super) fn error(&self, retval: Option<Retval>) -> Option<std::borrow::Cow<'static, str>> {
        let Some(Retval::Number(code)) = retval else { return None };
        let code = i32::try_from(code).ok()?;
        if !self.traits.is_failure(code) {
            return None;
        }
        Some(cuda::error_name(self.api, code).map_or_else(|| format!("error {code}").into(), Into::into))
    }
}
