# lines.py [MOST]: for every code object of the standard library, or of its first MOST modules: first line, line table, and
# the line of each instruction by PyCode_Addr2Line. Out: PY_VERSION_HEX, then these, as little-endian words, by lengths.
import ctypes, os, struct, sys, sysconfig, types, warnings

warnings.simplefilter("ignore")
line = ctypes.pythonapi.PyCode_Addr2Line
line.argtypes = [ctypes.py_object, ctypes.c_int]
line.restype = ctypes.c_int
out = sys.stdout.buffer
out.write(struct.pack("<I", sys.hexversion))


def tell(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    lines = [line(code, at) for at in [-1, *range(0, len(code.co_code), 2)]]
    out.write(struct.pack("<iII", code.co_firstlineno, len(table), len(lines)) + table)
    out.write(struct.pack("<%di" % len(lines), *lines))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            tell(constant)


most = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30
for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
    folders[:] = sorted(set(folders) - {"site-packages", "dist-packages"})
    for name in sorted(names):
        if name.endswith(".py") and most > 0:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    code = compile(file.read(), name, "exec", dont_inherit=True)
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue
            most -= 1
            tell(code)
