"""JAX: a compiled step, called again and again. In: a number of steps [200]. Out: a line of JSON: how many there were,
and the result.

XLA does not try several implementations of a product: which one it takes, and how many kernels the trials launch,
would differ from run to run.
"""

import json
import os
import sys

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

WIDTH = 2048


@jax.jit
def step(values, weight):
    for _ in range(3):
        values = jnp.tanh(values @ weight) + 1.0
    return values / values.max()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if jax.default_backend() != "gpu":
        sys.exit(f"JAX has no GPU here, but {jax.default_backend()}")
    weight = jnp.full((WIDTH, WIDTH), 1.0 / WIDTH, dtype=jnp.float32)
    values = jnp.ones((WIDTH, WIDTH), dtype=jnp.float32)
    for _ in range(steps):
        values = step(values, weight)
    print(json.dumps({"steps": steps, "sum": float(values.sum())}))


if __name__ == "__main__":
    main()
