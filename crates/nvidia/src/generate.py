#!/usr/bin/env python3
"""Makes layouts.txt, the payloads of the driver's ioctls.

usage: scripts/tables [--check]

In, in ../data: requests.txt (kind, number in hex, name, struct or -) and
structs.txt, which describes itself. The tables below say which fields a reader
wants, under which names. Out, one layout a line:

  kind number name tag size status field…
    kind      n an escape of nvidia.ko, u a request of nvidia-uvm, a parameters of RM_ALLOC (name is
              the key that classes.txt uses), v a function of NV_ESC_RM_VID_HEAP_CONTROL
    tag       the first driver with this layout; the tags of one number and struct ascend
    status    offset of the u32 with the result, or -
    field     [>|=]name:kind[=class_name][?]@offset
              > the driver writes it, = both write it, none: the caller writes it. ?: omitted when zero
              kind h handle (with =: also the class of its object, under that name), c class,
              e engine, x4 x8 hexadecimal, n1 n2 n4 n8 number, i4 signed, b flag, u uuid,
              s64 text, l8 the last byte's offset (shown as a size), *72 size of the payload divided by 72
"""

import os
import re
import sys

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
OLDEST = "515.43.04"

# Shorter names, and one name for the same thing everywhere.
RENAME = {
    "hRoot": "client",
    "hObjectParent": "parent",
    "hObjectNew": "object",
    "hObjectOld": "object",
    "hClientSrc": "source_client",
    "hObjectSrc": "source_object",
    "pLinearAddress": "address",
    "pMemory": "address",
    "hVASpace": "vaspace",
    "hVaSpace": "vaspace",
    "pAllocParms": "params_address",
    "params": "params_address",
    "paramStructPtr": "params_address",
    "pRightsRequested": "rights",
    "versionString": "version",
    "uvmFd": "fd",
    "ctl_fd": "ctl_fd",
    "hCtxDma": "dma",
    "hSubDevice": "subdevice",
    "bAdd": "add",
    "bAllowMmap": "allow_mmap",
    "rc": "result",
    "MoreEvents": "more_events",
    "minor_number": "minor",
    "is8Supported": "is_8_supported",
}
# Handles for which the class of the object is shown too.
RESOLVED = {"object": "object_class", "memory": "memory_class", "channel": "channel_class",
            "dma": "dma_class", "parent": "parent_class"}
# Fields that decode.rs decodes itself (the identity of an object), or that are of no use to users.
DROP = {
    0x27: {"client", "parent", "object", "class"},
    0x28: {"client", "parent", "object", "class"},
    0x29: {"client", "parent", "object"},
    0x2A: {"client", "object", "cmd", "params_address"},
    0x2B: {"client", "parent", "object", "class", "params_address", "rights"},
    0x34: {"client", "parent", "object", "source_client", "source_object"},
    0xD3: {"ptr"},
}
# The direction of a value, by request (None: all requests of that device) and field.
OUT = {
    ("n", 0x4A): {"total", "free"},
    ("n", 0x52): {"more_events"},
    ("n", 0xC8): None,
    ("n", 0xD2): {"reply"},
    ("n", 0xD5): None,
    ("n", 0xD7): None,
    ("n", 0xDA): None,
    ("u", 23): {"range_group_id"},
    ("u", 37): {"numa_enabled", "numa_node_id"},
    ("u", 39): None,
    ("u", 51): {"user_space_start", "user_space_length"},
    ("u", 62): {"bytes_read"},
    ("u", 63): {"bytes_written"},
    ("u", 70): {"pageable_mem_access"},
    ("u", 2047): None,
}
BOTH = {
    ("n", 0x4E): {"address"},
    ("n", 0x4D): {"data", "entry"},
    ("n", 0x57): {"dma_offset"},
    ("n", 0xD2): {"version"},
    ("n", 0xD9): {"fd"},
    ("u", 1): {"requested_base"},
}
OPTIONAL = {"flags", "flags2", "kind_override", "rights", "internalflags", "smc_part_ref", "vaspace",
            "semaphore_address", "semaphore_payload", "ivc_heap_number", "dma_offset", "params_size"}
# The field with the result of a request; an int32_t of such a name has another meaning.
STATUS = ("status", "Status", "rmStatus", "adapterStatus")
EXPANDED = {"params", "pci_info", "sharePolicy"}
HEX_NAME = re.compile(r"(base|address|addr|buffer|ptr|_start|_va|flags2?|kind_override|offset|limit|id|mask|target|cmd|user|p_.*|attr|attr2|dev_node|payload|status|data|entry)$")
NUMBER_NAME = re.compile(r"(queue_buffer_size|server_id|stream_id|range_group_id|node_id|pid|num_|_type$|session)")


