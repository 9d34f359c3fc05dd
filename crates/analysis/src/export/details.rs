//! The content of a line beyond its time, name and place, as a JSON object with the keys of the trace. Chrome's format
//! has it as `args`; Perfetto's annotations are made from it. In: a line. Out: text. It keeps no state between lines.

use super::object::Object;
use gpurec_trace::{
    Begin, Body, Budget, End, Ended, Finish, Header, Instant, KernelBegin, KernelEnd, Launch, Line, Memory,
    Op, Process, Retval, Transfer, Where, json,
};

/// Returns true if the object is empty.
pub fn write(out: &mut Vec<u8>, line: &Line) -> bool {
    let mut object = Object::new(out);
    match &line.body {
        Body::End(end) => call_end(&mut object, end),
        Body::KernelEnd(end) => driver_end(&mut object, end),
        body => {
            object.number("event_id", line.event_id);
            rest(&mut object, body);
        }
    }
    object.end()
}

fn rest(object: &mut Object, body: &Body) {
    match body {
        Body::Begin(begin) => call(object, begin),
        Body::KernelBegin(begin) => driver(object, begin),
        Body::Instant(instant) => self::instant(object, instant),
        Body::Memory(memory) => self::memory(object, memory),
        Body::Transfer(transfer) => self::transfer(object, transfer),
        Body::Xid(xid) => {
            object.number("xid", xid.xid.into());
            object.text("message", &xid.message);
            object.text("device", &xid.device);
            place(object, xid.pid, xid.tid);
        }
        Body::Lost(lost) => {
            object.number("count", lost.count);
            object.other("by_probe", &lost.by_probe);
        }
        Body::Budget(line) => budget(object, line),
        Body::Suspend(suspend) => object.number("slept_ns", suspend.slept_ns),
        Body::Process(process) => self::process(object, process),
        Body::Header(header) => self::header(object, header),
        Body::Finish(finish) => self::finish(object, finish),
        Body::End(_) | Body::KernelEnd(_) | Body::Unknown(_) => {}
    }
}

fn place(object: &mut Object, pid: u32, tid: u32) {
    object.number("pid", pid.into());
    object.number("tid", tid.into());
}

fn budget(object: &mut Object, line: &Budget) {
    object.other("action", &line.action);
    object.text("function", &line.function);
    object.other("level", &line.level);
    object.other("before", &line.before);
    object.number("counted", line.counted);
    if let Some(why) = &line.why {
        object.other("percent", &why.percent);
        object.number("hits_per_sec", why.hits_per_sec);
        place(object, why.pid, why.tid);
    }
}

fn call(object: &mut Object, begin: &Begin) {
    object.args("args", &begin.args);
    if let Some(launch) = &begin.launch {
        self::launch(object, launch);
    }
}

fn launch(object: &mut Object, launch: &Launch) {
    object.maybe_text("kernel", launch.kernel.as_deref());
    object.triple("grid", launch.grid);
    object.triple("block", launch.block);
    object.maybe("shared", launch.shared);
    if let Some(stream) = launch.stream {
        object.hex("stream", stream);
    }
    object.triple("cluster", launch.cluster);
    object.flag("cooperative", launch.cooperative);
    object.maybe("nodes", launch.nodes);
    on(object, launch.on);
}

fn on(object: &mut Object, on: Where) {
    object.maybe("device", on.device.map(u64::from));
    if let Some(context) = on.context {
        object.hex("context", context);
    }
}

fn call_end(object: &mut Object, end: &End) {
    retval(object, end.retval);
    object.maybe_text("error", end.error.as_deref());
    if let Some(out) = &end.out {
        object.args("out", out);
    }
    ended(object, end.ended);
}

fn driver(object: &mut Object, begin: &KernelBegin) {
    if let Some(ioctl) = &begin.ioctl {
        object.text("device", &ioctl.device);
        object.hex("cmd", ioctl.cmd);
        object.text("request", &ioctl.request);
        object.args("detail", &ioctl.detail);
        object.flag("unknown", ioctl.unknown);
    }
    if let Some(args) = &begin.args {
        object.args("args", args);
    }
}

