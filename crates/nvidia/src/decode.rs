//! Decodes an ioctl from its numbers and bytes to names.
//!
//! In: what BPF read when an ioctl began and when it ended. Out: the request, its fields and the result, all by name;
//! and the effect on the objects that later ioctls refer to. Nothing that was read is trusted.

use std::borrow::Cow;
use std::sync::Arc;

use super::fields::{Args, NameTables, View, append, append_class, hex};
use super::handles::{self, Handles};
use super::layouts::{Kind, Layouts, MAX_ENTRY, Row, coded_entry, nr};
use super::names::{Names, class_value};
use super::version::Version;
use super::{Device, Family, Ioctl, IoctlBegin, IoctlEnd};
use gpurec_trace::{Arg, Value};

/// Turns ioctls into names. One decoder serves the whole machine, because RM's client handles are unique on it.
pub struct Decoder {
    layouts: Layouts,
    names: Arc<Names>,
    handles: Handles,
}

/// What the end of an ioctl needs from its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingIoctl {
    row: Option<&'static Row>,
    /// The function of NV_ESC_RM_VID_HEAP_CONTROL.
    function: Option<&'static Row>,
    /// Whether the offset of BPF's status word is that of this layout.
    status_is_read: bool,
    effect: Effect,
}

/// The effect on the objects if the ioctl succeeds.
#[derive(Clone, Copy, Debug, Default)]
enum Effect {
    #[default]
    None,
    /// `object` is 0 if RM chooses the handle.
    Add {
        client: u32,
        parent: u32,
        object: u32,
        class: Option<u32>,
    },
    Remove {
        client: u32,
        object: u32,
    },
}

/// Statuses from here on are warnings: the request succeeded.
const FIRST_WARNING: u32 = 0x1_0000;
const CLIENT_CLASSES: [u32; 3] = [0x00, 0x01, 0x41];
const HEAP_FREE: u32 = 3;
/// The offset at which RM writes the handle it chose, in every request that makes an object.
const NEW_OBJECT: u16 = 8;

/// A decoding in progress.
struct Draft {
    detail: Args,
    unknown: bool,
    pending: PendingIoctl,
    /// Every field of the request was read.
    complete: bool,
}

impl Decoder {
    pub fn new(version: Option<&str>) -> Decoder {
        Decoder {
            layouts: Layouts::of(version),
            names: Names::of(Version::of(version)),
            handles: Handles::new(handles::LIMIT),
        }
    }