def version(tag):
    return tuple(int(part) for part in tag.split("."))


def snake(name):
    if name in RENAME:
        return RENAME[name]
    name = re.sub(r"^(?:h|p|ph|b)(?=[A-Z])", "", name)
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def kind_of(ctype, name):
    """The letter of a C type, or None for a type that is left out."""
    if ctype == "char[64]":
        return "s64"
    if "[" in ctype or ctype.startswith("union"):
        return None
    if ctype.endswith("nv_uuid"):
        return "u"
    if ctype.startswith("struct"):
        return None
    if name == "class":
        return "c"
    if ctype == "NvHandle" or (ctype == "NvU32" and name in ("client", "memory")):
        return "h"
    if ctype == "NvBool":
        return "b"
    if ctype in ("NvS32", "int", "int32_t"):
        return "i4"
    if ctype == "NvS16":
        return "i2"
    if ctype in ("NvP64", "void *", "OSVBLANKCALLBACKPROC"):
        return "x8"
    size = {"NvU8": 1, "uint8_t": 1, "NvU16": 2, "NvU32": 4, "NvV32": 4, "NV_STATUS": 4, "NvU64": 8,
            "uint64_t": 8, "UvmStream": 8}[ctype]
    number = NUMBER_NAME.search(name) or not HEX_NAME.search(name)
    return ("n" if number or size == 1 else "x") + str(size)


def flat(fields):
    """(offset, C type, name) without the members of structs that are shown as a whole or not at all."""
    deeper = 1
    for at, depth, text in fields:
        ctype, name = text.rsplit(" ", 1)
        ctype = ctype.strip()
        if depth == 1:
            deeper = 2 if name in EXPANDED and not ctype.startswith("NvP64") else 1
            if deeper == 2:
                continue
        elif depth != deeper:
            continue
        yield at, ctype, name


def field(kind, number, at, ctype, name):
    name = snake(name)
    if kind == "n" and name in DROP.get(number, ()):
        return None
    letter = kind_of(ctype, name)
    if letter is None:
        return None
    if (kind, number, name) == ("n", 0x27, "limit"):
        name, letter = "size", "l8"
    out = OUT.get((kind, number), set())
    way = ">" if out is None or name in out else "=" if name in BOTH.get((kind, number), ()) else ""
    new = (kind, number, name) == ("n", 0x54, "object")
    resolved = f"={RESOLVED[name]}" if letter == "h" and name in RESOLVED and not new else ""
    optional = "?" if name in OPTIONAL and way != ">" else ""
    return f"{way}{name}:{letter}{resolved}{optional}@{at}"


def rows_of(kind, number, name, struct, layouts, counted):
    versions = layouts.get(struct)
    if not versions:
        extra = f" {counted}" if counted else ""
        return [f"{kind} {number:x} {name} {OLDEST} 0 -{extra}"]
    rows = []
    before = None
    for layout in versions:
        status, parts = "-", [counted] if counted else []
        for at, ctype, cname in flat(layout["fields"]):
            if cname in STATUS and ctype != "int32_t":
                status = str(at)
                continue
            part = field(kind, number, at, ctype, cname)
            if part:
                parts.append(part)
        facts = " ".join([str(layout["size"]), status, *parts])
        if facts != before:
            rows.append(f"{kind} {number:x} {name} {layout['from_tag']} {facts}")
        before = facts
    return rows


