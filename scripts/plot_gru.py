#!/usr/bin/env python3
"""Plots of an integer GRU's errors as PNG: every tensor's SQNR step by step, and the error of its tables.

usage: plot_gru.py [--verify VERIFY.json] [--model NET.lbgru] --out PREFIX
  VERIFY.json   what `lowbit gru verify NET.lbgru --input X.npy --json` prints  -> PREFIX.tensors.png
  NET.lbgru     its tables, in output steps beside the correctly rounded functions -> PREFIX.tables.png
Needs matplotlib and numpy. Without matplotlib the numbers go to PREFIX.tensors.csv and PREFIX.tables.csv.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None

TYPES = {"U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16, "I32": np.int32, "I64": np.int64, "F32": np.float32}


def read_model(path: Path) -> tuple[dict[str, np.ndarray], bool]:
    """Tensors by name; whether tables have the seed's form."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    seed = json.loads(header["__metadata__"]["config"]).get("table", {}).get("mode") == "seed"
    tensors = {name: np.frombuffer(data, TYPES[e["dtype"]], count=int(np.prod(e["shape"])), offset=8 + size + e["data_offsets"][0])
            .reshape(e["shape"]) for name, e in header.items() if name != "__metadata__" and e["dtype"] in TYPES}
    return tensors, seed


def shifted(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    """x 2^-k, half to even, on whole numbers."""
    right = np.maximum(k, 0)
    add = np.where(right > 0, (1 << np.maximum(right - 1, 0)) - 1 + ((x >> right) & 1), 0)
    return np.where(k > 0, (x + add) >> right, x << np.maximum(-k, 0))


def table_errors(model: dict[str, np.ndarray], seed: bool, cell: int, gate: str, source: int) -> tuple[np.ndarray, np.ndarray]:
    """Real inputs, and the table's output less the rounded function's, in output steps."""
    formats, prefix = model[f"cells.{cell}.tensors"], f"cells.{cell}.table.{gate}."
    (bits, unsigned, _, _, shift, zero), out = formats[source].astype(int), formats[source + 1].astype(int)
    low = 0 if unsigned else -(1 << (bits - 1))
    q = np.arange(low, low + (1 << bits), dtype=np.int64)
    out_low = 0 if out[1] else -(1 << (out[0] - 1))
    out_high = out_low + (1 << out[0]) - 1
    if prefix + "direct" in model:
        y = model[prefix + "direct"].astype(np.int64)
    else:
        i = np.searchsorted(model[prefix + "threshold"], q, side="right")
        slope, intercept, k = (model[prefix + n].astype(np.int64)[i] for n in ("slope", "intercept", "shift"))
        if seed:
            y = shifted(slope * (q - zero), k) + intercept
        else:
            y = shifted(slope * (q - zero) + intercept, k) + out[5]
        y = np.clip(y, out_low, out_high)
    x = np.ldexp((q - zero).astype(float), -shift)
    exact = np.tanh(x) if gate == "n" else 1 / (1 + np.exp(-x))
    return x, y - np.clip(np.rint(np.ldexp(exact, out[4])) + out[5], out_low, out_high)


def plot_tensors(verify: dict, prefix: str) -> None:
    cells = sorted({t["cell"] for t in verify["tensors"]})
    if plt is None:
        with open(prefix + ".tensors.csv", "w") as file:
            for t in verify["tensors"]:
                print(t["cell"], t["tensor"], *(f"{v:.2f}" for v in t["by_step"]), sep=",", file=file)
        return
    figure, axes = plt.subplots(len(cells), 1, figsize=(9, 3.2 * len(cells)), squeeze=False, sharex=True)
    for axis, cell in zip(axes[:, 0], cells):
        for t in (t for t in verify["tensors"] if t["cell"] == cell):
            axis.plot(t["by_step"], label=f"{t['tensor']} ({t['sqnr_db']:.1f})", linewidth=1)
        axis.set_ylabel(f"cell {cell}: SQNR, dB")
        axis.legend(fontsize=7, ncol=2, loc="center left", bbox_to_anchor=(1, 0.5))
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel("step")
    figure.savefig(prefix + ".tensors.png", dpi=120, bbox_inches="tight")


def plot_tables(model: dict[str, np.ndarray], seed: bool, prefix: str) -> None:
    cells = sorted(int(n.split(".")[1]) for n in model if n.endswith(".tensors"))
    curves = [(c, g, *table_errors(model, seed, c, g, s)) for c in cells for g, s in (("u", 4), ("r", 6), ("n", 8))]
    if plt is None:
        with open(prefix + ".tables.csv", "w") as file:
            for cell, gate, x, error in curves:
                for v, e in zip(x, error):
                    print(cell, gate, v, int(e), sep=",", file=file)
        return
    figure, axes = plt.subplots(len(cells), 3, figsize=(12, 2.8 * len(cells)), squeeze=False)
    for axis, (cell, gate, x, error) in zip(axes.ravel(), curves):
        axis.step(x, error, linewidth=0.8)
        axis.set_title(f"cell {cell}, {gate}: worst {np.abs(error).max():.0f}, mean {np.abs(error).mean():.2f} steps", fontsize=9)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(prefix + ".tables.png", dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    if options.verify is None and options.model is None:
        parser.error("nothing to plot: give --verify or --model")
    if options.verify is not None:
        plot_tensors(json.loads(options.verify.read_text()), options.out)
    if options.model is not None:
        plot_tables(*read_model(options.model), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
