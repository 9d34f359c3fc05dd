"""CuPy: elementwise kernels, a product, a reduction, copies. In: a number of steps [200]. Out: a line of JSON: how
many there were, and the result.
"""

import json
import sys

import cupy

WIDTH = 2048


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    weight = cupy.full((WIDTH, WIDTH), 1.0 / WIDTH, dtype=cupy.float32)
    values = cupy.arange(WIDTH * WIDTH, dtype=cupy.float32).reshape(WIDTH, WIDTH) % 7
    for _ in range(steps):
        values = cupy.tanh(values @ weight) + 1.0
    print(json.dumps({"steps": steps, "sum": float(values.sum())}))


if __name__ == "__main__":
    main()
