"""Instants that a trace has too. In: nothing. Out: CLOCK_MONOTONIC, right after a call of cudaMemGetInfo."""

import time

import torch


def instant():
    torch.cuda.synchronize()
    torch.cuda.mem_get_info()
    return time.monotonic_ns()
