//! Checks the hook table: complete, consistent, by version; what it reads; and its copy in KERNEL_HOOKS.md.

use std::collections::HashSet;
use std::fmt::Write;

use super::{Capture, Group, Hook, Kind, MAX_PIECE, Role, Source, TABLE, folklore, rows, table};
use gpurec_trace::{Arg, List, Value};

fn row(name: &str, version: Option<&str>) -> Hook {
    table(version).into_iter().find(|row| row.name == name).expect(name)
}

fn value<'a>(args: &'a [Arg<'static>], name: &str) -> &'a Value<'static> {
    &args.iter().find(|arg| arg.name == name).expect(name).value
}

#[test]
fn every_line_is_understood() {
    let names: Vec<&str> = rows().map(|row| row.first.split(' ').next().expect("a name")).collect();
    assert_eq!(names.len(), 186);
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 186);
    let all = table(None);
    assert_eq!(all.len(), 187, "one of them is in two modules");
    for row in rows() {
        for line in &row.more {
            let mut words = line.split(' ');
            match words.next().expect("a word") {
                "means" => assert!(line.len() > 6),
                "args" | "out" => {
                    let since = words.next().expect("a version");
                    assert!(super::Version::parse(since).is_some(), "{line}");
                    for word in words {
                        assert!(Capture::default().add(word).is_some(), "{}: {word}", row.first);
                    }
                }
                other => panic!("{}: {other}", row.first),
            }
        }
        for flag in row.first.split(' ').skip(6) {
            let key = flag.split('=').next().expect("a key");
            let known = [
                "open",
                "irq",
                "scheduler",
                "from",
                "before",
                "role",
                "file",
                "inode",
                "cmd",
                "user",
                "line",
                "at",
            ];
            assert!(known.contains(&key), "{flag}");
        }
    }
    for hook in &all {
        assert!(["nvidia", "nvidia_uvm", "nvidia_modeset"].contains(&hook.module), "{}", hook.name);
        assert!(!hook.meaning.is_empty(), "{}", hook.name);
        assert!(!hook.open_only || hook.core, "{}", hook.name);
        assert_eq!(hook.role == Role::Ioctl, hook.operation.cmd.is_some(), "{}", hook.name);
        for read in hook.entry().iter().chain(hook.exit()) {
            assert!(read.size > 0 && read.size <= MAX_PIECE, "{}", hook.name);
        }
        let after_itself = hook
            .entry()
            .iter()
            .zip(0u8..)
            .any(|(read, i)| matches!(read.source, Source::Inside { piece, .. } if piece >= i));
        assert!(!after_itself, "{}: a piece inside a later one", hook.name);
    }
}

#[test]
fn the_default_set_is_that_of_the_facts() {
    let on = |version| table(version).into_iter().filter(|row| row.on).collect::<Vec<_>>();
    assert_eq!(on(None).len(), 79);
    let newest = on(Some("580.159.04"));
    assert_eq!(newest.len(), 78);
    assert_eq!(newest.iter().filter(|row| !row.core).count(), 47, "what is left without kprobes");
    for group in Group::ALL {
        assert!(newest.iter().any(|row| row.group == group), "{}", group.name());
        assert_eq!(Group::from_name(group.name()), Some(group));
    }
    assert_eq!(Group::from_name("irq"), Some(Group::Interrupt));
    assert_eq!(Group::from_name("nonsense"), None);
}

#[test]
fn drivers_differ() {
    let has = |name: &str, version: &str| table(Some(version)).iter().any(|row| row.name == name);
    for (name, version, there) in [
        ("nvidia_unlocked_ioctl", "535.288.01", false),
        ("nvidia_frontend_unlocked_ioctl", "535.288.01", true),
        ("nvidia_frontend_unlocked_ioctl", "470.256.02", true),
        ("nvidia_unlocked_ioctl", "545.23.06", true),
        ("nvidia_frontend_unlocked_ioctl", "545.23.06", false),
        ("uvm_gpu_service_replayable_faults", "555.58.02", true),
        ("uvm_parent_gpu_service_replayable_faults", "560.28.03", true),
        ("uvm_api_discard", "575.64", false),
        ("eventConstruct_IMPL", "595.45.04", false),
    ] {
        assert_eq!(has(name, version), there, "{name} in {version}");
    }
    let names = |version| row("nv_alloc_pages", version).names().collect::<Vec<_>>();
    assert_eq!(names(Some("535.183.01")), ["page_count", "contiguous", "cache_type"]);
    assert_eq!(names(Some("545.23.06")), ["page_count", "page_size", "contiguous", "cache_type"]);
    assert_eq!(names(Some("999.1")), names(None));
    assert_eq!(names(Some("not a version")), names(None));
    // The arguments of 470 were never analysed, so none are shown; Linux's own interfaces are.
    assert!(names(Some("470.256.02")).is_empty());
    assert_eq!(row("nvidia_mmap", Some("470.256.02")).names().collect::<Vec<_>>(), ["start", "end"]);
    let polled = |version| row("_kgspRpcRecvPoll", Some(version)).names().count();
    assert_eq!(
        [polled("570.190"), polled("575.51.02"), polled("580.65.06"), polled("580.82.07")],
        [2, 1, 1, 2]
    );
}

