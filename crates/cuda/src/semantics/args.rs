//! A call's arguments by index, as far as they were captured.

use crate::Signature;
use crate::decoded::block;
use crate::raw::{Entry, Exit, Piece, Place};
use gpurec_trace::bytes::little_endian;

/// The arguments at a call's entry.
#[derive(Clone, Copy)]
pub struct In<'a> {
    pub signature: Option<&'a Signature>,
    pub entry: &'a Entry<'a>,
}

/// The arguments at its return.
#[derive(Clone, Copy)]
pub struct Out<'a> {
    pub signature: Option<&'a Signature>,
    pub exit: &'a Exit<'a>,
}

impl<'a> In<'a> {
    /// The integer value of a parameter. Without a signature only the registers are available.
    pub fn value(&self, param: usize) -> Option<u64> {
        match self.signature {
            Some(signature) => signature.value(self.entry, param),
            None => self.entry.registers.get(param).copied(),
        }
    }

    /// The integer value of the parameter with this name.
    pub fn named(&self, name: &str) -> Option<u64> {
        let signature = self.signature?;
        signature.value(self.entry, signature.param(name)?)
    }

    /// The bytes of a structure, by the name of the parameter that holds it or points to it.
    pub fn structure_named(&self, name: &str) -> Option<Vec<u8>> {
        let signature = self.signature?;
        let param = signature.param(name)?;
        match signature.params.get(param)?.place {
            Place::Block { word, bytes } => block(self.entry, word, bytes),
            _ => self.structure(param).map(<[u8]>::to_vec),
        }
    }

    pub fn bytes(&self, param: usize) -> Option<(&'a [u8], bool)> {
        match self.signature?.read_in(self.entry, param)? {
            Piece::Bytes { bytes, cut } => Some((bytes, cut)),
            Piece::Null | Piece::Unreadable => None,
        }
    }

    /// The structure that parameter `param` points to.
    pub fn structure(&self, param: usize) -> Option<&'a [u8]> {
        self.bytes(param).map(|(bytes, _)| bytes)
    }

    /// The call's stream, if its signature has a stream parameter.
    pub fn stream(&self) -> Option<u64> {
        let signature = self.signature?;
        let param = signature.param("hStream").or_else(|| signature.param("stream"))?;
        self.value(param)
    }

    /// A word of a structure passed by value, which only x86-64 puts on the stack.
    pub fn stack(&self, word: usize) -> Option<u64> {
        self.entry.stack.get(word).copied().filter(|_| cfg!(target_arch = "x86_64"))
    }
}

impl<'a> Out<'a> {
    pub fn bytes(&self, param: usize) -> Option<(&'a [u8], bool)> {
        match self.signature?.read_out(self.exit, param)? {
            Piece::Bytes { bytes, cut } => Some((bytes, cut)),
            Piece::Null | Piece::Unreadable => None,
        }
    }

    /// The index of a parameter.
    pub fn param(&self, name: &str) -> Option<usize> {
        self.signature?.param(name)
    }

    /// A pointer, handle or number that the call wrote.
    pub fn number(&self, param: usize) -> Option<u64> {
        let (bytes, _) = self.bytes(param)?;
        (!bytes.is_empty()).then(|| little_endian(bytes))
    }
}
