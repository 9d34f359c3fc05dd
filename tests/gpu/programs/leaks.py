"""leaks.py LIBCUDART: leaks 64 KiB a step from one line, and frees what it takes from others. In: the path of the CUDA
runtime. Out: a line of JSON: pointer and bytes of what it leaks (`leaked`), and of what it takes once and keeps
(`held`).

The line that leaks ends with `# leak`.
"""

import ctypes
import json
import sys
import time

STEPS = 60
SMALL, BATCH, WEIGHTS = 64 << 10, 1 << 20, (8 << 20, 3 << 20)
runtime = ctypes.CDLL(sys.argv[1])
malloc, free = runtime.cudaMalloc, runtime.cudaFree
malloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
free.argtypes = [ctypes.c_void_p]
runtime.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def check(code):
    if code:
        sys.exit(f"a call failed with {code}")


def weights():
    for size in WEIGHTS:
        pointer = ctypes.c_void_p()
        check(malloc(ctypes.byref(pointer), size))
        yield pointer.value, size


def batch():
    pointer = ctypes.c_void_p()
    check(malloc(ctypes.byref(pointer), BATCH))
    check(runtime.cudaMemset(pointer, 0, BATCH))
    check(free(pointer))


def scratch():
    """The same function and size as the leak, from another line."""
    pointer = ctypes.c_void_p()
    check(malloc(ctypes.byref(pointer), SMALL))
    check(free(pointer))


def cached():
    pointer = ctypes.c_void_p()
    check(malloc(ctypes.byref(pointer), SMALL))  # leak
    return pointer.value, SMALL


def main():
    held, leaked = list(weights()), []
    for _ in range(STEPS):
        batch()
        scratch()
        leaked.append(cached())
        time.sleep(0.02)
    check(runtime.cudaDeviceSynchronize())
    kept = {"held": held, "leaked": leaked}
    print(json.dumps({kind: [[hex(pointer), size] for pointer, size in of] for kind, of in kept.items()}))


if __name__ == "__main__":
    main()
