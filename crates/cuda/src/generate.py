#!/usr/bin/env python3
"""Makes table.txt, the facts about CUDA's functions in this crate.

usage: scripts/tables [--check]

In: ../data/functions.tsv, the prototypes of the toolkits' headers, one a line,
tab-separated (scripts/cuda-table makes the rows of a newer toolkit):

  name   library(d driver, r runtime)  x if exported or -  category or -  majors or -  returns  parameters

A parameter is name:kind:type; `struct/24` is the kind of a structure of 24
bytes passed by value; `=NAME` in place of parameters means those of NAME.
And ../data/by-hand.txt: rows of table.txt without traits, for functions that no
header has; ../data/nccl.tsv: NCCL's functions as nccl.h has them (versions
2.18.1 to 2.32.3: no prototype changed), the first version that has each, and
its parameters as name:type; layouts.txt, whose first words are the structures
that are known.
Out, sorted by name, one fact per line; nccl.txt has the rows of NCCL, whose
library is o, other:

  table.txt, nccl.txt    name[@majors] library category returns traits parameters

A parameter is name:kind[=detail]:place. `=NAME` in place of parameters means
those of NAME. `@11-12` means the prototype in these majors of the library. A
place is the number of a word: 0..5 are registers, 6.. the stack behind the
return address; `1+2` is a structure in two registers, `6/24` is 24 bytes on the
stack, `v` is a vector register. The place on AArch64 follows after `|` if it
differs; there registers 6 and 7 count as words 6 and 7, and `2*` is a pointer
to a copy of the structure.

A function without a category gets that of the other versions of its base name
(cuMemAlloc that of cuMemAlloc_v2) if they agree; "-" means none. Functions that
wait are `sync`, those that start kernels or graphs `launch`, those that only
read `query`.

Traits are what a call means for memory, streams and the calls around it
(traits.rs has the words), separated by commas; "-" means none. They are written
by hand in both tables, and this program keeps them. A new function gets those of
its base name without what depends on parameters.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data")
REGISTERS = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]
RETURNS = {
    "CUresult": "status",
    "cudaError_t": "status",
    "void": "void",
    "const char *": "pointer",
    "void **": "pointer",
}

# The targets of pointers, which the facts lack because they were made from C
# types alone. Keyed by base name and parameter, or by parameter alone.
FIX = {
    "__cudaRegisterFunction.deviceFun": "ptr",
    "__cudaRegisterFunction.deviceName": "name",
    "__cudaRegisterVar.deviceAddress": "ptr",
    "__cudaRegisterVar.deviceName": "name",
    "cuDeviceGetLuid.luid": "ptr",
    "cuDeviceGetLuid.deviceNodeMask": "out=u32",
    "cuLibraryGetKernel.name": "name",
    "cudaLibraryGetKernel.name": "name",
    "cuModuleGetFunction.name": "name",
    "cuGetExportTable.ppExportTable": "out=ptr",
    "cudaGetExportTable.ppExportTable": "out=ptr",
    "cudaGetSurfaceReference.surfref": "out=ptr",
    "cudaGetTextureReference.texref": "out=ptr",
    "cudaGraphMemFreeNodeGetParams.dptr_out": "out=ptr",
    "cuLogicalEndpointQuery.queryStatus": "ptr",
    "cuModuleEnumerateFunctions.functions": "ptr",
    "cuLibraryEnumerateKernels.kernels": "ptr",
    "cudaLibraryEnumerateKernels.kernels": "ptr",
    "cudaSetValidDevices.device_arr": "ptr",
    "cuGraphAddNode.nodeParams": "in=CUgraphNodeParams",
    "cudaGraphAddNode.nodeParams": "in=cudaGraphNodeParams",
    # Arrays that the function reads or fills although the type looks like one value.
    "*.capabilities": "ptr",
    "*.dataSizes": "ptr",
    "*.attributes": "ptr",
    "*.data": "ptr",
    "*.from": "ptr",
    "*.to": "ptr",
    "*.nodes": "ptr",
    "*.pNodes": "ptr",
    "*.rootNodes": "ptr",
    "*.pRootNodes": "ptr",
    "*.dependencies": "ptr",
    "*.pDependencies": "ptr",
    "*.dependentNodes": "ptr",
    "*.pDependentNodes": "ptr",
    "*.resources": "ptr",
    "*.jitOptions": "ptr",
    "*.libraryOptions": "ptr",
    "*.options": "ptr",
    "*.dependencies_out": "out=ptr",
    "*.edgeData_out": "out=ptr",
    "cudaPointerGetAttributes.attributes": "out=cudaPointerAttributes",
    "cuMemSetAccess.desc": "array=CUmemAccessDesc,3",
    "cuMemPoolSetAccess.map": "array=CUmemAccessDesc,2",
    "cudaMemPoolSetAccess.descList": "array=cudaMemAccessDesc,2",
    "cuMemcpyBatchAsync.dsts": "array=devptr,3",
    "cuMemcpyBatchAsync.srcs": "array=devptr,3",
    "cuMemcpyBatchAsync.sizes": "array=u64,3",
    "cudaMemcpyBatchAsync.dsts": "array=ptr,3",
    "cudaMemcpyBatchAsync.srcs": "array=ptr,3",
    "cudaMemcpyBatchAsync.sizes": "array=u64,3",
    "cuMemPrefetchBatchAsync.dptrs": "array=devptr,2",
    "cuMemPrefetchBatchAsync.sizes": "array=u64,2",
    "cuMemDiscardBatchAsync.dptrs": "array=devptr,2",
    "cuMemDiscardBatchAsync.sizes": "array=u64,2",
    "cuMemDiscardAndPrefetchBatchAsync.dptrs": "array=devptr,2",
    "cuMemDiscardAndPrefetchBatchAsync.sizes": "array=u64,2",
    "cudaMemPrefetchBatchAsync.dptrs": "array=ptr,2",
    "cudaMemPrefetchBatchAsync.sizes": "array=u64,2",
    "cudaMemDiscardBatchAsync.dptrs": "array=ptr,2",
    "cudaMemDiscardBatchAsync.sizes": "array=u64,2",
    "cudaMemDiscardAndPrefetchBatchAsync.dptrs": "array=ptr,2",
    "cudaMemDiscardAndPrefetchBatchAsync.sizes": "array=u64,2",
    # Flags that have names (names.rs).
    "cuStreamCreate.Flags": "flags=stream",
    "cuStreamCreateWithPriority.flags": "flags=stream",
    "cudaStreamCreateWithFlags.flags": "flags=stream",
    "cudaStreamCreateWithPriority.flags": "flags=stream",
    "cuEventCreate.Flags": "flags=event",
    "cudaEventCreateWithFlags.flags": "flags=event",
    "cuMemHostAlloc.Flags": "flags=hostalloc",
    "cudaHostAlloc.flags": "flags=hostalloc",
    "cuMemHostRegister.Flags": "flags=hostregister",
    "cudaHostRegister.flags": "flags=hostregister",
    "cuMemAllocManaged.flags": "flags=attach",
    "cudaMallocManaged.flags": "flags=attach",
    "cuStreamAttachMemAsync.flags": "flags=attach",
    "cudaStreamAttachMemAsync.flags": "flags=attach",
    "cuCtxCreate.flags": "flags=context",
    "cuCtxSetFlags.flags": "flags=context",
    "cuDevicePrimaryCtxSetFlags.flags": "flags=context",
    "cudaSetDeviceFlags.flags": "flags=context",
}

# The structures whose fields are known.
with open(os.path.join(HERE, "layouts.txt")) as layouts:
    LAYOUTS = {line.split(" ")[0] for line in layouts}

SCALARS = {
    "size_t": "u64",
    "cuuint64_t": "u64",
    "unsigned long long": "u64",
    "unsigned int": "u32",
    "cuuint32_t": "u32",
    "CUlogicalEndpointId": "u32",
    "CUlogIterator": "u32",
    "cudaLogIterator": "u32",
    "unsigned short": "u16",
    "unsigned char": "u8",
    "int": "i32",
    "CUdevice": "device",
    "float": "f32",
    "double": "f64",
    "CUtexObject": "handle",
    "CUsurfObject": "handle",
    "cudaTextureObject_t": "handle",
    "cudaSurfaceObject_t": "handle",
    "CUgraphConditionalHandle": "handle",
    "cudaGraphConditionalHandle": "handle",
}


def without_stream(name):
    return re.sub("_pt[sd][sz]$", "", name)


def base_of(name):
    return re.sub(r"_v\d+$", "", without_stream(name))


def plain(c_type):
    return re.sub(r"\b(const|struct|enum)\b *| *\*$", "", c_type).strip()


def token(function, arg):
    """The kind of a parameter, in the words of table.txt."""
    kind, c_type, name = arg["kind"], arg["type"], arg["name"]
    # The 32-bit entry points have structures of their own.
    for key in (f"{without_stream(function)}.{name}", f"{base_of(function)}.{name}", f"*.{name}"):
        fixed = FIX.get(key)
        if fixed and not (key[0] == "*" and "*" not in c_type):
            return fixed
    target = plain(c_type)
    if kind in ("size", "dim", "usize"):
        return "u32" if target == "unsigned int" else kind
    if kind in ("u32", "u64", "i32"):
        return SCALARS[target]
    if kind in ("handle", "devptr", "devptr32", "fnptr", "device", "float", "cstr"):
        return kind
    if kind == "flags":
        return {"u64": "flags64", "i32": "i32"}.get(SCALARS[target], "flags")
    if kind in ("enum", "struct"):
        return f"{kind}={target}"
    if kind == "out-cstr":
        return "out=chars"
    if kind == "out-ptr":
        return "out=text" if "char" in c_type else "out=ptr"
    if kind == "out-devptr":
        return "out=devptr32" if "_v1" in c_type else "out=devptr"
    if kind == "out-handle":
        return "out=handle"
    if kind == "out-scalar":
        return f"out={SCALARS.get(target, target)}"
    if target in LAYOUTS and kind in ("in-struct", "struct-ptr"):
        if c_type.startswith("const ") or ("memlocation" in target.lower() and not name.endswith("_out")):
            return f"in={target}"
        if "NodeParams" in target or "NODE_PARAMS" in target:
            if "ALLOC" in target.upper() and "Get" not in function:
                return f"inout={target}"
        if "Get" in function or function.startswith(("cudaMalloc3D", "cudaIpc", "cuIpc")):
            return f"out={target}"
    return "ptr"


def placed(arguments):
    """The arguments with their places in both calling conventions."""
    x86, x86_stack, vectors = 0, 8, 0
    arm, arm_stack = 0, 0
    for argument in arguments:
        size = argument["size"] if argument["kind"] == "struct" else 8
        if argument["kind"] == "float":
            argument["x86"], argument["arm64"] = f"xmm{vectors}", f"v{vectors}"
            vectors += 1
            continue
        need = (size + 7) // 8
        if size <= 16 and x86 + need <= 6:
            argument["x86"] = "+".join(REGISTERS[x86 : x86 + need])
            x86 += need
        else:
            argument["x86"] = f"[rsp+{x86_stack}]" + (f"..{size}B" if argument["kind"] == "struct" else "")
            x86_stack += need * 8
        star, need = ("*", 1) if size > 16 else ("", need)
        if arm + need <= 8:
            argument["arm64"] = star + "+".join(f"x{arm + i}" for i in range(need))
            arm += need
        else:
            arm = 8
            argument["arm64"] = f"[sp+{arm_stack}]"
            arm_stack += need * 8
    return arguments


def read_args(words):
    args = []
    for text in words:
        name, kind, c_type = text.split(":")
        kind, _, size = kind.partition("/")
        args.append({"name": name, "kind": kind, "type": c_type, "size": int(size or 0)})
    return placed(args)


def read():
    """{name: facts} of functions.tsv. Of several prototypes the newest is the first."""
    facts = {}
    with open(os.path.join(DATA, "functions.tsv")) as lines:
        for line in lines:
            name, library, exported, category, majors, returns, *words = line.rstrip("\n").split("\t")
            row = facts.setdefault(name, {
                "lib": {"d": "libcuda", "r": "libcudart"}[library], "exported": exported == "x", "ret": returns,
                "top": category.strip("-"), "base": base_of(name), "args": words, "variants": {},
            })
            if majors != "-":
                row["variants"][majors] = words
    for row in list(facts.values()):
        of = facts[row["args"][0][1:]] if row["args"] and row["args"][0][0] == "=" else row
        row["args"], row["variants"] = of["args"], of["variants"]
    for row in facts.values():
        row["args"] = read_args(row["args"])
        row["variants"] = {majors: read_args(words) for majors, words in row["variants"].items()}
    return facts


def word(place):
    place = place.replace("x86:", "")
    registers = {"rdi": 0, "rsi": 1, "rdx": 2, "rcx": 3, "r8": 4, "r9": 5}
    if place in registers:
        return str(registers[place])
    if "+" in place and place[0] != "[":
        return "+".join(word(p) for p in place.split("+"))
    if m := re.fullmatch(r"x(\d)", place):
        return m[1]
    if m := re.fullmatch(r"\*x(\d)", place):
        return m[1] + "*"
    if m := re.fullmatch(r"\[rsp\+(\d+)\](?:\.\.(\d+)B)?", place):
        return str(int(m[1]) // 8 - 1 + 6) + (f"/{m[2]}" if m[2] else "")
    if m := re.fullmatch(r"\[sp\+(\d+)\]", place):
        return str(int(m[1]) // 8 + 8)
    if place[:3] == "xmm" or place[0] == "v":
        return "v"
    raise ValueError(place)


def params(function, args):
    if function == "cudaCreateChannelDesc":
        # It returns 20 bytes through a hidden pointer: in rdi, and on AArch64 in x8.
        shifted = ["rsi", "rdx", "rcx", "r8", "r9"]
        args = [dict(a, x86=shifted[i]) for i, a in enumerate(args)]
    out = []
    for arg in args:
        x86, arm = word(arg["x86"]), word(arg["arm64"])
        place = x86 if x86 == arm else f"{x86}|{arm}"
        out.append(f"{arg['name']}:{token(function, arg)}:{place}")
    return " ".join(out)


def variants(function, row):
    """[(majors or "", parameters)], newest first. Driver symbols have their version in their name instead."""
    if not row["variants"]:
        return [("", params(function, row["args"]))]
    found = {}
    for versions, args in row["variants"].items():
        majors = [int(major) for major in versions.split(",")]
        found.setdefault(params(function, args), []).extend(majors)
    if len(found) == 1:
        return [("", next(iter(found)))]
    out = []
    for text, majors in sorted(found.items(), key=lambda f: -max(f[1])):
        low, high = min(majors), max(majors)
        out.append((f"@{low}" if low == high else f"@{low}-{high}", text))
    return out


LAUNCHES = re.compile(r"cu(da)?(Launch(Cooperative)?Kernel(Ex|ExC|MultiDevice)?|Launch|LaunchGrid(Async)?|GraphLaunch)$")


def category_of(name, row, known):
    base = base_of(name)
    for category, words in (("sync", "Synchronize$"), ("query", "Query$"), ("launch", LAUNCHES)):
        if re.search(words, base):
            return category
    of_base = known.get(row["base"], set())
    category = row["top"] or (next(iter(of_base)) if len(of_base) == 1 else "-")
    return "query" if category in ("init", "managed", "-") and "Get" in base else category


def traits_of(name, kept):
    """The traits column of a row: as in table.txt, or a guess for a new function."""
    plain = without_stream(name)
    if name in kept or plain in kept:
        return kept.get(name, kept.get(plain))
    words = [word for word in kept.get(base_of(name), "-").split(",") if ":" not in word and word != "-"]
    if "Async" in name and "async" not in words:
        words.append("async")
    return ",".join(words) or "-"


def traits_kept(table):
    """{name: traits} of a table as it is."""
    with open(os.path.join(HERE, table)) as lines:
        rows = [line.split() for line in lines]
    return {row[0].partition("@")[0]: row[4] for row in rows}


def functions(facts):
    kept = traits_kept("table.txt")
    known = {}
    for row in facts.values():
        if row["top"]:
            known.setdefault(row["base"], set()).add(row["top"])
    lines = {}
    with open(os.path.join(DATA, "by-hand.txt")) as by_hand:
        for line in by_hand:
            if line[0] != "#":
                name, library, category, returns, *rest = line.split()
                lines[name, ""] = " ".join([name, library, category, returns, traits_of(name, kept), *rest])
    for name, row in facts.items():
        head = f"{ {'libcuda': 'd', 'libcudart': 'r'}[row['lib']] } {category_of(name, row, known)}"
        head += f" {RETURNS.get(row['ret'], 'other')} {traits_of(name, kept)}"
        base = without_stream(name)
        of_base = facts.get(base)
        for at, (majors, text) in enumerate(variants(name, row)):
            if base != name and of_base and same(variants(base, of_base), variants(name, row)):
                if at == 0:
                    lines[name, ""] = f"{name} {head} ={base}"
                continue
            lines[name, majors] = f"{name}{majors} {head} {text}".rstrip()
    # Sorts by code point, not by locale: Rust's binary search compares bytes.
    return [lines[key] for key in sorted(lines)]


def same(some, others):
    """Whether prototypes differ at most in the names of parameters."""

    def shape(rows):
        return [(majors, [p.split(":")[1:] for p in text.split()]) for majors, text in rows]

    return shape(some) == shape(others)


# The kinds of NCCL's types. Keyed by function and parameter, by parameter alone, or by type.
NCCL = {
    "ncclCommInitAll.comm": "outs=handle,1",
    "ncclGetUniqueId.uniqueId": "out=ncclUniqueId",
    "ncclCommGetUniqueId.uniqueId": "out=ncclUniqueId",
    "ncclParamGet.out": "ptr",
    "*.devlist": "array=i32,1",
    "*.excludeRanksList": "array=i32,2",
    "size_t": "size",
    "int": "i32",
    "unsigned int": "u32",
    "int*": "out=i32",
    "int32_t*": "out=i32",
    "uint32_t*": "out=u32",
    "uint64_t*": "out=u64",
    "void**": "out=ptr",
    "const char*": "cstr",
    "const char**": "out=text",
    "ncclUniqueId": "struct=ncclUniqueId",
    "ncclUniqueId*": "in=ncclUniqueId",
    "const ncclUniqueId*": "in=ncclUniqueId",
    "ncclComm_t*": "out=handle",
    "ncclWindow_t*": "out=handle",
    "ncclParamHandle_t*": "out=handle",
    "ncclResult_t*": "out=ncclResult_t",
    "ncclRedOp_t*": "out=ncclRedOp_t",
}
NCCL_ENUMS = ["ncclCommMemStat_t", "ncclDataType_t", "ncclRedOp_t", "ncclResult_t", "ncclScalarResidence_t"]
NCCL_HANDLES = ["ncclComm_t", "const ncclComm_t", "cudaStream_t", "ncclWindow_t", "ncclParamHandle_t"]
NCCL_RETURNS = {
    "ncclGetErrorString": "pointer",
    "ncclGetLastError": "pointer",
    "ncclParamDumpAll": "other",
    "ncclResetDebugInit": "void",
}


def nccl_kind(function, name, c_type):
    if c_type in NCCL_ENUMS:
        return f"enum={c_type}"
    if c_type in NCCL_HANDLES:
        return "handle"
    keys = (f"{function}.{name}", f"*.{name}", c_type)
    return next((NCCL[key] for key in keys if key in NCCL), "ptr")


def nccl():
    """The rows of NCCL's functions."""
    kept = traits_kept("nccl.txt")
    lines = []
    with open(os.path.join(DATA, "nccl.tsv")) as rows:
        for row in rows:
            function, _, *params = row.rstrip("\n").split("\t")
            args = []
            for name, c_type in (param.split(":") for param in params):
                by_value = c_type == "ncclUniqueId"
                args.append({"name": name, "type": c_type, "kind": "struct" if by_value else "ptr", "size": 128})
            words = [function, "o", "-", NCCL_RETURNS.get(function, "status"), kept.get(function, "-")]
            for arg in placed(args):
                x86, arm = word(arg["x86"]), word(arg["arm64"])
                place = x86 if x86 == arm else f"{x86}|{arm}"
                words.append(f"{arg['name']}:{nccl_kind(function, arg['name'], arg['type'])}:{place}")
            lines.append(" ".join(words))
    return sorted(lines)


def main(folder):
    for table, lines in (("table.txt", functions(read())), ("nccl.txt", nccl())):
        with open(os.path.join(folder, table), "w") as out:
            out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