    /// NV_OK, NV_ERR_…; a status without a name is shown as its number.
    pub fn status_name(&self, number: u32) -> Cow<'static, str> {
        self.names.status(number)
    }

    /// The number of objects that were forgotten because too many existed at a time.
    pub fn forgotten(&self) -> u64 {
        self.handles.forgotten()
    }

    #[cfg(test)]
    pub fn objects(&self) -> usize {
        self.handles.len()
    }

    /// An ioctl began.
    pub fn begin(&mut self, ioctl: &Ioctl) -> IoctlBegin {
        match ioctl.device {
            device if device.is_modeset() => modeset(ioctl),
            Device { family: Family::Nvidia, .. } => self.escape(ioctl),
            Device { family: Family::Uvm, .. } => self.uvm(ioctl),
            _ => nameless(ioctl, ioctl.cmd),
        }
    }

    /// An ioctl ended: `returned` is the system call's result, `payload` and `status` are as read then.
    pub fn end(
        &mut self,
        pending: &PendingIoctl,
        returned: i64,
        payload: Option<&[u8]>,
        status: Option<u32>,
    ) -> IoctlEnd {
        let Some(row) = pending.row.filter(|_| returned >= 0) else {
            // A system call that failed wrote no result: the memory still holds the caller's data.
            return IoctlEnd { status: None, out: Args::new() };
        };
        let view = View::of(payload.unwrap_or_default());
        let status =
            row.status.and_then(|at| status.filter(|_| pending.status_is_read).or_else(|| view.word(at)));
        let mut out = Args::new();
        let succeeded = status.map(|s| s == 0 || s >= FIRST_WARNING);
        self.apply(pending.effect, succeeded, view, &mut out);
        if succeeded.unwrap_or(row.status.is_none()) {
            for row in pending.row.into_iter().chain(pending.function) {
                append(&mut out, row, row.outputs(), view, self.known());
            }
        }
        IoctlEnd { status: status.map(|s| self.names.status(s)), out }
    }

    /// Adds an object only if the allocation certainly succeeded; removes one unless the free certainly failed.
    fn apply(&mut self, effect: Effect, succeeded: Option<bool>, view: View, out: &mut Args) {
        match effect {
            Effect::Add { client, parent, object, class } if succeeded == Some(true) => {
                let chosen = if object == 0 { view.word(NEW_OBJECT).unwrap_or(0) } else { object };
                if chosen == 0 {
                    return;
                }
                if object == 0 {
                    out.push(Arg::new("object", hex(chosen)));
                }
                match class.filter(|class| CLIENT_CLASSES.contains(class)) {
                    Some(class) => self.handles.add_client(chosen, class),
                    None => self.handles.add(client, parent, chosen, class),
                }
            }
            Effect::Remove { client, object } if succeeded != Some(false) => {
                self.handles.remove(client, object)
            }
            _ => {}
        }
    }

    fn known(&self) -> NameTables<'_> {
        NameTables { names: &self.names, handles: &self.handles }
    }

    fn uvm(&self, ioctl: &Ioctl) -> IoctlBegin {
        let Some(row) = self.layouts.uvm(ioctl.cmd) else { return nameless(ioctl, ioctl.cmd) };
        let mut draft = Draft::of(ioctl, row, true);
        if let Some(payload) = ioctl.payload {
            let tail = row.tail().map(|t| (t.at, ioctl.second.unwrap_or_default()));
            draft.fields(row, View { payload, tail, size: u32::from(row.size) }, self.known());
        } else if row.inputs().next().is_some() {
            draft.flag("unreadable");
        }
        draft.finish(row.name)
    }

    fn escape(&self, ioctl: &Ioctl) -> IoctlBegin {
        let Some(row) = self.layouts.escape(ioctl.nr, ioctl.size) else { return nameless(ioctl, ioctl.nr) };
        let usual = self.layouts.escape(ioctl.nr, 0);
        let mut draft = Draft::of(ioctl, row, usual.is_some_and(|usual| usual.status == row.status));
        let payload = ioctl.payload.unwrap_or_default();
        let view = View { payload, tail: None, size: ioctl.size };
        let expected =
            ioctl.payload.is_some() || (row.inputs().next().is_none() && coded_entry(ioctl.nr) == 0);
        if !expected {
            draft.flag("unreadable");
            draft.unknown = matches!(ioctl.nr, nr::CONTROL | nr::ALLOC);
        } else if self.identity(ioctl, view, &mut draft).is_none() {
            draft.complete = false;
            draft.unknown |= matches!(ioctl.nr, nr::CONTROL | nr::ALLOC) && view.word(12).is_none();
        } else {
            draft.fields(row, view, self.known());
            self.more(ioctl, row, view, &mut draft);
        }
        let counted = row.fields.iter().any(|f| matches!(f.kind, Kind::Count(_)));
        if row.size != 0 && ioctl.size != u32::from(row.size) && !counted {
            draft.detail.push(Arg::new("unexpected_size", Value::Number(u64::from(ioctl.size))));
        }
        draft.finish(row.name)
    }

    /// The client, the object and the class of an escape. `None` if some of them were not read.
    fn identity(&self, ioctl: &Ioctl, view: View, draft: &mut Draft) -> Option<()> {
        match ioctl.nr {
            nr::CONTROL => self.control(view, draft),
            nr::ALLOC | nr::ALLOC_MEMORY | nr::ALLOC_OBJECT => self.alloc(view, draft),
            nr::FREE => self.free(view, draft),
            nr::DUP_OBJECT => self.duplicate(view, draft),
            _ => Some(()),
        }
    }

    fn control(&self, view: View, draft: &mut Draft) -> Option<()> {
        let (client, object, command) = (view.word(0)?, view.word(4)?, view.word(8)?);
        let name = self.names.command(command);
        draft.unknown = name.is_none();
        draft.push("command", name.map_or(hex(command), Value::Text));
        draft.push("client", hex(client));
        draft.push("object", hex(object));
        append_class(&mut draft.detail, "object_class", client, object, self.known());
        Some(())
    }

    fn alloc(&self, view: View, draft: &mut Draft) -> Option<()> {
        let (client, parent, object, class) = (view.word(0)?, view.word(4)?, view.word(8)?, view.word(12)?);
        let name = self.names.class(class);
        draft.unknown = name.is_none();
        draft.push("class", class_value(name, class));
        draft.push("client", hex(client));
        draft.push("parent", hex(parent));
        draft.push_object(object);
        append_class(&mut draft.detail, "parent_class", client, parent, self.known());
        draft.pending.effect = Effect::Add { client, parent, object, class: Some(class) };
        Some(())
    }

    fn free(&self, view: View, draft: &mut Draft) -> Option<()> {
        let (client, parent, object) = (view.word(0)?, view.word(4)?, view.word(8)?);
        draft.push("client", hex(client));
        draft.push("parent", hex(parent));
        draft.push("object", hex(object));
        append_class(&mut draft.detail, "class", client, object, self.known());
        draft.pending.effect = Effect::Remove { client, object };
        Some(())
    }

    fn duplicate(&self, view: View, draft: &mut Draft) -> Option<()> {
        let (client, parent, object) = (view.word(0)?, view.word(4)?, view.word(8)?);
        let (source_client, source_object) = (view.word(12)?, view.word(16)?);
        draft.push("client", hex(client));
        draft.push("parent", hex(parent));
        draft.push_object(object);
        draft.push("source_client", hex(source_client));
        draft.push("source_object", hex(source_object));
        append_class(&mut draft.detail, "class", source_client, source_object, self.known());
        append_class(&mut draft.detail, "parent_class", client, parent, self.known());
        let class = self.handles.class(source_client, source_object);
        draft.pending.effect = Effect::Add { client, parent, object, class };
        Some(())
    }

    /// The fields that depend on a class or a function.
    fn more(&self, ioctl: &Ioctl, row: &'static Row, view: View, draft: &mut Draft) {
        match ioctl.nr {
            nr::ALLOC => self.parameters(ioctl, row, view, draft),
            nr::VID_HEAP_CONTROL => self.heap(view, draft),
            _ => {}
        }
    }

    /// The parameters at RM_ALLOC's pointer, if the class has known ones.
    fn parameters(&self, ioctl: &Ioctl, row: &Row, view: View, draft: &mut Draft) {
        let class = view.word(12).and_then(|class| self.names.class(class));
        let Some(layout) = class.and_then(|c| self.layouts.alloc(c.params?)) else { return };
        let present = view.payload.get(16..24).is_some_and(|address| address.iter().any(|byte| *byte != 0));
        if !present {
            return;
        }
        let Some(second) = ioctl.second.filter(|s| !s.is_empty()) else {
            return draft.flag("params_unreadable");
        };
        // If the caller passes the size of the parameters, only that much is valid; older callers pass the whole
        // structure.
        let passed = row.fields.iter().find(|f| f.name == "params_size").and_then(|f| view.word(f.at));
        let passed = passed.filter(|n| *n != 0).unwrap_or(u32::from(layout.size));
        let fields = layout.inputs().filter(|f| u32::from(f.end()) <= passed);
        draft.complete &= append(&mut draft.detail, layout, fields, View::of(second), self.known());
    }

    fn heap(&self, view: View, draft: &mut Draft) {
        let (Some(client), Some(function)) = (view.word(0), view.word(8)) else { return };
        let Some(row) = self.layouts.heap(function) else { return };
        draft.push("function_name", Value::Text(Cow::Borrowed(row.name)));
        // The client is in front of the union; the row of a function has only its own fields.
        draft.complete &= append(&mut draft.detail, row, row.inputs(), view, self.known());
        let memory = row.fields.iter().find(|f| f.name == "memory").and_then(|f| view.word(f.at));
        if let (HEAP_FREE, Some(object)) = (function, memory) {
            append_class(&mut draft.detail, "memory_class", client, object, self.known());
            draft.pending.effect = Effect::Remove { client, object };
        }
        draft.pending.function = Some(row);
    }
}

