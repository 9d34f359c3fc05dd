//! What BPF knows for stacks. In: layouts of Python interpreters, where a process has its interpreter, and rules for
//! unwinding. Out: entries in BPF's tables. Not here: how an interpreter is found (files, stacks).

use std::cell::RefCell;

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::objects::Base;
use crate::stacks::native::{FrameBase, Shortcut};
use crate::stacks::python::{Interpreter, Layout, NONE, release};
use crate::wire;

/// The first version whose code objects have a serial number.
const WITH_SERIAL: (u8, u8) = (3, 12);
/// Bytes of a frame, and of a code object, that BPF reads at once.
const RAW: u32 = 128;

pub struct Pythons {
    layouts: MapHandle,
    at: MapHandle,
    known: RefCell<Vec<Layout>>,
}

impl Pythons {
    pub fn new(base: &Base) -> Result<Pythons> {
        Ok(Pythons {
            layouts: base.handle("pythons")?,
            at: base.handle("python_at")?,
            known: RefCell::default(),
        })
    }

    /// The interpreter as BPF finds it again in another process; the value for a file without one if BPF's table is
    /// full.
    pub fn seen(&self, interpreter: &Interpreter) -> wire::Seen {
        let from_code = interpreter.runtime.wrapping_sub(interpreter.segment);
        wire::Seen { from_code, layout: self.number(&interpreter.layout).unwrap_or(0), no_hooks: 0 }
    }

    /// The process has mapped the interpreter's executable segment at `segment`.
    pub fn set(&self, pid: u32, segment: u64, seen: &wire::Seen) {
        if seen.layout > 0 {
            let key = pid.to_ne_bytes();
            let before = self.at.lookup(&key, MapFlags::ANY).ok().flatten();
            let before = before.and_then(|bytes| wire::read::<wire::PythonAt>(&bytes)).unwrap_or_default();
            let runtime = segment.wrapping_add(seen.from_code);
            let at = wire::PythonAt { runtime, layout: seen.layout, ..before };
            // Without room the process has no Python frames, as a process without an interpreter.
            let _ = self.at.update(&key, wire::bytes(&at), MapFlags::ANY);
        }
    }

    /// 1 + the index of a layout in BPF's table.
    fn number(&self, layout: &Layout) -> Option<u32> {
        let mut known = self.known.borrow_mut();
        if let Some(at) = known.iter().position(|one| one == layout) {
            return Some(at as u32 + 1);
        }
        let index = known.len() as u32;
        let value = as_bpf_reads(layout)?;
        if index >= wire::PYTHONS {
            return None;
        }
        self.layouts.update(&index.to_ne_bytes(), wire::bytes(&value), MapFlags::ANY).ok()?;
        known.push(*layout);
        Some(index + 1)
    }
}

/// BPF's table of rules for unwinding.
pub struct RuleTable(MapHandle);

impl RuleTable {
    pub fn new(base: &Base) -> Result<RuleTable> {
        Ok(RuleTable(base.handle("rules")?))
    }

    /// `seed` tells the process and its mappings from others.
    pub fn learn(&self, seed: u64, address: u64, rule: Shortcut) {
        let (kind, frame, bp) = match rule {
            Shortcut::Stop => (wire::RULE_STOP, 0, None),
            Shortcut::End => (wire::RULE_END, 0, None),
            Shortcut::Frame { base, offset, bp } => {
                let kind = match base {
                    FrameBase::Sp => wire::RULE_SP,
                    FrameBase::Bp => wire::RULE_BP,
                    FrameBase::AtBp => wire::RULE_AT_BP,
                };
                (kind, offset, bp)
            }
        };
        let rule = wire::Rule { kind, frame, bp: bp.unwrap_or(0), saves_bp: bp.is_some().into() };
        // Without room the stack is copied again.
        let _ = self.0.update(&rule_key(seed, address).to_ne_bytes(), wire::bytes(&rule), MapFlags::ANY);
    }
}

/// As bpf/stacks.h has it.
fn rule_key(seed: u64, address: u64) -> u64 {
    let hash = (seed ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// None if a frame's fields lie farther apart than BPF reads.
fn as_bpf_reads(of: &Layout) -> Option<wire::Python> {
    let end = |at: u32, size: u32| if at == NONE { 0 } else { at.saturating_add(size) };
    let frame_size = [
        end(of.frame_code, 8),
        end(of.frame_previous, 8),
        end(of.frame_instruction, 8),
        end(of.frame_owner, 1),
        end(of.frame_entry, 1),
    ];
    let frame_size = frame_size.into_iter().max()?.next_multiple_of(8);
    let fields = [of.code_filename, of.code_name, of.code_linetable, of.code_firstlineno];
    let code_from = fields.into_iter().min()? & !7;
    let code_size = end(fields.into_iter().max()?, 8).next_multiple_of(8).checked_sub(code_from)?;
    let thread_from = of.thread_id.min(of.thread_frame) & !7;
    let thread_size = (of.thread_id.max(of.thread_frame) + 8).next_multiple_of(8) - thread_from;
    if frame_size > RAW || code_size > RAW {
        return None;
    }
    Some(wire::Python {
        version: of.version,
        interpreters_head: of.interpreters_head,
        interpreter_next: of.interpreter_next,
        threads_head: of.threads_head,
        thread_next: of.thread_next,
        thread_id: of.thread_id,
        id_is_pthread: of.id_is_pthread,
        thread_frame: of.thread_frame,
        thread_from,
        thread_size: if thread_size <= RAW { thread_size } else { 0 },
        cframe_frame: of.cframe_frame,
        frame_size,
        frame_code: of.frame_code,
        frame_previous: of.frame_previous,
        frame_instruction: of.frame_instruction,
        frame_owner: of.frame_owner,
        frame_entry: of.frame_entry,
        thread_base_frame: of.thread_base_frame,
        owner_limit: of.owner_limit,
        instruction_kind: of.instruction_kind,
        code_mask: of.code_mask,
        code_from,
        code_size,
        check_texts: (release(of.version) < WITH_SERIAL).into(),
        code_filename: of.code_filename,
        code_name: of.code_name,
        code_firstlineno: of.code_firstlineno,
        code_linetable: of.code_linetable,
        code_adaptive: of.code_adaptive,
        code_first_traceable: of.first_traceable,
        unicode_length: of.unicode_length,
        unicode_state: of.unicode_state,
        ascii_data: of.ascii_data,
        unicode_data: of.unicode_data,
        bytes_size: of.bytes_size,
        bytes_data: of.bytes_data,
    })
}