# The useful fields of each; the offsets are the same in every tag (checked below if a layout is known).
ALLOC_ROWS = [
    ("memory", 120, "NV_MEMORY_ALLOCATION_PARAMS",
     "size:n8@64 alignment:n8?@72 type:n4@4 flags:x4@8 attr:x4@24 attr2:x4@28 offset:x8?@80 limit:x8?@88"
     " address:x8?@96 vaspace:h?@108"),
    ("channel", 304, "NV_CHANNEL_ALLOC_PARAMS",
     "engine:e@128 entries:n4@16 address:x8@8 flags:x4@20 context_share:h?@24 vaspace:h?@28"),
    ("group", 20, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", "engine:e@12 vaspace:h?@8"),
    ("vaspace", 48, "NV_VASPACE_ALLOCATION_PARAMETERS", "size:n8@8 index:n4@0 flags:x4@4"),
    ("share", 12, "NV_CTXSHARE_ALLOCATION_PARAMETERS", "vaspace:h@0 flags:x4@4 subcontext:n4@8"),
    ("device", 4, None, "device:n4@0"),
    ("subdevice", 4, None, "subdevice:n4@0"),
    ("event", 24, None, "event_class:c@8 source:h@4 parent_client:h@0 notify_index:x4@12 data:x8@16"),
    ("client", 108, None, "process:n4@4 process_name:s100@8"),
]
ALLOC_FIELD = {"vaspace": "hVASpace", "engine": "engineType", "entries": "gpFifoEntries", "context_share": "hContextShare",
               "subcontext": "subctxId"}
# Functions of NVOS32: number, name, the struct in its union, and the members shown.
HEAP = [
    (2, "ALLOC_SIZE", "AllocSize", ("hMemory", "type", "flags", "attr", "attr2", "size", "alignment", "limit", "address")),
    (3, "FREE", "Free", ("hMemory", "flags")),
    (5, "INFO", "Info", ("attr",)),
    (6, "ALLOC_TILED_PITCH_HEIGHT", "AllocTiledPitchHeight", ("hMemory", "type", "flags", "attr", "size", "height", "pitch")),
    (11, "DUMP", None, ()),
    (14, "ALLOC_SIZE_RANGE", "AllocSizeRange", ("hMemory", "type", "flags", "attr", "size", "alignment", "limit", "address")),
    (15, "REACQUIRE_COMPR", "ReacquireCompr", ("hMemory", "flags")),
    (16, "RELEASE_COMPR", "ReleaseCompr", ("hMemory", "flags")),
    (18, "GET_MEM_ALIGNMENT", "AllocHintAlignment", ("alignSize",)),
    (19, "HW_ALLOC", "HwAlloc", ("allocType", "allocSize")),
    (20, "HW_FREE", None, ()),
    (27, "ALLOC_OS_DESCRIPTOR", "AllocOsDesc", ("hMemory", "type", "flags", "attr", "attr2", "descriptor", "limit")),
]


def alloc_rows(layouts):
    rows = []
    for number, (key, size, struct, fields) in enumerate(ALLOC_ROWS):
        rows.append(f"a {number:x} {key} {OLDEST} {size} - {fields}")
        for layout in layouts.get(struct, []):
            known = {(at, text.rsplit(" ", 1)[1]) for at, depth, text in layout["fields"] if depth == 1}
            for part in fields.split(" "):
                name, at = part.split(":")[0], int(part.split("@")[1])
                cname = ALLOC_FIELD.get(name, name)
                aliases = {cname, {"address": "gpFifoOffset", "size": "vaSize"}.get(name)}
                assert any((at, alias) in known for alias in aliases), (key, layout["from_tag"], part)
    return rows


def heap_rows(layouts):
    rows = []
    for number, name, struct, members in HEAP:
        places = []
        for layout in layouts["NVOS32_PARAMETERS"]:
            inside, found = False, {}
            for at, depth, text in layout["fields"]:
                ctype, cname = text.rsplit(" ", 1)
                if depth == 2:
                    inside = cname == struct
                elif inside and depth == 3 and cname in members:
                    found[cname] = (at, ctype.strip())
            if found:
                places.append(found)
        assert all(place == places[-1] for place in places), struct
        found = places[-1] if places else {}
        fields = []
        for member in members:
            at, ctype = found[member]
            part = field("v", number, at, ctype, member)
            fields.append(part.replace("memory:h", "=memory:h") if name.startswith("ALLOC") else part)
        rows.append(" ".join([f"v {number:x} {name} {OLDEST} 184 20", *fields]))
    return rows


def read_structs():
    """{struct: [{from_tag, size, fields: [(offset, depth, "type name")]}]}, oldest first."""
    layouts = {}
    with open(os.path.join(DATA, "structs.txt")) as lines:
        for line in lines:
            words = line.split()
            if line[0] == " ":
                depth = (len(line) - len(line.lstrip())) // 2
                fields.append((int(words[0]), depth, " ".join(words[1:])))
            elif line[0] != "#":
                fields = []
                layouts.setdefault(words[0], []).append({"from_tag": words[1], "size": int(words[2]), "fields": fields})
    return layouts


def layout_rows():
    layouts = read_structs()
    counted = {("n", 0xC8): "cards:*72@0", ("n", 0xD4): "gpus:*4@0"}
    rows = []
    with open(os.path.join(DATA, "requests.txt")) as lines:
        for line in lines:
            kind, number, name, struct = line.split()
            number = int(number, 16)
            rows += rows_of(kind, number, name, struct, layouts, counted.get((kind, number), ""))
    return rows + alloc_rows(layouts) + heap_rows(layouts)


def main(folder):
    rows = layout_rows()
    with open(os.path.join(folder, "layouts.txt"), "w") as out:
        out.write("\n".join(rows) + "\n")


main(sys.argv[1])