impl Draft {
    fn of(ioctl: &Ioctl, row: &'static Row, status_is_read: bool) -> Draft {
        let mut detail = Args::with_capacity(8);
        if ioctl.wrapped {
            detail.push(Arg::new("wrapped", Value::Bool(true)));
        }
        let pending = PendingIoctl { row: Some(row), status_is_read, ..PendingIoctl::default() };
        Draft { detail, unknown: false, pending, complete: true }
    }

    fn push(&mut self, name: &'static str, value: Value<'static>) {
        self.detail.push(Arg::new(name, value));
    }

    /// Adds the handle that the caller chose; RM chooses one if it is zero.
    fn push_object(&mut self, object: u32) {
        if object != 0 {
            self.push("object", hex(object));
        }
    }

    fn flag(&mut self, name: &'static str) {
        self.push(name, Value::Bool(true));
    }

    fn fields(&mut self, row: &'static Row, view: View, known: NameTables) {
        let counts = row.fields.iter().filter(|f| matches!(f.kind, Kind::Count(_)));
        self.complete &= append(&mut self.detail, row, counts.chain(row.inputs()), view, known);
    }

    fn finish(mut self, name: &'static str) -> IoctlBegin {
        if !self.complete {
            self.flag("short");
        }
        IoctlBegin {
            request: Cow::Borrowed(name),
            unknown: self.unknown,
            detail: self.detail,
            pending: self.pending,
        }
    }
}

