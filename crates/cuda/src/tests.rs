use super::*;

#[test]
fn every_line_of_the_facts_is_understood() {
    let lines = include_str!("table.txt").lines().chain(include_str!("nccl.txt").lines());
    assert_eq!(table::rows().len(), lines.count());
    assert_eq!(ERRORS.len(), include_str!("errors.txt").lines().count());
    assert!(table::rows().len() > 1100 && ERRORS.len() > 200);
}

#[test]
fn the_facts_are_sorted_without_doubles() {
    assert!(table::rows().is_sorted_by(|a, b| (a.name, a.majors) < (b.name, b.majors)));
    assert!(ERRORS.is_sorted_by(|a, b| (a.api, a.code) < (b.api, b.code)));
}

#[test]
fn the_api_of_every_known_name_follows_from_the_name() {
    for r in table::rows() {
        assert_eq!(api(r.name), r.function.api, "{}", r.name);
    }
}

#[test]
fn names_of_other_libraries_are_not_cuda() {
    for name in [
        "cuserid",
        "curl_easy_init",
        "cublasSgemm_v2",
        "cudnnCreate",
        "cudbgGetAPI",
        "cuptiSubscribe",
        "cuFileRead",
        "ncclOfTheFuture",
        "cu",
        "cuda",
        "",
    ] {
        assert_eq!(api(name), Api::Other, "{name}");
        assert_eq!(FunctionTraits::of(name).returns, Returns::Other, "{name}");
        assert_eq!(category(name), Category::Other, "{name}");
        assert!(!is_runtime_name(name), "{name}");
    }
}

#[test]
fn errors_have_the_name_of_their_api() {
    assert_eq!(error_name(Api::Driver, 2), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(error_name(Api::Runtime, 2), Some("cudaErrorMemoryAllocation"));
    assert_eq!(error_name(Api::Driver, 0), Some("CUDA_SUCCESS"));
    assert_eq!(error_name(Api::Driver, -1), None);
    assert_eq!(error_name(Api::Other, 2), Some("ncclSystemError"));
    assert_eq!(error_name(Api::Other, 99), None);
}

#[test]
fn what_functions_return() {
    assert_eq!(FunctionTraits::of("cuInit").returns, Returns::Status);
    assert_eq!(FunctionTraits::of("cudaGetErrorString").returns, Returns::Pointer);
    assert_eq!(FunctionTraits::of("__cudaRegisterFunction").returns, Returns::Void);
    assert_eq!(FunctionTraits::of("cudaCreateChannelDesc").returns, Returns::Other);
    assert_eq!(FunctionTraits::of("cuBrandNewThing_v7").returns, Returns::Status);
    assert_eq!(FunctionTraits::of("__cudaBrandNewThing").returns, Returns::Other);
}

#[test]
fn categories() {
    for (name, expected) in [
        ("cuMemAlloc_v2", Category::Alloc),
        ("cuMemAlloc", Category::Alloc),
        ("cuMemFree_v2", Category::Free),
        ("cudaMemcpyAsync_ptsz", Category::Memcpy),
        ("cuMemsetD8_v2", Category::Memset),
        ("cuStreamSynchronize_ptsz", Category::Sync),
        ("cuCtxSynchronize_v2", Category::Sync),
        ("cuBrandNewSynchronize", Category::Sync),
        ("cudaEventQuery", Category::Query),
        ("cudaGetDevice", Category::Query),
        ("cuPointerGetAttribute", Category::Query),
        ("cuModuleGetFunction", Category::Module),
        ("cudaGetLastError", Category::Error),
        ("cudaGraphLaunch", Category::Launch),
        ("__cudaLaunchKernel_ptsz", Category::Launch),
        ("cuCtxCreate_v4", Category::Context),
        ("cuMemCreate", Category::VirtualMemory),
    ] {
        assert_eq!(category(name), expected, "{name}");
    }
}

#[test]
fn launches_are_kernel_launches_only_where_a_kernel_starts() {
    let launches: Vec<_> = table::rows().iter().map(|r| r.name).filter(|n| is_kernel_launch(n)).collect();
    assert_eq!(launches.len(), 20, "{launches:?}");
    for name in ["cuLaunchHostFunc", "cuLaunchHostFunc_v2_ptsz", "cuGraphLaunch"] {
        assert!(!is_kernel_launch(name), "{name}");
    }
    assert!(is_kernel_launch("cudaLaunch") && is_kernel_launch("cuLaunchKernelEx_ptsz"));
    assert!(is_graph_launch("cuGraphLaunch_ptsz") && !is_graph_launch("cuGraphCreate"));
}

#[test]
fn not_ready_is_an_answer_of_a_query_and_a_failure_elsewhere() {
    assert!(!FunctionTraits::of("cuStreamQuery_ptsz").is_failure(600));
    assert!(!FunctionTraits::of("cudaEventQuery").is_failure(600));
    assert!(FunctionTraits::of("cudaEventQuery").is_failure(700));
    assert!(FunctionTraits::of("cuEventElapsedTime").is_failure(600));
    assert!(FunctionTraits::of("cudaMalloc").is_failure(2));
    assert!(!FunctionTraits::of("cudaMalloc").is_failure(0));
    assert!(!FunctionTraits::of("__cudaRegisterFatBinary").is_failure(7));
}

#[test]
fn base_names() {
    assert_eq!(base_name("cuMemPrefetchAsync_v2_ptsz"), "cuMemPrefetchAsync");
    assert_eq!(base_name("cuMemcpyHtoD_v2"), "cuMemcpyHtoD");
    assert_eq!(base_name("cuInit"), "cuInit");
    assert_eq!(base_name("odd_vname"), "odd_vname");
}
