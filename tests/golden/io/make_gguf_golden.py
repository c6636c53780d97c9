"""Writes gguf_types.safetensors: blocks of every GGUF type that lowbit reads and the values PyPI `gguf` makes of them.

    pip install gguf==0.19.0 safetensors numpy && python make_gguf_golden.py

For each type T: "T.blocks" uint8 [blocks, bytes] and "T.values" float32 [blocks, elements]. The blocks are zeros, all
ones, every byte value at many places, extreme and special half-precision scales (0, -0, smallest, largest, infinity,
NaN) and random bytes. gguf 0.19.0 does not decode Q1_0 and Q2_0; their values come from the two functions below,
written after dequantize_row_q1_0 and dequantize_row_q2_0 of ggml-quants.c.
"""

import pathlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from safetensors.numpy import save_file

# type -> (block elements, block bytes, offsets of the half-precision fields)
TYPES = {
    "F32": (1, 4, []), "F16": (1, 2, [0]), "BF16": (1, 2, []),
    "Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]), "Q5_0": (32, 22, [0]), "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]), "Q2_K": (256, 84, [80, 82]), "Q3_K": (256, 110, [108]), "Q4_K": (256, 144, [0, 2]),
    "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208]), "IQ4_NL": (32, 18, [0]), "IQ4_XS": (256, 136, [0]),
    "TQ1_0": (256, 54, [52]), "TQ2_0": (256, 66, [64]), "MXFP4": (32, 17, []), "Q1_0": (128, 18, [0]),
    "Q2_0": (64, 18, [0]),
}
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]


def q1_0(blocks):
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, d, -d).astype(np.float32)


def q2_0(blocks):
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    q = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return (q.reshape(len(blocks), 64).astype(np.float32) - 1) * d


def make_blocks(rng, elems, size, halves):
    count = {1: 512, 32: 48, 64: 32, 128: 21, 256: 21}[elems]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for h in halves:  # mostly plausible scales
        blocks[:, h:h + 2] = rng.normal(0, 0.05, count).astype(np.float16).view(np.uint8).reshape(count, 2)
    blocks[0] = 0
    blocks[1] = 255
    sweep = np.arange(6 * size) % 256
    blocks[2:8] = sweep.reshape(6, size).astype(np.uint8)
    for i, value in enumerate(SPECIAL_HALVES[: count - 8] if halves else []):
        for j, h in enumerate(halves):
            half = value if j == 0 else SPECIAL_HALVES[(i + 5) % len(SPECIAL_HALVES)]
            blocks[8 + i % (count - 8), h:h + 2] = np.array([half], np.uint16).view(np.uint8)
    return blocks


def main():
    rng = np.random.default_rng(20240607)
    out = {}
    for name, (elems, size, halves) in TYPES.items():
        if name in ("Q1_0", "Q2_0"):
            decode = {"Q1_0": q1_0, "Q2_0": q2_0}[name]
        else:
            assert GGML_QUANT_SIZES[Type[name]] == (elems, size), name
            decode = lambda b, t=Type[name]: gguf.dequantize(b, t)
        blocks = make_blocks(rng, elems, size, halves)
        if name == "MXFP4":  # exponents that a power-of-two int8 shift can hold in the first half, all in the second
            blocks[:24, 0] = np.clip(blocks[:24, 0], 1, 254)
            blocks[30, 0], blocks[31, 0] = 0, 255
        if name == "TQ2_0":  # the unused code 3 only in the second half
            blocks[:8, :64] &= 0x55
        with np.errstate(all="ignore"):
            values = np.stack([decode(b[None, :]).reshape(elems) for b in blocks])
        out[name + ".blocks"] = blocks
        out[name + ".values"] = values.astype(np.float32)
    path = pathlib.Path(__file__).with_name("gguf_types.safetensors")
    save_file(out, path)
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