fn driver_end(object: &mut Object, end: &KernelEnd) {
    retval(object, end.retval);
    object.maybe_text("status", end.status.as_deref());
    object.maybe_text("error", end.error.as_deref());
    if let Some(out) = &end.out {
        object.args("out", out);
    }
    ended(object, end.ended);
}

fn retval(object: &mut Object, retval: Option<Retval>) {
    match retval {
        Some(Retval::Number(n)) => json::signed(object.key("retval"), n),
        Some(Retval::Pointer(p)) => object.hex("retval", p),
        None => {}
    }
}

fn ended(object: &mut Object, ended: Ended) {
    object.flag("unwound", ended == Ended::Unwound);
    object.flag("lost", ended == Ended::Lost);
    object.flag("no_return", ended == Ended::NotWatched);
}

fn instant(object: &mut Object, instant: &Instant) {
    place(object, instant.pid, instant.tid);
    object.maybe("parent", instant.parent);
    object.maybe("cpu", instant.cpu.map(u64::from));
    if let Some(args) = &instant.args {
        object.args("args", args);
    }
}

fn memory(object: &mut Object, memory: &Memory) {
    object.number("begin", memory.begin);
    on(object, memory.on);
    object.text("function", &memory.name);
    object.text("space", &memory.space);
    object.hex("ptr", memory.ptr);
    object.maybe(if memory.op == Op::Alloc { "size" } else { "freed" }, memory.size);
    if let Some(total) = memory.total_allocated {
        object.number("total_allocated", total);
    }
    object.flag("missed", memory.missed);
    object.flag("runtime", memory.runtime);
}

fn transfer(object: &mut Object, transfer: &Transfer) {
    object.number("begin", transfer.begin);
    on(object, transfer.on);
    object.text("function", &transfer.name);
    object.number("size", transfer.size);
    object.key("async").extend_from_slice(if transfer.is_async { b"true" } else { b"false" });
    object.flag("partial", transfer.partial);
    object.flag("pageable", transfer.pageable);
    object.maybe("bytes_per_sec", transfer.bytes_per_sec());
}

fn process(object: &mut Object, process: &Process) {
    match process {
        Process::Exec(exec) => {
            place(object, exec.pid, exec.tid);
            object.other("command", &exec.command);
            object.maybe("rank", exec.rank.map(u64::from));
        }
        Process::Found(found) => {
            place(object, found.pid, found.tid);
            object.text("comm", &found.comm);
            object.other("command", &found.command);
            object.maybe_text("user", found.user.as_deref());
            object.maybe_text("cgroup", found.cgroup.as_deref());
            object.maybe_text("container", found.container.as_deref());
            object.maybe("rank", found.rank.map(u64::from));
        }
        Process::Fork(fork) => {
            place(object, fork.pid, fork.tid);
            object.number("child", fork.child.into());
        }
        Process::Exit(exit) => {
            place(object, exit.pid, exit.tid);
            object.other("ended", &exit.status);
        }
        Process::Library(library) => {
            place(object, library.pid, library.tid);
            object.text("path", &library.path);
            object.maybe_text("build_id", library.build_id.as_deref());
            object.number("functions", library.functions);
            object.other("not_hooked", &library.not_hooked);
        }
    }
}

fn header(object: &mut Object, header: &Header) {
    object.text("version", &header.version);
    object.text("start", &header.start);
    object.text("host", &header.host);
    object.text("kernel", &header.kernel);
    object.maybe_text("driver", header.driver.as_deref());
    object.text("user", &header.user);
    if let Some(command) = &header.command {
        object.other("command", command);
    }
}

fn finish(object: &mut Object, finish: &Finish) {
    object.number("events", finish.events);
    object.number("lost", finish.lost);
    object.number("in_flight", finish.in_flight.len() as u64);
    object.other("complete", &finish.complete);
    if !finish.incomplete_because.is_empty() {
        object.other("incomplete_because", &finish.incomplete_because);
    }
}
