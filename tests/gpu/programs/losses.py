"""Training that is the same in every run. In: a number of steps [150]; `deaf`: Ctrl-C does not end it. Out: `ready`
once PyTorch is loaded, then each loss with all its digits; at the end `done`.
"""

import os
import signal
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
import training  # noqa: E402


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    if sys.argv[2:] == ["deaf"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = training.net().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(256, training.WIDTH, device="cuda")
    target = torch.zeros_like(batch)
    for _ in range(steps):
        print(repr(training.step(model, optimizer, batch, target).item()), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
