"""contexts.py [LIBCUDA]: two contexts and four streams on one GPU, by the driver's interface. In: the path of libcuda.
Out: a line of JSON: `contexts`, and in the order of the calls what each did: [op, context, stream], where op is launch,
alloc, free, copy or set, and the stream null where the call has none.
"""

import ctypes
import json
import random
import sys
import threading

# A kernel that does nothing, which the driver compiles.
PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
STEPS = 40
driver = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")
done = []


def call(name, *words):
    code = getattr(driver, name)(*words)
    if code:
        sys.exit(f"{name} failed with {code}")


def made(name, *words):
    """The handle that a function writes through its first argument."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *words)
    return handle


class Context:
    """A context that is current while it is made, with two streams, a function and some memory."""

    def __init__(self, device):
        self.handle = made("cuCtxCreate_v2", ctypes.c_uint(0), device)
        self.streams = [made("cuStreamCreate", ctypes.c_uint(1)) for _ in range(2)]
        self.module = made("cuModuleLoadData", PTX)
        self.function = made("cuModuleGetFunction", self.module, b"nothing")
        self.memory = made("cuMemAlloc_v2", ctypes.c_size_t(1 << 20))
        self.did("alloc", None)

    def did(self, op, stream):
        done.append([op, hex(self.handle.value), hex(stream.value) if stream else None])

    def launch(self, stream):
        ones = [ctypes.c_uint(1)] * 6
        call("cuLaunchKernel", self.function, *ones, ctypes.c_uint(0), stream, None, None)
        self.did("launch", stream)

    def set(self, stream):
        call("cuMemsetD8Async", self.memory, ctypes.c_ubyte(1), ctypes.c_size_t(4096), stream)
        self.did("set", stream)

    def copy(self, stream):
        host = (ctypes.c_char * 4096)()
        call("cuMemcpyHtoDAsync_v2", self.memory, host, ctypes.c_size_t(4096), stream)
        call("cuStreamSynchronize", stream)
        self.did("copy", stream)

    def short_lived(self, _):
        memory = made("cuMemAlloc_v2", ctypes.c_size_t(1 << 16))
        self.did("alloc", None)
        call("cuMemFree_v2", memory)
        self.did("free", None)

    def step(self, rng):
        stream = rng.choice([*self.streams, ctypes.c_void_p(None)])
        rng.choice([self.launch, self.launch, self.set, self.copy, self.short_lived])(stream)


def work(contexts, rng):
    """Makes one context after the other current, by both ways there are."""
    for _ in range(STEPS):
        context = rng.choice(contexts)
        if rng.random() < 0.5:
            call("cuCtxSetCurrent", context.handle)
            context.step(rng)
        else:
            call("cuCtxPushCurrent_v2", context.handle)
            context.step(rng)
            call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def main():
    call("cuInit", ctypes.c_uint(0))
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    contexts = [Context(device), Context(device)]
    work(contexts, random.Random(1))
    # Another thread, with nothing current at its begin. One after the other: so the order is known.
    other = threading.Thread(target=work, args=(contexts, random.Random(2)))
    other.start()
    other.join()
    print(json.dumps({"contexts": [hex(context.handle.value) for context in contexts], "done": done}))


if __name__ == "__main__":
    main()
