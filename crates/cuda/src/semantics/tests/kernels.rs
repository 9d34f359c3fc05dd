use super::*;

fn launch(name: &'static str, function: u64) -> Make {
    if name.contains("cuda") {
        return call(name, &[function, dim(8, 4, 2), dim(256, 1, 1), 0, 1024, 0x51]);
    }
    call(name, &[function, 8, 4, 2, 256, 1, 1, 1024, 0x51, 0, 0])
}

fn named(begun: &Begun) -> String {
    begun.noted.launch().and_then(|l| l.kernel.map(|k| k.into_owned())).unwrap_or_default()
}

fn kernel_of(play: &mut Play, make: Make) -> String {
    let begun = play.begin(make);
    let name = named(&begun);
    play.end(begun);
    name
}

fn get(handle: u64, name: &[u8]) -> Make {
    call("cuModuleGetFunction", &[0x10, 1, 2]).wrote(0, handle).read(2, name)
}

#[test]
fn a_launch_says_what_it_starts() {
    let mut play = Play::new();
    play.make(get(0xf1, b"_Z5saxpyfPfS_\0"));
    let begun = play.begin(launch("cuLaunchKernel_ptsz", 0xf1));
    let inner = begun.noted.launch().unwrap();
    assert_eq!(inner.kernel.as_deref(), Some("saxpy(float, float*, float*)"));
    assert_eq!((inner.grid, inner.block), (Some([8, 4, 2]), Some([256, 1, 1])));
    assert_eq!((inner.shared, inner.stream, inner.cooperative), (Some(1024), Some(0x51), false));
    assert!(play.end(begun).is_empty());
}

#[test]
fn a_thousand_launches_of_two_kernels() {
    let mut play = Play::new();
    play.make(get(0xf1, b"one\0"));
    play.make(call("cuLibraryGetKernel", &[0x10, 1, 2]).wrote(0, 0xf2).read(2, b"_ZN2ns3twoIiEEvT_\0"));
    let mut counts = std::collections::BTreeMap::new();
    for i in 0..1000 {
        let name = ["cuLaunchKernel", "cuLaunchCooperativeKernel"][i % 2];
        *counts.entry(kernel_of(&mut play, launch(name, 0xf1 + i as u64 % 2))).or_insert(0) += 1;
    }
    let counts: Vec<(&str, i32)> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counts, [("one", 500), ("void ns::two<int>(int)", 500)]);
}

#[test]
fn names_come_by_every_way() {
    let mut play = Play::new();
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf1)), "0xf1");
    // The name appears from the moment it is known.
    play.make(call("cuFuncGetName", &[0x10, 0xf1]).wrote_bytes(0, b"asked\0"));
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf1)), "asked");
    play.make(call("cuKernelGetFunction", &[0x10, 0xf1]).wrote(0, 0xf2));
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf2)), "asked");
    // A failed call names nothing.
    play.make(get(0xf3, b"other\0").failed());
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf3)), "0xf3");
    let register =
        call("__cudaRegisterFunction", &[1, 0x40_0000, 2, 3, 0, 0, 0, 0, 0, 0]).read(3, b"_Z3addPi\0");
    play.make(register);
    assert_eq!(kernel_of(&mut play, launch("cudaLaunchKernel", 0x40_0000)), "add(int*)");
    play.make(call("cudaGetKernel", &[0x10, 0x40_0000]).wrote(0, 0xf4));
    assert_eq!(kernel_of(&mut play, launch("__cudaLaunchKernel_ptsz", 0xf4)), "add(int*)");
    // A handle is reused.
    play.make(get(0xf1, b"later\0"));
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf1)), "later");
}

#[test]
fn the_runtimes_name_is_the_drivers_too() {
    let mut play = Play::new();
    play.make(call("__cudaRegisterFunction", &[1, 0x40, 2, 3]).read(3, b"_Z3addPi\0"));
    let outer = play.begin(launch("cudaLaunchKernel", 0x40));
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf9)), "add(int*)");
    play.end(outer);
    // The driver's handle got the name too.
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf9)), "add(int*)");
}

struct Symbols(u32);

impl Names for Symbols {
    fn stub(&mut self, pid: u32, address: u64) -> Stub {
        self.0 += 1;
        assert!(pid == 7 && self.0 <= 2, "asked again");
        match address {
            0x40 => Stub::Named("_Z18__device_stub__addPi".to_owned()),
            _ => Stub::Unknown,
        }
    }
}

