//! Tests which functions are taken, on which backends, and with which words others are refused.

use super::super::backends::Backend;
use super::super::symbols::{Kallsyms, Symbols};
use super::super::{HookRequest, PlannedHook, Target, plan};
use super::{KALLSYMS, capable};
use gpurec_nvidia::hooks::{self, Hook, Role};
use gpurec_trace::Args;
use gpurec_trace::HookError;

fn row(name: &str) -> Hook {
    hooks::table(None).into_iter().find(|row| row.name == name).expect(name)
}

fn hook(name: &str) -> HookRequest {
    HookRequest::Hook(Box::new(row(name)))
}

fn named(name: &str) -> HookRequest {
    HookRequest::Named(name.to_owned())
}

fn taken(planned: Vec<PlannedHook>) -> Vec<Target> {
    let take = |planned| match planned {
        PlannedHook::Take(target) => Some(*target),
        PlannedHook::Refused { .. } => None,
    };
    planned.into_iter().filter_map(take).collect()
}

fn one(wanted: HookRequest, symbols: &Symbols) -> Target {
    let planned = plan(&[wanted], symbols);
    assert_eq!(planned.len(), 1);
    taken(planned).pop().expect("taken")
}

fn refusals(planned: Vec<PlannedHook>) -> Vec<(String, String)> {
    let refused = |planned| match planned {
        PlannedHook::Refused { name, reason } => Some((name, reason.to_string())),
        PlannedHook::Take(_) => None,
    };
    planned.into_iter().filter_map(refused).collect()
}

fn refusal(wanted: HookRequest, symbols: &Symbols) -> String {
    let planned = plan(&[wanted], symbols);
    assert!(planned.iter().all(|planned| matches!(planned, PlannedHook::Refused { .. })));
    refusals(planned).pop().expect("refused").1
}

fn backends(target: &Target) -> Vec<Backend> {
    target.usable().collect()
}

use Backend::{Fentry, Kprobe, Multi, Session, Tracepoint};

#[test]
fn a_capable_host_has_every_backend() {
    let target = one(hook("nvidia_unlocked_ioctl"), &capable());
    assert_eq!(backends(&target), [Fentry, Session, Multi, Kprobe, Tracepoint]);
    assert_eq!(target.module.as_deref(), Some("nvidia"));
    assert_eq!(target.address, Some(0xffff_ffff_c000_0010));
    assert!(target.arguments && target.note.is_none());
}

#[test]
fn the_rm_core_has_kprobes_only() {
    for name in ["rm_ioctl", "kchannelConstruct_IMPL"] {
        let target = one(hook(name), &capable());
        assert_eq!(backends(&target), [Kprobe], "{name}");
        assert!(target.backends[2].1 == Some(HookError::CoreFunction), "{:?}", target.backends);
    }
}

#[test]
fn each_missing_fact_costs_its_backends() {
    type Change = fn(&mut Symbols);
    let cases: [(Change, &[Backend]); 8] = [
        (|s| s.machine.kprobes = Some(false), &[Fentry, Session, Multi, Tracepoint]),
        (|s| s.machine.fprobe = Some(false), &[Fentry, Kprobe, Tracepoint]),
        (|s| s.machine.session = Some(false), &[Fentry, Multi, Kprobe, Tracepoint]),
        (|s| s.machine.trampolines = Some(false), &[Session, Multi, Kprobe, Tracepoint]),
        (|s| _ = s.protos.remove("nvidia"), &[Session, Multi, Kprobe, Tracepoint]),
        (|s| s.machine.lockdown = Some("confidentiality".into()), &[Fentry, Tracepoint]),
        (|s| s.machine.lockdown = Some("integrity".into()), &[Fentry, Session, Multi, Kprobe, Tracepoint]),
        (|s| s.traceable = Some(Default::default()), &[Kprobe, Tracepoint]),
    ];
    for (change, left) in cases {
        let mut symbols = capable();
        change(&mut symbols);
        assert_eq!(backends(&one(hook("nvidia_unlocked_ioctl"), &symbols)), left);
    }
}