/// A request without a known name: its number and its size.
fn nameless(ioctl: &Ioctl, number: u32) -> IoctlBegin {
    let mut detail: Vec<Arg> = Vec::new();
    if ioctl.wrapped {
        detail.push(Arg::new("wrapped", Value::Bool(true)));
    }
    if ioctl.size != 0 && ioctl.device.family != Family::Uvm {
        detail.push(Arg::new("size", Value::Number(u64::from(ioctl.size))));
    }
    IoctlBegin {
        request: format!("{number:#x}").into(),
        unknown: true,
        detail,
        pending: PendingIoctl::default(),
    }
}

/// nvidia-modeset's one ioctl, which carries a command of its own.
fn modeset(ioctl: &Ioctl) -> IoctlBegin {
    if ioctl.nr != nr::MODESET {
        return nameless(ioctl, ioctl.cmd);
    }
    let view = View::of(ioctl.payload.unwrap_or_default());
    let detail = match (view.word(0), view.word(4)) {
        (Some(command), Some(size)) => {
            vec![
                Arg::new("command", Value::Number(command.into())),
                Arg::new("size", Value::Number(size.into())),
            ]
        }
        _ => vec![Arg::new("unreadable", Value::Bool(true))],
    };
    IoctlBegin { request: "NVKMS_IOCTL_CMD".into(), unknown: false, detail, pending: PendingIoctl::default() }
}

/// The most bytes of a payload that a caller may pass in.
const _: () = assert!(MAX_ENTRY == 256);