#[test]
fn attached_late_host_stubs_are_looked_up_once() {
    let mut play = Play::late(Box::new(Symbols(0)));
    for _ in 0..3 {
        let outer = play.begin(launch("cudaLaunchKernel", 0x40));
        assert_eq!(named(&outer), "add(int*)");
        assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf9)), "add(int*)");
        play.end(outer);
        assert_eq!(kernel_of(&mut play, launch("cudaLaunchKernel", 0x41)), "0x41");
        assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf8)), "0xf8");
    }
}

#[test]
fn a_child_knows_its_host_stubs() {
    let mut play = Play::new();
    play.make(call("__cudaRegisterFunction", &[1, 0x40, 2, 3]).read(3, b"add\0"));
    play.make(get(0xf1, b"one\0"));
    play.meaning.process_forked(7, 8);
    play.pid = 8;
    assert_eq!(kernel_of(&mut play, launch("cudaLaunchKernel", 0x40)), "add");
    assert_eq!(kernel_of(&mut play, launch("cuLaunchKernel", 0xf1)), "0xf1");
    play.meaning.process_execed(8);
    assert_eq!(kernel_of(&mut play, launch("cudaLaunchKernel", 0x40)), "0x40");
}

fn node(function: u64, at: usize) -> Vec<u8> {
    let mut bytes = vec![0; at];
    bytes.extend(words(
        &[(0, function), (8, 3 | 2 << 32), (16, 1 | 64 << 32), (24, 1 | 1 << 32), (32, 512)],
        72,
    ));
    bytes
}

#[test]
fn graphs_show_their_kernels_and_their_nodes() {
    let mut play = Play::new();
    play.make(get(0xf1, b"one\0"));
    play.make(call("cuGraphCreate", &[0x10, 0]).wrote(0, 0x61));
    let begun =
        play.begin(call("cuGraphAddKernelNode_v2", &[0x10, 0x61, 0, 0, 0x20]).read(4, &node(0xf1, 0)));
    let inner = begun.noted.launch().unwrap();
    assert_eq!(
        (inner.kernel.as_deref(), inner.grid, inner.block),
        (Some("one"), Some([3, 2, 1]), Some([64, 1, 1]))
    );
    assert_eq!((inner.shared, inner.stream), (Some(512), None));
    play.end(begun);
    let generic = call("cuGraphAddNode_v2", &[0x10, 0x61, 0, 0, 0, 0x20]).read(5, &node(0xf1, 16));
    let is_read = generic.signature().plan.entry.iter().any(|read| read.param == 5);
    let begun = play.begin(generic);
    assert_eq!(named(&begun), if is_read { "one" } else { "" });
    play.end(begun);
    // Two levels report one node.
    play.nested(
        call("cudaGraphAddEmptyNode", &[0x10, 0x61, 0, 0]),
        call("cuGraphAddEmptyNode", &[0x10, 0x61, 0, 0]),
    );
    play.make(call("cuGraphAddEmptyNode", &[0x10, 0x61, 0, 0]).failed());
    play.make(call("cuGraphInstantiateWithFlags", &[0x10, 0x61, 0]).wrote(0, 0x71));
    let begun = play.begin(call("cuGraphLaunch", &[0x71, 0x51]));
    let inner = begun.noted.launch().unwrap();
    assert_eq!((inner.nodes, inner.stream, inner.kernel), (Some(3), Some(0x51), None));
    play.end(begun);
    // A graph from a capture: its nodes are counted when the program asks for them.
    play.make(call("cudaGraphGetNodes", &[0x62, 0, 0x10]).wrote(2, 40));
    play.make(call("cudaGraphInstantiate", &[0x10, 0x62, 0]).wrote(0, 0x72));
    let begun = play.begin(call("cudaGraphLaunch", &[0x72, 0]));
    assert_eq!(begun.noted.launch().unwrap().nodes, Some(40));
    let unknown = play.begin(call("cuGraphLaunch", &[0x99, 0]));
    assert_eq!(unknown.noted.launch().unwrap().nodes, None);
}

fn text(names: &mut KernelNames, symbol: &[u8], cut: bool) -> String {
    let name = names.name(symbol, cut).unwrap();
    names.text(&name).to_string()
}