#[test]
fn unknown_is_not_no() {
    let symbols = Symbols { machine: Default::default(), ..capable() };
    let target = one(hook("nvidia_mmap"), &symbols);
    assert_eq!(backends(&target), [Fentry, Session, Multi, Kprobe, Tracepoint]);
}

#[test]
fn without_padding_and_types_the_table_knows_who_has_an_ftrace_entry() {
    let mut symbols = capable();
    symbols.protos.clear();
    let plain: String =
        KALLSYMS.lines().filter(|l| !l.contains("__pfx_")).map(|l| format!("{l}\n")).collect();
    symbols.kallsyms = Kallsyms::parse(plain.into());
    assert_eq!(backends(&one(hook("nvidia_mmap"), &symbols)), [Session, Multi, Kprobe, Tracepoint]);
    assert_eq!(backends(&one(hook("rm_ioctl"), &symbols)), [Kprobe]);
    // The table does not have these functions.
    assert_eq!(taken(plan(&[named("nv_twice")], &symbols)).len(), 2);
    assert_eq!(backends(&one(named("do_sys_open"), &symbols)), [Session, Multi, Kprobe]);
}

#[test]
fn a_core_function_without_kprobes_is_refused_with_the_remedy() {
    let mut symbols = capable();
    symbols.machine.kprobes = Some(false);
    let why = refusal(hook("rm_ioctl"), &symbols);
    assert!(why.contains("RM core") && why.contains("CONFIG_KPROBES=y"), "{why}");
    symbols.machine = Default::default();
    symbols.machine.lockdown = Some("confidentiality".into());
    let why = refusal(hook("rm_ioctl"), &symbols);
    assert!(why.contains("locked down") && why.contains("lockdown=integrity"), "{why}");
}

#[test]
fn functions_of_one_name_are_hooked_by_address_or_not_at_all() {
    let targets = taken(plan(&[named("nv_twice")], &capable()));
    let addresses: Vec<_> = targets.iter().map(|target| target.address).collect();
    assert_eq!(addresses, [Some(0xffff_ffff_c000_00a0), Some(0xffff_ffff_c000_00b0)]);
    assert!(targets.iter().all(|target| backends(target) == [Kprobe]));

    let hidden: String =
        KALLSYMS.lines().filter_map(|line| Some(format!("0000000000000000{}\n", line.get(16..)?))).collect();
    let symbols = Symbols { kallsyms: Kallsyms::parse(hidden.into()), ..capable() };
    let why = refusal(named("twice"), &symbols);
    assert!(why.contains("kptr_restrict") && why.contains("several"), "{why}");
    // A unique name needs no address.
    let target = one(hook("nvidia_mmap"), &symbols);
    assert_eq!((target.address, backends(&target).len()), (None, 5));
}

#[test]
fn a_name_in_two_modules() {
    let targets = taken(plan(&[named("nv_kthread_q_schedule_q_item")], &capable()));
    let modules: Vec<_> = targets.iter().filter_map(|target| target.module.as_deref()).collect();
    assert_eq!(modules, ["nvidia", "nvidia_uvm"]);
    let rows: Vec<_> =
        hooks::table(None).into_iter().filter(|r| r.name == "nv_kthread_q_schedule_q_item").collect();
    let uvm = rows.into_iter().find(|row| row.module == "nvidia_uvm").expect("a row of nvidia_uvm");
    let target = one(HookRequest::Hook(Box::new(uvm)), &capable());
    assert_eq!(target.module.as_deref(), Some("nvidia_uvm"));
}

