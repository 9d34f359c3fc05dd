//! Lines of `--kernel`: random ones for the tests of every line, and hand-made ones.

use super::*;

impl Random {
    fn kind(&mut self) -> Kind {
        if self.below(2) == 0 { Kind::Kernel } else { Kind::Scheduler }
    }

    fn some<T>(&mut self, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn words(&mut self) -> Cow<'static, str> {
        Cow::Owned(self.text())
    }

    fn ioctl(&mut self) -> Ioctl<'static> {
        Ioctl {
            device: self.words(),
            cmd: self.number(),
            request: self.words(),
            detail: if self.below(3) == 0 { Args::default() } else { Args::Named(self.named(1)) },
            unknown: self.below(2) == 0,
        }
    }

    pub fn kernel_begin(&mut self) -> Body<'static> {
        Body::KernelBegin(KernelBegin {
            kind: self.kind(),
            name: self.words(),
            pid: self.number() as u32,
            tid: self.number() as u32,
            depth: self.number() as u32,
            parent: self.some(Random::number),
            ioctl: self.some(Random::ioctl),
            args: self.some(|random| Args::Named(random.named(1))),
            thread: self.some(Random::words),
            carried: self.below(4) == 0,
        })
    }

    pub fn kernel_end(&mut self) -> Body<'static> {
        Body::KernelEnd(KernelEnd {
            kind: self.kind(),
            name: self.words(),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: self.number(),
            duration_ns: self.some(|random| random.number() >> 13),
            retval: match self.below(3) {
                0 => None,
                1 => Some(Retval::Number(self.number() as i64)),
                _ => Some(Retval::Pointer(self.number())),
            },
            status: self.some(Random::words),
            error: self.some(Random::words),
            out: self.some(|random| Args::Named(random.named(1))),
            ended: match self.below(3) {
                0 => EndKind::Returned,
                1 => EndKind::Unwound,
                _ => EndKind::Lost,
            },
        })
    }

    pub fn instant(&mut self) -> Body<'static> {
        Body::Instant(Instant {
            kind: self.kind(),
            name: self.words(),
            pid: self.number() as u32,
            tid: self.number() as u32,
            depth: self.number() as u32,
            parent: self.some(Random::number),
            cpu: self.some(|random| random.number() as u32),
            duration_ns: self.some(|random| random.number() >> 13),
            args: self.some(|random| Args::Named(random.named(1))),
        })
    }
}

fn line(body: Body<'static>) -> Line<'static> {
    Line { event_id: 1, ts_ns: 7, body }
}

fn arg(name: &'static str, value: Value<'static>) -> Arg<'static> {
    Arg { name: name.into(), value }
}

/// What a reader of a recording's file must return, exactly.
#[test]
fn lines_of_the_kernel_come_back_as_they_were() {
    let detail =
        [arg("command", Value::Text("NV2080_CTRL_CMD_GR_GET_INFO".into())), arg("object", Value::Hex(2))];
    let bodies = [
        Body::KernelBegin(KernelBegin {
            kind: Kind::Kernel,
            name: "nvidia_ioctl".into(),
            pid: 1,
            tid: 2,
            depth: 1,
            parent: Some(0),
            ioctl: Some(Ioctl {
                device: "nvidiactl".into(),
                cmd: 0xc020_462a,
                request: "NV_ESC_RM_CONTROL".into(),
                detail: Args::Named(List::Owned(detail.to_vec())),
                unknown: true,
            }),
            args: None,
            thread: Some("irq/142-nvidia".into()),
            carried: true,
        }),
        Body::KernelEnd(KernelEnd {
            kind: Kind::Scheduler,
            name: "kchannelBindToRunlist_IMPL".into(),
            pid: 1,
            tid: 2,
            begin: 0,
            duration_ns: Some(1234),
            retval: Some(Retval::Number(-14)),
            status: Some("0x77".into()),
            error: Some("EFAULT".into()),
            out: Some(Args::Named(List::Owned(vec![arg("object", Value::Hex(3))]))),
            ended: EndKind::Returned,
        }),
        Body::Instant(Instant {
            kind: Kind::Scheduler,
            name: "off_cpu".into(),
            pid: 1,
            tid: 2,
            depth: 2,
            parent: Some(0),
            cpu: Some(3),
            duration_ns: Some(u64::from(u32::MAX)),
            args: Some(Args::Named(List::Owned(vec![arg("state", Value::Text("sleeping".into()))]))),
        }),
        Body::Xid(Xid {
            pid: 0,
            tid: 0,
            xid: 31,
            message: "MMU \"Fault\"".into(),
            device: "0000:3b:00.0".into(),
        }),
    ];
    for body in bodies {
        let line = line(body);
        let bytes =
            written(&[Line { event_id: 0, ts_ns: 0, body: Body::Header(Box::default()) }, line.clone()]);
        let mut reader = Reader::new(&bytes[..]);
        reader.next().unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), line);
        assert_eq!(reader.notes().unknown_keys, 0);
    }
}

