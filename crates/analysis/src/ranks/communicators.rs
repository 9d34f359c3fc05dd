//! What a call of NCCL says of communicators. In: its arguments. Out: the communicator that it makes, with this rank; the
//! collective that it is. Not here: what has become of it.

use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::Nccl;
use gpurec_trace::{CallBegin, Value};

use super::names::{OTHERS, OwnNames};
use super::process::{Member, Stands};

/// A call that makes a communicator, whose end has not come.
pub struct Making {
    pub pid: u32,
    pub at_ns: u64,
    pub member: Member,
}

/// Of a call that makes a communicator by its unique id, as all ranks of it do.
pub fn making(begin: &CallBegin, names: &mut OwnNames) -> Option<Member> {
    if !matches!(FunctionTraits::of(begin.name).nccl(), Some(Nccl::Init)) {
        return None;
    }
    let number = |name: &str| match begin.arg(name)? {
        Value::Number(number) => u32::try_from(number).ok(),
        _ => None,
    };
    let Some(Value::Text(id)) = begin.arg("commId").or_else(|| begin.arg("commIds")) else { return None };
    let rank = number("rank").or_else(|| number("myrank"))?;
    let member = Member { comm: names.number(&id), rank, nranks: number("nranks") };
    (member.comm != OTHERS).then_some(member)
}

pub fn collective(begin: &CallBegin, names: &mut OwnNames) -> Option<Stands> {
    let Some(Nccl::Collective(op)) = FunctionTraits::of(begin.name).nccl() else { return None };
    let comm = begin.arg("comm").and_then(hex)?;
    let CallBegin { event_id: call, pid, ts_ns, stack, .. } = *begin;
    Some(Stands { call, pid, comm, op: names.number(op), ts_ns, stack })
}

pub fn hex(value: Value) -> Option<u64> {
    match value {
        Value::Hex(number) => Some(number),
        _ => None,
    }
}