#[test]
fn renamed_functions_are_found_and_say_what_they_lost() {
    let target = one(hook("uvm_migrate"), &capable());
    assert_eq!((target.name.as_str(), target.symbol.as_str()), ("uvm_migrate", "uvm_migrate.isra.0"));
    assert_eq!(backends(&target), [Session, Multi, Kprobe]);
    assert!(!target.arguments && target.entry().is_empty());
    assert!(matches!(target.args(&[1; 6], &[]), Args::Named(list) if list.is_empty()));
    assert!(target.note.is_some_and(|note| note.contains("arguments")));

    let target = one(hook("uvm_mmap_entry"), &capable());
    assert_eq!(target.symbol, "uvm_mmap_entry.part.0");
    assert!(target.note.is_some_and(|note| note.contains("part")));
    // If the whole function exists, its part is not used.
    assert_eq!(one(hook("uvm_unlocked_ioctl_entry"), &capable()).symbol, "uvm_unlocked_ioctl_entry");
    // The user may give the exact name.
    assert_eq!(one(named("uvm_migrate.isra.0"), &capable()).symbol, "uvm_migrate.isra.0");
}

#[test]
fn a_driver_that_is_not_loaded() {
    let kernel: String =
        KALLSYMS.lines().filter(|l| !l.contains("[nvidia")).map(|l| format!("{l}\n")).collect();
    let mut symbols =
        Symbols { kallsyms: Kallsyms::parse(kernel.into()), modules: Some(vec![]), ..capable() };
    symbols.machine.driver = None;
    let why = refusal(hook("rm_ioctl"), &symbols);
    assert!(why.contains("nvidia is not loaded") && why.contains("modprobe nvidia"), "{why}");
    // System calls are visible without the module: their ioctls appear once it is loaded.
    let wanted = [
        hook("nvidia_frontend_unlocked_ioctl"),
        hook("nvidia_unlocked_ioctl"),
        hook("uvm_unlocked_ioctl_entry"),
    ];
    let planned = plan(&wanted, &symbols);
    let targets = taken(planned);
    assert_eq!(targets.len(), 2);
    assert!(targets.iter().all(|target| backends(target) == [Tracepoint] && target.module.is_none()));
    let why = refusals(plan(&wanted, &symbols));
    assert!(matches!(why.as_slice(), [(_, why)] if why.contains("does the same")), "{why:?}");
}

#[test]
fn the_proprietary_flavour_has_other_names() {
    let mut symbols = capable();
    symbols.machine.driver_is_open = Some(false);
    let why = refusal(hook("vidmemConstruct_IMPL"), &symbols);
    assert!(why.contains("proprietary"), "{why}");
    assert_eq!(backends(&one(hook("rm_ioctl"), &symbols)), [Kprobe]);
}

#[test]
fn a_function_this_driver_has_not_says_which_driver() {
    let why = refusal(hook("uvm_push_end"), &capable());
    assert!(why.contains("nvidia_uvm 580.159.04 has no function"), "{why}");
}

#[test]
fn of_ioctl_functions_inside_each_other_the_outermost_is_the_ioctl() {
    let text = format!("{KALLSYMS}ffffffffc0000100 t nvidia_ioctl\t[nvidia]\n");
    let symbols = Symbols { kallsyms: Kallsyms::parse(text.into()), ..capable() };
    let planned = plan(&[hook("nvidia_ioctl"), hook("nvidia_unlocked_ioctl")], &symbols);
    let roles: Vec<_> =
        taken(planned).into_iter().filter_map(|t| Some((t.name.clone(), t.hook?.role))).collect();
    assert_eq!(
        roles,
        [("nvidia_ioctl".to_owned(), Role::Function), ("nvidia_unlocked_ioctl".to_owned(), Role::Ioctl)]
    );
    assert_eq!(one(hook("nvidia_ioctl"), &symbols).hook.map(|hook| hook.role), Some(Role::Ioctl));
}