#[test]
fn the_keys_are_those_of_the_contract() {
    let begin = r#"{"event_id":1,"ts":0.000000007,"type":"kernel","name":"nvidia_uvm_ioctl","phase":"B","pid":1,"tid":2,"depth":1,"parent":0,"device":"nvidia-uvm","cmd":"0x21","request":"UVM_FREE","detail":{"base":"0x7f"},"unknown":true}"#;
    let instant = r#"{"event_id":2,"ts":0.000000008,"type":"scheduler","name":"nvidia_irq","pid":1,"tid":2,"depth":0,"cpu":3,"duration_us":2.500,"args":{"irq":142}}"#;
    let xid = r#"{"event_id":3,"ts":0.000000009,"type":"xid","name":"xid","pid":1,"tid":2,"xid":31,"message":"m","device":"d"}"#;
    let text = format!("{begin}\n{instant}\n{xid}\n");
    let mut reader = Reader::new(text.as_bytes());
    let mut again = Vec::new();
    while let Some(line) = reader.next().unwrap() {
        assert!(!matches!(line.body, Body::Unknown(_)), "{line:?}");
        again.extend_from_slice(&written(&[line]));
    }
    assert_eq!(String::from_utf8(again).unwrap(), text);
}

/// `jq -S` sorts keys, so that `type` comes after keys that have another meaning in other lines.
#[test]
fn keys_may_come_in_any_order() {
    let kernel = r#"{"cmd":"0x21","depth":1,"device":"nvidia-uvm","event_id":1,"name":"nvidia_uvm_ioctl","phase":"B","pid":1,"request":"UVM_FREE","tid":2,"ts":0.1,"type":"kernel"}"#;
    let exit = r#"{"event_id":2,"name":"exit","pid":7,"status":255,"tid":7,"ts":0.1,"type":"process"}"#;
    let end = r#"{"complete":true,"event_id":3,"events":3,"in_flight":[],"lost":0,"name":"end","summary":null,"ts":0.1,"type":"end"}"#;
    let text = format!("{kernel}\n{exit}\n{end}\n");
    let mut reader = Reader::new(text.as_bytes());
    let Some(Line { body: Body::KernelBegin(begin), .. }) = reader.next().unwrap() else { panic!() };
    assert_eq!(begin.ioctl.unwrap().request, "UVM_FREE");
    assert!(matches!(reader.next().unwrap().unwrap().body, Body::Process(Process::Exit(_))));
    assert!(matches!(reader.next().unwrap().unwrap().body, Body::Finish(_)));
    assert_eq!((reader.notes().bad_lines, reader.notes().unknown_keys), (0, 0));
}

#[test]
fn lines_that_lack_something_are_no_events() {
    for odd in [
        r#""type":"kernel","name":"a","phase":"C","pid":1,"tid":1"#,
        r#""type":"kernel","name":"a","phase":"E","pid":1,"tid":1"#,
        r#""type":"kernel","name":"a","phase":"B","pid":1"#,
        r#""type":"kernel","name":"a","phase":"B","pid":1,"tid":1,"cmd":"no","request":"r""#,
        r#""type":"scheduler","pid":1,"tid":1"#,
        r#""type":"xid","name":"xid","pid":1,"tid":1"#,
    ] {
        let text =
            format!("{{\"event_id\":0,\"ts\":0.1,\"type\":\"aura\"}}\n{{\"event_id\":1,\"ts\":0.1,{odd}}}\n");
        let (_, notes) = read_all(text.as_bytes());
        assert_eq!(notes.bad_lines, 1, "{odd}");
    }
}
