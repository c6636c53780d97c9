"""Decodes any tensor of a lowbit checkpoint with nothing but NumPy and safetensors: python read_checkpoint.py DIR
[TENSOR]."""

import glob
import json
import sys

import numpy as np
from safetensors import deserialize

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I8": "i1", "I64": "<i8"}


def open_checkpoint(path):
    """(raw tensors by name, configuration of each quantized layer by name)"""
    q = json.load(open(path + "/config.json"))["quantization_config"]
    raw = {}
    for file in sorted(glob.glob(path + "/*.safetensors")):
        for name, t in deserialize(open(file, "rb").read()):
            a = np.frombuffer(t["data"], FLOATS[t["dtype"]]).reshape(t["shape"])
            raw[name] = (a.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else a
    return raw, {p + ".weight": q["config_groups"][g] for p, g in q["layers"].items()}


def values(fmt, codes, k, table):
    if fmt == "int8":
        return codes.view(np.int8)
    if fmt == "fp8":  # E4M3: sign, 4 bits exponent (bias 7), 3 bits mantissa
        e, m = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
        v = np.where(e == 0, np.ldexp(m, -9), np.ldexp(8 + m, e - 10)) * np.where(codes & 128, -1, 1)
        return np.where(codes & 127 == 127, np.nan, v)
    if fmt == "ternary-packed":  # five base-3 digits of the fraction byte / 256, most significant first
        digits = ((codes[:, :, None] * np.array([1, 3, 9, 27, 81], np.uint8)).astype(np.uint16) * 3) >> 8
        return digits.reshape(len(codes), -1)[:, :k].astype(np.int32) - 1
    b = {"int4": 4, "uint4": 4, "codebook4": 4, "int3": 3, "int3odd": 3, "codebook3": 3, "binary": 1}.get(fmt, 2)
    if fmt == "trellis3":
        b = 3
    bits = np.unpackbits(codes, axis=1, bitorder="little", count=k * b).reshape(len(codes), k, b)
    c = bits.astype(np.int32) @ (1 << np.arange(b))
    # bit a of an index is the parity of some bits of the code and of those before it in the row
    if fmt.startswith("trellis"):
        back, masks = {"trellis2": (4, (0x24, 0x28, 0x63, 0x86)), "trellis3": (3, (0x30, 0xA1, 0x152, 0x44))}[fmt]
        window = sum(np.pad(c, ((0, 0), (j, 0)))[:, :k] << (b * j) for j in range(back))
        parity = lambda v: (v[..., None] >> np.arange(9) & 1).sum(-1) & 1
        return table[sum(parity(window & m) << a for a, m in enumerate(masks))]
    if fmt.startswith("codebook"):
        return table[c]
    if fmt in ("binary", "int2odd", "int3odd"):
        return 2 * c - (2**b - 1)
    return (c ^ 8) - 8 if fmt == "int4" else c - {"uint4": 0, "ternary": 1, "int2": 2, "int3": 4}[fmt]


def decode(raw, layers, name):
    """The tensor as float32, with the roundings of lowbit itself."""
    if name not in layers:
        return raw[name].astype(np.float32)
    g, part = layers[name], lambda suffix: raw.get(name + suffix)
    n, k = part(".shape")
    scale = part(".scales")
    if g["scale_dtype"] == "pow2":
        scale = np.ldexp(np.float32(1), -scale.astype(np.int32))
    elif g["scale_dtype"] == "double":
        scale = scale * np.repeat(part(".super_scales").astype(np.float32), 16, axis=1)[:, : scale.shape[1]]
    rb = g["row_block"]
    rows = np.searchsorted(part(".row_ends"), np.arange(n), side="right") if rb == "ranges" else np.arange(n) // (n if rb < 0 else rb)
    cols = np.arange(k) // (k if g["group_size"] < 0 else g["group_size"])
    v = values(g["format"], part(".codes"), k, part(".codebook")).astype(np.float32)
    spread = lambda a: a.astype(np.float32)[rows][:, cols]
    if not g["zero_point"]:
        return v * spread(scale)
    zero = spread(part(".zeros"))
    return v * spread(scale) + zero if g["zero_dtype"] == "offset" else (v - zero) * spread(scale)


if __name__ == "__main__":
    raw, layers = open_checkpoint(sys.argv[1])
    wanted = sys.argv[2:] or sorted(set(layers) | {n for n in raw if not any(n.startswith(l + ".") for l in layers)})
    for name in wanted:
        w = decode(raw, layers, name)
        print(f"{name} {list(w.shape)} {layers.get(name, {}).get('format', 'float')} mean |w| {np.abs(w).mean():.6g}")
