//! Tests the facts as files give them: hand-made ones, and this machine's own.

use glob::Pattern;

use super::super::list::{fields, functions, table};
use super::super::symbols::{Kallsyms, Scope, Symbols, modules_in, traceable_in};
use super::{KALLSYMS, capable};
use crate::host::Facts;

#[test]
fn functions_of_kallsyms() {
    let kallsyms = Kallsyms::parse(KALLSYMS.into());
    assert_eq!(kallsyms.iter().count(), KALLSYMS.lines().count() - 1, "all but the data");
    let found = kallsyms.iter().find(|symbol| symbol.name == "nvidia_mmap").expect("nvidia_mmap");
    assert_eq!((found.module, found.address), ("nvidia", Some(0xffff_ffff_c000_0040)));
    assert!(kallsyms.has_module("nvidia_uvm") && !kallsyms.has_module("nvidia_modeset"));
    assert!(kallsyms.is_forbidden(0xffff_ffff_8100_0070) && !kallsyms.is_forbidden(0xffff_ffff_8100_0080));
}

#[test]
fn garbled_kallsyms_never_panic() {
    for end in 0..KALLSYMS.len() {
        Kallsyms::parse(KALLSYMS.as_bytes()[..end].to_vec());
    }
    let text =
        b"\n \nx\nffff T\nffff T \nzzzz T name\n1 T \xff\xfe\n1 T n\t[\n1 T n\t[]\n1 T ok\t[m]\n".to_vec();
    let names: Vec<_> = Kallsyms::parse(text).iter().map(|symbol| symbol.name.to_owned()).collect();
    assert_eq!(names.last().map(String::as_str), Some("ok"));
    assert!(Kallsyms::parse(Vec::new()).is_empty());
}

#[test]
fn modules_that_stay() {
    let text = "nvidia 1 2 nvidia_uvm, Live 0x0 (O)\nnew 1 0 - Loading 0x0\nold 1 0 - Unloading 0x0\nodd\n";
    assert_eq!(modules_in(text), ["nvidia", "odd"]);
}

#[test]
fn what_ftrace_can_enter() {
    let list = traceable_in("vfs_open\nnvidia_mmap [nvidia]\nfoo (1) R I [bar]\n");
    assert!(list.contains("vfs_open") && list.contains("nvidia_mmap [nvidia]") && list.contains("foo [bar]"));
}

#[test]
fn the_list_tells_of_every_row() {
    let text = table(&capable());
    let line = |name: &str| text.lines().find(|l| l.split_whitespace().next() == Some(name)).expect("a line");
    assert!(line("nvidia_unlocked_ioctl").contains("fentry kprobe.session kprobe.multi kprobe tracepoint"));
    assert!(
        line("kchannelConstruct_IMPL").contains(" kprobe ")
            && line("kchannelConstruct_IMPL").contains("client, parent")
    );
    assert!(line("uvm_push_end").contains("not hooked"));
    let text = functions(&Pattern::new("*open*").expect("a pattern"), &capable()).expect("a list");
    assert!(
        text.contains("vmlinux\n") && text.contains("vfs_open") && text.contains("(path, file)"),
        "{text}"
    );
    let error =
        functions(&Pattern::new("nothing_such*").expect("a pattern"), &capable()).expect_err("no list");
    assert!(format!("{error}").contains("no function"));
}

#[test]
fn an_events_own_fields() {
    let format = "name: irq_handler_entry\nID: 1\nformat:\n\tfield:unsigned short common_type;\toffset:0;\n\n\
        \tfield:int irq;\toffset:8;\tsize:4;\n\tfield:__data_loc char[] name;\toffset:12;\n\tfield:char comm[16];\n\n\
        print fmt: \"irq=%d name=%s\"\n";
    assert_eq!(fields(format), ["irq", "name", "comm"]);
    assert!(fields("").is_empty());
}

#[test]
fn this_machine() {
    let symbols = Symbols::gather(&Facts::gather(), Scope::Everything);
    if symbols.kallsyms.is_empty() {
        return;
    }
    assert!(symbols.kallsyms.iter().count() > 1000);
    let text = functions(&Pattern::new("vfs_write*").expect("a pattern"), &symbols).expect("a list");
    assert!(text.contains("vfs_write"), "{text}");
}
