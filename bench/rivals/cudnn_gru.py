#!/usr/bin/env python3
"""Microseconds of torch.nn.GRU (cuDNN) over whole sequences, fp16 and fp32, replayed from a CUDA graph. JSON on stdout.

Needs PyTorch with CUDA. Inputs and weights are random, outputs are compared with float64 first.
"""
import json
import statistics
import sys

import torch

SHAPES = [(100, 1, 64, 64), (100, 64, 256, 256), (500, 32, 512, 512), (100, 128, 1024, 1024), (100, 1, 256, 256), (100, 1, 512, 512),
          (50, 64, 128, 256)]


@torch.no_grad()
def time_shape(t: int, n: int, c: int, h: int, dtype: torch.dtype) -> dict:
    torch.backends.cudnn.allow_tf32 = False
    exact = torch.nn.GRU(c, h).double().cuda().eval()
    x = torch.randn(t, n, c, device="cuda", dtype=torch.double)
    wanted = exact(x)[0]
    net = torch.nn.GRU(c, h).cuda().to(dtype).eval()
    net.load_state_dict({k: v.to(dtype) for k, v in exact.state_dict().items()})
    net.flatten_parameters()
    x = x.to(dtype)
    error = ((net(x)[0].double() - wanted).norm() / wanted.norm()).item()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            net(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)
    graph.replay()
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / 5)
    return {"t": t, "n": n, "c": c, "h": h, "dtype": str(dtype).removeprefix("torch."), "us": statistics.median(times),
            "rel_error": error}


def main() -> None:
    rows = [time_shape(*shape, dtype) for shape in SHAPES for dtype in (torch.half, torch.float)]
    json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
               "mode": "graph", "state": "hot", "statistic": "median of 9 times 5 replays", "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