#[test]
fn registers_are_cut_to_their_types() {
    let args =
        row("nv_alloc_pages", None).args(&[0, 0xdead_0000_0010, 1 << 21, 0xff00, 0x1_0000_0002, 0], &[]);
    assert_eq!(*value(&args, "page_count"), Value::Number(16));
    assert_eq!(*value(&args, "page_size"), Value::Number(1 << 21));
    assert_eq!(*value(&args, "contiguous"), Value::Bool(false));
    assert_eq!(*value(&args, "cache_type"), Value::Number(2));
    let args = row("nvidia_isr", None).args(&[u64::from(u32::MAX), 0, 0, 0, 0, 0], &[]);
    assert_eq!(*value(&args, "irq"), Value::Signed(-1));
}

#[test]
fn memory_behind_pointers() {
    let hook = row("vidmemConstruct_IMPL", None);
    let [outer, inner] = hook.entry() else { panic!("{:?}", hook.entry()) };
    assert_eq!((outer.source, outer.size), (Source::Register(2), 72));
    assert_eq!((inner.source, inner.size), (Source::Inside { piece: 0, offset: 64 }, 72));
    let mut params = [0u8; 72];
    for (at, word) in [(0, 0xc1d0_0001u32), (4, 0xa), (8, 0x5c00_0002), (12, 0x40)] {
        params[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut memory = [0u8; 72];
    memory[64..].copy_from_slice(&(2u64 << 20).to_le_bytes());
    let args = hook.args(&[0; 6], &[Some(&params), Some(&memory)]);
    assert_eq!(*value(&args, "client"), Value::Hex(0xc1d0_0001));
    assert_eq!(*value(&args, "object"), Value::Hex(0x5c00_0002));
    assert_eq!(*value(&args, "size"), Value::Number(2 << 20));
    assert_eq!(*value(&args, "class"), Value::Text("NV01_MEMORY_LOCAL_USER".into()));
    assert!(args.iter().all(|arg| arg.name != "unreadable"));

    for pieces in
        [&[Some(&params[..]), None][..], &[Some(&params[..])], &[Some(&params[..]), Some(&memory[..71])]]
    {
        let args = hook.args(&[0; 6], pieces);
        assert_eq!(*value(&args, "size"), Value::Null);
        assert_eq!(*value(&args, "unreadable"), Value::Array(List::Owned(vec![Value::Text("size".into())])));
    }
}

#[test]
fn numbers_have_the_names_of_the_driver() {
    let hook = row("rpcRmApiControl_GSP", Some("580.159.04"));
    let args = |command| hook.args(&[0, 1, 2, command, 0, 8], &[]);
    assert_eq!(*value(&args(0x2080_0102), "command"), Value::Text("NV2080_CTRL_CMD_GPU_GET_INFO_V2".into()));
    assert_eq!(*value(&args(0x2080_7fff), "command"), Value::Hex(0x2080_7fff));
    let freed = row("Nv01FreeWithSecInfo", None);
    let mut payload = [0; 16];
    assert_eq!(*value(&freed.out(&[Some(&payload)]), "status"), Value::Text("NV_OK".into()));
    payload[12] = 0x1f;
    assert_eq!(
        *value(&freed.out(&[Some(&payload)]), "status"),
        Value::Text("NV_ERR_INVALID_ARGUMENT".into())
    );
    let bound = row("kchannelCtrlCmdBind_IMPL", None);
    assert_eq!(*value(&bound.args(&[0; 6], &[Some(&[1, 0, 0, 0])]), "engine"), Value::Text("GR0".into()));
}

#[test]
fn what_a_function_wrote() {
    let hook = row("kchannelCtrlCmdGpfifoGetWorkSubmitToken_IMPL", None);
    assert!(hook.entry().is_empty() && hook.exit().len() == 1);
    assert_eq!(*value(&hook.out(&[Some(&[1, 0, 0, 0])]), "token"), Value::Hex(1));
    assert_eq!(*value(&hook.out(&[]), "token"), Value::Null);
    let status = |version| match row("Nv04AllocWithAccessSecInfo", Some(version)).exit() {
        [read] => read.size,
        other => panic!("{other:?}"),
    };
    assert_eq!([status("515.43.04"), status("530.30.02"), status("550.40.07")], [36, 40, 44]);
}

#[test]
fn texts_and_uuids() {
    let gpu = row("uvm_isr_top_half_entry", None);
    let bytes: Vec<u8> = (0..16).collect();
    let text = Value::Text("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f".into());
    assert_eq!(*value(&gpu.args(&[0; 6], &[Some(&bytes)]), "gpu"), text);
    let xid = row("nv_report_error", None);
    assert_eq!(xid.role, Role::Xid);
    let said = |bytes: &[u8]| value(&xid.args(&[0, 79, 0, 0, 0, 0], &[Some(bytes)]), "format").clone();
    assert_eq!(said(b"GPU has fallen\0rest"), Value::Text("GPU has fallen".into()));
    assert_eq!(said(b"no end"), Value::Null);
    assert!(matches!(said(&[b'x'; 128]), Value::Text(text) if text.ends_with("x...")));
}

#[test]
fn any_piece_of_any_length_is_safe() {
    for version in [None, Some("515.43.04"), Some("470.1"), Some("550.54.14")] {
        for hook in table(version) {
            for length in [0, 1, 3, 4, 8, 15, 16, 64, 128, 200] {
                let bytes = vec![0xff; length];
                for count in 0..5 {
                    let pieces = vec![Some(&bytes[..]); count];
                    hook.args(&[u64::MAX; 6], &pieces);
                    hook.out(&pieces);
                }
            }
        }
    }
}

#[test]
fn folklore_is_not_hooked() {
    let names = [
        "nv_schedule_work",
        "nv_mem_alloc",
        "nv_create_context",
        "nv_destroy_context",
        "nv_queue_work",
        "nv_ioctl_handler",
        "nv_submit_work",
    ];
    for name in names {
        assert!(folklore(name).is_some_and(|text| text.contains("does not exist")), "{name}");
        assert!(table(None).iter().all(|row| row.name != name));
    }
    assert_eq!(TABLE.lines().filter(|line| line.starts_with("folklore ")).count(), names.len());
    assert_eq!(folklore("nvidia_mmap"), None);
}

#[test]
fn what_runs_in_an_interrupt_or_schedules() {
    for hook in table(None) {
        let groups = [Group::Scheduler, Group::Interrupt];
        assert!(!groups.contains(&hook.group) || hook.scheduler, "{}", hook.name);
    }
    assert!(row("nvidia_isr", None).top_half && !row("nvidia_isr_kthread_bh", None).top_half);
    assert!(!row("rm_ioctl", None).top_half);
}

#[test]
fn sizes_of_kinds() {
    for (kind, size) in [("u8", 1), ("u16", 2), ("u32", 4), ("h64", 8), ("uuid", 16), ("text", 128)] {
        assert_eq!(Kind::parse(kind).map(Kind::size), Some(size));
    }
    assert!(Kind::parse("u128").is_none());
}

const BEGIN: &str = "<!-- the default hooks: begin -->\n";
const END: &str = "<!-- the default hooks: end -->\n";

/// The default hooks, as KERNEL_HOOKS.md shows them.
fn markdown() -> String {
    let mut text = String::new();
    for group in Group::ALL {
        let title = format!(
            "\n**{}**\n\n| function | module | hooked by | drivers | shown | what it is |\n",
            group.name()
        );
        text += &title;
        text += "|---|---|---|---|---|---|\n";
        for hook in table(None).into_iter().filter(|hook| hook.on && hook.group == group) {
            for row in rows().filter(|row| row.first.split(' ').next() == Some(hook.name)) {
                let how = if hook.core { "kprobe" } else { "any backend" };
                let shown: Vec<&str> =
                    hook.names().chain(hook.out.fields.iter().map(|field| field.name)).collect();
                _ = writeln!(
                    text,
                    "| `{}` | {} | {how} | {} | {} | {} |",
                    hook.name,
                    hook.module,
                    drivers(row.first),
                    shown.join(", "),
                    hook.meaning
                );
            }
        }
    }
    text + "\n"
}

fn drivers(first: &str) -> String {
    let major = |key: &str| {
        let tag = first.split(' ').find_map(|flag| flag.strip_prefix(key))?;
        tag.split('.').next().map(str::to_owned)
    };
    let flavour = if first.split(' ').any(|flag| flag == "open") { ", open only" } else { "" };
    let span = match (major("from="), major("before=")) {
        (Some(from), _) => format!("{from} and newer"),
        (_, Some(before)) => format!("before {before}"),
        _ => "all".to_owned(),
    };
    span + flavour
}

/// Run with GPUREC_REWRITE=1 to rewrite the table.
#[test]
fn the_document_has_the_same_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../KERNEL_HOOKS.md");
    let file = std::fs::read_to_string(path).expect(path);
    let (before, rest) = file.split_once(BEGIN).expect("the begin marker");
    let (shown, after) = rest.split_once(END).expect("the end marker");
    if std::env::var_os("GPUREC_REWRITE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", markdown())).expect(path);
    } else {
        assert_eq!(shown, markdown(), "GPUREC_REWRITE=1 cargo test the_document_has writes it anew");
    }
    for (name, _) in TABLE.lines().filter_map(|line| line.strip_prefix("folklore ")?.split_once(' ')) {
        assert!(file.contains(&format!("`{name}`")), "{name} is not in KERNEL_HOOKS.md");
    }
}