#[test]
fn hostile_names_are_shown_as_they_can_be() {
    let name = |bytes: &[u8], cut| text(&mut KernelNames::default(), bytes, cut);
    assert_eq!(&name(b"a\nb\"\0rest", false), "a\nb\"");
    assert_eq!(&name(b"k\xff\xfeernel", false), "k\u{fffd}\u{fffd}ernel");
    assert_eq!(&name(b"_Z3addPi", true), "add(int*)…");
    assert_eq!(&name(b"_Znonsense", false), "_Znonsense");
    assert_eq!(&name(b"", false), "");
    let long = name(&vec![b'x'; 64 * 1024], false);
    assert!(long.len() < 4200 && long.ends_with('…'));
    assert!(name("é".repeat(40_000).as_bytes(), false).ends_with("é…"));
    // A few bytes that expand to 2^60 letters.
    let mut bomb = b"_Z1fIiE".to_vec();
    bomb.extend(b"vSt4pairIiiE".iter().chain(b"S_IS0_S0_E".repeat(60).iter()));
    assert!(name(&bomb, false).len() < 5000);
    let deep = [b"_Z1f".to_vec(), vec![b'P'; 50_000], b"i".to_vec()].concat();
    assert!(name(&deep, false).len() < 5000);
}

#[test]
fn no_bytes_bring_the_demangler_down() {
    let mut seed = 88_172_645_463_325_252u64;
    let mut shown = KernelNames::default();
    let pieces: [&[u8]; 16] = [
        b"N", b"E", b"I", b"S_", b"S0_", b"T_", b"3foo", b"St", b"i", b"P", b"L", b"X", b"J", b"Dp", b"F",
        b"_Z",
    ];
    for _ in 0..20_000 {
        let mut name = b"_Z".to_vec();
        for _ in 0..24 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            name.extend_from_slice(pieces[seed as usize % 16]);
        }
        assert!(text(&mut shown, &name, false).len() < 5000);
    }
}

#[test]
fn literals_are_written_as_other_tools_write_them() {
    let readable = |name: &str| super::super::kernel::readable(name.as_bytes(), false);
    // std::array<char*, 2ul>
    assert_eq!(readable("_Z1fSt5arrayIPcLm2EE"), "f(std::array<char*, 2ul>)");
    assert_eq!(readable("_Z1gILj7ELl9ELin3EEvv"), "void g<7u, 9l, -3>()");
    assert_eq!(readable("_Z1hILb1EEvv"), "void h<true>()");
    // The function that contains a lambda is shown without its return type, as in c++filt.
    assert_eq!(
        readable(
            "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIfEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_"
        ),
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1})"
    );
}

#[test]
fn empty_parameter_packs_are_left_out() {
    let readable = |name: &str| super::super::kernel::readable(name.as_bytes(), false);
    // PyTorch's optimisers launch this.
    assert_eq!(
        readable(
            "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_11ZeroFunctorIfLi1ELi1ELi0EEEJEEEvT_T0_DpT1_"
        ),
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::ZeroFunctor<float, 1, 1, 0>>(at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::ZeroFunctor<float, 1, 1, 0>)"
    );
    assert_eq!(readable("_Z1fIJEJEEvv"), "void f<>()");
    assert_eq!(readable("_Z1fIiJEEvT_DpT0_"), "void f<int>(int)");
    assert_eq!(readable("_Z1fIiJEiEvv"), "void f<int, , int>()");
    assert_eq!(readable("_Z1fIJiiEEvDpT_"), "void f<int, int>(int, int)");
}

/// Two hundred thousand names of 4 kB each are 800 MB: the memory for names is bounded, and a sentence reports the
/// rest.
#[test]
fn names_are_bounded_in_bytes() {
    let mut shown = KernelNames::default();
    let long = |i: usize| format!("{i:04000}");
    let kept = (0..200_000).filter(|i| shown.name(long(*i).as_bytes(), false).is_some()).count();
    assert!((30_000..40_000).contains(&kept), "{kept}");
    assert_eq!(shown.beyond, 200_000 - kept as u64);
    assert!(shown.name(long(0).as_bytes(), false).is_some(), "it is known");
    let mut real = KernelNames::default();
    let name = |i: usize| format!("{i:01000}");
    assert!((0..100_000).all(|i| real.name(name(i).as_bytes(), false).is_some()), "as PyTorch has them");
}

#[test]
fn readable_texts_are_bounded_too() {
    let mut names = KernelNames::default();
    let symbol = |i: usize| format!("_Z1000x{i:0999}IiEvT_");
    let all: Vec<_> = (0..100_000).filter_map(|i| names.name(symbol(i).as_bytes(), false)).collect();
    assert_eq!(all.len(), 100_000);
    let readable = all.iter().filter(|name| names.text(name).starts_with("void ")).count();
    assert!((20_000..60_000).contains(&readable), "{readable}");
    // Shown again, they are as before.
    assert_eq!(all.iter().filter(|name| names.text(name).starts_with("void ")).count(), readable);
    assert_eq!(names.beyond, 100_000 - readable as u64);
}
