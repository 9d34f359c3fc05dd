"""PyTorch on four streams from two threads. In: nothing. Out: a line of JSON: the handles of the streams."""

import json
import threading

import torch

STEPS = 50


def work(streams):
    for number in range(STEPS):
        with torch.cuda.stream(streams[number % len(streams)]):
            numbers = torch.ones(1 << 16, device="cuda")
            on_host = (numbers * 2).cpu()
            assert on_host[0] == 2
            numbers.copy_(on_host)


def main():
    streams = [torch.cuda.Stream() for _ in range(4)]
    threads = [threading.Thread(target=work, args=(part,)) for part in (streams[:2], streams[2:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    print(json.dumps({"streams": [hex(stream.cuda_stream) for stream in streams]}))


if __name__ == "__main__":
    main()
