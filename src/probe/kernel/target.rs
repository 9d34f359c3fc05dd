//! A function to hook: its location, its backends, and the meaning of its arguments. Pure.

use std::borrow::Cow;

use super::backends::{Backend, Ladder};
use crate::host::btf::{Proto, Type};
use gpurec_nvidia::hooks::{Hook, Read, Returns};
use gpurec_trace::{Arg, Args, List, Value};

#[derive(Clone, Debug)]
pub struct Target {
    /// The name that the user or the table gave.
    pub name: String,
    pub symbol: String,
    /// None: a function of vmlinux, or no function was found and only a tracepoint reports the event.
    pub module: Option<String>,
    /// The only way to distinguish functions of the same name.
    pub address: Option<u64>,
    pub backends: Ladder,
    pub hook: Option<Hook>,
    pub proto: Option<Proto>,
    /// The user named it.
    pub asked: bool,
    /// The compiler left its arguments where the source has them.
    pub arguments: bool,
    /// A remark for the user, such as that it is only a part of the function.
    pub note: Option<String>,
}

impl Target {
    /// The backends to try, best first.
    pub fn usable(&self) -> impl Iterator<Item = Backend> {
        self.backends.iter().filter(|(_, against)| against.is_none()).map(|(backend, _)| *backend)
    }

    /// Its row of the hook table, if the arguments are where the row has them.
    fn known(&self) -> Option<&Hook> {
        self.hook.as_ref().filter(|_| self.arguments)
    }

    /// The reads at entry.
    pub fn entry(&self) -> &[Read] {
        self.known().map_or(&[], Hook::entry)
    }

    /// The reads at return.
    pub fn exit(&self) -> &[Read] {
        self.known().map_or(&[], Hook::exit)
    }

    /// Named by the hook table, else by the type information; plain registers if neither knows the function and the
    /// user named it.
    pub fn args(&self, registers: &[u64; 6], pieces: &[Option<&[u8]>]) -> Args<'static> {
        let named = |list| Args::Named(List::Owned(list));
        if !self.arguments {
            return named(Vec::new());
        }
        match (&self.hook, &self.proto) {
            (Some(hook), _) if hook.has_args() => named(hook.args(registers, pieces)),
            (_, Some(proto)) if self.asked => named(by_type(proto, registers)),
            (None, None) => Args::raw(registers),
            _ => named(Vec::new()),
        }
    }

    pub fn out(&self, pieces: &[Option<&[u8]>]) -> Vec<Arg<'static>> {
        self.known().map_or_else(Vec::new, |hook| hook.out(pieces))
    }

    pub fn returns(&self) -> Returns {
        match (&self.hook, &self.proto) {
            (Some(hook), _) => hook.returns,
            (None, Some(proto)) => match proto.returns {
                Type::Void => Returns::Void,
                Type::Bool => Returns::Bool,
                // An int of a Linux function is most often an errno. A wider one is shown as a number.
                Type::Signed(8..) => Returns::Number,
                Type::Signed(_) => Returns::Errno,
                Type::Pointer => Returns::Pointer,
                Type::Unsigned(_) | Type::Struct(_) | Type::Other => Returns::Number,
            },
            (None, None) => Returns::Pointer,
        }
    }
}

fn by_type(proto: &Proto, registers: &[u64; 6]) -> Vec<Arg<'static>> {
    let places = proto.registers();
    let args = places.into_iter().filter_map(|(param, register)| {
        let value = typed(param.kind, *registers.get(usize::from(register))?);
        Some(Arg { name: Cow::Owned(param.name.clone()), value })
    });
    args.collect()
}

/// Only the low bytes of a register belong to a short number.
fn typed(kind: Type, register: u64) -> Value<'static> {
    let shift = |size: u32| 64 - 8 * size.clamp(1, 8);
    match kind {
        Type::Bool => Value::Bool(register & 0xff != 0),
        Type::Unsigned(size) => Value::Number(register << shift(size) >> shift(size)),
        Type::Signed(size) => match (register << shift(size)) as i64 >> shift(size) {
            negative @ ..0 => Value::Signed(negative),
            number => Value::Number(number as u64),
        },
        Type::Void | Type::Pointer | Type::Struct(_) | Type::Other => Value::Hex(register),
    }
}