#[test]
fn a_users_function_has_the_arguments_of_its_type() {
    let target = one(named("vfs_open"), &capable());
    let Args::Named(list) = target.args(&[1, 2, 3, 4, 5, 6], &[]) else { panic!("not named") };
    let names: Vec<&str> = list.iter().map(|arg| arg.name.as_ref()).collect();
    assert_eq!(names, ["path", "file"]);
    let mut symbols = capable();
    symbols.protos.clear();
    let target = one(named("vfs_open"), &symbols);
    assert_eq!(target.args(&[1, 2, 3, 4, 5, 6], &[]), Args::raw(&[1, 2, 3, 4, 5, 6]));
    // A function that the table has keeps the table's row.
    assert!(one(named("nvidia_mmap"), &capable()).hook.is_some());
}

#[test]
fn wanted_twice_is_hooked_once() {
    let wanted = [
        hook("nvidia_mmap"),
        named("nvidia_mmap"),
        named("nvidia_m*"),
        hook("uvm_push_end"),
        named("uvm_push_end"),
    ];
    let planned = plan(&wanted, &capable());
    assert_eq!(planned.len(), 2);
    assert_eq!(taken(planned).len(), 1);
}

#[test]
fn patterns() {
    let planned = plan(&[named("uvm_*migrate*")], &capable());
    let symbols: Vec<_> = taken(planned).into_iter().map(|target| target.symbol).collect();
    assert_eq!(symbols, ["uvm_migrate.isra.0", "uvm_api_migrate"]);

    let why = refusal(named("uvm_migrant*"), &capable());
    assert!(why.contains("matches no function") && why.contains("uvm_api_migrate"), "{why}");
    let why = refusal(named("nvidia_unlokced_ioctl"), &capable());
    assert!(why.contains("near names: nvidia_unlocked_ioctl"), "{why}");
    assert!(refusal(named("a[b"), &capable()).contains("not a pattern"));
    assert!(refusal(named("nv_schedule_work"), &capable()).contains("does not exist"));
}

#[test]
fn ten_thousand_functions_are_too_many() {
    let text: String = (0..10_000).map(|i| format!("ffffffff81{i:06x} T work_{i}\n")).collect();
    let symbols = Symbols { kallsyms: Kallsyms::parse(text.into()), ..capable() };
    let why = refusal(named("work_*"), &symbols);
    assert!(why.contains("10000") && why.contains("1000") && why.contains("narrower"), "{why}");
    assert_eq!(taken(plan(&[named("work_1??")], &symbols)).len(), 100);
    // The limit holds for all patterns together, not for each.
    let planned = plan(&[named("work_1???"), named("work_2??")], &symbols);
    assert_eq!(taken(planned).len(), 1000);
}

#[test]
fn what_must_not_be_hooked_is_refused_with_the_reason() {
    for (name, word) in [("bpf_prog_run", "own hooks"), ("very_early", "noinstr"), ("bpf_p*", "everything")] {
        let why = refusal(named(name), &capable());
        assert!(why.contains(word), "{name}: {why}");
    }
    let planned = plan(&[named("*o*")], &capable());
    assert!(taken(planned).iter().all(|t| !t.symbol.contains(".cold") && !t.symbol.starts_with("__pfx_")));
    let mut symbols = capable();
    symbols.blacklist.insert("vfs_open".to_owned());
    let why = refusal(named("vfs_open"), &symbols);
    assert!(why.contains("forbids"), "{why}");
}

#[test]
fn a_list_that_cannot_be_read_says_so() {
    let symbols = Symbols { kallsyms: Kallsyms::default(), ..capable() };
    for wanted in [hook("rm_ioctl"), named("vfs_open")] {
        assert!(refusal(wanted, &symbols).contains("run gpurec as root"));
    }
}

#[test]
fn every_refusal_is_one_sentence() {
    let mut symbols = capable();
    symbols.machine.kprobes = Some(false);
    let wanted: Vec<HookRequest> =
        hooks::table(None).into_iter().map(|row| HookRequest::Hook(Box::new(row))).collect();
    for (name, why) in refusals(plan(&wanted, &symbols)) {
        assert!(!why.is_empty() && !why.contains('\n') && !why.ends_with('.'), "{name}: {why}");
    }
}
